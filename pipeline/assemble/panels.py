"""Figures the paper has no room for: the stress panel, SAT's own diagnostics, and the lags that were really realised."""

from __future__ import annotations

from collections import Counter

import pandas as pd

from pipeline.assemble.drawing import WINDOW, Drawn, cross_handle, draw_curve, log_axis, mark_collapses, panels, side_legend
from pipeline.assemble.paper_figures import MISMATCH, finish
from pipeline.assemble.reference import Reference
from pipeline.assemble.runs import Results
from pipeline.assemble.series import CSV_COLUMNS, Curve, accuracy_curve, gated_share_limit, step_curve, tidy
from pipeline.assemble.style import PAPER, colour, nothing, pattern, tint
from pipeline.evaluation.estimators import avg_at_k
from pipeline.objective.methods import METHODS, method_of
from pipeline.rollout.schedule import Schedule

STRESS_LAG = "8-15"
SAT = tuple(name for name, method in METHODS.items() if method.clip_rule == "sat")


def stress_panel(results: Results, reference: Reference) -> Drawn:
    """Reward, held-out accuracy and mismatch of the stress cells under the Figure-1 reading of lag 8; Table 1 has them all."""
    figure, axes = panels(1, 3, 13.5, 4.0, right=2.0)
    onsets = results.onsets
    rows, mismatches = [], []
    for method in results.settings.cells.stress.methods:
        curves: list[tuple[int, Curve | None, int]] = [
            (0, step_curve(results, method, STRESS_LAG, "reward_mean"), WINDOW),
            (1, accuracy_curve(results, method, STRESS_LAG), 1),
            (2, step_curve(results, method, STRESS_LAG, "mismatch", first_of_batch=True), 1),
        ]
        for column, curve, window in curves:
            if curve is None:
                continue
            rows.append(curve.rows())
            draw_curve(axes[0, column], curve, colour(method), pattern(method), method_of(method).label, window=window)
            mark_collapses(axes[0, column], results, onsets, curve, colour(method))
            if column == 2:
                mismatches.append(curve.values)
    if results.base:
        axes[0, 1].axhline(100 * avg_at_k(results.base["evaluation"]), color=PAPER, linewidth=1.2, linestyle=":")
    finish(axes[0, 0], results, "a  training reward", "mean reward")
    finish(axes[0, 1], results, "b  held-out accuracy", "accuracy, %")
    log_axis(axes[0, 2], mismatches)
    finish(axes[0, 2], results, "c  mismatch", MISMATCH)
    crossed = any(onsets.get((method, STRESS_LAG)) for method in results.settings.cells.stress.methods)
    side_legend(axes[0, 2], extra=[cross_handle()] if crossed else [])
    return Drawn(figure, tidy(rows))


def sat_panel(results: Results, reference: Reference) -> Drawn:
    """SAT over the run, at the largest lag of the table: |d| quantiles of one method; q, gate share and mean radii of all."""
    figure, axes = panels(2, 2, 11.5, 6.9, between=1.7, right=1.7)
    spread, quantile, gate, radius = axes.ravel()
    lag = "8"
    shown = next((method for method in reversed(SAT) if results.of(method, lag)), SAT[-1])
    rows: list[pd.DataFrame] = []
    spreads, quantiles = [], []
    for share, name, text in (
        (0.0, "abs_d_p50", "median"),
        (0.3, "abs_d_p90", "90 %"),
        (0.55, "abs_d_p99", "99 %"),
        (0.75, "abs_d_max", "largest"),
    ):
        curve = step_curve(results, shown, lag, name)
        if curve is not None:
            rows.append(curve.rows())
            draw_curve(spread, curve, tint(colour(shown), share), "-", text, window=WINDOW)
            spreads.append(curve.smoothed(WINDOW).values)
    for method in SAT:
        label = method_of(method).label
        for panel, name, style in ((quantile, "sat_quantile", pattern(method)), (gate, "sat_gate_share", pattern(method)),
                                   (radius, "sat_radius_low", ":"), (radius, "sat_radius_high", "-")):  # fmt: skip
            curve = step_curve(results, method, lag, name)
            if curve is None:
                continue
            rows.append(curve.rows())
            named = label if name != "sat_radius_low" else "_nolegend_"
            draw_curve(panel, curve, colour(method), style, named, window=WINDOW)
            if panel is quantile:
                quantiles.append(curve.smoothed(WINDOW).values)
    objective, limit_share = results.settings.objective, gated_share_limit(results.settings)
    gate.axhline(limit_share, color=PAPER, linewidth=1.2, linestyle=":")
    for limit in {objective.eps_low, objective.eps_high}:
        radius.axhline(limit, color=PAPER, linewidth=1.2, linestyle=":")
    log_axis(spread, spreads)
    log_axis(quantile, quantiles)
    finish(spread, results, f"a  |d| of {method_of(shown).label}, lag {lag}", "|log-ratio|")
    finish(quantile, results, f"b  q, the {1 - limit_share:g} quantile of |d|", "q")
    finish(gate, results, "c  gated share of the tokens", "share")
    finish(radius, results, "d  mean clip radius (dotted: low, solid: high)", "radius")
    if spreads:
        spread.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    side_legend(quantile)
    return Drawn(figure, tidy(rows))


