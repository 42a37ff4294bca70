"""Figures the paper has no room for: the stress panel and SAT's own diagnostics."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from pipeline.evaluation.estimators import avg_at_k
from pipeline.objective.methods import METHODS, method_of
from pipeline.objective.parts.ppo import PpoSettings
from pipeline.paper.lags import STRESS, large_lag
from pipeline.paper.reference import Reference
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
    side_legend,
)
from pipeline.results.families import has
from pipeline.results.runs import Results
from pipeline.results.series import Curve, accuracy_curve, gated_share_limit, step_curve, tidy
from pipeline.results.style import GREY, colour, nothing, pattern, tint


def stress_panel(results: Results, reference: Reference) -> Drawn:
    """Reward, held-out accuracy and mismatch of the stress cells under the Figure-1 reading of lag 8; Table 1 has them all."""
    figure, axes = panels(1, 3, 13.5, 4.0, right=2.0)
    onsets = results.onsets
    rows, mismatches = [], []
    for method in results.settings.cells.stress.methods:
        curves: list[tuple[int, Curve | None, int]] = [
            (0, step_curve(results, method, STRESS, "reward_mean"), WINDOW),
            (1, accuracy_curve(results, method, STRESS), 1),
            (2, step_curve(results, method, STRESS, "mismatch", first_of_batch=True), 1),
        ]
        for column, curve, window in curves:
            if curve is None:
                continue
            rows.append(curve.rows())
            draw_curve(axes[0, column], curve, colour(method), pattern(method), method_of(method).label, window=window)
            mark_collapses(axes[0, column], onsets, curve, colour(method), window=window)
            if column == 2:
                mismatches.append(curve.values)
    if results.base:
        axes[0, 1].axhline(100 * avg_at_k(results.base["evaluation"]), color=GREY, linewidth=1.2, linestyle=":")
    finish(axes[0, 0], "a  training reward", "mean reward")
    finish(axes[0, 1], "b  held-out accuracy", "accuracy, %")
    log_axis(axes[0, 2], mismatches)
    finish(axes[0, 2], "c  mismatch", MISMATCH)
    crossed = any(onsets.get((method, STRESS)) for method in results.settings.cells.stress.methods)
    side_legend(axes[0, 2], extra=[cross_handle()] if crossed else [])
    return Drawn(figure, tidy(rows))


def sat_panel(results: Results, reference: Reference) -> Drawn:
    """SAT at the large lag: token |d| quantiles of one method; of all q, gate, contraction, radii and what is clipped."""
    figure, axes = panels(2, 3, 16.6, 6.9, between=1.15, right=2.3)
    spread, quantile, gate, contraction, radius, clipped = axes.ravel()
    lag = large_lag(results.settings)
    adaptive = [method for method in METHODS if has(method, "SAT")]
    shown = next((method for method in reversed(adaptive) if results.of(method, lag)), adaptive[-1])
    rows: list[pd.DataFrame] = []
    spreads = []
    for share, name, text in ((0.0, "abs_d_p50", "median"), (0.3, "abs_d_p90", "90 %"),
                              (0.55, "abs_d_p99", "99 %"), (0.75, "abs_d_max", "largest")):  # fmt: skip
        curve = step_curve(results, shown, lag, name)
        if curve is not None:
            rows.append(curve.rows())
            draw_curve(spread, curve, tint(colour(shown), share), "-", text, window=WINDOW)
            spreads.append(curve.smoothed(WINDOW).values)
            end = curve.steps[-1], float(curve.smoothed(WINDOW).mean[-1])
            spread.annotate(text, end, (4, 0), textcoords="offset points", fontsize=8.5, va="center")
    smallest = {}
    for panel, name, style in ((quantile, "sat_quantile", None), (gate, "sat_gate_share", None),
                               (contraction, "sat_min_contraction", None),
                               (radius, "sat_radius_low", ":"), (radius, "sat_radius_high", "-")):  # fmt: skip
        for method in adaptive:
            curve = step_curve(results, method, lag, name)
            if curve is not None:
                rows.append(curve.rows())
                draw_curve(panel, curve, colour(method), style or pattern(method), q_label(method), window=WINDOW)
                smallest.setdefault(name, []).append(curve.smoothed(WINDOW).values)
    rows += _draw_clipped(clipped, results, adaptive, lag)
    limits, limit_share = results.settings.objective.section(PpoSettings), gated_share_limit(results.settings)
    gate.axhline(limit_share, color=GREY, linewidth=1.2, linestyle=":")
    for limit in {limits.eps_low, limits.eps_high}:
        radius.axhline(limit, color=GREY, linewidth=1.2, linestyle=":")
    log_axis(spread, spreads)
    log_axis(quantile, smallest.get("sat_quantile", []))
    log_axis(contraction, smallest.get("sat_min_contraction", []))
    finish(spread, f"a  token |d| of {method_of(shown).label}", "|log π − log μ| of a token")
    finish(quantile, f"b  q, the {1 - limit_share:g} quantile of |log ρ|", "q")
    finish(gate, "c  gated share of the tokens", "share")
    finish(contraction, "d  smallest contraction of a step", "c")
    finish(radius, "e  mean clip radius (dotted: low)", "radius")
    finish(clipped, "f  clipped by SAT alone (pale: by fixed limits)", "share: A < 0 down, A > 0 up")
    side_legend(gate, title="b to f: SAT's ρ")
    return Drawn(figure, tidy(rows))


def _draw_clipped(panel: Axes, results: Results, adaptive: Sequence[str], lag: str) -> list[pd.DataFrame]:
    """Shares of the tokens that the methods `adaptive` clip, up for A > 0, down for A < 0; pale what fixed limits would, too."""
    rows = []
    for quantity, paleness in (("sat_fixed_clip_share", 0.6), ("sat_newly_clipped", 0.0)):
        for method, (side, sign) in itertools.product(adaptive, (("low", -1), ("high", 1))):
            curve = step_curve(results, method, lag, f"{quantity}_{side}")
            if curve is not None:
                rows.append(curve.rows())
                mirrored = dataclasses.replace(curve, values=sign * curve.values)
                draw_curve(panel, mirrored, tint(colour(method), paleness), pattern(method), "", window=WINDOW)
    if rows:
        panel.axhline(0.0, color=GREY, linewidth=1.2)
        panel.yaxis.set_major_formatter(lambda share, _: f"{abs(share):g}")
    elif any(results.of(method, lag) for method in adaptive):
        nothing(panel, "not recorded by these runs")
    return rows


def q_label(method: str) -> str:
    """A SAT method with what its ratio ρ, and so q, is of."""
    return f"{method_of(method).label}: ρ of a {method_of(method).granularity}"


def captions(results_seeds: int, gated_share: float, large: str) -> dict[str, str]:
    over = f"Line: mean over {results_seeds} seeds, band: their range." if results_seeds > 1 else "One seed."
    return {
        "stress_panel": (
            "Lag 8 as Figure 1 of the paper draws it: eight optimizer steps per rollout batch, lags 8 to 15. a, training reward "
            f"(trailing mean over {WINDOW} optimizer steps); b, accuracy on held-out problems (dotted: base policy); c, mismatch "
            f"at the first step of each rollout batch, logarithmic. A cross marks where a run collapses by the stated rule. {over}"
        ),
        "sat_panel": (
            f"What SAT does at lag {large}. a, quantiles over tokens of |d|, the log-ratio between trainer and rollout engine; "
            "b, the gate threshold q, a quantile of |log ρ| at the method's own granularity: of a token's ratio (log ρ = d) in "
            "SAT-GRPO, of a sequence's (log ρ the mean of d over its tokens; it counts once for each of them) in SAT-GSPO, so that "
            "only SAT-GRPO's q is a quantile as those in a; c, share of tokens whose limits are contracted, at most 1 − α = "
            f"{gated_share:.2g} (dotted); d, the smallest factor by which a limit was contracted in a step (1: none); e, mean clip "
            "radii (dotted grey: without SAT); f, share of the tokens that SAT clips and fixed limits would not, upwards where "
            "A > 0 and downwards where A < 0, and (pale) of those that fixed limits would clip as well. Trailing means over "
            f"{WINDOW} optimizer steps. {over}"
        ),
    }
