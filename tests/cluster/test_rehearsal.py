"""Ten steps of the rehearsal, from a clean tree to the report: SGLang rollouts, two Megatron-core ranks, lm-eval on AIME24."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from pipeline.problems.aime24 import IDS
from tests.workflow.conftest import Workflow

STEPS = 10
SHORT = {
    "preset": "rehearsal",
    "problems": {"train_count": 64, "evaluation_count": 4, "scoring_count": 6},
    "warm_start": {"steps": 200},
    "rollout": {"group_size": 4, "prompts_per_step": 4},
    "trainer": {"steps": STEPS, "checkpoint_interval": 5, "micro_batch_tokens": 256},
    "evaluation": {"interval": 5, "num_samples": 2, "scoring_samples": 2},
    "cells": {"table": {"methods": ["sat-gspo-r3"], "lags": ["8"]}},
}


@pytest.fixture(scope="module")
def cell(tmp_path_factory) -> Path:
    workflow = Workflow(tmp_path_factory.mktemp("rehearsal"), SHORT)
    workflow.timeout_s = 1500
    workflow.snakemake()
    assert (workflow.folder / "results/rehearsal/report.html").stat().st_size > 10_000
    return workflow.folder / "results/rehearsal/cells/sat-gspo-r3/lag8/seed0"


def test_lags_are_the_schedules_and_equal_weights_agree(cell):
    steps = pd.read_parquet(cell / "steps.parquet")
    lags = [0, *range(1, 9), 1]
    assert [json.loads(histogram) for histogram in steps.lag_histogram] == [
        {str(lag): tokens} for lag, tokens in zip(lags, steps.num_tokens, strict=True)
    ]
    assert steps.mismatch[0] < 1e-4 < steps.mismatch[8]  # equal weights, and eight optimizer steps apart
    assert steps.finite.all() and not steps.skipped.any()
    assert max(steps["grad_norm"]) > 0


def test_scores_are_lm_evals_on_the_cells_problems_and_on_aime24(cell):
    last = json.loads((cell / "run.json").read_text())["retained_weights"]["last"]["version"]
    scores, aime24 = (pd.read_parquet(cell / f"{name}.parquet") for name in ("scores", "aime24"))
    for rows, count in ((scores, 6), (aime24, 30)):
        assert rows.groupby("checkpoint").size().to_dict() == {"best": 2 * count, "last": 2 * count}
    assert set(aime24.problem_id) == set(IDS)
    assert set(scores[scores.checkpoint == "last"].policy_version) == {last}
    assert list((cell / "lm_eval").glob("version_*/**/samples_*.jsonl"))


def test_the_engines_versions_are_recorded(cell):
    packages = json.loads((cell / "run.json").read_text())["packages"]
    assert {"sglang (server)", "megatron-core (trainer)", "torch (trainer)", "torch"} <= set(packages)


def test_mismatch_at_equal_weights_is_precision_and_routing(cell):
    rows = json.loads((cell.parents[3] / "mismatch.json").read_text())["rows"]
    measured = {(row["dtype"], row["replay"]): row["mismatch"] for row in rows}
    assert measured["float32", False] < 1e-5 and measured["float32", True] < 1e-5
    assert measured["bfloat16", True] > 1e-4
