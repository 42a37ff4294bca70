"""Which Hugging Face tensors make up each parameter of a rank, and which part of them: the weight mapping, both ways, exact.

`parameter_sources` names for every Megatron parameter of a rank its source. `assemble` makes the rank's parameter from slices of
the Hugging Face tensors, so that a rank reads nothing else; `hugging_face` makes the Hugging Face tensors from the parameters of
all ranks that share them. Two name sets exist: `local` layers have norms of their own and an object per expert,
`transformer_engine` fuses a norm into the projection that follows and numbers the experts of one grouped layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from pipeline.sections import ModelSettings
from pipeline.trainer.megatron.layout import RankLayout

Cut = Literal["whole", "rows", "columns", "qkv", "gate_up"]
NameSet = Literal["local", "transformer_engine"]


@dataclass(frozen=True)
class ParameterSource:
    """Where a parameter comes from. tensors: Hugging Face names: one, or query, key, value of `qkv`, or gate, up of `gate_up`.

    cut: `whole`: every rank has all of it.  rows, columns: equal parts of the first or second dimension.  qkv: equal parts of each,
    interleaved as Megatron keeps them: for every group of heads its queries, its key, its value.  gate_up: equal parts of each, one
    after the other.  expert: the parameter belongs to one expert: it is cut over expert-tensor ranks and held by its expert rank.
    """

    tensors: tuple[str, ...]
    cut: Cut
    expert: bool = False


class Slices(Protocol):
    """Hugging Face tensors by name, of which parts can be read without the rest."""

    def shape(self, name: str) -> Sequence[int]: ...

    def read(self, name: str, index: tuple[slice, ...]) -> Tensor: ...


def parameter_sources(model: ModelSettings, layout: RankLayout, names: NameSet) -> dict[str, ParameterSource]:
    """The parameters of this rank by their Megatron names."""
    sources: dict[str, ParameterSource] = {}
    if layout.first_stage:
        sources["embedding.word_embeddings.weight"] = ParameterSource(("model.embed_tokens.weight",), "rows")
    for index, layer in enumerate(layout.layers(model.num_layers)):
        sources |= {
            f"decoder.layers.{index}.{name}": ParameterSource(
                tuple(f"model.layers.{layer}.{tensor}.weight" for tensor in source.tensors), source.cut, source.expert
            )
            for name, source in _layer_sources(model, layout, names, layer in model.dense_layers).items()
        }
    if layout.last_stage:
        sources["decoder.final_layernorm.weight"] = ParameterSource(("model.norm.weight",), "whole")
        sources["output_layer.weight"] = ParameterSource(("lm_head.weight",), "rows")
    return sources


def _layer_sources(model: ModelSettings, layout: RankLayout, names: NameSet, dense: bool) -> dict[str, ParameterSource]:
    fused = names == "transformer_engine"
    attention_norm = "self_attention.linear_qkv.layer_norm_weight" if fused else "input_layernorm.weight"
    feed_forward_norm = "mlp.linear_fc1.layer_norm_weight" if fused and dense else "pre_mlp_layernorm.weight"
    sources = {
        attention_norm: ParameterSource(("input_layernorm",), "whole"),
        "self_attention.linear_qkv.weight": ParameterSource(("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "qkv"),
        "self_attention.q_layernorm.weight": ParameterSource(("self_attn.q_norm",), "whole"),
        "self_attention.k_layernorm.weight": ParameterSource(("self_attn.k_norm",), "whole"),
        "self_attention.linear_proj.weight": ParameterSource(("self_attn.o_proj",), "columns"),
        feed_forward_norm: ParameterSource(("post_attention_layernorm",), "whole"),
    }
    if dense:
        sources["mlp.linear_fc1.weight"] = ParameterSource(("mlp.gate_proj", "mlp.up_proj"), "gate_up")
        sources["mlp.linear_fc2.weight"] = ParameterSource(("mlp.down_proj",), "columns")
        return sources
    sources["mlp.router.weight"] = ParameterSource(("mlp.gate",), "whole")
    form = "mlp.experts.{layer}.weight{index}" if fused else "mlp.experts.local_experts.{index}.{layer}.weight"
    for index, expert in enumerate(layout.experts(model.num_experts)):
        prefix = f"mlp.experts.{expert}"
        gate_up = ParameterSource((f"{prefix}.gate_proj", f"{prefix}.up_proj"), "gate_up", expert=True)
        sources[form.format(layer="linear_fc1", index=index)] = gate_up
        sources[form.format(layer="linear_fc2", index=index)] = ParameterSource((f"{prefix}.down_proj",), "columns", expert=True)
    return sources


def assemble(source: ParameterSource, slices: Slices, layout: RankLayout, head_dim: int) -> Tensor:
    """This rank's parameter, from its own slices of the Hugging Face tensors."""
    rank, size = _place(source, layout)
    parts = [_part(slices, name, source.cut, rank, size) for name in source.tensors]
    if source.cut == "qkv":
        groups = len(parts[1]) // head_dim
        return torch.cat([part.view(groups, -1, part.shape[1]) for part in parts], 1).flatten(0, 1)
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _place(source: ParameterSource, layout: RankLayout) -> tuple[int, int]:
    if source.cut == "whole":
        return 0, 1
    if source.expert:
        return layout.expert_tensor_rank, layout.expert_tensor_size
    return layout.tensor_rank, layout.tensor_size


def _part(slices: Slices, name: str, cut: Cut, rank: int, size: int) -> Tensor:
    shape = slices.shape(name)
    dimension = 1 if cut == "columns" else 0
    part, rest = divmod(shape[dimension], size)
    if rest:
        raise ValueError(f"{name} of shape {list(shape)} cannot be cut into {size} equal parts of dimension {dimension}")
    index = [slice(None)] * len(shape)
    index[dimension] = slice(rank * part, (rank + 1) * part)
    return slices.read(name, tuple(index))


def hugging_face(source: ParameterSource, parts: Sequence[Tensor], model: ModelSettings) -> dict[str, Tensor]:
    """The Hugging Face tensors of a parameter. parts: the parameter as each of the ranks that share it holds it, in rank order."""
    if source.cut == "whole":
        pieces = [[parts[0]]]
    elif source.cut == "qkv":
        pieces = list(zip(*(_split_heads(part, model) for part in parts), strict=True))
    elif source.cut == "gate_up":
        pieces = list(zip(*(part.chunk(2) for part in parts), strict=True))
    else:
        pieces = [parts]
    dimension = 1 if source.cut == "columns" else 0
    return {
        name: torch.cat(list(piece), dimension) if len(piece) > 1 else piece[0].contiguous()
        for name, piece in zip(source.tensors, pieces, strict=True)
    }


def _split_heads(part: Tensor, model: ModelSettings) -> tuple[Tensor, ...]:
    """Query, key and value rows of an interleaved projection."""
    queries = model.num_attention_heads // model.num_key_value_heads * model.head_dim
    groups = part.view(-1, queries + 2 * model.head_dim, part.shape[1])
    return tuple(rows.flatten(0, 1) for rows in groups.split([queries, model.head_dim, model.head_dim], 1))
