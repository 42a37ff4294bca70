"""The task run by lm-eval against a server that speaks SGLang's protocol: on the same responses, the numbers of our evaluation."""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lm_eval.evaluator import simple_evaluate as evaluate_tasks
from lm_eval.tasks import TaskManager

from pipeline.artifacts import Cell
from pipeline.config import CellSettings, load_settings
from pipeline.evaluation.evaluate import Evaluation
from pipeline.evaluation.lm_eval_run import LmEvalRun, lm_eval_command, sample_log, score_rows, write_tasks
from pipeline.evaluation.protocols import EvaluationProtocol, evaluate_protocol
from pipeline.evaluation.summary import summarise
from pipeline.problems.prepare import _write_problems
from pipeline.records import Problem, Response
from pipeline.rollout.engine import Generation
from tests.lm_eval.server import Reply, Server, serve

VERSION, K = 540, 16
ROOT = Path(__file__).resolve().parents[2]
AIME24 = ROOT / "pipeline" / "problems" / "aime24.jsonl"


def problems() -> list[Problem]:
    """The repository's AIME24 where it is there, else 30 problems of its format; as prepared problems, in chat markup."""
    made_up = [json.dumps({"id": f"2024-{i}", "problem": f"How many {{{i}}}?", "answer": str(7 * i % 1000)}) for i in range(30)]
    rows = map(json.loads, AIME24.read_text(encoding="utf-8").splitlines() if AIME24.exists() else made_up)
    markup = "<|im_start|>user\n{}\nQuestion: {{{{x}}}}?<|im_end|>\n<|im_start|>assistant\n"
    return [Problem(row["id"], "aime24", markup.format(row["problem"]), row["answer"]) for row in rows]


PROBLEMS = problems()
ANSWERS = {problem.prompt: int(problem.answer) for problem in PROBLEMS}

# kinds of response: text, how it ended
KINDS = [
    ("So we find \\boxed{{{gold}}}.", "stop"),
    ("So we find \\boxed{{{gold:03d}}}.", "stop"),
    ("So we find \\boxed{{{hundredfold}}}.", "stop"),
    ("So we find \\boxed{{\\frac{{{double}}}{{2}}}}.", "stop"),
    ("Question: is it {gold}? Let us see.\n\nThe answer is \\boxed{{{gold}}}.", "stop"),
    ("\\boxed{{{wrong}}}", "stop"),
    ("Work, work.\nAnswer: {gold}", "stop"),
    ("The answer is {gold}", "length"),
    ("It must be \\boxed{{{gold}}} but let us check, check, check", "length"),
    ("I do not know", "stop"),
    ("", "stop"),
    ("答案是 \\boxed{{{gold}}} — «é»", "stop"),
]


def reply(prompt: str, count: int, version: int = VERSION) -> Reply:
    gold = ANSWERS[prompt]
    text, reason = KINDS[(gold * 5 + count * (1 + gold % 3)) % len(KINDS)]
    text = text.format(gold=gold, hundredfold=100 * gold, double=2 * gold, wrong=gold + 1)
    return Reply(text, reason, 10 + count, str(version))


@dataclass(frozen=True)
class Outcome:
    run: LmEvalRun
    server: Server
    results: dict[str, Any]
    log: list[dict[str, Any]]


def settings() -> CellSettings:
    return load_settings(overrides={"preset": "full"}).cell(Cell("sat-gspo-r3", "8", 0))


