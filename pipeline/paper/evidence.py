"""The statistics that claims are decided by: each turns a rule and a comparison into numbers and a finding.

A finding is supports | contradicts | undecided | missing | void | one-seed. missing says that a seed of a cell was not read, so
that it can never be mistaken for a result; void says that the comparison has no object and does not count; one-seed says that cells
were compared by one run each, whose numbers stand but decide nothing, because the spread between runs is unknown. Every statistic
also reads the paper's own Table 1, where it can, for the side it shows there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.evaluation.estimators import SEEDS, Interval, binomial_interval, contrast_interval, log_ratio_of_means, t_interval
from pipeline.objective.methods import METHODS, TABLE_1, method_of
from pipeline.paper.reference import Reference
from pipeline.results.collect import late_mismatch, mismatch_series
from pipeline.results.runs import Results
from pipeline.results.series import gated_share_limit

BASE = "base_policy"


@dataclass(frozen=True)
class Evidence:
    """What one comparison shows: its name, the finding, the numbers as text and as an interval, the paper's own value, and how
    many runs were counted where runs are what is counted. pooled: it is the mean of the comparisons before it.
    """

    name: str
    finding: str
    text: str
    interval: Interval | None = None
    paper: float | None = None
    runs: int | None = None
    pooled: bool = False


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
    """All that a statistic may look at, and the level of its intervals."""

    results: Results
    reference: Reference
    level: float

    def absent(self, sides: Iterable[Side], *, scored: bool = False) -> str:
        """The seeds of the sides that were not read (or have no fresh samples of the checkpoint), as text; "" where all were."""
        found = []
        for side in dict.fromkeys(sides):
            if side.method == BASE:
                found += [] if "scoring" in self.results.base else [f"{side.label} not scored"]
                continue
            runs = self.results.of(side.method, side.lag)
            known = {run.cell.seed for run in runs if not scored or side.checkpoint in run.score}
            lacking = [str(seed) for seed in self.results.settings.seeds if seed not in known]
            if lacking:
                word = "scored" if scored else "read"
                found.append(f"{side.label}: seed{'s' if len(lacking) > 1 else ''} {', '.join(lacking)} not {word}")
        return "; ".join(dict.fromkeys(found))

    def held(self, finding: str) -> str:
        """The finding of a comparison of cells of which every seed was read: "one-seed" where that is one."""
        return "one-seed" if len(self.results.settings.seeds) < 2 else finding

    def contrast(self, terms: Sequence[tuple[float, Side]]) -> Callable[[float], Interval]:
        """The interval of a weighted sum of fresh accuracies of scored cells, for any level; seeds of one cell are paired."""
        groups = [(weight, _outcomes(side, self.results)) for weight, side in terms]
        return lambda level: contrast_interval(groups, level, runs=[(side.method, side.lag) for _, side in terms])

    def counted(self, marks: Sequence[bool]) -> str:
        """ "1 of 3 [1 %, 91 %]": how many runs, and Clopper and Pearson's interval of the chance."""
        interval = binomial_interval(sum(marks), len(marks), self.level)
        return f"{sum(marks)} of {len(marks)} [{100 * interval.low:.0f} %, {100 * interval.high:.0f} %]"


def ratio(a: Sequence[NDArray[np.float64]], b: Sequence[NDArray[np.float64]]) -> Callable[[float], Interval]:
    """The interval of a ratio of means, for any level."""
    return lambda level: log_ratio_of_means(a, b, level).exponential()


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
    found, terms, papers = [], [], []
    pairs = pairs_of(rule)
    for a, b in pairs:
        name = f"{a.label} − {b.label}" if a.checkpoint == b.checkpoint else f"{a.label}: {a.checkpoint} − {b.checkpoint}"
        paper = _paper_difference(a, b, context.reference) if a.checkpoint == b.checkpoint else None
        absent = context.absent((a, b), scored=True)
        if absent:
            found.append(Evidence(name, "missing", absent, paper=paper))
            continue
        pair = [(1.0, a), (-1.0, b)]
        terms += pair
        papers.append(paper)
        interval, finding = find(context.contrast(pair), rule, context.level, len(pairs))
        found.append(Evidence(name, context.held(finding), points(interval), interval, paper))
    if rule.get("pool") and terms:
        count = len(terms) // 2
        interval, finding = find(context.contrast([(weight / count, side) for weight, side in terms]), rule, context.level, 1)
        known = [paper for paper in papers if paper is not None]
        finding = context.held(finding if count == len(pairs) else "undecided")
        name = f"mean of {count} differences" + ("" if count == len(pairs) else f" of {len(pairs)}")
        paper = float(np.mean(known)) if known else None
        found.append(Evidence(name, finding, points(interval), interval, paper, pooled=True))
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
        absent = context.absent((a, b))
        if absent or series is None:
            found.append(Evidence(name, "missing", absent or "no finite mismatch to compare in some run", paper=paper))
            continue
        interval, finding = find(ratio(*series), rule, context.level, len(pairs))
        text = f"×{interval.estimate:.2f} [{interval.low:.2f}, {interval.high:.2f}]"
        found.append(Evidence(name, context.held(finding), text, interval, paper))
    return found


