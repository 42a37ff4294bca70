"""The figures by name: each is drawn from the cells on disk and saved as PNG, SVG and the CSV of what it shows."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from pipeline.assemble import panels, paper_figures
from pipeline.assemble.drawing import Drawn
from pipeline.assemble.reference import Reference, read_reference
from pipeline.assemble.runs import Results
from pipeline.assemble.series import gated_share_limit
from pipeline.assemble.style import drawing, save
from pipeline.config import Settings
from pipeline.section import unknown


@dataclass(frozen=True)
class FigureEntry:
    """A figure's title in the report and the function that draws it."""

    title: str
    draw: Callable[[Results, Reference], Drawn]


FIGURES: dict[str, FigureEntry] = {
    "figure2": FigureEntry("Figure 2. Lag raises mismatch: GRPO", paper_figures.figure2),
    "figure3": FigureEntry("Figure 3. GSPO at both lags", paper_figures.figure3),
    "figure4": FigureEntry("Figure 4. Mismatch of all methods", paper_figures.figure4),
    "figure5": FigureEntry("Figure 5. Accuracy at both lags", paper_figures.figure5),
    "stress_panel": FigureEntry("Stress panel. Eight optimizer steps per rollout batch", panels.stress_panel),
    "sat_panel": FigureEntry("SAT panel. What the adaptive trust region does", panels.sat_panel),
    "lag_histogram": FigureEntry("Lag histogram. What was realised", panels.lag_panel),
}


def figures_stage(results: Results, folder: Path, names: Sequence[str] = tuple(FIGURES)) -> list[Path]:
    """Draw the named figures into `folder`; returns the paths of the PNG files. Raises ValueError for an unknown name."""
    for name in names:
        if name not in FIGURES:
            raise ValueError(unknown("figure", name, FIGURES))
    reference = read_reference()
    for name in names:
        with drawing(name):
            drawn = FIGURES[name].draw(results, reference)
            save(drawn.figure, drawn.data, folder, name)
    return [folder / f"{name}.png" for name in names]


def start_drawing(results: Results, folder: Path) -> list[BaseProcess]:
    """Draw all figures in processes of their own, at most one a core; forked, so that the cells need not travel."""
    context, names = multiprocessing.get_context("fork"), list(FIGURES)
    count = min(2, os.cpu_count() or 1)
    processes = [context.Process(target=figures_stage, args=(results, folder, names[i::count])) for i in range(count)]
    for process in processes:
        process.start()
    return processes


def finish_drawing(processes: Sequence[BaseProcess]) -> None:
    """Wait for the figures. Raises ValueError where one was not drawn; the process has said why."""
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise ValueError("a figure was not drawn; the traceback above says why")


def captions(settings: Settings, reference: Reference) -> dict[str, str]:
    """The caption of every figure for these settings."""
    seeds = len(settings.seeds)
    return paper_figures.captions(
        reference, settings.trainer.steps, seeds, settings.problems.scoring_count, settings.large_lag
    ) | panels.captions(seeds, gated_share_limit(settings), settings.large_lag)
