"""One SGLang server: its command line and environment from the settings, where it runs, and the wait until it is healthy."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from pipeline.artifacts import read_json
from pipeline.config import CellSettings
from pipeline.processes.errors import EngineDied
from pipeline.processes.hosts import LOOPBACK, THIS_HOST, Host, interface_of
from pipeline.processes.placement import Place
from pipeline.processes.process import Process, ProcessSpec
from pipeline.rollout.sglang.client import ServerClient
from pipeline.sections import ClusterSettings, ServerSettings

UNLOADED = "none"  # the weight version of a server that holds no published version yet
_CPU_LAUNCHER = Path(__file__).parent / "cpu" / "launch.py"
_POLL_S = 0.5


def sections(settings: CellSettings) -> tuple[ServerSettings, ClusterSettings]:
    """The two sections that the servers are made from. ValueError where there are none, or for a model that SGLang misreads."""
    if settings.servers is None or settings.cluster is None:
        raise ValueError(f"rollout.engine {settings.rollout.engine!r}: a cell without servers; set rollout.engine to sglang")
    if settings.model.dense_layers:
        raise ValueError(
            f"model.dense_layers {list(settings.model.dense_layers)}: SGLang takes every layer of a Qwen3-MoE for one with experts "
            "and would sample from weights that were never loaded; set rollout.engine to torch"
        )
    return settings.servers, settings.cluster


def arguments(
    settings: CellSettings, model: Path, address: str, port: int | str, key_file: Path | None, routed_experts: bool, text: bool
) -> list[str]:
    """Arguments of sglang.launch_server. text: load the tokenizer of `model` too, for requests in text (lm-eval)."""
    servers, cluster = sections(settings)
    chosen = {
        "--model-path": str(model),
        "--host": address,
        "--port": str(port),
        "--config": key_file,
        "--device": cluster.device,
        "--dtype": settings.rollout.dtype,
        "--tensor-parallel-size": str(servers.tensor_parallel),
        "--context-length": str(settings.rollout.context_length),
        "--mem-fraction-static": servers.memory_fraction if cluster.device == "cuda" else None,
        "--max-total-tokens": servers.max_total_tokens,
        "--max-running-requests": servers.max_running_requests,
        "--attention-backend": servers.attention_backend,
        "--weight-version": UNLOADED,
        "--sampling-defaults": "openai",  # not the generation_config.json of the model
    }
    switches = {"--skip-tokenizer-init": not text, "--enable-return-routed-experts": routed_experts}
    return [word for name, value in chosen.items() if value is not None for word in (name, str(value))] + [
        name for name, on in switches.items() if on
    ]


def environment(settings: CellSettings, model: Path) -> dict[str, str]:
    servers, cluster = sections(settings)
    chosen = {"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"} | collectives(cluster)
    if settings.rollout.context_length > read_json(model / "config.json")["max_position_embeddings"]:
        chosen["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"] = "1"
    if cluster.device == "cpu":
        bind = "|".join(str(rank % (os.cpu_count() or 1)) for rank in range(servers.tensor_parallel))
        chosen |= {"SGLANG_USE_CPU_ENGINE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        chosen |= {"SGLANG_CPU_OMP_THREADS_BIND": bind} if servers.tensor_parallel > 1 else {}
    return chosen


def collectives(cluster: ClusterSettings) -> dict[str, str]:
    """What both ends of a broadcast need alike: the servers and the sender.

    On GPUs what SGLang would set in its own processes alone. On one node, what keeps off every network interface but the loopback.
    """
    nccl = {"NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "0"} if cluster.device == "cuda" else {}
    if cluster.num_nodes > 1:
        return nccl
    return nccl | dict.fromkeys(("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"), interface_of(LOOPBACK))


def server_spec(
    settings: CellSettings,
    number: int,
    place: Place,
    model: Path,
    port: int | str,
    host: Host = THIS_HOST,
    key_file: Path | None = None,
    routed_experts: bool = False,
    text: bool = False,
) -> ProcessSpec:
    """The process of server `number`: unmodified SGLang, on a CPU with the stand-ins of cpu/launch.py."""
    _, cluster = sections(settings)
    launcher = ("-P", str(_CPU_LAUNCHER)) if cluster.device == "cpu" else ("-m", "sglang.launch_server")
    return ProcessSpec(
        name=f"server-{number}",
        command=(
            *cluster.server_command,
            *launcher,
            *arguments(settings, model, host.address, port, key_file, routed_experts, text),
        ),
        environment=environment(settings, model),
        gpus=place.gpus,
        host=host,
    )


async def wait_until_healthy(process: Process, client: ServerClient, timeout_s: float) -> None:
    """Return once the server generates. EngineDied, with the end of its log, when it ends before or takes too long."""
    deadline = time.monotonic() + timeout_s
    while not await client.healthy():
        process.check()
        if time.monotonic() > deadline:
            raise EngineDied(
                f"{process.spec.name} was not ready after servers.startup_timeout_s {timeout_s:g}; the end of {process.log}:\n"
                f"{process.tail()}"
            )
        await asyncio.sleep(_POLL_S)
