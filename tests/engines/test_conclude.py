"""A finished cell keeps its rows, its progress and two versions of the weights, and frees the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline import checkpoint
from pipeline.broadcast.published import PublishedWeights
from tests.engines.test_loop import cell, rewards_vary, run  # noqa: F401 - a fixture


def test_a_concluded_cell_keeps_rows_and_weights_and_can_be_concluded_again(inputs, tmp_path):
    finished, _ = run(cell("sat-gspo-r3", "8", trainer={"steps": 9, "checkpoint_interval": 3}), inputs, tmp_path)
    for _ in range(2):
        state = checkpoint.conclude(tmp_path / "checkpoints")
        for rows, expected in ((state.step_rows, finished.state.step_rows), (state.eval_rows, finished.state.eval_rows)):
            assert str(rows) == str(expected)  # as text: some columns are NaN
        assert state.retained == finished.state.retained and state.best == finished.state.best
    files = {
        path.relative_to(tmp_path / "checkpoints").as_posix() for path in (tmp_path / "checkpoints").rglob("*") if path.is_file()
    }
    assert files == {f"step_000009/{name}" for name in ("cell.json", "steps.parquet", "evals.parquet")}
    assert not (tmp_path / "published").exists()
    for entry in state.retained.values():
        assert PublishedWeights.read(Path(entry["path"]), entry["sha256"]).version == entry["version"]
    (tmp_path / "checkpoints" / "step_000009" / "steps.parquet").write_bytes(b"")
    with pytest.raises(ValueError, match=r"steps\.parquet of .* is missing or its content is not what was written"):
        checkpoint.conclude(tmp_path / "checkpoints")
