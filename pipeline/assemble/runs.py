"""Reads what the cells of a run have left on disk: results/<preset>/cells/*/ -> Results.

Whatever is absent, half-written or not as the settings say becomes a Gap with the cell's name and the reason; nothing is fatal and
nothing is dropped without being listed. Reading checks shapes once, so that every array made later is rectangular.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.artifacts import Cell, Layout
from pipeline.assemble.collapse import Collapse, find_collapse
from pipeline.config import Settings, changed_settings
from pipeline.evaluation.estimators import Interval, avg_at_k, hierarchical_interval
from pipeline.launch.status import CellStatus, cell_status

# what the assembly reads; cells may record more
STEP_COLUMNS = (
    *("step", "first_of_batch", "lag_histogram", "reward_mean", "response_length_mean", "truncated_share", "zero_variance_share"),
    *(
        "skipped",
        "finite",
        "mismatch",
        "k1",
        "clip_share_low",
        "clip_share_high",
        "abs_d_p50",
        "abs_d_p90",
        "abs_d_p99",
        "abs_d_max",
    ),
    *("sat_quantile", "sat_gate_share", "sat_radius_low", "sat_radius_high"),
)
EVALUATION_COLUMNS = ("step", "policy_version", "problem_id", "sample", "correct", "repeated")
RECORDED_SINCE = ("correct_strict",)  # read where a cell has it
SCORE_COLUMNS = ("checkpoint", "problem_id", "sample", "correct")
RUN_KEYS = ("method", "lag", "seed", "settings", "fingerprint", "wall_s", "steps")


@dataclass(frozen=True)
class Gap:
    """Something a reader would expect and does not get (or gets otherwise): Gap(cell, "missing", "no run.json").

    kind: missing | incomplete | unreadable | unscored | settings (read, but made with other settings) | extra (on disk, not in
    this run).
    """

    cell: str
    kind: str
    reason: str


@dataclass(frozen=True)
class CellRun:
    """One finished run: its run.json, per-step rows, evaluation rows, and scoring rows (None where it was not scored)."""

    cell: Cell
    run: Mapping[str, Any]
    steps: pd.DataFrame
    evaluations: pd.DataFrame
    scores: pd.DataFrame | None

    @cached_property
    def accuracy_by_step(self) -> pd.DataFrame:
        """One row per evaluation point: step, policy_version, repeated, accuracy (avg@k)."""
        step = self.evaluations["step"].to_numpy()
        order = np.argsort(step, kind="stable")
        points = len(np.unique(step))  # every point has the same number of rows: read_cell checks it
        first = order.reshape(points, -1)[:, 0]
        return pd.DataFrame(
            {name: self.evaluations[name].to_numpy()[first] for name in ("step", "policy_version", "repeated")}
            | {"accuracy": self.evaluations["correct"].to_numpy(dtype=float)[order].reshape(points, -1).mean(axis=1)}
        )

    @cached_property
    def nonfinite_steps(self) -> list[int]:
        """Steps whose loss or gradient was not finite, by run.json and by the rows."""
        flagged = self.steps.loc[~self.steps["finite"].astype(bool), "step"].tolist()
        return sorted({*map(int, flagged), *map(int, self.run.get("nonfinite_steps", []))})

    @cached_property
    def outcomes_by_version(self) -> NDArray[np.bool_]:
        """Held-out outcomes [versions, problems, samples] of every version that was evaluated, each once, in order of the steps."""
        rows = self.evaluations[~self.evaluations["repeated"].to_numpy(dtype=bool)]
        problem, problems = pd.factorize(rows["problem_id"], sort=True)
        sample, samples = pd.factorize(rows["sample"], sort=True)
        order = np.lexsort((sample, problem, rows["step"].to_numpy()))
        return rows["correct"].to_numpy(dtype=bool)[order].reshape(-1, len(problems), len(samples))

    @cached_property
    def score(self) -> Mapping[str, NDArray[np.bool_]]:
        """Fresh outcomes [problems, samples] by checkpoint (best, last), problems in order of their id; empty where not scored."""
        if self.scores is None:
            return {}
        return {str(name): outcome_matrix(rows) for name, rows in self.scores.groupby("checkpoint")}


@dataclass(frozen=True)
class Results:
    """All that could be read of one preset: runs by cell, the base policy's outcomes by problem set, and the gaps."""

    settings: Settings
    runs: Mapping[Cell, CellRun]
    base: Mapping[str, NDArray[np.bool_]]
    gaps: tuple[Gap, ...]

    def of(self, method: str, lag: str) -> list[CellRun]:
        """The runs of a method at a lag, by seed."""
        return [self.runs[cell] for cell in sorted(self.runs) if (cell.method, cell.lag) == (method, lag)]

    def scored(self, method: str, lag: str, checkpoint: str) -> NDArray[np.bool_] | None:
        """Fresh outcomes [seeds, problems, samples] of a method at a lag; None where no seed is scored."""
        scores = [run.score[checkpoint] for run in self.of(method, lag) if checkpoint in run.score]
        return np.stack(scores) if scores else None

    @cached_property
    def collapses(self) -> Mapping[Cell, Collapse]:
        """The collapse rule applied to every run, with the base policy's accuracy where it is known."""
        base = avg_at_k(self.base["evaluation"]) if "evaluation" in self.base else None
        return {cell: find_collapse(run.accuracy_by_step, run.steps, run.nonfinite_steps, base) for cell, run in self.runs.items()}

    @cached_property
    def onsets(self) -> Mapping[tuple[str, str], list[int]]:
        """Onset steps of the collapsed runs, by (method, lag)."""
        onsets: dict[tuple[str, str], list[int]] = {}
        for cell, collapse in self.collapses.items():
            if collapse.onset_step is not None:
                onsets.setdefault((cell.method, cell.lag), []).append(collapse.onset_step)
        return onsets

    def accuracy_interval(self, method: str, lag: str, checkpoint: str) -> Interval:
        """Fresh accuracy with its 95 % interval over seeds and problems; NaN where no seed is scored."""
        key = (method, lag, checkpoint)
        if key not in self._intervals:
            outcomes = self.scored(method, lag, checkpoint)
            self._intervals[key] = (
                Interval(np.nan, np.nan, np.nan, 0.95, ()) if outcomes is None else hierarchical_interval(outcomes)
            )
        return self._intervals[key]

    @cached_property
    def _intervals(self) -> dict[tuple[str, str, str], Interval]:
        return {}

    def rows(self) -> list[tuple[str, str]]:
        """The (method, lag) pairs this run is made of, in the order of the settings."""
        return list(dict.fromkeys((cell.method, cell.lag) for cell in self.settings.all_cells()))


