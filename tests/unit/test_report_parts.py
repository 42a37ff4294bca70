"""Parts of the report that come from files a run may leave: mismatch, plan, other presets, graded responses."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from pipeline.artifacts import Cell, read_json
from pipeline.paper.presets import other_presets, side_by_side
from pipeline.paper.stages import assemble
from pipeline.results.collect import summarise
from pipeline.results.decomposition import Level, in_training, read_levels, shares
from pipeline.results.frames import mean_of, rows_where
from pipeline.results.responses import disagreements, traces
from pipeline.results.runs import read_results
from tests.unit import synthetic_results as synthetic


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> synthetic.Run:
    """One seed of two methods with a decomposition of mismatch, a plan, another preset's verdicts, and strict verdicts."""
    made = synthetic.write_run(tmp_path_factory.mktemp("parts"), synthetic.World({}), synthetic.cells(["grpo", "dppo"], ["1", "8"]))
    folder = made.root / made.layout.results
    (folder / "mismatch.json").write_text(json.dumps(synthetic.MISMATCH))
    (folder / "plan.json").write_text(json.dumps(synthetic.plan(made.settings)))
    path = made.root / made.layout.cell(Cell("grpo", "1", 0)) / "evals.parquet"
    table = pd.read_parquet(path)
    table["correct_strict"] = table["correct"]
    table.loc[table.index[0], "correct_strict"] = ~table["correct"].iloc[0]
    table.to_parquet(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made.root)
        assemble(made.layout, made.settings)
        shutil.copytree(folder, folder.with_name("full"))
        content = read_json(folder / "diff.json")
        content["claims"][0]["verdict"] = "not-reproduced"
        (folder.with_name("full") / "diff.json").write_text(json.dumps(content | {"preset": "full", "seeds": [0]}))
        assemble(made.layout, made.settings)
    return made


@pytest.fixture(autouse=True)
def inside(run, monkeypatch):
    monkeypatch.chdir(run.root)


def page(run: synthetic.Run, name: str) -> str:
    return (run.layout.results / name).read_text(encoding="utf-8")


def test_mismatch_is_split_by_cause(run):
    """Differences of the planted levels: bfloat16 over float32, routing over replay, one and eight steps over none."""
    found = shares(read_levels(run.layout.results / "mismatch.json"))
    assert [(share.cause, share.added) for share in found] == [
        ("precision", pytest.approx(0.002 - 1e-6)), ("routing", pytest.approx(0.001)),
        ("lag 1", pytest.approx(0.001)), ("lag 8", pytest.approx(0.015)),
    ]  # fmt: skip
    assert found[1].se == pytest.approx(2**0.5 * 1e-4)
    cells = summarise(read_results(run.layout, run.settings))
    level = mean_of(rows_where(cells, (cells["method"] == "grpo") & (cells["lag"] == "8")), "mismatch")
    assert f"lag 8, in training: {level - 0.003:+.3g}, one seed (GRPO − equal weights)" in page(run, "report.md")
    for name in ("report.html", "report.md"):
        assert "eight steps apart − equal weights" in page(run, name)


def test_what_lag_adds_in_training_carries_seeds_and_their_range():
    level = Level("equal", "bfloat16", False, 0, 0.003, 1e-4, 1, 1)
    row = SimpleNamespace(
        method="grpo", label="GRPO", lag="8", seeds_read=3, mismatch=0.012, mismatch_low=0.01, mismatch_high=0.016
    )
    assert in_training([level], [row], "bfloat16") == [["lag 8, in training", "+0.009, 3 seeds: [+0.007, +0.013]", "GRPO − equal"]]


def test_a_cause_that_was_not_measured_is_left_out(tmp_path):
    path = tmp_path / "mismatch.json"
    assert read_levels(path) == []
    path.write_text(json.dumps({"rows": synthetic.MISMATCH["rows"][:1]}))
    assert shares(read_levels(path)) == []
    path.write_text(json.dumps({"rows": [{"name": "x"}]}))
    with pytest.raises(ValueError, match=r"rows\.0\.dtype: Field required"):
        read_levels(path)


def test_estimated_time_stands_beside_the_measured_one(run):
    """Plans say 40 to 60 s a cell; how many of the four measured times lie inside is counted from run.json."""
    walls = [found.run.wall_s["total"] for found in read_results(run.layout, run.settings).runs.values()]
    held = sum(40 <= wall <= 60 for wall in walls)
    for name in ("report.html", "report.md"):
        assert (
            f"4 runs: 2.7 min to 4.0 min estimated, {sum(walls) / 60:.1f} min measured; the interval held in {held} of them."
            in page(run, name)
        )


def test_presets_stand_side_by_side(run):
    others, gaps = other_presets("tiny")
    found = side_by_side("tiny", read_json(run.layout.results / "diff.json"), others)
    assert found and gaps == [] and side_by_side("tiny", {}, {}) is None
    assert [preset["name"] for preset in found["presets"]] == ["tiny", "full"]
    own, other = found["rows"][0]["verdicts"]
    assert other == "not-reproduced" and own != other
    assert "Presets side by side" in page(run, "report.html") and "Presets side by side" in page(run, "report.md")


def test_a_response_carries_the_trace_of_both_policies(run):
    """Twice the right answer: PRIME's rules take it for a percentage, the strict policy does not."""
    item = {"response": "so \\boxed{200}", "answer": "2", "finish_reason": "stop"}
    prime, strict = traces(item)
    assert (prime["policy"], prime["outcome"], prime["extracted"]) == ("primemath", "correct", "200")
    assert (strict["policy"], strict["outcome"]) == ("strict", "incorrect")
    assert re.search(r"primemath: <b>\w+</b>, read <code>5</code> by rule", page(run, "report.html"))


def test_disagreements_of_the_policies_are_counted(run):
    text = disagreements(read_results(run.layout, run.settings))
    assert "they differ on 1 of 2,400 held-out responses (0.04%), 1 runs" in text
    assert text in page(run, "report.md")


def test_markdown_has_every_part_of_the_page(run):
    headings = re.findall(r"^## (.*)$", page(run, "report.md"), re.MULTILINE)
    assert headings == [
        "Presets side by side", "Table 1", "Figures", "Where mismatch comes from", "Paper and ours", "Missing and failed",
        "How this was made", "Time and cost", "Environment", "Some graded responses",
    ]  # fmt: skip
    assert "### Differences between cells" in page(run, "report.md") and "### Curves beside" in page(run, "report.md")
    assert not Path("results/tiny/report.md").read_text().count("{{")
