"""When a run counts as collapsed: one rule, stated before any result, for evaluations, rewards and non-finite steps alike.

A run has collapsed if (a) its held-out accuracy falls below 0.6 of its running best (the base policy's accuracy included) and
stays below for the rest of the run, at least two evaluations of different weights; or (b) the ten-step mean of its training
reward does the same for at least two such windows (20 steps); or (c) a loss or gradient was not finite. The onset is the earliest
step at which one of these holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

SHARE = 0.6
EVALUATIONS = 2
REWARD_WINDOW = 10
RULE = " ".join((__doc__ or "").split("\n\n", 1)[-1].split())


@dataclass(frozen=True)
class Collapse:
    """Whether a run collapsed, by which sign (accuracy | reward | non-finite), and from which optimizer step on."""

    collapsed: bool
    cause: str = ""
    onset_step: int | None = None


def lasting_fall(values: ArrayLike, *, start: float = -np.inf, share: float = SHARE, minimum: int = EVALUATIONS) -> int | None:
    """Index from which every value lies below `share` of the best so far (`start` included); None if fewer than `minimum` do."""
    series = np.asarray(values, dtype=float)
    below = series < share * np.fmax.accumulate(np.concatenate([[start], series]))[1:]
    standing = np.flatnonzero(~below)
    onset = int(standing[-1]) + 1 if len(standing) else 0
    return onset if len(series) - onset >= minimum else None


def find_collapse(evaluations: pd.DataFrame, steps: pd.DataFrame, nonfinite: Sequence[int], base: float | None) -> Collapse:
    """Apply the rule to a run.

    evaluations: one row per evaluation point (step, repeated, accuracy).  steps: one row per optimizer step (step, reward_mean).
    nonfinite: steps whose loss or gradient was not finite.  base: accuracy of the base policy on the evaluation problems, if known.
    """
    signs: list[tuple[int, str]] = [(int(min(nonfinite)), "non-finite")] if len(nonfinite) else []
    distinct = evaluations[~evaluations["repeated"].astype(bool)]
    onset = lasting_fall(distinct["accuracy"], start=-np.inf if base is None else base)
    if onset is not None:
        signs.append((int(distinct["step"].iloc[onset]), "accuracy"))
    means = steps["reward_mean"].rolling(REWARD_WINDOW).mean()
    whole = steps[means.notna()]
    onset = lasting_fall(means.dropna(), minimum=2 * REWARD_WINDOW)
    if onset is not None:
        signs.append((int(whole["step"].iloc[onset]), "reward"))
    if not signs:
        return Collapse(False)
    step, cause = min(signs)
    return Collapse(True, cause, step)
