"""The trainer as the controller sees it: publication, checkpoints that continue bit for bit, and a killed rank that is named."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch

from pipeline.config import CellSettings
from pipeline.processes.errors import EngineDied
from pipeline.published_weights import PublishedWeights, shards
from pipeline.trainer.megatron.trainer import MegatronTrainer
from tests.cluster.megatron_cells import base_folder, batch, cell


@dataclass
class Run:
    """A trainer that was saved after its first step and took a second; row and published are the second's."""

    trainer: MegatronTrainer
    settings: CellSettings
    base: Path
    saved: Path
    row: dict[str, Any]
    published: PublishedWeights


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("trainer")
    settings = cell("sat-gspo-r3", "TP2 EP2", cluster={"scratch": str(folder)})
    base, saved = base_folder(folder, settings), folder / "saved"
    trainer = MegatronTrainer(settings, base, folder / "logs")
    try:
        step(trainer, settings, 0)
        saved.mkdir()
        trainer.save(saved)
        row = step(trainer, settings, 1)
        yield Run(trainer, settings, base, saved, row, trainer.publish())
    finally:
        trainer.close()


def step(trainer: MegatronTrainer, settings: CellSettings, index: int) -> dict[str, Any]:
    (row,) = (update.flat() for update in trainer.train_batch(batch(settings, index), 1, PublishedWeights(0, {})))
    return {name: value for name, value in row.items() if name != "train_s"}


def names_in(path: Path) -> list[str]:
    with safetensors.safe_open(path, framework="pt") as handle:
        assert handle.metadata() == {"version": "2"}
        return list(handle.keys())


def test_a_published_version_is_a_folder_in_which_ranks_wrote_their_own_experts(run: Run) -> None:
    assert run.published.version == run.trainer.version == 2
    assert run.published.folder is not None
    files = shards(run.published.folder)
    owner = {name: rank for rank, path in enumerate(files) for name in names_in(path)}
    assert len(files) == 2 and owner.keys() == PublishedWeights.read(run.base).weights.keys()
    count = run.settings.model.num_experts
    for layer in range(run.settings.model.num_layers):
        for part in ("gate_proj", "up_proj", "down_proj"):
            owners = [owner[f"model.layers.{layer}.mlp.experts.{expert}.{part}.weight"] for expert in range(count)]
            assert owners == [0] * (count // 2) + [1] * (count // 2)


def test_a_killed_rank_is_named_and_a_new_trainer_continues_bit_for_bit(run: Run, tmp_path: Path) -> None:
    uninterrupted = {name: tensor.clone() for name, tensor in run.published.weights.items()}
    os.kill(rank_process(run.trainer, 1), signal.SIGKILL)
    started = time.monotonic()
    with pytest.raises(EngineDied, match=r"rank-1 ended with exit code 137; the end of .*rank-1\.log"):
        step(run.trainer, run.settings, 2)
    assert time.monotonic() - started < 30.0
    run.trainer.close()

    trainer = MegatronTrainer(run.settings, run.base, tmp_path / "logs")
    try:
        refuses_a_truncated_file(trainer, run.saved, tmp_path / "truncated")
        trainer.restore(run.saved)
        assert trainer.version == 1
        assert step(trainer, run.settings, 1) == pytest.approx(run.row, rel=0, abs=0, nan_ok=True)
        weights = trainer.publish().weights
        assert weights.keys() == uninterrupted.keys()
        assert all(torch.equal(weights[name], uninterrupted[name]) for name in uninterrupted)
    finally:
        trainer.close()


def refuses_a_truncated_file(trainer: MegatronTrainer, saved: Path, copy: Path) -> None:
    """One rank's file is cut short: all ranks refuse, and take part in what comes next."""
    shutil.copytree(saved, copy)
    path = copy / "rank_00001-00000.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ValueError, match=r"rank 1: .*rank_00001-00000\.safetensors cannot be read"):
        trainer.restore(copy)
    assert trainer.version == 0


def rank_process(trainer: MegatronTrainer, rank: int) -> int:
    """The process id of a rank, which is the only child of its guard."""
    guard = trainer._processes[rank]._guard.pid
    (child,) = Path(f"/proc/{guard}/task/{guard}/children").read_text().split()
    return int(child)
