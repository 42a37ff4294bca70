"""Procedural maths problems for the tiny policy, each with its worked steps.

Four kinds, mixed 40/20/15/25 %: chains of two to four additions and subtractions, linear equations a*x+b=c, products modulo m, and
word problems. Every kind is solved by a chain in which each step works on the result of the one before, so that a wrong result
carries through to the answer as it does in a person's working.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from pipeline.records import Problem

SOURCE = "arithmetic"
NAMES = ("Tom", "Ann", "Sam", "Mia")
THINGS = ("apples", "pens", "coins", "eggs")
SLIPS = (-10, -3, -2, -1, 1, 2, 3, 10)  # what a wrong result is off by

OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: max(0, left - right),  # a negative result arises only after a slip; the vocabulary has no sign
    "*": lambda left, right: left * right,
    "/": lambda left, right: left // right,
    "%": lambda left, right: left % right,
}


@dataclass(frozen=True)
class Worked:
    """A problem and its working: from `start`, apply each (operator, operand) in turn; the last result is the answer."""

    problem: Problem
    start: int
    steps: tuple[tuple[str, int], ...]


def sample(rng: Random) -> Worked:
    """Draw one problem; the kind follows the mix."""
    (kind,) = rng.choices(tuple(KINDS), weights=MIX)
    return sample_kind(kind, rng)


def sample_kind(kind: str, rng: Random) -> Worked:
    """Draw one problem of `kind`, a key of KINDS."""
    prompt, start, steps = KINDS[kind](rng)
    answer = start
    for operator, operand in steps:
        answer = OPERATIONS[operator](answer, operand)
    return Worked(Problem(id=prompt, source=f"{SOURCE}/{kind}", prompt=prompt, answer=str(answer)), start, steps)


def response_text(worked: Worked, rng: Random, direct_answer_share: float, wrong_step_share: float) -> str:
    r"""A response as the warm start teaches it: "17+5=22;22-4=18;\boxed{18}", or with direct_answer_share just the box.

    Each step's result (of a direct answer: the answer) is wrong with probability wrong_step_share; later steps build on it.
    """

    def stated(result: int) -> int:
        return max(0, result + rng.choice(SLIPS)) if rng.random() < wrong_step_share else result

    if rng.random() < direct_answer_share:
        return rf"\boxed{{{stated(int(worked.problem.answer))}}}"
    current, working = worked.start, []
    for operator, operand in worked.steps:
        result = stated(OPERATIONS[operator](current, operand))
        working.append(f"{current}{operator}{operand}={result};")
        current = result
    return "".join(working) + rf"\boxed{{{current}}}"


_Drawn = tuple[str, int, tuple[tuple[str, int], ...]]


def _chain(rng: Random) -> _Drawn:
    start = current = rng.randint(2, 20)
    steps: list[tuple[str, int]] = []
    for _ in range(rng.choice((2, 3, 4))):
        operator = rng.choice("+-") if current > 0 else "+"
        operand = rng.randint(1, 9 if operator == "+" else min(9, current))
        steps.append((operator, operand))
        current = OPERATIONS[operator](current, operand)
    return f"{start}" + "".join(f"{operator}{operand}" for operator, operand in steps) + "?", start, tuple(steps)


def _linear(rng: Random) -> _Drawn:
    factor, unknown, offset = rng.randint(2, 9), rng.randint(1, 9), rng.randint(1, 9)
    total = factor * unknown + offset
    return f"{factor}x+{offset}={total}?", total, (("-", offset), ("/", factor))


def _modular(rng: Random) -> _Drawn:
    left, right, modulus = rng.randint(2, 12), rng.randint(2, 9), rng.randint(3, 9)
    return f"{left}*{right} mod {modulus}?", left, (("*", right), ("%", modulus))


def _word(rng: Random) -> _Drawn:
    name, thing = rng.choice(NAMES), rng.choice(THINGS)
    if rng.random() < 0.5:
        owned, bought = rng.randint(2, 20), rng.randint(1, 9)
        given = rng.randint(1, min(9, owned + bought))
        return f"{name} has {owned} {thing}, buys {bought}, gives {given}, left?", owned, (("+", bought), ("-", given))
    bags, each, bought = rng.randint(2, 6), rng.randint(2, 6), rng.randint(1, 9)
    return f"{name} has {bags} bags of {each} {thing}, buys {bought}, total?", bags, (("*", each), ("+", bought))


KINDS: dict[str, Callable[[Random], _Drawn]] = {"chain": _chain, "linear": _linear, "modular": _modular, "word": _word}
MIX = (0.40, 0.20, 0.15, 0.25)
