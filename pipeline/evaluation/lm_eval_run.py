"""One evaluation by lm-eval: settings become its command line, and its logged samples become rows of scores.parquet.

lm-eval runs in a process of its own and asks an SGLang server; nothing here imports it. The task is lm_eval_tasks/aime24.yaml.
For each file of problems `write_tasks` writes a task that includes it and sets k, sampling and problems.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pipeline.artifacts import write_text
from pipeline.config import CellSettings
from pipeline.evaluation.protocols import EvaluationProtocol, evaluate_protocol

TASK_FILE = Path(__file__).parent / "lm_eval_tasks" / "aime24.yaml"


@dataclass(frozen=True)
class LmEvalRun:
    """What one run of lm-eval is told.

    endpoint: the server, "http://127.0.0.1:30000".  policy_version: the weights that it must hold throughout.  problems: files,
    each a task of the same name, of prepared problems (parquet) or of JSON lines with id, problem, answer.  stop_token_ids: the ids
    that end a response.  out: a folder of this run's own.  timeout_s: for one response, its wait in the server included.
    """

    endpoint: str
    policy_version: int
    problems: tuple[Path, ...]
    out: Path
    num_samples: int
    temperature: float
    max_response_tokens: int
    stop_token_ids: tuple[int, ...]
    num_concurrent: int
    timeout_s: int

    @classmethod
    def of(
        cls,
        settings: CellSettings,
        *,
        endpoint: str,
        policy_version: int,
        problems: tuple[Path, ...],
        out: Path,
        stop_token_ids: tuple[int, ...],
        longest_prompt: int,
        num_concurrent: int,
        timeout_s: int,
    ) -> LmEvalRun:
        """The run that scores a cell's weights with fresh samples, sampled as its settings say.

        longest_prompt: tokens of the longest prompt; lm-eval has one response limit for all problems, and prompt and response must
        fit into the context together. Raises ValueError when they leave no room.
        """
        evaluation, rollout = settings.evaluation, settings.rollout
        room = rollout.context_length - longest_prompt - 1
        if room < 1:
            raise ValueError(
                f"a prompt of {longest_prompt} tokens leaves no room in rollout.context_length {rollout.context_length}; raise it"
            )
        return cls(
            endpoint=endpoint,
            policy_version=policy_version,
            problems=problems,
            out=out,
            num_samples=evaluation.scoring_samples,
            temperature=rollout.temperature if evaluation.temperature is None else evaluation.temperature,
            max_response_tokens=min(evaluation.max_response_tokens, room),
            stop_token_ids=stop_token_ids,
            num_concurrent=num_concurrent,
            timeout_s=timeout_s,
        )

    def task_file(self, problems: Path) -> Path:
        return self.out / f"{task_name(problems)}.yaml"


def task_name(problems: Path) -> str:
    return f"{problems.stem}_avg_at_k"


def write_tasks(run: LmEvalRun) -> None:
    """Write a task file per file of problems: aime24.yaml with the k and sampling of `run`."""
    for problems in run.problems:
        task = {
            "include": str(TASK_FILE.resolve()),
            "task": task_name(problems),
            "repeats": run.num_samples,
            "generation_kwargs": {
                "until": [],
                "do_sample": True,
                "temperature": run.temperature,
                "top_p": 1.0,
                "top_k": -1,
                "max_gen_toks": run.max_response_tokens,
                "stop_token_ids": list(run.stop_token_ids),
            },
            "metadata": {"version": 1.0, "problems": str(problems.resolve())},
        }
        write_text(run.task_file(problems), yaml.safe_dump(task, sort_keys=False))


def lm_eval_command(run: LmEvalRun, python: Sequence[str]) -> list[str]:
    """The command line, to be run from the repository root; `python`: words that run the interpreter with lm-eval.

    sglang-generate sends no seed, so that the k requests for a problem get k different responses.
    """
    model = {
        "model": f"version_{run.policy_version:06d}",
        "base_url": f"{run.endpoint.rstrip('/')}/generate",
        "tokenizer_backend": "None",
        "tokenized_requests": "False",
        "num_concurrent": run.num_concurrent,
        "timeout": run.timeout_s,
    }
    return [
        *(*python, "-m", "lm_eval", "run", "--model", "sglang-generate"),
        *("--model_args", ",".join(f"{name}={value}" for name, value in model.items())),
        *("--tasks", ",".join(str(run.task_file(problems)) for problems in run.problems), "--batch_size", "1"),
        *("--log_samples", "--output_path", str(run.out)),
    ]


def sample_log(run: LmEvalRun, problems: Path) -> Path:
    """The samples that lm-eval logged below `run.out` for one file of problems. Raises ValueError unless there is one such log."""
    task = task_name(problems)
    logs = sorted(run.out.glob(f"**/samples_{task}_*.jsonl"))
    if len(logs) != 1:
        raise ValueError(
            f"{run.out} holds {len(logs)} sample logs of {task}; expected one: give every run of lm-eval a folder of its own"
        )
    return logs[0]


def score_rows(log: Path, *, policy_version: int, num_samples: int, problems: Collection[str]) -> list[dict[str, Any]]:
    """Rows of scores.parquet but for the checkpoint's name, one per response, in the log's order of problems.

    Raises ValueError unless the log holds samples 0 .. num_samples - 1 of each of `problems` (ids) once, all of `policy_version`.
    """
    rows: list[dict[str, Any]] = []
    lines = [line for line in log.read_text(encoding="utf-8").split("\n") if line.strip()]  # U+2028 in a response ends no line
    for number, line in enumerate(lines, 1):
        try:
            rows += json.loads(line)["samples"]
        except (json.JSONDecodeError, KeyError) as error:
            raise ValueError(f"{log}: line {number} is not a logged problem ({error!r}); run lm-eval again") from error
    evaluate_protocol(rows, EvaluationProtocol("avg", num_samples), problems=problems)
    if len(rows) != num_samples * len(problems):
        raise ValueError(f"{log} holds {len(rows)} responses, expected {len(problems)} problems x {num_samples} samples")
    version = rows[0]["policy_version"]
    if version != policy_version:
        raise ValueError(f"{log}: the server answered with policy version {version}, asked for was {policy_version}; load it first")
    return rows
