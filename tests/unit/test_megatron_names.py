"""The weight mapping as a table: every layout, both name sets, exact both ways, and no rank reads more than its part."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor

from pipeline.config import load_settings
from pipeline.policy.hf_folder import hf_state
from pipeline.policy.qwen3_moe import Policy
from pipeline.sections import ModelSettings
from pipeline.trainer.megatron.files import StoredTensors, write_files
from pipeline.trainer.megatron.layout import RankLayout, check
from pipeline.trainer.megatron.names import NameSet, assemble, hugging_face, parameter_sources

NAME_SETS: tuple[NameSet, ...] = ("local", "transformer_engine")
# tensor, pipeline, expert and expert-tensor sizes
CUTS = [(1, 1, 1, 1), (2, 1, 2, 1), (4, 1, 4, 1), (2, 2, 2, 2), (1, 2, 4, 1), (4, 1, 2, 4)]


@pytest.fixture(scope="module")
def model() -> ModelSettings:
    small = {"num_layers": 4, "num_key_value_heads": 4, "num_attention_heads": 8, "num_experts": 8, "dense_layers": (1,)}
    return load_settings().model.model_copy(update=small)


@pytest.fixture(scope="module")
def weights(model: ModelSettings) -> dict[str, Tensor]:
    return hf_state(Policy(model, torch.Generator().manual_seed(0)))


class Counting:
    """Slices of tensors in memory that count the elements read."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors, self.read_elements = tensors, 0

    def shape(self, name: str) -> Sequence[int]:
        return self.tensors[name].shape

    def read(self, name: str, index: tuple[slice, ...]) -> Tensor:
        part = self.tensors[name][index]
        self.read_elements += part.numel()
        return part


def layouts(cut: tuple[int, int, int, int]) -> Iterator[RankLayout]:
    """All ranks' places; tensor and expert places are combined freely, which covers whatever Megatron-core pairs."""
    tensor, pipeline, expert, expert_tensor = cut
    for places in itertools.product(range(pipeline), range(tensor), range(expert), range(expert_tensor)):
        yield RankLayout(
            rank=0, num_ranks=tensor * pipeline * expert * expert_tensor,
            pipeline_size=pipeline, pipeline_rank=places[0], tensor_size=tensor, tensor_rank=places[1],
            expert_size=expert, expert_rank=places[2], expert_tensor_size=expert_tensor, expert_tensor_rank=places[3],
        )  # fmt: skip


@pytest.mark.parametrize("names", NAME_SETS)
@pytest.mark.parametrize("cut", CUTS)
def test_cut_and_joined_again_every_weight_is_the_same(model, weights, cut, names) -> None:
    joined: dict[str, Tensor] = {}
    for place in layouts(cut):
        for source in parameter_sources(model, place, names).values():
            shared = place.expert_tensor_size if source.expert else place.tensor_size
            field = "expert_tensor_rank" if source.expert else "tensor_rank"
            peers = [dataclasses.replace(place, **{field: rank}) for rank in range(1 if source.cut == "whole" else shared)]
            parts = [assemble(source, Counting(weights), peer, model.head_dim) for peer in peers]
            for name, tensor in hugging_face(source, parts, model).items():
                assert name not in joined or torch.equal(joined[name], tensor)
                joined[name] = tensor
    assert joined.keys() == weights.keys()
    assert all(torch.equal(joined[name], weights[name]) and joined[name].is_contiguous() for name in weights)


@pytest.mark.parametrize("cut", CUTS)
def test_a_rank_reads_its_parameters_and_nothing_else(model, weights, cut) -> None:
    total = sum(tensor.numel() for tensor in weights.values())
    for place in layouts(cut):
        slices = Counting(weights)
        sources = parameter_sources(model, place, "local").values()
        held = sum(assemble(source, slices, place, model.head_dim).numel() for source in sources)
        assert slices.read_elements == held
        if cut == (4, 1, 4, 1):
            assert 0.25 < held / total < 0.27  # a quarter, and the norms and routers, which are not cut


