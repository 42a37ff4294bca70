"""Which counts of graded responses can print a value: v % with two decimals fits 1/n if some k gives 100 k / n = v after rounding.

A value computed from n graded responses is a multiple of 100/n. Of the 10,000 values with two decimals about n can be printed
(a few more, since a tie may be rounded either way), so that one value fits by accident with a chance of about n / 10,000.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import bdtrc

PLACES = 0.01  # the table prints two decimals
HALF = PLACES / 2 + 1e-9  # a tie may have been rounded either way


@dataclass(frozen=True)
class Grid:
    """How the values of a table fit one grid: `fitting` of `values` do; `chance` is that of so many or more fitting by accident.

    Grid(480, "30 x 16", 17, 26, ...): 17 of 26 values can be k/480.
    """

    n: int
    origin: str
    fitting: int
    values: int
    chance: float


def numerator(value: float, n: int) -> int | None:
    """The k with 100 k / n = value after rounding to two decimals; None if there is none. numerator(34.79, 480) is 167."""
    k = round(value * n / 100)
    return k if abs(100 * k / n - value) <= HALF else None


def fit(values: Sequence[float], n: int, origin: str) -> Grid:
    """How many of the values fit 1/n, and the binomial chance of at least so many by accident."""
    fitting = sum(numerator(value, n) is not None for value in values)
    chance = float(bdtrc(fitting - 1, len(values), chance_of_one(n))) if fitting else 1.0
    return Grid(n, origin, fitting, len(values), chance)


def chance_of_one(n: int) -> float:
    """Share of the values 0.00, 0.01, ..., 99.99 that fit 1/n."""
    return sum(numerator(hundredths / 100, n) is not None for hundredths in range(10_000)) / 10_000


def smallest_common(values: Sequence[float], problems: int, limit: int = 200) -> int | None:
    """The smallest number of responses per problem for which every value fits 1 / (problems x responses); None above `limit`."""
    for responses in range(1, limit + 1):
        if all(numerator(value, problems * responses) is not None for value in values):
            return responses
    return None
