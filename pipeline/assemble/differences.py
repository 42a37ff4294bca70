"""The differences between cells and the curves beside the paper's, as tables of text for diff.md and the report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipeline.assemble.contrasts import Contrast
from pipeline.assemble.curves import NOTE as CURVE_NOTE
from pipeline.assemble.curves import CurveComparison, Shape
from pipeline.assemble.markdown import table
from pipeline.objective.methods import method_of

MISSING = "–"
CONTRAST_HEAD = ("Difference", "Points", "p", "p, Holm", "Seeds", "Spread over")
CURVE_HEAD = (
    *("Curve", "Lag", "Tail mean: paper", "ours", "Settles at: paper", "ours", "Period: paper", "ours", "Peak at: paper", "ours"),
    *("Correlation", "Steps", "Notes"),
)
CONTRAST_NOTE = (
    "Fresh accuracy of the last checkpoint, paired by problem, 95 % t intervals. p, Holm: adjusted over all rows, so that the "
    "chance of any false positive among them is 5 %. Seeds: scored of either cell; a cell with one adds no spread between runs "
    "to the interval, which is then too narrow for a statement about methods."
)


def contrast_rows(items: Iterable[Contrast]) -> list[list[str]]:
    """A row of text for each difference, under CONTRAST_HEAD."""
    return [
        [
            item.label,
            f"{100 * item.estimate:+.1f} [{100 * item.low:+.1f}, {100 * item.high:+.1f}]",
            p_text(item.p_value),
            p_text(item.p_holm),
            " and ".join(map(str, item.seeds)),
            ", ".join(item.over),
        ]
        for item in items
    ]


def curve_rows(items: Iterable[CurveComparison]) -> list[list[str]]:
    """A row of text for each published curve, under CURVE_HEAD."""
    rows = []
    for item in items:
        name = f"{method_of(item.method).label}, {'score' if item.metric == 'aime24' else 'mismatch'}"
        sides = [_shape(side, item.metric) for side in (item.paper, item.ours)]
        pairs = [text for pair in zip(*sides, strict=True) for text in pair]
        correlation = MISSING if item.correlation is None else f"{item.correlation:+.2f}"
        rows.append([name, item.lag, *pairs, correlation, str(item.common_steps), "; ".join(item.notes)])
    return rows


def contrast_lines(items: Sequence[Contrast]) -> list[str]:
    """The differences as Markdown."""
    return ["## Differences between cells", "", CONTRAST_NOTE, "", *table(CONTRAST_HEAD, contrast_rows(items)), ""]


def curve_lines(items: Sequence[CurveComparison]) -> list[str]:
    """The curves as Markdown."""
    return ["## Curves beside the published ones", "", CURVE_NOTE, "", *table(CURVE_HEAD, curve_rows(items)), ""]


def from_json(content: Mapping[str, Any]) -> tuple[list[Contrast], list[CurveComparison]]:
    """The two lists as diff.json holds them."""
    differences = [
        Contrast(**{key: tuple(value) if isinstance(value, list) else value for key, value in item.items() if key != "label"})
        for item in content["contrasts"]
    ]
    curves = [
        CurveComparison(**item | {side: Shape(**item[side]) if item[side] else None for side in ("paper", "ours")})
        for item in content["curves"]
    ]
    return differences, curves


def _shape(shape: Shape | None, metric: str) -> list[str]:
    if shape is None:
        return [MISSING] * 4
    level = f"{shape.tail_mean:.1f}" if metric == "aime24" else f"{shape.tail_mean:.4f}"
    return [level, *(MISSING if value is None else str(value) for value in (shape.settle_step, shape.period, shape.peak_step))]


def p_text(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"