def test_interleaved_attention_rows_are_grouped_by_key_head(model, weights) -> None:
    source = parameter_sources(model, RankLayout(0, 1), "local")["decoder.layers.0.self_attention.linear_qkv.weight"]
    found = assemble(source, Counting(weights), RankLayout(0, 1), model.head_dim)
    width = model.head_dim
    query, key, value = (weights[f"model.layers.0.self_attn.{name}_proj.weight"] for name in "qkv")
    assert torch.equal(found[: 4 * width], torch.cat([query[: 2 * width], key[:width], value[:width]]))
    assert torch.equal(found[4 * width : 6 * width], query[2 * width : 4 * width])


def test_transformer_engine_names_fuse_norms_and_number_experts(model) -> None:
    place = RankLayout(0, 2, expert_size=2, expert_rank=1)
    names = parameter_sources(model, place, "transformer_engine")
    assert names["decoder.layers.0.self_attention.linear_qkv.layer_norm_weight"].tensors == (
        "model.layers.0.input_layernorm.weight",
    )
    assert names["decoder.layers.0.pre_mlp_layernorm.weight"].tensors == ("model.layers.0.post_attention_layernorm.weight",)
    assert names["decoder.layers.1.mlp.linear_fc1.layer_norm_weight"].tensors == ("model.layers.1.post_attention_layernorm.weight",)
    assert names["decoder.layers.0.mlp.experts.linear_fc2.weight0"].tensors == ("model.layers.0.mlp.experts.4.down_proj.weight",)
    assert not any("input_layernorm" in name or "local_experts" in name for name in names)
    assert parameter_sources(model, place, "local").keys() & names.keys() >= {"decoder.layers.0.pre_mlp_layernorm.weight"}


def test_tensors_come_back_from_several_files_whole_or_in_slices(tmp_path, monkeypatch) -> None:
    tensors = {name: torch.arange(6.0).view(3, 2) + number for number, name in enumerate("abc")}
    monkeypatch.setattr("pipeline.trainer.megatron.files.FILE_BYTES", 50)
    write_files(tmp_path, "model", tensors.items(), {"version": "3"})
    stored = StoredTensors(sorted(tmp_path.iterdir()))
    assert [path.name for path in stored.paths] == [f"model-0000{number}.safetensors" for number in range(2)]
    assert stored.metadata() == [{"version": "3"}] * 2
    assert stored.keys() == tensors.keys() and all(torch.equal(stored[name], tensors[name]) for name in tensors)
    assert stored.shape("b") == [3, 2]
    assert torch.equal(stored.read("b", (slice(1, 2), slice(None))), torch.tensor([[3.0, 4.0]]))


def test_damaged_files_and_missing_tensors_are_refused(tmp_path) -> None:
    write_files(tmp_path, "model", [("weight", torch.zeros(3))], {})
    path = tmp_path / "model-00000.safetensors"
    with pytest.raises(ValueError, match="no tensor bias"):
        StoredTensors([path]).shape("bias")
    with pytest.raises(ValueError, match="holds weight twice"):
        StoredTensors([path, path])
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(ValueError, match=r"model-00000\.safetensors cannot be read"):
        StoredTensors([path])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_ranks": 8, "tensor_parallel": 8, "expert_parallel": 8}, "num_key_value_heads 4 cannot be cut"),
        ({"num_ranks": 3, "expert_parallel": 3}, "num_experts 128 cannot be cut"),
        ({"num_ranks": 5, "pipeline_parallel": 5, "tensor_parallel": 1, "expert_parallel": 1}, "num_layers 48 cannot be cut"),
        ({"dtype": "float32"}, "no float32 attention"),
        ({"distributed_optimizer": False}, "optimizer_offload needs"),
    ],
)
def test_layouts_that_do_not_fit_are_refused(change, message) -> None:
    settings = load_settings(overrides={"preset": "full"})
    single = {"tensor_parallel": 1} if "expert_parallel" in change and "tensor_parallel" not in change else {}
    with pytest.raises(ValueError, match=message):
        check(settings.model, settings.megatron.model_copy(update=change | single), settings.cluster)
    check(settings.model, settings.megatron, settings.cluster)
    with pytest.raises(ValueError, match="both need CUDA"):
        check(settings.model, settings.megatron, settings.cluster.model_copy(update={"device": "cpu"}))
