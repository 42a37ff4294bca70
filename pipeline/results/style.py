"""How every figure looks: one colour per family of methods, one line pattern per correction, and files that are the same on
every run.

Colours are Okabe and Ito's, told apart with every common colour vision; the pattern repeats the distinction without colour. INK
and GRID appear in no data, so that the report can turn them into the page's own colours for its dark theme.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.typing import RcKeyType

from pipeline.artifacts import atomic_path, write_text
from pipeline.objective.methods import METHODS, VARIANT
from pipeline.results.families import UNCORRECTED, family, has

INK = "#22272e"
GRID = "#d9dee4"
GREY = "#8b949e"  # what is not one of our cells: the base policy, a limit, the paper

FAMILY_COLOURS = {
    "grpo": "#0072B2",
    "gspo": "#E69F00",
    "dppo": "#009E73",
    "sat-grpo": "#56B4E9",
    "sat-gspo": "#D55E00",
    UNCORRECTED: "#CC79A7",
}
FURTHER_COLOURS = ("#882255", "#999933", "#332288", "#44AA99", "#661100", "#6699CC")  # of other families, in turn; Tol's muted
PATTERNS: dict[tuple[bool, bool], Any] = {  # by (R3, TIS)
    (False, False): "-",
    (True, False): (0, (5, 1.6)),
    (False, True): (0, (1, 1.2)),
    (True, True): (0, (5, 1.4, 1, 1.4)),
}
OTHER_PATTERN = (6, 1, 1, 1, 1, 1)  # where an earlier method has colour and pattern already; a dash longer for each next one
PADDING = 0.08  # inches around a saved figure
FAST = {"compress_level": 2}  # a PNG a tenth larger in a fifth less time

RC: dict[RcKeyType, Any] = {
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


@dataclass(frozen=True)
class Look:
    """The colour and line pattern of a method."""

    colour: str
    pattern: Any


def looks() -> dict[str, Look]:
    """The look of every method of METHODS, no two alike: the colour is its family's, the pattern says R3 and TIS: solid, R3
    dashed, TIS dotted, both dash-dotted.
    """
    colours, found = dict(FAMILY_COLOURS), dict[str, Look]()
    for method in METHODS:
        name = family(method)
        shade = colours.setdefault(name, FURTHER_COLOURS[(len(colours) - len(FAMILY_COLOURS)) % len(FURTHER_COLOURS)])
        own = Look(shade, PATTERNS[has(method, "R3"), has(method, "TIS")])
        others = (Look(shade, (0, (longest, *OTHER_PATTERN[1:]))) for longest in count(OTHER_PATTERN[0]))
        found[method] = next(look for look in chain([own], others) if look not in found.values())
    return found


def colour(method: str) -> str:
    """The colour of a method; of a variant its method's."""
    return looks()[method.partition(VARIANT)[0]].colour


def pattern(method: str) -> Any:
    """The line pattern of a method; of a variant its method's."""
    return looks()[method.partition(VARIANT)[0]].pattern


def tint(name: str, share: float = 0.5) -> tuple[float, float, float]:
    """The colour mixed with white by `share`."""
    red, green, blue = (part + (1 - part) * share for part in to_rgb(name))
    return red, green, blue


@contextmanager
def drawing(name: str) -> Iterator[None]:
    """The style of all figures; `name` seeds the identifiers inside the SVG, which makes the file repeatable and its ids its
    own.
    """
    with matplotlib.rc_context({**RC, "svg.hashsalt": name}):
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
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, color=GREY)
