"""The job behind one cell of the table: set up engines and state, run the loop, write the results - run.json last."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import shutil
import subprocess
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from pipeline.artifacts import atomic_folder, atomic_path, read_json, sha256, write_json, write_rows
from pipeline.cell import checkpoint
from pipeline.cell.attempts import begin_attempt
from pipeline.cell.checkpoint import CellState
from pipeline.cell.failure import FailureRecord
from pipeline.cell.heartbeat import HEARTBEAT, Heartbeat
from pipeline.cell.lease import lease
from pipeline.cell.loop import CellInputs, CellLoop
from pipeline.cell.progress import CellProgress
from pipeline.config import CellSettings, fingerprint
from pipeline.engines import policy_trainer, rollout_engine
from pipeline.policy.cpu import configure_cpu
from pipeline.policy.hf_folder import policy_digest
from pipeline.policy.tokenizer import read_tokenizer
from pipeline.problems.prepare import read_problems
from pipeline.processes.interpreters import engine_packages
from pipeline.processes.stop import Stop, stop_on_signals

KEPT = "results"  # a finished cell's results, in its state: Snakemake may delete those that it knows
PACKAGES = ("torch", "numpy", "tokenizers", "safetensors", "pyarrow", "snakemake")


def train_cell(
    settings: CellSettings, problems: Path, base_policy: Path, state_root: Path, results: Path, retrain: bool = False
) -> None:
    """Train one cell and write steps.parquet, evals.parquet and run.json into `results`.

    State lives in state_root/<fingerprint of computing settings, problems and base policy>. Unfinished state is resumed; a finished
    cell's results are handed out again, unless `retrain`: then its state is set aside and training starts at step 0. PlannedStop
    where the cell was told to stop: its state is saved.
    """
    configure_cpu(settings.trainer.threads)
    started, revision = time.time(), git_revision()
    tokenizer = read_tokenizer(base_policy)
    inputs = CellInputs(read_problems(problems / "train.parquet"), read_problems(problems / "evaluation.parquet"), tokenizer)
    identity = fingerprint(
        settings,
        policy_digest(base_policy),
        sha256(problems / "train.parquet"),
        sha256(problems / "evaluation.parquet"),
    )
    folder = state_root / identity
    with (
        stop_on_signals() as stop,
        lease(state_root, stop),
        FailureRecord(folder, fingerprint(settings)),
        Heartbeat(state_root / HEARTBEAT),
    ):
        kept = folder / KEPT
        if retrain and _finished_before(kept, started):
            os.replace(folder, _aside(folder))
        if not kept.exists():
            begin_attempt(folder, checkpoint.newest_step(folder / "checkpoints"))
            state = _train(settings, inputs, base_policy, folder, revision, stop)
            with atomic_folder(kept) as part:
                write_rows(part / "steps.parquet", [row.flat() for row in state.step_rows])
                write_rows(part / "evals.parquet", [row.flat() for row in state.eval_rows])
                write_json(part / "run.json", run_record(settings, identity, state))
        hand_out(folder, results)


def hand_out(folder: Path, results: Path) -> None:
    """Copy a finished cell's results out of its state, run.json last, and free what only training needed."""
    kept = folder / KEPT
    for name in ("steps.parquet", "evals.parquet", "run.json"):
        with atomic_path(results / name) as temporary:
            shutil.copyfile(kept / name, temporary)
    retained = read_json(kept / "run.json")["retained_weights"].values()
    checkpoint.prune_weights({entry["path"] for entry in retained})
    for superfluous in ("checkpoints", "published"):
        shutil.rmtree(folder / superfluous, ignore_errors=True)


def _train(settings: CellSettings, inputs: CellInputs, base_policy: Path, folder: Path, revision: str, stop: Stop) -> CellState:
    """Run the loop to its end, from its last checkpoint where there is one."""
    logs = folder / "logs"
    with (
        closing(CellProgress(settings, folder)) as progress,
        closing(policy_trainer(settings, base_policy, logs)) as trainer,
        closing(rollout_engine(settings, base_policy, inputs.tokenizer, logs)) as engine,
    ):
        return CellLoop(settings, inputs, engine, trainer, folder, progress, revision, stop).run()


def _finished_before(marker: Path, moment: float) -> bool:
    """Whether the state was finished before this attempt began - not by a process whose lease this attempt waited for."""
    return marker.exists() and marker.stat().st_mtime < moment


def _aside(folder: Path) -> Path:
    number = 1
    while (aside := folder.with_name(f"{folder.name}.replaced-{number}")).exists():
        number += 1
    return aside


def run_record(settings: CellSettings, identity: str, state: CellState) -> dict[str, Any]:
    """The content of run.json: what was run, where, with what, how long it took, and what it kept.

    wall_s counts every attempt, each up to its last checkpoint; cpu_s and peak_memory_bytes are those of the last attempt.
    """
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "method": settings.method,
        "lag": settings.lag,
        "seed": settings.seed,
        "preset": settings.preset,
        "settings": settings.model_dump(),
        "fingerprint": identity,
        "git_revision": ", then ".join(state.revisions),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES} | engine_packages(settings),
        "hardware": {
            "machine": platform.machine(),
            "processor": cpu_name(),
            "cores": os.cpu_count(),
            "system": platform.platform(),
        },
        "wall_s": state.seconds,
        "cpu_s": own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime,
        "peak_memory_bytes": 1024 * (own.ru_maxrss + children.ru_maxrss),
        "steps": len(state.step_rows),
        "nonfinite_steps": [row.step for row in state.step_rows if not row.update.finite],
        "resumed_at": state.resumed_at,
        "retained_weights": state.retained,
        "examples": state.examples,
    }


def git_revision() -> str:
    """The commit that is checked out, with "+changes" when tracked files differ from it; "unknown" outside a checkout."""
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        dirty = subprocess.run(["git", "diff", "--quiet", "HEAD"], check=False).returncode != 0
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit + ("+changes" if dirty else "")


def cpu_name() -> str:
    """The processor's model name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor())
