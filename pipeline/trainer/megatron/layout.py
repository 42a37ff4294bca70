"""How the policy is cut over ranks: tensor, sequence, pipeline, expert and data parallelism, and which cuts are refused.

A RankLayout is one rank's place in it. `check` refuses, before anything is started, what the model's sizes do not allow; layouts
that are known to compute wrong values are refused by MegatronSettings already, and tensor parallelism always comes with sequence
parallelism, without which megatron-core refuses mixtures of experts.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from pipeline.config import CellSettings
from pipeline.sections import ClusterSettings, MegatronSettings, ModelSettings


@dataclass(frozen=True)
class RankLayout:
    """Sizes and this rank's index for each kind of parallelism; expert_data: the ranks that hold copies of the same experts."""

    rank: int
    num_ranks: int
    tensor_size: int = 1
    tensor_rank: int = 0
    pipeline_size: int = 1
    pipeline_rank: int = 0
    data_size: int = 1
    data_rank: int = 0
    expert_size: int = 1
    expert_rank: int = 0
    expert_tensor_size: int = 1
    expert_tensor_rank: int = 0
    expert_data_rank: int = 0

    @property
    def first_stage(self) -> bool:
        return self.pipeline_rank == 0

    @property
    def last_stage(self) -> bool:
        return self.pipeline_rank == self.pipeline_size - 1

    @property
    def reports(self) -> bool:
        """Whether this rank speaks for its micro-batches: one rank of each group that computes the same log-probs."""
        return self.last_stage and self.tensor_rank == 0

    def layers(self, num_layers: int) -> range:
        """The layers of this rank's pipeline stage."""
        count = num_layers // self.pipeline_size
        return range(self.pipeline_rank * count, (self.pipeline_rank + 1) * count)

    def experts(self, num_experts: int) -> range:
        """The experts that this rank holds (or its part of them)."""
        count = num_experts // self.expert_size
        return range(self.expert_rank * count, (self.expert_rank + 1) * count)

    def describe(self) -> dict[str, int]:
        return asdict(self)


def sections(settings: CellSettings) -> tuple[MegatronSettings, ClusterSettings]:
    """The sections that every cell with this trainer has."""
    assert settings.megatron is not None and settings.cluster is not None
    return settings.megatron, settings.cluster


def check(model: ModelSettings, megatron: MegatronSettings, cluster: ClusterSettings) -> None:
    """Raise ValueError, with the remedy, where the model's sizes do not divide as the layout asks or the machine cannot do it."""
    tensor, pipeline, expert = megatron.tensor_parallel, megatron.pipeline_parallel, megatron.expert_parallel
    divisions = [
        ("vocab_size", model.vocab_size, "tensor_parallel", tensor),
        ("num_attention_heads", model.num_attention_heads, "tensor_parallel", tensor),
        ("num_key_value_heads", model.num_key_value_heads, "tensor_parallel", tensor),
        ("dense_intermediate_size", model.dense_intermediate_size if model.dense_layers else 0, "tensor_parallel", tensor),
        ("expert_intermediate_size", model.expert_intermediate_size, "expert_tensor_parallel", megatron.expert_tensor_parallel),
        ("num_layers", model.num_layers, "pipeline_parallel", pipeline),
        ("num_experts", model.num_experts, "expert_parallel", expert),
    ]
    for what, size, setting, parts in divisions:
        if size % parts:
            raise ValueError(f"model.{what} {size} cannot be cut into megatron.{setting} {parts} equal parts; choose a divisor")
    if megatron.optimizer_offload and not megatron.distributed_optimizer:
        raise ValueError("megatron.optimizer_offload needs megatron.distributed_optimizer, which it is a part of; turn both on")
    if cluster.device == "cpu" and (megatron.optimizer_offload or megatron.layer_spec == "transformer_engine"):
        raise ValueError(
            f"megatron.optimizer_offload {megatron.optimizer_offload} and layer_spec {megatron.layer_spec!r}: both need CUDA, "
            "and cluster.device is 'cpu'; use false and 'local'"
        )
    if megatron.layer_spec == "transformer_engine" and megatron.dtype == "float32":
        raise ValueError("megatron.layer_spec transformer_engine has no float32 attention; use dtype bfloat16 or layer_spec local")


