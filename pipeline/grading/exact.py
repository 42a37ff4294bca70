"""Exact numbers, in microseconds: integers, decimals, fractions, mixed numbers, powers, factorials and binomials as Fractions.

value() answers None for whatever is not a rational number that can be computed under the caps; it never rounds.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from math import comb, factorial, gcd, isqrt, lcm

from pipeline.grading.cursor import NotationError
from pipeline.grading.expression import Node, read

MAX_DIGITS = 1000  # of a literal
MAX_BITS = 24_000  # of an intermediate result
MAX_WORK = 2_000_000  # bits of all intermediate results together, each counted as 64 at least
MAX_FACTORIAL = 2500
MAX_TERMS = 2000  # of a sum or product
SIGNIFICANT_DIGITS = 6  # a decimal with at least as many stands for the number that it rounds or cuts off

_INTEGER = re.compile(r"[-+]?\d{1,1000}")
_DECIMAL = re.compile(r"[-+]?(?:\d{1,500}\.\d{0,500}|\.\d{1,500})")
_FRACTION = re.compile(r"([-+]?)(?:\\frac\{(-?\d{1,300})\}\{(-?\d{1,300})\}|(\d{1,300})/(\d{1,300}))")


class Inexact(ArithmeticError):
    """The value is irrational, has variables, or is larger than the caps allow."""


@lru_cache(maxsize=16384)
def value(text: str) -> Fraction | None:
    """The rational number that `text` (canonical notation) stands for, or None."""
    if _INTEGER.fullmatch(text):
        return Fraction(int(text))
    if _DECIMAL.fullmatch(text):
        return Fraction(text.rstrip(".")) if text.rstrip(".").strip("+-") else None
    match = _FRACTION.fullmatch(text)
    if match:
        sign, top, bottom, plain_top, plain_bottom = match.groups()
        denominator = int(bottom or plain_bottom)
        if denominator:
            fraction = Fraction(int(top or plain_top), denominator)
            return -fraction if sign == "-" else fraction
        return None
    try:
        return evaluate(read(text))
    except (NotationError, Inexact, ZeroDivisionError):
        return None


def is_decimal(text: str) -> bool:
    """Whether `text` is written as a decimal number with a point."""
    return _DECIMAL.fullmatch(text) is not None


def agrees_to_its_digits(decimal: str, exact: Fraction) -> bool:
    """Whether a decimal with at least SIGNIFICANT_DIGITS is `exact` rounded or cut off at its last digit; integers are exact."""
    digits = decimal.lstrip("+-0.").replace(".", "")
    places = len(decimal.partition(".")[2])
    if len(digits) < SIGNIFICANT_DIGITS or not places or exact.denominator == 1:
        return False
    return abs(Fraction(decimal.rstrip(".")) - exact) < Fraction(1, 10**places)


def evaluate(node: Node) -> Fraction:
    """The exact value of a tree. Raises Inexact, or ZeroDivisionError."""
    return _BoundedEvaluation().of(node, {})


class _BoundedEvaluation:
    """One evaluation and the work that it has done; MAX_WORK bounds its time to some milliseconds."""

    def __init__(self) -> None:
        self.work = 0

    def of(self, node: Node, env: dict[str, Fraction]) -> Fraction:
        kind = node[0]
        if kind == "num":
            return self.counted(node[1])
        if kind in ("var", "const"):
            if node[1] in env:  # also the index i of a sum
                return env[node[1]]
            raise Inexact(node[1])
        if kind in ("sum", "prod"):
            return self.series(node, env)
        if kind == "call":
            raise Inexact(kind)
        return self.counted(_ARITHMETIC[kind](*[self.of(part, env) for part in node[1:]]))

    def counted(self, number: Fraction) -> Fraction:
        bits = number.numerator.bit_length() + number.denominator.bit_length()
        self.work += max(bits, 64)
        if bits > MAX_BITS or self.work > MAX_WORK:
            raise Inexact("too large")
        return number

    def series(self, node: Node, env: dict[str, Fraction]) -> Fraction:
        kind, variable, low_node, high_node, body = node
        low, high = self.of(low_node, env), self.of(high_node, env)
        if low.denominator != 1 or high.denominator != 1 or high - low > MAX_TERMS:
            raise Inexact("too many terms")
        result = Fraction(0 if kind == "sum" else 1)
        for index in range(int(low), int(high) + 1):
            term = self.of(body, {**env, variable: Fraction(index)})
            result = self.counted(result + term if kind == "sum" else result * term)
        return result


def _integer(number: Fraction, cap: int) -> int:
    if number.denominator != 1 or not 0 <= number <= cap:
        raise Inexact(f"not an integer of at most {cap}")
    return int(number)


def _double_factorial(number: Fraction) -> Fraction:
    result = 1
    for factor in range(_integer(number, MAX_TERMS), 1, -2):
        result *= factor
    return Fraction(result)


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        if exponent.denominator > 64:
            raise Inexact("root")
        return _power(_root(base, Fraction(exponent.denominator)), Fraction(exponent.numerator))
    if base in (1, -1):
        return base ** int(exponent % 2)
    if max(base.numerator.bit_length(), base.denominator.bit_length()) * abs(exponent) > 2 * MAX_BITS:
        raise Inexact("too large")
    return base ** int(exponent)


def _root(number: Fraction, index: Fraction) -> Fraction:
    degree = _integer(index, 64)
    if degree == 0 or (number < 0 and degree % 2 == 0):
        raise Inexact("no real root")
    top, bottom = _integer_root(abs(number.numerator), degree), _integer_root(number.denominator, degree)
    return Fraction(top if number >= 0 else -top, bottom)


def _integer_root(number: int, degree: int) -> int:
    """The exact degree-th root of a non-negative integer; Inexact if it is none."""
    if degree == 2:
        root = isqrt(number)
    else:
        root = 1 << -(-number.bit_length() // degree) if number else 0  # at or above the root; Newton's steps fall to it
        while root:
            nearer = ((degree - 1) * root + number // root ** (degree - 1)) // degree
            if nearer >= root:
                break
            root = nearer
    if root**degree != number:
        raise Inexact("irrational root")
    return root


def _logarithm(base: Fraction, number: Fraction) -> Fraction:
    """log of an integer power of an integer base, by trial."""
    root, target, power = _integer(base, 10**6), number, 0
    if root < 2 or number <= 0:
        raise Inexact("logarithm")
    inverted = target < 1
    target = 1 / target if inverted else target
    while target > 1 and target.denominator == 1 and power < 4096:
        target, power = target / root, power + 1
    if target != 1:
        raise Inexact("irrational logarithm")
    return Fraction(-power if inverted else power)


_ARITHMETIC = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "neg": lambda a: -a,
    "abs": abs,
    "conj": lambda a: a,
    "min": min,
    "max": max,
    "gcd": lambda *numbers: Fraction(gcd(*(_integer(number, 10**300) for number in numbers))),
    "lcm": lambda *numbers: Fraction(lcm(*(_integer(number, 10**300) for number in numbers))),
    "floor": lambda a: Fraction(a.__floor__()),
    "ceil": lambda a: Fraction(a.__ceil__()),
    "!": lambda a: Fraction(factorial(_integer(a, MAX_FACTORIAL))),
    "!!": _double_factorial,
    "binom": lambda n, k: Fraction(comb(_integer(n, MAX_FACTORIAL), _integer(k, MAX_FACTORIAL))),
    "^": _power,
    "root": _root,
    "log": _logarithm,
}
