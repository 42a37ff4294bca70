"""Differences between cells that differ in one thing: a lag, SAT, R3, TIS, the correction for staleness or a setting; with Holm's
correction over all of them.

Accuracy of the last checkpoint on fresh samples, paired by problem, t intervals over seeds and problems (`contrast_interval`). Of m
such tests at 5 % some are positive by accident; p_holm keeps the chance of any false one at 5 % over the whole list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from pipeline.assemble.runs import Results
from pipeline.evaluation.estimators import holm, paired_difference
from pipeline.objective.methods import METHODS, TABLE_1, VARIANT, Method, method_of

LAGS = ("1", "8")
UNCORRECTED = "-uncorrected"


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


def contrasts(results: Results, checkpoint: str = "last") -> list[Contrast]:
    """All differences whose two cells have a scored seed; Holm's correction is over exactly these."""
    found = []
    for what, a, b in pairs(results.rows(), results.settings.large_lag):
        sides = [results.scored(*name.split("@"), checkpoint) for name in (a, b)]
        if sides[0] is None or sides[1] is None:
            continue
        interval = paired_difference(sides[0], sides[1])
        numbers = (interval.estimate, interval.low, interval.high, interval.p_value, np.nan)
        found.append(Contrast(what, a, b, *numbers, (len(sides[0]), len(sides[1])), interval.over))
    adjusted = holm([item.p_value for item in found])
    return [replace(item, p_holm=float(value)) for item, value in zip(found, adjusted, strict=True)]


def pairs(rows: Iterable[tuple[str, str]] = (), large_lag: str = LAGS[1]) -> Iterator[tuple[str, str, str]]:
    """(what differs, cell with it, cell without it): over Table 1, the large lag against lag 1, then SAT, R3 and TIS at each lag
    (those besides 1 and 8 where `rows` has both); among `rows`, each method against itself uncorrected, and every variant against
    its method.
    """
    rows = list(dict.fromkeys(rows))
    for method in TABLE_1:
        yield "lag", f"{method}@{large_lag}", f"{method}@1"
    known = {*rows, *((method, lag) for method in TABLE_1 for lag in LAGS)}
    for lag in dict.fromkeys([*LAGS, *(lag for _, lag in rows)]):
        for a in TABLE_1:
            for b in TABLE_1:
                what = _added(METHODS[a], METHODS[b])
                if what and {(a, lag), (b, lag)} <= known:
                    yield what, f"{a}@{lag}", f"{b}@{lag}"
    for method, lag in rows:
        corrected = method.removesuffix(UNCORRECTED)
        if corrected != method and (corrected, lag) in rows:
            yield "correction", f"{corrected}@{lag}", f"{method}@{lag}"
    for method, lag in rows:
        base, plus, _ = method.partition(VARIANT)
        if plus:
            yield "setting", f"{method}@{lag}", f"{base}@{lag}"


def _added(a: Method, b: Method) -> str:
    """What `a` has over `b` if that is one thing: SAT, R3 or TIS; else nothing."""
    plain = {
        "SAT": replace(a, clip_rule="fixed") if a.clip_rule == "sat" else a,
        "R3": replace(a, routing_replay=False),
        "TIS": replace(a, truncated_importance_sampling=False, denominator="rollout") if a.truncated_importance_sampling else a,
    }
    return next((what for what, less in plain.items() if less != a and replace(less, label=b.label) == b), "")
