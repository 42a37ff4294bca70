"""Columns are declared once: the page of them is the code's, rows have exactly them, and rows come back from a table."""

from __future__ import annotations

import math
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.artifacts import write_rows
from pipeline.cell.columns_page import page
from pipeline.cell.step_row import SampleColumns, StepRow, step_columns
from pipeline.evaluation.rows import EvalRow, sample_row
from pipeline.objective.diagnostics import columns_of
from pipeline.trainer.update import Update
from tests.unit.objective_reference import recipe

PAGE = Path(__file__).parents[2] / "docs" / "columns.md"


def step_row(name: str) -> StepRow:
    diagnostics = {column.name: 0.1 * index for index, column in enumerate(columns_of(recipe(name)))} | {"reference_kl": math.nan}
    samples = SampleColumns(1.5, 1, 2, '{"1": 3, "2": 3}', 0.5, 0.25, 3.0, 0.0, 2, 6)
    return StepRow(Update(diagnostics, -0.3, 1.25, False, True, 0.5), samples, 7, 3, True, 6, 1, 0.1, 0.2, 0.3)


def test_the_page_is_what_the_code_declares() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m pipeline columns > docs/columns.md"


@pytest.mark.parametrize("name", ["grpo", "sat-gspo-r3", "grpo-tis", "dppo", "gac", "m2po"])
def test_a_row_has_the_declared_columns_of_its_method_in_their_order(name: str) -> None:
    own = {column.name for column in columns_of(recipe(name))}
    every = [column.name for column in step_columns()]
    parts = set(every) - {column.name for column in columns_of(recipe("grpo"))} - step_row("grpo").flat().keys()
    assert list(step_row(name).flat()) == [column for column in every if column in own or column not in parts]
    assert len(every) == len(set(every)) and all(column.meaning and not column.meaning.endswith(".") for column in step_columns())


def test_rows_come_back_from_a_table_bit_for_bit(tmp_path: Path) -> None:
    rows = [step_row("sat-grpo"), step_row("sat-grpo")]
    write_rows(tmp_path / "steps.parquet", [row.flat() for row in rows])
    back = [StepRow.of(row) for row in pq.read_table(tmp_path / "steps.parquet").to_pylist()]
    for row, again in zip(rows, back, strict=True):
        assert list(again.flat()) == list(row.flat())
        assert all(a == b or (a != a and b != b) for a, b in zip(again.flat().values(), row.flat().values(), strict=True))
        assert (again.samples, again.step, again.publish_s) == (row.samples, row.step, row.publish_s)
    evals = [
        EvalRow(sample_row(3, "p1", sample, text, "7", "stop", 9), 4, False) for sample, text in enumerate(("\\boxed{7}", "no"))
    ]
    write_rows(tmp_path / "evals.parquet", [row.flat() for row in evals])
    assert [EvalRow.of(row) for row in pq.read_table(tmp_path / "evals.parquet").to_pylist()] == evals
    assert list(evals[0].flat())[:3] == ["step", "repeated", "policy_version"]
