"""The command that the report prints makes the same settings again; hashes, rules and rank intervals are what they say."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scipy.stats import spearmanr

from pipeline.artifacts import Layout
from pipeline.config import load_settings
from pipeline.paper.ranks import spearman_interval
from pipeline.results.provenance import RULES, command, provenance
from pipeline.results.runs import Results

REPOSITORY = Path(__file__).parents[2]
CONFIG = REPOSITORY / "config.yaml"


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"preset": "full", "seeds": 3},
        {"seeds": [4, 7], "ablations": ["ablations", "figure1"]},
        {"preset": "rehearsal", "objective": {"tis": {"cap": 5.0}, "ppo": {"eps_high": 0.28}}, "trainer": {"learning_rate": 1e-5}},
        {"ablations": True, "cells": {"stress": {"methods": ["grpo"], "lags": ["8-15"]}}},
    ],
)
def test_the_printed_command_makes_the_same_settings(overrides):
    settings = load_settings(CONFIG, overrides)
    words = shlex.split(command(settings, CONFIG))
    assert words[:4] == ["snakemake", "--cores", "all", "--config"]
    parsed = {key: yaml.safe_load(value) for key, value in (word.split("=", 1) for word in words[4:])}
    assert load_settings(CONFIG, parsed) == settings
    assert set(parsed) == {"preset", *overrides}


def test_no_command_is_printed_where_none_would_do(tmp_path):
    """A lag that config.yaml has and the run has not cannot be taken out on a command line."""
    settings = load_settings(CONFIG)
    assert command(settings, tmp_path / "config.yaml") is None
    fewer = settings.model_copy(update={"lags": {name: lag for name, lag in settings.lags.items() if name != "0"}})
    assert command(fewer, CONFIG) is None


def test_the_rules_are_those_of_the_snakefile():
    rules = re.findall(r"^rule (\w+):", (REPOSITORY / "Snakefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {name for column in RULES for name in column} == {*rules} - {"reproduce", "audit"}


def test_hashes_are_those_of_the_manifests(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    layout, results = Layout("tiny"), Results(load_settings(CONFIG), {}, {}, ())
    assert [(gap.cell, gap.kind) for gap in provenance(results, layout)[1]] == [("problems", "missing"), ("base_policy", "missing")]
    for folder, content in (
        (layout.problems, {"files": {"train": {"count": 9, "sha256": "ab"}}}),
        (layout.base_policy, {"sha256": {"model.safetensors": "cd"}}),
    ):
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text(json.dumps(content))
    made, gaps = provenance(results, layout)
    assert made["hashes"] == [("problems/train", "ab"), ("base_policy/model.safetensors", "cd")] and gaps == []


def test_the_interval_of_a_rank_correlation_covers_it():
    """13 pairs of a bivariate normal with r = 0.6, whose Spearman correlation is 6/pi asin(r/2) = 0.582: 95 of 100 cover it."""
    rng, true = np.random.default_rng(5), 6 / np.pi * np.arcsin(0.3)
    covered = []
    for pairs in rng.multivariate_normal([0, 0], [[1, 0.6], [0.6, 1]], size=(1500, 13)):
        result: Any = spearmanr(pairs)
        interval = spearman_interval(float(result.statistic), 13)
        covered.append(interval is not None and interval[0] <= true <= interval[1])
    assert np.mean(covered) == pytest.approx(0.95, abs=0.02)
    assert (
        spearman_interval(0.5, 4) is None and spearman_interval(float("nan"), 13) is None and spearman_interval(1.0, 13) == (1, 1)
    )
