"""Figures 2 to 5 of the paper, from our cells, the paper's own curve or bars beside or beneath them."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from pipeline.assemble.drawing import (
    WINDOW,
    Drawn,
    cross_handle,
    draw_curve,
    draw_paper,
    log_axis,
    mark_collapses,
    panels,
    paper_axis,
    paper_handle,
    side_legend,
)  # fmt: skip
from pipeline.assemble.reference import Reference
from pipeline.assemble.runs import Results
from pipeline.assemble.series import CSV_COLUMNS, accuracy_curve, paper_rows, step_curve, tidy
from pipeline.assemble.style import PAPER, colour, nothing, pattern, tint
from pipeline.evaluation.estimators import avg_at_k
from pipeline.objective.methods import TABLE_1, VARIANT, method_of

LAGS = ("1", "8")
LAG_PATTERNS = {"1": (0, (4, 1.5)), "8": "-"}
FIGURE_5 = ("grpo", "gspo", "dppo", "sat-gspo", "sat-gspo-r3")
MISMATCH = "mismatch  |log π − log μ|"


def figure2(results: Results, reference: Reference) -> Drawn:
    """GRPO at lags 1 and 8: mismatch and |k1|."""
    figure, axes = panels(1, 2, 11.5, 3.9, between=1.6, right=0.8)
    rows = []
    for panel, quantity, metric, source, title in (
        (axes[0, 0], "mismatch", "mismatch", "2a", "a  mismatch"),
        (axes[0, 1], "k1", "mismatch_k1", "2b", "b  |k1|"),
    ):
        rows += lag_pair(panel, results, reference, "grpo", quantity, metric, source)
        panel.set_title(title)
        panel.set_ylabel(MISMATCH if quantity == "mismatch" else "|k1|  KL estimate")
    axes[0, 0].legend(loc="best")
    return Drawn(figure, tidy(rows))


def figure3(results: Results, reference: Reference) -> Drawn:
    """GSPO at lags 1 and 8: held-out accuracy and mismatch."""
    figure, axes = panels(1, 2, 11.5, 3.9, between=1.6, right=0.8)
    panel, rows = axes[0, 0], []
    second = paper_axis(panel, "paper: AIME24, %")
    onsets = results.onsets
    for lag in LAGS:
        curve = accuracy_curve(results, "gspo", lag)
        rows.append(draw_paper(second, reference, results.settings.trainer.steps, "3", "gspo", lag, "aime24", LAG_PATTERNS[lag]))
        if curve is not None:
            rows.append(curve.rows())
            draw_curve(panel, curve, lag_colour("gspo", lag), LAG_PATTERNS[lag], f"GSPO, lag {lag}")
            mark_collapses(panel, results, onsets, curve, lag_colour("gspo", lag))
    if results.base:
        panel.axhline(100 * avg_at_k(results.base["evaluation"]), color=PAPER, linewidth=1, linestyle=":")
    finish(panel, results, "a  held-out accuracy", "accuracy, %")
    rows += lag_pair(axes[0, 1], results, reference, "gspo", "mismatch", "mismatch", "4b")
    axes[0, 1].set_title("b  mismatch")
    axes[0, 1].set_ylabel(MISMATCH)
    extra = [paper_handle(), *([cross_handle()] if any(onsets.get(("gspo", lag)) for lag in LAGS) else [])]
    handles, labels = panel.get_legend_handles_labels()
    panel.legend([*handles, *extra], [*labels, *(line.get_label() for line in extra)], loc="best")
    return Drawn(figure, tidy(rows))


def lag_pair(
    panel: Axes, results: Results, reference: Reference, method: str, quantity: str, metric: str, source: str
) -> list[pd.DataFrame]:
    """A mismatch-like quantity of one method at both lags, each with the paper's curve beneath, on logarithmic axes."""
    second = paper_axis(panel, "paper: " + ("|k1|" if quantity == "k1" else "mismatch"))
    rows, drawn, published = [], [], []
    for lag in LAGS:
        rows.append(
            draw_paper(
                second, reference, results.settings.trainer.steps, source, method, lag, metric, LAG_PATTERNS[lag], window=WINDOW
            )
        )
        published.append(rows[-1]["value"].rolling(WINDOW, min_periods=1).mean().to_numpy())
        curve = step_curve(results, method, lag, quantity, first_of_batch=True)
        if curve is not None:
            rows.append(curve.rows())
            draw_curve(
                panel,
                curve,
                lag_colour(method, lag),
                LAG_PATTERNS[lag],
                f"{method_of(method).label}, lag {lag}",
                window=WINDOW,
                raw=True,
            )
            drawn.append(curve.smoothed(WINDOW).values)
    log_axis(panel, drawn)
    log_axis(second, published)
    finish(panel, results, "", "")
    panel.plot([], [], color=PAPER, linewidth=1.2, alpha=0.75, label="paper")
    return rows


