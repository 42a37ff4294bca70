"""Host memory of a cell's nodes against what its SLURM job asks for (section job). In MiB, as SLURM and Snakemake count."""

from __future__ import annotations

import math
from collections.abc import Iterable

from pipeline.artifacts import Cell
from pipeline.config import Settings
from pipeline.planning.bounds import Bounds
from pipeline.planning.estimate import CellEstimate, plan_cell

MIB = 2**20


def node_memory_mb(estimate: CellEstimate, num_nodes: int) -> Bounds:
    """What each of the cell's nodes needs, were the parts spread evenly."""
    return estimate.host_bytes * (1 / (MIB * num_nodes))


def job_memory_mb(settings: Settings, cell: Cell) -> int:
    """What the job of `cell` asks of each node: on GPU nodes the high end of its plan, within the range that the settings give."""
    job, cluster = settings.job, settings.cell(cell).cluster
    if job.max_memory_mb is None or cluster is None or cluster.device == "cpu":
        return job.memory_mb
    needed = node_memory_mb(plan_cell(settings, cell), cluster.num_nodes).high
    return max(job.memory_mb, min(math.ceil(needed), job.max_memory_mb))


def memory_warnings(settings: Settings, estimates: Iterable[CellEstimate]) -> list[str]:
    """A line for every cell whose job may get less memory than it needs.

    Raises ValueError that names the cells which need more even at the low end of their plan.
    """
    short, doubtful = [], []
    for estimate in estimates:
        needed, given = node_memory_mb(estimate, settings.cluster.num_nodes), job_memory_mb(settings, estimate.cell)
        text = f"{estimate.cell}: {needed.low:,.0f} to {needed.high:,.0f} MiB of host memory a node, the job asks for {given:,}"
        if needed.low > given:
            short.append(text)
        elif needed.high > given:
            doubtful.append(text)
    if short:
        raise ValueError(
            "a node's memory is too small even for the shortest responses; raise job.memory_mb or job.max_memory_mb, take more "
            "nodes (cluster.num_nodes) or leave these cells out:\n" + "\n".join(short)
        )
    return doubtful
