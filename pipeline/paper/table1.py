"""Table 1 in the paper's layout, from whatever cells exist; as Markdown, CSV and LaTeX.

Blocks: the paper's thirteen rows at lags 1 and 8; the uncorrected baselines and further methods there; every row at another lag
(the stress panel at lags 8 to 15); and the variants, one setting changed.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pandas as pd

from pipeline.artifacts import write_text
from pipeline.objective.methods import TABLE_1, VARIANT
from pipeline.paper.lags import LAGS
from pipeline.results.collect import read_summary
from pipeline.results.families import uncorrected
from pipeline.results.runs import Results
from pipeline.results.table import Row, TableForm, render_latex, render_markdown, rows_of


def block_of(method: str, lag: str) -> str:
    """The block a row belongs to, a key of FORM.titles."""
    if VARIANT in method:
        return "variants"
    if lag not in LAGS:
        return "stress"
    if method in TABLE_1:
        return "table"
    return "uncorrected" if uncorrected(method) else "further"


FORM = TableForm(
    name="Table 1",
    titles={
        "table": "Table 1",
        "uncorrected": "Baselines without any staleness correction (the ratio's denominator is the trainer's own log-probs)",
        "further": "Further methods",
        "stress": "Stress panel: several optimizer steps per rollout batch",
        "variants": "Ablations: one setting changed",
    },
    block_of=block_of,
)


def table1_stage(results: Results, cells: Path, markdown: Path, csv: Path, latex: Path) -> list[Row]:
    """Write Table 1 in three forms from the summary table `cells` (cells.parquet) and the cells' scores; returns its rows."""
    rows = rows_of(results, read_summary(cells), FORM)
    write_text(markdown, render_markdown(rows, results, FORM))
    write_text(csv, pd.DataFrame([asdict(row) for row in rows]).to_csv(index=False, float_format="%.6g"))
    write_text(latex, render_latex(rows, results, FORM))
    return rows