def figure4(results: Results, reference: Reference) -> Drawn:
    """Mismatch of every method: a at lag 1, b at lag 8; our cells above, the paper's curves below."""
    figure, axes = panels(2, 2, 12.0, 7.4, right=2.1)
    methods = [*TABLE_1, *(method for method, _ in results.rows() if method not in TABLE_1 and VARIANT not in method)]
    methods = list(dict.fromkeys(methods))
    rows: list[pd.DataFrame] = []
    for column, (lag, source) in enumerate(zip(LAGS, ("4a", "4b"), strict=True)):
        ours, theirs = axes[0, column], axes[1, column]
        drawn, published = [], []
        for method in methods:
            curve = step_curve(results, method, lag, "mismatch", first_of_batch=True)
            if curve is not None:
                rows.append(curve.rows())
                draw_curve(ours, curve, colour(method), pattern(method), method_of(method).label, window=WINDOW)
                drawn.append(curve.smoothed(WINDOW).values)
            paper = draw_published(theirs, reference, source, method, lag)
            rows.append(paper)
            published.append(paper["value"].rolling(WINDOW, min_periods=1).mean().to_numpy())
        log_axis(ours, drawn)
        log_axis(theirs, [np.minimum(values, 0.06) for values in published])
        finish(ours, results, f"{'ab'[column]}  ours, lag {lag}", MISMATCH)
        finish(theirs, results, f"{'ab'[column]}  paper, lag {lag}", MISMATCH)
        theirs.set_xlabel("optimizer step of the paper")
    side_legend(axes[0, 1])
    return Drawn(figure, tidy(rows))


def draw_published(axes: Axes, reference: Reference, source: str, method: str, lag: str) -> pd.DataFrame:
    """A curve of the paper in the colour of its method, on the paper's own steps."""
    rows = paper_rows(reference, source, method, lag, "mismatch")
    if len(rows):
        values = rows["value"].rolling(WINDOW, min_periods=1).mean()
        axes.plot(rows["step"], values, color=colour(method), linestyle=pattern(method), linewidth=1.3)
    return rows


