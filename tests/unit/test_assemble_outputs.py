"""Tables, figures, diff and report of one run: numbers equal their sources, files repeat bit for bit, nothing is hidden or
fetched.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from pipeline.__main__ import app
from pipeline.artifacts import Cell
from pipeline.config import load_settings
from pipeline.objective.methods import TABLE_1
from pipeline.paper.diff import diff_stage
from pipeline.paper.figures import FIGURES, figures_stage
from pipeline.paper.report import inline_svg, report_stage
from pipeline.paper.stages import assemble as assemble_all
from pipeline.paper.table1 import table1_stage
from pipeline.results.collect import collect_stage
from pipeline.results.collected import read_collected, write_collected
from pipeline.results.frames import rows_where
from pipeline.results.runs import read_results
from pipeline.results.table import notes
from tests.unit import synthetic_results as synthetic

OUT = Path("out")
REPOSITORY = Path(__file__).parents[2]


def assemble(run: synthetic.Run, figures: tuple[str, ...] = tuple(FIGURES)) -> None:
    """All five stages, as the DAG runs them: the first reads the cells, the others what it has left."""
    results = read_results(run.layout, run.settings)
    collect_stage(results, OUT / "cells.parquet", OUT / "cells.csv")
    write_collected(results, OUT / "collected")
    results = read_collected(OUT / "collected", run.settings)
    table1_stage(results, OUT / "cells.parquet", OUT / "table1.md", OUT / "table1.csv", OUT / "table1.tex")
    figures_stage(results, OUT / "figures", figures)
    diff_stage(results, OUT / "cells.parquet", OUT / "diff.md", OUT / "diff.csv", OUT / "diff.json")
    pages = OUT / "report.html", OUT / "report.md"
    report_stage(results, OUT / "cells.parquet", OUT / "diff.json", OUT / "figures", *pages)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> synthetic.Run:
    world = synthetic.World(
        collapsed={("grpo-uncorrected", "8-15"): 110, ("gspo", "8"): 150},
        missing=[Cell("dppo", "8", 0)],
        nonfinite=[Cell("gspo-tis", "8", 0)],
    )
    made = synthetic.write_run(tmp_path_factory.mktemp("outputs"), world)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made.root)
        assemble(made)
    return made


@pytest.fixture(autouse=True)
def inside(run, monkeypatch):
    monkeypatch.chdir(run.root)


def table_rows() -> list:
    return list(pd.read_csv(OUT / "table1.csv", dtype={"lag": str}).itertuples())


def html() -> str:
    return (OUT / "report.html").read_text(encoding="utf-8")


def test_table_rows_are_the_paper_s_and_then_the_extra_blocks():
    rows = table_rows()
    assert [(row.method, row.lag) for row in rows if row.block == "table"] == [(m, lag) for lag in ("1", "8") for m in TABLE_1]
    assert {(row.method, row.lag) for row in rows if row.block == "uncorrected"} == {
        ("grpo-uncorrected", "1"),
        ("grpo-uncorrected", "8"),
    }
    assert {row.lag for row in rows if row.block == "stress"} == {"8-15"} and len(rows) == 33


def test_table_numbers_equal_the_cells_scores(run):
    row = next(row for row in table_rows() if (row.method, row.lag) == ("sat-gspo-r3", "8"))
    scores = pd.read_parquet(run.layout.cell(Cell("sat-gspo-r3", "8", 0)) / "scores.parquet")
    last = synthetic.means_by(rows_where(scores, scores["checkpoint"] == "last"), "problem_id", "correct")
    assert row.fresh_last == pytest.approx(last.mean(), abs=1e-6)
    half = 1.98 * last.std() / np.sqrt(120)
    assert (row.fresh_last - row.fresh_last_low, row.fresh_last_high - row.fresh_last) == pytest.approx((half, half), rel=0.15)
    assert row.interval_over == "problems"
    text = (OUT / "table1.md").read_text()
    assert f"{100 * row.fresh_last:.1f} [{100 * row.fresh_last_low:.1f}, {100 * row.fresh_last_high:.1f}]" in text
    assert "one seed says nothing about the spread between seeds" in text


def test_table_shows_collapse_and_absence():
    text = (OUT / "table1.md").read_text()
    gspo = next(line for line in text.splitlines() if line.startswith("| GSPO |"))
    dppo = next(line for line in text.splitlines() if line.startswith("| DPPO |"))
    assert gspo.rstrip("| ").endswith("† 1/1") and gspo.count("†") == 1
    assert dppo.split("|")[9:16] == [" – "] * 7
    assert "Not complete: DPPO lag 8 (0 of 1 seeds)" in text


def test_table_prints_the_inflation_of_best_in_every_cell():
    """unbiased best (what choosing the best added), and best = the two together."""
    text = (OUT / "table1.md").read_text()
    for row in table_rows():
        if row.seeds_read:
            assert row.best == pytest.approx(row.unbiased_best + row.best_inflation, abs=1e-5)
            assert f"{100 * row.unbiased_best:.1f} ({-100 * row.best_inflation:+.1f})" in text
    read = [row.best_inflation for row in table_rows() if row.seeds_read]
    assert 0.005 < np.mean(read) < 0.05


def test_latex_has_as_many_columns_as_it_announces():
    text = (OUT / "table1.tex").read_text()
    for body in re.findall(r"\\begin\{tabular\}\{(\w+)\}(.*?)\\end\{tabular\}", text, flags=re.DOTALL):
        lines = [line for line in body[1].splitlines() if line.endswith("\\\\") and "multicolumn" not in line]
        assert len(lines) >= 2 and {line.count("&") + 1 for line in lines} == {len(body[0])}


def test_figures_come_with_the_rows_they_show(run):
    plotted = pd.read_csv(OUT / "figures" / "figure2.csv")
    ours = plotted[(plotted["source"] == "ours") & (plotted["lag"] == 8) & (plotted["quantity"] == "mismatch")]
    steps = pd.read_parquet(run.layout.cell(Cell("grpo", "8", 0)) / "steps.parquet")
    np.testing.assert_allclose(ours["value"], steps["mismatch"], rtol=1e-5)
    paper = plotted[plotted["source"] == "paper, figure 2a"]
    curves = pd.read_csv("results/reference/curves.csv")
    assert len(paper) == (curves["figure"] == "2a").sum()
    for name in FIGURES:
        assert all((OUT / "figures" / f"{name}.{kind}").stat().st_size > 500 for kind in ("png", "svg", "csv"))


def test_figures_show_one_set_of_problems_every_lag_of_the_paper_and_the_smallest_contraction(run):
    bars = pd.read_csv(OUT / "figures" / "figure5.csv")
    mine = bars[(bars["source"] == "ours") & (bars["method"] == "gspo") & (bars["lag"] == 1)].set_index("quantity")["value"]
    scores = synthetic.means_by(pd.read_parquet(run.layout.cell(Cell("gspo", "1", 0)) / "scores.parquet"), "checkpoint", "correct")
    assert (mine["fresh_last"], mine["fresh_best"]) == pytest.approx((100 * scores["last"], 100 * scores["best"]), abs=1e-3)
    figure3 = pd.read_csv(OUT / "figures" / "figure3.csv").query("quantity == 'mismatch' and source != 'ours'")
    assert dict(zip(figure3["lag"], figure3["source"], strict=True)) == {1: "paper, figure page", 8: "paper, figure 4b"}
    panel = pd.read_csv(OUT / "figures" / "sat_panel.csv").query("quantity == 'sat_min_contraction'")
    assert set(panel["method"]) == {"sat-grpo", "sat-gspo", "sat-grpo-r3", "sat-gspo-r3"} and set(panel["value"]) == {0.05}


def test_figures_repeat_bit_for_bit(run, tmp_path):
    figures_stage(read_results(run.layout, run.settings), tmp_path, ["figure5"])
    for kind in ("svg", "png", "csv"):
        assert (tmp_path / f"figure5.{kind}").read_bytes() == (OUT / "figures" / f"figure5.{kind}").read_bytes()


def test_one_process_writes_what_the_stages_write(run, tmp_path, monkeypatch):
    """`python -m pipeline assemble` against the five stages, byte for byte; the report's figures come from its own folder."""
    assemble_all(run.layout, run.settings)
    folder = run.layout.results
    for path in sorted(OUT.rglob("*.*")):
        assert (folder / path.relative_to(OUT)).read_bytes() == path.read_bytes(), path


