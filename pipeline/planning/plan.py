"""`pipeline plan`: estimate, print, write results/<preset>/plan.json, and refuse what cannot work before anything is launched."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console

from pipeline.artifacts import Layout, read_json, write_json
from pipeline.config import Settings, changed_settings
from pipeline.planning.calibrate import calibrated
from pipeline.planning.constants import DEVICES
from pipeline.planning.estimate import Plan, as_json, plan_run
from pipeline.planning.host_memory import memory_warnings
from pipeline.planning.interval import Interval
from pipeline.planning.model_size import ModelSize
from pipeline.planning.published import comparisons
from pipeline.planning.show import show_by_length, show_plan, show_published, show_simulation, show_speedups
from pipeline.planning.simulation import Regime, Scenario, Simulated, simulate_cell
from pipeline.planning.speedups import compare_speedups
from pipeline.planning.storage import check_signal_lead
from pipeline.planning.timing import Lengths

RESPONSE_LENGTHS = (1000, 2000, 4000, 8000)
GPU_COUNTS = (8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class PlanOptions:
    """What the command line adds to the settings: the GPU type, what is known better, and what to show besides."""

    gpu: str = "H100"
    response_tokens: Interval | None = None
    signal_lead_s: float | None = None
    measured: bool = False
    published: bool = False
    simulate: bool = False


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
        rates = plan.placement.rates
        show_by_length([(n, plan_run(settings, options.gpu, Interval.point(n), rates)) for n in RESPONSE_LENGTHS], console)
    write_json(layout.results / "plan.json", as_json(plan))
    console.print(f"wrote {layout.results / 'plan.json'}")
    if options.published:
        show_published(comparisons(), console)
    if options.simulate:
        show_simulation(simulate_counts(plan, options.gpu), plan.cells[0].workload.batches, console)
        show_speedups(compare_speedups(), console)
    if plan.placement.num_devices:
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


def simulate_counts(plan: Plan, gpu: str) -> list[tuple[int, dict[Regime, Simulated]]]:
    """The plan's first asynchronous cell on 8 to 1,024 GPUs of this type."""
    return [(gpus, simulate_cell(replace(scenario_of(plan, gpu), gpus=gpus))) for gpus in GPU_COUNTS]


def scenario_of(plan: Plan, gpu: str) -> Scenario:
    """What a cell of the plan looks like to the simulation, at the middle of every constant.

    Raises ValueError for a plan without GPUs: what shares processors with its trainer is not simulated.
    """
    if not plan.placement.num_devices:
        raise ValueError(f"preset {plan.settings.preset} runs on CPUs; --simulate needs GPUs, e.g. --preset full")
    cell = next((cell for cell in plan.cells if cell.workload.asynchronous), plan.cells[0])
    work, lag = cell.workload, plan.settings.lags[cell.cell.lag]
    lengths = Lengths(work.prompt_tokens.value.mid, work.response_tokens.value.mid, work.max_response_tokens)
    passes = work.passes.total
    return Scenario(
        size=ModelSize.of(plan.settings.model),
        device=DEVICES[gpu],
        pace=plan.placement.rates.middle(),
        gpus=plan.placement.num_devices,
        train_share=plan.placement.ranks.count / plan.placement.num_devices,
        tensor_parallel=plan.placement.servers.tensor_parallel,
        responses=work.responses_per_batch,
        group_size=work.group_size,
        lengths=lengths,
        passes=passes,
        synchronous_passes=passes,
        publish_s=cell.part("publish").mid / max(work.publications, 1),
        publish_interval=lag.broadcast_interval,
        evaluation_responses=work.evaluation_responses,
        evaluation_interval=plan.settings.evaluation.interval,
        memory_fraction=plan.placement.servers.memory_fraction,
    )
