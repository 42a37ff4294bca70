"""`pipeline plan`: estimate, print, write results/<preset>/plan.json, and refuse what cannot work before anything is launched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.console import Console

from pipeline.artifacts import Layout, read_json, write_json
from pipeline.config import Settings, changed_settings
from pipeline.planning.bounds import Bounds
from pipeline.planning.calibrate import calibrated
from pipeline.planning.estimate import Plan, as_json, plan_run
from pipeline.planning.host_memory import memory_warnings
from pipeline.planning.show import show_by_length, show_plan
from pipeline.planning.storage import check_signal_lead

RESPONSE_LENGTHS = (1000, 2000, 4000, 8000)


@dataclass(frozen=True)
class PlanOptions:
    """What the command line adds to the settings: the GPU type and what is known better."""

    gpu: str = "H100"
    response_tokens: Bounds | None = None
    signal_lead_s: float | None = None
    measured: bool = False


def plan_stage(settings: Settings, layout: Layout, options: PlanOptions, console: Console) -> Plan:
    """Print the plan and write plan.json.

    Raises ValueError when the engines do not fit the cluster, when a server has no room for a response, when a node's memory is
    too small for a cell even at the low end, and when the signal ahead of a time limit comes too late even at the best of every
    rate.
    """
    plan = plan_run(settings, options.gpu, options.response_tokens)
    if options.measured:
        rates = calibrated(plan, _finished_runs(settings, layout))
        plan = plan_run(settings, options.gpu, options.response_tokens, rates)
    show_plan(plan, console)
    if settings.model.path and options.response_tokens is None:
        rates = plan.deployment.rates
        show_by_length([(n, plan_run(settings, options.gpu, Bounds.point(n), rates)) for n in RESPONSE_LENGTHS], console)
    write_json(layout.results / "plan.json", as_json(plan))
    console.print(f"wrote {layout.results / 'plan.json'}")
    if plan.deployment.num_devices:
        for line in memory_warnings(settings, plan.cells):
            console.print(f"may be too little: {line}")
    if options.signal_lead_s is not None:
        check_lead(plan, options.signal_lead_s, console)
    return plan


def _finished_runs(settings: Settings, layout: Layout) -> list[dict[str, Any]]:
    """run.json of the cells that these settings would make again."""
    paths = {cell: layout.cell(cell) / "run.json" for cell in settings.all_cells()}
    runs = {cell: read_json(path) for cell, path in paths.items() if path.exists()}
    return [run for cell, run in runs.items() if not changed_settings(run["settings"], settings.cell(cell))]


def check_lead(plan: Plan, lead_s: float, console: Console) -> None:
    """Refuse a lead that is too short at best; warn of one that may be."""
    for cell in plan.cells:
        check_signal_lead(lead_s, cell.batch_s.low, cell.checkpoint_write_s.low)
    longest = max(cell.batch_s.high + cell.checkpoint_write_s.high for cell in plan.cells)
    if lead_s < longest:
        console.print(f"a signal lead of {lead_s:.0f} s may be too short: a batch and a checkpoint take up to {longest:.0f} s")
