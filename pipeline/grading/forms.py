"""The form of an answer: number, list, tuple or interval, union, relation, matrix, ratio or words, read from canonical notation.

read_form() only takes text apart; pipeline.grading.equivalence says when two forms mean the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

from pipeline.grading import exact
from pipeline.grading.notation import canonical, compact

RELATIONS = "=<>≤≥≠≈∈≡"


@dataclass(frozen=True)
class Scalar:
    """One formula, number or name, as compact text: Scalar("3\\sqrt{2}")."""

    text: str


@dataclass(frozen=True)
class Words:
    """An answer in words; compared without case, blanks and punctuation: Words("evelyn")."""

    key: str


@dataclass(frozen=True)
class Members:
    """An unordered collection, in braces or bare: `1, -2`, `⦃1, 2⦄`."""

    items: tuple[Form, ...]
    braces: bool


@dataclass(frozen=True)
class Group:
    """An ordered collection in round or square brackets: a tuple or an interval."""

    opening: str
    closing: str
    items: tuple[Form, ...]


@dataclass(frozen=True)
class Union:
    """Sets joined by ∪, in any order."""

    parts: tuple[Form, ...]


@dataclass(frozen=True)
class Relation:
    """A chain of one or more relations: `1 < x ≤ 5` has parts ("1", "x", "5") and signs "<≤"."""

    parts: tuple[str, ...]
    signs: str


@dataclass(frozen=True)
class Matrix:
    """Rows of entries; the style of the brackets means nothing."""

    rows: tuple[tuple[Form, ...], ...]


@dataclass(frozen=True)
class Ratio:
    """a : b : c"""

    parts: tuple[Form, ...]


Form = Scalar | Words | Members | Group | Union | Relation | Matrix | Ratio

ALL_REALS = Group("(", ")", (Scalar("-∞"), Scalar("∞")))
EMPTY = Members((), braces=True)
_NAMED = {
    **dict.fromkeys(("allrealnumbers", "allreals", "realnumbers", "ℝ", "\\text{R}"), ALL_REALS),
    **dict.fromkeys(("nosolution", "nosolutions", "norealsolution", "norealsolutions", "emptyset", "theemptyset", "∅"), EMPTY),
}
_DEPTH = re.compile(r"\\begin|\\end|[(\[{⦃⌊⌈)\]}⦄⌋⌉]")
_WHOLE_TEXT = re.compile(r"\\text ?\{([^{}]*)\}")
_LETTERS_ONLY = re.compile(r"\(?[^\W\d_][^\W\d_ .,'()-]*(?:[ .,'-]+[^\W\d_][^\W\d_ .'()-]*)*\)?\.?")
_LETTER_LIST = re.compile(r"[A-Z](?: ?, ?[A-Z])+")
_NAME_LIST = re.compile(r"[A-Z][a-z]+(?: ?, ?[A-Z][a-z]+)+")
_STATED = re.compile(r"(?:the|my) (?:final |correct )?(?:answer|result) is:? ?", re.IGNORECASE)
_ANY_REAL = re.compile(r"[a-z] ?∈ ?ℝ")
_LONG_WORD = re.compile(r"[^\W\d_]{4,}")
_FORMULA_WORD = re.compile(r"^(?:sqrt|sin|cos|tan|cot|sec|csc|ln|log|exp|arc|pi|theta|alpha|beta|lambda|inf)", re.IGNORECASE)
_MATRIX = re.compile(r"\\begin ?\{(?:[pbB]?matrix|smallmatrix|array)\}(?:\{[lcr| ]*\})?(.*)\\end ?\{[a-zA-Z]*\}", re.DOTALL)
_SYSTEM = re.compile(r"\\begin ?\{(?:cases|aligned)\}(.*)\\end ?\{[a-z]*\}", re.DOTALL)
_POINT = re.compile(r"[A-BD-Z] ?\(.*,")  # A(1,2) names the point (1,2); C(6,2) is a binomial coefficient
_ARTICLE = re.compile(r"^[{ ]*(?:an?|the) +(?=[^\W\d_]{3})", re.IGNORECASE)
_NOT_WORD_CHARACTERS = re.compile(r"[\W_]+")


def words_key(text: str) -> str:
    """What is compared of an answer in words: letters and digits, without case and without an article before a word."""
    return _NOT_WORD_CHARACTERS.sub("", _ARTICLE.sub("", text.replace("\\text", ""))).casefold()


def read_form(text: str, depth: int = 0) -> Form:
    """The form of an answer in canonical notation; what has no structure is a Scalar. Nesting beyond 40 is not taken apart."""
    text = _unwrapped(text.strip())
    if depth > 40 or not text:
        return Scalar(compact(text))
    named = _NAMED.get(compact(text)) or _NAMED.get(words_key(text))
    if named is not None:
        return named
    words = _words(text)
    if words is not None:
        return words
    members = expanded([part for part in split(text, ",;")[0] if part])
    if len(members) > 1:
        members = [member for member in members if not _ANY_REAL.fullmatch(member)] or members
    if len(members) > 1:
        return Members(tuple(read_form(member, depth + 1) for member in members), braces=False)
    text = members[0] if members else text
    parts, signs = split(text, RELATIONS)
    if len(parts) > 1:
        if not parts[0]:
            return read_form(text[1:], depth + 1) if signs[0] in "=≈∈≡" else Scalar(compact(text))
        return Relation(tuple(compact(part) for part in parts), signs)
    return _read_bracketed(text, depth)


def _read_bracketed(text: str, depth: int) -> Form:
    parts, _ = split(text, "∪")
    if len(parts) > 1:
        return _united([read_form(part, depth + 1) for part in parts])
    parts, _ = split(text, "∖")
    if len(parts) == 2:
        removed = read_form(parts[1], depth + 1)
        if read_form(parts[0], depth + 1) == ALL_REALS and isinstance(removed, Members) and removed.braces:
            return all_but(removed.items) or Scalar(compact(text))
    parts, _ = split(text, ":")
    if len(parts) > 1 and all(parts):
        return Ratio(tuple(read_form(part, depth + 1) for part in parts))
    system = _SYSTEM.fullmatch(text)
    lines = system.group(1).replace("&=", "=").split("\\cr") if system else []
    if lines and not any("&" in line for line in lines):  # with conditions it is a function in pieces
        return read_form(",".join(lines), depth + 1)
    factor, begin, rest = text.partition("\\begin")
    matrix = _MATRIX.fullmatch(begin + rest)
    if matrix and "(" not in factor:
        times = f"({compact(factor.rstrip('* '))})*" if factor.strip("- ") else factor.strip()
        rows = [row.split("&") for row in matrix.group(1).split("\\cr") if row.strip()]
        return Matrix(tuple(tuple(read_form(f"{times}({entry})" if times else entry, depth + 1) for entry in row) for row in rows))
    if len(text) > 1 and text[0] in "⦃([" and text[-1] in "⦄)]" and _encloses(text):
        inner = text[1:-1].strip()
        if text[0] == "⦃":
            return _read_set(inner, depth)
        items = [item for item in split(inner, ",;")[0] if item]
        if len(items) > 1:
            return Group(text[0], text[-1], tuple(read_form(item, depth + 1) for item in items))
        if text[0] + text[-1] == "()" or _MATRIX.fullmatch(inner):
            return read_form(inner, depth + 1)
    if _POINT.match(text):
        point = read_form(text[1:], depth + 1)
        if isinstance(point, Group):
            return point
    return Scalar(compact(text))


def _united(parts: list[Form]) -> Form:
    """One set where all parts are lists of members, otherwise their union."""
    if all(isinstance(part, Members) and part.braces for part in parts):
        return Members(tuple(item for part in parts if isinstance(part, Members) for item in part.items), braces=True)
    return Union(tuple(parts))


def all_but(points: tuple[Form, ...]) -> Union | None:
    """The intervals that are left of the real numbers without some rational points; None for other points."""
    values = {item: exact.value(item.text) for item in points if isinstance(item, Scalar)}
    if not points or len(values) != len(set(points)) or None in values.values():
        return None
    ends = [Scalar("-∞"), *sorted(values, key=lambda item: values[item] or 0), Scalar("∞")]
    return Union(tuple(Group("(", ")", pair) for pair in pairwise(ends)))


def _read_set(inner: str, depth: int) -> Form:
    """Members, or the condition of a set-builder: ⦃x | x > 3⦄ is x > 3."""
    builder = split(inner, "|:")[0]
    if len(builder) == 2 and re.match(r"[A-Za-z](?: ?∈ ?ℝ)?$", builder[0]) and any(sign in builder[1] for sign in RELATIONS):
        return read_form(builder[1], depth + 1)
    members = expanded([part for part in split(inner, ",;")[0] if part])
    return Members(tuple(read_form(member, depth + 1) for member in members), braces=True)


def split(text: str, separators: str) -> tuple[list[str], str]:
    """The parts of `text` between separators outside all brackets, and the separators met."""
    if not any(separator in text for separator in separators):
        return [text.strip()], ""
    parts, signs, start, level = [], "", 0, 0
    for match in re.compile(_DEPTH.pattern + f"|[{re.escape(separators)}]").finditer(text):
        token = match.group()
        if token in separators:
            if level == 0:
                parts.append(text[start : match.start()].strip())
                signs += token
                start = match.end()
        elif token in ("\\end", *")]}⦄⌋⌉"):
            level = max(level - 1, 0)
        else:
            level += 1
    return [*parts, text[start:].strip()], signs


def expanded(members: list[str]) -> list[str]:
    """Each member with ± as two: first all upper signs, then all lower ones."""
    result = []
    for member in members:
        if ("±" in member or "∓" in member) and "⦃" not in member:
            result.append(member.replace("±", "+").replace("∓", "-"))
            result.append(member.replace("±", "-").replace("∓", "+"))
        else:
            result.append(member)
    return result


def _encloses(text: str) -> bool:
    """Whether the first bracket of `text` closes at its end; the two may differ, as in (2,3]."""
    level = 0
    for match in _DEPTH.finditer(text):
        level += -1 if match.group() in ("\\end", *")]}⦄⌋⌉") else 1
        if level == 0:
            return match.end() == len(text)
    return False


def _unwrapped(text: str) -> str:
    while len(text) > 1 and text[0] == "{" and text[-1] == "}" and "\\choose" not in text and _encloses(text):
        text = text[1:-1].strip()
    return text


def _words(text: str) -> Form | None:
    """Words for \\text of letters and for letters with a word of four or more; for other \\text the form of its content."""
    whole = _WHOLE_TEXT.fullmatch(text)
    inner = canonical(_STATED.sub("", whole.group(1).strip(), count=1)) if whole else text
    if not inner.isascii() and any("\u4e00" <= sign <= "\u9fff" for sign in inner) and not any(sign.isdigit() for sign in inner):
        return Words(words_key(inner))
    if inner.casefold() in ("yes", "no"):
        return Words(inner.casefold())
    if (
        _LETTERS_ONLY.fullmatch(inner)
        and not (whole and _LETTER_LIST.fullmatch(inner))
        and not _NAME_LIST.fullmatch(inner)
        and (whole or (_LONG_WORD.search(inner) and not _FORMULA_WORD.match(inner)))
    ):
        named = _NAMED.get(words_key(inner))
        return named or Words(words_key(inner))
    return read_form(inner, 1) if whole and inner != text else None
