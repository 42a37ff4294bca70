"""What one changed setting does: every variant beside its method at the same lag and seeds, in accuracy and in mismatch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pipeline.evaluation.estimators import log_ratio_of_means
from pipeline.objective.methods import method_of
from pipeline.results.collect import late_mismatch
from pipeline.results.contrasts import Contrast, p_text
from pipeline.results.markdown import MISSING, table
from pipeline.results.runs import Results

HEAD = ("Method with the setting", "Lag", "Seeds", "Accuracy", "Points", "p, Holm", "Mismatch", "Ratio", "Collapsed")
NOTE = (
    "Without → with the setting. Accuracy in %, of the last checkpoint on fresh samples; points: their difference, paired by "
    "problem, 95 % interval over seeds and problems; p, Holm: adjusted over all differences between cells. "
    "Mismatch: mean over the last quarter of the steps; ratio: with over without, 95 % interval over seeds, or over blocks of 8 "
    "batches where a side has one. Seeds: read of either; with one, no interval counts the spread between runs. Collapsed: runs."
)


@dataclass(frozen=True)
class SettingEffect:
    """A variant (method "name+setting") and its method, each pair (without, with).

    points: the accuracies' difference and its bounds, in shares.  mismatch: None where no step has a positive one.
    mismatch_ratio: with over without, and its bounds.  collapsed: runs.
    """

    method: str
    lag: str
    seeds: tuple[int, int]
    accuracy: tuple[float, float]
    points: tuple[float, float, float]
    p_holm: float
    mismatch: tuple[float | None, float | None]
    mismatch_ratio: tuple[float, float, float] | None
    collapsed: tuple[int, int]


def setting_effects(results: Results, contrasts: Iterable[Contrast]) -> list[SettingEffect]:
    """The effect behind every contrast of a setting, in their order."""
    return [_effect(results, contrast) for contrast in contrasts if contrast.what == "setting"]


def setting_rows(effects: Iterable[SettingEffect]) -> list[list[str]]:
    """A row of text for each effect, under HEAD."""
    return [
        [
            method_of(effect.method).label,
            effect.lag,
            " → ".join(map(str, effect.seeds)),
            " → ".join(f"{100 * value:.1f}" for value in effect.accuracy),
            "{:+.1f} [{:+.1f}, {:+.1f}]".format(*(100 * value for value in effect.points)),
            p_text(effect.p_holm),
            " → ".join(MISSING if value is None else f"{value:.4f}" for value in effect.mismatch),
            "×{:.2f} [{:.2f}, {:.2f}]".format(*effect.mismatch_ratio) if effect.mismatch_ratio else MISSING,
            " → ".join(map(str, effect.collapsed)),
        ]
        for effect in effects
    ]


def setting_lines(effects: Sequence[SettingEffect]) -> list[str]:
    """The effects as Markdown; nothing where no variant was run."""
    return ["## One setting changed", "", NOTE, "", *table(HEAD, setting_rows(effects)), ""] if effects else []


def as_json(effects: Iterable[SettingEffect]) -> list[dict[str, Any]]:
    return [asdict(effect) for effect in effects]


def from_json(content: Iterable[Mapping[str, Any]]) -> list[SettingEffect]:
    return [SettingEffect(**item) for item in content]


def _effect(results: Results, contrast: Contrast) -> SettingEffect:
    (method, lag), (base, _) = contrast.a.split("@"), contrast.b.split("@")
    sides = [results.of(name, lag) for name in (base, method)]
    accuracies = [results.scored(name, lag, "last") for name in (base, method)]
    without, changed = series = [late_mismatch(side) for side in sides]
    ratio = log_ratio_of_means(changed, without).exponential() if without and changed else None
    return SettingEffect(
        method=method,
        lag=lag,
        seeds=_pair(len(side) for side in sides),
        accuracy=_pair(float(outcomes.mean()) for outcomes in accuracies if outcomes is not None),
        points=(contrast.estimate, contrast.low, contrast.high),
        p_holm=contrast.p_holm,
        mismatch=_pair(_mean_of_means(side) for side in series),
        mismatch_ratio=None if ratio is None else (ratio.estimate, ratio.low, ratio.high),
        collapsed=_pair(sum(results.collapses[run.cell].collapsed for run in side) for side in sides),
    )


def _mean_of_means(side: Sequence[np.ndarray]) -> float | None:
    return float(np.mean([values.mean() for values in side])) if side else None


def _pair(values: Iterable[Any]) -> tuple[Any, Any]:
    without, changed = values
    return without, changed
