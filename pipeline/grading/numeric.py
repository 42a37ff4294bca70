"""Equality of formulas by evaluating them to 60 digits, at fixed random points where they have variables; runs in the workers.

Two formulas that agree to 40 digits at every point, and at some to 140, are taken as equal: for elementary formulas of this
size a coincidence is out of reach, and one disagreement is proof of the opposite. A sum in which a summand is lost to rounding
has no value here, so that \\sqrt{10^{80}+1} does not pass for 10^{40}. Variables are positive, as answers mean them (x^{2/3} is
\\sqrt[3]{x^2}); negative values are tried as well where an absolute value is written. Beside real values a complex one proves
nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import mpmath
from mpmath import mp

from pipeline.grading import exact
from pipeline.grading.cursor import NotationError
from pipeline.grading.expression import Node, read

mp.dps = 60
AGREEMENT = mpmath.mpf(10) ** -40
MAX_MAGNITUDE = 1 << 44  # in bits: larger results are not computed
MAX_ARGUMENT = 1 << 12  # in bits, of sin and the like
ARGUMENTS = {
    "exp": 40,
    "sinh": 40,
    "cosh": 40,
    "tanh": 7,
    "coth": 7,
    "arctan": 256,
    "arccot": 256,
}  # the latter would reach their limits
MAX_TERMS = 2000
MIN_POINTS = 3  # real points at which two formulas must agree
CONFIRMING_DIGITS = 150  # shows all differences that are not lost to rounding at 60


class Undefined(ArithmeticError):
    """The formula has no value here, or one beyond MAX_MAGNITUDE."""


def equal(gold: str, answer: str) -> bool:
    """Whether two formulas (canonical notation) are identical or one is a decimal that rounds the other. Raises NotationError."""
    return identical(gold, answer) or (exact.is_decimal(gold) != exact.is_decimal(answer) and _rounds_to(gold, answer))


def identical(gold: str, answer: str) -> bool:
    """Whether two formulas have the same value everywhere. Raises NotationError for what cannot be read."""
    one, other = read(gold), read(answer)
    names = sorted(variables(one) | variables(other))
    negative = "|" in gold + answer
    return _agree(one, other, names, negative) and _confirmed(one, other, names, negative)


def _confirmed(one: Node, other: Node, names: list[str], negative: bool) -> bool:
    """Whether two formulas that agree to 40 digits agree to all but 10 of CONFIRMING_DIGITS, where they are defined."""
    agree = 0
    with mp.workdps(CONFIRMING_DIGITS):
        for point in list(_points(names, negative))[:: 3 if names else 14]:
            try:
                left, right = evaluate(one, point), evaluate(other, point)
            except Undefined:
                continue
            if not _close(left, right, mpmath.mpf(10) ** (10 - CONFIRMING_DIGITS)):
                return False
            agree += 1
    return agree > 0


def _agree(one: Node, other: Node, names: list[str], negative: bool) -> bool:
    """Whether two formulas agree to 40 digits wherever both are real, or failing that complex."""
    if not names:
        try:
            return _close(evaluate(one, {}), evaluate(other, {}))
        except Undefined:
            return False
    real_points = complex_points = 0
    real_agree = complex_agree = True
    for point in _points(names, negative):
        try:
            left, right = evaluate(one, point), evaluate(other, point)
        except Undefined:
            continue
        if _is_real(left) and _is_real(right):
            real_points += 1
            real_agree &= _close(left, right)
        else:
            complex_points += 1
            complex_agree &= _close(left, right)
        if not real_agree or (real_points == 0 and complex_points > 4 and not complex_agree):
            return False
    if real_points >= MIN_POINTS:
        return real_agree
    return complex_points >= MIN_POINTS and complex_agree and real_agree


def close(gold: str, answer: str, rel_tol: float) -> bool:
    """Whether two constants agree within a relative tolerance of the larger, or two formulas are identical."""
    if identical(gold, answer):
        return True
    one, other = read(gold), read(answer)
    if variables(one) or variables(other):
        return False
    try:
        left, right = (evaluate(node, {}, exact_sums=False) for node in (one, other))
    except Undefined:
        return False
    finite = mpmath.isfinite(left) and mpmath.isfinite(right) and _is_real(left) and _is_real(right)
    return finite and abs(left - right) <= rel_tol * max(abs(left), abs(right))


def same_equation(gold: str, answer: str, positive: bool = False) -> bool:
    """Whether f = 0 and g = 0 mean the same: f/g is a non-zero constant (a positive one for inequalities), or, for equations, each
    vanishes at the roots found of the other. Raises NotationError for what cannot be read."""
    one, other = read(gold), read(answer)
    names = sorted(variables(one) | variables(other))
    if not names:
        return False
    ratios = []
    for point in _points(names, negative=True):
        try:
            ratios.append(evaluate(one, point) / evaluate(other, point))
        except (Undefined, ZeroDivisionError):
            continue
    if len(ratios) >= MIN_POINTS and abs(ratios[0]) > AGREEMENT and all(_close(ratio, ratios[0]) for ratio in ratios):
        return not positive or (_is_real(ratios[0]) and mpmath.re(ratios[0]) > 0)
    return not positive and variables(one) == variables(other) and _vanishes(one, other, names) and _vanishes(other, one, names)


def _vanishes(one: Node, other: Node, names: list[str]) -> bool:
    """Whether `other` is zero at the roots of `one` that Newton's method finds in each variable from each point."""
    found = 0
    for point in _points(names, negative=True):
        for name in names:
            try:
                root = mpmath.findroot(lambda x, p=point, n=name: evaluate(one, {**p, n: x}), point[name], maxsteps=40)
                residue = evaluate(other, {**point, name: root})
            except (Undefined, ValueError, ZeroDivisionError):
                continue
            found += 1
            if abs(residue) > mpmath.mpf(10) ** -15:
                return False
    return found >= 2 * MIN_POINTS


