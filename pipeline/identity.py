"""Which settings decide what a run computes, and which only how it is operated.

A setting is operational if a cell may be stopped and continued with another value of it and is still the same cell. With
PyTorch's engines "the same" means bit for bit. With SGLang it means the same weights, sampled by the same kernels, and the same
versions, lags and data. Every other setting makes another cell.

The identity of state, the names of settings files, `status`, the report's staleness and `plan --measured` all ask here. So a
limit that was too short can be raised without abandoning what was trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OPERATIONAL = frozenset(
    {
        "retrain",
        "job",
        "rollout.overlap",
        "trainer.checkpoint_interval",
        "servers.num_servers",
        "servers.memory_fraction",
        "servers.max_total_tokens",
        "servers.max_running_requests",
        "servers.requests_in_flight",
        "servers.publication",
        "servers.verify_interval",
        "servers.startup_timeout_s",
        "servers.stall_timeout_s",
        "megatron.threads",
        "megatron.startup_timeout_s",
        "megatron.stall_timeout_s",
        "cluster.num_nodes",  # where a cell runs; on what kind of device decides which kernels do
        "cluster.gpus_per_node",
        "cluster.scratch",
        "cluster.scratch_shared",
        "cluster.server_python",
        "cluster.trainer_python",
    }
)


def computing(settings: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """What decides the result, of a dump of a run's or a cell's settings. path: where in them it stands, as in "servers."."""
    return {
        name: computing(value, f"{path}{name}.") if isinstance(value, Mapping) else value
        for name, value in settings.items()
        if path + name not in OPERATIONAL
    }


def differences(then: Any, now: Any, path: str = "") -> list[str]:
    """What differs between two dumps, as "trainer.steps 150, now 200"."""
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        return [
            line
            for key in dict.fromkeys([*now, *then])
            for line in differences(then.get(key), now.get(key), f"{path}.{key}" if path else key)
        ]
    return [] if then == now else [f"{path} {then}, now {now}"]
