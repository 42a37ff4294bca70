"""The verdicts of PRIME's rule-based verifier, re-implemented without eval: the reward of the paper's runs.

The rules stand in the order in which PRIME tries them: Hendrycks' string equality, PRM800K's normal form, then numbers with a
relative tolerance and a factor of 100, dropped brackets, lists element by element, and formulas. Its well-known leniencies are
named switches; with all of them off what remains is string equality, exact numbers and identical formulas.
Source: PRIME (arXiv 2502.01456), its math_util evaluation package; PRM800K grader; Hendrycks MATH equivalence; ToRA grader.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from pipeline.grading import exact
from pipeline.grading.extract import Extraction
from pipeline.grading.forms import Words, read_form
from pipeline.grading.notation import MAX_LENGTH, canonical

SameFormula = Callable[[str, str], bool]


@dataclass(frozen=True)
class Switches:
    """PRIME's leniencies; the defaults are PRIME's own behaviour.

    answer_phrases: text after the last "answer is" wins over a box before it.  percent_scale: gold/100 and gold*100 are right too.
    rel_tol: relative tolerance of numbers, integers included; 0 is exact.  remove_commas: 1,2 is 12.
    drop_brackets: (2,3) is (2,3], \\frac{1}{23} is \\frac{12}{3}.  drop_base: 10_8 is 10_2.  pi_314: 3.14 is \\pi.
    """

    answer_phrases: bool = True
    percent_scale: bool = True
    rel_tol: float = 1e-4
    remove_commas: bool = True
    drop_brackets: bool = True
    drop_base: bool = True
    pi_314: bool = True


PRIME = Switches()
_UNIT = re.compile(
    r"(?:degree|cm|centimeter|meter|mile|second|minute|hour|day|week|month|year|foot|feet|inch|yard|liter)(?:es)?s? *(?:\^[0-9]+)?"
)
_THOUSANDS = re.compile(r"(\d),(\d{3})(?=$|\D)")
_INTEGER = re.compile(r"[-+]?[0-9]{1,15}")
_LEAD_IN = ("be ", "is ", "are ", "=", ": ", "get ", "be\n", "is\n", "are\n", ":\n", "get\n")
_BEYOND_PRIME = re.compile(r"[=<>]|\\(?:le|ge|ne|in|cup|cap|pm|begin|binom|\{)(?![a-zA-Z])")
_WORD_POWERS = {"million": "*10^6", "billion": "*10^9", "trillion": "*10^12"}


def extract_answer(response: str) -> tuple[Extraction, bool]:
    """PRIME's extraction and whether any of its markers was found; without one it grades the whole response."""
    rule = "whole_response"
    for marker in ("answer:", "answer is", "answers are"):
        _, found, tail = _rpartition(response, marker)
        if found:
            response, rule = tail.strip(), "answer_phrase"
    for marker in ("is answer", "is the answer", "are answers", "are the answers"):
        head, found, _ = _rpartition(response, marker)
        if found:
            response, rule = head.strip(), "is_the_answer"
    boxed = _last_box(response)
    if boxed:
        response, rule = boxed, "box"
    if ". " in response:
        response = response.rpartition(". ")[0].strip()
    for marker in _LEAD_IN:
        _, found, tail = _rpartition(response, marker)
        if found:
            response = tail.strip()
            rule = "lead_in" if rule == "whole_response" else rule
    matched = rule != "whole_response" and any(sign.isdigit() for sign in response)
    return Extraction(response, rule), matched


def matches(gold: str, answer: str, switches: Switches, same_formula: SameFormula) -> bool:
    """PRIME's verdict on an extracted answer. May raise what `same_formula` raises, asked when strings and numbers fail."""
    if _INTEGER.fullmatch(gold) and _INTEGER.fullmatch(answer):
        return int(gold) == int(answer) or bool(_same_numbers(gold, answer, switches))
    if _same_strings(gold, answer):
        return True
    if "\\pi" in gold or "\\pi" in answer:
        values = (math.pi, 3.14) if switches.pi_314 else (math.pi,)
        if any(_same_numbers(_with_pi(gold, pi), _with_pi(answer, pi), switches) for pi in values):
            return True
    return _equal(gold, answer, switches, same_formula)


def _rpartition(text: str, marker: str) -> tuple[str, bool, str]:
    index = text.lower().rfind(marker)
    return ("", False, text) if index < 0 else (text[:index], True, text[index + len(marker) :])


