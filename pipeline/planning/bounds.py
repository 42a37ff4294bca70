"""An estimate as an interval [low, high] of positive numbers, with the arithmetic a cost model needs."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Bounds:
    """low <= high, both finite and not negative: Bounds(0.5, 0.8). Numbers on either side of an operator are points."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high < math.inf:
            raise ValueError(f"interval [{self.low}, {self.high}]: give 0 <= low <= high, both finite")

    @classmethod
    def point(cls, value: float) -> Bounds:
        return cls(value, value)

    @classmethod
    def parse(cls, text: str) -> Bounds:
        """ "3000" or "2000-4000"."""
        low, _, high = text.partition("-")
        try:
            return cls(float(low), float(high or low))
        except ValueError as error:
            raise ValueError(f"{text!r} is not a number or an interval; give 3000 or 2000-4000 ({error})") from None

    @property
    def mid(self) -> float:
        """Geometric mean: the middle of a quantity that is known up to a factor (arithmetic where low is 0)."""
        return math.sqrt(self.low * self.high) if self.low else self.high / 2

    def __add__(self, other: Bounds | float) -> Bounds:
        o = _bounds(other)
        return Bounds(self.low + o.low, self.high + o.high)

    def __mul__(self, other: Bounds | float) -> Bounds:
        o = _bounds(other)
        return Bounds(self.low * o.low, self.high * o.high)

    def __truediv__(self, other: Bounds | float) -> Bounds:
        o = _bounds(other)
        return Bounds(self.low / o.high, self.high / o.low)

    __radd__, __rmul__ = __add__, __mul__

    def or_more(self, other: Bounds) -> Bounds:
        """The larger of two quantities, end by end: what takes longer when both run at once."""
        return Bounds(max(self.low, other.low), max(self.high, other.high))

    def covers(self, value: float) -> bool:
        return self.low <= value <= self.high

    def pair(self) -> list[float]:
        """[low, high], as JSON files hold it."""
        return [self.low, self.high]


def _bounds(value: Bounds | float) -> Bounds:
    return value if isinstance(value, Bounds) else Bounds.point(value)
