"""When a run counts as collapsed: one rule, stated before any result, for evaluations, rewards and non-finite steps alike.

A run has collapsed if (a) its held-out accuracy falls below 0.6 of its running best (the base policy's accuracy included) and never
comes back to 0.8 of it, with at least two evaluations of different weights below 0.6; or (b) the ten-step mean of its training
reward does the same for at least 20 steps; or (c) a loss or gradient was not finite. The onset is the earliest step at which one of
these holds. Beside it, and no collapse by itself: mismatch leaves its band where its mean over 8 rollout batches exceeds twice the
lowest such mean so far and stays above for the rest of the run, at least 8 batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from pipeline.results.frames import column, rolling_mean, rows_where

SHARE = 0.6
RECOVERY = 0.8
EVALUATIONS = 2
REWARD_WINDOW = 10
BAND = 2.0
BAND_WINDOW = 8
RULE = " ".join((__doc__ or "").split("\n\n", 1)[-1].split())


@dataclass(frozen=True)
class Collapse:
    """Whether a run collapsed, by which sign (accuracy | reward | non-finite), and from which optimizer step on."""

    collapsed: bool
    cause: str = ""
    onset_step: int | None = None


def lasting_fall(
    values: ArrayLike, *, start: float = -np.inf, share: float = SHARE, recovery: float = RECOVERY, minimum: int = EVALUATIONS
) -> int | None:
    """Index of the first value below `share` of the best so far (`start` included) from which on no value comes back to `recovery`
    of it; None if fewer than `minimum` values then lie below `share`.
    """
    series = np.asarray(values, dtype=float)
    best = np.fmax.accumulate(np.concatenate([[start], series]))[1:]
    standing = np.flatnonzero(~(series < recovery * best))
    after = int(standing[-1]) + 1 if len(standing) else 0
    fallen = after + np.flatnonzero(series[after:] < share * best[after:])
    return int(fallen[0]) if len(fallen) >= minimum else None


def leaves_band(mismatch: pd.Series, *, factor: float = BAND, window: int = BAND_WINDOW) -> int | None:
    """Step from which the trailing mean of `mismatch` (by step, one value a rollout batch) exceeds `factor` times the lowest such
    mean so far and stays above it to the end, at least `window` batches; None if it never does.
    """
    means = rolling_mean(mismatch, window).dropna()
    inside = np.flatnonzero(~(means > factor * means.cummin()).to_numpy())
    after = int(inside[-1]) + 1 if len(inside) else 0
    return int(means.index[after]) if len(means) - after >= window else None


def find_collapse(evaluations: pd.DataFrame, steps: pd.DataFrame, nonfinite: Sequence[int], base: float | None) -> Collapse:
    """Apply the rule to a run.

    evaluations: one row per evaluation point (step, repeated, accuracy).  steps: one row per optimizer step (step, reward_mean).
    nonfinite: steps whose loss or gradient was not finite.  base: accuracy of the base policy on the evaluation problems, if known.
    """
    signs: list[tuple[int, str]] = [(int(min(nonfinite)), "non-finite")] if len(nonfinite) else []
    distinct = rows_where(evaluations, ~column(evaluations, "repeated").astype(bool))
    onset = lasting_fall(distinct["accuracy"], start=-np.inf if base is None else base)
    if onset is not None:
        signs.append((int(column(distinct, "step").iloc[onset]), "accuracy"))
    means = rolling_mean(column(steps, "reward_mean"), REWARD_WINDOW)
    whole = rows_where(steps, means.notna())
    onset = lasting_fall(means.dropna(), minimum=2 * REWARD_WINDOW)
    if onset is not None:
        signs.append((int(column(whole, "step").iloc[onset]), "reward"))
    if not signs:
        return Collapse(False)
    step, cause = min(signs)
    return Collapse(True, cause, step)
