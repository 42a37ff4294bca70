"""The paper's curves under ours: as rows of a figure's CSV, and drawn on a second axis."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from pipeline.paper.reference import Reference
from pipeline.results.series import trailing_mean
from pipeline.results.style import GREY


def paper_rows(reference: Reference, figure: str, method: str, lag: str, metric: str) -> pd.DataFrame:
    """The paper's curve as rows of a figure's CSV."""
    curve = reference.curve(figure, method, lag, metric)
    return pd.DataFrame(
        {
            "source": f"paper, figure {figure}",
            "method": method,
            "lag": lag,
            "seed": "",
            "quantity": metric,
            "step": curve.index,
            "value": curve.to_numpy(),
        }
    )


def smoothed(rows: pd.DataFrame, window: int) -> np.ndarray:
    """Trailing means over `window` optimizer steps of a published curve, given as rows of step and value."""
    return trailing_mean(rows["step"].to_numpy(dtype=np.int64), rows["value"].to_numpy(dtype=float), window)


def paper_axis(axes: Axes, label: str) -> Axes:
    """A second y axis for the paper's values, drawn beneath ours."""
    second = axes.twinx()
    axes.set_zorder(second.get_zorder() + 1)
    axes.patch.set_visible(False)
    second.grid(False)
    second.spines["right"].set_visible(True)
    second.spines["right"].set_color(GREY)
    second.tick_params(axis="y", colors=GREY, which="both")
    second.set_ylabel(label, color=GREY)
    return second


def draw_paper(
    axes: Axes,
    reference: Reference,
    num_steps: int,
    figure: str,
    method: str,
    lag: str,
    metric: str,
    pattern: Any,
    window: int = 1,
) -> pd.DataFrame:
    """The paper's curve on `axes`, its steps scaled so that its whole run spans our `num_steps`; returns its rows, unscaled."""
    rows = paper_rows(reference, figure, method, lag, metric)
    if len(rows):
        steps = rows["step"].to_numpy() * num_steps / reference.num_steps
        axes.plot(steps, smoothed(rows, window), color=GREY, alpha=0.75, linewidth=1.2, linestyle=pattern)
    return rows


def paper_handle(label: str = "paper", pattern: Any = "-") -> Line2D:
    return Line2D([], [], color=GREY, linewidth=1.2, alpha=0.75, label=label, linestyle=pattern)
