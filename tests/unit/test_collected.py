"""What collect leaves is what it read: the same runs, gaps and outcomes come back, and a file that is not there is named."""

from __future__ import annotations

from pathlib import Path
from typing import get_type_hints

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from pipeline.__main__ import app
from pipeline.artifacts import COLLECTED, Cell
from pipeline.cell.step_row import SampleColumns, StepRow
from pipeline.config import load_settings
from pipeline.evaluation.rows import EvalRow, SampleRow, ScoreRow
from pipeline.objective.step_columns import objective_columns
from pipeline.results.cell_files import arrow_type
from pipeline.results.collected import COLUMNS, read_collected, write_collected
from pipeline.results.frames import column
from pipeline.results.runs import Results, read_results
from pipeline.trainer.update import Update
from tests.unit import synthetic_results as synthetic

FOLDER = Path("collected")
KINDS = {str: pa.string(), int: pa.int64(), bool: pa.bool_(), float: pa.float64()}
OLDER, UNSCORED = Cell("sat-gspo-r3", "8", 0), Cell("gspo", "8", 0)
STRICT, BROKEN = Cell("sat-gspo-r3", "1", 0), Cell("gspo", "1", 0)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> synthetic.Run:
    """Four cells: without a column of SAT; unscored, with a step that is not finite; broken; with strict verdicts."""
    world = synthetic.World(collapsed={}, nonfinite=[UNSCORED])
    made = synthetic.write_run(tmp_path_factory.mktemp("collected"), world, synthetic.cells(["gspo", "sat-gspo-r3"], ["1", "8"]))
    steps = made.root / made.layout.cell(OLDER) / "steps.parquet"
    pd.read_parquet(steps).drop(columns="sat_newly_clipped_low").to_parquet(steps)
    evaluations = made.root / made.layout.cell(STRICT) / "evals.parquet"
    rows = pd.read_parquet(evaluations)
    rows.assign(correct_strict=rows["correct"]).to_parquet(evaluations)
    (made.root / made.layout.cell(UNSCORED) / "scores.parquet").unlink()
    (made.root / made.layout.cell(BROKEN) / "run.json").write_text("{")
    return made


@pytest.fixture(autouse=True)
def inside(run, monkeypatch):
    monkeypatch.chdir(run.root)


@pytest.fixture
def read(run) -> Results:
    results = read_results(run.layout, run.settings)
    write_collected(results, FOLDER)
    return results


def test_everything_that_was_read_comes_back(run, read):
    found = read_collected(FOLDER, run.settings)
    assert found.gaps == read.gaps and {gap.kind for gap in found.gaps} == {"unreadable", "unscored"}
    assert list(found.runs) == list(read.runs) and BROKEN not in found.runs
    for cell, before in read.runs.items():
        after = found.runs[cell]
        assert after.run == before.run and after.tokens_by_lag == before.tokens_by_lag
        for name in ("steps", "evaluations", "scores"):
            old, new = getattr(before, name), getattr(after, name)
            assert (old is None) == (new is None) == (name == "scores" and cell == UNSCORED)
            if old is not None:
                pd.testing.assert_frame_equal(new, old, check_exact=True)
    assert found.base.keys() == read.base.keys()
    assert all(np.array_equal(found.base[name], read.base[name]) for name in read.base)


def test_what_a_cell_did_not_record_has_no_values(run, read):
    runs = read_collected(FOLDER, run.settings).runs
    assert [column(runs[OLDER].steps, name).count() for name in ("sat_newly_clipped_low", "sat_quantile")] == [0, 200]
    assert {cell for cell, found in runs.items() if column(found.evaluations, "correct_strict").count()} == {STRICT}
    assert np.isposinf(runs[UNSCORED].steps["mismatch"]).sum() == 1


def test_all_that_is_read_is_declared_with_its_type():
    """A column that no row declares would be without values for ever."""
    types = {column.name: float for column in objective_columns()}
    for row in (Update, SampleColumns, StepRow, EvalRow, ScoreRow, SampleRow):
        types |= get_type_hints(row)
    names = {name for columns in COLUMNS.values() for name in columns} - {"cell"}
    assert {name: arrow_type(name) for name in names} == {name: KINDS[types[name]] for name in names}


def test_no_cell_at_all_is_collected_too(run):
    write_collected(Results(run.settings, {}, {}, ()), FOLDER)
    assert read_collected(FOLDER, run.settings) == Results(run.settings, {}, {}, ())


@pytest.mark.parametrize("name", COLLECTED)
@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-9])], ids=["absent", "cut"])
def test_a_file_that_is_absent_or_damaged_is_named_with_the_remedy(run, read, name, damage):
    damage(FOLDER / name)
    with pytest.raises(ValueError, match=f"collected/{name}.*; run `python -m pipeline collect` or snakemake again"):
        read_collected(FOLDER, run.settings)


def test_tables_that_do_not_belong_together_are_refused(run, read):
    steps = pd.read_parquet(FOLDER / "steps.parquet")
    steps[steps["cell"] != str(OLDER)].to_parquet(FOLDER / "steps.parquet")
    with pytest.raises(ValueError, match=f"steps.parquet has no rows of {OLDER}, of which facts.json speaks; run"):
        read_collected(FOLDER, run.settings)
    steps.drop(columns="mismatch").to_parquet(FOLDER / "steps.parquet")
    with pytest.raises(ValueError, match=r"steps\.parquet lacks the columns mismatch; run"):
        read_collected(FOLDER, run.settings)


def test_what_was_collected_for_other_cells_is_refused(run, read):
    other = load_settings(Path(__file__).parents[2] / "config.yaml", synthetic.cells(["gspo", "sat-gspo-r3"], ["1"]))
    with pytest.raises(ValueError, match=f"made for other cells than the settings name .*{UNSCORED}.*; run"):
        read_collected(FOLDER, other)


def test_stages_read_no_cell(run, tmp_path, monkeypatch):
    """Table 1 is made where the cells' files are gone; without collect it says what to run."""
    results = read_results(run.layout, run.settings)
    synthetic.copy_reference(run.root / "results" / "reference", tmp_path)
    monkeypatch.chdir(tmp_path)
    settings = run.layout.settings("run")
    settings.parent.mkdir(parents=True)
    settings.write_text(run.settings.model_dump_json())
    missing = CliRunner().invoke(app, ["table1"]).exception
    assert isinstance(missing, ValueError) and "run `python -m pipeline collect`" in str(missing)
    assert CliRunner().invoke(app, ["collect"]).exit_code == 0  # of no cells
    write_collected(results, run.layout.collected)
    assert CliRunner().invoke(app, ["table1"]).exit_code == 0
    table = pd.read_csv(run.layout.results / "table1.csv").set_index(["method", "lag"])
    scored = results.scored("sat-gspo-r3", "1", "last")
    assert scored is not None and table.loc[("sat-gspo-r3", 1), "fresh_last"] == pytest.approx(scored.mean(), abs=1e-5)
