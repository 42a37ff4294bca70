"""The plan's cost model beside published runs of the same policy.

    python -m benchmarks.published_runs

Misses are marked.
"""

from __future__ import annotations

import sys

from rich.console import Console

from benchmarks.published_runs.comparisons import Comparison, comparisons
from pipeline.planning.show import number, rounded, table_of


def main() -> None:
    """Print the comparisons."""
    show_published(comparisons(), Console(width=None if sys.stdout.isatty() else 220))


def show_published(comparisons: list[Comparison], console: Console) -> None:
    """Published runs beside the model's intervals; misses are marked."""
    table = table_of("published runs", "run", "published", "predicted", "ratio", "", "given")
    for row in comparisons:
        mark = "" if row.covered else "missed"
        table.add_row(row.name, f"{rounded(row.published)} {row.unit}", number(row.predicted), f"{row.ratio:.2f}", mark, row.given)
    console.print(table)
    covered = sum(row.covered for row in comparisons)
    console.print(f"{covered} of {len(comparisons)} published numbers lie inside the model's interval\n")


if __name__ == "__main__":
    main()
