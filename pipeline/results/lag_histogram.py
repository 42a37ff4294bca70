"""The lags that were really realised, beside the schedule's closed form."""

from __future__ import annotations

from collections import Counter

import pandas as pd

from pipeline.results.drawing import Drawn, panels, side_legend
from pipeline.results.runs import Results
from pipeline.results.series import CSV_COLUMNS
from pipeline.results.style import colour, nothing
from pipeline.rollout.schedule import Schedule

CAPTION = (
    "Realised lag of every trained token, by the version the engine stamped on it, over all cells of a lag; "
    "diamonds: the closed form of the schedule."
)


def lag_panel(results: Results) -> Drawn:
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
