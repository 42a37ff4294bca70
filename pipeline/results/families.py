"""What the tables and figures ask of a method: its family, and which of SAT, TIS and R3 it has. The only module here that looks
into METHODS for it.
"""

from __future__ import annotations

from dataclasses import replace

from pipeline.objective.methods import METHODS, Method, method_of
from pipeline.objective.part import Part
from pipeline.objective.parts.sat import Sat
from pipeline.objective.parts.tis import Tis

UNCORRECTED = "uncorrected"
ADDITIONS = ("SAT", "R3", "TIS")


def has(method: str, addition: str) -> bool:
    """Whether a method has one of ADDITIONS."""
    entry = method_of(method)
    return _without(entry, addition) != entry


def uncorrected(method: str) -> bool:
    """Whether nothing corrects the method for staleness."""
    return method_of(method).uncorrected


def family(method: str) -> str:
    """UNCORRECTED, or the first method of METHODS with the same granularity and trust region: "sat-gspo" for "sat-gspo-r3"."""
    entry = method_of(method)
    return UNCORRECTED if entry.uncorrected else next(name for name, other in METHODS.items() if _region(other) == _region(entry))


def correction(method: str) -> str:
    """How a method is corrected beyond its ratio: uncorrected, TIS, R3 or plain."""
    if uncorrected(method):
        return UNCORRECTED
    return next((addition for addition in ("TIS", "R3") if has(method, addition)), "plain")


def added(a: str, b: str) -> str:
    """What method `a` has over `b` if that is one of ADDITIONS and nothing else; else ""."""
    more, less = method_of(a), method_of(b)
    return next((what for what in ADDITIONS if has(a, what) and replace(_without(more, what), label=less.label) == less), "")


def _region(method: Method) -> tuple[str, tuple[type[Part], ...]]:
    """What the ratio is of, and what bounds it."""
    return method.granularity, method.without(Tis).parts


def _without(method: Method, addition: str) -> Method:
    """The method without SAT, R3 or TIS; itself where it has none."""
    if addition == "SAT":
        return method.without(Sat)
    if addition == "R3":
        return replace(method, routing_replay=False)
    if addition == "TIS" and method.has(Tis):
        return replace(method.without(Tis), denominator="rollout")
    return method
