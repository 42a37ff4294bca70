"""A rank's optimizer state: continued bit for bit, refused when damaged, of another layout or of another model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pipeline.trainer.megatron import state
from pipeline.trainer.megatron.layout import RankLayout

PLACE = RankLayout(rank=1, num_ranks=2, tensor_size=2, tensor_rank=1)


def optimizers(seed: int, rows: int = 3) -> list[torch.optim.Optimizer]:
    generator = torch.Generator().manual_seed(seed)
    parameters = [torch.randn(rows, 2, generator=generator), torch.randn(5, generator=generator), torch.zeros(0)]
    groups = [{"params": parameters[:2]}, {"params": parameters[2:], "weight_decay": 0.0}]
    return [torch.optim.AdamW(groups, lr=0.1), torch.optim.AdamW([torch.ones(4)], lr=0.1)]


def step(adams: list[torch.optim.Optimizer], seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    parameters = [parameter for adam in adams for group in adam.param_groups for parameter in group["params"]]
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    for adam in adams:
        adam.step()
    return parameters


@pytest.mark.parametrize("steps_before", [0, 1])
def test_a_restored_optimizer_continues_bit_for_bit(tmp_path: Path, steps_before: int) -> None:
    first, second = optimizers(0), optimizers(1)
    for number in range(steps_before):
        step(first, number)
    step(second, 9)
    state.write(tmp_path, 7, PLACE, first, with_main_weights=True)
    found = state.read(tmp_path, PLACE)
    state.check(found, second)
    state.apply(found, second)
    assert found.version == 7
    assert all(torch.equal(one, other) for one, other in zip(step(first, 5), step(second, 5), strict=True))


def test_main_weights_are_kept_only_where_the_model_has_others(tmp_path: Path) -> None:
    state.write(tmp_path, 0, PLACE, optimizers(0), with_main_weights=False)
    assert state.read(tmp_path, PLACE).tensors.keys() == {"version"}


def test_a_truncated_or_missing_file_and_another_layout_are_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("pipeline.trainer.megatron.files.FILE_BYTES", 60)
    state.write(tmp_path, 0, PLACE, optimizers(0), with_main_weights=True)
    expert = RankLayout(rank=1, num_ranks=2, expert_size=2, expert_rank=1)
    with pytest.raises(ValueError, match=r"another layout \(tensor_size 2 instead of 1, .*fits the same layout only"):
        state.read(tmp_path, expert)
    with pytest.raises(ValueError, match="does not hold the whole state of rank 0"):
        state.read(tmp_path, RankLayout(rank=0, num_ranks=2))
    first = min(tmp_path.iterdir())
    first.write_bytes(first.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"rank_00001-00000\.safetensors cannot be read"):
        state.read(tmp_path, PLACE)
    first.unlink()
    with pytest.raises(ValueError, match="does not hold the whole state of rank 1"):
        state.read(tmp_path, PLACE)


def test_the_state_of_another_model_is_refused(tmp_path: Path) -> None:
    state.write(tmp_path, 0, PLACE, optimizers(0), with_main_weights=True)
    with pytest.raises(ValueError, match=r"no place for 0\.0\.0\.main of shape \[3, 2\]"):
        state.check(state.read(tmp_path, PLACE), optimizers(0, rows=4))
