"""What an evaluation protocol can resolve: its noise, the smallest difference it can find, its power, the inflation of a maximum.

Pure functions of numbers. Accuracies, errors and differences are in one unit, whichever the caller uses; tests are two-sided and
normal.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import ndtr, ndtri


@dataclass(frozen=True)
class Difficulty:
    """How a benchmark's problems differ for one model: the chance of a correct response is Beta(a, b) over the problems.

    mean: a / (a + b).  concentration: a + b; below 1 most problems are solved almost always or almost never.
    Difficulty(0.33, 0.8).between() is 0.35: the spread of the problems' chances.
    """

    mean: float
    concentration: float

    def between(self) -> float:
        """Standard deviation of the chance of a correct response over the problems."""
        return float(np.sqrt(self.mean * (1 - self.mean) / (1 + self.concentration)))

    def within(self) -> float:
        """Mean over the problems of the variance p (1 - p) of one 0/1 response."""
        return self.mean * (1 - self.mean) * self.concentration / (1 + self.concentration)

    def sampling_error(self, problems: int, samples: int) -> float:
        """Standard error of avg@samples with these very problems: only the responses are drawn anew."""
        return float(np.sqrt(self.within() / (problems * samples)))

    def total_error(self, problems: int, samples: int) -> float:
        """Standard error of avg@samples where the problems are a draw from their kind too."""
        return float(np.sqrt((self.between() ** 2 + self.within() / samples) / problems))


def power(difference: float, standard_error: float, level: float = 0.95) -> float:
    """Chance that a two-sided test at `level` calls a true `difference` different from 0."""
    if standard_error <= 0:
        raise ValueError(f"standard_error {standard_error}: power needs a positive one")
    critical, shift = ndtri(0.5 + level / 2), abs(difference) / standard_error
    return float(ndtr(shift - critical) + ndtr(-shift - critical))


def smallest_detectable(standard_error: float, level: float = 0.95, wanted: float = 0.8) -> float:
    """The true difference that a two-sided test at `level` finds with chance `wanted` (the opposite tail is left out)."""
    return float((ndtri(0.5 + level / 2) + ndtri(wanted)) * standard_error)


@lru_cache(maxsize=64)
def expected_maximum(count: int) -> float:
    """Expectation of the largest of `count` independent standard normal numbers; 0 for one.

    The integral over z of z d(Phi(z)^count), by the trapezoid rule on [-10, 10], exact to 1e-6.
    """
    if count < 1:
        raise ValueError(f"the maximum of {count} numbers is not defined; give a count of at least 1")
    z = np.linspace(-10.0, 10.0, 20001)
    return float(np.trapezoid(1.0 - ndtr(z[z >= 0]) ** count, z[z >= 0]) - np.trapezoid(ndtr(z[z <= 0]) ** count, z[z <= 0]))
