"""Megatron-core's offloaded optimizer, saved and restored: an Adam of its own for every weight, over copies in host memory.

There is no GPU here. Parameters say that they are on one, streams and events do nothing, and all else is megatron-core's.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from megatron.core.optimizer.cpu_offloading.hybrid_optimizer import HybridDeviceOptimizer

from pipeline.trainer.megatron import state
from pipeline.trainer.megatron.layout import RankLayout
from pipeline.trainer.megatron.optimizer import PolicyOptimizer

PLACE = RankLayout(rank=0, num_ranks=1)
SHAPES = ((3, 4), (5,), (2, 2))


class OnGpu(torch.nn.Parameter):
    is_cuda = True


class Stream:
    """A stream or event."""

    def wait_stream(self, _: object) -> None: ...
    def record_event(self) -> Stream:
        return self

    def synchronize(self) -> None: ...
    def wait(self, _: object) -> None: ...


@pytest.fixture(autouse=True)
def no_gpu_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)


class Offloaded:
    """Weights of a rank and their offloaded optimizer, as PolicyOptimizer holds it."""

    def __init__(self, dtype: torch.dtype, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.weights = [OnGpu(torch.randn(shape, generator=generator).to(dtype)) for shape in SHAPES]
        groups = [{"params": self.weights[::2]}, {"params": self.weights[1::2], "weight_decay": 0.0}]
        self.hybrid = HybridDeviceOptimizer(
            groups,
            offload_fraction=1.0,
            cpu_optimizer_cls=torch.optim.AdamW,
            gpu_optimizer_cls=torch.optim.AdamW,
            param_update_in_fp32=True,
            pin_cpu_grads=False,
            overlap_cpu_optimizer_d2h_h2d=True,
            lr=0.01,
            weight_decay=0.1,
        )
        optimizer = PolicyOptimizer.__new__(PolicyOptimizer)
        optimizer._chained = SimpleNamespace(chained_optimizers=[SimpleNamespace(is_stub_optimizer=False, optimizer=self.hybrid)])
        self.adams = optimizer.adams

    def step(self, number: int) -> None:
        generator = torch.Generator().manual_seed(100 + number)
        for weight in self.weights:
            weight.grad = torch.randn(weight.shape, generator=generator).to(weight.dtype)
        self.hybrid.step()

    def main_weights(self) -> list[torch.Tensor]:
        return [parameter for adam in self.adams for group in adam.param_groups for parameter in group["params"]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("steps_before", [0, 2])
def test_a_restored_offloaded_optimizer_continues_bit_for_bit(tmp_path: Path, dtype: torch.dtype, steps_before: int) -> None:
    first, second = Offloaded(dtype, seed=0), Offloaded(dtype, seed=1)
    assert len(first.adams) == len(SHAPES)
    for number in range(steps_before):
        first.step(number)
    second.step(50)
    state.write(tmp_path, steps_before, PLACE, first.adams, with_main_weights=True)
    for weight, stored in zip(second.weights, first.weights, strict=True):
        weight.data.copy_(stored.data)  # the model's own weights, which are restored apart from the optimizer
    found = state.read(tmp_path, PLACE)
    state.check(found, second.adams)
    state.apply(found, second.adams)
    for number in (7, 8):
        before = [weight.detach().clone() for weight in first.weights]
        first.step(number)
        second.step(number)
        assert all((weight != old).any() for weight, old in zip(first.weights, before, strict=True))
        for mine, other in ((first.weights, second.weights), (first.main_weights(), second.main_weights())):
            assert all(torch.equal(one.data, two.data) for one, two in zip(mine, other, strict=True))


def test_the_offloaded_main_weights_are_others_than_the_models() -> None:
    """So a checkpoint has to hold them, in float32 too: there they are equal, but a restored model does not reach them."""
    for dtype in (torch.bfloat16, torch.float32):
        offloaded = Offloaded(dtype, seed=0)
        offloaded.step(0)
        mains = {id(main) for main in offloaded.main_weights()}
        assert not mains & {id(weight) for weight in offloaded.weights}
        assert all(main.dtype == torch.float32 for main in offloaded.main_weights())
