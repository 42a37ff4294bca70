"""How much "the best of m evaluations" flatters: the same checkpoint chosen on one half of the samples, scored on the other.

A maximum over noisy scores lies above the accuracy of the checkpoint that it chose. A score from samples that took no part in
the choice does not. Pure functions of outcomes; randomness comes from an explicit Generator.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

SPLITS = 200


@dataclass(frozen=True)
class Selection:
    """The best evaluation as it is reported, its unbiased score, and the difference: what choosing it added.

    best: highest avg@k over the versions.  unbiased: mean accuracy, on the other half of the samples, of the version chosen on one
    half.  inflation: best - unbiased.  Shares in [0, 1]; unbiased and inflation are NaN with a single sample a problem.
    """

    best: float
    unbiased: float

    @property
    def inflation(self) -> float:
        return self.best - self.unbiased


def unbiased_best(outcomes: ArrayLike, rng: np.random.Generator, splits: int = SPLITS) -> Selection:
    """Best of several evaluations and its unbiased score; `outcomes` 0/1 [versions, problems, samples], one entry a version.

    The samples are split in two at random, the same indices for all problems and versions; the version with the highest accuracy
    on the first half is scored on the second, and the other way round; the mean is over `splits` such splits. With an odd number of
    samples one is left out of each split. Choosing on half the samples is a little worse than on all, so that the unbiased score
    errs, if at all, on the low side.
    """
    array = np.asarray(outcomes, dtype=float)
    if array.ndim != 3 or array.size == 0:
        raise ValueError(f"expected non-empty outcomes [versions, problems, samples], got shape {array.shape}")
    by_sample = array.mean(axis=1)  # [versions, samples]
    samples = by_sample.shape[1]
    best, half = float(by_sample.mean(axis=1).max()), samples // 2
    if half == 0:
        return Selection(best, float("nan"))
    order = rng.permuted(np.tile(np.arange(samples), (splits, 1)), axis=1)
    first, second = (by_sample[:, part].mean(axis=2) for part in (order[:, :half], order[:, half : 2 * half]))  # [versions, splits]
    columns = np.arange(splits)
    scores = second[first.argmax(axis=0), columns], first[second.argmax(axis=0), columns]
    return Selection(best, float(np.mean(scores)))
