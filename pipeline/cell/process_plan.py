"""What a cell starts beside itself, where and with which command line - before anything is started."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.config import CellSettings
from pipeline.processes.hosts import Host, cell_hosts
from pipeline.processes.placement import place
from pipeline.processes.process import ProcessSpec, launcher

PORT = "PORT"  # chosen when the process starts, as are keys


def process_plan(settings: CellSettings, model: Path, hosts: Sequence[Host]) -> list[ProcessSpec]:
    """Training ranks and servers in this order; none where both engines are PyTorch's."""
    placement = place(settings)
    specs: list[ProcessSpec] = []
    if settings.megatron is not None:
        from pipeline.trainer.megatron.trainer import Rendezvous, rank_specs

        specs += rank_specs(settings, hosts, Rendezvous(f"{hosts[0].address}:{PORT}", "KEY", PORT, "INTERFACE"))
    if settings.servers is not None:
        from pipeline.rollout.sglang.server import server_spec

        replay = settings.resolved_method().routing_replay
        for number, where in enumerate(placement.servers):
            specs.append(server_spec(settings, number, where, model, PORT, host=hosts[where.node], routed_experts=replay))
    return specs


def planned_hosts(num_nodes: int) -> tuple[Host, ...]:
    """The job's hosts inside a job; elsewhere names that stand for them."""
    if num_nodes == 1 or "SLURM_JOB_ID" in os.environ:
        return cell_hosts(num_nodes)
    return (Host(None, "NODE-0"), *(Host(f"NODE-{number}", f"NODE-{number}") for number in range(1, num_nodes)))


def as_lines(specs: Sequence[ProcessSpec]) -> Iterator[str]:
    """For people: a line with the place of each process, then its environment and command line, ready for a shell."""
    for spec in specs:
        gpus = f"GPU {','.join(map(str, spec.gpus))}" if spec.gpus else "no GPU"
        yield f"{spec.name}: {spec.host.name or 'the node of the controller'}, {gpus}"
        assignments = [f"{name}={shlex.quote(value)}" for name, value in spec.environment.items()]
        yield "    " + " ".join([*assignments, shlex.join(launcher(spec))])
    if not specs:
        yield "the cell starts no servers or training ranks: both engines are PyTorch's"
