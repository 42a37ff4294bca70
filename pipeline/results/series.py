"""What the figures plot: curves of a method at a lag over its seeds, as tidy rows.

A Curve holds one line per seed on common steps; the rows of every figure's CSV are made from the same Curves that are drawn.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipeline.config import Settings
from pipeline.objective.parts.sat import SatSettings
from pipeline.results.collect import mismatch_series
from pipeline.results.frames import column
from pipeline.results.runs import Results

CSV_COLUMNS = ("source", "method", "lag", "seed", "quantity", "step", "value")


@dataclass(frozen=True)
class Curve:
    """A quantity over optimizer steps: values [seeds, steps], NaN where a seed has no finite value at a step."""

    method: str
    lag: str
    quantity: str
    seeds: tuple[int, ...]
    steps: NDArray[np.int64]
    values: NDArray[np.float64]

    def smoothed(self, window: int) -> Curve:
        """Trailing means over `window` optimizer steps of each seed; shorter at the start."""
        return replace(self, values=trailing_mean(self.steps, self.values, window))

    @property
    def mean(self) -> NDArray[np.float64]:
        """Mean over the seeds that have a value."""
        return pd.DataFrame(self.values).mean(axis=0).to_numpy()

    def rows(self) -> pd.DataFrame:
        count = len(self.steps)
        return pd.DataFrame(
            {
                "source": "ours",
                "method": self.method,
                "lag": self.lag,
                "seed": np.repeat(self.seeds, count),
                "quantity": self.quantity,
                "step": np.tile(self.steps, len(self.seeds)),
                "value": self.values.ravel(),
            }
        ).dropna(subset="value")


def trailing_mean(steps: NDArray[np.int64], values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Means over the last `window` optimizer steps: at step s of the finite values at s - window + 1 .. s, NaN where there is none.

    values: [..., points] at the ascending `steps` [points]. A window counts steps, not points, because published curves have every
    step, every fourth or every fifth.
    """
    first = np.searchsorted(steps, steps - window, side="right")
    finite = np.isfinite(values)
    sums, counts = (_running(part) for part in (np.where(finite, values, 0.0), finite))
    with np.errstate(invalid="ignore"):
        return (sums[..., 1:] - sums[..., first]) / (counts[..., 1:] - counts[..., first])


def _running(values: NDArray) -> NDArray[np.float64]:
    """Sums of the first 0, 1, ..., n values along the last axis."""
    return np.concatenate([np.zeros((*values.shape[:-1], 1)), np.cumsum(values, axis=-1, dtype=float)], axis=-1)


def step_curve(results: Results, method: str, lag: str, quantity: str, *, first_of_batch: bool = False) -> Curve | None:
    """A column of steps.parquet over the run (|.| for k1); None where no seed that was read has it, or nothing is finite."""
    lines = {}
    for run in results.of(method, lag):
        if first_of_batch:
            line = mismatch_series(run, quantity)
        else:
            line = column(run.steps.set_index("step"), quantity).astype(float)
            line = line.loc[np.isfinite(line)]
        lines[run.cell.seed] = line.abs() if quantity == "k1" else line
    return _curve(method, lag, quantity, lines)


def accuracy_curve(results: Results, method: str, lag: str) -> Curve | None:
    """Held-out accuracy in % at the evaluation points."""
    lines = {run.cell.seed: 100 * column(run.accuracy_by_step.set_index("step"), "accuracy") for run in results.of(method, lag)}
    return _curve(method, lag, "accuracy", lines)


def _curve(method: str, lag: str, quantity: str, lines: dict[int, pd.Series]) -> Curve | None:
    lines = {seed: line for seed, line in lines.items() if len(line)}
    if not lines:
        return None
    table = pd.DataFrame(lines).sort_index()
    return Curve(method, lag, quantity, tuple(lines), table.index.to_numpy(dtype=np.int64), table.to_numpy().T)


def gated_share_limit(settings: Settings) -> float:
    """The largest share of tokens that SAT can gate, 1 - alpha."""
    return 1.0 - settings.objective.section(SatSettings).quantile_alpha


def tidy(parts: list[pd.DataFrame]) -> pd.DataFrame:
    """All rows of a figure, in the columns of every figure's CSV."""
    filled = [part for part in parts if len(part)]
    return pd.concat(filled, ignore_index=True).loc[:, list(CSV_COLUMNS)] if filled else pd.DataFrame(columns=list(CSV_COLUMNS))
