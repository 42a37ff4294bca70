"""The results at a glance, as READMEs show them: per method the accuracy of the last weights and the mismatch, at each lag."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.assemble import markdown
from pipeline.assemble.table1 import MISSING, bracket, percent, small

_READ = [
    "block",
    "label",
    "lag",
    "seeds_read",
    "fresh_last",
    "fresh_last_low",
    "fresh_last_high",
    "mismatch",
    "collapsed",
    "onset_step",
]


def glance(table: Path) -> list[str]:
    """A Markdown table, as lines, of the methods in `table` (a table1.csv); variants are left out.

    Fresh accuracy in % with its 95 % interval; † how many runs collapsed, with the steps of onset. OSError or ValueError where
    `table` cannot be read.
    """
    try:
        rows = pd.read_csv(table, usecols=_READ, dtype={"lag": str, "onset_step": str})
    except ValueError as error:
        raise ValueError(f"{table} is not the table1.csv that a run writes: {error}") from error
    rows = rows[rows["block"] != "variants"]
    lags = list(dict.fromkeys(rows["lag"]))
    head = ["method", *(f"lag {lag}" for lag in lags), *(f"mismatch, lag {lag}" for lag in lags)]
    lines = []
    for label, own in rows.groupby("label", sort=False):
        at = {row.lag: row for row in own.itertuples()}
        accuracies = [_accuracy(at[lag]) if lag in at else MISSING for lag in lags]
        mismatches = [small(at[lag].mismatch) if lag in at else MISSING for lag in lags]
        lines.append([str(label), *accuracies, *mismatches])
    return markdown.table(head, lines)


def _accuracy(row: Any) -> str:
    text = f"{percent(row.fresh_last)} {bracket(row.fresh_last_low, row.fresh_last_high)}".strip()
    if row.collapsed:
        text += f" † {row.collapsed} of {row.seeds_read} ({', '.join(row.onset_step.split())})"
    return text
