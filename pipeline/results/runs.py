"""Reads what the cells of a run have left on disk: results/<preset>/cells/*/ -> Results.

Whatever is absent, half-written or not as the settings say becomes a Gap with the cell's name and the reason; nothing is fatal and
nothing is dropped without being listed. Reading checks shapes once, so that every array made later is rectangular.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipeline.artifacts import Cell, Layout
from pipeline.cell.status import cell_status
from pipeline.config import Settings, changed_settings
from pipeline.evaluation.estimators import Interval, avg_at_k, hierarchical_interval
from pipeline.results.cell_files import (
    EVALUATION_COLUMNS,
    SCORE_COLUMNS,
    STEP_COLUMNS,
    STEPS_OF_SAT,
    STRICT,
    RunFile,
    check_shape,
    check_steps,
    read_run_file,
    read_table,
    tokens_by_lag,
)
from pipeline.results.collapse import Collapse, find_collapse
from pipeline.results.frames import column, rows_where


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
class FinishedRun:
    """One finished run: its run.json, per-step rows, evaluation rows, scoring rows (None where it was not scored), and the response
    tokens that were trained on at each realised lag.
    """

    cell: Cell
    run: RunFile
    steps: pd.DataFrame
    evaluations: pd.DataFrame
    scores: pd.DataFrame | None
    tokens_by_lag: Counter[int]

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
        return sorted({*map(int, flagged), *self.run.nonfinite_steps})

    @cached_property
    def outcomes_by_version(self) -> NDArray[np.bool_]:
        """Held-out outcomes [versions, problems, samples] of every version that was evaluated, each once, in order of the steps."""
        rows = rows_where(self.evaluations, ~column(self.evaluations, "repeated").to_numpy(dtype=bool))
        problem, problems = pd.factorize(rows["problem_id"], sort=True)
        sample, samples = pd.factorize(rows["sample"], sort=True)
        order = np.lexsort((sample, problem, column(rows, "step").to_numpy()))
        return column(rows, "correct").to_numpy(dtype=bool)[order].reshape(-1, len(problems), len(samples))

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
    runs: Mapping[Cell, FinishedRun]
    base: Mapping[str, NDArray[np.bool_]]
    gaps: tuple[Gap, ...]

    def of(self, method: str, lag: str) -> list[FinishedRun]:
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
    """Read every cell of `settings` that is on disk; the problems of all of them must be those of the run, else of the first."""
    runs: dict[Cell, FinishedRun] = {}
    problems, gaps = _read_problems(layout)
    for cell in settings.all_cells():
        folder = layout.cell(cell)
        try:
            found, notes = read_cell(folder, cell, settings)
            _same_problems({"evaluation": found.evaluations, "scoring": found.scores}, problems, folder)
        except FileNotFoundError as error:
            kind = "incomplete" if folder.exists() else "missing"
            gaps.append(Gap(str(cell), kind, f"{error}; {_standing(layout, settings, cell)}"))
        except (OSError, ValueError) as error:
            gaps.append(Gap(str(cell), "unreadable", str(error)))
        else:
            runs[cell] = found
            gaps += notes
    gaps += [Gap(name, "extra", "on disk but not among the cells of this run") for name in _extra_cells(layout, settings)]
    base, more = _read_base(layout, settings, problems)
    return Results(settings, runs, base, (*more, *gaps))


def _standing(layout: Layout, settings: Settings, cell: Cell) -> str:
    """Where an unfinished cell stands: "running at step 40 of 200", "failed at step 0 of 200: disk full"."""
    try:
        status = cell_status(layout, settings, cell)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        return f"{layout.cell_state(cell)} does not say where it stands ({type(error).__name__}: {error})"
    text = f"{status.state} at step {status.step} of {status.steps}" if status.state != "missing" else "not started"
    return f"{text}: {' '.join(status.note.split())[:240]}" if status.note else text


def read_cell(folder: Path, cell: Cell, settings: Settings) -> tuple[FinishedRun, list[Gap]]:
    """Read and check one cell. Raises FileNotFoundError if it is unfinished, ValueError if its files are not what they should
    be.
    """
    paths = {name: folder / f"{name}.parquet" for name in ("steps", "evals", "scores")}
    if not (folder / "run.json").exists():
        raise FileNotFoundError("not started" if not folder.exists() else "no run.json: still training, or interrupted")
    run = read_run_file(folder / "run.json", cell)
    steps = read_table(paths["steps"], STEP_COLUMNS, STEPS_OF_SAT).sort_values("step", ignore_index=True)
    check_steps(steps["step"].to_numpy(), range(run.steps), paths["steps"])
    evaluations = read_table(paths["evals"], EVALUATION_COLUMNS, STRICT)
    interval = run.settings.evaluation.interval
    points = np.unique(evaluations["step"].to_numpy())
    check_steps(points, range(interval - 1, run.steps, interval), paths["evals"])
    check_shape(evaluations, "step", settings.problems.evaluation_count, settings.evaluation.num_samples, paths["evals"])
    gaps = []
    scores = None
    if paths["scores"].exists():
        scores = read_table(paths["scores"], SCORE_COLUMNS)
        check_shape(scores, "checkpoint", settings.problems.scoring_count, settings.evaluation.scoring_samples, paths["scores"])
    else:
        gaps.append(Gap(str(cell), "unscored", "no scores.parquet: fresh accuracy of the last and the best checkpoint is missing"))
    changed = changed_settings(run.settings.model_dump(exclude_unset=True), settings.cell(cell))
    if changed:
        gaps.append(Gap(str(cell), "settings", "made with other settings: " + "; ".join(changed[:4])))
    return FinishedRun(cell, run, steps, evaluations, scores, tokens_by_lag(steps["lag_histogram"].tolist(), paths["steps"])), gaps


def outcome_matrix(rows: pd.DataFrame) -> NDArray[np.bool_]:
    """Outcomes [problems, samples] of rows that hold every sample of every problem once, problems in order of their id."""
    problem, problems = pd.factorize(rows["problem_id"], sort=True)
    sample, samples = pd.factorize(rows["sample"], sort=True)
    outcomes = np.zeros((len(problems), len(samples)), dtype=bool)
    outcomes[problem, sample] = rows["correct"].to_numpy(dtype=bool)
    return outcomes


def _read_problems(layout: Layout) -> tuple[dict[str, frozenset[str]], list[Gap]]:
    """The ids of the run's held-out problems, by set; a set whose file is not there is left out."""
    problems, gaps = {}, []
    for name in ("evaluation", "scoring"):
        path = layout.problems / f"{name}.parquet"
        try:
            if path.exists():
                problems[name] = frozenset(read_table(path, ("id",))["id"])
        except ValueError as error:
            gaps.append(Gap("problems", "unreadable", str(error)))
    return problems, gaps


