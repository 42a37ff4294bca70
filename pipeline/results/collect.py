"""Cells on disk -> one summary table, a row for every run of the settings: read, missing or damaged.

cells.parquet and cells.csv carry, per run: status and reason; best (as the paper: over distinct versions), best_step, last,
tail_mean of the held-out curve; unbiased_best and best_inflation (evaluation/selection.py); from the scoring problems fresh_best,
and fresh_last with its standard errors (se_sampling: these very problems; se_clustered: problems too) and t interval; mismatch over
the last quarter and the whole run; collapse with cause and onset, and the step where mismatch leaves its band; the realised lag
histogram; times and memory. NaN means "not measured", never "not finite": non-finite steps are left out of the means and counted in
nonfinite_steps.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.artifacts import atomic_path, write_text
from pipeline.evaluation.estimators import (
    avg_at_k,
    best_over_versions,
    clustered_interval,
    clustered_standard_error,
    pass_at_k,
    sampling_standard_error,
    tail_mean,
)
from pipeline.evaluation.selection import unbiased_best
from pipeline.objective.methods import method_of
from pipeline.results.cell_files import RunFile
from pipeline.results.collapse import leaves_band
from pipeline.results.frames import column, rows_where
from pipeline.results.runs import FinishedRun, Results

TAIL = 0.25
SPLIT_SEED = 1729

COLUMNS: dict[str, str] = {
    "method": "str", "label": "str", "lag": "str", "seed": "int64", "status": "str", "reason": "str", "steps": "Int64",
    "num_evaluations": "Int64", "num_versions": "Int64", "best": "float64", "best_step": "Int64", "last": "float64",
    "tail_mean": "float64", "unbiased_best": "float64", "best_inflation": "float64", "fresh_best": "float64",
    "fresh_last": "float64", "fresh_last_pass_at_k": "float64", "fresh_last_se_sampling": "float64",
    "fresh_last_se_clustered": "float64", "fresh_last_low": "float64", "fresh_last_high": "float64", "gain_last": "float64",
    "gain_best": "float64", "reward_tail": "float64", "mismatch": "float64", "mismatch_run": "float64",
    "mismatch_peak": "float64", "mismatch_peak_step": "Int64", "k1": "float64", "collapsed": "boolean", "collapse_cause": "str",
    "onset_step": "Int64", "mismatch_leaves_band": "Int64", "nonfinite_steps": "Int64", "skipped_steps": "Int64",
    "lag_mean": "float64", "lag_max": "Int64", "lag_histogram": "str", "response_length_mean": "float64",
    "truncated_share": "float64", "zero_variance_share": "float64", "clip_share": "float64",
    "sat_newly_clipped_share": "float64", "sat_gate_share_max": "float64",
    "wall_s": "float64", "wait_s": "float64", "train_s": "float64", "publish_s": "float64", "evaluate_s": "float64",
    "cpu_s": "float64", "peak_memory_bytes": "Int64", "resumed": "Int64", "fingerprint": "str", "git_revision": "str",
}  # fmt: skip


def collect_stage(results: Results, parquet: Path, csv: Path) -> pd.DataFrame:
    """Summarise every cell of the run into `parquet` and `csv`; returns the table."""
    table = summarise(results)
    with atomic_path(parquet) as temporary:
        table.to_parquet(temporary, index=False)
    write_text(csv, table.to_csv(index=False, float_format="%.6g"))
    return table


def read_summary(path: Path) -> pd.DataFrame:
    """Read a summary table that `collect_stage` wrote. Raises ValueError if it is absent or not one."""
    try:
        table = pd.read_parquet(path)
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"cannot read the summary table {path}: {error}; run `snakemake {path}`") from error
    absent = [name for name in COLUMNS if name not in table.columns]
    if absent:
        raise ValueError(f"{path} lacks the columns {', '.join(absent)}; delete it and run `snakemake {path}`")
    return table


def summarise(results: Results) -> pd.DataFrame:
    """One row per run of the settings, in their order, with the columns and types of COLUMNS."""
    reasons: dict[str, list[str]] = {}
    for gap in results.gaps:
        reasons.setdefault(gap.cell, []).append(gap.reason)
    status = {gap.cell: gap.kind for gap in results.gaps if gap.kind in ("missing", "incomplete", "unreadable")}
    rows = []
    for cell in results.settings.all_cells():
        row: dict[str, Any] = {"method": cell.method, "label": method_of(cell.method).label, "lag": cell.lag, "seed": cell.seed}
        row |= {"status": status.get(str(cell), "complete"), "reason": "; ".join(reasons.get(str(cell), []))}
        if cell in results.runs:
            row |= summarise_run(results.runs[cell], results)
        rows.append(row)
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    return table.astype({name: kind for name, kind in COLUMNS.items() if kind != "str"}).fillna(
        {name: "" for name, kind in COLUMNS.items() if kind == "str"}
    )


def summarise_run(run: FinishedRun, results: Results) -> dict[str, Any]:
    """The numbers of one run, as a row of the summary table."""
    base = {name: avg_at_k(outcomes) for name, outcomes in results.base.items()}
    row: dict[str, Any] = _curve_summary(run) | _step_summary(run) | _cost_summary(run.run)
    for name, outcomes in run.score.items():
        row[f"fresh_{name}"] = avg_at_k(outcomes)
        row[f"gain_{name}"] = row[f"fresh_{name}"] - base.get("scoring", np.nan)
    if "last" in run.score:
        row |= _last_summary(run.score["last"])
    collapse = results.collapses[run.cell]
    row |= {"collapsed": collapse.collapsed, "collapse_cause": collapse.cause, "onset_step": collapse.onset_step}
    row["mismatch_leaves_band"] = leaves_band(mismatch_series(run))
    skipped = column(run.steps, "skipped").astype(bool)
    return row | {"nonfinite_steps": len(run.nonfinite_steps), "skipped_steps": int(skipped.sum())}


def mismatch_series(run: FinishedRun, column: str = "mismatch", *, tail: float = 1.0, before: int | None = None) -> pd.Series:
    """Finite values by step of the first optimizer step of every rollout batch.

    tail: the trailing share of the run to keep.  before: only steps before this one count as the run.
    """
    step = run.steps["step"].to_numpy()
    values = run.steps[column].to_numpy(dtype=float)
    end = int(step[-1]) + 1 if before is None else before
    first = run.steps["first_of_batch"].to_numpy(dtype=bool)
    kept = first & (step < end) & (step >= (1.0 - tail) * end) & np.isfinite(values)
    return pd.Series(values[kept], index=step[kept])


def late_mismatch(runs: Iterable[FinishedRun], before: int | None = None) -> list[NDArray[np.float64]]:
    """The positive mismatches of the last quarter of each run, as `mismatch_series` counts it; a run without any is left out."""
    series = (mismatch_series(run, tail=TAIL, before=before).to_numpy() for run in runs)
    return [positive for values in series if len(positive := values[values > 0])]


def _last_summary(outcomes: NDArray[np.bool_]) -> dict[str, float]:
    """Fresh samples of the last checkpoint, 0/1 [problems, samples]: pass@k, both standard errors, the run's own interval."""
    interval = clustered_interval(outcomes)
    return {
        "fresh_last_pass_at_k": pass_at_k(outcomes, outcomes.shape[1]),
        "fresh_last_se_sampling": sampling_standard_error(outcomes),
        "fresh_last_se_clustered": clustered_standard_error(outcomes),
        "fresh_last_low": interval.low,
        "fresh_last_high": interval.high,
    }