def variables(node: Node) -> set[str]:
    """Names of the free variables of a tree."""
    if node[0] == "var":
        return {node[1]}
    if node[0] in ("sum", "prod"):
        return (variables(node[4]) - {node[1]}) | variables(node[2]) | variables(node[3])
    return set().union(*(variables(part) for part in node[1:] if isinstance(part, tuple)), set())


def _rounds_to(gold: str, answer: str) -> bool:
    """Whether the one of the two that is a decimal shows SIGNIFICANT_DIGITS or more of the other, an irrational constant."""
    decimal, formula = (gold, answer) if exact.is_decimal(gold) else (answer, gold)
    try:
        number = evaluate(read(formula), {})
    except Undefined:
        return False
    digits, places = decimal.lstrip("+-0.").replace(".", ""), len(decimal.partition(".")[2])
    if (
        len(digits) < exact.SIGNIFICANT_DIGITS
        or not places
        or not _is_real(number)
        or _close(mpmath.nint(mpmath.re(number)), number)
    ):
        return False
    return bool(abs(mpmath.mpf(decimal) - number) < mpmath.mpf(10) ** -places)


def _points(names: list[str], negative: bool) -> Iterator[dict[str, Any]]:
    """Fixed pseudo-random values for each name: small, large and, if asked, of either sign."""
    generator = random.Random(2718)
    ranges = [(0.1, 0.9)] * 4 + [(1.1, 9.0)] * 4 + [(-5.0, 5.0)] * (6 if negative else 0)
    for low, high in ranges:
        yield {name: mpmath.mpf(generator.uniform(low, high)) for name in names}


def _is_real(number: Any) -> bool:
    return abs(mpmath.im(number)) <= AGREEMENT * (1 + abs(mpmath.re(number)))


def _close(left: Any, right: Any, agreement: Any = AGREEMENT) -> bool:
    if mpmath.isinf(left) or mpmath.isinf(right):
        return left == right
    size = max(abs(left), abs(right))
    return abs(left - right) <= agreement * size or size < agreement


def _sum(left: Any, right: Any) -> Any:
    """left + right; Undefined where one of them is too small beside the other to leave a trace."""
    result = left + right
    if left and right and result in (left, right) and mpmath.isfinite(result):
        raise Undefined("a summand lost to rounding")
    return result


