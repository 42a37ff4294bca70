"""Parts that several figures share: a curve with its seeds, collapse marks, axes and legends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

from pipeline.results.series import Curve
from pipeline.results.style import GREY, nothing

MISMATCH = "mismatch  |log π − log μ|"
WINDOW = 8  # optimizer steps of the trailing means: one publication interval of lag 8, so that its sawtooth averages out


@dataclass(frozen=True)
class Drawn:
    """A figure and the rows behind it."""

    figure: Figure
    data: pd.DataFrame


def draw_curve(
    axes: Axes, curve: Curve, colour: object, pattern: object, label: str, *, window: int = 1, raw: bool = False
) -> None:
    """The mean over seeds as a line (a trailing mean over `window` steps), the seeds' range as a band; raw adds the first seed
    unsmoothed.
    """
    if raw and window > 1:
        axes.plot(curve.steps, curve.values[0], color=colour, linewidth=0.6, alpha=0.45)
    smooth = curve.smoothed(window)
    if len(curve.seeds) > 1:
        low, high = (getattr(pd.DataFrame(smooth.values), name)(axis=0).to_numpy() for name in ("min", "max"))
        axes.fill_between(curve.steps, low, high, color=colour, alpha=0.16, linewidth=0)
    marker = "o" if len(curve.steps) <= 25 else None
    axes.plot(curve.steps, smooth.mean, color=colour, linestyle=pattern, label=label, marker=marker, markersize=3.5)


def mark_collapses(
    axes: Axes, onsets: Mapping[tuple[str, str], Sequence[int]], curve: Curve, colour: object, *, window: int = 1
) -> None:
    """A cross where a seed collapsed, on the curve as it is drawn with the same `window`."""
    mean = curve.smoothed(window).mean
    for onset in onsets.get((curve.method, curve.lag), ()):
        index = int(np.argmin(np.abs(curve.steps - onset)))
        axes.plot(curve.steps[index], mean[index], marker="X", markersize=9, color=colour, markeredgecolor="white", zorder=5)


def log_axis(axes: Axes, values: Sequence[np.ndarray] = ()) -> None:
    """A logarithmic y axis with plain numbers; `values` (positive parts) set its limits."""
    axes.set_yscale("log")
    finite = np.concatenate([np.ravel(part) for part in values]) if values else np.array([])
    finite = finite[np.isfinite(finite) & (finite > 0)]
    if len(finite):
        axes.set_ylim(finite.min() / 1.25, finite.max() * 1.25)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    low, high = axes.get_ylim()
    few = high / low < 40
    axes.yaxis.set_minor_formatter(FuncFormatter(_minor) if few else NullFormatter())


def _minor(value: float, _: int) -> str:
    digit = round(value / 10 ** np.floor(np.log10(value)))
    return f"{value:.3g}" if digit in (2, 5) else ""


def side_legend(axes: Axes, *, title: str | None = None, extra: Sequence[Line2D] = ()) -> None:
    """A legend to the right of the axes."""
    handles, labels = axes.get_legend_handles_labels()
    handles, labels = [*handles, *extra], [*labels, *(str(line.get_label()) for line in extra)]
    if handles:
        axes.legend(handles, labels, loc="center left", bbox_to_anchor=(1.01, 0.5), title=title, handlelength=2.6)


def cross_handle() -> Line2D:
    return Line2D([], [], color=GREY, marker="X", linestyle="", markersize=8, markeredgecolor="white", label="collapse begins")


def panels(
    rows: int, columns: int, width: float, height: float, *, between: float = 0.85, right: float = 0.15
) -> tuple[Figure, np.ndarray]:
    """A figure of rows x columns axes, sizes and margins in inches; the axes as a two-dimensional array.

    Margins are given, not solved for: the layout solvers of matplotlib take as long as the drawing itself.
    """
    left, bottom, top, above = 0.72, 0.52, 0.32, 0.85
    figure, axes = plt.subplots(rows, columns, figsize=(width, height), squeeze=False)
    panel_width = (width - left - right - between * (columns - 1)) / columns
    panel_height = (height - bottom - top - above * (rows - 1)) / rows
    figure.subplots_adjust(
        left=left / width, right=1 - right / width, bottom=bottom / height, top=1 - top / height,
        wspace=between / panel_width, hspace=above / panel_height,
    )  # fmt: skip
    return figure, axes


def finish(panel: Axes, title: str, label: str, empty: str = "no cells yet") -> None:
    """Titles, labels, and a word where the panel is empty."""
    if title:
        panel.set_title(title)
    if label:
        panel.set_ylabel(label)
    panel.set_xlabel("optimizer step")
    if not panel.lines and not panel.patches:
        nothing(panel, empty)
