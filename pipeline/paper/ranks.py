"""How sure a rank correlation of a few methods is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from scipy.special import ndtri


def spearman_interval(correlation: float, count: int, level: float = 0.95) -> tuple[float, float] | None:
    """Interval of Spearman's correlation of `count` pairs, the pairs taken as a sample; None below 5, where it says nothing.

    Normal on Fisher's scale with variance (1 + r^2/2) / (n - 3) (Bonett and Wright 2000, Psychometrika 65:23); [r, r] at |r| = 1.
    """
    if count < 5 or math.isnan(correlation):
        return None
    if abs(correlation) >= 1.0:
        return correlation, correlation
    half = float(ndtri((1 + level) / 2)) * math.sqrt((1 + correlation**2 / 2) / (count - 3))
    middle = math.atanh(correlation)
    return math.tanh(middle - half), math.tanh(middle + half)


def rank_texts(ranks: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Spearman's correlations, each with the number of methods and the interval that these, as a sample, leave."""
    texts = []
    for name, item in ranks.items():
        value = item["spearman"]
        if value is None or math.isnan(value):
            texts.append(f"{name} –, n = {item['n']}")
            continue
        interval = spearman_interval(value, item["n"])
        bounds = f" [{interval[0]:+.2f}, {interval[1]:+.2f}]" if interval else ""
        texts.append(f"{name} {value:+.2f}{bounds}, n = {item['n']}")
    return texts