def read_results(layout: Layout, settings: Settings) -> Results:
    """Read every cell of `settings` that is on disk."""
    runs: dict[Cell, CellRun] = {}
    base, gaps = _read_base(layout, settings)
    for cell in settings.all_cells():
        folder = layout.cell(cell)
        try:
            runs[cell], notes = read_cell(folder, cell, settings)
            gaps += notes
        except FileNotFoundError as error:
            kind = "incomplete" if folder.exists() else "missing"
            gaps.append(Gap(str(cell), kind, f"{error}; {_standing(cell_status(layout, settings, cell))}"))
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
            gaps.append(Gap(str(cell), "unreadable", _one_line(error)))
    gaps += [Gap(name, "extra", "on disk but not among the cells of this run") for name in _extra_cells(layout, settings)]
    return Results(settings, runs, base, tuple(gaps))


def _standing(status: CellStatus) -> str:
    """Where an unfinished cell stands: "running at step 40 of 200", "failed at step 0 of 200: disk full"."""
    text = f"{status.state} at step {status.step} of {status.steps}" if status.state != "missing" else "not started"
    return f"{text}: {_one_line(ValueError(status.note))}" if status.note else text


def read_cell(folder: Path, cell: Cell, settings: Settings) -> tuple[CellRun, list[Gap]]:
    """Read and check one cell. Raises FileNotFoundError if it is unfinished, ValueError if its files are not what they should
    be.
    """
    if not (folder / "run.json").exists():
        raise FileNotFoundError("not started" if not folder.exists() else "no run.json: still training, or interrupted")
    run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    absent = [key for key in RUN_KEYS if key not in run]
    if absent:
        raise ValueError(f"run.json lacks {', '.join(absent)}")
    steps = _read_table(folder / "steps.parquet", STEP_COLUMNS)
    evaluations = _read_table(folder / "evals.parquet", EVALUATION_COLUMNS, RECORDED_SINCE)
    if len(steps) == 0 or len(evaluations) == 0:
        raise ValueError(f"{len(steps)} steps and {len(evaluations)} evaluation rows; a finished cell has both")
    _check_shape(evaluations, "step", settings.problems.evaluation_count, settings.evaluation.num_samples, "evals.parquet")
    gaps = []
    scores = None
    if (folder / "scores.parquet").exists():
        scores = _read_table(folder / "scores.parquet", SCORE_COLUMNS)
        _check_shape(scores, "checkpoint", settings.problems.scoring_count, settings.evaluation.scoring_samples, "scores.parquet")
    else:
        gaps.append(Gap(str(cell), "unscored", "no scores.parquet: fresh accuracy of the last and the best checkpoint is missing"))
    changed = changed_settings(run["settings"], settings.cell(cell))
    if changed:
        gaps.append(Gap(str(cell), "settings", "made with other settings: " + "; ".join(changed[:4])))
    return CellRun(cell, run, steps.sort_values("step", ignore_index=True), evaluations, scores), gaps


