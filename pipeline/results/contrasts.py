"""Differences between cells that differ in one thing: a lag, SAT, R3, TIS, the correction for staleness or a setting; with Holm's
correction over all of them.

Accuracy of the last checkpoint on fresh samples, paired by problem, t intervals over seeds and problems (`contrast_interval`). Of m
such tests at 5 % some are positive by accident; p_holm keeps the chance of any false one at 5 % over the whole list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipeline.evaluation.estimators import holm, paired_difference
from pipeline.objective.methods import VARIANT, method_of
from pipeline.results.families import UNCORRECTED, added
from pipeline.results.markdown import table
from pipeline.results.runs import Results

HEAD = ("Difference", "Points", "p", "p, Holm", "Seeds", "Spread over")
NOTE = (
    "Fresh accuracy of the last checkpoint, paired by problem, 95 % t intervals. p, Holm: adjusted over all rows, so that the "
    "chance of any false positive among them is 5 %. Seeds: scored of either cell; a cell with one adds no spread between runs "
    "to the interval, which is then too narrow for a statement about methods."
)


@dataclass(frozen=True)
class Contrast:
    """Cell `a` minus cell `b` ("method@lag"), in shares: estimate, 95 % interval, p and Holm's p over the list; seeds scored of `a`
    and of `b`, and whose spread the interval counts.
    """

    what: str
    a: str
    b: str
    estimate: float
    low: float
    high: float
    p_value: float
    p_holm: float
    seeds: tuple[int, int]
    over: tuple[str, ...]

    @property
    def label(self) -> str:
        (method_a, lag_a), (method_b, lag_b) = self.a.split("@"), self.b.split("@")
        if method_a == method_b:
            return f"{method_of(method_a).label}: lag {lag_a} − lag {lag_b}"
        return f"{method_of(method_a).label} − {method_of(method_b).label}, lag {lag_a}"


def contrasts(results: Results, methods: Sequence[str], lags: Sequence[str], large_lag: str = "") -> list[Contrast]:
    """All differences whose two cells have a scored seed, as `pairs` lists them; Holm's correction is over exactly these."""
    found = []
    for what, a, b in pairs(methods, lags, results.rows(), large_lag):
        sides = [results.scored(method, lag, "last") for method, lag in (name.split("@") for name in (a, b))]
        if sides[0] is None or sides[1] is None:
            continue
        interval = paired_difference(sides[0], sides[1])
        numbers = (interval.estimate, interval.low, interval.high, interval.p_value, np.nan)
        found.append(Contrast(what, a, b, *numbers, (len(sides[0]), len(sides[1])), interval.over))
    adjusted = holm([item.p_value for item in found])
    return [replace(item, p_holm=float(value)) for item, value in zip(found, adjusted, strict=True)]


def pairs(
    methods: Sequence[str], lags: Sequence[str], rows: Iterable[tuple[str, str]] = (), large_lag: str = ""
) -> Iterator[tuple[str, str, str]]:
    """(what differs, cell with it, cell without it): over `methods`, the large lag (the last of `lags` if none is named) against
    the first, then SAT, R3 and TIS at each of `lags` and, where `rows` has both, at others; among `rows`, each method against
    itself uncorrected, and every variant against its method.
    """
    rows = list(dict.fromkeys(rows))
    for method in methods:
        yield "lag", f"{method}@{large_lag or lags[-1]}", f"{method}@{lags[0]}"
    known = {*rows, *((method, lag) for method in methods for lag in lags)}
    for lag in dict.fromkeys([*lags, *(lag for _, lag in rows)]):
        for a in methods:
            for b in methods:
                what = added(a, b)
                if what and {(a, lag), (b, lag)} <= known:
                    yield what, f"{a}@{lag}", f"{b}@{lag}"
    for method, lag in rows:
        corrected = method.removesuffix(f"-{UNCORRECTED}")
        if corrected != method and (corrected, lag) in rows:
            yield "correction", f"{corrected}@{lag}", f"{method}@{lag}"
    for method, lag in rows:
        base, plus, _ = method.partition(VARIANT)
        if plus:
            yield "setting", f"{method}@{lag}", f"{base}@{lag}"


def contrast_rows(items: Iterable[Contrast]) -> list[list[str]]:
    """A row of text for each difference, under HEAD."""
    return [
        [
            item.label,
            f"{100 * item.estimate:+.1f} [{100 * item.low:+.1f}, {100 * item.high:+.1f}]",
            p_text(item.p_value),
            p_text(item.p_holm),
            " and ".join(map(str, item.seeds)),
            ", ".join(item.over),
        ]
        for item in items
    ]


def contrast_lines(items: Sequence[Contrast]) -> list[str]:
    """The differences as Markdown."""
    return ["## Differences between cells", "", NOTE, "", *table(HEAD, contrast_rows(items)), ""]


def from_json(content: Iterable[Mapping[str, Any]]) -> list[Contrast]:
    """The differences as diff.json holds them."""
    return [_contrast(item) for item in content]


def _contrast(item: Mapping[str, Any]) -> Contrast:
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in item.items()}
    return Contrast(**{key: value for key, value in values.items() if key != "label"})


def p_text(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"
