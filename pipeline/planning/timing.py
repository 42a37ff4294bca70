"""Seconds of the parts of a cell, for one pace: every function takes plain numbers and returns seconds.

A decode step costs a floor (launches, reading the weights) plus an amount per sequence (reading its cache, multiplying). A batch
that is generated to its end takes as many steps as its longest response has tokens, more when it does not fit the slots at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipeline.planning.constants import Device, Pace
from pipeline.planning.deployment import Servers
from pipeline.planning.model_size import BF16, ModelSize


@dataclass(frozen=True)
class Lengths:
    """Mean prompt and response length and the longest response of a batch, in tokens; spread: sd / mean of response lengths."""

    prompt: float
    response: float
    longest: float
    spread: float = 1.0

    @property
    def context(self) -> float:
        """Tokens that a response token attends to, averaged over response tokens: prompt + E[L^2] / 2 E[L]."""
        return self.prompt + self.response * (1 + self.spread**2) / 2


def cache_tokens(size: ModelSize, device: Device, servers: Servers) -> float:
    """Tokens whose keys and values fit one server beside its weights. 0 where not even the weights fit."""
    per_gpu = device.memory_bytes * servers.memory_fraction - size.weight_bytes() / servers.tensor_parallel
    fitting = max(per_gpu, 0.0) / size.cache_bytes_per_token(servers.tensor_parallel)
    return min(fitting, servers.max_total_tokens or math.inf)


def decode_step_s(
    size: ModelSize, device: Device, tensor_parallel: int, pace: Pace, sequences: float, context_tokens: float
) -> float:
    """One decode step of a server over `sequences` responses whose contexts have `context_tokens` tokens together."""
    read = size.read_bytes(sequences) / tensor_parallel + context_tokens * size.cache_bytes_per_token(tensor_parallel)
    peak = pace.train_flops if math.isinf(device.peak_flops) else device.peak_flops
    flops = sequences * size.forward_flops(context_tokens / max(sequences, 1e-9)) / tensor_parallel
    return size.num_layers * pace.decode_floor_s + (read / device.bandwidth + flops / peak) / pace.decode_efficiency


def slots_of(size: ModelSize, device: Device, servers: Servers, lengths: Lengths) -> float:
    """Responses one server decodes at a time, once contexts are spread over all lengths."""
    slots = min(cache_tokens(size, device, servers) / lengths.context, servers.max_running_requests or math.inf)
    if slots < 1:
        raise ValueError(
            f"a server of {servers.tensor_parallel} x {device.name} has no room for one response of {lengths.context:.0f} tokens "
            "beside the weights; raise servers.tensor_parallel or servers.memory_fraction"
        )
    return slots


def generation_s(
    size: ModelSize, device: Device, servers: Servers, pace: Pace, lengths: Lengths, responses: float, group_size: int
) -> float:
    """Seconds until `responses` requests, handed to all servers at once, are all answered.

    Waves of full slots, then the longest response; a step reads the experts that its average number of responses chooses. A group's
    prompt is read once (prefix cache).
    """
    gpus = servers.tensor_parallel
    per_server = responses / servers.count
    active = min(per_server, slots_of(size, device, servers, lengths))
    steps = lengths.longest + (per_server / active - 1) * lengths.response

    def reading(sequences: float) -> float:
        return size.read_bytes(sequences) / gpus / device.bandwidth / pace.decode_efficiency

    floor = size.num_layers * pace.decode_floor_s
    full = decode_step_s(size, device, gpus, pace, active, active * lengths.context)
    per_token = (full - floor - reading(active)) / active
    prefill = per_server / group_size * lengths.prompt * size.forward_flops(lengths.prompt / 2) / (gpus * pace.train_flops)
    tokens = per_server * lengths.response
    return steps * (floor + reading(tokens / steps)) + tokens * per_token + prefill


def training_s(size: ModelSize, ranks: int, pace: Pace, lengths: Lengths, responses: float, passes: float) -> float:
    """Seconds of `passes` forward passes' worth of work on `responses` responses with their prompts."""
    tokens = responses * (lengths.prompt + lengths.response)
    return tokens * passes * size.forward_flops(lengths.context) / (ranks * pace.train_flops)


def folder_s(size: ModelSize, pace: Pace, bytes_per_value: int = BF16) -> float:
    """Seconds in which a version of the weights becomes a folder of files."""
    return size.weight_bytes(bytes_per_value) / pace.scratch_bandwidth


def transport_s(size: ModelSize, pace: Pace, bytes_per_value: int = BF16) -> float:
    """Seconds from the trainer's weights, or their folder, to the servers'."""
    return pace.publish_floor_s + size.weight_bytes(bytes_per_value) / pace.publish_bandwidth