def _last_box(response: str) -> str | None:
    start = response.rfind("\\boxed")
    start = start if start >= 0 else response.rfind("\\fbox")
    if start < 0:
        return None
    depth, opening = 0, -1
    for match in re.compile(r"[{}]").finditer(response, start):
        if match.group() == "{":
            depth += 1
            opening = match.end() if opening < 0 else opening
        else:
            depth -= 1
            if depth == 0:
                return response[opening : match.start()].strip()
    return None


def _same_strings(gold: str, answer: str) -> bool:
    """The string rules: equality in Hendrycks' and in PRM800K's normal form, the latter also element by element of a tuple."""
    if _hendrycks(gold) == _hendrycks(answer):
        return True
    gold, answer = _prm800k(gold), _prm800k(answer)
    return gold == answer


def _hendrycks(text: str) -> str:
    """The MATH data set's normal form of an answer."""
    whole = re.fullmatch(r"\\text\{(.+?)\}", text.strip())
    text = (whole.group(1) if whole else text).strip().replace("\n", "").replace("\\!", "").replace("\\\\", "\\")
    text = re.sub(r"\\[td]frac", r"\\frac", text).replace("\\left", "").replace("\\right", "")
    text = text.replace("^{\\circ}", "").replace("^\\circ", "").replace("\\$", "")
    if text.count("\\text{ ") == 1:
        text = text.partition("\\text{ ")[0]
    text = text.replace("\\%", "").replace("%", "").replace(" .", " 0.").replace("{.", "{0.")
    text = "0" + text if text.startswith(".") else text
    if text.count("=") == 1 and len(text.partition("=")[0]) <= 2:
        text = text.partition("=")[2]
    text = re.sub(r"\\sqrt(?!\{)(\w)", r"\\sqrt{\1}", text).replace(" ", "")
    text = re.sub(r"\\frac(\w)(\w)", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\\frac(\w)\{", r"\\frac{\1}{", text)
    if text == "0.5":
        return "\\frac{1}{2}"
    return re.sub(r"^(-?\d+)/(-?\d+)$", r"\\frac{\1}{\2}", text)


def _prm800k(text: str) -> str:
    """PRM800K's normal form: lower-case text without units, LaTeX, and signs of percent and currency."""
    whole = re.fullmatch(r"\\text\{(.+?)\}", text)
    text = whole.group(1) if whole else text
    text = (
        text.replace("\\%", "").replace("\\$", "").replace("$", "").replace("%", "").replace(" or ", " , ").replace(" and ", " , ")
    )
    for word, power in _WORD_POWERS.items():
        text = text.replace(word, power)
    text = re.sub(r"\^ *\\circ", "", _UNIT.sub("", text))
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1]
    text = re.sub(r",\\! *", "", text)
    text = _integer_text(text)
    if "\\" in text:
        text = _latex_to_text(text)
    text = re.sub(r"- *", "-", text)
    text = re.sub(r"([0-9]) +([0-9])", r"\1+\2", text).lower()
    while _THOUSANDS.search(text) and re.fullmatch(r"[-\d,.]+", text):
        text = _THOUSANDS.sub(r"\1\2", text, count=1)
    return _integer_text(text)


def _integer_text(text: str) -> str:
    number = _float(text, remove_commas=False)
    if number is None or not math.isfinite(number) or abs(number - round(number)) > 1e-7:
        return text
    return str(int(text)) if re.fullmatch(r"[-+]?\d{1,1000}", text) else str(round(number))


def _latex_to_text(text: str) -> str:
    text = re.sub(r"\\[td]?frac", r" \\frac", text)
    for _ in range(8):
        simpler = re.sub(r"\\frac *(?:\{([^{}]*)\}|(\w)) *(?:\{([^{}]*)\}|(\w))", r"\1\2/\3\4", text)
        simpler = re.sub(r"\\sqrt *(?:\{([^{}]*)\}|(\w))", r"sqrt(\1\2)", simpler)
        simpler = re.sub(r"\\(?:text|mathrm|mathbf|textbf|mbox|textnormal) *\{([^{}]*)\}", r"\1", simpler)
        if simpler == text:
            break
        text = simpler
    text = text.replace("\\cdot", "*").replace("\\times", "*").replace("\\infty", "inf").replace("\\cup", "U")
    text = re.sub(r"\\(?:left|right|displaystyle|quad|[,;:! ])", "", text)
    return re.sub(r"[\\{}]", "", text).strip()


def _float(text: str, remove_commas: bool) -> float | None:
    """float() of the text as PRIME calls it; None for what is no number, and for nan."""
    if len(text) > MAX_LENGTH:
        text = text[:MAX_LENGTH]
    try:
        number = float(text.replace("{,}", "" if remove_commas else "{,}").replace(",", "" if remove_commas else ","))
    except ValueError:
        return None
    return None if math.isnan(number) else number


def _same_numbers(gold: str, answer: str, switches: Switches) -> bool | None:
    """The numeric verdict, final if both are numbers; None if one is not."""
    reference, prediction = _float(gold, switches.remove_commas), _float(answer, switches.remove_commas)
    if reference is None or prediction is None:
        return None
    if not switches.rel_tol and not switches.percent_scale:
        one, other = exact.value(gold), exact.value(answer)
        return None if one is None or other is None else one == other
    candidates = (reference / 100, reference, reference * 100) if switches.percent_scale else (reference,)
    return any(math.isclose(candidate, prediction, rel_tol=switches.rel_tol) for candidate in candidates)


def _plain_number(text: str, switches: Switches) -> str:
    """A dollar sign before or a percent sign after a number dropped, and the base of 10_8."""
    if re.match(r"\$\d+(\.\d+)?", text):
        return text[1:]
    if re.fullmatch(r"\d+(\.\d+)?\\?%", text):
        return text.rstrip("\\%")
    if "_" in text and switches.drop_base:
        number = _float(text.partition("_")[0], remove_commas=False)
        return text if number is None or not math.isfinite(number) else str(int(number))
    return text


def _with_pi(text: str, pi: float) -> str:
    value = exact.value(canonical(text.replace("\\pi", f"({pi})"))) if len(text) <= MAX_LENGTH else None
    try:
        return text if value is None else repr(float(value))
    except OverflowError:
        return text


def _equal(gold: str, answer: str, switches: Switches, same_formula: SameFormula) -> bool:
    """PRIME's general comparison, from strings over numbers and brackets to formulas."""
    gold, answer = _plain_number(gold, switches).strip(), _plain_number(answer, switches)[:MAX_LENGTH].strip()
    if gold.lower() == answer.lower() or gold.replace(" ", "") == answer.replace(" ", ""):
        return True
    numeric = _same_numbers(gold, answer, switches)
    if numeric is not None or not answer or not gold:
        return bool(numeric)
    if switches.drop_brackets and _without_brackets(gold, answer):
        return True
    bracketed = answer[0] in "([" and answer[-1] in ")]" and answer[0] == gold[0] and answer[-1] == gold[-1]
    if bracketed and _same_lists(gold[1:-1], answer[1:-1], switches, same_formula):
        return True
    if "," in answer and "," in gold and gold.count(",") == answer.count(","):
        return _same_lists(gold, answer, switches, same_formula)
    return _same_symbolically(gold, answer, same_formula)


def _without_brackets(gold: str, answer: str) -> bool:
    square = answer.startswith("[") and answer.endswith("]") and not gold.startswith("(")
    round_ = answer.startswith("(") and answer.endswith(")") and not gold.startswith("[")
    if square or round_:
        gold, answer = gold.strip("[]()"), answer.strip("[]()")
    dropped = str.maketrans("", "", "{}()")
    return gold.translate(dropped) == answer.translate(dropped)


def _same_lists(gold: str, answer: str, switches: Switches, same_formula: SameFormula) -> bool:
    pairs = list(zip(gold.split(","), answer.split(","), strict=False))
    if gold.count(",") != answer.count(","):
        return False
    return all(_equal(one.strip(), other.strip(), switches, same_formula) for one, other in pairs)


def _same_symbolically(gold: str, answer: str, same_formula: SameFormula) -> bool:
    """Formulas only: equations, inequalities, sets, words and Unicode signs are beyond PRIME's parsers."""
    if not (gold.isascii() and answer.isascii()) or _BEYOND_PRIME.search(gold + answer):
        return False
    if isinstance(read_form(canonical(gold)), Words) or isinstance(read_form(canonical(answer)), Words):
        return False
    one, other = exact.value(canonical(gold)), exact.value(canonical(answer))
    if one is not None and one == other:
        return True
    return same_formula(gold, answer)
