"""The paper's numbers: results/reference/table1.csv, curves.csv and the `paper:` section of claims.yaml. Nothing is typed into
code.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from pipeline.artifacts import REFERENCE
from pipeline.results.frames import column, rows_where


@dataclass(frozen=True)
class Reference:
    """The published table and curves, and the claims with their rules.

    table: method, label, lag, aime24 (%), best_step, mismatch, later_collapse.  curves: figure, method, lag, metric, run, step,
    value.
    """

    table: pd.DataFrame
    curves: pd.DataFrame
    claims: dict[str, Any]

    @property
    def num_steps(self) -> int:
        """Optimizer steps of the paper's runs."""
        return int(self.claims["paper"]["steps"])

    @property
    def base_score(self) -> float:
        """The paper's score of the base model, in %."""
        return float(self.claims["paper"]["base_aime24"])

    @cached_property
    def _rows(self) -> dict[tuple[str, str], dict[str, Any]]:
        return {(row["method"], row["lag"]): row for row in self.table.to_dict("records")}

    def row(self, method: str, lag: str) -> dict[str, Any] | None:
        """The Table 1 row of a method at a lag, None where the paper has none."""
        return self._rows.get((method, lag))

    def curve(self, figure: str, method: str, lag: str, metric: str) -> pd.Series:
        """A published curve as value by step; empty where the figure does not show it."""
        curves = self.curves
        cell = (curves["method"] == method) & (curves["lag"] == lag)
        chosen = rows_where(curves, cell & (curves["figure"] == figure) & (curves["metric"] == metric))
        return column(chosen.sort_values("step").set_index("step"), "value")


def read_reference(folder: Path = REFERENCE) -> Reference:
    """Read the reference files. Raises ValueError naming the file that is absent or damaged: they are part of the repository."""
    try:
        table = pd.read_csv(folder / "table1.csv", dtype={"lag": str})
        curves = pd.read_csv(folder / "curves.csv", dtype={"lag": str, "figure": str})
        claims = yaml.safe_load((folder / "claims.yaml").read_text(encoding="utf-8"))
    except (OSError, pd.errors.ParserError, yaml.YAMLError) as error:
        raise ValueError(f"cannot read the published numbers in {folder}: {error}; restore the folder with git") from error
    return Reference(table, curves, claims)
