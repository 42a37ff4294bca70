"""What README.md and docs/ say is what commands of this repository print, or what follows from the results kept here."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from pipeline.__main__ import app
from pipeline.evaluation.estimators import difference_at_fixed_problems
from pipeline.results.frames import column
from pipeline.results.glance import glance

REPOSITORY = Path(__file__).parents[2]
GROUPS = {  # the README's rows on preset stress
    "GRPO, GSPO without any correction": ["grpo-uncorrected", "gspo-uncorrected"],
    "truncated importance sampling (four methods)": ["grpo-tis", "gspo-tis", "grpo-tis-r3", "gspo-tis-r3"],
    "ratio against the rollout engine, fixed limits (four methods)": ["grpo", "gspo", "grpo-r3", "gspo-r3"],
    "the same ratio, DPPO's mask": ["dppo"],
    "the same ratio, SAT's limits (four methods)": ["sat-grpo", "sat-gspo", "sat-grpo-r3", "sat-gspo-r3"],
}
SAT = GROUPS["the same ratio, SAT's limits (four methods)"]


def table(preset: str) -> Path:
    return REPOSITORY / f"results/{preset}-reference/table1.csv"


def text(page: str) -> str:
    """A page with every run of blanks and line breaks made one blank."""
    return " ".join((REPOSITORY / page).read_text(encoding="utf-8").split())


def compared(preset: str) -> dict:
    """The comparison with the paper that is kept of a preset."""
    return json.loads(table(preset).with_name("diff.json").read_text(encoding="utf-8"))


def evidence(preset: str, claim: str) -> list[dict]:
    return next(item for item in compared(preset)["claims"] if item["id"] == claim)["evidence"]


def points(interval: dict) -> str:
    """An interval of a difference in points, as in +3.9 [-2.5, +10.2]."""
    estimate, low, high = (f"{100 * interval[name]:+.1f}" for name in ("estimate", "low", "high"))
    return f"{estimate} [{low}, {high}]"


@pytest.mark.parametrize(("page", "preset"), [("docs/results.md", "tiny"), ("docs/results.md", "stress")])
def test_a_page_shows_the_table_that_the_command_prints(page, preset):
    printed = CliRunner().invoke(app, ["glance", str(table(preset))]).stdout.splitlines()
    assert printed == glance(table(preset)) and len(printed) > 15
    shown = (REPOSITORY / page).read_text(encoding="utf-8").splitlines()
    start = shown.index(printed[0])
    assert shown[start : start + len(printed)] == printed


def test_the_five_rows_of_the_readme_are_the_results_of_preset_stress():
    """Collapses at lags 8-15; accuracy of the last weights at lag 1 and there, mean over a row's methods with their range."""
    rows = pd.read_csv(table("stress"), dtype={"lag": str})
    assert set(rows["method"]) == {method for group in GROUPS.values() for method in group}
    page = text("README.md")
    for name, group in GROUPS.items():
        fresh, stale = (rows[(rows["lag"] == lag) & rows["method"].isin(group)] for lag in ("1", "8-15"))
        count = f"{stale['collapsed'].sum()} of {stale['seeds_read'].sum()}"
        assert f"| {name} | {count} | {mean_and_range(fresh)} | {mean_and_range(stale)} |" in page
    against_engine = [name for name in GROUPS if "ratio" in name]
    corrected = rows[(rows["lag"] == "8-15") & rows["method"].isin([method for name in against_engine for method in GROUPS[name]])]
    assert set(corrected["collapsed"]) == {0} and f"none of {corrected['seeds_read'].sum()} runs collapses" in page


def mean_and_range(rows: pd.DataFrame) -> str:
    accuracy = 100 * rows["fresh_last"]
    assert column(rows, "method").is_unique and set(rows["seeds_read"]) == {3}
    return f"{accuracy.mean():.1f}" + (f" ({accuracy.min():.1f} to {accuracy.max():.1f})" if len(rows) > 1 else "")


def test_the_readme_s_answer_is_what_the_comparison_says():
    page = text("README.md")
    (stress,) = [item["interval"] for item in evidence("stress", "sat-raises-accuracy-lag8-15") if item["pooled"]]
    (tiny,) = [item["interval"] for item in evidence("tiny", "sat-raises-accuracy") if item["pooled"]]
    low, high = (f"{100 * stress[end]:+.1f}" for end in ("low", "high"))
    assert f"by {100 * stress['estimate']:+.1f} points, with a 95 % interval from {low} to {high}" in page
    for said in (page, text("docs/results.md")):
        assert f"{points(tiny)} points" in said
    assert f"{points(stress)} points" in text("docs/results.md")
    assert "paper's mean gain of 1.94" in page and "8 of 8 are positive, mean +1.94" in text("docs/audit.md")


