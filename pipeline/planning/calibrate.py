"""Rates from runs that have been made: what wall_s in their run.json says about the constants that a plan was made with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pipeline.planning.bounds import Bounds
from pipeline.planning.constants import Constant, Rates
from pipeline.planning.estimate import CellEstimate, Plan, lengths_of
from pipeline.planning.timing import training_s

_PARTS = ("wait", "grade", "train", "publish", "evaluate")


def calibrated(plan: Plan, runs: Iterable[Mapping[str, Any]]) -> Rates:
    """The plan's rates with train_flops, publish_floor_s and startup_s replaced by what `runs` (run.json each) measured.

    Every replaced constant is the interval over all runs. Generation stays as it is: where it overlaps training, wall_s does not
    show it. Raises ValueError when none of the runs is a cell of the plan or one lacks wall_s.
    """
    cells = {(cell.cell.method, cell.cell.lag, cell.cell.seed): cell for cell in plan.cells}
    pairs = [(cells[key], run) for run in runs if (key := (run["method"], run["lag"], run["seed"])) in cells]
    if not pairs:
        raise ValueError(f"no finished cell of preset {plan.settings.preset} to calibrate on; run one, or leave --measured away")
    for _, run in pairs:
        if missing := [name for name in ("total", "train", "publish") if name not in run.get("wall_s", {})]:
            raise ValueError(f"run.json of {run['method']} lag {run['lag']} has no wall_s of {', '.join(missing)}")
    source = f"measured: wall_s of {len(pairs)} runs"
    flops = [_train_flops(plan, cell, run["wall_s"]["train"]) for cell, run in pairs]
    publish = [run["wall_s"]["publish"] / cell.workload.publications for cell, run in pairs if cell.workload.publications]
    startup = [max(run["wall_s"]["total"] - sum(run["wall_s"].get(name, 0.0) for name in _PARTS), 0.0) for _, run in pairs]
    rates = plan.deployment.rates
    return replace(
        rates,
        train_flops=Constant(Bounds(min(f.low for f in flops), max(f.high for f in flops)), "FLOP/s", source),
        publish_floor_s=_measured(publish, rates.publish_floor_s, source),
        startup_s=_measured(startup, rates.startup_s, source),
    )


def _train_flops(plan: Plan, cell: CellEstimate, seconds: float) -> Bounds:
    """Achieved FLOP/s per device, from the work that the plan expected at either end of the response length."""
    ranks, passes = plan.deployment.ranks.count, cell.workload.passes.total
    unit = replace(plan.deployment.rates.middle(), train_flops=1.0)
    work = [
        training_s(plan.size, ranks, unit, lengths_of(cell.workload, best), cell.workload.responses, passes)
        for best in (True, False)
    ]
    return Bounds(work[0] / seconds, work[1] / seconds)


def _measured(values: list[float], before: Constant, source: str) -> Constant:
    return Constant(Bounds(min(values), max(values)), before.unit, source) if values else before
