"""Nothing on disk is fatal to the report: every damaged file is listed with what is wrong and what to do, and the rest is shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from pipeline.artifacts import Cell, read_json
from pipeline.paper.diff import diff_stage
from pipeline.paper.report import report_stage
from pipeline.results.collect import collect_stage
from pipeline.results.runs import read_results
from tests.unit import synthetic_results as synthetic

DAMAGED = Cell("grpo", "8", 0)
REMEDY = "; delete results/tiny/cells/grpo/lag8/seed0/{} and run snakemake again"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> synthetic.Run:
    """One seed of two methods at two lags, with mismatch.json, plan.json, the base policy and diff.json of preset full."""
    made = synthetic.write_run(
        tmp_path_factory.mktemp("damaged"), synthetic.World({}), synthetic.cells(["grpo", "dppo"], ["1", "8"])
    )
    folder = made.root / made.layout.results
    (folder / "mismatch.json").write_text(json.dumps(synthetic.MISMATCH))
    (folder / "plan.json").write_text(json.dumps(synthetic.plan(made.settings)))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made.root)
        results = read_results(made.layout, made.settings)
        collect_stage(results, Path("cells.parquet"), Path("cells.csv"))
        content = diff_stage(results, Path("cells.parquet"), Path("diff.md"), Path("diff.csv"), Path("diff.json"))
    full = folder.with_name("full") / "diff.json"
    full.parent.mkdir()
    full.write_text(json.dumps(content | {"preset": "full"}))
    return made


@pytest.fixture(autouse=True)
def inside(run, monkeypatch):
    monkeypatch.chdir(run.root)


def page(run: synthetic.Run) -> str:
    """report.md of whatever is there."""
    results = read_results(run.layout, run.settings)
    collect_stage(results, Path("cells.parquet"), Path("cells.csv"))
    report_stage(results, Path("cells.parquet"), Path("diff.json"), Path("figures"), Path("report.html"), Path("report.md"))
    return Path("report.md").read_text(encoding="utf-8")


def with_json(path: Path, change: Callable[[dict], object]) -> None:
    content = read_json(path)
    path.write_text(json.dumps(change(content)))


def with_rows(path: Path, change: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    change(pd.read_parquet(path)).to_parquet(path)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def without(key: str) -> Callable[[Path], None]:
    return lambda path: with_json(path, lambda content: {name: value for name, value in content.items() if name != key})


@pytest.mark.parametrize(
    ("name", "damage", "listed"),
    [
        ("full/diff.json", cut, "preset full: unreadable, results/full/diff.json: Invalid JSON"),
        ("full/diff.json", without("seeds"), "results/full/diff.json: seeds: Field required; run `python -m pipeline assemble"),
        ("tiny/plan.json", cut, "plan.json: unreadable, results/tiny/plan.json: Invalid JSON"),
        ("tiny/plan.json", without("cells"), "results/tiny/plan.json: cells: Field required; run `python -m pipeline plan`"),
        ("tiny/mismatch.json", cut, "mismatch.json: unreadable, results/tiny/mismatch.json: Invalid JSON"),
        (
            "tiny/mismatch.json",
            lambda path: with_json(path, lambda c: {"rows": [row | {"kernels": "fused"} for row in c["rows"]]}),
            "results/tiny/mismatch.json: rows.0.kernels: Unexpected keyword argument; delete it",
        ),
        (
            "tiny/base_policy/manifest.json",
            lambda path: path.write_text("[]"),
            "base_policy: unreadable, results/tiny/base_policy/m",
        ),
    ],
)
def test_a_damaged_file_beside_the_cells_is_listed_and_the_report_is_made(run, name, damage, listed):
    path = Path("results") / name
    before = path.read_bytes() if path.exists() else None
    damage(path)
    text = page(run)
    path.unlink() if before is None else path.write_bytes(before)
    assert listed in text and "4 of 4" in text


@pytest.mark.parametrize(
    ("name", "damage", "reason"),
    [
        ("run.json", lambda p: with_json(p, lambda c: c | {"wall_s": None}), "wall_s: Input should be an object"),
        ("run.json", lambda p: with_json(p, lambda c: c | {"wall_s": 52.0}), "wall_s: Input should be an object"),
        ("run.json", lambda p: with_json(p, lambda c: c | {"seed": 3}), "run.json is of grpo/lag8/seed3" + REMEDY),
        ("run.json", lambda p: with_json(p, lambda c: c | {"steps": 120}), "run.json counts 120 steps, its settings 200" + REMEDY),
        ("run.json", lambda p: p.write_bytes(b"\xff\xfe"), "Invalid JSON"),
        (
            "steps.parquet",
            lambda p: with_rows(p, lambda t: t[t["step"] < 120]),
            "steps.parquet holds 120 steps, the last 119; a finished cell has 200, the last 199" + REMEDY,
        ),
        ("steps.parquet", lambda p: with_rows(p, lambda t: t.iloc[:0]), "steps.parquet holds 0 steps; a finished cell has 200"),
        ("steps.parquet", lambda p: with_rows(p, lambda t: t[t["step"] != 7]), "holds 199 steps, the last 199"),
        ("steps.parquet", lambda p: with_rows(p, lambda t: t.assign(lag_histogram="{")), "lag_histogram is not tokens by lag"),
        ("steps.parquet", lambda p: with_rows(p, lambda t: t.assign(lag_histogram="[8]")), "lag_histogram is not tokens by lag"),
        ("steps.parquet", lambda p: with_rows(p, lambda t: t.assign(mismatch="high")), "column mismatch is of type"),
        ("steps.parquet", lambda p: with_rows(p, lambda t: t.assign(mismatch=pd.Timestamp(0))), "holds what is no number"),
        ("evals.parquet", lambda p: with_rows(p, lambda t: t.assign(sample=t["sample"] + 0.5)), "holds what is no number"),
        (
            "evals.parquet",
            lambda p: with_rows(p, lambda t: t.assign(problem_id=t["problem_id"].where(t["problem_id"] != "eval-003"))),
            "column problem_id has 80 rows without a value" + REMEDY,
        ),
        (
            "evals.parquet",
            lambda p: with_rows(p, lambda t: t[t["step"] < 120]),
            "evals.parquet holds 6 steps, the last 119; a finished cell has 10, the last 199" + REMEDY,
        ),
        (
            "scores.parquet",
            lambda p: with_rows(p, lambda t: t.assign(problem_id=t["problem_id"].str.replace("score-00", "other-00"))),
            "scoring problems other than the run's: other-000, other-001, other-002, ...; delete the files",
        ),
    ],
)
def test_a_damaged_cell_is_listed_with_file_reason_and_remedy(run, name, damage, reason):
    path = run.layout.cell(DAMAGED) / name
    before = path.read_bytes()
    damage(path)
    results, text = read_results(run.layout, run.settings), page(run)
    path.write_bytes(before)
    (gap,) = (gap for gap in results.gaps if gap.cell == str(DAMAGED))
    assert gap.kind == "unreadable" and reason.format(name) in gap.reason and "snakemake again" in gap.reason
    assert DAMAGED not in results.runs and len(results.runs) == 3 and gap.reason in text and "3 of 4" in text


def test_the_run_s_problem_files_decide_which_cell_is_the_stranger(run):
    """Where they are there, even the first cell must agree with them."""
    path = run.layout.problems / "scoring.parquet"
    path.parent.mkdir()
    pd.DataFrame({"id": [f"score-{i:03d}" for i in range(119)] + ["score-x"]}).to_parquet(path)
    results = read_results(run.layout, run.settings)
    path.unlink()
    path.parent.rmdir()
    assert not results.runs and not results.base
    assert all("scoring problems other than the run's: score-119;" in gap.reason for gap in results.gaps)


def test_state_that_cannot_be_read_does_not_hide_the_unfinished_cell(run):
    path = run.layout.cell(DAMAGED) / "run.json"
    before = path.read_bytes()
    path.unlink()
    state = run.layout.cell_state(DAMAGED) / "0123" / "progress.json"
    state.parent.mkdir(parents=True)
    state.write_text('["half"]')
    results = read_results(run.layout, run.settings)
    path.write_bytes(before)
    state.unlink()
    (gap,) = (gap for gap in results.gaps if gap.cell == str(DAMAGED))
    assert gap.kind == "incomplete" and f"{run.layout.cell_state(DAMAGED)} does not say where it stands" in gap.reason


def test_this_run_s_own_diff_from_another_version_names_the_stage_to_run(run):
    before = Path("diff.json").read_bytes()
    with_json(Path("diff.json"), lambda c: c | {"contrasts": [{"kind": "old"}]})
    with pytest.raises(ValueError, match=r"diff\.json was written by another version.*run `python -m pipeline diff`"):
        page(run)
    Path("diff.json").write_bytes(before)
