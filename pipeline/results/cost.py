"""Time and memory of the runs, beside what `pipeline plan` estimated, where results/<preset>/plan.json is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import BaseModel

from pipeline.objective.methods import method_of
from pipeline.results.frames import column, rows_where
from pipeline.results.json_files import read_as
from pipeline.results.markdown import MISSING

PLAN_HEAD = ("Method", "Lag", "Runs", "Estimated, s", "Measured, s", "Measured / estimate")


def cost_rows(read: pd.DataFrame) -> list[dict[str, str]]:
    """Time and memory of every run that was read."""
    return [
        {
            "label": row["label"],
            "lag": row["lag"],
            "seed": str(row["seed"]),
            "wall": seconds(row["wall_s"]),
            "train": seconds(row["train_s"]),
            "wait": seconds(row["wait_s"]),
            "evaluate": seconds(row["evaluate_s"]),
            "cpu": seconds(row["cpu_s"]),
            "memory": MISSING if pd.isna(row["peak_memory_bytes"]) else f"{row['peak_memory_bytes'] / 2**30:.2f}",
            "resumed": str(int(row["resumed"])) if row["resumed"] else "",
            "length": f"{row['response_length_mean']:.1f}",
            "truncated": f"{row['truncated_share']:.1%}",
            "lag_mean": f"{row['lag_mean']:.2f}",
        }
        for row in read.to_dict("records")
    ]


def cost_totals(read: pd.DataFrame) -> dict[str, str]:
    """Sums over the runs that were read, as text."""
    memory = column(read, "peak_memory_bytes").max() if len(read) else None
    return {
        "wall": duration(column(read, "wall_s").sum()),
        "cpu": duration(column(read, "cpu_s").sum()),
        "median": seconds(column(read, "cpu_s").median()) if len(read) else MISSING,
        "memory": MISSING if memory is None or pd.isna(memory) else f"{memory / 2**30:.2f} GiB",
    }


class PlannedCell(BaseModel):
    """One cell of plan.json; wall_s: low and high, in seconds."""

    method: str
    lag: str
    seed: int
    wall_s: tuple[float, float]


class PlanFile(BaseModel):
    """What is shown of plan.json."""

    cells: list[PlannedCell]


def read_plan(path: Path) -> PlanFile | None:
    """The estimates that `pipeline plan` wrote, None where it wrote none. Raises ValueError for a damaged file."""
    remedy = "run `python -m pipeline plan` for this preset again, or delete it"
    return read_as(PlanFile, path, remedy) if path.exists() else None


def planned_and_measured(planned: PlanFile, read: pd.DataFrame) -> dict[str, Any]:
    """Estimated and measured wall time by method and lag, and in how many runs the interval held.

    Compared are runs that were planned and read.
    """
    plan = pd.DataFrame(
        [(cell.method, cell.lag, cell.seed, *cell.wall_s) for cell in planned.cells],
        columns=["method", "lag", "seed", "low", "high"],
    )
    both = read[["method", "lag", "seed", "wall_s"]].dropna().merge(plan, on=["method", "lag", "seed"])
    rows = []
    for method, lag in dict.fromkeys(zip(both["method"], both["lag"], strict=True)):
        runs = rows_where(both, (both["method"] == method) & (both["lag"] == lag))
        middle = (runs["low"] * runs["high"]) ** 0.5
        rows.append([
            method_of(method).label, lag, str(len(runs)), f"{runs['low'].mean():.0f} to {runs['high'].mean():.0f}",
            f"{runs['wall_s'].mean():.0f}", f"{(runs['wall_s'] / middle).mean():.2f}",
        ])  # fmt: skip
    held = int(column(both, "wall_s").between(column(both, "low"), column(both, "high")).sum())
    low, high, measured = (duration(column(both, name).sum()) for name in ("low", "high", "wall_s"))
    return {
        "head": PLAN_HEAD,
        "rows": rows,
        "text": f"{len(both)} runs: {low} to {high} estimated, {measured} measured; the interval held in {held} of them.",
    }


def seconds(value: float) -> str:
    return MISSING if pd.isna(value) else f"{value:.1f}"


def duration(value: float) -> str:
    """A time in the largest fitting unit."""
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value:.0f} s"
