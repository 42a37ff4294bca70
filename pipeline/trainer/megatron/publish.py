"""Writing the model's weights as Hugging Face safetensors, by all ranks together: what is cut is gathered, every expert is written
by the rank that owns it, and copies on other data ranks are not written again."""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from pipeline.trainer.megatron.files import write_files
from pipeline.trainer.megatron.names import ParameterSource, hugging_face
from pipeline.trainer.megatron.weights import Weights


def write_weights(folder: Path, version: int, weights: Weights) -> None:
    """Fill `folder`, which exists, with this rank's files. Every rank calls; it is complete when all have returned."""
    write_files(folder, f"model-{weights.groups.layout.rank:05}", _owned(weights), {"version": str(version)})


def _owned(weights: Weights) -> Iterator[tuple[str, Tensor]]:
    """The Hugging Face tensors that this rank writes. Ranks that share a parameter take part in its gathering."""
    layout = weights.groups.layout
    for name, source in weights.sources.items():
        copy = layout.expert_data_rank if source.expert else layout.data_rank
        if copy > 0:
            continue
        parts = _parts(source, weights.parameters[name].detach())
        first = layout.expert_tensor_rank if source.expert else layout.tensor_rank
        if first == 0:
            yield from hugging_face(source, parts, weights.model).items()


def _parts(source: ParameterSource, own: Tensor) -> list[Tensor]:
    from megatron.core import parallel_state

    of_experts, of_others = parallel_state.get_expert_tensor_parallel_group, parallel_state.get_tensor_model_parallel_group
    group = (of_experts if source.expert else of_others)()
    if source.cut == "whole" or group.size() == 1:
        return [own]
    parts = [torch.empty_like(own) for _ in range(group.size())]
    dist.all_gather(parts, own.contiguous(), group=group)
    return parts
