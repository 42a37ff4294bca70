"""What an undecided comparison could have shown: its power at the paper's own difference, and the smallest difference it resolves.

"Inconclusive" says little without it: a comparison that could hardly have found the paper's difference is no evidence against it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from scipy.special import ndtri

from pipeline.evaluation.power import power, smallest_detectable
from pipeline.paper.evidence import Evidence

WANTED = 0.8
RELIABLE = 0.9  # a claim that runs collapse, or do not, is taken to hold for each run with this chance


@dataclass(frozen=True)
class Detectable:
    """power: chance of a decision for the claim if the truth were the paper's value (None where it shows none on the claimed side;
    for collapses: if each run did as claimed with chance 0.9).  smallest: distance from the threshold that is found with chance
    0.8, in points or as a factor; None for collapses.
    """

    power: float | None
    smallest: float | None
    unit: str


def resolution(item: Evidence, rule: Mapping[str, Any]) -> Detectable | None:
    """The resolution of an undecided comparison; None for any other."""
    if item.finding != "undecided":
        return None
    if item.interval is None:
        return Detectable(RELIABLE**item.runs, None, "runs") if item.runs else None
    interval, threshold = item.interval, float(rule["threshold"])
    z = float(ndtri(0.5 + interval.level / 2))
    if rule["statistic"] == "mismatch_ratio":
        error = math.log(interval.high / interval.low) / (2 * z)
        distance = math.log(item.paper / threshold) if item.paper else None
        unit, scale = "factor", math.exp
    else:
        error = (interval.high - interval.low) / (2 * z)
        distance = item.paper - threshold if item.paper is not None else None
        unit, scale = ("factor", math.exp) if rule["statistic"] == "sawtooth" else ("points", lambda share: 100 * share)
    if not error > 0:
        return None
    claimed = distance is not None and (distance > 0) == (rule["direction"] == "above") and distance != 0
    found = power(distance, error) if claimed and distance is not None else None
    return Detectable(found, scale(smallest_detectable(error, interval.level, WANTED)), unit)


def summary(evidence: Sequence[Evidence], rule: Mapping[str, Any]) -> tuple[float | None, str]:
    """The median power of a claim's undecided comparisons, and one sentence that gives it with the smallest difference."""
    found = [known for item in evidence if (known := resolution(item, rule)) is not None]
    if not found:
        return None, ""
    powers = [item.power for item in found if item.power is not None]
    smallest = [item.smallest for item in found if item.smallest is not None]
    middle = median(powers) if powers else None
    where = f", median of {len(found)} undecided" if len(found) > 1 else ""
    if found[0].unit == "runs":
        return middle, f"power {middle:.2f} if each run did as claimed with chance {RELIABLE:g}{where}"
    size = f"{median(smallest):.1f} points" if found[0].unit == "points" else f"a factor of {median(smallest):.2f}"
    resolved = f"found with chance {WANTED:g}: {size}{where}"
    return middle, resolved if middle is None else f"power {middle:.2f} at the paper's difference; {resolved}"
