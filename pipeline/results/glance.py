"""The results at a glance, as READMEs show them: per method the accuracy of the last weights and the mismatch, at each lag."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pandas as pd

from pipeline.objective.methods import VARIANT
from pipeline.results import markdown
from pipeline.results.markdown import MISSING
from pipeline.results.table import Row, fresh_last, small


def glance(table: Path) -> list[str]:
    """A Markdown table, as lines, of the methods in `table` (a table1.csv); variants are left out.

    Fresh accuracy in % with its 95 % interval; † how many runs collapsed, with the steps of onset. OSError or ValueError where
    `table` cannot be read.
    """
    try:
        read = pd.read_csv(table, usecols=[field.name for field in fields(Row)], dtype={"lag": str, "onset_step": str})
    except ValueError as error:
        raise ValueError(f"{table} is not the table1.csv that a run writes: {error}") from error
    rows = [Row(**record) for record in read.to_dict("records") if VARIANT not in record["method"]]
    lags = list(dict.fromkeys(row.lag for row in rows))
    at = {(row.label, row.lag): row for row in rows}
    head = ["method", *(f"lag {lag}" for lag in lags), *(f"mismatch, lag {lag}" for lag in lags)]
    lines = []
    for label in dict.fromkeys(row.label for row in rows):
        own = [at.get((label, lag)) for lag in lags]
        accuracies = [_accuracy(row) if row else MISSING for row in own]
        mismatches = [small(row.mismatch) if row else MISSING for row in own]
        lines.append([label, *accuracies, *mismatches])
    return markdown.table(head, lines)


def _accuracy(row: Row) -> str:
    collapses = f" † {row.collapsed} of {row.seeds_read} ({', '.join(row.onset_step.split())})" if row.collapsed else ""
    return fresh_last(row) + collapses
