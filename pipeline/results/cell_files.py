"""The files that one cell leaves, read and checked: run.json and the tables steps, evals and scores.

Whatever is not as a finished cell writes it raises ValueError with the file, what is wrong, and the remedy; shapes and columns are
checked here once, so that every array made later is rectangular and numeric.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from pipeline.artifacts import Cell
from pipeline.results.json_files import read_as

# what the assembly reads; cells may record more. Of STEPS_OF_SAT and STRICT it reads as not measured what a cell lacks.
STEP_COLUMNS = (
    *("step", "first_of_batch", "lag_histogram", "reward_mean", "response_length_mean", "truncated_share", "zero_variance_share"),
    *("skipped", "finite", "mismatch", "k1", "clip_share_low", "clip_share_high"),
    *("abs_d_p50", "abs_d_p90", "abs_d_p99", "abs_d_max"),
)
STEPS_OF_SAT = (
    *("sat_quantile", "sat_gate_share", "sat_min_contraction", "sat_radius_low", "sat_radius_high"),
    *("sat_newly_clipped_low", "sat_newly_clipped_high", "sat_fixed_clip_share_low", "sat_fixed_clip_share_high"),
)
EVALUATION_COLUMNS = ("step", "policy_version", "problem_id", "sample", "correct", "repeated")
STRICT = ("correct_strict",)
SCORE_COLUMNS = ("checkpoint", "problem_id", "sample", "correct")
TEXT_COLUMNS = ("lag_histogram", "problem_id", "checkpoint", "id", "cell")
COUNTS = ("step", "policy_version", "sample")
TRUTHS = ("first_of_batch", "skipped", "finite", "correct", "correct_strict", "repeated")


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow")


class _TrainerSettings(_Open):
    steps: int


class _EvaluationSettings(_Open):
    interval: int


class _CellSettings(_Open):
    trainer: _TrainerSettings
    evaluation: _EvaluationSettings


class _Example(_Open):
    prompt: str
    response: str
    answer: str
    outcome: str
    finish_reason: str
    policy_version: int | None = None
    policies_differ: bool = False


class RunFile(_Open):
    """What the assembly reads in run.json; a finished cell writes more. Times in seconds, memory in bytes."""

    method: str
    lag: str
    seed: int
    settings: _CellSettings
    fingerprint: str
    wall_s: dict[str, float]
    steps: int
    cpu_s: float | None = None
    peak_memory_bytes: int | None = None
    git_revision: str | None = None
    hardware: dict[str, Any] | None = None
    packages: dict[str, str] | None = None
    nonfinite_steps: list[int] = []
    resumed_at: list[int] = []
    examples: list[_Example] = []


def damaged(path: Path, what: str) -> ValueError:
    """The error for a file of a cell: what is wrong with it, and that the cell writes it again."""
    return ValueError(f"{path.name}{what}; delete {path} and run snakemake again")


def read_run_file(path: Path, cell: Cell) -> RunFile:
    """run.json of `cell`."""
    run: RunFile = read_as(RunFile, path, "delete it and run snakemake again")
    if (run.method, run.lag, run.seed) != (cell.method, cell.lag, cell.seed):
        raise damaged(path, f" is of {Cell(run.method, run.lag, run.seed)}")
    if run.steps != run.settings.trainer.steps:
        raise damaged(path, f" counts {run.steps} steps, its settings {run.settings.trainer.steps}")
    return run


def read_table(path: Path, columns: Sequence[str], optional: Sequence[str] = ()) -> pd.DataFrame:
    """`columns` and `optional` ones of a Parquet file, each of its `arrow_type`; what it lacks of the latter is without values."""
    if not path.exists():
        raise damaged(path, " is missing beside run.json")
    try:
        with pq.ParquetFile(path, memory_map=True) as file:
            present = set(file.schema_arrow.names)
            table = file.read(columns=[name for name in (*columns, *optional) if name in present], use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise damaged(path, f" is not a readable Parquet file: {' '.join(str(error).split())[:160]}") from error
    absent = [name for name in columns if name not in present]
    if absent:
        raise damaged(path, f" lacks the columns {', '.join(absent)}")
    for field in table.schema:
        if (field.name in TEXT_COLUMNS) != (pa.types.is_string(field.type) or pa.types.is_large_string(field.type)):
            raise damaged(path, f": column {field.name} is of type {field.type}")
        if table[field.name].null_count and arrow_type(field.name) != pa.float64():
            raise damaged(path, f": column {field.name} has {table[field.name].null_count} rows without a value")
    for name in optional:
        if name not in present:
            table = table.append_column(name, pa.nulls(len(table), arrow_type(name)))
    try:
        return table.select([*columns, *optional]).cast(arrow_schema([*columns, *optional])).to_pandas(use_threads=False)
    except pa.ArrowException as error:
        raise damaged(path, f" holds what is no number: {' '.join(str(error).split())[:160]}") from error


def arrow_type(column: str) -> pa.DataType:
    """The type of a column that the assembly reads: text, a count, a truth, else a number, NaN where it was not measured."""
    kinds = {TEXT_COLUMNS: pa.string(), COUNTS: pa.int64(), TRUTHS: pa.bool_()}
    return next((kind for names, kind in kinds.items() if column in names), pa.float64())


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    return pa.schema([(name, arrow_type(name)) for name in columns])


def check_steps(steps: NDArray[np.int64], expected: range, path: Path) -> None:
    """The steps that a table speaks of, in order and each once, must be the expected ones."""
    if len(steps) != len(expected) or not np.array_equal(steps, np.asarray(expected)):
        last = f", the last {steps[-1]}" if len(steps) else ""
        raise damaged(path, f" holds {len(steps)} steps{last}; a finished cell has {len(expected)}, the last {expected[-1]}")


def check_shape(frame: pd.DataFrame, key: str, problems: int, samples: int, path: Path) -> None:
    """Every value of `key` must come with every sample of every one of `problems` problems, once."""
    keys, names = pd.factorize(frame[key])
    per_key = np.bincount(keys, minlength=len(names))
    problem, problem_ids = pd.factorize(frame["problem_id"])
    sample, sample_ids = pd.factorize(frame["sample"])
    rows = (keys * len(problem_ids) + problem) * len(sample_ids) + sample
    wrong = np.flatnonzero(per_key != problems * samples)
    if len(wrong):
        found = f"{key} {names[wrong[0]]} has {per_key[wrong[0]]} rows"
        raise damaged(path, f": {found}, expected {problems} problems x {samples} samples")
    if (len(problem_ids), len(sample_ids)) != (problems, samples) or len(np.unique(rows)) != len(rows):
        found = f"{len(problem_ids)} problems x {len(sample_ids)} samples or repeated rows"
        raise damaged(path, f" has {found}, expected {problems} x {samples} once each")


def tokens_by_lag(histograms: Sequence[str], path: Path) -> Counter[int]:
    """Response tokens at each realised lag, summed over the steps' histograms: '{"8": 2310}'."""
    total: Counter[int] = Counter()
    try:
        for histogram in json.loads(f"[{','.join(histograms)}]"):
            for lag, tokens in histogram.items():
                total[int(lag)] += int(tokens)
    except (ValueError, TypeError, AttributeError) as error:
        raise damaged(path, f": lag_histogram is not tokens by lag ({error})") from error
    return total
