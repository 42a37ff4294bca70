"""A number with what stands around it: percent sign, degree sign, unit, multiplier in words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Quantity:
    """`28\\text{ percent}` is Quantity("28", percent=True, unit=None); `15\\text{ cm}^2` is Quantity("15", False, "cm")."""

    core: str
    percent: bool
    unit: str | None


_ALIASES = {
    "cm": "cm centimeter centimeters centimetre centimetres",
    "mm": "mm millimeter millimeters millimetre millimetres",
    "m": "m meter meters metre metres",
    "km": "km kilometer kilometers kilometre kilometres",
    "in": "in inch inches",
    "ft": "ft foot feet",
    "yd": "yd yard yards",
    "mi": "mi mile miles",
    "g": "g gram grams",
    "kg": "kg kilogram kilograms",
    "lb": "lb lbs pound pounds",
    "s": "s sec secs second seconds",
    "min": "min mins minute minutes",
    "h": "h hr hrs hour hours",
    "day": "day days",
    "week": "week weeks",
    "month": "month months",
    "year": "year years yr yrs",
    "l": "l liter liters litre litres",
    "ml": "ml milliliter milliliters",
    "dollar": "dollar dollars usd",
    "cent": "cent cents",
    "degree": "degree degrees deg",
    "radian": "radian radians rad",
    "km/h": "km/h kmh kph",
    "m/s": "m/s",
    "mph": "mph",
    "": "unit units square cubic men way ways cats dogs people",
}
_CANONICAL = {alias: unit for unit, aliases in _ALIASES.items() for alias in aliases.split()}
_MULTIPLIERS = {"hundred": "10^2", "thousand": "10^3", "million": "10^6", "billion": "10^9", "trillion": "10^12"}
_PERCENT = re.compile(r"per ?cents?|percentage|%")
_TEXT_UNIT = re.compile(r"(?P<rest>.*?)/?(?:\\ )?\\text ?\{ ?(?P<unit>[^{}]*?) ?\} ?(?:\^ ?(?:\{ ?-?\d+ ?\}|-?\d))?", re.DOTALL)
_PLAIN_UNIT = re.compile(
    r"(?P<rest>.*[\d)}π!%°])(?:\*?(?P<unit>[A-Za-z]{2,}(?:/[A-Za-z]+)?(?: ?\^ ?\{?\d\}?)?|[\u4e00-\u9fff]+))\.?",
    re.DOTALL,
)
_DEGREE = re.compile(r"(?P<rest>.+?)°(?: ?[CFK])?")
_PREFIX = re.compile(r"\\text ?\{([^{}]*)\}:?(?=[-+.\d(\\])")
_THREE_LETTERS = re.compile(r"[a-zA-Z:]{3}")
_INVISIBLE = re.compile(r"\\text ?\{[^{}]*\}")
_POWER = re.compile(r" ?\^ ?\{?\d\}?$")


@lru_cache(maxsize=8192)
def read_quantity(text: str) -> Quantity:
    """The parts of a number in compact notation; text that is not a number with a unit comes back whole."""
    percent, unit, core = False, None, text
    prefix = _PREFIX.match(text)
    if prefix and _THREE_LETTERS.search(prefix.group(1)):
        core = text[prefix.end() :]
    for _ in range(4):
        if core.endswith("%") and len(core) > 1:
            core, percent = core[:-1], True
            continue
        degree = _DEGREE.fullmatch(core)
        if degree and not _is_trigonometric(core):
            core, unit = degree["rest"], unit or "degree"
            continue
        stripped = _strip_unit(core)
        if stripped is None:
            break
        core, word = stripped
        if _PERCENT.fullmatch(word):
            percent = True
        elif word.split(" ")[0] in _MULTIPLIERS:
            core = f"({core})*{_MULTIPLIERS[word.split(' ')[0]]}"
            unit = unit or word.partition(" ")[2] or None
        else:
            unit = f"{word}/{unit}" if unit and text[len(core) :].count("/") == 1 else word
    return Quantity(core, percent, unit)


def units_conflict(gold: str | None, answer: str | None) -> bool:
    """Whether both units are known and different; a missing or an unknown unit conflicts with nothing."""
    one, other = (_CANONICAL.get(unit.casefold(), "") if unit else "" for unit in (gold, answer))
    return bool(one and other) and one != other


def _strip_unit(text: str) -> tuple[str, str] | None:
    """The text without its last unit, and the unit; None if it ends in none."""
    match = _TEXT_UNIT.fullmatch(text) if text.endswith(("}", *"0123456789")) and "\\text" in text else None
    if match and match["rest"] and match["rest"][-1] not in "+-*^_=(," and _INVISIBLE.sub("", match["rest"]).strip("/ "):
        return match["rest"].rstrip("/ "), match["unit"].strip(" .").casefold()
    match = _PLAIN_UNIT.fullmatch(text)
    if not match:
        return None
    word = _POWER.sub("", match["unit"]).casefold()
    if (
        word in _CANONICAL
        or word in _MULTIPLIERS
        or _PERCENT.fullmatch(word)
        or word[0] > "\u4e00"
        or (len(word) >= 4 and not _is_function(word))
    ):
        return match["rest"], word
    return None


def _is_trigonometric(text: str) -> bool:
    return any(name in text for name in ("sin", "cos", "tan", "cot", "sec", "csc"))


def _is_function(word: str) -> bool:
    return word.startswith(
        ("sqrt", "sin", "cos", "tan", "cot", "sec", "csc", "log", "ln", "exp", "arc", "theta", "alpha", "beta", "pi")
    )
