"""How every figure looks: one colour per method, one line pattern per correction, and files that are the same on every run.

Colours are Okabe and Ito's, told apart with every common colour vision; the pattern repeats the distinction without colour. INK
and GRID appear in no data, so that the report can turn them into the page's own colours for its dark theme.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from pipeline.artifacts import atomic_path, write_text
from pipeline.objective.methods import method_of

INK = "#22272e"
GRID = "#d9dee4"
PAPER = "#8b949e"

FAMILY_COLOURS = {
    ("token", "fixed"): "#0072B2",
    ("sequence", "fixed"): "#E69F00",
    ("token", "dppo"): "#009E73",
    ("token", "sat"): "#56B4E9",
    ("sequence", "sat"): "#D55E00",
}
UNCORRECTED = "#CC79A7"
PADDING = 0.08  # inches around a saved figure
FAST = {"compress_level": 2}  # a PNG a tenth larger in a fifth less time

RC: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10.5,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 10.5,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.7,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "figure.dpi": 110,
    "savefig.dpi": 150,
    "svg.fonttype": "path",
    "path.simplify": True,
}


def colour(method: str) -> str:
    """The colour of a method: by ratio and clip rule; the uncorrected baselines have their own."""
    entry = method_of(method)
    if entry.uncorrected:
        return UNCORRECTED
    return FAMILY_COLOURS[entry.granularity, entry.clip_rule]


def pattern(method: str) -> Any:
    """The line pattern of a method: plain solid, R3 dashed, TIS dotted, TIS with R3 dash-dotted; uncorrected by base."""
    entry = method_of(method)
    replay, truncated = entry.routing_replay, entry.truncated_importance_sampling
    if entry.uncorrected and entry.granularity == "sequence":
        return (0, (6, 1, 1, 1, 1, 1))
    return {(False, False): "-", (True, False): (0, (5, 1.6)), (False, True): (0, (1, 1.2)), (True, True): (0, (5, 1.4, 1, 1.4))}[
        replay, truncated
    ]


def tint(name: str, share: float = 0.5) -> tuple[float, float, float]:
    """The colour mixed with white by `share`."""
    red, green, blue = (part + (1 - part) * share for part in to_rgb(name))
    return red, green, blue


@contextmanager
def drawing(name: str) -> Iterator[None]:
    """The style of all figures; `name` seeds the identifiers inside the SVG, which makes the file repeatable and its ids its
    own.
    """
    with matplotlib.rc_context(RC | {"svg.hashsalt": name}):
        yield


def save(figure: Figure, data: pd.DataFrame, folder: Path, name: str) -> None:
    """Write name.png, name.svg and name.csv (the plotted data) into `folder`, atomically, and close the figure.

    Legends and labels beside the axes are never cut off: what is saved is measured once, for both files.
    """
    frame = figure.get_tightbbox().padded(PADDING)
    with atomic_path(folder / f"{name}.svg") as temporary:
        figure.savefig(temporary, format="svg", bbox_inches=frame, transparent=True, metadata={"Date": None, "Creator": None})
    with atomic_path(folder / f"{name}.png") as temporary:
        figure.savefig(temporary, format="png", bbox_inches=frame, facecolor="white", metadata={"Software": None}, pil_kwargs=FAST)
    write_text(folder / f"{name}.csv", data.to_csv(index=False, float_format="%.6g"))
    plt.close(figure)


def nothing(axes: Axes, text: str = "no cells yet") -> None:
    """Say in an empty panel why it is empty."""
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, color=PAPER)