@pytest.mark.parametrize(
    ("verdict", "status"), [("not-reproduced", 1), ("inconclusive", 1), ("not_reproduced", 2), ("not-testable", 1)]
)
def test_diff_ends_with_a_status(run, verdict, status):
    """Some claim of this run has every verdict; a verdict that does not exist is an error of its own."""
    results = read_results(run.layout, run.settings)
    collect_stage(results, run.layout.results / "cells.parquet", OUT / "cells.csv")
    write_collected(results, run.layout.collected)
    Path("config.yaml").write_text((REPOSITORY / "config.yaml").read_text())
    result = CliRunner().invoke(app, ["diff", "--fail-on", verdict])
    assert (2 if isinstance(result.exception, ValueError) else result.exit_code) == status


def test_an_unknown_figure_is_refused(run, tmp_path):
    with pytest.raises(ValueError, match="did you mean 'figure2'"):
        figures_stage(read_results(run.layout, run.settings), tmp_path, ["figur2"])


def test_diff_compares_what_the_preset_can_bear():
    content = json.loads((OUT / "diff.json").read_text())
    assert not content["comparable"] and len(content["cells"]) == 26
    cells = {(cell["method"], cell["lag"]): cell for cell in content["cells"]}
    score = cells["sat-gspo-r3", "1"]["score"]
    assert score["paper"] == pytest.approx(35.83 - 9.38) and score["difference"] is None and score["low"] > 0
    assert cells["grpo-r3", "1"]["mismatch"]["paper"] == pytest.approx(0.0058 / 0.0103)
    assert cells["grpo-r3", "1"]["mismatch"]["high"] < 1
    assert {cell[part]["verdict"] for cell in cells.values() for part in ("score", "mismatch")} == {"inconclusive", "not-testable"}
    assert "one seed: run-to-run spread is unknown" in (OUT / "diff.md").read_text().lower()
    assert (
        cells["gspo", "8"]["collapse"]["verdict"] == "reproduced" and cells["grpo", "8"]["collapse"]["verdict"] == "not-reproduced"
    )
    assert cells["dppo", "8"]["verdict"] == "not-testable"
    assert all(entry["verdict"] for entry in [*content["cells"], *content["claims"]])
    assert sum(content["summary"]["claims"].values()) == len(content["claims"])
    assert "not comparable" in (OUT / "diff.md").read_text()
    assert list(pd.read_csv(OUT / "diff.csv")["paper_best"])[:2] == [31.25, 32.25]


