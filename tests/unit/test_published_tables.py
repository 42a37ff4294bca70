"""What README.md and docs/ say is what commands of this repository print, or what follows from the results kept here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from pipeline.__main__ import app
from pipeline.evaluation.estimators import difference_at_fixed_problems
from pipeline.results.glance import glance

REPOSITORY = Path(__file__).parents[2]
GROUPS = {  # the README's rows on preset stress
    "GRPO, GSPO without any correction": [["grpo-uncorrected"], ["gspo-uncorrected"]],
    "with truncated importance sampling (four methods)": [["grpo-tis", "gspo-tis", "grpo-tis-r3", "gspo-tis-r3"]],
    "ratio against the rollout engine, fixed limits: GRPO, GSPO, with and without R3": [["grpo", "gspo", "grpo-r3", "gspo-r3"]],
    "DPPO": [["dppo"]],
    "SAT (four methods)": [["sat-grpo", "sat-gspo", "sat-grpo-r3", "sat-gspo-r3"]],
}


def table(preset: str) -> Path:
    return REPOSITORY / f"results/{preset}-reference/table1.csv"


@pytest.mark.parametrize(("page", "preset"), [("README.md", "tiny"), ("docs/regime.md", "stress")])
def test_a_page_shows_the_table_that_the_command_prints(page, preset):
    printed = CliRunner().invoke(app, ["glance", str(table(preset))]).stdout.splitlines()
    assert printed == glance(table(preset)) and len(printed) > 15
    shown = (REPOSITORY / page).read_text(encoding="utf-8").splitlines()
    start = shown.index(printed[0])
    assert shown[start : start + len(printed)] == printed


def test_the_readme_counts_the_collapses_of_preset_stress():
    rows = pd.read_csv(table("stress"))
    rows = rows[rows["lag"] == "8-15"].set_index("method")
    page = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    for name, groups in GROUPS.items():
        counts = [f"{rows.loc[group, 'collapsed'].sum()} of {rows.loc[group, 'seeds_read'].sum()}" for group in groups]
        assert f"| {name} | {', '.join(counts)} |" in page
    assert sum(len(group) for groups in GROUPS.values() for group in groups) == len(rows)


def test_the_readme_says_what_sat_alone_clips():
    """In % of the tokens, mean and range over the runs of the four methods at a lag."""
    runs = pd.read_csv(table("tiny").with_name("cells.csv"))
    runs = runs[runs["method"].isin(GROUPS["SAT (four methods)"][0])].set_index("lag")
    newly = 100 * runs["sat_newly_clipped_share"]
    fixed = 100 * runs["clip_share"] - newly
    assert len(newly["8"]) == len(newly["1"]) == 12
    (mean, span), (fixed_mean, fixed_span), (first_mean, first_span) = (shown(at) for at in (newly["8"], fixed["8"], newly["1"]))
    said = " ".join((REPOSITORY / "README.md").read_text(encoding="utf-8").split())
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
    page = (REPOSITORY / "docs" / "assumptions.md").read_text(encoding="utf-8")
    assert f"± {low:g} to {high:g}" in page


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
