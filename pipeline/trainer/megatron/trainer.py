"""PolicyTrainer over Megatron-core ranks: starts them, hands each its samples, and ends them.

The controller holds no weights. A published version is a folder below a node-local scratch folder, in Hugging Face names; `save`
and `restore` hand the ranks a folder that they can all reach. A rank that dies or stalls while something was asked of it raises
EngineDied, which names it; one that dies while nothing was asked does so in `check`.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import Any

from pipeline.config import CellSettings
from pipeline.processes.hosts import Host, cell_hosts, free_port, interface_of
from pipeline.processes.placement import place
from pipeline.processes.process import Process, ProcessSpec, stop_all
from pipeline.processes.scratch import scratch_folder
from pipeline.published_weights import PublishedWeights, StoredWeights
from pipeline.records import RolloutBatch
from pipeline.trainer.megatron import layout
from pipeline.trainer.megatron.channel import ADDRESS, KEY, ControllerChannel, Generating, Job
from pipeline.trainer.megatron.shares import hand_out
from pipeline.trainer.microbatches import StepLengths
from pipeline.trainer.update import Update


@dataclass(frozen=True)
class Rendezvous:
    """Where ranks find their controller (address:port, key) and each other (a port of the first host, an interface)."""

    controller: str
    key: str
    master_port: str
    interface: str


def rank_specs(settings: CellSettings, hosts: Sequence[Host], meet: Rendezvous) -> list[ProcessSpec]:
    """The processes of the trainer on `hosts`, with torchrun's environment."""
    megatron, cluster = layout.sections(settings)
    root = str(Path(__file__).resolve().parents[3])
    return [
        ProcessSpec(
            name=f"rank-{rank}",
            command=(*cluster.trainer_command, "-m", "pipeline.trainer.megatron.rank"),
            environment={
                "RANK": str(rank),
                "WORLD_SIZE": str(megatron.num_ranks),
                "LOCAL_RANK": "0",  # each rank sees its own GPU alone
                "MASTER_ADDR": hosts[0].address,
                "MASTER_PORT": meet.master_port,
                "GLOO_SOCKET_IFNAME": meet.interface,
                "NCCL_SOCKET_IFNAME": meet.interface,  # on one node the loopback: no other machine can reach the ranks
                "OMP_NUM_THREADS": str(megatron.threads),
                "PYTHONWARNINGS": "ignore",  # of megatron-core, about what is not installed
                "CUDA_DEVICE_MAX_CONNECTIONS": "1",  # megatron-core orders communication and computation by it
                "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH")))),
                ADDRESS: meet.controller,
                KEY: meet.key,
            },
            gpus=where.gpus,
            host=hosts[where.node],
        )
        for rank, where in enumerate(place(settings).ranks)
    ]


class MegatronTrainer:
    """base: a Hugging Face folder, the initial weights and the reference of the KL.  logs: a folder for the ranks' logs."""

    def __init__(self, settings: CellSettings, base: Path, logs: Path) -> None:
        megatron, cluster = layout.sections(settings)
        layout.check(settings.model, megatron, cluster)
        self.settings, self.version = settings, 0
        self._scratch = scratch_folder(cluster.scratch, "published-")
        self._processes: list[Process] = []
        self._channel: ControllerChannel | None = None
        key = secrets.token_bytes(32)
        try:
            hosts = cell_hosts(cluster.num_nodes)
            with connection.Listener((hosts[0].address, 0), backlog=megatron.num_ranks, authkey=key) as listener:
                host, port = listener.address  # pyright: ignore[reportGeneralTypeIssues] - of an AF_INET listener
                meet = Rendezvous(f"{host}:{port}", key.hex(), str(free_port()), interface_of(hosts[0].address))
                specs = rank_specs(settings, hosts, meet)
                self._processes = [Process(spec, logs / f"{spec.name}.log") for spec in specs]
                self._channel = ControllerChannel(self._processes, listener, megatron.startup_timeout_s, megatron.stall_timeout_s)
            self._channel.send_to_all(Job(settings.model_dump_json(), str(base.resolve())))
            self._heads: tuple[int, ...] = self._answer(megatron.startup_timeout_s)
        except BaseException:
            self.close()
            raise

    def train_batch(self, batch: RolloutBatch, num_steps: int, generating: PublishedWeights) -> Iterator[Update]:
        folder = None if generating.folder is None else str(generating.folder.resolve())
        self._send(
            "train",
            lengths=tuple(StepLengths.of(part) for part in batch.parts(num_steps)),
            generating=Generating(generating.version, folder),
        )
        assert self._channel is not None
        hand_out(self._channel, self._heads, batch, num_steps, self.settings.trainer.micro_batch_tokens)
        for _ in range(num_steps):
            update = self._answer()
            self.version += 1
            yield update
        self._answer()

    def publish(self) -> PublishedWeights:
        folder = self._scratch / f"version_{self.version:06}"
        shutil.rmtree(folder, ignore_errors=True)  # a version is published again after a resume
        version = self._ask("publish", folder=str(folder))
        return PublishedWeights(version, StoredWeights(folder), folder)

    def save(self, folder: Path) -> None:
        self._ask("save", folder=str(folder.resolve()))

    def restore(self, folder: Path) -> None:
        self.version = self._ask("restore", folder=str(folder.resolve()))

    def check(self) -> None:
        assert self._channel is not None
        self._channel.check()

    def close(self) -> None:
        stop_all(self._processes)
        if self._channel is not None:
            self._channel.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _ask(self, command: str, **arguments: Any) -> Any:
        self._send(command, **arguments)
        return self._answer()

    def _send(self, command: str, **arguments: Any) -> None:
        assert self._channel is not None
        self._channel.send((command, arguments))

    def _answer(self, patience_s: float | None = None) -> Any:
        assert self._channel is not None
        kind, value = self._channel.expect(patience_s)
        if kind == "refused":
            raise ValueError(value)
        return value
