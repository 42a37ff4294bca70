"""The figures by name: each is drawn from the cells on disk and saved as PNG, SVG and the CSV of what it shows."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from pipeline.config import Settings
from pipeline.paper import figures2to5, panels
from pipeline.paper.lags import large_lag
from pipeline.paper.reference import Reference, read_reference
from pipeline.results.drawing import Drawn
from pipeline.results.lag_histogram import CAPTION as LAG_CAPTION
from pipeline.results.lag_histogram import lag_panel
from pipeline.results.runs import Results
from pipeline.results.series import gated_share_limit
from pipeline.results.style import drawing, save
from pipeline.section import unknown


@dataclass(frozen=True)
class FigureEntry:
    """A figure's title in the report and the function that draws it."""

    title: str
    draw: Callable[[Results, Reference], Drawn]


FIGURES: dict[str, FigureEntry] = {
    "figure2": FigureEntry("Figure 2. Lag raises mismatch: GRPO", figures2to5.figure2),
    "figure3": FigureEntry("Figure 3. GSPO at both lags", figures2to5.figure3),
    "figure4": FigureEntry("Figure 4. Mismatch of all methods", figures2to5.figure4),
    "figure5": FigureEntry("Figure 5. Accuracy at both lags", figures2to5.figure5),
    "stress_panel": FigureEntry("Stress panel. Eight optimizer steps per rollout batch", panels.stress_panel),
    "sat_panel": FigureEntry("SAT panel. What the adaptive trust region does", panels.sat_panel),
    "lag_histogram": FigureEntry("Lag histogram. What was realised", lambda results, _: lag_panel(results)),
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
    processes: list[BaseProcess] = [
        context.Process(target=figures_stage, args=(results, folder, names[i::count])) for i in range(count)
    ]
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
    paper = figures2to5.captions(reference, settings.trainer.steps, seeds, settings.problems.scoring_count, large_lag(settings))
    ours = panels.captions(seeds, gated_share_limit(settings), large_lag(settings))
    return paper | ours | {"lag_histogram": LAG_CAPTION}
