"""Shapes of curves: planted periods, settling and tails come back; the published curves show the sawtooth; gaps are named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pipeline.artifacts import Cell
from pipeline.paper.curve_texts import curve_rows
from pipeline.paper.curves import WINDOWS, compare_curves, period_of, published_curve, shape_of
from pipeline.paper.reference import read_reference
from pipeline.results.runs import read_results
from pipeline.results.series import trailing_mean
from tests.unit import synthetic_results as synthetic

REFERENCE = read_reference(Path(__file__).parents[2] / "results" / "reference")


def sawtooth(period: int, steps: int = 200, noise: float = 0.1) -> pd.Series:
    lag = 1 + np.arange(steps) % period
    return pd.Series(0.004 * (1 + 0.3 * lag) * np.exp(np.random.default_rng(0).normal(0, noise, steps)))


@pytest.mark.parametrize("period", [4, 8, 12])
def test_a_planted_period_comes_back(period):
    assert period_of(sawtooth(period)) == period


def test_noise_a_trend_and_a_thinned_curve_have_no_period():
    assert period_of(sawtooth(1)) is None
    assert period_of(pd.Series(np.linspace(0.02, 0.01, 200))) is None
    assert period_of(sawtooth(8).iloc[::4]) is None  # every fourth step: a period of 8 would be two points


def test_tail_peak_and_settling_of_a_known_shape():
    """Decays from 3 to 1 and stays within a quarter of 1 once the mean over eight steps has."""
    steps = np.arange(100)
    shape = shape_of(pd.Series(1 + 2 * np.exp(-steps / 10), index=steps), 8)
    assert shape.tail_mean == pytest.approx(1.0, abs=0.01) and (shape.peak, shape.peak_step) == (3.0, 0)
    assert shape.settle_step == next(s for s in range(7, 100) if np.mean(2 * np.exp(-np.arange(s - 7, s + 1) / 10)) <= 0.25)
    assert shape_of(pd.Series(dtype=float), 8) is None
    assert shape_of(pd.Series(np.r_[np.ones(90), np.full(10, 9.0)]), 8).settle_step is None


def test_thinning_a_published_curve_hardly_moves_where_it_settles():
    """Twelve curves have every step: each settles within four steps of where every fourth of its points does."""
    moved = []
    for method, lag in zip(REFERENCE.table["method"], REFERENCE.table["lag"], strict=True):
        curve, _, notes = published_curve(REFERENCE, method, lag, "mismatch")
        if not any("published every" in note for note in notes):
            whole, thinned = (shape_of(part, WINDOWS["mismatch"]).settle_step for part in (curve, curve.iloc[::4]))
            assert (whole is None) == (thinned is None)
            moved.append(0 if whole is None else abs(whole - thinned))
    assert len(moved) == 12 and max(moved) <= 4


def test_a_trailing_mean_counts_steps():
    """Against the definition, at irregular steps, with a value that is not finite, for two seeds at once."""
    steps = np.array([0, 1, 2, 6, 9, 10, 20])
    values = np.array([[1.0, 2.0, np.nan, 4.0, 5.0, 6.0, np.inf], np.arange(7.0)])
    windows = [(at - 8 < steps) & (steps <= at) for at in steps]
    expected = [
        [row[near & np.isfinite(row)].mean() if (near & np.isfinite(row)).any() else np.nan for near in windows] for row in values
    ]
    np.testing.assert_allclose(trailing_mean(steps, values, 8), expected)
    assert np.isnan(trailing_mean(steps, values, 8)[0, -1])


@pytest.mark.parametrize(
    ("method", "lag", "period"), [("grpo", "8", 8), ("sat-gspo-r3", "8", 8), ("grpo", "1", None), ("sat-gspo", "1", None)]
)
def test_published_mismatch_repeats_every_eight_steps_at_lag_8_alone(method, lag, period):
    assert period_of(published_curve(REFERENCE, method, lag, "mismatch")[0]) == period


def test_published_curves_are_the_longest_run_and_say_what_they_lack():
    curve, figure, notes = published_curve(REFERENCE, "grpo-r3", "1", "mismatch")
    assert (figure, curve.index[-1]) == ("4a", 109)
    assert notes == ["2 published runs; taken: grpo__r3__s1__c8j5hem6", "published curve ends at step 109 of 543"]
    assert published_curve(REFERENCE, "gspo-r3", "1", "mismatch")[2][1] == "published every 4 steps"
    assert published_curve(REFERENCE, "grpo", "1", "aime24")[0] is None
    assert published_curve(REFERENCE, "sat-grpo", "1", "mismatch")[2][0] == "published curve begins at step 232"


@pytest.fixture(scope="module")
def comparisons(tmp_path_factory) -> dict:
    """Two seeds of three methods; one seed is missing, and of one no mismatch after step 119 is finite."""
    world = synthetic.World({}, missing=[Cell("grpo", "8", 1)])
    made = synthetic.write_run(
        tmp_path_factory.mktemp("curves"), world, {"seeds": 2, **synthetic.cells(["grpo", "gspo", "dppo"], ["1", "8"])}
    )
    path = made.root / made.layout.cell(Cell("dppo", "1", 1)) / "steps.parquet"
    rows = pd.read_parquet(path)
    rows.assign(mismatch=rows["mismatch"].where(rows["step"] < 120)).to_parquet(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made.root)
        found = compare_curves(read_results(made.layout, made.settings), REFERENCE)
    return {(item.metric, item.method, item.lag): item for item in found}


def test_our_curves_stand_beside_the_published_ones(comparisons):
    item = comparisons["mismatch", "grpo", "8"]
    assert (item.ours.period, item.paper.period, item.common_steps) == (8, 8, 200)
    assert item.correlation > 0.3 and comparisons["aime24", "gspo", "1"].common_steps == 10


def test_missing_and_truncated_runs_are_named(comparisons):
    assert "seed 1 was not read" in comparisons["mismatch", "grpo", "8"].notes and comparisons["mismatch", "grpo", "8"].seeds == 1
    assert "seed 1 ends at step 119 of 199" in comparisons["mismatch", "dppo", "1"].notes
    absent = comparisons["mismatch", "sat-gspo", "8"]
    assert absent.ours is None and absent.notes[-1] == "not among the cells of this run"
    row = next(row for row in curve_rows([absent]))
    assert row[0] == "SAT-GSPO, mismatch" and row[3] == "–" and "not among the cells" in row[-1]
