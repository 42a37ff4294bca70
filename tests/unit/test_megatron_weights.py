"""A rank's weights: loaded from slices, lent to others and taken back bit for bit; the CPU adapter's rewriting of sources."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
import torch

from pipeline.config import load_settings
from pipeline.policy.hf_folder import hf_state
from pipeline.policy.qwen3_moe import Policy
from pipeline.published_weights import shards
from pipeline.trainer.megatron import cpu_adapter
from pipeline.trainer.megatron.files import StoredTensors, write_files
from pipeline.trainer.megatron.layout import Groups, RankLayout
from pipeline.trainer.megatron.names import assemble, parameter_sources
from pipeline.trainer.megatron.weights import Weights


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_files(tmp_path, "model", hf_state(Policy(load_settings().model, torch.Generator().manual_seed(0))).items(), {})
    return tmp_path


@pytest.fixture
def weights(folder: Path) -> Weights:
    """Those of expert rank 1 of 2, in bfloat16 and not loaded yet."""
    model, place = load_settings().model, RankLayout(1, 2, expert_size=2, expert_rank=1)
    sources = parameter_sources(model, place, "local")
    stored = StoredTensors(shards(folder))
    parameters = {
        name: torch.nn.Parameter(torch.full_like(assemble(source, stored, place, model.head_dim), 0.5, dtype=torch.bfloat16))
        for name, source in sources.items()
    }
    groups = Groups(place, None, None, (0,), torch.device("cpu"))  # pyright: ignore[reportArgumentType] - nothing is communicated
    return Weights(parameters, sources, model, groups)


def test_lent_weights_are_exchanged_and_come_back(weights: Weights, folder: Path) -> None:
    frozen = weights.frozen(folder)
    with weights.lent_to(frozen):
        assert all(torch.equal(weights.parameters[name], frozen[name]) for name in frozen)
    assert all((parameter == 0.5).all() for parameter in weights.parameters.values())
    weights.load(folder)
    assert all(torch.equal(weights.parameters[name], frozen[name]) for name in frozen)


def test_weights_that_do_not_come_back_are_a_fault(weights: Weights, folder: Path) -> None:
    name = "decoder.layers.0.mlp.router.weight"
    with pytest.raises(RuntimeError, match=name), weights.lent_to(weights.frozen(folder)):
        weights._resident[name][0, 0] = 0.25


def test_weights_of_other_sizes_or_names_are_refused(weights: Weights, folder: Path) -> None:
    name = "decoder.layers.1.mlp.router.weight"
    weights.parameters[name].data = torch.zeros(2, 2)  # pyright: ignore
    with pytest.raises(ValueError, match=r"layers\.1\.mlp\.gate\.weight in .* make \[16, 64\], the model has \[2, 2\]"):
        weights.load(folder)
    (folder / "model-00000.safetensors").unlink()
    with pytest.raises(ValueError, match="has no tensor"):
        weights.check(folder)
    with pytest.raises(ValueError, match="1 parameters have no source or no place"):
        Weights({**weights.parameters, "extra": torch.nn.Parameter()}, weights.sources, weights.model, weights.groups)


SOURCE = '''
"""cuda"""
a = torch.zeros(1, device="cuda")
b = torch.cuda.current_device()
c = x.type() == "torch.cuda.FloatTensor"
d = x.cuda(non_blocking=True)
e = "cuda graphs"
'''
ADAPTED = '''
"""cpu"""
a = torch.zeros(1, device="cpu")
b = _cpu_stand_in.current_device()
c = x.type() == "torch.FloatTensor"
d = x.cpu()
e = "cuda graphs"
'''


def test_the_cpu_adapter_rewrites_device_names_and_nothing_else() -> None:
    found = cpu_adapter._Adapt().visit(ast.parse(SOURCE))
    assert ast.unparse(found) == ast.unparse(ast.parse(ADAPTED))


def test_the_cpu_adapter_does_nothing_where_cuda_exists(monkeypatch) -> None:
    before = list(sys.meta_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    cpu_adapter.install()
    assert sys.meta_path == before


def test_the_cpu_adapter_comes_before_megatron(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "megatron.core", object())
    with pytest.raises(RuntimeError, match=r"megatron\.core was imported before"):
        cpu_adapter.install()
