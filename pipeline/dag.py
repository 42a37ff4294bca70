"""The settings files that rules take as inputs: one per stage and one per cell, rewritten only when their content changes."""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.artifacts import Cell, Layout, write_if_changed
from pipeline.config import BasePolicySettings, Section, Settings


def write_stage_settings(settings: Settings, paths: Layout, cells: Iterable[Cell]) -> None:
    """Write what each stage reads, so that a rule reruns exactly when the settings it reads have changed."""
    stages: dict[str, Section] = {
        "problems": settings.problems,
        "base_policy": BasePolicySettings(model=settings.model, warm_start=settings.warm_start),
        "score_base": settings.cell(Cell("grpo", settings.cells.table.lags[0], settings.seeds[0])),
        "run": settings,
    }
    for name, section in stages.items():
        _write(paths, name, section)
    for cell in cells:
        write_cell_settings(settings, paths, cell)


def write_cell_settings(settings: Settings, paths: Layout, cell: Cell) -> str:
    """Write what one cell reads and return the file's path; any seed will do. Raises SettingsError for an unknown method or lag."""
    return _write(paths, f"cells/{cell}", settings.cell(cell))


def _write(paths: Layout, name: str, section: Section) -> str:
    path = paths.settings(name)
    write_if_changed(path, section.model_dump_json(indent=1) + "\n")
    return str(path)
