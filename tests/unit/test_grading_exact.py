"""Exact numbers: each notation has one value, nothing is rounded, and no power, factorial or sum is large enough to hang."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.grading.equivalence import equivalent
from pipeline.grading.exact import agrees_to_its_digits, value
from pipeline.grading.notation import canonical


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("042", 42),
        ("−7", -7),
        (".5", Fraction(1, 2)),
        (r"\frac13", Fraction(1, 3)),
        (r"\dfrac{\frac12}{3}", Fraction(1, 6)),
        (r"2\frac{1}{2}", Fraction(5, 2)),
        (r"-2\frac12", Fraction(-5, 2)),
        ("11 5/6", Fraction(71, 6)),
        (r"2.5 \times 10^{3}", 2500),
        ("1e3", 1000),
        (r"2^{2^{3}}", 256),
        (r"0.1\overline{6}", Fraction(1, 6)),
        (r"\sqrt[3]{27}", 3),
        ("8^{2/3}", 4),
        (r"\binom{20}{10}", 184756),
        (r"\sum_{i=1}^{10} i^2", 385),
        ("7!!", 105),
        (r"\lfloor -2.5 \rfloor", -3),
        (r"\log_2 \frac{1}{8}", -3),
        ("1 000", 1000),
        ("½", Fraction(1, 2)),
    ],
)
def test_value(text: str, number: Fraction | int) -> None:
    assert value(canonical(text)) == number


@pytest.mark.parametrize(
    "text",
    [r"\sqrt{2}", r"\pi", "x", "1/0", "9^{9^9}", "100000!", r"\sum_{i=1}^{2000}\sum_{j=1}^{2000} ij", "2 3", "(1", "", "1" * 5000],
)
def test_what_is_no_small_rational_number_has_no_value(text: str) -> None:
    start = time.process_time()  # of this process alone: a busy machine is no fault of the grader
    assert value(canonical(text)) is None
    assert time.process_time() - start < 0.5


@given(st.fractions(max_denominator=10**6))
@settings(max_examples=60, deadline=None)
def test_all_ways_to_write_a_fraction_agree(number: Fraction) -> None:
    top, bottom = number.numerator, number.denominator
    sign, whole = "-" if number < 0 else "", abs(number).__floor__()
    rest = abs(number) - whole
    assert value(f"\\frac{{{top}}}{{{bottom}}}") == number
    assert value(f"{top}/{bottom}") == number
    assert value(f"{sign}{whole}\\frac{{{rest.numerator}}}{{{rest.denominator}}}") == number or rest == 0


@given(st.integers(-(10**9), 10**9), st.integers(-3, 3))
@settings(max_examples=60, deadline=None)
def test_integers_are_equal_only_to_themselves(number: int, distance: int) -> None:
    gold = str(number)
    for text in (str(number + distance), f"{number + distance:,}", f"{number + distance}.0", f"\\text{{{number + distance}}}"):
        assert equivalent(gold, text) is (distance == 0)


@pytest.mark.parametrize(
    ("decimal", "exact", "agrees"),
    [
        ("0.0833333333333333", Fraction(1, 12), True),
        ("0.333333", Fraction(1, 3), True),
        ("0.666667", Fraction(2, 3), True),
        ("0.33333", Fraction(1, 3), False),
        ("0.333334", Fraction(1, 3), True),
        ("0.333335", Fraction(1, 3), False),
        ("4.999999", Fraction(5), False),
    ],
)
def test_a_decimal_stands_for_what_it_rounds_from_six_digits_on(decimal: str, exact: Fraction, agrees: bool) -> None:
    assert agrees_to_its_digits(decimal, exact) is agrees
