"""What goes wrong around a whole checkpoint ends the attempt and leaves the checkpoint; only its own damage sets it aside."""

from __future__ import annotations

import errno
import math

import pytest
import torch

from pipeline.cell import checkpoint
from pipeline.cell.checkpoint import CellState
from pipeline.cell.step_row import SampleColumns, StepRow
from pipeline.evaluation.rows import EvalRow, SampleRow
from pipeline.published_weights import PublishedWeights
from pipeline.trainer.update import Update


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


def step_row(step: int, mismatch: float) -> StepRow:
    samples = SampleColumns(1 / 3, 0, 1, '{"0": 2, "1": 1}', 0.5, 0.0, 3.0, 0.0, 1, 3)
    update = Update({"mismatch": mismatch, "k1": -0.0}, -0.3, math.inf, True, False, 0.7)
    return StepRow(update, samples, step, step, True, 0, step, 0.1, 0.2, 0.0)


@pytest.fixture
def folder(tmp_path):
    for step in (3, 6):
        state = CellState(next_batch=step, published={step: PublishedWeights(step, {"w": torch.ones(1)})})
        state.step_rows = [step_row(number, math.nan if number == 1 else 0.1) for number in range(step)]
        state.eval_rows = [EvalRow(SampleRow(step, "p", 0, True, False, "correct", None, "stop", 9), step, repeated=False)]
        checkpoint.save(tmp_path / "checkpoints", step, state, StoredNumber(step))  # type: ignore[arg-type]
    return tmp_path


def names(folder):
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def resumed(folder, trainer):
    state = checkpoint.resume(folder / "checkpoints", trainer, folder / "published")
    assert state is not None
    return state.next_batch, trainer.version, sorted(state.published)


def test_rows_come_back_bit_for_bit(folder):
    state = checkpoint.resume(folder / "checkpoints", StoredNumber(0), folder / "published")  # type: ignore[arg-type]
    assert state is not None and len(state.step_rows) == 6
    for number, row in enumerate(state.step_rows):  # repr tells -0.0 from 0.0, int from float, and is the same for every NaN
        assert repr(row) == repr(step_row(number, math.nan if number == 1 else 0.1))
    assert state.eval_rows == [EvalRow(SampleRow(6, "p", 0, True, False, "correct", None, "stop", 9), 6, repeated=False)]


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


@pytest.mark.parametrize(
    "file", ["cell.json", "trainer/version", "steps.parquet", "evals.parquet", "published_6/model.safetensors"]
)
def test_damage_sets_aside_and_the_one_before_is_used(folder, file, capsys):
    (folder / "checkpoints" / "step_000006" / file).write_text("x")
    assert resumed(folder, StoredNumber(0)) == (3, 3, [3])
    assert names(folder) == ["damaged_step_000006", "step_000003"]
    assert "step_000006 is damaged" in "".join(capsys.readouterr().err.split("\n"))  # however wide the terminal
