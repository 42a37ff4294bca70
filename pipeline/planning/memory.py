"""Bytes on each GPU for a layout, part by part, and whether they fit: training ranks and rollout servers."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.planning.constants import GB, Device
from pipeline.planning.deployment import Ranks, Servers
from pipeline.planning.model_size import FP32, ModelSize
from pipeline.planning.timing import cache_tokens

_CONTEXT_BYTES = 3 * GB  # CUDA context, NCCL buffers, fragmentation: what a process holds before the first tensor
_EXPERT_IMBALANCE = 2.0  # tokens of the fullest rank over the mean, without an auxiliary loss
_ADAM_VALUES = 3  # float32 master weights and two moments
_ROUTE_BYTES, _INDEX_BYTES = 2, 8  # of an expert id as it waits, and as an index
PINNED_ROUNDING = 4 / 3  # CUDA pins powers of two of bytes: exact for an expert's matrices of 3 x 2^n, a mean for others


@dataclass(frozen=True)
class MemoryPart:
    """One line of the memory table; note: how the bytes come about, or where they lie instead."""

    name: str
    bytes: float
    note: str


def total_bytes(parts: list[MemoryPart]) -> float:
    return sum(part.bytes for part in parts)


def fits(parts: list[MemoryPart], memory_bytes: float) -> bool:
    return total_bytes(parts) <= memory_bytes


def parameters_per_rank(size: ModelSize, ranks: Ranks) -> tuple[float, float]:
    """Parameters of one training rank: its share of the experts and of everything else."""
    experts = size.expert_parameters / (ranks.expert_parallel * ranks.expert_tensor_parallel * ranks.pipeline_parallel)
    return experts, size.other_parameters / (ranks.tensor_parallel * ranks.pipeline_parallel)


def optimizer_bytes(size: ModelSize, ranks: Ranks) -> float:
    """Adam's states of one rank, wherever they lie; the distributed optimizer spreads them over the data-parallel ranks."""
    experts, rest = parameters_per_rank(size, ranks)
    if ranks.distributed_optimizer:
        experts, rest = experts / ranks.expert_data_parallel, rest / ranks.data_parallel
    return _ADAM_VALUES * FP32 * (experts + rest)


def offloaded_bytes(size: ModelSize, ranks: Ranks) -> float:
    """Host memory of one rank's offloaded Adam: two moments, and main weights and gradients, which are pinned; all float32."""
    values = optimizer_bytes(size, ranks) / _ADAM_VALUES
    return values * (2 + 2 * PINNED_ROUNDING)


def trainer_memory(size: ModelSize, ranks: Ranks, micro_batch_tokens: int, num_policies: int) -> list[MemoryPart]:
    """Memory of one training rank. num_policies: 2 with a reference policy beside the trained one, else 1."""
    parameters = sum(parameters_per_rank(size, ranks))
    weights = parameters * ranks.weight_bytes
    optimizer = optimizer_bytes(size, ranks)
    chunk = min(ranks.logprob_chunk_tokens or micro_batch_tokens, micro_batch_tokens)
    logits = 3 * FP32 * chunk * size.vocab_size / ranks.tensor_parallel
    return [
        MemoryPart("weights", weights, f"{parameters / 1e9:.2f}e9 of {size.parameters / 1e9:.2f}e9 parameters"),
        MemoryPart("gradients", parameters * FP32, "float32"),
        MemoryPart(
            "optimizer",
            0.0 if ranks.optimizer_offload else optimizer,
            f"{offloaded_bytes(size, ranks) / GB:.1f} GB in host memory"
            if ranks.optimizer_offload
            else "master weights and two moments, float32",
        ),
        MemoryPart(
            "reference policy",
            0.0,
            f"{weights / GB:.1f} GB in host memory, lent the weights' place for its pass" if num_policies > 1 else "none",
        ),
        MemoryPart("activations", activation_bytes(size, ranks, micro_batch_tokens), _activation_note(ranks)),
        MemoryPart("replayed routes", route_bytes(size, ranks, micro_batch_tokens), "with R3: expert ids of what is in flight"),
        MemoryPart("logits", logits, f"{chunk:,} tokens at a time, float32, with softmax and gradient"),
        MemoryPart("context", _CONTEXT_BYTES, "assumed: CUDA, NCCL, fragmentation"),
    ]


def activation_bytes(size: ModelSize, ranks: Ranks, tokens: int) -> float:
    """Activations of a micro-batch of `tokens` tokens on one rank.

    With full recomputation: the input of every layer, and one layer in full while it is differentiated. Sequence parallelism
    spreads both over the tensor-parallel ranks; the fullest rank is given _EXPERT_IMBALANCE times its share of expert tokens.
    """
    layers = size.num_layers / ranks.pipeline_parallel
    inputs = layers * tokens * size.hidden_size * ranks.weight_bytes / ranks.tensor_parallel
    whole = layer_activation_bytes(size, ranks, tokens)
    return inputs + (2 * whole if ranks.recompute else layers * whole)


def layer_activation_bytes(size: ModelSize, ranks: Ranks, tokens: int) -> float:
    """What one layer keeps for its backward pass on one rank."""
    heads = 2 * size.num_attention_heads + 2 * size.num_key_value_heads
    attention = tokens * (2 * size.hidden_size + heads * size.head_dim) * ranks.weight_bytes / ranks.tensor_parallel
    per_copy = (2 * size.hidden_size + 3 * size.expert_intermediate_size) * ranks.weight_bytes
    experts = tokens * size.num_experts_per_token * per_copy / ranks.tensor_parallel * _EXPERT_IMBALANCE
    return attention + experts


def route_bytes(size: ModelSize, ranks: Ranks, tokens: int) -> float:
    """Expert ids that R3 keeps on one rank: of its layers for every micro-batch in flight, which is one without recomputation
    (megatron/replay.py), and what the routers' backward passes keep of them.
    """
    layers, in_flight = size.moe_layers / ranks.pipeline_parallel, ranks.pipeline_parallel if ranks.recompute else 1
    ids = tokens * size.num_experts_per_token / ranks.tensor_parallel
    return ids * (_ROUTE_BYTES * layers * in_flight + _INDEX_BYTES * (1 if ranks.recompute else layers))


def _activation_note(ranks: Ranks) -> str:
    return "layer inputs and one layer, recomputed in full" if ranks.recompute else "all layers kept; megatron.recompute is off"


def server_memory(size: ModelSize, device: Device, servers: Servers) -> list[MemoryPart]:
    """Memory of one rollout GPU: weights, and the cache that memory_fraction leaves."""
    tokens = cache_tokens(size, device, servers)
    cache = tokens * size.cache_bytes_per_token(servers.tensor_parallel)
    weights = size.weight_bytes() / servers.tensor_parallel
    rest = device.memory_bytes * (1 - servers.memory_fraction)
    return [
        MemoryPart("weights", weights, "bfloat16"),
        MemoryPart("KV cache", cache, f"{tokens:,.0f} tokens a server"),
        MemoryPart("rest", rest, "activations, CUDA graphs"),
    ]


def server_fits(size: ModelSize, device: Device, servers: Servers, context_length: int) -> bool:
    """Whether a server holds its weights and at least one response of the full context length."""
    return cache_tokens(size, device, servers) >= context_length
