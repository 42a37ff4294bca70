"""The settings files that rules take as inputs: one per stage and one per cell, named by their content.

A file is never rewritten, so a dry run or a second run with other settings cannot change what a queued job will read; changed
settings are another input file, and that is what makes Snakemake run a rule again.
"""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.artifacts import Cell, Layout, write_if_changed
from pipeline.config import Settings, fingerprint
from pipeline.sections import BasePolicySettings, Section


def write_stage_settings(settings: Settings, paths: Layout, cells: Iterable[Cell]) -> dict[str, str]:
    """Write what each stage and each of `cells` reads; returns the path by stage."""
    stages: dict[str, Section] = {
        "problems": settings.problem_stage(),
        "base_policy": BasePolicySettings(model=settings.model, warm_start=settings.warm_start),
        "score_base": settings.cell(Cell("grpo", settings.cells.table.lags[0], settings.seeds[0])),
        "run": settings,
    }
    for cell in cells:
        write_cell_settings(settings, paths, cell)
    # `make watch` and `make report` look at the run that was planned last
    write_if_changed(paths.settings("run"), _text(settings))
    return {name: _write(paths, name, section) for name, section in stages.items()}


def write_cell_settings(settings: Settings, paths: Layout, cell: Cell) -> str:
    """Write what one cell reads and return the file's path; any seed will do. SettingsError for an unknown method or lag."""
    return _write(paths, f"cells/{cell}", settings.cell(cell))


def _write(paths: Layout, name: str, section: Section) -> str:
    path = paths.settings(f"{name}-{fingerprint(section)}")
    write_if_changed(path, _text(section))
    return str(path)


def _text(section: Section) -> str:
    return section.model_dump_json(indent=1) + "\n"
