"""Where every cell of a run stands, from files alone: results/<preset>/cells, state/<preset>/cells. For `status`, `watch`, reports.

missing: nothing there.  queued: nothing there yet, while other cells of the run are at work.  running: its heartbeat is fresh.
resumable: a checkpoint to continue from, nobody at work.  failed: the last attempt ended by an error.  finished: run.json of the
present settings.  stale: run.json of other settings.  State of other settings is never resumed and does not count. Other settings
are those that compute something else (pipeline/identity.py).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from pipeline.artifacts import Cell, Layout, read_json
from pipeline.cell.failure import failure_path
from pipeline.cell.heartbeat import HEARTBEAT, alive
from pipeline.config import CellSettings, Settings, changed_settings, fingerprint, load_settings, read_settings

State = Literal["running", "failed", "stale", "resumable", "queued", "missing", "finished"]
STATES: tuple[State, ...] = ("running", "failed", "stale", "resumable", "queued", "missing", "finished")
_COLOURS = {"running": "green", "failed": "red", "stale": "yellow", "resumable": "cyan", "finished": "bold"}


@dataclass(frozen=True)
class CellStatus:
    """One cell's state and last known numbers; None where they are not known.

    step: optimizer steps done of `steps`; of a resumable cell those in its checkpoint.  seconds: spent so far, all attempts.
    num_gpus: held by the cell, 0 on CPUs.  note: why a cell has failed or is stale.
    """

    cell: Cell
    state: State
    step: int
    steps: int
    num_gpus: int
    reward: float | None = None
    mismatch: float | None = None
    accuracy: float | None = None
    lag_mean: float | None = None
    seconds: float | None = None
    seconds_left: float | None = None
    note: str = ""

    @property
    def gpu_hours(self) -> float | None:
        """GPU-hours so far; None on CPUs and where nothing was measured."""
        return self.seconds * self.num_gpus / 3600 if self.num_gpus and self.seconds is not None else None


def run_settings(preset: str) -> Settings:
    """The settings of the run that was planned last; of config.yaml where none was."""
    planned = Layout(preset).settings("run")
    return read_settings(Settings, planned) if planned.exists() else load_settings(overrides={"preset": preset})


def cell_states(settings: Settings) -> list[CellStatus]:
    """The status of every cell of `settings`, in their order."""
    layout = Layout(settings.preset)
    found = [cell_status(layout, settings, cell) for cell in settings.all_cells()]
    if any(status.state == "running" for status in found):
        return [replace(status, state="queued") if status.state == "missing" else status for status in found]
    return found


def cell_status(layout: Layout, settings: Settings, cell: Cell) -> CellStatus:
    """The status of one cell, the others apart."""
    present = settings.cell(cell)
    cluster = present.cluster
    gpus = cluster.num_nodes * cluster.gpus_per_node if cluster and cluster.device == "cuda" else 0
    status = CellStatus(cell, "missing", 0, settings.trainer.steps, gpus)
    run = layout.cell(cell) / "run.json"
    folder = _state_folder(layout, cell, fingerprint(present))
    if alive(layout.cell_state(cell) / HEARTBEAT):
        return replace(_with_progress(status, folder) if folder else status, state="running")
    if run.exists():
        return _finished(status, run, present)
    if folder is None:
        return status
    status = replace(_with_progress(status, folder), seconds_left=None)
    if failure_path(folder).exists():
        return replace(status, state="failed", note=" ".join(str(read_json(failure_path(folder))["message"]).split()))
    checkpoints = [int(path.name.removeprefix("step_")) for path in (folder / "checkpoints").glob("step_*")]
    return replace(status, state="resumable", step=max(checkpoints)) if checkpoints else replace(status, step=0)


def _state_folder(layout: Layout, cell: Cell, settings: str) -> Path | None:
    """The newest state folder of the cell that was made with these settings (progress.json or failure.json say with which)."""
    marked = []
    for name in ("progress.json", "failure.json"):
        for path in layout.cell_state(cell).glob(f"*/{name}"):
            if ".replaced-" not in path.parent.name and read_json(path).get("settings") == settings:
                marked.append((path.stat().st_mtime, path.parent))
    return max(marked)[1] if marked else None


def _with_progress(status: CellStatus, folder: Path) -> CellStatus:
    path = folder / "progress.json"
    if not path.exists():
        return status
    known = read_json(path)
    names = ("step", "reward", "mismatch", "accuracy", "lag_mean", "seconds", "seconds_left")
    return replace(status, **{name: known[name] for name in names})


def _finished(status: CellStatus, path: Path, present: CellSettings) -> CellStatus:
    run = read_json(path)
    changed = changed_settings(run["settings"], present)
    state: State = "stale" if changed else "finished"
    numbers = _last_rows(path.parent, path.stat().st_mtime)
    note = f"made with other settings: {'; '.join(changed[:3])}" if changed else ""
    return replace(status, state=state, step=run["steps"], seconds=run["wall_s"]["total"], note=note, **numbers)


@functools.lru_cache(maxsize=4096)
def _last_rows(folder: Path, modified: float) -> dict[str, float | None]:
    """Reward (mean of ten steps), mismatch and lag of the last step, accuracy of the last evaluation.

    {} without the files. modified: when run.json was written, part of the cache's key: a live table reads a finished cell once.
    """
    steps, evals = folder / "steps.parquet", folder / "evals.parquet"
    if not (steps.exists() and evals.exists()):
        return {}
    rows = pq.read_table(steps, columns=["reward_mean", "mismatch", "lag_mean"]).to_pydict()
    evaluations = pq.read_table(evals, columns=["step", "correct"]).to_pydict()
    last = max(evaluations["step"], default=None)
    correct = [right for step, right in zip(evaluations["step"], evaluations["correct"], strict=True) if step == last]
    reward = rows["reward_mean"][-10:]
    return {
        "reward": sum(reward) / len(reward),
        "mismatch": rows["mismatch"][-1],
        "lag_mean": rows["lag_mean"][-1],
        "accuracy": sum(correct) / len(correct) if correct else None,
    }


def status_table(preset: str, statuses: Sequence[CellStatus]) -> Table:
    """The table for people: cells at work first, finished ones last."""
    counts = {state: sum(status.state == state for status in statuses) for state in STATES}
    summary = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    hours = sum(status.gpu_hours or 0.0 for status in statuses)
    spent = f"; {hours:,.1f} GPU-hours so far" if any(status.num_gpus for status in statuses) else ""
    table = Table(title=f"preset {preset}: {len(statuses)} cells: {summary}{spent}{_left_text(statuses)}")
    columns = ("cell", "state", "step", "reward", "mismatch", "held-out", "lag", "GPU-h" if spent else "time", "left")
    for column in columns:
        table.add_column(column, justify="left" if column in ("cell", "state") else "right", no_wrap=True)
    for status in sorted(statuses, key=lambda status: STATES.index(status.state)):
        colour = _COLOURS.get(status.state)
        table.add_row(
            str(status.cell),
            f"[{colour}]{status.state}[/]" if colour else status.state,
            f"{status.step}/{status.steps}",
            _number(status.reward, ".3f"),
            _number(status.mismatch, ".4f"),
            _number(status.accuracy, ".3f"),
            _number(status.lag_mean, ".1f"),
            _number(status.gpu_hours, ",.1f") if spent else _duration(status.seconds),
            _duration(status.seconds_left),
        )
    return table


def _number(value: float | None, form: str) -> str:
    return "-" if value is None or not math.isfinite(value) else format(value, form)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def _left_text(statuses: Sequence[CellStatus]) -> str:
    """Time left, if what is not finished takes as long a step as the running cells and as many run at a time."""
    running = [status for status in statuses if status.state == "running" and status.seconds_left is not None and status.step]
    if not running:
        return ""
    per_step = sum(status.seconds_left / max(status.steps - status.step, 1) for status in running) / len(running)  # pyright: ignore
    waiting = sum(status.steps - status.step for status in statuses if status.state in ("queued", "resumable", "failed", "stale"))
    longest = max(status.seconds_left for status in running if status.seconds_left is not None)
    return f"; about {_duration(longest + per_step * waiting / len(running))} left"


def show_status(preset: str, console: Console) -> list[CellStatus]:
    """Print the table, and below it why cells have failed or are stale."""
    statuses = cell_states(run_settings(preset))
    console.print(status_table(preset, statuses))
    for status in statuses:
        if status.note:
            console.print(f"{status.cell} {status.state}: {status.note}", markup=False, highlight=False)
    return statuses