def figure5(results: Results, reference: Reference) -> Drawn:
    """Bars of five methods at both lags: our fresh accuracy of the last checkpoint, and the paper's best evaluation."""
    figure, axes = panels(1, 2, 11.5, 4.1)
    ours, theirs = axes[0]
    rows = []
    for index, method in enumerate(FIGURE_5):
        for lag, offset in zip(LAGS, (-0.2, 0.2), strict=True):
            look = {"width": 0.38, "color": colour(method) if lag == "8" else tint(colour(method)), "edgecolor": colour(method)}
            paper = reference.row(method, lag)
            if paper is not None:
                theirs.bar(index + offset, paper["aime24"], **look)
                theirs.text(index + offset, paper["aime24"] + 0.3, f"{paper['aime24']:.1f}", ha="center", fontsize=8)
                rows.append(_bar("paper, table 1", method, lag, "best", paper["aime24"]))
            interval = results.accuracy_interval(method, lag, "last")
            if np.isnan(interval.estimate):
                ours.text(index + offset, 1, "–", ha="center", color=PAPER)
                continue
            mean, low, high = (100 * value for value in (interval.estimate, interval.low, interval.high))
            ours.bar(index + offset, mean, **look)
            ours.errorbar(index + offset, mean, yerr=[[mean - low], [high - mean]], color=PAPER, capsize=2.5, linewidth=1.2)
            best = 100 * float(np.mean([run.accuracy_by_step["accuracy"].max() for run in results.of(method, lag)]))
            ours.plot(index + offset, best, marker="_", markersize=15, markeredgewidth=2, color=colour(method))
            rows += [
                _bar("ours", method, lag, name, value)
                for name, value in (("fresh_last", mean), ("low", low), ("high", high), ("best", best))
            ]
    for panel, base, title, label in (
        (
            ours,
            100 * avg_at_k(results.base["scoring"]) if results.base else None,
            "ours: fresh accuracy, last checkpoint",
            "accuracy, %",
        ),
        (theirs, reference.base_score, "paper: best AIME24 evaluation", "AIME24, %"),
    ):
        panel.set_title(title)
        panel.set_ylabel(label)
        panel.set_xticks(range(len(FIGURE_5)), [method_of(method).label.replace(" w/ ", "\nw/ ") for method in FIGURE_5])
        panel.grid(axis="x", visible=False)
        if base is not None:
            panel.axhline(base, color=PAPER, linestyle=":", linewidth=1.3)
            panel.annotate("base", (len(FIGURE_5) - 0.42, base), color=PAPER, fontsize=9, va="bottom", ha="right")
    return Drawn(figure, pd.DataFrame(rows, columns=list(CSV_COLUMNS)))


def _bar(source: str, method: str, lag: str, quantity: str, value: float) -> dict[str, object]:
    return {"source": source, "method": method, "lag": lag, "seed": "", "quantity": quantity, "step": "", "value": value}


def lag_colour(method: str, lag: str) -> object:
    """The colour of the method, lighter at lag 1."""
    return colour(method) if lag == "8" else tint(colour(method), 0.4)


def finish(panel: Axes, results: Results, title: str, label: str) -> None:
    """Titles, labels, and a word where the panel is empty."""
    if title:
        panel.set_title(title)
    if label:
        panel.set_ylabel(label)
    panel.set_xlabel("optimizer step")
    if not panel.lines and not panel.patches:
        nothing(panel)


def captions(reference: Reference, num_steps: int, seeds: int) -> dict[str, str]:
    """What each figure shows and how it was drawn."""
    scale = (
        f"Grey: the paper's curve on its own axis at the right, its {reference.num_steps} steps scaled to our {num_steps}; "
        "levels are not comparable, shapes are."
    )
    over = f"Line: mean over {seeds} seeds, band: their range. " if seeds > 1 else "One seed. "
    smooth = f"Thick: trailing mean over {WINDOW} rollout batches; thin: every batch{' of the first seed' if seeds > 1 else ''}. "
    return {
        "figure2": f"GRPO at lags 1 and 8: a, mismatch; b, the KL estimate |k1|. Logarithmic axes. {over}{smooth}{scale}",
        "figure3": f"GSPO at lags 1 and 8: a, held-out accuracy (dotted: base policy); b, mismatch, logarithmic. {over}{scale}",
        "figure4": (
            f"Mismatch of all methods at lag 1 (a) and lag 8 (b), trailing mean over {WINDOW} rollout batches, logarithmic. "
            "Above: our cells; "
            "below: the paper's curves on their own axes (values above 0.06 leave the panel). Colour: ratio and clip rule; "
            "dashed: R3; "
            f"dotted: TIS; dash-dotted: both. {over}"
        ),
        "figure5": (
            "Left: fresh accuracy of our last checkpoint with its 95 % interval; the short bar is the best evaluation. "
            "Right: the paper's "
            "best evaluation. Light: lag 1; full colour: lag 8; dotted: the base policy. Two different tasks: compare "
            "orders, not heights."
        ),
    }
