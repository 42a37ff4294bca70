"""A number with what stands around it: percent sign, degree sign, unit, multiplier in words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Quantity:
    """`28\\text{ percent}` is Quantity("28", percent=True, unit=None); `15\\text{ cm}^2` is Quantity("15", False, "cm^2")."""

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
    "euro": "euro euros eur",
    "yuan": "yuan rmb cny",
    "rupee": "rupee rupees inr",
    "cent": "cent cents",
    "am": "am a.m",
    "pm": "pm p.m",
    "degree": "degree degrees deg",
    "radian": "radian radians rad",
    "km/h": "km/h kmh kph",
    "m/s": "m/s",
    "mph": "mph",
    "": "unit units square cubic men way ways cats dogs people",
}
_CANONICAL = {alias: unit for unit, aliases in _ALIASES.items() for alias in aliases.split()}
_MULTIPLIERS = {"hundred": "10^2", "thousand": "10^3", "million": "10^6", "billion": "10^9", "trillion": "10^12"}
_MULTIPLIER = re.compile("|".join(_MULTIPLIERS))
_PERCENT = re.compile(r"per ?cents?|percentage|%")
_TEXT_UNIT = re.compile(
    r"(?P<rest>.*?)/?(?:\\ )?\\text ?\{ ?(?P<unit>[^{}]*?) ?\} ?(?P<power>\^ ?(?:\{ ?-?\d+ ?\}|-?\d))?", re.DOTALL
)
_PLAIN_UNIT = re.compile(
    r"(?P<rest>.*[\d)}π!%°])(?:\*?(?P<unit>[ap]\.m|[A-Za-z]{2,}(?:/[A-Za-z]+)?(?: ?\^ ?\{?\d\}?)?|[\u4e00-\u9fff]+))\.?",
    re.DOTALL,
)
_DEGREE = re.compile(r"(?P<rest>.+?)°(?: ?[CFK])?")
_PREFIX = re.compile(r"\\text ?\{([^{}]*)\}:?(?=[-+.\d(\\])")
_CHINESE_PREFIX = re.compile(r"(?![^\d]*[不非没])[\u4e00-\u9fff]+:?(?=\d)")
_CURRENCY = re.compile(r"(?:\\text ?\{)?(?:USD?|EUR|GBP|CNY|RMB|INR|Rs\.?)\}?(?=\d)")
_ABOUT = re.compile(r"(?:about|approximately|approx\.?|roughly|exactly|only) ?(?=[-\d.\\(])")
_HEDGE = re.compile(
    r"(?:is|are)? ?not(?!es?\b|ation|ic)|never|except|(?:.*[^a-z])?(?:more|less|greater|fewer|other) ?than"
    r"|\(?(?:or|,) ?(?:perhaps|maybe|possibly)?(?:more|less|fewer|greater|higher|lower|[-+]?\d)"
)
_THREE_LETTERS = re.compile(r"[a-zA-Z:]{3}")
_INVISIBLE = re.compile(r"\\text ?\{[^{}]*\}")
_POWER = re.compile(r" ?\^ ?\{? ?(-?\d+) ?\}?$")
_POWER_IN_WORDS = re.compile(r"(square|sq\.?|cubic|cu\.?) ?(?=[a-z])")


@lru_cache(maxsize=8192)
def read_quantity(text: str) -> Quantity:
    """The parts of a number in compact notation; text that is not a number with a unit comes back whole."""
    percent, unit, core = False, None, text
    prefix = _PREFIX.match(text)
    if prefix and _THREE_LETTERS.search(prefix.group(1)) and not _HEDGE.match(prefix.group(1).casefold()):
        core = text[prefix.end() :]
    core = _without_start(_CHINESE_PREFIX, core) if core[:1] >= "\u4e00" else core
    core = _without_start(_ABOUT, core)
    core = _without_start(_CURRENCY, core) if core[:1] in ("\\", "U", "E", "G", "C", "R", "I") else core
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
        elif multiplier := _MULTIPLIER.match(word):
            core = f"({core})*{_MULTIPLIERS[multiplier.group()]}"
            unit = unit or word[multiplier.end() :].strip() or None
        else:
            unit = f"{word}/{unit}" if unit and text[len(core) :].count("/") == 1 else word
    return Quantity(core, percent, unit)


def units_conflict(gold: str | None, answer: str | None) -> bool:
    """Whether both units are known and different; a missing or an unknown unit conflicts with nothing."""
    one, other = (_known_unit(unit.casefold()) if unit else None for unit in (gold, answer))
    return one is not None and other is not None and one != other


def _known_unit(unit: str) -> tuple[str, str] | None:
    """A known unit and its power: ("cm", "2") for `cm^2` and `squarecentimeters`."""
    power = _POWER.search(unit)
    words = _POWER_IN_WORDS.match(unit)
    base = unit[: power.start()] if power else unit[words.end() :] if words else unit
    name = _CANONICAL.get(base, "")
    return (name, power.group(1) if power else ("2" if words.group(1)[0] == "s" else "3") if words else "1") if name else None


def _without_start(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.match(text)
    return text[match.end() :] if match else text


def _strip_unit(text: str) -> tuple[str, str] | None:
    """The text without its last unit, and the unit; None if it ends in none."""
    match = _TEXT_UNIT.fullmatch(text) if text.endswith(("}", *"0123456789")) and "\\text" in text else None
    if (
        match
        and match["rest"]
        and match["rest"][-1] not in "+-*^_=(,"
        and not _HEDGE.match(match["unit"].casefold())
        and _INVISIBLE.sub("", match["rest"]).strip("/ ")
    ):
        return match["rest"].rstrip("/ "), match["unit"].strip(" .").casefold() + (match["power"] or "")
    match = _PLAIN_UNIT.fullmatch(text)
    if not match:
        return None
    unit = match["unit"].casefold()
    word = _POWER.sub("", unit)
    if (
        word in _CANONICAL
        or word in _MULTIPLIERS
        or _PERCENT.fullmatch(word)
        or word[0] > "\u4e00"
        or (len(word) >= 4 and not _is_function(word))
    ):
        return match["rest"], unit
    return None


def _is_trigonometric(text: str) -> bool:
    return any(name in text for name in ("sin", "cos", "tan", "cot", "sec", "csc"))


def _is_function(word: str) -> bool:
    return word.startswith(
        ("sqrt", "sin", "cos", "tan", "cot", "sec", "csc", "log", "ln", "exp", "arc", "theta", "alpha", "beta", "pi")
    )
