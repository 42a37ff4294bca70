"""`make watch`: the cells of a preset as a live table, from the progress files that running cells write."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from pipeline.artifacts import Cell, Layout, read_json
from pipeline.config import Settings, read_settings

_REFRESH_S = 1.0


def watch(preset: str, once: bool) -> None:
    """Show the table until every cell is done, or print it once."""
    layout = Layout(preset)
    settings = read_settings(Settings, layout.settings("run"))
    console = Console()
    if once:
        console.print(_table(layout, settings)[0])
        return
    with Live(console=console, refresh_per_second=2) as live:
        while True:
            table, done = _table(layout, settings)
            live.update(table)
            if done:
                return
            time.sleep(_REFRESH_S)


def _table(layout: Layout, settings: Settings) -> tuple[Table, bool]:
    cells = settings.all_cells()
    finished = [cell for cell in cells if (layout.cell(cell) / "run.json").exists()]
    running = {cell: progress for cell in cells if cell not in finished and (progress := _progress(layout, cell)) is not None}
    waiting = len(cells) - len(finished) - len(running)
    table = Table(
        title=f"preset {layout.preset}: {len(finished)} of {len(cells)} cells done, {waiting} waiting{_left(running, waiting)}"
    )
    for column in ("cell", "", "step", "reward", "held-out", "mismatch", "left"):
        table.add_column(column, justify="left" if column == "cell" else "right")
    for cell, progress in sorted(running.items()):
        accuracy = progress["accuracy"]
        table.add_row(
            str(cell),
            ProgressBar(total=progress["steps"], completed=progress["step"], width=24),
            f"{progress['step']}/{progress['steps']}",
            f"{progress['reward']:.3f}",
            "-" if accuracy is None else f"{accuracy:.3f}",
            f"{progress['mismatch']:.4f}",
            f"{progress['seconds_left']:.0f} s",
        )
    return table, len(finished) == len(cells)


def _progress(layout: Layout, cell: Cell) -> dict[str, Any] | None:
    """The newest progress file of a cell whose process is alive on this machine."""
    files = sorted(layout.cell_state(cell).glob("*/progress.json"), key=lambda path: path.stat().st_mtime)
    progress = read_json(files[-1]) if files else None
    return progress if progress and Path(f"/proc/{progress['pid']}").exists() else None


def _left(running: dict[Cell, dict[str, Any]], waiting: int) -> str:
    """Time left, if the waiting cells take as long as the running ones."""
    if not running:
        return ""
    rates = [progress["seconds_left"] / max(progress["steps"] - progress["step"], 1) for progress in running.values()]
    whole = sum(rate * progress["steps"] for rate, progress in zip(rates, running.values(), strict=True)) / len(running)
    seconds = max(progress["seconds_left"] for progress in running.values()) + whole * waiting / min(
        len(running), os.cpu_count() or 1
    )
    return f", about {seconds / 60:.0f} min left"
