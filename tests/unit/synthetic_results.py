"""Writes the results folder of a run that never happened: plausible curves for every cell of the settings, from a fixed seed.

Not a model of any real result; only shapes, columns, orders of magnitude and the kinds of fault are meant to be right.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pandas as pd

from pipeline.artifacts import Cell, Layout, write_json
from pipeline.config import Settings, fingerprint, load_settings
from pipeline.results.families import family, has
from pipeline.results.frames import column
from pipeline.rollout.schedule import Schedule

OUTCOMES = np.array(["correct", "incorrect", "no_answer"])

KEYS = ("name", "dtype", "replay", "lag", "mismatch", "se", "n_tokens", "seeds")
LEVELS = (
    ("equal weights, float32, replay", "float32", True, 0, 1e-6, 1e-8, 20480, 3),
    ("equal weights, replay", "bfloat16", True, 0, 0.002, 1e-4, 20480, 3),
    ("equal weights", "bfloat16", False, 0, 0.003, 1e-4, 20480, 3),
    ("one step apart", "bfloat16", False, 1, 0.004, 2e-4, 20480, 3),
    ("eight steps apart", "bfloat16", False, 8, 0.018, 1e-3, 20480, 3),
)
MISMATCH = {"rows": [dict(zip(KEYS, level, strict=True)) for level in LEVELS]}


def plan(settings: Settings) -> dict:
    """A plan of every cell, 40 to 60 seconds each."""
    return {"cells": [{"method": c.method, "lag": c.lag, "seed": c.seed, "wall_s": [40.0, 60.0]} for c in settings.all_cells()]}


@dataclasses.dataclass(frozen=True)
class World:
    """What happens to the cells: who collapses from which step on, who is missing, who has non-finite steps, how much seeds
    differ.
    """

    collapsed: dict[tuple[str, str], int]
    missing: Collection[Cell] = ()
    nonfinite: Collection[Cell] = ()
    seed_sd: float = 0.08
    num_examples: int = 6


def write_results(layout: Layout, settings: Settings, world: World) -> None:
    """Write base_policy and every cell that is not missing, below the current folder."""
    _write_base(layout, settings)
    for cell in settings.all_cells():
        if cell not in world.missing:
            write_cell(layout, settings, cell, world)


def write_cell(layout: Layout, settings: Settings, cell: Cell, world: World) -> None:
    """Write the four files of one cell."""
    rng = _rng(str(cell))
    cell_settings = settings.cell(cell)
    schedule = Schedule.of(cell_settings)
    folder = layout.cell(cell)
    folder.mkdir(parents=True, exist_ok=True)
    level = 0.6 + rng.normal(0, world.seed_sd) + (0.12 if "sat" in cell.method else 0.0)
    level -= {"0": 0.0, "1": 0.0, "8": 0.25, "8-15": 0.45}[cell.lag]
    steps = np.arange(settings.trainer.steps)
    ability = level * 1.6 * (1 - np.exp(-(steps + 1) / 60))
    onset = world.collapsed.get((cell.method, cell.lag))
    if onset is not None:
        ability = np.where(steps > onset, ability - 3.5 * (1 - np.exp(-(steps - onset) / 12)), ability)
    bad = [len(steps) // 2] if cell in world.nonfinite else []
    _steps(rng, cell, settings, schedule, ability, onset, bad).to_parquet(folder / "steps.parquet", index=False)
    evaluations = _evaluations(rng, settings, schedule, ability)
    evaluations.to_parquet(folder / "evals.parquet", index=False)
    first = means_by(evaluations[~evaluations["repeated"]], "policy_version", "correct")
    versions = {"best": int(first.index[first.argmax()]), "last": len(steps)}
    scores = [
        _outcomes(rng, settings.problems.scoring_count, settings.evaluation.scoring_samples, ability[max(version - 1, 0)], "score")
        .assign(policy_version=version)
        .assign(checkpoint=name)
        for name, version in versions.items()
    ]
    columns = ["checkpoint", "policy_version", "problem_id", "sample", "correct", "outcome", "finish_reason", "length"]
    pd.concat(scores)[columns].to_parquet(folder / "scores.parquet", index=False)
    write_json(folder / "run.json", _run(rng, cell, settings, bad, versions, world))


def _rng(name: str) -> np.random.Generator:
    return np.random.default_rng(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big"))


def _difficulty(count: int, kind: str) -> np.ndarray:
    return _rng(f"difficulty of {kind}").normal(0.6, 1.5, size=count)


def _outcomes(rng: np.random.Generator, problems: int, samples: int, ability: float, kind: str) -> pd.DataFrame:
    probability = 1 / (1 + np.exp(_difficulty(problems, kind) - ability))
    correct = rng.random((problems, samples)) < probability[:, None]
    outcome = np.where(correct, 0, 1 + (rng.random(correct.shape) < 0.15))
    ids = np.repeat([f"{kind}-{i:03d}" for i in range(problems)], samples)
    length = rng.integers(10, 41, size=correct.size)
    return pd.DataFrame(
        {
            "problem_id": ids,
            "sample": np.tile(np.arange(samples), problems),
            "correct": correct.ravel(),
            "outcome": OUTCOMES[outcome.ravel()],
            "finish_reason": np.where(length == 40, "length", "stop"),
            "length": length,
        }
    )


def _write_base(layout: Layout, settings: Settings) -> None:
    layout.base_policy.mkdir(parents=True, exist_ok=True)
    parts = [
        _outcomes(_rng(name), count, samples, 0.0, kind).assign(checkpoint=name, policy_version=0)
        for name, kind, count, samples in (
            ("evaluation", "eval", settings.problems.evaluation_count, settings.evaluation.num_samples),
            ("scoring", "score", settings.problems.scoring_count, settings.evaluation.scoring_samples),
        )
    ]
    pd.concat(parts).to_parquet(layout.base_policy / "evals.parquet", index=False)


def _evaluations(rng: np.random.Generator, settings: Settings, schedule: Schedule, ability: np.ndarray) -> pd.DataFrame:
    parts, seen = [], {}
    for step in range(settings.evaluation.interval - 1, settings.trainer.steps, settings.evaluation.interval):
        version = schedule.published_version((step + 1) // schedule.steps_per_batch)
        repeated = version in seen
        if not repeated:
            seen[version] = _outcomes(
                rng, settings.problems.evaluation_count, settings.evaluation.num_samples, ability[max(version - 1, 0)], "eval"
            )
        parts.append(seen[version].assign(step=step, policy_version=version, repeated=repeated))
    return pd.concat(parts)


def _steps(
    rng: np.random.Generator,
    cell: Cell,
    settings: Settings,
    schedule: Schedule,
    ability: np.ndarray,
    onset: int | None,
    bad: list[int],
) -> pd.DataFrame:
    n, replayed = len(ability), has(cell.method, "R3")
    steps = np.arange(n)
    lag = np.array([schedule.lag(step) for step in steps])
    noise = np.exp(rng.normal(0, 0.08, n))
    mismatch = 0.003 * (0.75 if replayed else 1.0) * (1 + 0.6 * lag) * (1 + 1.2 * np.exp(-steps / 12)) * noise
    if onset is not None:
        mismatch *= np.where(steps > onset, np.exp(np.minimum((steps - onset) / 15, 3.0)), 1.0)
    tokens = rng.integers(2200, 3000, n)
    reward = 1 / (1 + np.exp(0.5 - ability)) + rng.normal(0, 0.03, n)
    frame = pd.DataFrame(
        {
            "step": steps,
            "batch": steps // schedule.steps_per_batch,
            "first_of_batch": steps % schedule.steps_per_batch == 0,
            "published_version": [schedule.published_version((step + 1) // schedule.steps_per_batch) for step in steps],
            "publish_debt": lag,
            "lag_mean": lag.astype(float),
            "lag_min": lag,
            "lag_max": lag,
            "lag_histogram": [json.dumps({str(k): int(t)}) for k, t in zip(lag, tokens, strict=True)],
            "reward_mean": np.clip(reward, 0, 1),
            "zero_variance_share": np.clip(rng.normal(0.3, 0.08, n), 0, 1),
            "response_length_mean": rng.normal(20, 1, n),
            "truncated_share": np.clip(rng.normal(0.03, 0.01, n), 0, 1),
            "num_responses": 128 // schedule.steps_per_batch,
            "num_tokens": tokens,
            "loss": rng.normal(0, 0.02, n),
            "policy_loss": rng.normal(0, 0.02, n),
            "reference_kl": 0.02 * (1 - np.exp(-steps / 50)),
            "entropy": 0.5 * np.exp(-steps / 150) * noise,
            "grad_norm": 0.4 * noise,
            "skipped": False,
            "finite": True,
            **_diagnostics(rng, cell.method, mismatch),
            "generate_s": 0.12,
            "wait_s": 0.02,
            "train_s": 0.11,
            "publish_s": np.where(steps % 8 == 7, 0.01, np.nan),
        }
    )
    for step in bad:
        frame.loc[step, ["loss", "policy_loss", "grad_norm", "mismatch", "k1"]] = [np.nan, np.nan, np.inf, np.inf, np.nan]
        frame.loc[step, ["finite", "skipped"]] = [False, True]
    return frame


def _diagnostics(rng: np.random.Generator, method: str, mismatch: np.ndarray) -> dict[str, object]:
    """The columns that follow from the mismatch; NaN where the method has no such thing."""
    n = len(mismatch)
    sat, tis, nan = has(method, "SAT"), has(method, "TIS"), np.full(n, np.nan)
    return {
        "mismatch": mismatch,
        "mismatch_response_mean": mismatch * 1.02,
        "k1": 0.06 * mismatch * np.exp(rng.normal(0, 0.2, n)) * rng.choice([1, 1, 1, -1], n),
        "k3": 0.05 * mismatch,
        "ess": 1 / (1 + mismatch),
        "ratio_mean": 1.0,
        "ratio_max": 1 + 30 * mismatch,
        "clip_share_low": 0.4 * mismatch,
        "clip_share_high": 0.5 * mismatch,
        "mask_share": mismatch if family(method) == "dppo" else nan,
        "tis_truncated_share": 0.1 * mismatch if tis else nan,
        "tis_weight_mean": 1 - 0.1 * mismatch if tis else nan,
        "sat_quantile": 2.2 * mismatch if sat else nan,
        "sat_gate_share": np.clip(rng.normal(0.097, 0.002, n), 0, 0.1) if sat else nan,
        "sat_min_contraction": 0.05 if sat else nan,
        "sat_radius_low": 0.2 - 0.6 * mismatch if sat else nan,
        "sat_radius_high": 0.2 - 0.5 * mismatch if sat else nan,
        "sat_newly_clipped_low": 0.3 * mismatch if sat else nan,
        "sat_newly_clipped_high": 0.4 * mismatch if sat else nan,
        "sat_fixed_clip_share_low": 0.1 * mismatch if sat else nan,
        "sat_fixed_clip_share_high": 0.1 * mismatch if sat else nan,
        "abs_d_p50": 0.4 * mismatch,
        "abs_d_p90": 2.2 * mismatch,
        "abs_d_p99": 9 * mismatch,
        "abs_d_max": 60 * mismatch,
    }


def _run(rng: np.random.Generator, cell: Cell, settings: Settings, bad: list[int], versions: dict[str, int], world: World) -> dict:
    total = float(rng.normal(52, 4))
    graded = [("correct", "5"), ("incorrect", "7"), ("no_answer", "")]
    examples = [
        {
            "policy_version": int(step),
            "problem_id": f"train-{i}",
            "prompt": f"{3 + i} * x + {4 + i} = {19 + 4 * i}; x = ?",
            "response": f"{3 + i} * x = 15 . x = {answer or '?'} . " + (f"\\boxed{{{answer}}}" if answer else "x = 5 x = 5 <b>"),
            "answer": "5",
            "outcome": outcome,
            "finish_reason": "stop" if answer else "length",
            "policies_differ": i == 5,
        }
        for i, (step, (outcome, answer)) in enumerate(zip([0, 0, 0, 199, 199, 199][: world.num_examples], graded * 2, strict=False))
    ]
    return {
        "method": cell.method,
        "lag": cell.lag,
        "seed": cell.seed,
        "preset": settings.preset,
        "settings": settings.cell(cell).model_dump(mode="json"),
        "fingerprint": fingerprint(settings.cell(cell)),
        "git_revision": "0123abcd" * 5,
        "packages": {"torch": "2.8.0", "numpy": "2.4.6", "pandas": "3.1.1"},
        "hardware": {"machine": "x86_64", "processor": "synthetic CPU", "cpus": 2, "memory_bytes": 8 * 2**30, "accelerators": []},
        "wall_s": {"total": total, "wait": 0.05 * total, "train": 0.5 * total, "publish": 0.01 * total, "evaluate": 0.2 * total},
        "cpu_s": 1.3 * total,
        "peak_memory_bytes": int(900e6),
        "steps": settings.trainer.steps,
        "nonfinite_steps": bad,
        "resumed_at": [],
        "retained_weights": {
            name: {"version": version, "path": f"v{version:06d}.safetensors", "sha256": "0" * 64}
            for name, version in versions.items()
        },
        "examples": examples,
    }


def means_by(table: pd.DataFrame, key: str, name: str) -> pd.Series:
    """Means of a column by the values of another, in order of these."""
    groups = column(table, name).groupby(column(table, key))
    return pd.Series({value: group.mean() for value, group in groups})


def copy_reference(source: Path, target: Path) -> None:
    """Give the folder `target` the repository's published numbers and claims."""
    (target / "results" / "reference").mkdir(parents=True, exist_ok=True)
    for name in ("table1.csv", "curves.csv", "claims.yaml"):
        (target / "results" / "reference" / name).write_text((source / name).read_text(encoding="utf-8"), encoding="utf-8")


@dataclasses.dataclass(frozen=True)
class Run:
    """A written run: where it lies, its settings and its layout (relative to `root`)."""

    root: Path
    settings: Settings
    layout: Layout


def write_run(root: Path, world: World, overrides: dict | None = None) -> Run:
    """Write a whole run with its reference files below `root`."""
    repository = Path(__file__).parents[2]
    settings = load_settings(repository / "config.yaml", overrides or {})
    copy_reference(repository / "results" / "reference", root)
    here = Path.cwd()
    os.chdir(root)
    try:
        write_results(Layout(settings.preset), settings, world)
    finally:
        os.chdir(here)
    return Run(root, settings, Layout(settings.preset))


def cells(methods: list[str], lags: list[str]) -> dict:
    """Overrides that leave only these cells."""
    nothing = {"methods": [], "lags": []}
    groups = dict.fromkeys(("uncorrected", "stress", "ablations", "figure1"), nothing)
    return {"cells": {"table": {"methods": methods, "lags": lags}, **groups}}
