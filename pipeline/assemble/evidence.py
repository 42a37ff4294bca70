"""The statistics that claims are decided by: each turns a rule and a comparison into numbers and a finding.

A finding is supports | contradicts | undecided | missing | void. missing says that a cell was not read, so that it can never be
mistaken for a result; void says that the comparison has no object and does not count. Every statistic also reads the paper's own
Table 1, where it can, for the side it shows there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.assemble.collect import TAIL, mismatch_series
from pipeline.assemble.reference import Reference
from pipeline.assemble.runs import Results
from pipeline.assemble.series import gated_share_limit
from pipeline.evaluation.estimators import Interval, contrast_interval, log_ratio_of_means, t_interval
from pipeline.objective.methods import METHODS, TABLE_1, method_of

BASE = "base_policy"


@dataclass(frozen=True)
class Evidence:
    """What one comparison shows: its name, the finding, the numbers as text and as an interval, the paper's own value, and how
    many runs were counted where runs are what is counted.
    """

    name: str
    finding: str
    text: str
    interval: Interval | None = None
    paper: float | None = None
    runs: int | None = None


@dataclass(frozen=True)
class Side:
    """A cell named in a rule: "method@lag" or "method@lag:checkpoint"; base_policy for the weights before training."""

    method: str
    lag: str
    checkpoint: str

    @classmethod
    def parse(cls, text: str, checkpoint: str) -> Side:
        if text == BASE:
            return cls(BASE, "", checkpoint)
        name, _, own = text.partition(":")
        method, at, lag = name.partition("@")
        if method not in METHODS or not at or (own or checkpoint) not in ("best", "last"):
            raise ValueError(
                f"claims.yaml names the cell {text!r}; write method@lag or method@lag:best|last with a method of METHODS"
            )
        return cls(method, lag, own or checkpoint)

    @property
    def label(self) -> str:
        return "base policy" if self.method == BASE else f"{method_of(self.method).label}, lag {self.lag}"


@dataclass(frozen=True)
class Context:
    """All that a statistic may look at, and how its intervals are made."""

    results: Results
    reference: Reference
    level: float
    draws: int
    seed: int

    def contrast(self, groups: Sequence[tuple[float, NDArray[np.bool_]]]) -> Callable[[float], Interval]:
        """The interval of a weighted sum of accuracies, for any level; every call draws the same problems."""
        return lambda level: contrast_interval(
            groups, np.random.default_rng(self.seed), draws=self.draws, level=level, cautious=level > self.level
        )

    def ratio(self, a: Sequence[NDArray[np.float64]], b: Sequence[NDArray[np.float64]]) -> Callable[[float], Interval]:
        """The interval of a ratio of means, for any level."""

        def make(level: float) -> Interval:
            rng = np.random.default_rng(self.seed)
            log = log_ratio_of_means(a, b, rng, draws=self.draws, level=level, cautious=level > self.level)
            return Interval(
                float(np.exp(log.estimate)), float(np.exp(log.low)), float(np.exp(log.high)), level, log.over, log.p_value
            )

        return make


def decide(interval: Interval, direction: str, threshold: float) -> str:
    """The finding for a claim that the quantity lies above or below the threshold."""
    above, below = interval.low > threshold, interval.high < threshold
    if direction == "below":
        above, below = below, above
    return "supports" if above else "contradicts" if below else "undecided"


def find(make: Callable[[float], Interval], rule: Mapping[str, Any], level: float, comparisons: int) -> tuple[Interval, str]:
    """The interval at `level` and its finding.

    Support must come from every comparison, so that nothing is gained by making many; but one contradiction is enough, and is
    therefore held to a level corrected for the number of comparisons (Bonferroni).
    """
    interval = make(level)
    finding = decide(interval, rule["direction"], rule["threshold"])
    if finding == "contradicts":
        strict = decide(make(1.0 - (1.0 - level) / comparisons), rule["direction"], rule["threshold"])
        finding = finding if strict == finding else "undecided"
    return interval, finding


def pairs_of(rule: Mapping[str, Any]) -> list[tuple[Side, Side]]:
    """The comparisons of a rule: its pairs, one method against the other rows of the table, or every row against the base
    policy.
    """
    checkpoint = rule.get("checkpoint", "last")
    if "first" in rule:
        return [
            (Side(rule["first"], lag, checkpoint), Side(other, lag, checkpoint))
            for lag in rule["lags"]
            for other in TABLE_1
            if other != rule["first"]
        ]
    if "over_base" in rule:
        return [(Side(method, rule["over_base"], checkpoint), Side(BASE, "", checkpoint)) for method in TABLE_1]
    return [(Side.parse(a, checkpoint), Side.parse(b, checkpoint)) for a, b in rule["pairs"]]


def accuracy(rule: Mapping[str, Any], context: Context) -> list[Evidence]:
    """Paired differences of fresh accuracy; with `pool` a last piece of evidence for their mean, which alone decides."""
    found, groups, papers = [], [], []
    pairs = pairs_of(rule)
    for a, b in pairs:
        name = f"{a.label} − {b.label}" if a.checkpoint == b.checkpoint else f"{a.label}: {a.checkpoint} − {b.checkpoint}"
        paper = _paper_difference(a, b, context.reference) if a.checkpoint == b.checkpoint else None
        sides = [_outcomes(side, context.results) for side in (a, b)]
        if sides[0] is None or sides[1] is None:
            found.append(Evidence(name, "missing", "not scored", paper=paper))
            continue
        pair = [(1.0, sides[0]), (-1.0, sides[1])]
        groups.append(pair)
        papers.append(paper)
        interval, finding = find(context.contrast(pair), rule, context.level, len(pairs))
        found.append(Evidence(name, finding, points(interval), interval, paper))
    if rule.get("pool") and groups:
        pooled = [(weight / len(groups), outcomes) for pair in groups for weight, outcomes in pair]
        interval, finding = find(context.contrast(pooled), rule, context.level, 1)
        known = [paper for paper in papers if paper is not None]
        if len(groups) < len(pairs):
            finding = "undecided"
        name = f"mean of {len(groups)} differences" + ("" if len(groups) == len(pairs) else f" of {len(pairs)}")
        found.append(Evidence(name, finding, points(interval), interval, float(np.mean(known)) if known else None))
    return found


def mismatch_ratio(rule: Mapping[str, Any], context: Context) -> list[Evidence]:
    """Ratios of mean mismatch with intervals on the logarithmic scale."""
    found = []
    pairs = pairs_of(rule)
    for a, b in pairs:
        name = f"{a.label} / {b.label}"
        rows = [context.reference.row(side.method, side.lag) for side in (a, b)]
        paper = rows[0]["mismatch"] / rows[1]["mismatch"] if rows[0] and rows[1] else None
        series = _mismatch_of_pair(a, b, rule["window"], context.results)
        if series is None:
            found.append(Evidence(name, "missing", "no finite mismatch to compare", paper=paper))
            continue
        interval, finding = find(context.ratio(*series), rule, context.level, len(pairs))
        text = f"×{interval.estimate:.2f} [{interval.low:.2f}, {interval.high:.2f}]"
        found.append(Evidence(name, finding, text, interval, paper))
    return found


def collapse(rule: Mapping[str, Any], context: Context) -> list[Evidence]:
    """Whether all seeds of a cell collapse, or none."""
    found = []
    for side in (Side.parse(text, "last") for text in rule["cells"]):
        row = context.reference.row(side.method, side.lag)
        paper = float(row["later_collapse"]) if row else None
        marks = _collapses(side, context.results)
        if not marks:
            found.append(Evidence(side.label, "missing", "no run", paper=paper))
            continue
        text = f"{sum(marks)} of {len(marks)} collapsed"
        finding = "undecided" if len(set(marks)) > 1 else "supports" if marks[0] == rule["expect"] else "contradicts"
        found.append(Evidence(side.label, finding, text, paper=paper, runs=len(marks)))
    return found


def rescue(rule: Mapping[str, Any], context: Context) -> list[Evidence]:
    """Whether `a` stays up where `b` collapses; where `b` stays up there is nothing to prevent."""
    found = []
    for a, b in pairs_of(rule):
        ours, theirs = _collapses(a, context.results), _collapses(b, context.results)
        name = f"{a.label} against {b.label}"
        if not ours or not theirs:
            found.append(Evidence(name, "missing", "no run"))
            continue
        text = f"{sum(ours)} of {len(ours)} against {sum(theirs)} of {len(theirs)} collapsed"
        if not any(theirs):
            found.append(Evidence(name, "void", f"{text}: nothing to prevent"))
        elif all(theirs) and len(set(ours)) == 1:
            found.append(Evidence(name, "contradicts" if ours[0] else "supports", text))
        else:
            found.append(Evidence(name, "undecided", text, runs=min(len(ours), len(theirs))))
    return found


def step_bound(rule: Mapping[str, Any], context: Context) -> list[Evidence]:
    """Whether a per-step column keeps to its limit at every step."""
    limit = gated_share_limit(context.results.settings) if rule["at_most"] == "one_minus_alpha" else float(rule["at_most"])
    found = []
    for side in (Side.parse(text, "last") for text in rule["cells"]):
        columns = [run.steps[rule["column"]].to_numpy(dtype=float) for run in context.results.of(side.method, side.lag)]
        values = np.concatenate(columns) if columns else np.array([])
        values = values[np.isfinite(values)]
        if len(values) == 0:
            found.append(Evidence(side.label, "missing", "no value"))
            continue
        finding = "supports" if values.max() <= limit + 1e-6 else "contradicts"
        found.append(Evidence(side.label, finding, f"largest {values.max():.4f}, limit {limit:.4g}, {len(values)} steps"))
    return found


def sawtooth(rule: Mapping[str, Any], context: Context) -> list[Evidence]:
    """Mean log mismatch at the larger lags of every publication interval minus that at the smaller ones."""
    found = []
    for side in (Side.parse(text, "last") for text in rule["cells"]):
        contrasts: list[float] = []
        for run in context.results.of(side.method, side.lag):
            interval = context.results.settings.lags[side.lag].broadcast_interval
            series = mismatch_series(run)
            contrasts += cycle_contrasts(series.index.to_numpy(), series.to_numpy(), interval)
        if len(contrasts) < 2:
            found.append(Evidence(side.label, "missing", "no whole publication interval"))
            continue
        log = t_interval(contrasts, context.level, over="publication intervals")
        ratio, low, high = (np.exp(value) for value in (log.estimate, log.low, log.high))
        text = f"×{ratio:.2f} [{low:.2f}, {high:.2f}] late over early, {len(contrasts)} intervals"
        found.append(Evidence(side.label, decide(log, rule["direction"], rule["threshold"]), text, log))
    return found


def cycle_contrasts(batches: NDArray[np.int64], values: NDArray[np.float64], interval: int) -> list[float]:
    """Per publication interval: mean log value of its second half minus that of its first half; only whole intervals of batches
    >= 1.
    """
    by_batch = {batch: np.log(value) for batch, value in zip(batches.tolist(), values.tolist(), strict=True) if value > 0}
    half = interval // 2
    contrasts = []
    for start in range(1, int(max(by_batch, default=0)) - interval + 2, interval):
        logs = [by_batch[batch] for batch in range(start, start + interval) if batch in by_batch]
        if len(logs) == interval and half:
            contrasts.append(float(np.mean(logs[-half:]) - np.mean(logs[:half])))
    return contrasts


def points(interval: Interval) -> str:
    """A difference of accuracies in percentage points."""
    p_value = (
        "" if np.isnan(interval.p_value) else f", p {'<' if interval.p_value < 0.001 else '='} {max(interval.p_value, 0.001):.3f}"
    )
    return f"{100 * interval.estimate:+.1f} [{100 * interval.low:+.1f}, {100 * interval.high:+.1f}] points{p_value}"


def _outcomes(side: Side, results: Results) -> NDArray[np.bool_] | None:
    if side.method == BASE:
        return results.base["scoring"][None] if "scoring" in results.base else None
    return results.scored(side.method, side.lag, side.checkpoint)


def _collapses(side: Side, results: Results) -> list[bool]:
    return [results.collapses[run.cell].collapsed for run in results.of(side.method, side.lag)]


def _mismatch_of_pair(a: Side, b: Side, window: str, results: Results) -> Sequence[list[NDArray[np.float64]]] | None:
    runs = [results.of(side.method, side.lag) for side in (a, b)]
    end = None
    if window == "before_collapse":
        onsets = [results.collapses[run.cell].onset_step for side in runs for run in side]
        end = min((onset for onset in onsets if onset is not None), default=None)
    series = [[mismatch_series(run, tail=TAIL, before=end).to_numpy() for run in side] for side in runs]
    series = [[values[values > 0] for values in side if np.any(values > 0)] for side in series]
    return series if series[0] and series[1] else None


def _paper_difference(a: Side, b: Side, reference: Reference) -> float | None:
    """The paper's difference of its scores, as a share."""
    scores = [
        reference.base_score if side.method == BASE else (reference.row(side.method, side.lag) or {}).get("aime24")
        for side in (a, b)
    ]
    return (scores[0] - scores[1]) / 100 if scores[0] is not None and scores[1] is not None else None


STATISTICS: dict[str, Callable[[Mapping[str, Any], Context], list[Evidence]]] = {
    "accuracy": accuracy,
    "mismatch_ratio": mismatch_ratio,
    "collapse": collapse,
    "rescue": rescue,
    "step_bound": step_bound,
    "sawtooth": sawtooth,
}
