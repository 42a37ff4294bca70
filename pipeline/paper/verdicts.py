"""The four verdicts, how they read and look, and how several add up to one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

Verdict = Literal["reproduced", "not-reproduced", "inconclusive", "not-testable"]

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
SIGNS: dict[Verdict, str] = {"reproduced": "✓", "not-reproduced": "✗", "inconclusive": "?", "not-testable": "–"}
WORDS: dict[Verdict, str] = {
    "reproduced": "reproduced",
    "not-reproduced": "not reproduced",
    "inconclusive": "inconclusive",
    "not-testable": "not testable",
}


def weakest(verdicts: Iterable[Verdict]) -> Verdict:
    """not-reproduced if any is, else inconclusive if any is, else reproduced if any is; not-testable only if all are."""
    present = set(verdicts)
    order: tuple[Verdict, ...] = ("not-reproduced", "inconclusive", "reproduced")
    for verdict in order:
        if verdict in present:
            return verdict
    return "not-testable"


def count(verdicts: Iterable[Verdict]) -> dict[Verdict, int]:
    """How often each verdict occurs, in the order of VERDICTS."""
    present = list(verdicts)
    return {verdict: present.count(verdict) for verdict in VERDICTS}
