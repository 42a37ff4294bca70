"""Figures 2 to 5 of the paper, from our cells, the paper's own curve or bars beside or beneath them.

The paper's lag 8 stands beside the large lag of our table, which is 8 but in preset stress.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from pipeline.evaluation.estimators import avg_at_k
from pipeline.objective.methods import TABLE_1, VARIANT, method_of
from pipeline.paper.lags import LAGS, LARGE, SMALL, lag_pairs
from pipeline.paper.reference import Reference
from pipeline.paper.underlay import draw_paper, paper_axis, paper_handle, paper_rows, smoothed
from pipeline.results.drawing import (
    MISMATCH,
    WINDOW,
    Drawn,
    cross_handle,
    draw_curve,
    finish,
    log_axis,
    mark_collapses,
    panels,
)
from pipeline.results.families import correction
from pipeline.results.runs import Results
from pipeline.results.series import CSV_COLUMNS, accuracy_curve, step_curve, tidy
from pipeline.results.style import GREY, colour, pattern, tint

LAG_PATTERNS = {SMALL: (0, (4, 1.5)), LARGE: "-"}  # by the paper's lag
FIGURE_5 = ("grpo", "gspo", "dppo", "sat-gspo", "sat-gspo-r3")
FIGURE_3B = {SMALL: "page", LARGE: "4b"}  # where the paper shows GSPO's mismatch at each lag
PAPER_TOP = 0.06  # published mismatch above it leaves its panel of Figure 4
EMPTY = {"ours": "no cells yet", "paper": "no published curve"}


def figure2(results: Results, reference: Reference) -> Drawn:
    """GRPO at both lags: mismatch and |k1|."""
    figure, axes = panels(1, 2, 11.5, 3.9, between=1.6, right=0.8)
    rows = []
    for panel, quantity, metric, source, title in (
        (axes[0, 0], "mismatch", "mismatch", "2a", "a  mismatch"),
        (axes[0, 1], "k1", "mismatch_k1", "2b", "b  |k1|"),
    ):
        rows += lag_pair(panel, results, reference, "grpo", quantity, metric, dict.fromkeys(LAGS, source))
        panel.set_title(title)
        panel.set_ylabel(MISMATCH if quantity == "mismatch" else "|k1|  KL estimate")
    return Drawn(figure, tidy(rows))


def figure3(results: Results, reference: Reference) -> Drawn:
    """GSPO at both lags: held-out accuracy and mismatch."""
    figure, axes = panels(1, 2, 11.5, 3.9, between=1.6, right=0.8)
    panel, rows, published = axes[0, 0], [], []
    second = paper_axis(panel, "paper: AIME24, %")
    onsets = results.onsets
    for lag, theirs in lag_pairs(results.settings):
        curve, look = accuracy_curve(results, "gspo", lag), LAG_PATTERNS[theirs]
        rows.append(draw_paper(second, reference, results.settings.trainer.steps, "3", "gspo", theirs, "aime24", look))
        published += [paper_handle(f"paper, lag {theirs}", look)] if len(rows[-1]) else []
        if curve is not None:
            rows.append(curve.rows())
            draw_curve(panel, curve, lag_colour("gspo", lag), look, f"GSPO, lag {lag}")
            mark_collapses(panel, onsets, curve, lag_colour("gspo", lag))
    if results.base:
        panel.axhline(100 * avg_at_k(results.base["evaluation"]), color=GREY, linewidth=1, linestyle=":")
    finish(panel, "a  held-out accuracy", "accuracy, %")
    crosses = [cross_handle()] if any(onsets.get(("gspo", lag)) for lag, _ in lag_pairs(results.settings)) else []
    legend_below(panel, [*published, *crosses])
    rows += lag_pair(axes[0, 1], results, reference, "gspo", "mismatch", "mismatch", FIGURE_3B)
    axes[0, 1].set_title("b  mismatch")
    axes[0, 1].set_ylabel(MISMATCH)
    return Drawn(figure, tidy(rows))


def lag_pair(
    panel: Axes, results: Results, reference: Reference, method: str, quantity: str, metric: str, sources: Mapping[str, str]
) -> list[pd.DataFrame]:
    """A mismatch-like quantity of one method at both lags, each with the paper's curve beneath, on logarithmic axes.

    sources: the paper's figure that shows each of its lags.
    """
    second = paper_axis(panel, "paper: " + ("|k1|" if quantity == "k1" else "mismatch"))
    rows, drawn, published, handles = [], [], [], []
    num_steps = results.settings.trainer.steps
    for lag, theirs in lag_pairs(results.settings):
        source, look = sources[theirs], LAG_PATTERNS[theirs]
        paper = draw_paper(second, reference, num_steps, source, method, theirs, metric, look, window=WINDOW)
        rows.append(paper)
        if len(paper):
            published.append(smoothed(paper, WINDOW))
            where = "project page" if source == "page" else f"Fig. {source}"
            handles.append(paper_handle(f"paper, lag {theirs} ({where})", look))
        curve = step_curve(results, method, lag, quantity, first_of_batch=True)
        if curve is not None:
            rows.append(curve.rows())
            label = f"{method_of(method).label}, lag {lag}"
            draw_curve(panel, curve, lag_colour(method, lag), look, label, window=WINDOW, raw=True)
            drawn.append(curve.smoothed(WINDOW).values)
    log_axis(panel, drawn)
    log_axis(second, published)
    finish(panel, "", "")
    legend_below(panel, handles)
    return rows


def figure4(results: Results, reference: Reference) -> Drawn:
    """Mismatch of every method, a column for each correction: at lag 1 ours and the paper's, then at the large lag."""
    methods = [*TABLE_1, *(method for method, _ in results.rows() if method not in TABLE_1 and VARIANT not in method)]
    groups: dict[str, list[str]] = {}
    for method in dict.fromkeys(methods):
        groups.setdefault(correction(method), []).append(method)
    figure, axes = panels(4, len(groups), 3.2 * len(groups) + 0.9, 10.4, between=0.25)
    rows: list[pd.DataFrame] = []
    for pair, ((lag, paper_lag), source) in enumerate(zip(lag_pairs(results.settings), ("4a", "4b"), strict=True)):
        ours, theirs = axes[2 * pair], axes[2 * pair + 1]
        drawn, published = [], []
        for ours_panel, paper_panel, group in zip(ours, theirs, groups.values(), strict=True):
            for method in group:
                curve = step_curve(results, method, lag, "mismatch", first_of_batch=True)
                if curve is not None:
                    rows.append(curve.rows())
                    draw_curve(ours_panel, curve, colour(method), pattern(method), method_of(method).label, window=WINDOW)
                    drawn.append(curve.smoothed(WINDOW).values)
                rows.append(draw_published(paper_panel, reference, source, method, paper_lag))
                if len(rows[-1]):
                    published.append(np.minimum(smoothed(rows[-1], WINDOW), PAPER_TOP))
        for panels_of_row, values, whose, shown in ((ours, drawn, "ours", lag), (theirs, published, "paper", paper_lag)):
            for panel, name in zip(panels_of_row, groups, strict=True):
                finish(panel, f"{'ab'[pair]}  {whose}, lag {shown}: {name}", "", EMPTY[whose])
                panel.set_xlabel("")
            share_axes(panels_of_row, values)
            panels_of_row[0].set_ylabel("mismatch")
    for panel, group in zip(axes[-1], groups.values(), strict=True):
        panel.set_xlabel("optimizer step (of the paper, in its panels)")
        handles = [Line2D([], [], color=colour(m), linestyle=pattern(m), label=method_of(m).label) for m in group]
        panel.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.3), handlelength=2.6)
    return Drawn(figure, tidy(rows))


