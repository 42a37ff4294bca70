"""Numbers written with a base, and residues with a modulus: 204_5, 3 \\pmod{7}."""

from __future__ import annotations

import re
from fractions import Fraction

from pipeline.grading import exact

_BASED = re.compile(
    r"(?:\(|\\text ?\{)?(-?[0-9][0-9A-Fa-f]*|[A-Fa-f]+[0-9][0-9A-Fa-f]*|[A-F]{2,})[)}]?"
    r"(?:_(?:\{(?:\\text\{)?(?:base\}?)?\(?(?P<braced>[0-9a-z]+)\)?\}?\}|(?P<digit>\d))|\\text\{\(?(?:in)?base-?(?P<named>[0-9a-z]*)\)?\}(?P<after>\d*))"
)
_BASE_NAMES = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10, "twelve": 12}


def based(text: str) -> tuple[int, int] | None:
    """(value, base) of a number written with its base: 204_5, 204_{five}, A1_{16}."""
    match = _BASED.fullmatch(text)
    if not match:
        return None
    name = match["braced"] or match["digit"] or match["named"] or match["after"]
    base = int(name) if name.isdigit() and len(name) < 3 else _BASE_NAMES.get(name, 0)
    digits = match.group(1).lower()
    if not 2 <= base <= 36 or any(int(digit, 36) >= base for digit in digits.lstrip("-")):
        return None
    return int(digits, base), base


def residue(text: str) -> tuple[Fraction | None, int | None] | None:
    """(3, 7) for 3 \\pmod{7}; None for what is no residue."""
    value, mark, modulus = text.partition("\\pmod{")
    return (exact.value(value), int(modulus[:-1])) if mark and re.fullmatch(r"[1-9]\d{0,30}\}", modulus) else None


def same_residue(gold: tuple[Fraction | None, int | None], answer: tuple[Fraction | None, int | None]) -> bool:
    """Whether two residues are of one class; a missing modulus may be the other's, but then the numbers are equal and reduced."""
    if gold[0] is None or answer[0] is None:
        return False
    if gold[1] is None or answer[1] is None:
        modulus = gold[1] or answer[1]
        return gold[0] == answer[0] and (modulus is None or 0 <= gold[0] < modulus)
    return gold[1] == answer[1] and (gold[0] - answer[0]) % gold[1] == 0


def base_ten(gold_base: tuple[int, int] | None, answer_base: tuple[int, int] | None, gold: str, answer: str) -> bool:
    """A number without a base is in base ten; two different bases are different answers."""
    if gold_base and answer_base:
        return False
    number, base = gold_base or answer_base or (0, 0)
    return base == 10 and exact.value(answer if gold_base else gold) == number
