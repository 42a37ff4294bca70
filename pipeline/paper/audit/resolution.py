"""How finely the published protocol can see: the noise of one score, the expected maximum of many, and the power of a difference.

All in points of AIME24 accuracy. One score of a run is a sample mean over problems and responses; two runs are compared on the same
problems, so that the error of their difference is sqrt(2) times the sampling error of one score, and the spread between training
seeds comes on top.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from pipeline.evaluation.power import Difficulty, expected_maximum, power, smallest_detectable
from pipeline.paper.lags import LAGS
from pipeline.paper.reference import Reference

DIFFICULTY = Difficulty(mean=0.33, concentration=0.8)  # the level of the table; U-shaped, as AIME is for models of this kind
TRUE_DIFFERENCES = (1.0, 2.0, 3.0, 4.0)
SEED_SPREADS = (0.0, 2.0)  # standard deviation between training seeds, points: none, and a common size for RL runs


@dataclass(frozen=True)
class Noise:
    """Errors of one score of `responses` per problem, in points: these problems fixed, or the problems drawn anew too."""

    name: str
    responses: int
    fixed: float
    total: float


@dataclass(frozen=True)
class Resolution:
    """What one run a side can tell apart: the error of the difference, the smallest one found with chance 0.8, power at 1..4."""

    noise: Noise
    seed_spread: float
    error: float
    smallest: float
    powers: tuple[float, ...]


def noises(problems: int, samples: int, runs_averaged: int) -> list[Noise]:
    """The protocols that the paper's text allows: avg@8 (title), one evaluation, and the mean of several evaluation runs."""
    named = {"avg@8": 8, f"{samples} samples": samples, f"{runs_averaged} runs of {samples}": samples * runs_averaged}
    return [
        Noise(name, k, 100 * DIFFICULTY.sampling_error(problems, k), 100 * DIFFICULTY.total_error(problems, k))
        for name, k in named.items()
    ]


def resolution(noise: Noise, seed_spread: float) -> Resolution:
    """The difference of two single runs on the same problems."""
    error = float(np.hypot(noise.fixed, seed_spread) * np.sqrt(2))
    return Resolution(noise, seed_spread, error, smallest_detectable(error), tuple(power(true, error) for true in TRUE_DIFFERENCES))


def inflation(noise: float, evaluations: int) -> float:
    """Points by which the best of that many evaluations of equal true accuracy exceeds it, on average."""
    return noise * expected_maximum(evaluations)


def plateau_noise(curve: pd.Series) -> float:
    """Noise of one published score, from neighbouring scores in the second half of the curve: sd of differences / sqrt(2).

    Differences of neighbours leave out any slow trend; at a lag above 1 neighbours can score the same weights.
    """
    steps = curve.index.to_numpy()
    late = curve.to_numpy()[steps > steps.max() / 2]
    return float(np.diff(late).std(ddof=1) / np.sqrt(2))


def sat_gaps(reference: Reference, bases: Sequence[str] = ("grpo", "gspo", "grpo-r3", "gspo-r3")) -> pd.DataFrame:
    """Table 1's differences between a SAT row and the row of its base method, by lag."""
    rows = []
    for lag in LAGS:
        for base in bases:
            sat, plain = reference.row(f"sat-{base}", lag), reference.row(base, lag)
            assert sat is not None and plain is not None, f"the table lacks {base} or its SAT row at lag {lag}"
            rows.append({"label": f"{sat['label']} − {plain['label']}", "lag": lag, "gap": sat["aime24"] - plain["aime24"]})
    return pd.DataFrame(rows)