def lag_panel(results: Results, reference: Reference) -> Drawn:
    """Share of the trained tokens at each realised lag, and the schedule's closed form, for every lag of the run."""
    lags = list(dict.fromkeys(lag for _, lag in results.rows()))
    figure, axes = panels(1, max(len(lags), 1), max(3.6 * len(lags), 3) + 2.2, 3.3, between=0.65, right=2.1)
    rows: list[dict[str, object]] = []
    for panel, lag in zip(axes[0], lags, strict=False):
        tokens: Counter[int] = Counter()
        runs = [run for method, name in results.rows() if name == lag for run in results.of(method, lag)]
        for run in runs:
            tokens.update(run.tokens_by_lag)
        panel.set_title(f"lag {lag}")
        panel.set_xlabel("realised lag, optimizer steps")
        panel.grid(axis="x", visible=False)
        if not runs:
            nothing(panel)
            continue
        total = sum(tokens.values())
        panel.bar(
            list(tokens), [count / total for count in tokens.values()], color=colour("grpo"), width=0.75, label="tokens trained on"
        )
        implied = Schedule.of(results.settings.cell(runs[0].cell)).lag_histogram()
        steps = sum(implied.values())
        panel.plot(
            list(implied),
            [count / steps for count in implied.values()],
            "D",
            color=colour("sat-gspo"),
            markersize=5,
            label="schedule",
        )
        panel.set_xticks(sorted({*tokens, *implied}) if len(implied) < 12 else range(0, max(implied) + 1, 3))
        rows += [
            {
                "source": source,
                "method": "",
                "lag": lag,
                "seed": "",
                "quantity": "share at realised lag",
                "step": key,
                "value": count / whole,
            }
            for source, counts, whole in (("ours", tokens, total), ("schedule", implied, steps))
            for key, count in sorted(counts.items())
        ]
    axes[0, 0].set_ylabel("share")
    side_legend(axes[0, -1])
    return Drawn(figure, pd.DataFrame(rows, columns=list(CSV_COLUMNS)))


def captions(results_seeds: int, gated_share: float) -> dict[str, str]:
    over = f"Line: mean over {results_seeds} seeds, band: their range." if results_seeds > 1 else "One seed."
    return {
        "stress_panel": (
            "Lag 8 as Figure 1 of the paper draws it: eight optimizer steps per rollout batch, lags 8 to 15. a, training "
            "reward (trailing "
            f"mean over {WINDOW} steps); b, accuracy on held-out problems (dotted: base policy); c, mismatch at the first "
            "step of each rollout "
            f"batch, logarithmic. A cross marks where a run collapses by the stated rule. {over}"
        ),
        "sat_panel": (
            "What SAT does at lag 8. a, quantiles over tokens of |d|, the log-ratio between trainer and rollout engine; b, "
            "the gate threshold "
            f"q; c, share of tokens whose limits are contracted, at most 1 − α = {gated_share:.2g} (dotted); d, mean clip radii "
            "(dotted "
            f"line: without SAT). Trailing means over {WINDOW} steps. {over}"
        ),
        "lag_histogram": (
            "Realised lag of every trained token, by the version the engine stamped on it, over all cells of a lag; "
            "diamonds: the closed form of the schedule."
        ),
    }