class Refusal(ValueError):
    """A ValueError that every rank raises at the same place: all of them can go on with the next command."""


# while rollouts are generated, ranks wait for their next command as long as it takes; the controller ends them if it dies
_PATIENCE = timedelta(days=365)


def _gloo(ranks: Sequence[int]) -> dist.ProcessGroup | None:
    """Their group; None on the others. Every rank calls."""
    group = dist.new_group(list(ranks), backend="gloo", timeout=_PATIENCE)
    return group if isinstance(group, dist.ProcessGroup) else None


@dataclass(frozen=True)
class Groups:
    """layout: this rank's place.  control: all ranks, over gloo, for commands and objects.  device: of this rank's tensors.

    sharing: the ranks that compute the same micro-batches, over gloo.  heads: by data rank, the first of these ranks.
    """

    layout: RankLayout
    control: dist.ProcessGroup
    sharing: dist.ProcessGroup
    heads: tuple[int, ...]
    device: torch.device

    @classmethod
    def join(cls, layout: RankLayout, device: torch.device) -> Groups:
        """Every rank calls, in the same order as others build groups."""
        control = _gloo(range(layout.num_ranks))
        assert control is not None  # every rank belongs to it
        data_ranks = [0] * layout.num_ranks
        dist.all_gather_object(data_ranks, layout.data_rank, group=control)
        members = [[rank for rank, found in enumerate(data_ranks) if found == data] for data in range(layout.data_size)]
        sharing = [_gloo(ranks) for ranks in members][layout.data_rank]
        assert sharing is not None  # it belongs to the ranks of its own data rank
        return cls(layout, control, sharing, tuple(ranks[0] for ranks in members), device)

    @property
    def head(self) -> int:
        return self.heads[self.layout.data_rank]

    def agree(self, problem: str | None) -> None:
        """Raise the same Refusal on all ranks if one of them has a problem. Every rank calls."""
        problems: list[str | None] = [None] * self.layout.num_ranks
        dist.all_gather_object(problems, problem, group=self.control)
        told = [f"rank {rank}: {text}" for rank, text in enumerate(problems) if text is not None]
        if told:
            raise Refusal("; ".join(told))


def initialize(megatron: MegatronSettings, device: torch.device) -> Groups:
    """Join the other ranks (environment as torchrun sets it) and build megatron-core's process groups."""
    from megatron.core import parallel_state

    limit = timedelta(seconds=megatron.stall_timeout_s)
    dist.init_process_group("gloo" if device.type == "cpu" else "nccl", timeout=limit)
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=megatron.tensor_parallel,
        pipeline_model_parallel_size=megatron.pipeline_parallel,
        expert_model_parallel_size=megatron.expert_parallel,
        expert_tensor_parallel_size=megatron.expert_tensor_parallel,
        distributed_timeout_minutes=max(1, int(limit.total_seconds() // 60)),
    )
    layout = RankLayout(
        rank=dist.get_rank(),
        num_ranks=dist.get_world_size(),
        tensor_size=parallel_state.get_tensor_model_parallel_world_size(),
        tensor_rank=parallel_state.get_tensor_model_parallel_rank(),
        pipeline_size=parallel_state.get_pipeline_model_parallel_world_size(),
        pipeline_rank=parallel_state.get_pipeline_model_parallel_rank(),
        data_size=parallel_state.get_data_parallel_world_size(),
        data_rank=parallel_state.get_data_parallel_rank(),
        expert_size=parallel_state.get_expert_model_parallel_world_size(),
        expert_rank=parallel_state.get_expert_model_parallel_rank(),
        expert_tensor_size=parallel_state.get_expert_tensor_parallel_world_size(),
        expert_tensor_rank=parallel_state.get_expert_tensor_parallel_rank(),
        expert_data_rank=parallel_state.get_expert_data_parallel_rank(),
    )
    return Groups.join(layout, device)