@pytest.fixture(scope="module")
def outcome(tmp_path_factory) -> Outcome:
    """lm-eval's own command line on 30 prepared problems, 16 responses each."""
    folder = tmp_path_factory.mktemp("lm_eval")
    _write_problems(folder / "scoring.parquet", PROBLEMS)
    with serve(reply) as server:
        run = LmEvalRun.of(
            settings(),
            endpoint=server.url,
            policy_version=VERSION,
            problems=(folder / "scoring.parquet",),
            out=folder / "out",
            stop_token_ids=(151643, 151645),
            longest_prompt=300,
            num_concurrent=8,
            timeout_s=60,
        )
        write_tasks(run)
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf")}
        done = subprocess.run(lm_eval_command(run, [sys.executable]), cwd=ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-4000:]
    (results,) = (folder / "out").glob("*/results_*.json")
    log = [json.loads(line) for line in sample_log(run, run.problems[0]).read_text(encoding="utf-8").splitlines()]
    return Outcome(run, server, json.loads(results.read_text(encoding="utf-8"))["results"]["scoring_avg_at_k"], log)


def test_what_the_server_is_asked(outcome):
    requests = outcome.server.requests
    assert Counter(body["text"] for body in requests) == {problem.prompt: K for problem in PROBLEMS}
    for body in requests:
        assert body["sampling_params"] == {
            "max_new_tokens": 32768,
            "temperature": 0.95,
            "top_p": 1.0,
            "top_k": -1,
            "stop": [],
            "stop_token_ids": [151643, 151645],
        }
        assert body.keys() == {"text", "sampling_params"}  # in particular no seed


def rows(outcome: Outcome) -> list[dict[str, Any]]:
    ids = [problem.id for problem in PROBLEMS]
    return score_rows(sample_log(outcome.run, outcome.run.problems[0]), policy_version=VERSION, num_samples=K, problems=ids)


class ReplayEngine:
    """A rollout engine that returns the responses of an lm-eval log; a token id stands for a whole text."""

    def __init__(self, log: list[dict[str, Any]]) -> None:
        self.texts = [text for entry in log for text in entry["resps"][0]]
        self.samples = [sample for entry in log for sample in entry["samples"]]

    def generate(self, requests, sampling) -> Future[Generation]:
        assert len(requests) == len(self.texts)
        future: Future[Generation] = Future()
        future.set_result(Generation(tuple(self._response(index) for index in range(len(requests))), 0.0))
        return future

    def _response(self, index: int) -> Response:
        sample = self.samples[index]
        ids = np.full(sample["length"], index, dtype=np.int32)
        versions = np.full(len(ids), sample["policy_version"], dtype=np.int32)
        return Response(np.zeros(1, np.int32), ids, np.zeros(len(ids), np.float32), versions, None, sample["finish_reason"])

    def encode(self, text: str) -> list[int]:
        return [0]

    def decode(self, ids) -> str:
        return self.texts[int(ids[0])]


def test_rows_are_those_of_our_own_evaluation_of_the_same_responses(outcome):
    assert [entry["doc"]["id"] for entry in outcome.log] == [problem.id for problem in PROBLEMS]
    engine = ReplayEngine(outcome.log)
    own = Evaluation(engine, engine, PROBLEMS, settings(), VERSION, "scoring").rows()  # type: ignore[arg-type]
    assert [row.flat() for row in own] == rows(outcome)


def test_numbers_are_those_of_our_own_protocols(outcome):
    own, theirs = summarise("best", rows(outcome)), {name.split(",")[0]: value for name, value in outcome.results.items()}
    for name, values in (("avg", own.primemath), ("pass", own.primemath), ("avg_strict", own.strict), ("pass_strict", own.strict)):
        metric = name.replace("avg", "avg_at_k").replace("pass", "pass_at_k")
        assert theirs[metric] == pytest.approx(float(values[f"{name.split('_')[0]}@16"]), abs=1e-12), metric
    assert theirs["disagreements"] == own.disagreements > 0
    assert theirs["no_answer"] == pytest.approx(float(own.no_answer), abs=1e-12) and own.no_answer > 0
    assert theirs["truncated"] == pytest.approx(float(own.truncated), abs=1e-12) and own.truncated > 0
    assert (theirs["policy_version"], theirs["samples"]) == (VERSION, K)
    problem_means = [sum(row["correct"] for row in entry["samples"]) / K for entry in outcome.log]
    assert theirs["avg_at_k_stderr"] == pytest.approx(np.std(problem_means, ddof=1) / np.sqrt(30), abs=1e-12)


