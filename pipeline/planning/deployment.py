"""What a cell's processes stand on, as plain numbers: how many devices generate and train, and how weights are spread over them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipeline.config import Settings
from pipeline.planning.constants import CPU_SERVERS, CPU_TORCH, DEVICES, Device, Rates, gpu_rates
from pipeline.planning.model_size import BF16, FP32

_CORE = Device("cpu", math.inf, math.inf, math.inf)


@dataclass(frozen=True)
class Servers:
    """Rollout engines: `count` of them on `tensor_parallel` devices each."""

    count: int
    tensor_parallel: int
    memory_fraction: float
    max_total_tokens: int | None = None
    max_running_requests: int | None = None


@dataclass(frozen=True)
class Ranks:
    """The trainer's layout. Data parallelism is what `count` leaves over, for experts and for the rest apart.

    logprob_chunk_tokens None: logits of a whole micro-batch at a time.  weight_bytes: of one weight, in the trainer and published.
    """

    count: int
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    expert_parallel: int = 1
    expert_tensor_parallel: int = 1
    distributed_optimizer: bool = True
    optimizer_offload: bool = False
    recompute: bool = False
    logprob_chunk_tokens: int | None = None
    weight_bytes: int = BF16

    @property
    def data_parallel(self) -> int:
        return self.count // (self.tensor_parallel * self.pipeline_parallel)

    @property
    def expert_data_parallel(self) -> int:
        return self.count // (self.expert_parallel * self.expert_tensor_parallel * self.pipeline_parallel)


@dataclass(frozen=True)
class Deployment:
    """device: what both engines run on.  shared: whether they compete for the same processors.  num_devices: what is paid for."""

    device: Device
    rates: Rates
    servers: Servers
    ranks: Ranks
    num_nodes: int
    num_devices: int
    shared: bool


def deployment_of(settings: Settings, gpu: str) -> Deployment:
    """Where a cell of these settings runs. gpu: a key of DEVICES, for settings whose cluster has GPUs.

    Raises ValueError for an unknown GPU and for engines that need more GPUs than the cluster's nodes have.
    """
    if gpu not in DEVICES:
        raise ValueError(f"unknown GPU {gpu!r}; known: {', '.join(DEVICES)}")
    servers, ranks = _servers(settings), _ranks(settings)
    if "sglang" not in settings.rollout.engine and "megatron" not in settings.trainer.engine:
        return Deployment(_CORE, CPU_TORCH, servers, ranks, 1, 0, shared=True)
    cluster = settings.cluster
    if cluster.device == "cpu":
        return Deployment(_CORE, CPU_SERVERS, servers, ranks, cluster.num_nodes, 0, shared=True)
    held, needed = cluster.num_nodes * cluster.gpus_per_node, servers.count * servers.tensor_parallel + ranks.count
    if needed > held:
        raise ValueError(
            f"{servers.count} servers x {servers.tensor_parallel} GPUs and {ranks.count} training ranks need {needed} GPUs, but "
            f"cluster.num_nodes {cluster.num_nodes} x cluster.gpus_per_node {cluster.gpus_per_node} are {held}; raise one of these"
        )
    rates = gpu_rates(DEVICES[gpu], settings.servers.publication)
    return Deployment(DEVICES[gpu], rates, servers, ranks, cluster.num_nodes, held, shared=False)


def _servers(settings: Settings) -> Servers:
    if settings.rollout.engine == "torch":
        return Servers(1, 1, 1.0)
    read = settings.servers
    return Servers(read.num_servers, read.tensor_parallel, read.memory_fraction, read.max_total_tokens, read.max_running_requests)


def _ranks(settings: Settings) -> Ranks:
    if settings.trainer.engine == "torch":
        return Ranks(1, weight_bytes=FP32)
    read = settings.megatron
    return Ranks(
        read.num_ranks,
        read.tensor_parallel,
        read.pipeline_parallel,
        read.expert_parallel,
        read.expert_tensor_parallel,
        read.distributed_optimizer,
        read.optimizer_offload,
        read.recompute,
        read.logprob_chunk_tokens,
        BF16 if read.dtype == "bfloat16" else FP32,
    )
