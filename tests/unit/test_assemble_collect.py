"""Reading and summarising cells: planted numbers come back, faults are listed by name, the collapse rule does what it says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pipeline.artifacts import Cell
from pipeline.paper.reference import read_reference
from pipeline.results.collapse import find_collapse, lasting_fall, leaves_band
from pipeline.results.collect import COLUMNS, collect_stage, mismatch_series, read_summary, summarise
from pipeline.results.frames import column, rows_where
from pipeline.results.runs import read_cell, read_results
from tests.unit import synthetic_results as synthetic

REFERENCE = Path(__file__).parents[2] / "results" / "reference"
METHODS = ["grpo", "gspo", "gspo-tis", "sat-gspo-r3"]
BROKEN = {
    "truncated": Cell("grpo", "8", 1),
    "json": Cell("gspo", "8", 1),
    "unfinished": Cell("sat-gspo-r3", "8", 1),
    "column": Cell("grpo", "1", 1),
    "shape": Cell("gspo", "1", 1),
    "unscored": Cell("sat-gspo-r3", "1", 1),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> synthetic.Run:
    """Two seeds of four methods at two lags: one collapsed, one missing, one with a non-finite step, six broken in six ways."""
    world = synthetic.World(
        collapsed={("gspo", "8"): 120}, missing=[Cell("gspo-tis", "1", 1)], nonfinite=[Cell("gspo-tis", "8", 0)], seed_sd=0.02
    )
    made = synthetic.write_run(tmp_path_factory.mktemp("run"), world, {"seeds": 2, **synthetic.cells(METHODS, ["1", "8"])})
    folders = {name: made.root / made.layout.cell(cell) for name, cell in BROKEN.items()}
    steps = folders["truncated"] / "steps.parquet"
    steps.write_bytes(steps.read_bytes()[:-200])
    (folders["json"] / "run.json").write_text('{"method": "gspo", ')
    (folders["unfinished"] / "run.json").unlink()
    pd.read_parquet(folders["column"] / "evals.parquet").drop(columns="correct").to_parquet(folders["column"] / "evals.parquet")
    pd.read_parquet(folders["shape"] / "scores.parquet").iloc[:-3].to_parquet(folders["shape"] / "scores.parquet")
    (folders["unscored"] / "scores.parquet").unlink()
    extra = made.root / made.layout.cell(Cell("dppo", "1", 7))
    extra.mkdir(parents=True)
    (extra / "run.json").write_text("{}")
    return made


@pytest.fixture(autouse=True)
def inside(run, monkeypatch):
    monkeypatch.chdir(run.root)


@pytest.fixture(scope="module")
def table(run) -> pd.DataFrame:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(run.root)
        return summarise(read_results(run.layout, run.settings))


def row(table: pd.DataFrame, method: str, lag: str, seed: int) -> dict[str, Any]:
    return rows_where(table, (table["method"] == method) & (table["lag"] == lag) & (table["seed"] == seed)).iloc[0].to_dict()


@pytest.mark.parametrize(
    ("cell", "status", "reason"),
    [
        (Cell("gspo-tis", "1", 1), "missing", "not started"),
        (BROKEN["unfinished"], "incomplete", "no run.json"),
        (BROKEN["truncated"], "unreadable", "arrow|parquet"),
        (BROKEN["json"], "unreadable", "run.json: Invalid JSON.*delete it and run snakemake again"),
        (BROKEN["column"], "unreadable", "evals.parquet lacks the columns correct"),
        (BROKEN["shape"], "unreadable", "scores.parquet: checkpoint last has 957 rows, expected 120 problems x 8 samples"),
        (BROKEN["unscored"], "complete", "no scores.parquet"),
    ],
)
def test_every_fault_is_listed_with_its_reason(table, cell, status, reason):
    found = row(table, cell.method, cell.lag, cell.seed)
    assert found["status"] == status
    assert pd.Series([found["reason"]]).str.contains(reason, case=False).all(), found["reason"]


def test_no_run_is_dropped_and_extra_ones_are_named(run, table):
    assert len(table) == len(run.settings.all_cells()) == 16
    gaps = read_results(run.layout, run.settings).gaps
    assert [gap.cell for gap in gaps if gap.kind == "extra"] == ["dppo/lag1/seed7"]


def test_planted_numbers_come_back(run, table):
    """Best, last, tail mean and mismatch of one run against its own rows."""
    folder = run.layout.cell(Cell("grpo", "8", 0))
    evaluations, steps = pd.read_parquet(folder / "evals.parquet"), pd.read_parquet(folder / "steps.parquet")
    by_step = synthetic.means_by(evaluations, "step", "correct")
    found = row(table, "grpo", "8", 0)
    assert found["best"] == pytest.approx(by_step.max())
    assert found["best_step"] == by_step.idxmax()
    assert found["last"] == pytest.approx(by_step.iloc[-1])
    assert found["best_inflation"] == pytest.approx(found["best"] - found["unbiased_best"]) and found["best_inflation"] > 0
    assert found["tail_mean"] == pytest.approx(by_step.loc[150:].mean())
    assert found["mismatch"] == pytest.approx(steps["mismatch"].iloc[150:].mean())
    assert found["mismatch_peak"] == pytest.approx(steps["mismatch"].max())
    fresh = pd.read_parquet(folder / "scores.parquet")
    by_problem = synthetic.means_by(rows_where(fresh, fresh["checkpoint"] == "last"), "problem_id", "correct")
    assert found["fresh_last_se_clustered"] == pytest.approx(by_problem.std() / np.sqrt(120))
    assert found["fresh_last_se_sampling"] == pytest.approx(np.sqrt((by_problem * (1 - by_problem) / 7).sum()) / 120)
    assert found["fresh_last_high"] - found["fresh_last_low"] == pytest.approx(
        2 * 1.9801 * found["fresh_last_se_clustered"], rel=1e-3
    )
    scores = synthetic.means_by(fresh, "checkpoint", "correct")
    assert (found["fresh_last"], found["fresh_best"]) == pytest.approx((scores["last"], scores["best"]))


def test_what_sat_alone_clips_is_averaged_over_the_run_where_it_was_recorded(run, table, tmp_path):
    cell = Cell("sat-gspo-r3", "8", 0)
    folder = tmp_path / "recorded" / run.layout.cell(cell)
    shutil.copytree(run.root / run.layout.cell(cell), folder)
    steps = pd.read_parquet(folder / "steps.parquet")
    newly = [name for name in steps if name.startswith("sat_newly_clipped")]
    assert row(table, "sat-gspo-r3", "8", 0)["sat_newly_clipped_share"] == pytest.approx(steps[newly].sum(axis=1).mean())
    assert np.isnan(row(table, "grpo", "8", 0)["sat_newly_clipped_share"])
    steps.drop(columns=[*newly, *(name for name in steps if name.startswith("sat_fixed"))]).to_parquet(folder / "steps.parquet")
    older, _ = read_cell(folder, cell, run.settings)
    assert older.steps[newly].isna().all(axis=None) and not older.steps["sat_quantile"].hasnans


def test_collapse_is_found_where_it_was_planted(table):
    collapsed = table[table["collapsed"].fillna(False).astype(bool)]
    assert set(zip(collapsed["method"], collapsed["lag"], strict=True)) == {("gspo", "8"), ("gspo-tis", "8")}
    planted = row(table, "gspo", "8", 0)
    assert planted["collapse_cause"] in ("accuracy", "reward")
    assert 120 < planted["onset_step"] < 165
    assert 120 < planted["mismatch_leaves_band"] < 160 and pd.isna(row(table, "grpo", "8", 0)["mismatch_leaves_band"])


def test_a_nonfinite_step_is_counted_and_kept_out_of_the_means(table):
    found = row(table, "gspo-tis", "8", 0)
    assert (found["nonfinite_steps"], found["skipped_steps"], found["collapse_cause"], found["onset_step"]) == (
        1,
        1,
        "non-finite",
        100,
    )
    assert np.isfinite(found["mismatch_run"]) and np.isfinite(found["mismatch_peak"])


def test_realised_lags_are_those_of_the_schedule(run):
    results = read_results(run.layout, run.settings)
    histogram = results.of("grpo", "8")[0].tokens_by_lag
    assert sorted(histogram) == list(range(9))
    assert json.loads(summarise(results).query("method == 'grpo' and lag == '8' and seed == 0")["lag_histogram"].iloc[0]) == {
        str(lag): count for lag, count in histogram.items()
    }


def test_mismatch_can_stop_before_a_step(run):
    found = read_results(run.layout, run.settings).of("gspo", "8")[0]
    series = mismatch_series(found, tail=0.25, before=100)
    assert (series.index.min(), series.index.max()) == (75, 99)


def test_the_stage_writes_both_tables_alike(run, tmp_path):
    written = collect_stage(read_results(run.layout, run.settings), tmp_path / "cells.parquet", tmp_path / "cells.csv")
    pd.testing.assert_frame_equal(read_summary(tmp_path / "cells.parquet"), written)
    assert list(written.columns) == list(COLUMNS)
    assert len(pd.read_csv(tmp_path / "cells.csv")) == 16


def test_a_run_without_any_cell_gives_a_table_of_missing_ones(tmp_path, run, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = collect_stage(read_results(run.layout, run.settings), Path("cells.parquet"), Path("cells.csv"))
    assert set(table["status"]) == {"missing"} and column(table, "best").count() == 0


def test_other_settings_are_named(run):
    path = run.layout.cell(Cell("grpo", "1", 0)) / "run.json"
    text = path.read_text()
    path.write_text(text.replace('"learning_rate": 0.0006', '"learning_rate": 0.0003'))
    gaps = [gap for gap in read_results(run.layout, run.settings).gaps if gap.kind == "settings"]
    path.write_text(text)
    assert [(gap.cell, gap.reason) for gap in gaps] == [
        ("grpo/lag1/seed0", "made with other settings: trainer.learning_rate 0.0003, now 0.0006")
    ]


def test_a_missing_summary_names_the_remedy(tmp_path):
    with pytest.raises(ValueError, match="run `snakemake"):
        read_summary(tmp_path / "cells.parquet")


@pytest.mark.parametrize(
    ("values", "onset"),
    [
        ([0.5, 0.6, 0.5, 0.3, 0.2], 3),  # below 0.36 for the last two
        ([0.5, 0.6, 0.3, 0.5, 0.2], None),  # one alone does not last
        ([0.5, 0.6, 0.2, 0.4, 0.5], None),  # recovered
        ([0.1, 0.1, 0.1], None),  # flat
        ([0.6, 0.5, 0.37, 0.361], None),  # above 0.36 throughout
        ([0.6, np.nan, 0.2, 0.1], 2),  # an unknown value is not below
        ([0.6, 0.2, 0.4, 0.3, 0.45], 1),  # back above 0.36, but never to 0.48
        ([0.6, 0.2, 0.2, 0.5, 0.2], None),  # back to 0.48, and one low value after it
    ],
)
def test_a_fall_must_last_to_the_end(values, onset):
    assert lasting_fall(values) == onset


@pytest.mark.parametrize(("lag", "onset"), [("1", None), ("8", 439)])
def test_the_rule_on_the_published_scores_of_gspo(lag, onset):
    """Figure 3: at lag 8 accuracy falls for good at about step 440, at lag 1 never."""
    curve = read_reference(REFERENCE).curve("3", "gspo", lag, "aime24")
    points = pd.DataFrame({"step": curve.index, "repeated": False, "accuracy": curve.to_numpy() / 100})
    steps = pd.DataFrame({"step": range(30), "reward_mean": 0.5})
    assert find_collapse(points, steps, [], 0.0938).onset_step == onset


def test_the_published_mismatch_of_gspo_leaves_its_band_at_lag_8_alone():
    """A hundred steps before the accuracy falls."""
    reference = read_reference(REFERENCE)
    assert 330 <= leaves_band(reference.curve("4b", "gspo", "8", "mismatch")) <= 360
    assert leaves_band(reference.curve("page", "gspo", "1", "mismatch")) is None


def test_a_band_is_left_for_good_or_not_at_all():
    """Flat, one burst, and a lasting rise of three times; the eight-batch mean passes twice its minimum after five high batches."""
    flat = pd.Series(np.full(60, 0.01))
    burst, rise = flat.copy(), flat.copy()
    burst[20:35], rise[20:] = 0.05, 0.03
    assert (leaves_band(flat), leaves_band(burst), leaves_band(rise)) == (None, None, 24)


def test_a_run_below_the_base_from_the_start_has_collapsed():
    assert lasting_fall([0.2, 0.15, 0.18], start=0.4) == 0
    assert lasting_fall([0.2, 0.15, 0.18]) is None


def test_repeated_rows_of_one_version_are_one_evaluation():
    points = pd.DataFrame({"step": [4, 9, 14], "repeated": [False, False, True], "accuracy": [0.6, 0.2, 0.2]})
    steps = pd.DataFrame({"step": range(15), "reward_mean": 0.5})
    assert not find_collapse(points, steps, [], None).collapsed
    assert find_collapse(points.assign(repeated=False), steps, [], None).onset_step == 9


def test_reward_alone_can_show_a_collapse():
    points = pd.DataFrame({"step": [99], "repeated": [False], "accuracy": [0.5]})
    reward = np.concatenate([np.full(60, 0.5), np.full(40, 0.1)])
    found = find_collapse(points, pd.DataFrame({"step": range(100), "reward_mean": reward}), [], 0.4)
    assert (found.cause, found.onset_step) == ("reward", 65)  # the first ten-step mean below 0.3 has six low steps
