"""The plan against end-to-end rates of another framework, and against the measured times of tiny."""

from __future__ import annotations

import csv
import statistics
from pathlib import Path

import pytest

from pipeline.artifacts import Cell
from pipeline.config import load_settings
from pipeline.objective.methods import VARIANT
from pipeline.planning.bounds import Bounds
from pipeline.planning.calibrate import calibrated
from pipeline.planning.constants import RESPONSE_TOKENS
from pipeline.planning.estimate import plan_run


@pytest.mark.parametrize(("tokens", "low", "high"), [(1000, 438, 875), (2000, 875, 1751), (4000, 1751, 3502), (8000, 3502, 7004)])
def test_gpu_hours_of_a_cell_overlap_those_of_end_to_end_rates(tokens, low, high):
    """1,414 and 707 tokens/s/GPU end to end (NeMo-RL, one step off, and half of it) on the paper's 2.2 million responses."""
    settings = load_settings(overrides={"preset": "full"})
    estimate = plan_run(settings, "H100", Bounds.point(tokens)).cells[0]
    assert estimate.workload.responses == 544 * 4096
    assert estimate.gpu_hours.low < high and estimate.gpu_hours.high > low


def measured() -> list[dict[str, str]]:
    with open(Path(__file__).parents[2] / "results" / "tiny-reference" / "cells.csv", encoding="utf-8") as handle:
        return [row for row in csv.DictReader(handle) if VARIANT not in row["method"]]


def test_the_tiny_plan_covers_the_measured_seconds():
    """Wall time of all 144 cells, mean response length of all but three."""
    plan = plan_run(load_settings(overrides={"seeds": 3, "ablations": ["ablations", "figure1"]}))
    wall = {cell.cell: cell.wall_s for cell in plan.cells}
    assert len(measured()) == len(wall) == 144
    assert [row for row in measured() if not wall[_cell(row)].covers(float(row["wall_s"]))] == []
    lengths = [float(row["response_length_mean"]) for row in measured()]
    assert sum(not RESPONSE_TOKENS["tiny"].value.covers(length) for length in lengths) <= 3


def test_parts_of_the_tiny_plan_cover_their_measurements():
    """Training of every cell of the first seed, publication of their median cell at each lag."""
    plan = plan_run(load_settings(overrides={"ablations": ["ablations", "figure1"]}))
    rows = [row for row in measured() if row["seed"] == "0"]
    for cell in plan.cells:
        row = next(row for row in rows if _cell(row) == cell.cell)
        assert cell.part("train").covers(float(row["train_s"])), row
        same = [float(other["publish_s"]) for other in rows if other["lag"] == row["lag"]]
        assert cell.part("publish").covers(statistics.median(same))


def test_calibration_on_measured_runs_narrows_the_estimate():
    plan = plan_run(load_settings())
    rows = [row for row in measured() if row["seed"] == "0" and row["lag"] == "1"]
    runs = [
        {"method": row["method"], "lag": row["lag"], "seed": 0, "wall_s": _seconds(row)}
        for row in rows
        if _cell(row) in _cells(plan)
    ]
    rates = calibrated(plan, runs)
    assert "wall_s of 14 runs" in rates.train_flops.source and not rates.train_flops.assumed
    assert 1e10 < rates.train_flops.value.low < rates.train_flops.value.high < 4e10
    again = plan_run(load_settings(), rates=rates)
    lag1 = [pair for pair in zip(plan.cells, again.cells, strict=True) if pair[0].cell.lag == "1"]
    for before, after in lag1:
        assert before.cell == after.cell
        assert after.wall_s.covers(next(float(row["wall_s"]) for row in rows if _cell(row) == after.cell))
        assert after.wall_s.high / after.wall_s.low < before.wall_s.high / before.wall_s.low
    with pytest.raises(ValueError, match="no finished cell of preset tiny"):
        calibrated(plan, [])
    with pytest.raises(ValueError, match=r"run\.json of grpo lag 1 has no wall_s of train, publish"):
        calibrated(plan, [{"method": "grpo", "lag": "1", "seed": 0, "wall_s": {"total": 1.0}}])


def _cell(row: dict[str, str]) -> Cell:
    return Cell(row["method"], row["lag"], int(row["seed"]))


def _cells(plan) -> set[Cell]:
    return {cell.cell for cell in plan.cells}


def _seconds(row: dict[str, str]) -> dict[str, float]:
    parts = {name: float(row[f"{name}_s"]) for name in ("wait", "train", "publish", "evaluate")}
    return {"total": float(row["wall_s"]), **parts}
