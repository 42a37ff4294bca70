"""The cells of a run, read once: what rule collect leaves for table1, figures, diff and report, and how they read it.

results/<preset>/collected/
  facts.json           the cells of the settings, the gaps, and run.json of every cell that was read
  steps.parquet        the cells' tables, each as read_cell checked it, one under the other; `cell` says whose a row is
  evaluations.parquet
  scores.parquet
  base.parquet         outcomes of the base policy, a row for each of its problem sets
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.artifacts import COLLECTED, Cell, atomic_folder, write_json, write_rows
from pipeline.config import Settings
from pipeline.results.cell_files import (
    EVALUATION_COLUMNS,
    SCORE_COLUMNS,
    STEP_COLUMNS,
    STEPS_OF_SAT,
    STRICT,
    RunFile,
    arrow_schema,
    tokens_by_lag,
)
from pipeline.results.json_files import read_as
from pipeline.results.runs import FinishedRun, Gap, Results

FACTS, STEPS, EVALUATIONS, SCORES, BASE = COLLECTED
COLUMNS = {
    STEPS: ("cell", *STEP_COLUMNS, *STEPS_OF_SAT),
    EVALUATIONS: ("cell", *EVALUATION_COLUMNS, *STRICT),
    SCORES: ("cell", *SCORE_COLUMNS),
}
REMEDY = "run `python -m pipeline collect` or snakemake again"


@dataclass(frozen=True)
class Facts:
    """facts.json: str(cell) of every cell of the settings, what is missing or odd, and what the finished ones say of themselves."""

    cells: tuple[str, ...]
    gaps: tuple[Gap, ...]
    runs: tuple[RunFile, ...]


def write_collected(results: Results, folder: Path) -> None:
    """Write `results` into `folder`, all files or none."""
    runs = results.runs
    facts = {
        "cells": [str(cell) for cell in results.settings.all_cells()],
        "gaps": [asdict(gap) for gap in results.gaps],
        "runs": [run.run.model_dump(exclude_unset=True) for run in runs.values()],
    }
    with atomic_folder(folder) as part:
        write_json(part / FACTS, facts)
        _write(part / STEPS, {cell: run.steps for cell, run in runs.items()})
        _write(part / EVALUATIONS, {cell: run.evaluations for cell, run in runs.items()})
        _write(part / SCORES, {cell: run.scores for cell, run in runs.items() if run.scores is not None})
        write_rows(part / BASE, [{"problems": name, "correct": rows.tolist()} for name, rows in results.base.items()])


def read_collected(folder: Path, settings: Settings) -> Results:
    """What `write_collected` wrote for `settings`, with the same runs, gaps and outcomes. Raises ValueError with the file and the
    remedy where one is absent, damaged, of another version, or of a run of other cells.
    """
    path = folder / FACTS
    facts: Facts = read_as(Facts, path, REMEDY)
    other = sorted({str(cell) for cell in settings.all_cells()} ^ set(facts.cells))
    if other:
        raise ValueError(f"{path} was made for other cells than the settings name ({', '.join(other[:3])}); {REMEDY}")
    steps, evaluations, scores = (_by_cell(folder / name, columns) for name, columns in COLUMNS.items())
    runs = {}
    for run in facts.runs:
        cell = Cell(run.method, run.lag, run.seed)
        key = str(cell)
        for name, tables in ((STEPS, steps), (EVALUATIONS, evaluations)):
            if key not in tables:
                raise ValueError(f"{folder / name} has no rows of {cell}, of which {FACTS} speaks; {REMEDY}")
        lags = tokens_by_lag(steps[key]["lag_histogram"].tolist(), folder / STEPS)
        runs[cell] = FinishedRun(cell, run, steps[key], evaluations[key], scores.get(key), lags)
    return Results(settings, runs, _read_base(folder / BASE), facts.gaps)


def _write(path: Path, frames: Mapping[Cell, pd.DataFrame]) -> None:
    schema = arrow_schema(COLUMNS[path.name])
    tables = [pa.Table.from_pandas(frame.assign(cell=str(cell)), schema, preserve_index=False) for cell, frame in frames.items()]
    pq.write_table(pa.concat_tables([schema.empty_table(), *tables]), path)


def _by_cell(path: Path, columns: Sequence[str]) -> dict[str, pd.DataFrame]:
    """The rows of each cell in `path`, in their order."""
    table = _read(path)
    absent = [name for name in columns if name not in table.column_names]
    if absent:
        raise ValueError(f"{path} lacks the columns {', '.join(absent)}; {REMEDY}")
    cells = table["cell"].unique().to_pylist()
    return {cell: table.filter(pc.field("cell") == cell).select(columns[1:]).to_pandas(use_threads=False) for cell in cells}


def _read_base(path: Path) -> dict[str, NDArray[np.bool_]]:
    return {row["problems"]: np.array(row["correct"], dtype=bool) for row in _read(path).to_pylist()}


def _read(path: Path) -> pa.Table:
    try:
        with pq.ParquetFile(path) as file:
            return file.read(use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"{path} cannot be read: {' '.join(str(error).split())[:160]}; {REMEDY}") from error