def test_report_requests_nothing():
    """No scripts, style sheets, images, fonts or imports from anywhere; links lead to files beside the page."""
    text = html()
    assert not re.search(r"<script|<link|<iframe|@import|@font-face", text)
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?:https?:)?//""", text)
    assert not re.search(r"url\((?!#)", text)
    targets = set(re.findall(r'href="([^"#][^"]*)"', text))
    assert targets == {f"figures/{name}.csv" for name in FIGURES} and all((OUT / target).exists() for target in targets)


def test_report_ids_are_unique_and_references_resolve():
    text = html()
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    used = {*re.findall(r'href="#([^"]+)"', text), *re.findall(r"url\(#([^)]+)\)", text)}
    assert used <= set(ids)


def test_report_lists_what_is_missing_or_failed():
    text = html()
    for words in (
        "dppo/lag8/seed0",
        "not started",
        "collapsed from step",
        "1 step(s) not finite",
        "32 of 33 runs",
        "One seed",
        "train_cell × 33",
    ):
        assert words in text, words


def test_report_escapes_what_a_model_wrote():
    assert "&lt;b&gt;" in html() and "x = 5 <b>" not in html()


def test_report_follows_the_page_s_colours():
    text = html()
    assert "prefers-color-scheme: dark" in text and "currentColor" in text and "#22272e" not in text.split("</style>")[1]


def test_inline_svg_keeps_its_references():
    body = '<defs><path id="a"/></defs><use xlink:href="#a" clip-path="url(#a)"/></svg>'
    text = f'<?xml version="1.0"?>\n<svg width="9pt" viewBox="0 0 9 9">{body}'
    assert str(inline_svg(text, "f", 'x "y"')) == (
        '<svg xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 9 9" role="img" aria-label="x &#34;y&#34;">'
        '<defs><path id="f-a"/></defs><use xlink:href="#f-a" clip-path="url(#f-a)"/></svg>'
    )


def test_everything_works_without_a_single_cell(run, tmp_path, monkeypatch):
    synthetic.copy_reference(run.root / "results" / "reference", tmp_path)
    monkeypatch.chdir(tmp_path)
    assemble(run, figures=("figure4", "lag_histogram", "sat_panel"))
    content = json.loads((OUT / "diff.json").read_text())
    assert {entry["verdict"] for entry in [*content["cells"], *content["claims"]]} == {"not-testable"}
    assert "0 of 33 runs" in html() and html().count("not started") >= 33
    assert "nan" not in re.sub(r"<svg.*?</svg>", "", html(), flags=re.DOTALL).lower()
    assert "nan" not in (OUT / "table1.md").read_text()


def test_three_seeds_are_averaged_and_their_spread_counts(tmp_path, monkeypatch):
    made = synthetic.write_run(tmp_path, synthetic.World({}), {"seeds": 3, **synthetic.cells(["grpo"], ["1"])})
    monkeypatch.chdir(tmp_path)
    table = collect_stage(read_results(made.layout, made.settings), OUT / "cells.parquet", OUT / "cells.csv")
    (row,) = table1_stage(
        read_results(made.layout, made.settings), OUT / "cells.parquet", OUT / "t.md", OUT / "t.csv", OUT / "t.tex"
    )
    assert row.fresh_last == pytest.approx(table["fresh_last"].mean()) and row.seeds_read == 3
    assert row.interval_over == "seeds and problems"
    assert row.best_step == " ".join(str(step) for step in table["best_step"])


@pytest.mark.parametrize(
    ("preset", "scored", "base"),
    [
        ("tiny", "fresh last: 120 other problems x 8 samples of the last checkpoint", "on the fresh problems"),
        ("full", "fresh last: the same 30 problems x 16 fresh samples of the last checkpoint", "on the same with fresh samples"),
    ],
)
def test_the_table_says_on_which_problems_fresh_scores_are_taken(run, preset, scored, base):
    results = read_results(run.layout, run.settings)
    settings = load_settings(REPOSITORY / "config.yaml", {"preset": preset})
    first, *_, last = notes([], dataclasses.replace(results, settings=settings))
    assert scored in first and last.startswith("Base policy: ") and last.endswith(f"{base}.")
