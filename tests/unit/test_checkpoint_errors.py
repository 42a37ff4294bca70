"""What goes wrong around a whole checkpoint ends the attempt and leaves the checkpoint; only its own damage sets it aside."""

from __future__ import annotations

import errno

import pytest
import torch

from pipeline.cell import checkpoint
from pipeline.cell.checkpoint import CellState
from pipeline.published_weights import PublishedWeights


class StoredNumber:
    """A trainer whose whole state is its version."""

    def __init__(self, version: int, refuses: str = "") -> None:
        self.version, self.refuses = version, refuses

    def save(self, folder):
        (folder / "version").write_text(str(self.version))

    def restore(self, folder):
        if self.refuses:
            raise ValueError(self.refuses)
        self.version = int((folder / "version").read_text())


@pytest.fixture
def folder(tmp_path):
    for step in (3, 6):
        state = CellState(next_batch=step, published={step: PublishedWeights(step, {"w": torch.ones(1)})})
        checkpoint.save(tmp_path / "checkpoints", step, state, StoredNumber(step))  # type: ignore[arg-type]
    return tmp_path


def names(folder):
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def resumed(folder, trainer):
    state = checkpoint.resume(folder / "checkpoints", trainer, folder / "published")
    assert state is not None
    return state.next_batch, trainer.version, sorted(state.published)


def test_a_full_disk_is_no_damage(folder, monkeypatch):
    def full(*_: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(PublishedWeights, "write", full)
        with pytest.raises(OSError, match="No space left"):
            checkpoint.resume(folder / "checkpoints", trainer := StoredNumber(0), folder / "published")  # type: ignore[arg-type]
    assert trainer.version == 0 and names(folder) == ["step_000003", "step_000006"]
    assert resumed(folder, trainer) == (6, 6, [6])


def test_a_trainer_of_another_layout_is_no_damage(folder):
    with pytest.raises(ValueError, match="another layout"):
        checkpoint.resume(folder / "checkpoints", StoredNumber(0, "another layout"), folder / "published")  # type: ignore[arg-type]
    assert names(folder) == ["step_000003", "step_000006"]


@pytest.mark.parametrize("file", ["cell.json", "trainer/version", "steps.parquet", "published_6/model.safetensors"])
def test_damage_sets_aside_and_the_one_before_is_used(folder, file, capsys):
    (folder / "checkpoints" / "step_000006" / file).write_text("x")
    assert resumed(folder, StoredNumber(0)) == (3, 3, [3])
    assert names(folder) == ["damaged_step_000006", "step_000003"]
    assert "step_000006 is damaged" in "".join(capsys.readouterr().err.split("\n"))  # however wide the terminal
