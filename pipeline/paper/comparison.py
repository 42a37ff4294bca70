"""One cell of Table 1 against ours: score, mismatch and collapse mark, each with its verdict.

At preset `full` scores and mismatch are compared as they are, with the paper's single values as the target: the same if the whole
interval of the difference lies within a margin that claims.yaml states (`same`), so that noise cannot make a run agree. At any
other preset the sign of the gain over the base and the side of GRPO at lag 1 are compared: these compare our runs with each other,
and are decided by cells of at least two seeds. Nothing is decided by a cell with seeds missing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipeline.evaluation.estimators import (
    Interval,
    difference_at_fixed_problems,
    log_ratio_of_means,
    log_ratio_to,
    paired_difference,
)
from pipeline.paper.claims import SAME_MODEL
from pipeline.paper.lags import SMALL
from pipeline.paper.reference import Reference
from pipeline.paper.verdicts import Verdict, weakest
from pipeline.results.collect import late_mismatch
from pipeline.results.runs import Results
from pipeline.results.table import Row

ANCHOR = ("grpo", SMALL)
SIDE = 1.10  # a mismatch within 10 % of the anchor's has no side


@dataclass(frozen=True)
class Compared:
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
    score: Compared
    mismatch: Compared
    collapse: Compared
    verdict: Verdict


def compare_cell(row: Row, results: Results, reference: Reference) -> CellDiff:
    """A row that the paper has too against the paper's."""
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


def _score(row: Row, paper: dict[str, Any], results: Results, reference: Reference) -> Compared:
    """Best evaluation at preset full; elsewhere the gain over the base, ours on fresh samples of the best checkpoint."""
    if results.settings.preset == SAME_MODEL:
        return _best_evaluation(row, float(paper["aime24"]), results, reference)
    compared = "gain over the base policy, points; reproduced if the interval has the paper's sign"
    gain = float(paper["aime24"]) - reference.base_score
    outcomes = results.scored(row.method, row.lag, "best")
    if outcomes is None or "scoring" not in results.base:
        return Compared(gain, None, None, None, None, "not-testable", compared)
    interval = paired_difference(outcomes, results.base["scoring"][None])
    found = _signed(gain, interval, compared, scale=100.0)
    return replace(found, verdict=held(found.verdict, row, len(outcomes), fewest=2))


def _best_evaluation(row: Row, paper: float, results: Results, reference: Reference) -> Compared:
    """The best evaluation in % against the paper's, both on the same problems, whose difficulty is thus no noise of either."""
    margin, protocol = float(reference.claims["same"]["score_points"]), reference.claims["paper"]["evaluation"]
    compared = (
        "best evaluation, %, at these very problems, with both sides' sampling error and the spread of several seeds; reproduced "
        f"if the whole interval lies within {margin:g} points of the paper's value, not if it excludes it from farther away; being "
        "the best of many inflates either side, more where samples are fewer"
    )
    runs = results.of(row.method, row.lag)
    if not runs:
        return Compared(paper, None, None, None, None, "not-testable", compared)
    versions = [run.outcomes_by_version for run in runs]
    best = np.stack([outcomes[outcomes.mean(axis=(1, 2)).argmax()] for outcomes in versions])
    responses = protocol["problems"] * protocol["samples"] * protocol["runs_averaged"]
    gap = difference_at_fixed_problems(best, paper / 100, responses)
    difference, low, high = (100 * value for value in (gap.estimate, gap.low, gap.high))
    verdict = held(same(gap, margin / 100), row, len(runs), fewest=1)
    return Compared(paper, paper + difference, paper + low, paper + high, difference, verdict, compared)


def _mismatch(row: Row, paper: dict[str, Any], results: Results, reference: Reference) -> Compared:
    """The level at preset full; elsewhere the ratio to GRPO at lag 1."""
    ours = late_mismatch(results.of(row.method, row.lag))
    if results.settings.preset == SAME_MODEL:
        widest, target = float(reference.claims["same"]["mismatch_factor"]), float(paper["mismatch"])
        compared = (
            "mismatch, with the steps' noise or the spread of several seeds; reproduced if the whole interval lies within a factor "
            f"{widest:g} of the paper's value, not if it excludes it from farther away"
        )
        if not ours:
            return Compared(target, None, None, None, None, "not-testable", compared)
        log = log_ratio_to(ours, target)
        factor = log.exponential()
        level, low, high = (target * value for value in (factor.estimate, factor.low, factor.high))
        verdict = held(same(log, float(np.log(widest))), row, len(ours), fewest=1)
        return Compared(target, level, low, high, level - target, verdict, compared)
    compared = f"mismatch over that of GRPO at lag 1; no side within {SIDE - 1:.0%} in the paper"
    anchor = reference.row(*ANCHOR)
    assert anchor is not None
    ratio = paper["mismatch"] / anchor["mismatch"]
    base = late_mismatch(results.of(*ANCHOR))
    if not ours or not base or (row.method, row.lag) == ANCHOR:
        return Compared(ratio, None, None, None, None, "not-testable", compared)
    log = log_ratio_of_means(ours, base)
    verdict = "not-testable" if 1 / SIDE < ratio < SIDE else _signed(float(np.log(ratio)), log, compared).verdict
    verdict = held(verdict, row, min(len(ours), len(base)), fewest=2)
    found = log.exponential()
    return Compared(ratio, found.estimate, found.low, found.high, None, verdict, compared)


def _collapse(row: Row, paper: dict[str, Any]) -> Compared:
    """The collapse mark against the share of our seeds that collapsed."""
    compared = "collapse mark; share of our seeds"
    mark = float(paper["later_collapse"])
    if row.seeds_read == 0:
        return Compared(mark, None, None, None, None, "not-testable", compared)
    share = row.collapsed / row.seeds_read
    verdict: Verdict = "reproduced" if share == mark else "not-reproduced" if share == 1 - mark else "inconclusive"
    return Compared(mark, share, None, None, None, held(verdict, row, row.seeds_read, fewest=1), compared)


def _signed(paper: float, ours: Interval, compared: str, scale: float = 1.0) -> Compared:
    """Reproduced if the interval lies on the paper's side of 0, not if on the other, inconclusive across 0."""
    low, high = (ours.low, ours.high) if paper > 0 else (-ours.high, -ours.low)
    verdict: Verdict = "reproduced" if low > 0 else "not-reproduced" if high < 0 else "inconclusive"
    return Compared(paper, scale * ours.estimate, scale * ours.low, scale * ours.high, None, verdict, compared)


def same(gap: Interval, margin: float) -> Verdict:
    """Whether a difference is none: reproduced if its whole interval lies within the margin, not-reproduced if the interval
    excludes 0 and the estimate lies beyond the margin, else inconclusive; not-testable without an interval.
    """
    if np.isnan(gap.low) or np.isnan(gap.high):
        return "not-testable"
    if -margin <= gap.low and gap.high <= margin:
        return "reproduced"
    return "not-reproduced" if abs(gap.estimate) > margin and not gap.low <= 0 <= gap.high else "inconclusive"


def held(verdict: Verdict, row: Row, seeds: int, *, fewest: int) -> Verdict:
    """The verdict, but inconclusive at most where fewer than `fewest` seeds, or not all that the settings name, were compared."""
    decided = verdict in ("reproduced", "not-reproduced")
    return "inconclusive" if decided and (seeds < fewest or seeds < row.seeds_expected) else verdict
