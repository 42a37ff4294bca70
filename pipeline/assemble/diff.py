"""Ours against the paper, cell by cell, and the verdict on every claim: diff.md, diff.csv, diff.json.

At preset `full` scores and mismatch are compared as they are. Any other preset trains another model on another task: absolute
values are then not comparable, and only what is free of the scale is compared - the sign of the gain over the base, the side of
GRPO at lag 1 that a cell's mismatch lies on, the collapse mark, and the order of the methods.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.artifacts import read_json, write_json, write_text
from pipeline.assemble import variants
from pipeline.assemble.claims import ClaimResult, evaluate_claims
from pipeline.assemble.collect import TAIL, mismatch_series, read_summary
from pipeline.assemble.contrasts import contrasts
from pipeline.assemble.curves import compare_curves
from pipeline.assemble.differences import contrast_lines, curve_lines
from pipeline.assemble.reference import Reference, read_reference
from pipeline.assemble.runs import Results
from pipeline.assemble.table1 import MISSING, Row, rows_of, small
from pipeline.assemble.verdicts import SIGNS, VERDICTS, WORDS, Verdict, count, weakest
from pipeline.config import Settings
from pipeline.evaluation.estimators import Interval, log_ratio_of_means, paired_difference
from pipeline.sections import unknown

SAME_MODEL = "full"
ANCHOR = ("grpo", "1")
SIDE = 1.10  # a mismatch within 10 % of the anchor's has no side
LEVEL_TOLERANCE = 1.25  # at preset full: a mismatch within 25 % of the paper's is the same
DIFFERENT_SCALE = (
    "This preset trains another, far smaller model on another task. Absolute scores and mismatches are not comparable with "
    "the paper's; "
    "compared are the sign of the gain over the base policy, the side of GRPO at lag 1 on which a cell's mismatch lies, the "
    "collapse mark "
    "and the order of the methods."
)


@dataclass(frozen=True)
class Comparison:
    """One quantity of one cell: the paper's value, ours with its interval, the difference where scales agree, and the verdict."""

    paper: float | None
    ours: float | None
    low: float | None
    high: float | None
    difference: float | None
    verdict: Verdict
    compared: str


@dataclass(frozen=True)
class CellDiff:
    """A row of Table 1 against ours; `verdict` is the weakest of the three below."""

    method: str
    label: str
    lag: str
    seeds: int
    paper_best: float
    our_best: float | None
    our_fresh_best: float | None
    score: Comparison
    mismatch: Comparison
    collapse: Comparison
    verdict: Verdict


def diff_stage(results: Results, cells: Path, markdown: Path, csv: Path, json: Path) -> dict[str, Any]:
    """Compare the run (cells.parquet and the cells) with the paper and judge the claims; returns the content of diff.json."""
    settings, reference = results.settings, read_reference()
    rows = rows_of(results, read_summary(cells))
    diffs = [_cell_diff(row, results, reference) for row in rows if reference.row(row.method, row.lag)]
    claims = evaluate_claims(results, reference)
    ranks = rank_correlations(rows, reference)
    differences, curves = contrasts(results), compare_curves(results, reference)
    effects = variants.setting_effects(results, differences)
    content: dict[str, Any] = {
        "preset": settings.preset,
        "comparable": settings.preset == SAME_MODEL,
        "seeds": list(settings.seeds),
        "summary": {"cells": count(diff.verdict for diff in diffs), "claims": count(claim.verdict for claim in claims)},
        "ranks": ranks,
        "cells": [asdict(diff) for diff in diffs],
        "claims": [asdict(claim) for claim in claims],
        "contrasts": [asdict(item) | {"label": item.label} for item in differences],
        "settings": variants.as_json(effects),
        "curves": [asdict(item) for item in curves],
    }
    content = _finite(content)
    write_text(csv, pd.json_normalize(content["cells"], sep="_").to_csv(index=False, float_format="%.6g"))
    page = [render_markdown(diffs, claims, ranks, settings), *contrast_lines(differences)]
    page += [*variants.setting_lines(effects), *curve_lines(curves)]
    write_text(markdown, "\n".join(page) + "\n")
    write_json(json, content)
    return content


def diff_exit_status(path: Path, fail_on: Collection[str]) -> int:
    """1 if a cell or claim of the diff.json at `path` has a verdict in `fail_on`, else 0; raises ValueError for an unknown one."""
    for name in fail_on:
        if name not in VERDICTS:
            raise ValueError(unknown("verdict", name, list(VERDICTS)))
    content = read_json(path)
    return int(any(entry["verdict"] in fail_on for entry in [*content["cells"], *content["claims"]]))


