"""The curves beside the paper's, as tables of text for diff.md and the report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipeline.objective.methods import method_of
from pipeline.paper.curves import NOTE, CurveComparison, Shape
from pipeline.results.markdown import MISSING, table

HEAD = (
    *("Curve", "Lag", "Tail mean: paper", "ours", "Settles at: paper", "ours", "Period: paper", "ours", "Peak at: paper", "ours"),
    *("Correlation", "Steps", "Notes"),
)


def curve_rows(items: Iterable[CurveComparison]) -> list[list[str]]:
    """A row of text for each published curve, under HEAD."""
    rows = []
    for item in items:
        name = f"{method_of(item.method).label}, {'score' if item.metric == 'aime24' else 'mismatch'}"
        sides = [_shape(side, item.metric) for side in (item.paper, item.ours)]
        pairs = [text for pair in zip(*sides, strict=True) for text in pair]
        correlation = MISSING if item.correlation is None else f"{item.correlation:+.2f}"
        rows.append([name, item.lag, *pairs, correlation, str(item.common_steps), "; ".join(item.notes)])
    return rows


def curve_lines(items: Sequence[CurveComparison]) -> list[str]:
    """The curves as Markdown."""
    return ["## Curves beside the published ones", "", NOTE, "", *table(HEAD, curve_rows(items)), ""]


def from_json(content: Iterable[Mapping[str, Any]]) -> list[CurveComparison]:
    """The curves as diff.json holds them."""
    return [
        CurveComparison(**{**item, **{side: Shape(**item[side]) if item[side] else None for side in ("paper", "ours")}})
        for item in content
    ]


def _shape(shape: Shape | None, metric: str) -> list[str]:
    if shape is None:
        return [MISSING] * 4
    level = f"{shape.tail_mean:.1f}" if metric == "aime24" else f"{shape.tail_mean:.4f}"
    return [level, *(MISSING if value is None else str(value) for value in (shape.settle_step, shape.period, shape.peak_step))]
