"""A finished cell hands out its results as often as they are asked for and keeps two versions of the weights, nothing else."""

from __future__ import annotations

import torch

from pipeline.artifacts import write_json, write_text
from pipeline.cell.job import KEPT, hand_out
from pipeline.published_weights import PublishedWeights


def test_results_come_again_and_only_retained_weights_stay(tmp_path):
    state, results = tmp_path / "state", tmp_path / "results"
    folders = {version: state / "weights" / f"version_{version:06d}" for version in (8, 16, 24)}
    digests = {version: PublishedWeights(version, {"w": torch.ones(1)}).write(folder) for version, folder in folders.items()}
    record = {
        "retained_weights": {
            name: {"version": version, "path": str(folders[version]), "sha256": digests[version]}
            for name, version in (("best", 16), ("last", 24))
        }
    }
    write_json(state / KEPT / "run.json", record)
    for name in (
        f"{KEPT}/steps.parquet",
        f"{KEPT}/evals.parquet",
        "checkpoints/step_000024/trainer/state.safetensors",
        "published/x",
    ):
        write_text(state / name, name)
    for _ in range(2):
        hand_out(state, results)
        assert {path.name: path.read_text() for path in results.glob("*.parquet")} == {
            "steps.parquet": f"{KEPT}/steps.parquet",
            "evals.parquet": f"{KEPT}/evals.parquet",
        }
        assert (results / "run.json").read_text() == (state / KEPT / "run.json").read_text()
        for path in results.iterdir():
            path.unlink()
    assert not (state / "checkpoints").exists() and not (state / "published").exists()
    assert [version for version, folder in folders.items() if folder.exists()] == [16, 24]