def _cell_diff(row: Row, results: Results, reference: Reference) -> CellDiff:
    paper = reference.row(row.method, row.lag)
    assert paper is not None
    parts = (_score(row, paper, results, reference), _mismatch(row, paper, results, reference), _collapse(row, paper))
    return CellDiff(
        method=row.method,
        label=row.label,
        lag=row.lag,
        seeds=row.seeds_read,
        paper_best=float(paper["aime24"]),
        our_best=100 * row.best,
        our_fresh_best=100 * row.fresh_best,
        score=parts[0],
        mismatch=parts[1],
        collapse=parts[2],
        verdict=weakest(part.verdict for part in parts),
    )


def _score(row: Row, paper: dict[str, Any], results: Results, reference: Reference) -> Comparison:
    """Best evaluation at preset full; elsewhere the gain over the base, ours on fresh samples of the best checkpoint."""
    if results.settings.preset == SAME_MODEL:
        half = (row.fresh_best_high - row.fresh_best_low) / 2
        ours, low, high = 100 * row.best, 100 * (row.best - half), 100 * (row.best + half)
        compared = "best evaluation, %; reproduced if the paper's lies in our interval"
        verdict: Verdict = "not-testable" if np.isnan(low) else "reproduced" if low <= paper["aime24"] <= high else "not-reproduced"
        return Comparison(float(paper["aime24"]), ours, low, high, ours - paper["aime24"], verdict, compared)
    compared = "gain over the base policy, points; reproduced if the interval has the paper's sign"
    gain = float(paper["aime24"]) - reference.base_score
    outcomes = results.scored(row.method, row.lag, "best")
    if outcomes is None or "scoring" not in results.base:
        return Comparison(gain, None, None, None, None, "not-testable", compared)
    interval = paired_difference(outcomes, results.base["scoring"][None], np.random.default_rng(1))
    return _signed(gain, interval, compared, scale=100.0)


def _mismatch(row: Row, paper: dict[str, Any], results: Results, reference: Reference) -> Comparison:
    """The level at preset full; elsewhere the ratio to GRPO at lag 1."""
    if results.settings.preset == SAME_MODEL:
        ratio, compared = row.mismatch / paper["mismatch"], f"mismatch; reproduced if within a factor {LEVEL_TOLERANCE}"
        verdict: Verdict = "not-testable" if np.isnan(ratio) else "not-reproduced"
        if 1 / LEVEL_TOLERANCE <= ratio <= LEVEL_TOLERANCE:
            verdict = "reproduced"
        difference = row.mismatch - paper["mismatch"]
        return Comparison(paper["mismatch"], row.mismatch, row.mismatch_low, row.mismatch_high, difference, verdict, compared)
    compared = f"mismatch over that of GRPO at lag 1; no side within {SIDE - 1:.0%} in the paper"
    anchor = reference.row(*ANCHOR)
    assert anchor is not None
    ratio = paper["mismatch"] / anchor["mismatch"]
    sides = [
        [series for run in results.of(*key) if len(series := mismatch_series(run, tail=TAIL).to_numpy()) and np.all(series > 0)]
        for key in ((row.method, row.lag), ANCHOR)
    ]
    if not all(sides) or (row.method, row.lag) == ANCHOR:
        return Comparison(ratio, None, None, None, None, "not-testable", compared)
    log = log_ratio_of_means(sides[0], sides[1], np.random.default_rng(2))
    result = _signed(float(np.log(ratio)), log, compared)
    verdict = "not-testable" if 1 / SIDE < ratio < SIDE else result.verdict
    return Comparison(ratio, float(np.exp(log.estimate)), float(np.exp(log.low)), float(np.exp(log.high)), None, verdict, compared)


def _collapse(row: Row, paper: dict[str, Any]) -> Comparison:
    """The collapse mark against the share of our seeds that collapsed."""
    compared = "collapse mark; share of our seeds"
    mark = float(paper["later_collapse"])
    if row.seeds_read == 0:
        return Comparison(mark, None, None, None, None, "not-testable", compared)
    share = row.collapsed / row.seeds_read
    verdict: Verdict = "reproduced" if share == mark else "not-reproduced" if share == 1 - mark else "inconclusive"
    return Comparison(mark, share, None, None, None, verdict, compared)


def _signed(paper: float, ours: Interval, compared: str, scale: float = 1.0) -> Comparison:
    """Reproduced if the interval lies on the paper's side of 0, not if on the other, inconclusive across 0."""
    low, high = (ours.low, ours.high) if paper > 0 else (-ours.high, -ours.low)
    verdict: Verdict = "reproduced" if low > 0 else "not-reproduced" if high < 0 else "inconclusive"
    return Comparison(paper, scale * ours.estimate, scale * ours.low, scale * ours.high, None, verdict, compared)