def _same_problems(tables: Mapping[str, pd.DataFrame | None], problems: dict[str, frozenset[str]], folder: Path) -> None:
    """Raise ValueError where a table has other problems than `problems`, which takes in those of a set it lacks.

    Outcomes of cells are stacked and paired by the order of their problems, which says nothing unless the problems are the same.
    """
    for name, table in tables.items():
        if table is None:
            continue
        ids = frozenset(table["problem_id"].unique())
        other = sorted(ids - problems.setdefault(name, ids))
        if other:
            some = ", ".join([*other[:3], *(["..."] if len(other) > 3 else [])])
            raise ValueError(f"{name} problems other than the run's: {some}; delete the files in {folder} and run snakemake again")


def _read_base(
    layout: Layout, settings: Settings, problems: dict[str, frozenset[str]]
) -> tuple[dict[str, NDArray[np.bool_]], list[Gap]]:
    path = layout.base_policy / "evals.parquet"
    if not path.exists():
        return {}, [Gap("base_policy", "missing", "no evals.parquet: gains over the base cannot be given")]
    counts = {
        "evaluation": (settings.problems.evaluation_count, settings.evaluation.num_samples),
        "scoring": (settings.problems.scoring_count, settings.evaluation.scoring_samples),
    }
    try:
        frame = read_table(path, SCORE_COLUMNS)
        tables = {name: rows_where(frame, frame["checkpoint"] == name) for name in counts}
        for name, (count, samples) in counts.items():
            check_shape(tables[name], "checkpoint", count, samples, path)
        _same_problems(tables, problems, layout.base_policy)
    except ValueError as error:
        return {}, [Gap("base_policy", "unreadable", str(error))]
    return {name: outcome_matrix(table) for name, table in tables.items()}, []


def _extra_cells(layout: Layout, settings: Settings) -> list[str]:
    known = {str(cell) for cell in settings.all_cells()}
    root = layout.results / "cells"
    return sorted(
        name for path in root.glob("*/lag*/seed*/run.json") if (name := path.parent.relative_to(root).as_posix()) not in known
    )