def _curve_summary(run: FinishedRun) -> dict[str, Any]:
    points = run.accuracy_by_step
    best = best_over_versions(points["policy_version"], points["accuracy"])
    selection = unbiased_best(run.outcomes_by_version, np.random.default_rng(SPLIT_SEED))
    return {
        "num_evaluations": len(points),
        "num_versions": int(column(points, "policy_version").nunique()),
        "best": float(points["accuracy"].iloc[best]),
        "best_step": int(points["step"].iloc[best]),
        "unbiased_best": selection.unbiased,
        "best_inflation": selection.inflation,
        "last": float(points["accuracy"].iloc[-1]),
        "tail_mean": tail_mean(points["step"], points["accuracy"], len(run.steps), TAIL),
    }


def _step_summary(run: FinishedRun) -> dict[str, Any]:
    steps = run.steps
    late = rows_where(steps, steps["step"] >= (1.0 - TAIL) * len(steps))
    whole = mismatch_series(run)
    lags = run.tokens_by_lag
    tokens = sum(lags.values())
    return {
        "steps": len(steps),
        "reward_tail": _finite_mean(column(late, "reward_mean")),
        "mismatch": _finite_mean(mismatch_series(run, tail=TAIL)),
        "mismatch_run": _finite_mean(whole),
        "mismatch_peak": float(whole.max()) if len(whole) else np.nan,
        "mismatch_peak_step": int(whole.index[whole.argmax()]) if len(whole) else None,
        "k1": _finite_mean(mismatch_series(run, "k1", tail=TAIL)),
        "lag_mean": sum(lag * count for lag, count in lags.items()) / tokens if tokens else np.nan,
        "lag_max": max(lags, default=None),
        "lag_histogram": json.dumps({str(lag): lags[lag] for lag in sorted(lags)}),
        "response_length_mean": _finite_mean(column(late, "response_length_mean")),
        "truncated_share": _finite_mean(column(late, "truncated_share")),
        "zero_variance_share": _finite_mean(column(late, "zero_variance_share")),
        "clip_share": _finite_mean(column(steps, "clip_share_low") + column(steps, "clip_share_high")),
        "sat_newly_clipped_share": _finite_mean(column(steps, "sat_newly_clipped_low") + column(steps, "sat_newly_clipped_high")),
        "sat_gate_share_max": float(column(steps, "sat_gate_share").max()),
    }


def _cost_summary(run: RunFile) -> dict[str, Any]:
    wall = run.wall_s
    return {
        "wall_s": wall.get("total", np.nan),
        **{f"{name}_s": wall.get(name, np.nan) for name in ("wait", "train", "publish", "evaluate")},
        "cpu_s": run.cpu_s,
        "peak_memory_bytes": run.peak_memory_bytes,
        "resumed": len(run.resumed_at),
        "fingerprint": run.fingerprint,
        "git_revision": run.git_revision or "",
    }


def _finite_mean(values: pd.Series) -> float:
    array = values.to_numpy(dtype=float)
    finite = array[np.isfinite(array)]
    return float(finite.mean()) if len(finite) else float("nan")