def test_numbers_are_the_known_shares_of_the_responses(outcome):
    """Counted from what the server said: zero padding, fractions, "Answer:", "Question:" are right, x100 for primemath only."""
    right = {0, 1, 3, 4, 6, 8, 11}
    kinds = [(int(p.answer), (int(p.answer) * 5 + n * (1 + int(p.answer) % 3)) % len(KINDS)) for p in PROBLEMS for n in range(K)]
    # 100 x 0 is 0
    strict = sum(kind in right or (kind == 2 and gold == 0) for gold, kind in kinds)
    scaled = sum(kind == 2 and gold != 0 for gold, kind in kinds)
    assert evaluate_protocol(rows(outcome), EvaluationProtocol("avg", K), verdict="correct_strict") == Fraction(strict, 30 * K)
    assert evaluate_protocol(rows(outcome), EvaluationProtocol("avg", K)) == Fraction(strict + scaled, 30 * K)


def simple_evaluate(server: Server, problems: Path, limit: int, num_concurrent: int = 4) -> dict[str, Any]:
    arguments = {
        "model": "x",
        "base_url": f"{server.url}/generate",
        "tokenizer_backend": None,
        "tokenized_requests": False,
        "num_concurrent": num_concurrent,
        "max_retries": 2,
    }
    manager = TaskManager(
        include_path=str(ROOT / "pipeline/evaluation/lm_eval_tasks"), include_defaults=False, metadata={"problems": str(problems)}
    )
    return evaluate_tasks(
        "sglang-generate", arguments, tasks=["aime24_avg_at_k"], task_manager=manager, limit=limit, bootstrap_iters=0
    )


@pytest.fixture
def jsonl(tmp_path: Path) -> Path:
    """Problems without a prompt: id, problem, answer."""
    path = tmp_path / "aime24.jsonl"
    lines = [json.dumps({"id": i, "problem": f"Find {i}.", "answer": f"{i:03d}"}) for i in range(30)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def plain_reply(prompt: str, count: int) -> Reply:
    return Reply("\\boxed{1}", "stop", 4, "7")


def test_the_task_directory_alone_puts_problems_into_the_template(jsonl):
    with serve(plain_reply) as server:
        results = simple_evaluate(server, jsonl, limit=3)["results"]["aime24_avg_at_k"]
    template = "Find {}.\n\nPlease reason step by step, and put your final answer within \\boxed{{}}."
    assert Counter(body["text"] for body in server.requests) == {template.format(i): 16 for i in range(3)}
    assert results["avg_at_k,k_samples"] == pytest.approx(1 / 3) and results["policy_version,k_samples"] == 7


def test_a_weight_update_in_between_is_an_error(jsonl):
    def updated(prompt: str, count: int) -> Reply:
        return Reply("\\boxed{1}", "stop", 4, "8" if count > 12 else "7")

    with serve(updated) as server, pytest.raises(ValueError, match=r"policy versions \[7, 8\]"):
        simple_evaluate(server, jsonl, limit=2)


def test_an_aborted_response_is_asked_for_again(jsonl):
    with serve(lambda prompt, count: Reply("\\boxed{1}", "abort" if count == 3 else "stop", 4, "7")) as server:
        results = simple_evaluate(server, jsonl, limit=1)["results"]["aime24_avg_at_k"]
    assert len(server.requests) == 17 and results["samples,k_samples"] == 16


def test_weights_without_a_version_are_refused(jsonl):
    def unnumbered(prompt: str, count: int) -> Reply:
        return Reply("\\boxed{1}", "stop", 4, "default")

    with serve(unnumbered) as server, pytest.raises(ValueError, match="'default', not a policy version"):
        simple_evaluate(server, jsonl, limit=1, num_concurrent=1)  # one request at a time: no task is left with its exception
