"""Amounts in words as formulas: `three dozen` is 3*12, `minus seven` -7, `3 and a half` 7/2, `0.3 repeating` a repeating decimal.

Only the words of these tables are read, and only where they can mean one thing; all others stay as they are. An answer with a word
that nobody reads is another answer than the number beside it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from pipeline.grading import chinese

_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_CARDINALS = {word: number for number, word in enumerate(_UNITS.split())}
_CARDINALS |= {word: 10 * number for number, word in enumerate(_TENS.split(), 2)}
_SCALES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_MULTIPLES = _SCALES | {"dozen": 12, "score": 20, "gross": 144, "myriad": 10**4, "lakh": 10**5, "crore": 10**7}
_PARTS = {
    "half": 2,
    "halve": 2,
    "third": 3,
    "quarter": 4,
    "fourth": 4,
    "fifth": 5,
    "sixth": 6,
    "seventh": 7,
    "eighth": 8,
    "ninth": 9,
}
_PARTS |= {"tenth": 10, "eleventh": 11, "twelfth": 12, "twentieth": 20, "hundredth": 100, "thousandth": 1000, "millionth": 10**6}
_ENDINGS = {"squared": "^2", "cubed": "^3", "factorial": "!"}
_OTHERS = ("negative", "minus", "over", "repeating", "recurring", "root", "mille?", "permille")
_TEXT = re.compile(r"\\(?:text(?:bf|it|rm|sf|normal)?|mbox|mathrm|mathbf|operatorname)\s*\{([^{}]*)\}")
_ROOT_SIGN = re.compile(r"([√∛])\s*(\d+(?:\.\d+)?)")
_VULGAR = {
    **{"½": "12", "⅓": "13", "⅔": "23", "¼": "14", "¾": "34", "⅕": "15", "⅖": "25", "⅗": "35", "⅘": "45", "⅙": "16", "⅚": "56"},
    **{"⅐": "17", "⅛": "18", "⅜": "38", "⅝": "58", "⅞": "78", "⅑": "19", "⅒": "1{10}"},
}
_RUNNING = re.compile(r"(?<![\d.])(\d*)\.(\d*?)(?:(\d)\3{2,}|(\d{2,12}?)\4+)\s*(?:\.{3,}|…|\\[lc]?dots)(?![\d,])")
_PERIOD = re.compile(r"(?<![\d.])(\d*\.\d*)\((\d{1,40})\)(?!\d)")


def _any(words: object) -> str:
    return "|".join(sorted(words, key=len, reverse=True))  # type: ignore[call-overload]


_CARDINAL, _SCALE, _PART, _MULTIPLE = _any(_CARDINALS), _any(_SCALES), f"({_any(_PARTS)})s?\\b", f"({_any(_MULTIPLES)})s?\\b"
_AND = r"(?:(?<=hundred)|(?<=thousand)|(?<=million))\s+and\s+"
_ALONE = r"(?<![\w.)}^+*/-])(?<![\w.)}^+*/-]\s)"  # before it stands no part of a longer formula
_AMOUNT = r"-?(?:\d[\d,]*(?:\.\d+)?(?:/\d+)?|\\[dt]?frac\s*\{\d+\}\s*\{\d+\})"
_WORD = re.compile(rf"\b(?:{_any((*_CARDINALS, *_MULTIPLES, *_PARTS, *_ENDINGS, *_OTHERS))})s?\b", re.IGNORECASE)


def _cardinal(match: re.Match[str]) -> str:
    """The number of a run of number words; the run itself where it is none in English: `one two`, `twenty twelve`."""
    total = group = 0
    last = 10**15
    for word in re.findall(r"[a-z]+", match.group().lower().replace(" and ", " ")):
        value, scale = _CARDINALS.get(word), _SCALES.get(word, 0)
        if value is not None:
            room = group % 100 == 0 or (value < 10 and group % 100 >= 20 and group % 10 == 0)
            if not room or (value == 0 and match.group().lower() != word):
                return match.group()
            group += value
        elif word == "hundred" and 0 < group < 100:
            group *= 100
        elif word != "hundred" and scale < last and group:
            total, group, last = total + group * scale, 0, scale
        else:
            return match.group()
    return str(total + group)


def _mixed(match: re.Match[str]) -> str:
    part = _PARTS[match[3].lower()]
    return f"{int(match[1]) * part + int(match[2] or 1)}/{part}"


_RULES: tuple[tuple[str, Callable[[re.Match[str]], str]], ...] = (
    (rf"(?<![\w.])(?<!\w-)(?:{_CARDINAL})(?:(?:[\s-]+|{_AND})(?:{_CARDINAL}|{_SCALE}))*(?!\w|\.\w)", _cardinal),
    (r"(?<![\d.])(\d*\.\d*?)(\d)\2*\s*(?:repeating|recurring)\b", lambda m: f"{m[1]}\\overline{{{m[2]}}}"),
    (r"(?<=[\d)}])\s*(?:per\s?mille?|‰)(?!\w)", lambda m: "/1000"),
    (rf"(?<![\w.])(\d+)\s+and\s+(?:(\d+)[\s-]+|an?\s+){_PART}", _mixed),
    (rf"(?<![\w./])(-?\d+)[\s-]+{_PART}", lambda m: f"{m[1]}/{_PARTS[m[2].lower()]}"),
    (rf"^\s*(?:an?\s+{_PART}|half)\s*$", lambda m: f"1/{_PARTS[(m[1] or 'half').lower()]}"),
    (rf"{_ALONE}({_AMOUNT})\s*{_MULTIPLE}", lambda m: f"{m[1]}*{_MULTIPLES[m[2].lower()]}"),
    (rf"^\s*an?\s+{_MULTIPLE}", lambda m: str(_MULTIPLES[m[1].lower()])),
    (r"^\s*(-?\d+)\s+over\s+(\d+)\s*$", lambda m: f"{m[1]}/{m[2]}"),
    (rf"^\s*(\d+|[a-z])\s+({_any(_ENDINGS)})\s*$", lambda m: m[1] + _ENDINGS[m[2].lower()]),
    (r"^\s*(?:the\s+)?(square|cube)\s+root\s+of\s+(\d+)\s*$", lambda m: f"\\sqrt[{2 + (m[1] in 'cube')}]{{{m[2]}}}"),
    (rf"{_ALONE}(?:negative|minus)\s+(?=[\d.\\(])", lambda m: "-"),
)
_COMPILED = tuple((re.compile(pattern, re.IGNORECASE), formula) for pattern, formula in _RULES)


def in_notation(text: str) -> str:
    """The text with amounts in words, vulgar fractions and running decimals as formulas; everything else as it was."""
    if not text.isascii():
        for sign, digits in _VULGAR.items():
            text = text.replace(sign, f"\\frac{digits}")
        text = _ROOT_SIGN.sub(lambda match: ("\\sqrt" if match[1] == "√" else "\\sqrt[3]") + f"{{{match[2]}}}", text)
        text = chinese.in_notation(text)
    if "." in text:
        text = _PERIOD.sub(r"\1\\overline{\2}", _RUNNING.sub(_with_period, text))
    if not _WORD.search(text) and "‰" not in text:
        return text
    opened = _TEXT.sub(lambda match: f" {match[1]} " if _WORD.search(match[1]) else match.group(), text)
    plain = opened
    for pattern, formula in _COMPILED:
        plain = pattern.sub(formula, plain)
    return text if plain == opened else plain.strip()


def _with_period(match: re.Match[str]) -> str:
    """0.1666... with its period over-lined; a run of nines is left alone, being what a rounding error looks like."""
    whole, head, digit, period = match.groups()
    return match.group() if set(digit or period) == {"9"} else f"{whole}.{head}\\overline{{{digit or period}}}"
