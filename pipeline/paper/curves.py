"""Our training curves against the published ones by what does not depend on the scale of a model: shape, period, settling, tail.

A curve becomes a Shape; a published curve and the mean over our seeds become a CurveComparison, aligned by optimizer step. What is
missing or shorter than its run is named in `notes`, never filled in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from pipeline.paper.reference import Reference
from pipeline.results.frames import column, rows_where
from pipeline.results.runs import Results
from pipeline.results.series import Curve, accuracy_curve, step_curve, trailing_mean

TAIL = 0.25
SETTLED = 0.25  # within a quarter of the tail mean
# Optimizer steps of the trailing means: four publication intervals, because with one a published curve and every fourth of its
# points settle up to 213 steps apart, with four at most 4; and eight published evaluations.
WINDOWS = {"mismatch": 32, "aime24": 40}
PUBLISHED_BEGIN = 8  # a published curve that begins later lacks its peak
PERIODS = range(3, 17)
PERIODIC = 0.2  # autocorrelation that a period must reach
NEARLY = 0.7
NOTE = (
    "Mean over our seeds beside the longest published run. Settles: from there on the mean over the last 32 optimizer steps (of a "
    "score: 40), however many of them a curve has, stays within a quarter of the tail mean (trailing 25 %). Period: steps after "
    "which the detrended logarithm repeats itself; it needs every step. Correlation: of the logarithms over the steps that both "
    "have, step by step."
)


@dataclass(frozen=True)
class Shape:
    """A curve in numbers: level (mean), tail_mean (trailing 25 %), peak and its step, settle_step, period, and what it covers.

    settle_step: first step from which the trailing mean over a window of optimizer steps stays within a quarter of the tail mean;
    None if it never does.
    period: steps after which the detrended logarithm repeats itself (autocorrelation at least 0.2, the highest of 3..16); None
    where it does not, or where the curve has not every step.
    """

    first_step: int
    last_step: int
    points: int
    level: float
    tail_mean: float
    peak: float
    peak_step: int
    settle_step: int | None
    period: int | None


@dataclass(frozen=True)
class CurveComparison:
    """A published curve and ours: both shapes, the correlation of their logarithms over the common steps, and what is missing."""

    metric: str
    method: str
    lag: str
    figure: str
    paper: Shape | None
    ours: Shape | None
    seeds: int
    common_steps: int
    correlation: float | None
    notes: tuple[str, ...]


def shape_of(curve: pd.Series, window: int) -> Shape | None:
    """The shape of a curve given as value by step, `window` in steps; None for an empty one."""
    if len(curve) == 0:
        return None
    steps = curve.index.to_numpy()
    late = curve[steps >= steps[0] + (1 - TAIL) * (steps[-1] - steps[0])]
    tail = float(late.mean())
    return Shape(
        first_step=int(steps[0]),
        last_step=int(steps[-1]),
        points=len(curve),
        level=float(curve.mean()),
        tail_mean=tail,
        peak=float(curve.max()),
        peak_step=int(steps[curve.argmax()]),
        settle_step=_settle_step(curve, tail, window),
        period=period_of(curve),
    )


def period_of(curve: pd.Series) -> int | None:
    """The period of a sawtooth in steps (see Shape)."""
    steps, values = curve.index.to_numpy(), curve.to_numpy(dtype=float)
    whole = len(steps) >= 3 * PERIODS[-1] and bool(np.all(np.diff(steps) == 1)) and bool(np.all(values > 0))
    if not whole:
        return None
    logs = pd.Series(np.log(values))
    rest = (logs - logs.rolling(2 * PERIODS[-1] + 1, center=True, min_periods=1).median()).to_numpy()
    rest = rest - rest.mean()
    power = float(rest @ rest)
    if power <= 0:
        return None
    repeats = {lag: float(rest[lag:] @ rest[:-lag]) / power for lag in range(1, PERIODS[-1] + 2)}
    peaks = [p for p in PERIODS if repeats[p] > max(repeats[p - 1], repeats[p + 1], PERIODIC)]
    # every multiple of the period is a peak as well: the shortest that is nearly as high as the highest
    return next((p for p in peaks if repeats[p] >= NEARLY * max(repeats[q] for q in peaks)), None)


def _settle_step(curve: pd.Series, tail: float, window: int) -> int | None:
    steps = curve.index.to_numpy(dtype=np.int64)
    whole = steps >= steps[0] + window - 1  # a mean over fewer steps says less
    means, steps = trailing_mean(steps, curve.to_numpy(dtype=float), window)[whole], steps[whole]
    away = np.flatnonzero(np.abs(means - tail) > SETTLED * abs(tail))
    after = int(away[-1]) + 1 if len(away) else 0
    return int(steps[after]) if after < len(steps) else None


def compare_curves(results: Results, reference: Reference) -> list[CurveComparison]:
    """Every (metric, method, lag) that the paper publishes a curve of, in the order of its table."""
    found = []
    for method, lag in zip(reference.table["method"], reference.table["lag"], strict=True):
        for metric in ("aime24", "mismatch"):
            published, figure, notes = published_curve(reference, method, lag, metric)
            if published is not None:
                found.append(_compare(results, metric, (method, lag), published, figure, notes))
    return found


def published_curve(reference: Reference, method: str, lag: str, metric: str) -> tuple[pd.Series | None, str, list[str]]:
    """The longest published curve of a cell, its figure, and what is to be said of it; None where there is none."""
    curves = reference.curves
    mine = rows_where(curves, (curves["method"] == method) & (curves["lag"] == lag) & (curves["metric"] == metric))
    if len(mine) == 0:
        return None, "", []
    drawn = dict.fromkeys(zip(mine["figure"], mine["run"], strict=True))
    parts = {name: rows_where(mine, (mine["figure"] == name[0]) & (mine["run"] == name[1])) for name in drawn}
    figure, run = max(parts, key=lambda name: np.ptp(column(parts[name], "step").to_numpy()))  # the first of the longest
    curve = column(parts[figure, run].drop_duplicates("step").sort_values("step").set_index("step"), "value")
    notes = []
    runs = column(mine, "run").nunique()
    if runs > 1:
        notes.append(f"{runs} published runs; taken: {run}")
    if curve.index[0] > PUBLISHED_BEGIN:
        notes.append(f"published curve begins at step {curve.index[0]}")
    spacing = _spacing(curve.index.to_numpy())
    if metric == "mismatch" and spacing > 1:
        notes.append(f"published every {spacing} steps")
    expected = reference.num_steps - 1
    if curve.index[-1] + spacing <= expected - spacing:
        notes.append(f"published curve ends at step {curve.index[-1]} of {expected}")
    return curve, figure, notes


def _compare(
    results: Results, metric: str, cell: tuple[str, str], published: pd.Series, figure: str, notes: Sequence[str]
) -> CurveComparison:
    ours, more = our_curve(results, *cell, metric)
    joined = pd.concat([published, ours], axis=1, join="inner") if ours is not None else pd.DataFrame()
    correlation = None
    if len(joined) >= 3:
        logs = np.log(joined.where(joined > 0).dropna().to_numpy()).T
        if logs.shape[1] >= 3 and np.all(logs.std(axis=1) > 0):
            correlation = float(np.corrcoef(logs)[0, 1])
    return CurveComparison(
        metric=metric,
        method=cell[0],
        lag=cell[1],
        figure=figure,
        paper=shape_of(published, WINDOWS[metric]),
        ours=shape_of(ours, WINDOWS[metric]) if ours is not None else None,
        seeds=len(results.of(*cell)),
        common_steps=len(joined),
        correlation=correlation,
        notes=(*notes, *more),
    )


def our_curve(results: Results, method: str, lag: str, metric: str) -> tuple[pd.Series | None, list[str]]:
    """The mean over our seeds by step, and which seeds are missing or stop early."""
    if metric == "aime24":
        curve: Curve | None = accuracy_curve(results, method, lag)
    else:
        curve = step_curve(results, method, lag, "mismatch", first_of_batch=True)
    expected = [cell.seed for cell in results.settings.all_cells() if (cell.method, cell.lag) == (method, lag)]
    if not expected:
        return None, ["not among the cells of this run"]
    if curve is None:
        return None, [f"no run of ours was read (seeds {', '.join(map(str, expected))})"]
    notes = [f"seed {seed} was not read" for seed in expected if seed not in curve.seeds]
    last_steps = {seed: int(curve.steps[np.isfinite(values)][-1]) for seed, values in zip(curve.seeds, curve.values, strict=True)}
    num_steps, spacing = results.settings.trainer.steps, _spacing(curve.steps)
    notes += [
        f"seed {seed} ends at step {step} of {num_steps - 1}" for seed, step in last_steps.items() if step + spacing < num_steps
    ]
    return pd.Series(curve.mean, index=curve.steps).dropna(), notes


def _spacing(steps: np.ndarray) -> int:
    """Steps between neighbouring points, the largest."""
    return int(np.diff(steps).max()) if len(steps) > 1 else 1