def collapse(rule: Mapping[str, Any], context: Context) -> list[Evidence]:
    """Whether all seeds of a cell collapse, or none."""
    found = []
    for side in (Side.parse(text, "last") for text in rule["cells"]):
        row = context.reference.row(side.method, side.lag)
        paper = float(row["later_collapse"]) if row else None
        absent = context.absent([side])
        if absent:
            found.append(Evidence(side.label, "missing", absent, paper=paper))
            continue
        marks = _collapses(side, context.results)
        finding = "undecided" if len(set(marks)) > 1 else "supports" if marks[0] == rule["expect"] else "contradicts"
        text = f"{context.counted(marks)} collapsed"
        found.append(Evidence(side.label, context.held(finding), text, paper=paper, runs=len(marks)))
    return found


def rescue(rule: Mapping[str, Any], context: Context) -> list[Evidence]:
    """Whether `a` stays up where `b` collapses; where `b` stays up there is nothing to prevent."""
    found = []
    for a, b in pairs_of(rule):
        name = f"{a.label} against {b.label}"
        absent = context.absent((a, b))
        if absent:
            found.append(Evidence(name, "missing", absent))
            continue
        ours, theirs = _collapses(a, context.results), _collapses(b, context.results)
        text = f"{context.counted(ours)} against {context.counted(theirs)} collapsed"
        if not any(theirs):
            found.append(Evidence(name, "void", f"{text}: nothing to prevent"))
            continue
        decided = all(theirs) and len(set(ours)) == 1
        finding = "undecided" if not decided else "contradicts" if ours[0] else "supports"
        found.append(Evidence(name, context.held(finding), text, runs=min(len(ours), len(theirs))))
    return found


def step_bound(rule: Mapping[str, Any], context: Context) -> list[Evidence]:
    """Whether a per-step column keeps to its limit at every step."""
    limit = gated_share_limit(context.results.settings) if rule["at_most"] == "one_minus_alpha" else float(rule["at_most"])
    found = []
    for side in (Side.parse(text, "last") for text in rule["cells"]):
        columns = [run.steps[rule["column"]].to_numpy(dtype=float) for run in context.results.of(side.method, side.lag)]
        values = np.concatenate(columns) if columns else np.array([])
        values = values[np.isfinite(values)]
        absent = context.absent([side]) or ("" if len(values) else "no value")
        if absent:
            found.append(Evidence(side.label, "missing", absent))
            continue
        finding = "supports" if values.max() <= limit + 1e-6 else "contradicts"
        found.append(Evidence(side.label, finding, f"largest {values.max():.4f}, limit {limit:.4g}, {len(values)} steps"))
    return found


def sawtooth(rule: Mapping[str, Any], context: Context) -> list[Evidence]:
    """Mean log mismatch at the larger lags of every publication interval minus that at the smaller ones.

    One value a run, its mean over intervals, since the intervals of a run are not independent of each other; of a single run its
    intervals, which then speak of that run.
    """
    found = []
    for side in (Side.parse(text, "last") for text in rule["cells"]):
        runs = []
        for run in context.results.of(side.method, side.lag):
            series = mismatch_series(run)
            length = context.results.settings.lags[side.lag].broadcast_interval
            runs.append(cycle_contrasts(series.index.to_numpy(), series.to_numpy(), length))
        several = len(runs) > 1
        absent = context.absent([side])
        if absent or not (all(runs) if several else len(runs[0]) > 1):
            found.append(Evidence(side.label, "missing", absent or "no whole publication interval in some run"))
            continue
        values, over = ([float(np.mean(run)) for run in runs], SEEDS) if several else (runs[0], "publication intervals")
        log, finding = find(partial(t_interval, values, over=over), rule, context.level, len(rule["cells"]))
        factor = log.exponential()
        where = f"{sum(map(len, runs))} intervals of {len(runs)} run{'s' if several else ''}"
        text = f"×{factor.estimate:.2f} [{factor.low:.2f}, {factor.high:.2f}] late over early, {where}"
        found.append(Evidence(side.label, finding, text, log))
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


def _outcomes(side: Side, results: Results) -> NDArray[np.bool_]:
    """Fresh outcomes [seeds, problems, samples] of a side of which some seed was scored."""
    outcomes = results.base["scoring"][None] if side.method == BASE else results.scored(side.method, side.lag, side.checkpoint)
    assert outcomes is not None, f"{side.label} was not scored"
    return outcomes


def _collapses(side: Side, results: Results) -> list[bool]:
    return [results.collapses[run.cell].collapsed for run in results.of(side.method, side.lag)]


def _mismatch_of_pair(a: Side, b: Side, window: str, results: Results) -> Sequence[list[NDArray[np.float64]]] | None:
    runs = [results.of(side.method, side.lag) for side in (a, b)]
    end = None
    if window == "before_collapse":
        onsets = [results.collapses[run.cell].onset_step for side in runs for run in side]
        end = min((onset for onset in onsets if onset is not None), default=None)
    series = [late_mismatch(side, before=end) for side in runs]
    return series if all(found and len(found) == len(side) for found, side in zip(series, runs, strict=True)) else None


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