def share_axes(panels_of_row: Sequence[Axes], values: Sequence[np.ndarray]) -> None:
    """The same axes for all panels of a row: logarithmic for `values`, labelled at the left, as long as the longest curve."""
    ends = [float(np.max(line.get_xdata())) for panel in panels_of_row for line in panel.lines]
    for panel in panels_of_row:
        log_axis(panel, values)
        panel.set_xlim(-0.02 * max(ends, default=1.0), 1.02 * max(ends, default=1.0))
        if panel is not panels_of_row[0]:
            panel.tick_params(axis="y", labelleft=False)
            panel.yaxis.set_minor_locator(NullLocator())


def draw_published(axes: Axes, reference: Reference, source: str, method: str, lag: str) -> pd.DataFrame:
    """A curve of the paper in the colour of its method, on the paper's own steps."""
    rows = paper_rows(reference, source, method, lag, "mismatch")
    if len(rows):
        axes.plot(rows["step"], smoothed(rows, WINDOW), color=colour(method), linestyle=pattern(method), linewidth=1.3)
    return rows


def figure5(results: Results, reference: Reference) -> Drawn:
    """Bars of five methods at both lags: our fresh accuracy of the last checkpoint, and the paper's best evaluation."""
    figure, axes = panels(1, 2, 11.5, 4.1)
    ours, theirs = axes[0]
    rows = []
    for index, method in enumerate(FIGURE_5):
        for (lag, paper_lag), offset in zip(lag_pairs(results.settings), (-0.2, 0.2), strict=True):
            look = {"width": 0.38, "color": tint(colour(method)) if lag == SMALL else colour(method), "edgecolor": colour(method)}
            paper = reference.row(method, paper_lag)
            if paper is not None:
                theirs.bar(index + offset, paper["aime24"], **look)
                theirs.text(index + offset, paper["aime24"] + 0.3, f"{paper['aime24']:.2f}", ha="center", fontsize=7)
                rows.append(_bar("paper, table 1", method, paper_lag, "best", paper["aime24"]))
            interval = results.accuracy_interval(method, lag, "last")
            if np.isnan(interval.estimate):
                ours.text(index + offset, 1, "–", ha="center", color=GREY)
                continue
            mean, low, high = (100 * value for value in (interval.estimate, interval.low, interval.high))
            ours.bar(index + offset, mean, **look)
            ours.errorbar(index + offset, mean, yerr=[[mean - low], [high - mean]], color=GREY, capsize=2.5, linewidth=1.2)
            best = 100 * results.accuracy_interval(method, lag, "best").estimate
            ours.plot(index + offset, best, marker="D", markersize=6, color=colour(method), markeredgecolor="white")
            rows += [
                _bar("ours", method, lag, name, value)
                for name, value in (("fresh_last", mean), ("low", low), ("high", high), ("fresh_best", best))
            ]
    for panel, base, title, label in (
        (
            ours,
            100 * avg_at_k(results.base["scoring"]) if results.base else None,
            "ours: fresh accuracy, last (bar) and best (diamond)",
            "accuracy, %",
        ),
        (theirs, reference.base_score, "paper: best AIME24 evaluation", "AIME24, %"),
    ):
        panel.set_title(title)
        panel.set_ylabel(label)
        panel.set_xticks(range(len(FIGURE_5)), [method_of(method).label.replace(" w/ ", "\nw/ ") for method in FIGURE_5])
        panel.grid(axis="x", visible=False)
        if base is not None:
            panel.margins(x=0.08)  # room for a word
            panel.axhline(base, color=GREY, linestyle=":", linewidth=1.3)
            at_edge = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
            panel.annotate("base", (0.0, base), (2, 2), color=GREY, fontsize=9, va="bottom", **at_edge)
    return Drawn(figure, pd.DataFrame(rows, columns=list(CSV_COLUMNS)))


