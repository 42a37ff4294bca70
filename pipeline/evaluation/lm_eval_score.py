"""Scores by lm-eval: SGLang servers hold one retained version after the other, and lm-eval asks them.

What the servers hold is loaded and verified as during training; lm-eval runs in a process of its own, and its logged samples become
rows like those of our own evaluation (tests/lm_eval compares the two on the same responses).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.config import CellSettings
from pipeline.evaluation.lm_eval_run import LmEvalRun, lm_eval_command, sample_log, score_rows, write_tasks
from pipeline.evaluation.rows import SampleRow, ScoreRow
from pipeline.policy.tokenizer import read_tokenizer
from pipeline.problems.aime24 import COPY, read_aime24
from pipeline.problems.prepare import read_problems
from pipeline.problems.template import instruct
from pipeline.processes.errors import EngineDied
from pipeline.processes.process import Process, ProcessSpec
from pipeline.published_weights import PublishedWeights
from pipeline.records import Problem
from pipeline.rollout.engine import SamplingSettings
from pipeline.rollout.sglang.engine import SGLangEngine
from pipeline.rollout.sglang.server import sections

_RESPONSE_TIMEOUT_S = 4 * 3600  # for one response of any length, its wait in the server included


def lm_eval_rows(
    settings: CellSettings, base_policy: Path, weights: Mapping[str, PublishedWeights], problems: tuple[Path, ...], work: Path
) -> dict[Path, list[dict[str, Any]]]:
    """For each file of problems the rows of every checkpoint in `weights`. A version kept under two names is scored once.

    work: a folder for what lm-eval and the servers write. Raises EngineDied where either ends before its time.
    """
    tokenizer, python = read_tokenizer(base_policy), sections(settings)[1].server_command
    contents = {path: _read(path) for path in problems}
    prompts = [problem.prompt for content in contents.values() for problem in content]
    longest = max(len(ids) for ids in tokenizer.backend.encode_batch(prompts, add_special_tokens=False))
    rows: dict[Path, list[dict[str, Any]]] = {path: [] for path in problems}
    by_version: dict[int, dict[Path, list[dict[str, Any]]]] = {}
    engine = SGLangEngine(on_one_node(settings), base_policy, tokenizer.eos_token_ids, work / "servers", text=True)
    try:
        for checkpoint, published in weights.items():
            version = published.version
            if version not in by_version:
                engine.load(published)
                # nothing is asked for: the answer says that the servers hold the version
                engine.generate((), SamplingSettings(1.0, 1, settings.rollout.context_length)).result()
                run = LmEvalRun.of(
                    settings,
                    endpoint=engine.endpoints[0],
                    policy_version=version,
                    problems=problems,
                    out=work / f"version_{version:06d}",
                    stop_token_ids=tokenizer.eos_token_ids,
                    longest_prompt=longest,
                    num_concurrent=sections(settings)[0].requests_in_flight,
                    timeout_s=_RESPONSE_TIMEOUT_S,
                )
                by_version[version] = _evaluate(run, python, {path: [p.id for p in content] for path, content in contents.items()})
            for path in problems:
                rows[path] += [ScoreRow(SampleRow(**row), checkpoint).flat() for row in by_version[version][path]]
    finally:
        engine.close()
    return rows


def on_one_node(settings: CellSettings) -> CellSettings:
    """Settings whose only server runs on the first node, for a cell of several: lm-eval asks one server, weights are on disk."""
    servers, cluster = sections(settings)
    if cluster.num_nodes == 1:
        return settings
    alone = servers.model_copy(update={"num_servers": 1, "publication": "disk"})
    return settings.model_copy(update={"megatron": None, "servers": alone, "cluster": cluster.model_copy(update={"num_nodes": 1})})


def _read(path: Path) -> list[Problem]:
    """Prepared problems, or the repository's AIME24 with the prompts that the task makes of it."""
    if path.suffix == ".parquet":
        return read_problems(path)
    assert path == COPY, path
    return [replace(problem, prompt=instruct(problem.prompt, "boxed")) for problem in read_aime24(None).problems]


def _evaluate(run: LmEvalRun, python: Sequence[str], ids: Mapping[Path, list[str]]) -> dict[Path, list[dict[str, Any]]]:
    """Run lm-eval and read its samples back. An earlier attempt's folder is emptied first: a run has one log per task."""
    for old in run.out.glob("**/samples_*.jsonl"):
        old.unlink()
    write_tasks(run)
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str((run.out / "cache").resolve())}
    lm_eval = Process(ProcessSpec("lm-eval", tuple(lm_eval_command(run, python)), environment), run.out / "lm_eval.log")
    try:
        if lm_eval.wait():
            raise EngineDied(lm_eval.death())
    finally:
        lm_eval.stop()
    return {
        path: score_rows(sample_log(run, path), policy_version=run.policy_version, num_samples=run.num_samples, problems=names)
        for path, names in ids.items()
    }
