"""When two answers mean the same, strictly: structure is compared here, and what only mathematics can decide is asked of `decide`.

Strict means: no factor of 100, no relative tolerance, no comma, bracket or base dropped. A percentage equals its number and its
ratio; a unit may be missing but not differ; a decimal of at least six significant digits equals what it rounds or cuts off.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pipeline.grading import exact
from pipeline.grading.forms import (
    Form,
    Group,
    Matrix,
    Members,
    Ratio,
    Relation,
    Scalar,
    Union,
    Words,
    read_form,
    words_key,
)
from pipeline.grading.notation import MAX_LENGTH, canonical, compact, has_thousands, join_thousands, undecorated
from pipeline.grading.quantities import Quantity, read_quantity, units_conflict
from pipeline.grading.relations import (
    ascending,
    assigned,
    difference,
    interval,
    is_label,
    is_ordinate,
    label_in,
    outside,
    set_of,
)
from pipeline.grading.residues import base_ten, based, residue, same_residue
from pipeline.grading.wording import in_notation
from pipeline.grading.wrappers import unwrapped

Question = Literal["equal", "proportional", "positively_proportional"]
Decide = Callable[[Question, str, str], bool]
_CHOICE = re.compile(
    r"(?:\\text ?\{ ?)?(?:\(([A-H])\)(?=[ .:}])|([A-H])(?:\)|[.:](?= )))(.*)", re.DOTALL
)  # \text{(D)} 12, D) x+1, D: 7
_OPTION = re.compile(r"^((?:\\text ?\{ ?)?)(?:(?:the )?(?:option|choice|answer(?: is|:)) )(?=\(?[A-H]\)?(?: ?\})?$)", re.IGNORECASE)
_CHOICE_LETTER = re.compile(r"(?:\\text ?\{ ?)?\(?([A-H])\)? ?\}?")
_SINGLE = re.compile(r"(?<!\\text)\{(\w)\}")
_CODE = re.compile(r"__|[(\[] ?['\"]|[A-Za-z]{2,}\.[A-Za-z_]{3,}\(|\bimport [a-z]")  # no notation of mathematics
_CLOCK_PART = re.compile(r"0\d|0$")
MAX_MEMBERS = 24  # of unordered collections that are matched member by member


class Undecided(Exception):
    """Neither text nor exact arithmetic can tell; a worker has to."""


def undecided(question: Question, gold: str, answer: str) -> bool:
    """The `decide` of a process that does no symbolic mathematics."""
    raise Undecided(f"{question}: {gold} / {answer}")


def equivalent(gold: str, answer: str, decide: Decide = undecided) -> bool:
    """Whether an answer means the same as the gold answer; both as written. May raise what `decide` raises."""
    gold, answer = (canonical(undecorated(in_notation(unwrapped(text)))) for text in (gold, answer))
    if not answer or not gold:
        return False
    if _bare(gold) == _bare(answer):
        return True
    (gold_letter, gold), (letter, answer) = _chosen(gold), _chosen(answer)
    one, other = gold_letter or _letter(gold), letter or _letter(answer)
    if (gold_letter or letter) and one and other:
        return one == other
    if _CODE.search(answer):
        return False
    comparison = _Comparison(decide)
    if not (has_thousands(gold) or has_thousands(answer)):
        return comparison.same(read_form(gold), read_form(answer))
    # 1,234 may be one number or two: both answers are read the same way
    joined = comparison.same(read_form(join_thousands(gold)), read_form(join_thousands(answer)))
    return joined or comparison.same(read_form(gold), read_form(answer))


def answer_key(answer: str) -> str:
    """What answers are counted by: the exact value of a rational number, or the compact notation (at most 200 characters)."""
    text = canonical(undecorated(in_notation(unwrapped(answer[:MAX_LENGTH]))))
    form = read_form(join_thousands(text))
    relation = assigned(form, lenient=True) if isinstance(form, Relation) else None
    quantity = read_quantity(relation or (form.text if isinstance(form, Scalar) else ""))
    value = exact.value(quantity.core) if quantity.core else None
    if value is None or max(value.numerator.bit_length(), value.denominator.bit_length()) > 300:
        return _bare(text)[:200]
    return f"{value}%" if quantity.percent else str(value)


def _chosen(answer: str) -> tuple[str, str]:
    """The letter and the value of one choice with its value, `(D) 12`; ("", answer) for any other answer; "Option A" is "A"."""
    answer = _OPTION.sub(r"\1", answer)
    choice = _CHOICE.fullmatch(answer)
    if not choice or re.search(r"\b[A-H]\)", choice[3]):
        return "", answer
    value = choice[3].strip(" .:")
    if value.count("}") > value.count("{"):
        value = value[1:] if value.startswith("}") else value.removesuffix("}")
    value = value.strip(" .:")
    return (choice[1] or choice[2], value) if value and value[0] not in ",;=<>≤≥" else ("", answer)


def _letter(text: str) -> str:
    choice = _CHOICE_LETTER.fullmatch(text)
    return choice.group(1) if choice else ""


def _bare(text: str) -> str:
    """Compact text without the braces around single signs: x^{2} is x^2."""
    return _SINGLE.sub(r"\1", compact(text))


@dataclass(frozen=True)
class _Comparison:
    decide: Decide

    def same(self, gold: Form, answer: Form) -> bool:
        if gold == answer:
            return True
        if isinstance(gold, Relation) and isinstance(answer, Relation):
            return self.same_relations(gold, answer)
        if isinstance(answer, Relation):
            return self.relation_means(answer, gold, lenient=True)
        if isinstance(gold, Relation):
            return self.relation_means(gold, answer, lenient=False)
        if isinstance(gold, Words) or isinstance(answer, Words):
            return _key(gold) == _key(answer) != ""
        if isinstance(gold, Scalar) and isinstance(answer, Scalar):
            return self.same_scalars(gold.text, answer.text)
        if isinstance(gold, Members) and isinstance(answer, Members):
            return self.match(gold.items, answer.items)
        if isinstance(gold, Members):
            return self.members_are(gold, answer, lambda item: self.same(item, answer))
        if isinstance(answer, Members):
            return self.members_are(answer, gold, lambda item: self.same(gold, item))
        if isinstance(gold, Union) and isinstance(answer, Union):
            return self.match(gold.parts, answer.parts)
        if isinstance(gold, Group) and isinstance(answer, Group):
            brackets = (gold.opening, gold.closing) == (answer.opening, answer.closing)
            return brackets and self.same_in_order(gold.items, answer.items)
        if isinstance(gold, Matrix) or isinstance(answer, Matrix):
            vector = _vector(gold), _vector(answer)
            if vector[0] and vector[1] and not (isinstance(gold, Matrix) and isinstance(answer, Matrix)):
                return self.same_in_order(*vector)
            rows, other = _rows(gold), _rows(answer)
            return len(rows) == len(other) > 0 and all(self.same_in_order(*pair) for pair in zip(rows, other, strict=True))
        if isinstance(gold, Ratio) and isinstance(answer, Ratio):
            return self.same_in_order(gold.parts, answer.parts) or self.same_ratio(gold, answer)
        return False

    def same_in_order(self, gold: tuple[Form, ...], answer: tuple[Form, ...]) -> bool:
        return len(gold) == len(answer) and all(self.same(one, other) for one, other in zip(gold, answer, strict=True))

    def match(self, gold: tuple[Form, ...], answer: tuple[Form, ...]) -> bool:
        """Whether the two collections have the same members in any order."""
        gold, answer = tuple(dict.fromkeys(gold)), tuple(dict.fromkeys(answer))
        if len(gold) != len(answer):
            return False
        rest = [item for item in answer if item not in gold]
        missing = [item for item in gold if item not in answer]
        if len(missing) > MAX_MEMBERS:
            return False
        for item in missing:
            partner = next((index for index, other in enumerate(rest) if self.same_member(item, other)), None)
            if partner is None:
                return False
            del rest[partner]
        return True

    def same_member(self, gold: Form, answer: Form) -> bool:
        """Whether two members of collections are the same: a set inside a set is a member of its own, {2} is not 2."""
        return (isinstance(gold, Members) == isinstance(answer, Members)) and self.same(gold, answer)

    def members_are(self, members: Members, other: Form, same_as_other: Callable[[Form], bool]) -> bool:
        """Whether a collection is what is not written as one: its only member, a bare tuple, a union of inequalities."""
        if len(set(members.items)) == 1:
            return same_as_other(members.items[0])
        if isinstance(other, Group):
            return not members.braces and other.opening + other.closing == "()" and self.same_in_order(other.items, members.items)
        if isinstance(other, Union):
            intervals = tuple(interval(item) or item if isinstance(item, Relation) else item for item in members.items)
            return self.match(other.parts, intervals)
        return False

    def same_ratio(self, gold: Ratio, answer: Ratio) -> bool:
        """2:4 is 1:2, by cross products; a clock time with a zero (12:00, 7:05) is no ratio."""
        one, other = ([part.text for part in ratio.parts if isinstance(part, Scalar)] for ratio in (gold, answer))
        if not len(one) == len(other) == len(gold.parts) == len(answer.parts) or any(
            _CLOCK_PART.match(text) for text in one + other
        ):
            return False
        pairs = zip(one[1:], other[1:], strict=True)
        return all(self.same_scalars(f"({one[0]})*({right})", f"({other[0]})*({left})") for left, right in pairs)

    def same_scalars(self, gold: str, answer: str) -> bool:
        moduli = residue(gold), residue(answer)
        if moduli[0] or moduli[1]:
            return same_residue(moduli[0] or (exact.value(gold), None), moduli[1] or (exact.value(answer), None))
        bases = based(gold), based(answer)
        if bases[0] or bases[1]:
            return bases[0] == bases[1] or base_ten(*bases, gold, answer)
        return self.same_quantities(read_quantity(gold), read_quantity(answer))

    def same_quantities(self, gold: Quantity, answer: Quantity) -> bool:
        if units_conflict(gold.unit, answer.unit):
            return False
        one, other = exact.value(gold.core), exact.value(answer.core)
        if one is None or other is None:
            return gold.core == answer.core or self.decide("equal", gold.core, answer.core)
        if one == other:
            return True
        if gold.percent != answer.percent:
            return one / 100 == other if gold.percent else one == other / 100
        if exact.is_decimal(gold.core) == exact.is_decimal(answer.core):
            return False
        decimal, number = (gold.core, other) if exact.is_decimal(gold.core) else (answer.core, one)
        return exact.agrees_to_its_digits(decimal, number)

    def same_relations(self, gold: Relation, answer: Relation) -> bool:
        gold, answer = ascending(gold), ascending(answer)
        if gold == answer:
            return True
        if "∈" in gold.signs + answer.signs:
            one, other = (set_of(relation) or interval(relation) for relation in (gold, answer))
            return one is not None and other is not None and self.same(one, other)
        if gold.signs == answer.signs and len(gold.signs) > 1 and self._same_parts(gold, answer):
            return True
        if set(gold.signs) | set(answer.signs) <= {"=", "≈", "≡"}:
            return self.same_equations(gold, answer)
        one, other = interval(gold), interval(answer)
        if one is not None and other is not None:
            return label_in(gold) == label_in(answer) and self.same(one, other)
        if len(gold.signs) == len(answer.signs) == 1 and gold.signs == answer.signs:
            question = "proportional" if gold.signs == "≠" else "positively_proportional"
            return self.decide(question, difference(gold), difference(answer))
        return False

    def _same_parts(self, gold: Relation, answer: Relation) -> bool:
        return self.same_in_order(tuple(map(read_form, gold.parts)), tuple(map(read_form, answer.parts)))

    def same_equations(self, gold: Relation, answer: Relation) -> bool:
        labels = gold.parts[0], answer.parts[0]
        if all(map(is_label, labels)) and (labels[0] == labels[1] or all(map(is_ordinate, labels))):
            return self.same(read_form(assigned(gold) or ""), read_form(assigned(answer) or ""))
        if all("(" in label and "," in label for label in labels):  # (p,q) = (3,2)
            return self._same_parts(gold, answer)
        if len(gold.signs) == len(answer.signs) == 1:
            return self.decide("proportional", difference(gold), difference(answer))
        return False

    def relation_means(self, relation: Relation, other: Form, lenient: bool) -> bool:
        """Whether a relation states the value or the set that the other side gives; `lenient` for the response's own label."""
        as_set = set_of(relation) if "∈" in relation.signs else interval(ascending(relation)) or outside(relation)
        if as_set is not None:
            return self.same(as_set, other)
        if not set(relation.signs) <= {"=", "≈", "≡"}:
            return False
        text = assigned(relation, lenient)
        if text is None:
            return False
        pair = (other, read_form(text)) if lenient else (read_form(text), other)
        if self.same(*pair):
            return True
        rounded = relation.parts[-1]
        return lenient and relation.signs[-1] == "≈" and isinstance(other, Scalar) and "." in other.text and other.text == rounded


def _key(form: Form) -> str:
    if isinstance(form, Words):
        return form.key
    return words_key(form.text) if isinstance(form, Scalar) and re.fullmatch(r"[A-Za-z]+|\\text\{.*\}", form.text) else ""


def _vector(form: Form) -> tuple[Form, ...]:
    """The entries of a tuple, or of a matrix of one row or column."""
    if isinstance(form, Matrix):
        return form.rows[0] if len(form.rows) == 1 else tuple(row[0] for row in form.rows) if len(form.rows[0]) == 1 else ()
    plain = isinstance(form, Group) and form.opening + form.closing == "()" and not any(isinstance(i, Group) for i in form.items)
    return form.items if isinstance(form, Group) and plain else ()


def _rows(form: Form) -> tuple[tuple[Form, ...], ...]:
    """The rows of a matrix, also of one written as a list of lists."""
    if isinstance(form, Matrix):
        return form.rows
    if isinstance(form, Group) and all(isinstance(item, Group) for item in form.items):
        return tuple(item.items for item in form.items if isinstance(item, Group))
    return ()
