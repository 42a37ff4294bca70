"""docs/columns.md: every column of the tables that a cell leaves, with its unit and meaning, from where each is declared."""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.cell.step_row import SampleColumns, StepRow
from pipeline.columns import Column, columns_of_row
from pipeline.evaluation.rows import EvalRow, SampleRow, ScoreRow
from pipeline.objective.methods import METHODS, all_parts
from pipeline.objective.step_columns import COMMON
from pipeline.trainer.update import Update


def page() -> str:
    """The whole page, in Markdown."""
    lines = [
        "# Columns",
        "",
        "The tables that a cell leaves in `results/<preset>/cells/<method>/lag<lag>/seed<seed>/`. `python -m pipeline columns`",
        "prints this page from the declarations in the code, and a test compares the two.",
        "",
        "## steps.parquet",
        "",
        "A row per optimizer step. d = log pi - log mu of a token, r the method's ratio; shares and means are over active tokens.",
        "A value is NaN where a setting leaves the term out, and in a step that was skipped because a number was not finite.",
    ]
    lines += _table("The update", [*columns_of_row(Update), *COMMON])
    for part in all_parts():
        if part.columns:
            having = ", ".join(f"`{name}`" for name, method in METHODS.items() if method.has(part))
            lines += _table(f"Part {part.name}", part.columns, f"Only of {having}.")
    lines += _table("What was trained on", columns_of_row(SampleColumns))
    lines += _table("Schedule and time", columns_of_row(StepRow))
    lines += ["", "## evals.parquet and scores.parquet", "", "A row per graded response."]
    lines += _table("evals.parquet alone", columns_of_row(EvalRow), "Evaluations during training.")
    lines += _table("scores.parquet alone", columns_of_row(ScoreRow), "Fresh samples on the scoring problems.")
    lines += _table("Both", columns_of_row(SampleRow))
    return "\n".join(lines) + "\n"


def _table(title: str, columns: Iterable[Column], note: str = "") -> list[str]:
    rows = [f"| `{c.name}` | {c.unit} | {c.meaning.replace('|', chr(92) + '|')} |" for c in columns]
    return ["", f"### {title}", "", *([note, ""] if note else []), "| column | unit | meaning |", "|---|---|---|", *rows]
