"""The whole assembly in one process: the cells are read once, the figures are drawn beside the rest.

Writes what the stages collect, table1, figures, diff and report write one by one.
"""

from __future__ import annotations

from pipeline.artifacts import Layout
from pipeline.config import Settings
from pipeline.paper.diff import diff_stage
from pipeline.paper.figures import finish_drawing, start_drawing
from pipeline.paper.report import report_stage
from pipeline.paper.table1 import table1_stage
from pipeline.results.collect import collect_stage
from pipeline.results.collected import write_collected
from pipeline.results.runs import read_results


def assemble(layout: Layout, settings: Settings) -> None:
    """Everything from the cells there are, finished or not, to the report. Raises ValueError where a figure cannot be drawn."""
    folder, results = layout.results, read_results(layout, settings)
    cells = folder / "cells.parquet"
    collect_stage(results, cells, folder / "cells.csv")
    write_collected(results, layout.collected)
    drawing = start_drawing(results, folder / "figures")
    table1_stage(results, cells, *(folder / f"table1.{kind}" for kind in ("md", "csv", "tex")))
    diff_stage(results, cells, *(folder / f"diff.{kind}" for kind in ("md", "csv", "json")))
    finish_drawing(drawing)
    report_stage(results, cells, folder / "diff.json", folder / "figures", folder / "report.html", folder / "report.md")