def evaluate(node: Node, env: dict[str, Any], exact_sums: bool = True) -> Any:
    """The value of a tree, real or complex. Raises Undefined; with `exact_sums` also where a summand is lost to rounding."""
    kind = node[0]
    if kind == "num":
        return mpmath.mpf(node[1].numerator) / node[1].denominator
    if kind == "var":
        if node[1] not in env:
            raise Undefined(node[1])
        return env[node[1]]
    if kind == "const" and node[1] in env:  # the index i of a sum
        return env[node[1]]
    if kind == "const":
        return {"π": mp.pi, "e": mp.e, "i": mpmath.mpc(0, 1), "∞": mpmath.inf}[node[1]] + 0
    if kind in ("sum", "prod"):
        return _series(node, env, exact_sums)
    if kind in ("gcd", "lcm"):
        raise Undefined("divisors of what is no integer")
    try:
        if kind == "call":
            return _call(node[1], evaluate(node[2], env, exact_sums))
        operations = _OPERATIONS if exact_sums else _ROUNDED
        return _bounded(operations[kind](*[evaluate(part, env, exact_sums) for part in node[1:]]), MAX_MAGNITUDE)
    except (ZeroDivisionError, ValueError, OverflowError) as error:
        raise Undefined(str(error)) from error


def _bounded(number: Any, bits: int) -> Any:
    if mpmath.isnan(number):
        raise Undefined("not a number")
    if number and not mpmath.isinf(number) and abs(mpmath.mag(number)) > bits:
        raise Undefined("too large")
    return number


def _call(name: str, argument: Any) -> Any:
    _bounded(argument, ARGUMENTS.get(name, MAX_ARGUMENT))
    functions = {"arcsin": "asin", "arccos": "acos", "arctan": "atan", "arccot": "acot", "arcsec": "asec", "arccsc": "acsc"}
    function: Callable[[Any], Any] | None = getattr(mpmath, functions.get(name, name), None)
    if function is None:
        raise NotationError(name)
    return _bounded(function(argument), MAX_MAGNITUDE)


def _power(base: Any, exponent: Any) -> Any:
    _bounded(exponent, 40)
    if not base:
        return base**exponent
    _bounded(mpmath.mpf(abs(mpmath.mag(base))) * abs(exponent), 43)
    return mpmath.power(base, exponent)


def _root(number: Any, index: Any) -> Any:
    """The real root of a negative number where the index is odd, the principal root otherwise."""
    if _is_real(number) and mpmath.re(number) < 0 and mpmath.isint(index) and int(index) % 2:
        return -mpmath.power(-number, 1 / index)
    return mpmath.sqrt(number) if index == 2 else mpmath.power(number, 1 / index)


def _series(node: Node, env: dict[str, Any], exact_sums: bool) -> Any:
    kind, variable, low_node, high_node, body = node
    low, high = (evaluate(limit, env, exact_sums) for limit in (low_node, high_node))
    if mpmath.isinf(low) or mpmath.isinf(high):
        raise NotationError("an infinite series")
    if not (mpmath.isint(low) and mpmath.isint(high)):
        if variables(low_node) | variables(high_node):
            raise NotationError("a series with a symbolic limit")
        raise Undefined("limits")
    terms = (high - low + 1) * env.get("terms", 1)  # of this series and those around it
    if terms > MAX_TERMS:
        raise Undefined("too many terms")
    result = mpmath.mpf(0 if kind == "sum" else 1)
    for index in range(int(low), int(high) + 1):
        term = evaluate(body, {**env, variable: mpmath.mpf(index), "terms": terms}, exact_sums)
        result = _bounded(result + term if kind == "sum" else result * term, MAX_MAGNITUDE)
    return result


def _real(number: Any) -> Any:
    if not _is_real(number):
        raise Undefined("order of complex numbers")
    return mpmath.re(number)


def _factorial(number: Any) -> Any:
    return mpmath.factorial(_bounded(number, 40))


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "+": _sum,
    "-": lambda a, b: _sum(a, -b),
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "neg": lambda a: -a,
    "abs": abs,
    "conj": mpmath.conj,
    "min": lambda *numbers: min(map(_real, numbers)),
    "max": lambda *numbers: max(map(_real, numbers)),
    "floor": lambda a: mpmath.floor(a),
    "ceil": lambda a: mpmath.ceil(a),
    "!": _factorial,
    "!!": lambda a: mpmath.fac2(_bounded(a, 40)),
    "binom": lambda n, k: mpmath.binomial(_bounded(n, 40), _bounded(k, 40)),
    "^": _power,
    "root": _root,
    "log": lambda base, a: mpmath.log(a) / mpmath.log(base),
}
_ROUNDED = _OPERATIONS | {"+": lambda a, b: a + b, "-": lambda a, b: a - b}  # sums that are compared with a tolerance
