"""Equations and inequalities: what they name, and the value or the set that they state."""

from __future__ import annotations

import re

from pipeline.grading import exact
from pipeline.grading.forms import Form, Group, Relation, Scalar, Union, all_but, read_form
from pipeline.grading.stated import UNSURE

_LABEL = re.compile(
    r"(?:d[a-z]/d[a-z]|\\frac\{d[a-z]?\}\{d[a-z]\}|\\text\{[^{}]*\}|\\(?!sqrt|frac|sum|prod|int|binom)[a-zA-Z]++ ?|[A-Za-z'|{}:,°ℝ]"
    r"|_\{[^{}]*\}|_[A-Za-z0-9]|\([^()]*\)|\[[A-Za-z]+\]|\^\{?(?:-1|\*)\}?|(?<=[A-Za-z])\d)++"  # possessive: linear on any text
)
_ABSOLUTE = re.compile(r"\|[a-z]\|")
_LINEAR = re.compile(r"(?:[A-Za-z0-9+\-*/_{}()|'.]|\\(?:frac|cdot|text|angle|alpha|beta|gamma|theta|lambda|mu)(?![a-zA-Z]))+")
_PRODUCT = re.compile(r"([A-Za-z])\([^()]*\1")  # x(x+1) is no function of anything
_UNKNOWN = re.compile(
    r"\\(?:alpha|beta|gamma|theta|lambda|mu)|(?<![A-Za-z\\])(?:[A-Za-z](?![A-Za-z])|[A-Za-z]+(?=[-+*/{}]|$))(?:_\{?\w+\}?)?"
)
_SCALED = re.compile(r"[-\d]+[A-Za-z]+")  # 2xy = 10 is yet to be divided


def is_label(text: str) -> bool:
    """Whether `text` names a value, as x, f(x), |AB|, (p,q), V_1:V_2 or \\angle ABC do."""
    return _LABEL.fullmatch(text) is not None and not UNSURE.search(text) and not _PRODUCT.search(text)


def assigned(relation: Relation, lenient: bool = False) -> str | None:
    """The value that `x = 5`, `S = a = b ≈ 0.5` or `a ≈ 0.5` states exactly, or None if the equation states none.

    Different numbers in one chain (3 = 4) state nothing. `lenient` also takes the value of a sum of several unknowns (m+n = 25) and
    of a computation (2+3 = 5); for a gold answer the former is an equation in its own right. An equation in one unknown that is yet
    to be solved (x+2 = 3) states no value to anybody.
    """
    parts, signs = relation.parts, relation.signs
    until = signs.find("≈") + 1 if "≈" in signs else len(parts)
    values = [exact.value(part) for part in parts]
    if any(map(UNSURE.search, parts)) or len({value for value in values[:until] if value is not None}) > 1:
        return None
    if is_label(parts[0]):
        return parts[until - 1] if until > 1 else parts[1]
    if signs[0] == "≈":
        return parts[0]
    if len(parts) == 2 and (is_label(parts[1]) or (lenient and values[0] is not None and _names_quantity(parts[1]))):
        return parts[0]
    return parts[until - 1] if lenient and (values[0] is not None or _names_quantity(parts[0])) else None


def _names_quantity(text: str) -> bool:
    """Whether `text` is what a problem may ask for by name: a linear combination or quotient of at least two unknowns."""
    unknowns = set(_UNKNOWN.findall(text))
    return _LINEAR.fullmatch(text) is not None and len(unknowns) > 1 and not _SCALED.fullmatch(text)


def interval(relation: Relation) -> Group | None:
    """The interval that an ascending chain of inequalities about one label describes: a < x ≤ b is (a, b]."""
    relation = ascending(relation)
    parts, signs = relation.parts, relation.signs
    if not set(signs) <= {"<", "≤"}:
        return None
    if len(parts) == 3 and is_label(parts[1]):
        low, high = read_form(parts[0]), read_form(parts[2])
        return Group("[" if signs[0] == "≤" else "(", "]" if signs[1] == "≤" else ")", (low, high))
    if len(parts) == 2 and _ABSOLUTE.fullmatch(parts[0]) and not is_label(parts[1]):  # |x| < 3
        low = read_form(parts[1][1:] if parts[1].startswith("-") else "-" + parts[1])
        return Group("[" if signs == "≤" else "(", "]" if signs == "≤" else ")", (low, read_form(parts[1])))
    if len(parts) == 2 and is_label(parts[0]) and not is_label(parts[1]):
        return Group("(", "]" if signs == "≤" else ")", (Scalar("-∞"), read_form(parts[1])))
    if len(parts) == 2 and is_label(parts[1]) and not is_label(parts[0]):
        return Group("[" if signs == "≤" else "(", ")", (read_form(parts[0]), Scalar("∞")))
    return None


def outside(relation: Relation) -> Union | None:
    """x ≠ 1 as the set of the other real numbers."""
    if relation.signs != "≠" or not is_label(relation.parts[0]):
        return None
    return all_but((read_form(relation.parts[1]),))


def label_in(relation: Relation) -> str:
    return next(part for part in (relation.parts[1], *relation.parts) if is_label(part)).strip("|")


def ascending(relation: Relation) -> Relation:
    """The same chain with < and ≤ instead of > and ≥."""
    if not set(relation.signs) & {">", "≥"} or set(relation.signs) & {"<", "≤"}:
        return relation
    return Relation(relation.parts[::-1], relation.signs[::-1].replace(">", "<").replace("≥", "≤"))


def set_of(relation: Relation) -> Form | None:
    return read_form(relation.parts[1]) if relation.signs == "∈" and is_label(relation.parts[0]) else None


def difference(relation: Relation) -> str:
    return f"({relation.parts[1]})-({relation.parts[0]})"


def is_ordinate(label: str) -> bool:
    """y, f(x), g(t): what the graph of a function calls its height."""
    return re.fullmatch(r"y|[fgh]\([a-z]\)", label) is not None
