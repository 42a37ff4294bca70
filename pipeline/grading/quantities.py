"""A number with what stands around it: currency and percent sign, degree sign, unit, label. All of them are known, by these tables.

A word that is in none of them stays with the number, which is then another answer: 7 squared is not 7, and neither is at least 7.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from pipeline.grading import chinese


@dataclass(frozen=True)
class Quantity:
    """`28\\text{ percent}` is Quantity("28", percent=True, unit=None); `15\\text{ cm}^2` is Quantity("15", False, "cm^2")."""

    core: str
    percent: bool
    unit: str | None


_ALIASES = {
    "cm": "cm centimeter centimeters centimetre centimetres 厘米",
    "mm": "mm millimeter millimeters millimetre millimetres 毫米",
    "m": "m meter meters metre metres 米",
    "km": "km kilometer kilometers kilometre kilometres 千米 公里",
    "in": "in inch inches",
    "ft": "ft foot feet",
    "yd": "yd yard yards",
    "mi": "mi mile miles",
    "ha": "hectare hectares",
    "acre": "acre acres",
    "g": "g gram grams 克",
    "mg": "mg milligram milligrams",
    "kg": "kg kilogram kilograms 千克 公斤",
    "t": "ton tons tonne tonnes 吨",
    "lb": "lb lbs",
    "oz": "oz ounce ounces",
    "s": "s sec secs second seconds 秒",
    "ms": "ms millisecond milliseconds",
    "min": "min mins minute minutes 分钟",
    "h": "h hr hrs hour hours 小时",
    "day": "day days 天 日",
    "week": "week weeks 周",
    "month": "month months 月",
    "year": "year years yr yrs yearsold 年 岁",
    "l": "l liter liters litre litres 升",
    "ml": "ml milliliter milliliters 毫升",
    "gal": "gallon gallons",
    "dollar": "dollar dollars usd 美元",
    "euro": "euro euros eur 欧元",
    "pound": "gbp",
    "weight or money": "pound pounds",
    "yuan": "yuan rmb cny 元",
    "yen": "yen jpy",
    "yuan or yen": "cnyjpy",
    "rupee": "rupee rupees inr rs rs.",
    "cent": "cent cents penny pennies",
    "am": "am a.m a.m.",
    "pm": "pm p.m p.m.",
    "degree": "degree degrees deg ° 度",
    "°C": "°C ℃ degreecelsius degreescelsius degreesc celsius",
    "°F": "°F ℉ degreefahrenheit degreesfahrenheit degreesf fahrenheit",
    "K": "°K kelvin kelvins",
    "radian": "radian radians rad rads",
    "N": "N newton newtons",
    "J": "J joule joules",
    "kJ": "kJ kilojoule kilojoules",
    "W": "W watt watts",
    "kW": "kW kilowatt kilowatts",
    "V": "V volt volts",
    "A": "A amp amps ampere amperes",
    "ohm": "ohm ohms Ω",
    "Pa": "Pa pascal pascals",
    "Hz": "Hz hertz",
    "mol": "mol mole moles",
    "dB": "dB decibel decibels",
    "bit": "bit bits",
    "byte": "byte bytes",
    "km/h": "kmh kph",
    "mph": "mph",
}
_THINGS = (  # plurals alone: 8 primes are counted, 8 square is not
    "unit way person units ways cats dogs men women people children kids boys girls students teachers players teams members "
    "friends workers guests cars buses trains books pages apples oranges eggs coins balls marbles cards boxes bags bottles "
    "cups stones tiles pieces items objects points lines edges vertices faces sides corners triangles squares rectangles "
    "cubes circles regions numbers integers digits solutions roots zeros zeroes factors divisors primes pairs triples "
    "tuples sets subsets elements terms cases values functions polynomials permutations combinations arrangements outcomes "
    "choices options paths steps moves games rounds matches trips rows columns colors colours possibilities sequences "
    "matrices graphs trees flowers tickets candies cookies toys pencils pens chairs tables rooms seats shirts hats houses"
)
_QUALITIES = "different|distinct|total|possible|positive|ordered|integer|real|such|valid|unique|non-?negative"
_AMBIGUOUS = {"weight or money": ("weight or money", "lb", "pound"), "yuan or yen": ("yuan or yen", "yuan", "yen")}
_FOLDED = {alias.casefold(): unit for unit, aliases in _ALIASES.items() for alias in aliases.split()} | dict.fromkeys(
    _THINGS.split(), ""
)


def _any(words: Iterable[str]) -> str:
    return "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))


_POWER = r"(?:\^?\{?-?[1-9]\}?)?"
_MEASURE = rf"(?:square|sq\.?|cubic|cu\.?|平方|立方)?(?:{_any(_FOLDED)})\.?{_POWER}"
_MEASURES = rf"{_MEASURE}(?:(?:/|per|每){_MEASURE})*"
_AFTERWORD = (
    r",?(?:isthe(?:final|correct)?answer|as(?:required|desired|claimed|needed|expected)|intotal|altogether|exactly|only|inclusive"
    r"|approximately|approx\.?|andnothingelse|left|remain(?:ing)?)\.?"
)
_AFTER = re.compile(
    rf"(?P<percent>%|percents?|percentage)?(?:{_QUALITIES})*+\(?(?P<unit>{_MEASURES}|per{_MEASURE})?\)?\(?{chinese.AFTER}\)?(?:{_AFTERWORD})?"
)
_SUBJECT = (
    "answer|result|total|sum|product|value|area|volume|length|width|height|perimeter|radius|distance|speed|time|age|cost|price"
    "|probability|ratio|number|minimum|maximum"
)
# Repetitions are possessive (*+, ++) where a text could be cut in several ways: time stays linear in hostile ones.
_BEFORE = re.compile(
    rf"(?:(?:the|my|our)?(?:final|correct|required|total)?(?:{_SUBJECT})(?:isequalto|is|are|:|=|equals?)++"
    r"|is|are|thereare|itis|about|approximately|approx\.?|roughly|around|exactly|only|just|simply|equals?|so|thus|hence|therefore"
    rf"|[:,])*+(?:{chinese.BEFORE})*+(?P<currency>usd|eur|gbp|cnyjpy|cny|rmb|inr|jpy|rs\.?)?"
)
_NAMED = re.compile(rf"(?:/|per|每)?(square|sq\.?|平方|cubic|cu\.?|立方)?({_any(_FOLDED)})\.?\^?\{{?(-?[1-9])?\}}?")
_TEXT = r"\\text ?\{[^{}]*\}"
_HEAD = re.compile(rf"(?:{_TEXT}:?|[A-Za-z]{{2,}}+[.:]?|[\u4e00-\u9fff:]++)++ ?(?=[-+\d.\\(π|⌊⌈])")
_TAIL = re.compile(
    rf"(?:/? ?{_TEXT}(?: ?\^ ?\{{? ?-?\d ?\}}?)?|%|[°℃℉][CFK]?"
    r"|(?<=[\d)}\]π!%°])\*?\(?[A-Za-z][A-Za-z.]++(?:/[A-Za-z]++)?(?:\^\{?\d\}?)?\)?|\(?[\u4e00-\u9fff]++(?:/[\u4e00-\u9fff]++)?\)?)++$"
)
_UNTEXTED = re.compile(r"\\text ?\{|[} *]")


MAX_TAILS = 8  # words behind a number that are tried, from the longest


@lru_cache(maxsize=8192)
def read_quantity(text: str) -> Quantity:
    """The parts of a number in compact notation; text that is not a number with known words around it comes back with them."""
    core, currency, percent, unit = text, None, False, None
    head = _HEAD.match(core)
    known = _BEFORE.fullmatch(_plain(head.group())) if head else None
    if head and known:
        core, currency = core[head.end() :], known["currency"]
    tail = _TAIL.search(core, 1)
    for _ in range(MAX_TAILS):
        if not tail or (known := _AFTER.fullmatch(_plain(tail.group()))):
            break
        tail = _TAIL.search(core, tail.start() + 1)
    if tail and known and core[tail.start() - 1] not in "+-*^_=(,\\" and not (_is_trigonometric(core) and "°" in tail.group()):
        core, percent, unit = core[: tail.start()].rstrip(" /"), bool(known["percent"]), known["unit"]
    names = _canonical(unit) if unit else _FOLDED[currency] if currency else None
    return Quantity(core, percent, names or None)


def units_conflict(gold: str | None, answer: str | None) -> bool:
    """Whether both units are given and mean different things; `5 pounds` may be a weight or money, and ¥ two currencies."""
    if not gold or not answer:
        return False
    return not set(_AMBIGUOUS.get(gold, (gold,))) & set(_AMBIGUOUS.get(answer, (answer,)))


def _plain(words: str) -> str:
    return re.sub(r"\^\{(-?\d)\}", r"^\1", _UNTEXTED.sub("", re.sub(r"\^ ?\{ ?(-?\d) ?\}", r"^\1", words))).casefold()


def _canonical(unit: str) -> str:
    """One spelling of known units: "cm^2" for `squarecentimeters`, "m/s" for `metrespersecond`, "" for things counted."""
    names, at = [], 0
    while match := _NAMED.match(unit, at):
        kind, name, exponent = match.groups()
        power = exponent or {"s": "2", "平": "2", "c": "3", "立": "3"}.get((kind or "")[:1], "")
        names.append(f"{_FOLDED[name]}^{power}" if power and _FOLDED[name] else _FOLDED[name])
        at = match.end()
    return "/".join(filter(None, names))


def _is_trigonometric(text: str) -> bool:
    return any(name in text for name in ("sin", "cos", "tan", "cot", "sec", "csc"))
