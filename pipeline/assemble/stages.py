"""The whole assembly in one process: the cells are read once, the figures are drawn beside the rest.

Writes what the stages collect, table1, figures, diff and report write one by one.
"""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

from pipeline.artifacts import Layout
from pipeline.assemble.collect import collect_stage
from pipeline.assemble.diff import diff_stage
from pipeline.assemble.figures import FIGURES, figures_stage
from pipeline.assemble.report import report_stage
from pipeline.assemble.runs import Results, read_results
from pipeline.assemble.table1 import table1_stage
from pipeline.config import Settings


def assemble(layout: Layout, settings: Settings) -> None:
    """Everything from the cells there are, finished or not, to the report. Raises ValueError where a figure cannot be drawn."""
    folder, results = layout.results, read_results(layout, settings)
    cells = folder / "cells.parquet"
    collect_stage(results, cells, folder / "cells.csv")
    drawing = _draw_beside(results, folder / "figures")
    table1_stage(results, cells, *(folder / f"table1.{kind}" for kind in ("md", "csv", "tex")))
    diff_stage(results, cells, *(folder / f"diff.{kind}" for kind in ("md", "csv", "json")))
    for process in drawing:
        process.join()
        if process.exitcode:
            raise ValueError("a figure was not drawn (see above); `python -m pipeline figures` draws them in one process")
    report_stage(results, cells, folder / "diff.json", folder / "figures", folder / "report.html", folder / "report.md")


def _draw_beside(results: Results, folder: Path) -> list[multiprocessing.process.BaseProcess]:
    """Draw all figures in processes of their own, at most one a core; forked, so that the cells need not travel."""
    context, names = multiprocessing.get_context("fork"), list(FIGURES)
    count = min(2, os.cpu_count() or 1)
    processes = [context.Process(target=figures_stage, args=(results, folder, names[i::count])) for i in range(count)]
    for process in processes:
        process.start()
    return processes
