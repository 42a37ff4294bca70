"""The cells of a run, read once: what rule collect leaves for table1, figures, diff and report, and how they read it.

    results/<preset>/collected/
      facts.json           the cells of the settings, the gaps, and run.json of every cell that was read
      steps.parquet        the cells' tables, each as read_cell checked it, one under the other; `cell` says whose a row is
      evaluations.parquet
      scores.parquet
      base.parquet         outcomes of the base policy, a row for each of its problem sets

In a table a column that a cell did not record is null, a value that it did not measure is NaN.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.artifacts import Cell, atomic_folder, write_json, write_rows
from pipeline.config import Settings
from pipeline.results.cell_files import (
    EVALUATION_COLUMNS,
    RECORDED_SINCE,
    SCORE_COLUMNS,
    STEP_COLUMNS,
    RunFile,
    arrow_type,
    tokens_by_lag,
)
from pipeline.results.json_files import read_as
from pipeline.results.runs import FinishedRun, Gap, Results

FILES = ("facts.json", "steps.parquet", "evaluations.parquet", "scores.parquet", "base.parquet")
COLUMNS = {
    "steps": (*STEP_COLUMNS, *RECORDED_SINCE),
    "evaluations": (*EVALUATION_COLUMNS, *RECORDED_SINCE),
    "scores": SCORE_COLUMNS,
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
    facts = {
        "cells": [str(cell) for cell in results.settings.all_cells()],
        "gaps": [asdict(gap) for gap in results.gaps],
        "runs": [run.run for run in results.runs.values()],
    }
    with atomic_folder(folder) as part:
        write_json(part / "facts.json", facts)
        for name, columns in COLUMNS.items():
            frames = {cell: frame for cell, run in results.runs.items() if (frame := getattr(run, name)) is not None}
            pq.write_table(_one_under_the_other(frames, columns), part / f"{name}.parquet")
        base = [{"problems": name, "correct": outcomes.tolist()} for name, outcomes in results.base.items()]
        write_rows(part / "base.parquet", base)


def read_collected(folder: Path, settings: Settings) -> Results:
    """What `write_collected` wrote for `settings`, with the same runs, gaps and outcomes. Raises ValueError with the file and the
    remedy where one is absent, damaged, of another version, or of a run of other cells.
    """
    path = folder / "facts.json"
    facts: Facts = read_as(Facts, path, REMEDY)
    other = sorted({str(cell) for cell in settings.all_cells()} ^ set(facts.cells))
    if other:
        raise ValueError(f"{path} was made for other cells than the settings name ({', '.join(other[:3])}); {REMEDY}")
    tables = {name: dict(_by_cell(folder / f"{name}.parquet", columns)) for name, columns in COLUMNS.items()}
    runs = {}
    for fact in facts.runs:
        cell = Cell(fact.method, fact.lag, fact.seed)
        steps, evaluations = (_of(cell, tables, name, folder) for name in ("steps", "evaluations"))
        lags = tokens_by_lag(steps["lag_histogram"].tolist(), folder / "steps.parquet")
        scores = tables["scores"].get(str(cell))
        runs[cell] = FinishedRun(cell, fact.model_dump(exclude_unset=True), steps, evaluations, scores, lags)
    return Results(settings, runs, _read_base(folder / "base.parquet"), facts.gaps)


def _one_under_the_other(frames: Mapping[Cell, pd.DataFrame], columns: Sequence[str]) -> pa.Table:
    schema = pa.schema([("cell", pa.string()), *((name, arrow_type(name)) for name in columns)])
    tables = []
    for cell, frame in frames.items():
        values = {name: pa.array(frame[name].to_numpy(), type=arrow_type(name)) for name in columns if name in frame}
        absent = {name: pa.nulls(len(frame), arrow_type(name)) for name in columns if name not in frame}
        tables.append(pa.table({"cell": [str(cell)] * len(frame)} | values | absent).select(schema.names))
    return pa.concat_tables(tables) if tables else schema.empty_table()


def _by_cell(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, pd.DataFrame]]:
    """The rows of each cell in `path`, in its order, with the columns that the cell recorded."""
    table = _read(path)
    absent = [name for name in ("cell", *columns) if name not in table.column_names]
    if absent:
        raise ValueError(f"{path} lacks the columns {', '.join(absent)}; {REMEDY}")
    start = 0
    for count in table["cell"].value_counts().to_pylist():  # in order of appearance
        rows = table.slice(start, count["counts"]).select(list(columns))
        start += count["counts"]
        recorded = [name for name in columns if rows[name].null_count < len(rows)]
        yield count["values"], rows.select(recorded).to_pandas(use_threads=False)


def _of(cell: Cell, tables: Mapping[str, Mapping[str, pd.DataFrame]], name: str, folder: Path) -> pd.DataFrame:
    if str(cell) not in tables[name]:
        raise ValueError(f"{folder / name}.parquet has no rows of {cell}, of which facts.json speaks; {REMEDY}")
    return tables[name][str(cell)]


def _read_base(path: Path) -> dict[str, NDArray[np.bool_]]:
    return {row["problems"]: np.array(row["correct"], dtype=bool) for row in _read(path).to_pylist()}


def _read(path: Path) -> pa.Table:
    try:
        with pq.ParquetFile(path) as file:
            return file.read(use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"{path} cannot be read: {' '.join(str(error).split())[:160]}; {REMEDY}") from error
