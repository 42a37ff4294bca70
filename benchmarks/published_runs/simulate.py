"""A cell of a preset on 8 to 1,024 GPUs, played event by event in three regimes, and published speed-ups beside simulated ones.

    python -m benchmarks.published_runs.simulate [--preset full] [--gpu H100] [--response-tokens 2000-4000]

The cell is the first asynchronous one of the plan, at the middle of every constant.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from rich.console import Console

from benchmarks.published_runs.simulation import Regime, Scenario, Simulated, simulate_cell
from benchmarks.published_runs.speedups import SpeedupComparison, compare_speedups
from pipeline.config import load_settings
from pipeline.planning.bounds import Bounds
from pipeline.planning.constants import DEVICES
from pipeline.planning.estimate import Plan, plan_run
from pipeline.planning.model_size import ModelSize
from pipeline.planning.show import number, rounded, seconds, table_of
from pipeline.planning.timing import Lengths

GPU_COUNTS = (8, 16, 32, 64, 128, 256, 512, 1024)


def main() -> None:
    """Simulate the cell and the published systems."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="full", help="a preset of config.yaml that has GPUs")
    parser.add_argument("--gpu", default="H100", choices=DEVICES, help="what the cluster's GPUs are")
    parser.add_argument("--response-tokens", type=Bounds.parse, help="mean response length where it is known: 3000 or 2000-4000")
    given = parser.parse_args()
    plan = plan_run(load_settings(overrides={"preset": given.preset}), given.gpu, given.response_tokens)
    console = Console(width=None if sys.stdout.isatty() else 220)
    show_simulation(simulate_counts(plan, given.gpu), plan.cells[0].workload.batches, console)
    show_speedups(compare_speedups(), console)


def simulate_counts(plan: Plan, gpu: str) -> list[tuple[int, dict[Regime, Simulated]]]:
    """The plan's first asynchronous cell on 8 to 1,024 GPUs of this type."""
    return [(gpus, simulate_cell(replace(scenario_of(plan, gpu), gpus=gpus))) for gpus in GPU_COUNTS]


def scenario_of(plan: Plan, gpu: str) -> Scenario:
    """What a cell of the plan looks like to the simulation, at the middle of every constant.

    Raises ValueError for a plan without GPUs: what shares processors with its trainer is not simulated.
    """
    if not plan.deployment.num_devices:
        raise ValueError(f"preset {plan.settings.preset} runs on CPUs; the simulation needs GPUs, e.g. --preset full")
    cell = next((cell for cell in plan.cells if cell.workload.asynchronous), plan.cells[0])
    work, lag = cell.workload, plan.settings.lags[cell.cell.lag]
    lengths = Lengths(work.prompt_tokens.value.mid, work.response_tokens.value.mid, work.max_response_tokens)
    passes = work.passes.total
    return Scenario(
        size=ModelSize.of(plan.settings.model),
        device=DEVICES[gpu],
        pace=plan.deployment.rates.middle(),
        gpus=plan.deployment.num_devices,
        train_share=plan.deployment.ranks.count / plan.deployment.num_devices,
        tensor_parallel=plan.deployment.servers.tensor_parallel,
        responses=work.responses_per_batch,
        group_size=work.group_size,
        lengths=lengths,
        passes=passes,
        synchronous_passes=passes,
        publish_s=cell.part("publish").mid / max(work.publications, 1),
        publish_interval=lag.broadcast_interval,
        evaluation_responses=work.evaluation_responses,
        evaluation_interval=plan.settings.evaluation.interval,
        memory_fraction=plan.deployment.servers.memory_fraction,
    )


def show_simulation(rows: list[tuple[int, dict[Regime, Simulated]]], batches: int, console: Console) -> None:
    """Wall time, idle shares and speed-up by number of GPUs."""
    columns = ("regime", "training GPUs", "s a batch", "wall", "speed-up", "trainer idle", "servers idle", "slots unused")
    table = table_of(f"simulated cell of {batches} batches, middle of all constants, one seed", "GPUs", *columns)
    for gpus, regimes in rows:
        for name, row in regimes.items():
            table.add_row(
                str(gpus),
                name,
                str(row.train_gpus),
                rounded(row.step_s),
                seconds(Bounds.point(row.wall_s(batches))),
                f"{regimes['synchronous'].step_s / row.step_s:.2f}",
                *(f"{share:.0%}" for share in (row.train_idle, row.rollout_idle, row.rollout_unused)),
            )
    console.print(table)


def show_speedups(comparisons: list[SpeedupComparison], console: Console) -> None:
    """Published speed-ups beside simulated ones."""
    table = table_of("published asynchronous speed-ups", "system", "published", "simulated", "ratio", "regime", "source", "given")
    for row in comparisons:
        claim = row.claim
        published = number(Bounds(claim.low, claim.high))
        table.add_row(claim.name, published, f"{row.simulated:.2f}", f"{row.ratio:.2f}", claim.regime, claim.source, claim.given)
    console.print(table)


if __name__ == "__main__":
    main()