def outcome_matrix(rows: pd.DataFrame) -> NDArray[np.bool_]:
    """Outcomes [problems, samples] of rows that hold every sample of every problem once, problems in order of their id."""
    problem, problems = pd.factorize(rows["problem_id"], sort=True)
    sample, samples = pd.factorize(rows["sample"], sort=True)
    outcomes = np.zeros((len(problems), len(samples)), dtype=bool)
    outcomes[problem, sample] = rows["correct"].to_numpy(dtype=bool)
    return outcomes


def _read_table(path: Path, columns: Sequence[str], optional: Sequence[str] = ()) -> pd.DataFrame:
    if not path.exists():
        raise ValueError(f"{path.name} is missing beside run.json")
    with pq.ParquetFile(path, memory_map=True) as file:
        present = set(file.schema_arrow.names)
        table = file.read(columns=[name for name in (*columns, *optional) if name in present], use_threads=False)
    absent = [name for name in columns if name not in present]
    if absent:
        raise ValueError(f"{path.name} lacks the columns {', '.join(absent)}")
    return table.to_pandas(use_threads=False)


def _check_shape(frame: pd.DataFrame, key: str, problems: int, samples: int, name: str) -> None:
    """Every value of `key` must come with every sample of every one of `problems` problems, once."""
    keys, names = pd.factorize(frame[key])
    per_key = np.bincount(keys, minlength=len(names))
    problem, problem_ids = pd.factorize(frame["problem_id"])
    sample, sample_ids = pd.factorize(frame["sample"])
    rows = (keys * len(problem_ids) + problem) * len(sample_ids) + sample
    wrong = np.flatnonzero(per_key != problems * samples)
    if len(wrong):
        raise ValueError(
            f"{name}: {key} {names[wrong[0]]} has {per_key[wrong[0]]} rows, expected {problems} problems x {samples} samples"
        )
    if (len(problem_ids), len(sample_ids)) != (problems, samples) or len(np.unique(rows)) != len(rows):
        raise ValueError(
            f"{name} has {len(problem_ids)} problems x {len(sample_ids)} samples or repeated rows, expected {problems} x "
            f"{samples} once each"
        )


def _read_base(layout: Layout, settings: Settings) -> tuple[dict[str, NDArray[np.bool_]], list[Gap]]:
    path = layout.base_policy / "evals.parquet"
    if not path.exists():
        return {}, [Gap("base_policy", "missing", "no evals.parquet: gains over the base cannot be given")]
    counts = {
        "evaluation": (settings.problems.evaluation_count, settings.evaluation.num_samples),
        "scoring": (settings.problems.scoring_count, settings.evaluation.scoring_samples),
    }
    base = {}
    try:
        frame = _read_table(path, SCORE_COLUMNS)
        for name, (problems, samples) in counts.items():
            rows = frame[frame["checkpoint"] == name]
            _check_shape(rows, "checkpoint", problems, samples, "evals.parquet")
            base[name] = outcome_matrix(rows)
    except (OSError, ValueError, pa.ArrowException) as error:
        return {}, [Gap("base_policy", "unreadable", _one_line(error))]
    return base, []


def _extra_cells(layout: Layout, settings: Settings) -> list[str]:
    known = {str(cell) for cell in settings.all_cells()}
    root = layout.results / "cells"
    return sorted(
        name for path in root.glob("*/lag*/seed*/run.json") if (name := path.parent.relative_to(root).as_posix()) not in known
    )


def _one_line(error: BaseException) -> str:
    """The error in one line; its type too where the message was not written by this module."""
    kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
    return kind + " ".join(str(error).split())[:240]