def rank_correlations(rows: Sequence[Row], reference: Reference) -> dict[str, dict[str, float]]:
    """Spearman's correlation over the methods between the paper's and our order, by lag, for score and mismatch; with n."""
    ranks: dict[str, dict[str, float]] = {}
    for lag in ("1", "8"):
        pairs = [(row, paper) for row in rows if row.lag == lag and (paper := reference.row(row.method, lag)) and row.seeds_read]
        for name, ours, theirs in (
            ("score", [row.fresh_best for row, _ in pairs], [paper["aime24"] for _, paper in pairs]),
            ("mismatch", [row.mismatch for row, _ in pairs], [paper["mismatch"] for _, paper in pairs]),
        ):
            known = [(a, b) for a, b in zip(ours, theirs, strict=True) if not np.isnan(a)]
            value = float("nan")
            if len(known) >= 3:
                value = float(pd.DataFrame(known).rank().corr().iloc[0, 1])
            ranks[f"{name}, lag {lag}"] = {"spearman": value, "n": len(known)}
    return ranks


def render_markdown(diffs: Sequence[CellDiff], claims: Sequence[ClaimResult], ranks: dict[str, Any], settings: Settings) -> str:
    """The comparison as a page."""
    same = settings.preset == SAME_MODEL
    parts = [f"# Paper and ours, preset {settings.preset}", ""]
    parts += [] if same else [f"**{DIFFERENT_SCALE}**", ""]
    if len(settings.seeds) == 1:
        parts += ["One seed: intervals speak of the problems (or steps) only, not of the spread between seeds.", ""]
    names = ("score", "mismatch", "collapse")
    head = ["Method", "Lag", *(f"{name}: {side}" for name in names for side in ("paper", "ours", ""))]
    head = [text.removesuffix(": ") if text.endswith(": ") else text for text in head]
    parts += ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for diff in diffs:
        line = [diff.label, diff.lag]
        for name in names:
            item: Comparison = getattr(diff, name)
            line += [*cell_texts(name, item, same), SIGNS[item.verdict]]
        parts.append("| " + " | ".join(line) + " |")
    kinds = {getattr(diff, name).compared: None for diff in diffs for name in names}
    parts += [
        "",
        "Compared: " + "; ".join(kinds) + ".",
        "",
        _legend(),
        "",
        "Order of the methods (Spearman's correlation, paper and ours):",
        "",
    ]
    parts += [f"- {name}: {_number(item['spearman'], '+.2f')} over {item['n']} methods" for name, item in ranks.items()]
    parts += ["", "## Claims", "", "| | Claim | Source | Verdict | Numbers | In the paper's table |", "|---|---|---|---|---|---|"]
    for claim in claims:
        paper = claim.paper_side or MISSING
        parts.append(
            f"| {SIGNS[claim.verdict]} | {claim.statement} | {claim.source} | {WORDS[claim.verdict]} | {claim.reason} | {paper} |"
        )
    parts += ["", "### What the verdicts rest on", ""]
    for claim in claims:
        parts += [f"- **{claim.id}**: {WORDS[claim.verdict]}"]
        parts += [f"  - {item.name}: {item.text} ({item.finding})" for item in claim.evidence]
    return "\n".join([*parts, ""])


def cell_texts(name: str, item: Comparison, same: bool) -> list[str]:
    """The paper's and our value of a comparison as text, ours with its interval (and the difference where scales agree)."""
    if name == "collapse":
        ours = MISSING if item.ours is None else f"{item.ours:.0%}"
        return ["†" if item.paper else "no", "no" if ours == "0%" else f"† {ours}" if ours != MISSING else ours]
    if name == "mismatch":
        form = small if same else (lambda value: f"×{value:.2f}")
    else:
        form = (lambda value: f"{value:.1f}") if same else (lambda value: f"{value:+.1f}")
    texts = [form(item.paper) if item.paper is not None else MISSING]
    if item.ours is None or np.isnan(item.ours):
        return [*texts, MISSING]
    interval = f" [{form(item.low)}, {form(item.high)}]" if item.low is not None and item.high is not None else ""
    difference = "" if item.difference is None else f", difference {item.difference:+.3g}"
    return [*texts, f"{form(item.ours)}{interval}{difference}"]


def _legend() -> str:
    return "; ".join(f"{SIGNS[verdict]} {WORDS[verdict]}" for verdict in VERDICTS) + "."


def _number(value: float, form: str) -> str:
    return MISSING if value is None or np.isnan(value) else f"{value:{form}}"


def _finite(value: Any) -> Any:
    """The same structure with None in place of NaN and infinities, which JSON has no word for."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else None
    return value
