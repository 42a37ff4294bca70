"""CONTRIBUTING.md's example of a new method, executed: one entry of METHODS is all that settings, loss and table need."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import torch
import yaml

from pipeline.artifacts import Cell
from pipeline.config import load_settings
from pipeline.objective.loss import objective
from pipeline.objective.methods import METHODS, TABLE_1, Method
from pipeline.paper.table1 import FORM
from pipeline.results.collect import summarise
from pipeline.results.runs import read_results
from pipeline.results.table import render_markdown, rows_of
from tests.unit import synthetic_results as synthetic
from tests.unit.objective_reference import example, objective_settings

PAGE = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
PYTHON, YAML = (re.search(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)[1] for kind in ("python", "yaml"))
NAME = "dppo-gspo-r3"


@pytest.fixture
def added(monkeypatch) -> Method:
    """The method of the example, in METHODS for one test."""
    monkeypatch.setitem(METHODS, NAME, METHODS["grpo"])  # taken out again afterwards
    exec(PYTHON, {"METHODS": METHODS, "Method": Method})
    return METHODS[NAME]


def test_the_example_is_all_that_the_settings_need(added):
    settings = load_settings(overrides=yaml.safe_load(YAML))
    assert [cell.lag for cell in settings.all_cells() if cell.method == NAME] == ["1", "8"]
    assert settings.cell(Cell(NAME, "8", 0)).resolved_method() == added
    assert NAME not in TABLE_1 and len(TABLE_1) == 13


def test_the_example_is_all_that_the_loss_needs(added):
    """With one token a response the sequence ratio is the token's, so that the loss is DPPO's."""
    case, settings = example(), objective_settings()
    count = len(case.trainer)
    alone = dataclasses.replace(case.tokens, response_index=torch.arange(count), num_responses=count)
    losses = [objective(m, settings, case.trainer, case.entropy, alone)[0] for m in (added, METHODS["dppo"])]
    together = [objective(m, settings, case.trainer, case.entropy, case.tokens)[0] for m in (added, METHODS["dppo"])]
    assert losses[0] == losses[1] and together[0] != together[1]


def test_the_example_is_all_that_the_table_needs(added, tmp_path, monkeypatch):
    overrides = yaml.safe_load(YAML)
    cells = synthetic.cells(["grpo"], ["8"])["cells"] | {"uncorrected": {**overrides["cells"]["uncorrected"], "lags": ["8"]}}
    made = synthetic.write_run(tmp_path, synthetic.World({}), {"cells": cells})
    monkeypatch.chdir(tmp_path)
    results = read_results(made.layout, made.settings)
    text = render_markdown(rows_of(results, summarise(results), FORM), results, FORM)
    assert "| DPPO on sequence ratios w/ R3 |" in text.split("## Further methods")[1]
