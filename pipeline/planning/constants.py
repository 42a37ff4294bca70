"""What the cost model takes from outside: devices and measured or assumed rates, each as an interval with its source.

A constant marked `assumed` has no published measurement behind it. `python -m pipeline plan` prints the table; docs/planning.md
says how far the model built on it is from published runs.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from pipeline.planning.bounds import Bounds

GB = 1e9


@dataclass(frozen=True)
class Device:
    """One accelerator: memory in bytes, dense bfloat16 peak in FLOP/s, memory bandwidth in bytes/s (data sheets)."""

    name: str
    memory_bytes: float
    peak_flops: float
    bandwidth: float


DEVICES = {
    device.name: device
    for device in (
        Device("A100", 80 * GB, 312e12, 2.04e12),
        Device("H100", 80 * GB, 989e12, 3.35e12),
        Device("H200", 141 * GB, 989e12, 4.8e12),
        Device("H20", 96 * GB, 148e12, 4.0e12),
        Device("GB200", 186 * GB, 2500e12, 8.0e12),
    )
}


@dataclass(frozen=True)
class Constant:
    """A number the model needs: its interval, unit and source; assumed: whether no measurement stands behind it."""

    value: Bounds
    unit: str
    source: str
    assumed: bool = False


@dataclass(frozen=True)
class Rates:
    """How fast a kind of machine works, every field a Constant.

    train_flops: achieved per device in the trainer.  decode_efficiency: share of the roofline (bandwidth or peak).  decode_floor_s:
    what a decode step takes besides, per layer.  publish_bandwidth, publish_floor_s: one publication of the weights.
    scratch_bandwidth: writing a published version to its folder.  disk_bandwidth, hash_bandwidth: writing a checkpoint, and
    reading it back for its SHA-256.  startup_s: from the start of a cell to its first step.  server_host_bytes,
    rank_host_bytes: host memory of one rollout engine and one training rank, weights and states apart.
    """

    train_flops: Constant
    decode_efficiency: Constant
    decode_floor_s: Constant
    publish_bandwidth: Constant
    publish_floor_s: Constant
    scratch_bandwidth: Constant
    disk_bandwidth: Constant
    hash_bandwidth: Constant
    startup_s: Constant
    server_host_bytes: Constant
    rank_host_bytes: Constant

    def middle(self) -> Pace:
        """The middle of every interval."""
        return Pace(**{field.name: getattr(self, field.name).value.mid for field in fields(self)})

    def pace(self, best: bool) -> Pace:
        """One end of every interval: all fast or all slow."""
        values = {field.name: getattr(self, field.name).value for field in fields(self)}
        return Pace(**{name: value.high if best == (name in _FASTER_WHEN_LARGER) else value.low for name, value in values.items()})


@dataclass(frozen=True)
class Pace:
    """Rates as plain numbers, in the units that Rates gives."""

    train_flops: float
    decode_efficiency: float
    decode_floor_s: float
    publish_bandwidth: float
    publish_floor_s: float
    scratch_bandwidth: float
    disk_bandwidth: float
    hash_bandwidth: float
    startup_s: float
    server_host_bytes: float
    rank_host_bytes: float


_BANDWIDTHS = ("publish_bandwidth", "scratch_bandwidth", "disk_bandwidth", "hash_bandwidth")
_FASTER_WHEN_LARGER = ("train_flops", "decode_efficiency", *_BANDWIDTHS)

_UTILISATION = Constant(
    Bounds(0.08, 0.20),
    "of bf16 peak",
    "Megatron-Bridge: 121 TFLOP/s (12 %), 205 in FP8 (21 %); prime-rl: 15.4 % at 65k tokens, 2.9 % at 16k is outside",
)
_UTILISATION_H20 = Constant(
    Bounds(0.25, 0.50), "of bf16 peak", "verl, 128 H20: old log-probs 29 s, update 86 s a step, with an assumed length", True
)
_PUBLICATION = {
    "distributed": Constant(
        Bounds(1.8 * GB, 14.0 * GB), "bytes/s", "61 GB in 32.2 s (verl, H100, nccl), 15.8 s and 4.4 s (verl, H20)"
    ),
    "tensor": Constant(Bounds(1.0 * GB, 9.0 * GB), "bytes/s", "61 GB in 60 s, 7 s after bucketing (slime, colocated)"),
    "disk": Constant(Bounds(1.0 * GB, 2.1 * GB), "bytes/s", "61 GB in about 60 s, 30 s after a patch (AReaL)"),
}


def train_utilisation(device: Device) -> Constant:
    """Share of the bf16 peak that a mixture-of-experts trainer reaches: more where there is little compute per byte."""
    return _UTILISATION_H20 if device.peak_flops / device.bandwidth < 100 else _UTILISATION


def gpu_rates(device: Device, publication: str) -> Rates:
    """Rates of SGLang and Megatron-core on `device`; publication: disk | tensor | distributed."""
    utilisation = train_utilisation(device)
    return Rates(
        train_flops=Constant(utilisation.value * device.peak_flops, "FLOP/s", utilisation.source, utilisation.assumed),
        decode_efficiency=Constant(
            Bounds(0.5, 0.8),
            "of roofline",
            "whole rollouts reach 0.3-0.5, their long tail included, which is counted apart",
            True,
        ),
        decode_floor_s=Constant(Bounds(1e-4, 4e-4), "s per layer", "launches, all-reduce and sampling of a decode step", True),
        publish_bandwidth=_PUBLICATION[publication],
        publish_floor_s=Constant(Bounds(0.0, 2.0), "s", "pause of the servers, flush of the cache", True),
        scratch_bandwidth=Constant(Bounds(1.0 * GB, 5.0 * GB), "bytes/s", "all ranks to a node-local disk or memory", True),
        disk_bandwidth=Constant(Bounds(1.0 * GB, 5.0 * GB), "bytes/s", "one node's share of a parallel file system", True),
        hash_bandwidth=Constant(Bounds(2.0 * GB, 8.0 * GB), "bytes/s", "SHA-256 at 0.5-2 GB/s a thread, four files at once", True),
        startup_s=Constant(Bounds(120.0, 900.0), "s", "reading 61 GB twice, graph capture", True),
        server_host_bytes=Constant(Bounds(2 * GB, 10 * GB), "bytes", "three processes of a server; 2 GB measured on a CPU", True),
        rank_host_bytes=Constant(Bounds(4 * GB, 8 * GB), "bytes", "one Megatron-core process", True),
    )


CPU_TORCH = Rates(
    train_flops=Constant(Bounds(1.2e10, 3.4e10), "FLOP/s", "results/tiny-reference/cells.csv, train_s"),
    decode_efficiency=Constant(Bounds.point(1.0), "of train_flops", "results/tiny-reference, generate_s of 1,024 responses"),
    decode_floor_s=Constant(Bounds(1e-3, 4e-3), "s per layer", "results/tiny-reference, generate_s of 128 responses"),
    publish_bandwidth=Constant(Bounds.point(1.0 * GB), "bytes/s", "copy in memory", True),
    publish_floor_s=Constant(Bounds(5e-3, 3e-2), "s", "results/tiny-reference/cells.csv, publish_s"),
    scratch_bandwidth=Constant(Bounds.point(1.0 * GB), "bytes/s", "a laptop's memory", True),
    disk_bandwidth=Constant(Bounds(0.1 * GB, 1.0 * GB), "bytes/s", "a laptop's disk", True),
    hash_bandwidth=Constant(Bounds.point(0.5 * GB), "bytes/s", "SHA-256 on one core, measured: 0.55 GB/s"),
    startup_s=Constant(Bounds(1.0, 6.0), "s", "results/tiny-reference/cells.csv, wall_s less its parts"),
    server_host_bytes=Constant(Bounds(0.4 * GB, 0.6 * GB), "bytes", "results/tiny-reference/cells.csv, peak_memory_bytes"),
    rank_host_bytes=Constant(Bounds(0.4 * GB, 0.6 * GB), "bytes", "results/tiny-reference/cells.csv, peak_memory_bytes"),
)

CPU_SERVERS = Rates(
    train_flops=Constant(Bounds(1e9, 1.5e10), "FLOP/s", "Megatron-core on one core of a laptop: 9,000 to 14,000 tokens/s", True),
    decode_efficiency=Constant(Bounds.point(1.0), "of train_flops", "contained in the floor", True),
    decode_floor_s=Constant(
        Bounds(5e-3, 4e-2), "s per layer", "SGLang on a laptop: 560 tokens/s at 8, 2,460 at 128 sequences", True
    ),
    publish_bandwidth=Constant(Bounds.point(0.5 * GB), "bytes/s", "files on a local disk", True),
    publish_floor_s=Constant(Bounds(0.1, 2.0), "s", "one HTTP request per server", True),
    scratch_bandwidth=Constant(Bounds.point(1.0 * GB), "bytes/s", "a laptop's memory", True),
    disk_bandwidth=Constant(Bounds(0.1 * GB, 1.0 * GB), "bytes/s", "a laptop's disk", True),
    hash_bandwidth=Constant(Bounds.point(0.5 * GB), "bytes/s", "SHA-256 on one core, measured: 0.55 GB/s"),
    startup_s=Constant(Bounds(30.0, 180.0), "s", "start of the servers and ranks on a laptop", True),
    server_host_bytes=Constant(Bounds(2 * GB, 3 * GB), "bytes", "SGLang on a laptop: 2.0 GB"),
    rank_host_bytes=Constant(Bounds(0.5 * GB, 1.5 * GB), "bytes", "one Megatron-core process", True),
)

RESPONSE_TOKENS = {
    "published": Constant(Bounds(1000, 8000), "tokens", "not published; a base model starts short, the cap is 32k", True),
    "tiny": Constant(Bounds(18, 26), "tokens", "results/tiny-reference, response_length_mean"),
}
PROMPT_TOKENS = {
    "published": Constant(Bounds(150, 350), "tokens", "DAPO-Math prompts with the chat template", True),
    "tiny": Constant(Bounds(10, 25), "tokens", "results/tiny/problems: mean 16 characters, one token each, and the template"),
}
LENGTH_SPREAD = Constant(Bounds.point(1.0), "sd / mean", "long-tailed, log-normal", True)