def test_sat_s_differences_split_by_family_as_the_pages_say():
    """All four differences on GSPO are positive, all four on GRPO negative."""
    pairs = [item for item in evidence("tiny", "sat-raises-accuracy") if not item["pooled"]]
    signs = {family: [item["interval"]["estimate"] > 0 for item in pairs if family in item["name"]] for family in ("GSPO", "GRPO")}
    assert signs == {"GSPO": [True] * 4, "GRPO": [False] * 4}


@pytest.mark.parametrize(("preset", "said"), [("tiny", "Of 86 differences"), ("stress", "correction over 45 differences")])
def test_the_results_count_the_differences_that_holm_s_correction_is_over(preset, said):
    found = compared(preset)["contrasts"]
    assert said in text("docs/results.md") and str(len(found)) in said
    if preset == "tiny":
        assert sum(item["p_value"] < 0.05 for item in found) == 12 and not any(item["p_holm"] < 0.05 for item in found)


@pytest.mark.parametrize(("preset", "pages"), [("tiny", ["docs/results.md"]), ("stress", ["docs/results.md", "README.md"])])
def test_the_pages_name_the_base_policy_s_accuracy(preset, pages):
    kept = table(preset).with_suffix(".md").read_text(encoding="utf-8")
    accuracy = kept.split("evaluation problems, ")[1].split(" on the fresh problems")[0]
    for page in pages:
        assert f"at {accuracy}." in text(page) or f"scores {accuracy}." in text(page)


def test_the_results_show_the_settings_as_the_comparison_does():
    kept = table("tiny").with_name("diff.md").read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(kept) if line.startswith("| Method with the setting |"))
    lines = kept[start : kept.index("", start)]
    shown_lines = (REPOSITORY / "docs/results.md").read_text(encoding="utf-8").splitlines()
    first = shown_lines.index(lines[0])
    assert len(lines) == 24 and shown_lines[first : first + len(lines)] == lines


def test_the_results_say_what_sat_alone_clips():
    """In % of the tokens, mean and range over the runs of the four methods at a lag."""
    runs = pd.read_csv(table("tiny").with_name("cells.csv"))
    runs = runs[runs["method"].isin(SAT)].set_index("lag")
    newly = 100 * runs["sat_newly_clipped_share"]
    fixed = 100 * runs["clip_share"] - newly
    assert len(newly["8"]) == len(newly["1"]) == 12
    (mean, span), (fixed_mean, fixed_span), (first_mean, first_span) = (shown(at) for at in (newly["8"], fixed["8"], newly["1"]))
    said = text("docs/results.md")
    assert f"SAT alone clips {mean} % of the tokens at lag 8 ({span} over 12 runs)" in said
    assert f"where fixed limits would clip {fixed_mean} % ({fixed_span})" in said
    assert f"at lag 1 still {first_mean} % ({first_span}) against {fixed['1'].mean():.2f} %" in said


def shown(shares: pd.Series) -> tuple[str, str]:
    return f"{shares.mean():.1f}", f"{shares.min():.1f} to {shares.max():.1f}"


@pytest.mark.parametrize(("samples", "low", "high"), [(16, 3.0, 4.0), (64, 2.0, 2.5)])
def test_how_well_a_score_of_one_seed_is_known_is_what_the_page_says(samples, low, high):
    """30 problems solved with chances spread from 0 to 1, 0.4 on average, beside the paper's 1,920 responses."""
    rng = np.random.default_rng(0)
    chances = rng.beta(0.6, 0.9, (50, 30))
    gaps = [difference_at_fixed_problems(rng.random((1, 30, samples)) < p[:, None], 0.4, 1920) for p in chances]
    assert low < 100 * np.mean([(gap.high - gap.low) / 2 for gap in gaps]) < high
    assert f"± {low:g} to {high:g}" in text("docs/assumptions.md")


def test_a_lag_without_a_row_is_missing_and_variants_are_left_out(tmp_path):
    rows = pd.read_csv(table("tiny"))
    kept = rows[(rows["method"] == "grpo") | ((rows["method"] == "dppo") & (rows["lag"] == "8")) | (rows["block"] == "variants")]
    kept.to_csv(tmp_path / "table1.csv", index=False)
    head, _, grpo, dppo = glance(tmp_path / "table1.csv")
    assert head == "| method | lag 1 | lag 8 | lag 8-15 | mismatch, lag 1 | mismatch, lag 8 | mismatch, lag 8-15 |"
    assert grpo.startswith("| GRPO | 69.3 [57.4, 81.2] |") and dppo == "| DPPO | – | 61.2 [56.6, 65.8] | – | – | 0.0076 | – |"


@pytest.mark.parametrize("other", ["results/reference/table1.csv", "config.yaml"])
def test_another_file_is_refused(other):
    with pytest.raises(ValueError, match="that a run writes"):
        glance(REPOSITORY / other)
