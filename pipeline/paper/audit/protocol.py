"""When the published runs were evaluated, and where the table and the published curves can be laid side by side."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd

from pipeline.paper.reference import Reference
from pipeline.results.frames import column, rows_where
from pipeline.rollout.schedule import Schedule

SHARED_POINTS = 5  # fewer equal points of two curves may be accident
COMMON_STEPS = 20  # two curves are compared over at least so many
CLOSE = 0.02  # typical relative difference below which two curves are listed


@dataclass(frozen=True)
class PaperProtocol:
    """The evaluation protocol as the paper states it: how many responses a score averages, and at which steps it is taken."""

    problems: int
    samples: int
    runs_averaged: int
    interval: int
    steps: int

    @classmethod
    def of(cls, reference: Reference) -> PaperProtocol:
        return cls(**reference.claims["paper"]["evaluation"], steps=reference.num_steps)

    def evaluated(self) -> range:
        """The steps (counted from 0) after which an evaluation takes place: every `interval`-th."""
        return range(self.interval - 1, self.steps, self.interval)

    def versions(self, broadcast_interval: int) -> int:
        """How many different weights the evaluations score where weights are published every `broadcast_interval` steps."""
        schedule = Schedule(True, broadcast_interval, 1, self.steps, self.interval)
        return len({schedule.published_version(step + 1) for step in self.evaluated()})


@dataclass(frozen=True)
class Overlap:
    """Two published runs of different cells that share points: `points` equal (step, value) pairs of `common` common steps."""

    first: str
    second: str
    points: int
    common: int


@dataclass(frozen=True)
class Closeness:
    """Two published runs at the same lag: the median of |a/b - 1|, taken as |log(a/b)|, over their common steps, and the number of
    these at which it is below 1 %.
    """

    first: str
    second: str
    median: float
    within: int
    common: int


def impossible_steps(reference: Reference, protocol: PaperProtocol) -> list[int]:
    """Best steps of Table 1 at which the protocol evaluates nothing."""
    return [int(step) for step in reference.table["best_step"] if step not in protocol.evaluated()]


def score_curves(reference: Reference) -> pd.DataFrame:
    """Per published score curve: its maximum with the step, its value at the table's best step, and the table's value."""
    curves = reference.curves[reference.curves["metric"] == "aime24"]
    rows = []
    for figure, method, lag in dict.fromkeys(zip(curves["figure"], curves["method"], curves["lag"], strict=True)):
        curve, cell = reference.curve(figure, method, lag, "aime24"), reference.row(method, lag)
        assert cell is not None, f"the table has no {method} at lag {lag}"
        rows.append(
            {
                "figure": figure, "label": cell["label"], "lag": lag, "table": cell["aime24"], "table_step": cell["best_step"],
                "maximum": curve.max(), "maximum_step": int(curve.index[curve.argmax()]), "there": curve.get(cell["best_step"]),
                "last_step": int(curve.index.to_numpy().max()),
            }
        )  # fmt: skip
    return pd.DataFrame(rows)


def mismatch_coverage(reference: Reference) -> pd.DataFrame:
    """Per cell of the table: the last step that any of its published mismatch curves reaches (NaN: none), the table's best step
    and mismatch, and the largest published value.
    """
    curves = reference.curves[reference.curves["metric"] == "mismatch"]
    groups = curves.groupby(["method", "lag"])
    reached = groups.agg(last_step=("step", "max"), largest=("value", "max"), runs=("run", "nunique"))
    return reference.table.join(reached, on=["method", "lag"])


def overlaps(reference: Reference) -> list[Overlap]:
    """Pairs of runs of different cells with at least SHARED_POINTS equal points, most first."""
    found = []
    for a, b, joined in _pairs(reference):
        equal = int((column(joined, "a") == column(joined, "b")).sum())
        if equal >= SHARED_POINTS:
            found.append(Overlap(a, b, equal, len(joined)))
    return sorted(found, key=lambda pair: -pair.points)


def closeness(reference: Reference) -> list[Closeness]:
    """All pairs of runs of different cells at one lag with at least COMMON_STEPS common steps, those of equal points left out, the
    closest first.
    """
    found = []
    for a, b, joined in _pairs(reference):
        apart = np.abs(np.log(column(joined, "a").to_numpy() / column(joined, "b").to_numpy()))
        if len(joined) >= COMMON_STEPS and apart.any():
            found.append(Closeness(a, b, float(np.median(apart)), int((apart < 0.01).sum()), len(joined)))
    return sorted(found, key=lambda pair: pair.median)


def _pairs(reference: Reference) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Every two mismatch runs of different cells at one lag: their names, and both values (a, b) at the common steps."""
    curves = rows_where(reference.curves, reference.curves["metric"] == "mismatch").drop_duplicates(["run", "step"])
    runs = dict(iter(curves.groupby("run")))
    cells = {run: tuple(frame[["method", "lag"]].iloc[0]) for run, frame in runs.items()}
    for a, b in combinations(runs, 2):
        if cells[a] != cells[b] and cells[a][1] == cells[b][1]:
            values = [column(runs[run].set_index("step"), "value").rename(name) for name, run in (("a", a), ("b", b))]
            first, second = (f"{_name(reference, *cells[run])} (`{run}`)" for run in (a, b))
            yield first, second, pd.concat(values, axis=1, join="inner")


def labelled_batches(reference: Reference) -> list[tuple[str, str, int]]:
    """The runs whose own label says with how many responses a step they were trained: cell, run, responses."""
    runs = reference.curves.drop_duplicates("run")
    return [
        (_name(reference, row["method"], row["lag"]), row["run"], int(label[1]))
        for row in runs.to_dict("records")
        if (label := re.search(r"gbs(\d+)", row["run"]))
    ]


def _name(reference: Reference, method: str, lag: str) -> str:
    row = reference.row(method, lag)
    return f"{row['label']} lag {lag}" if row else method


def protocols_share(reference: Reference, fits: Sequence[bool]) -> Counter[tuple[str, bool]]:
    """How many values of each family (SAT, DPPO, baselines) fit a grid, by (family, fits)."""
    family = ["SAT" if m.startswith("sat") else "DPPO" if m == "dppo" else "baselines" for m in reference.table["method"]]
    return Counter(zip(family, fits, strict=True))