def _bar(source: str, method: str, lag: str, quantity: str, value: float) -> dict[str, object]:
    return {"source": source, "method": method, "lag": lag, "seed": "", "quantity": quantity, "step": "", "value": value}


def lag_colour(method: str, lag: str) -> object:
    """The colour of the method, lighter at lag 1."""
    return tint(colour(method), 0.4) if lag == SMALL else colour(method)


def legend_below(panel: Axes, extra: Sequence[Line2D]) -> None:
    """A legend below the panel, clear of its curves: what is drawn there, then `extra`."""
    handles = [*panel.get_legend_handles_labels()[0], *extra]
    if handles:
        panel.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2)


def captions(reference: Reference, num_steps: int, seeds: int, scoring: int, large: str) -> dict[str, str]:
    """What each figure shows and how it was drawn; `scoring`: the number of scoring problems."""
    scale = (
        f"Grey: the paper's curve on its own axis at the right, its {reference.num_steps} steps scaled to our {num_steps}; "
        "levels are not comparable, shapes are."
    )
    if large != LARGE:
        scale += f" Our lag {large} stands beside the paper's lag {LARGE}."
    over = f"Line: mean over {seeds} seeds, band: their range. " if seeds > 1 else "One seed. "
    smooth = (
        f"thick and grey lines are trailing means over {WINDOW} optimizer steps, however many of them a curve has; thin ones have "
        f"every batch{' of the first seed' if seeds > 1 else ''}. "
    )
    return {
        "figure2": f"GRPO at lags 1 and {large}: a, mismatch; b, the KL estimate |k1|. Logarithmic axes; {smooth}{over}{scale}",
        "figure3": (
            f"GSPO at lags 1 and {large}: a, held-out accuracy (dotted: base policy); b, mismatch, logarithmic: "
            f"{smooth}{over}{scale} "
            "The paper's mismatch at lag 1 is that of its project page, which has every fourth step."
        ),
        "figure4": (
            f"Mismatch of all methods at lag 1 (a) and lag {large} (b), a column for each correction: trailing mean over "
            f"{WINDOW} optimizer steps, of a published curve over those of them that it has (GSPO w/ R3 and with TIS: every "
            "fourth); logarithmic, the same axes along a row. Ours, and below it the paper's on its own steps "
            f"(values above {PAPER_TOP} leave the panel). Colour: ratio and clip rule; dash-dotted: TIS with R3. {over}"
        ),
        "figure5": (
            f"Left: fresh accuracy on the {scoring} scoring problems, of our last checkpoint (bar, with its 95 % interval) and of "
            "the checkpoint that was best on the evaluation problems (diamond). Right: the paper's best evaluation, the largest of "
            "many on the same problems. Light: lag 1; full colour: the larger lag; dotted: the base policy. Two different tasks: "
            "compare orders, not heights."
        ),
    }
