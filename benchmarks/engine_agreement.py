"""The same cells on two sets of engines, compared: python -m benchmarks.engine_agreement A B, two folders like results/rehearsal.

Prints, for every cell that both have, fresh accuracy of the last weights with the difference B - A and its 95 % interval (problems
paired; over problems alone and over seeds and problems), and the mismatch of step 0, where rollout and trainer hold equal weights.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from pipeline.evaluation.estimators import paired_difference
from pipeline.results.runs import outcome_matrix


def outcomes(cells: list[Path]) -> np.ndarray:
    """0/1 [seeds, problems, samples] of the last weights."""
    rows = [pd.read_parquet(cell / "scores.parquet") for cell in cells]
    return np.stack([outcome_matrix(scores[scores["checkpoint"] == "last"]) for scores in rows])


def first_mismatch(cells: list[Path]) -> str:
    values = [pd.read_parquet(cell / "steps.parquet", columns=["mismatch"])["mismatch"].iloc[0] for cell in cells]
    return f"{max(values):.1e}"


def main(first: Path, second: Path) -> None:
    print(f"A: {first}, B: {second}\n")
    print(
        "| cell | seeds | A | B | B − A | 95 %, over problems | 95 %, over seeds and problems | largest mismatch of step 0: A | B |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    groups: dict[str, list[str]] = {}
    for path in sorted((first / "cells").glob("*/lag*/seed*/scores.parquet")):
        cell = path.parent.relative_to(first)
        if (second / cell / "scores.parquet").exists():
            groups.setdefault("/".join(cell.parts[1:-1]), []).append(str(cell))
    for name, cells in groups.items():
        a, b = ([folder / cell for cell in cells] for folder in (first, second))
        of_a, of_b = outcomes(a), outcomes(b)
        # the seeds' samples side by side: the seeds are then given, and only problems vary
        merged = [np.concatenate(list(values), axis=1)[None] for values in (of_b, of_a)]
        problems = paired_difference(*merged)
        both = paired_difference(of_b, of_a)
        print(
            f"| {name} | {len(cells)} | {of_a.mean():.3f} | {of_b.mean():.3f} | {of_b.mean() - of_a.mean():+.3f} "
            f"| {problems.low:+.3f} to {problems.high:+.3f} | {both.low:+.3f} to {both.high:+.3f} "
            f"| {first_mismatch(a)} | {first_mismatch(b)} |"
        )


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
