"""A published version of the weights: Hugging Face names, float tensors, and the number of optimizer steps they contain.

The rollout engine, the evaluation, the best-checkpoint retention and a resumed run all use a *published* version, never the
trainer's newer weights. On disk a version is one safetensors file whose metadata carries the version, written atomically; its
SHA-256 is what run.json records.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor

from pipeline.artifacts import atomic_path


@dataclass(frozen=True)
class PublishedWeights:
    """Version `version` of the policy: name -> tensor, both as in the Hugging Face checkpoint."""

    version: int
    weights: dict[str, Tensor]

    def write(self, path: Path) -> str:
        """Write one safetensors file atomically and return its SHA-256."""
        with atomic_path(path) as temporary:
            safetensors.torch.save_file(self.weights, temporary, metadata={"version": str(self.version)})
            return sha256(temporary)

    @classmethod
    def read(cls, path: Path, expected_sha256: str | None = None) -> PublishedWeights:
        """Read a version back. Raises ValueError when the file is missing, truncated, or not the one that was recorded."""
        if not path.exists():
            raise ValueError(f"published weights {path} are gone; retrain the cell: snakemake <its run.json> --forcerun train_cell")
        if expected_sha256 is not None and sha256(path) != expected_sha256:
            raise ValueError(f"published weights {path} are not the recorded ones (SHA-256 differs); retrain the cell")
        try:
            with safetensors.safe_open(path, framework="pt") as handle:
                version = int(handle.metadata()["version"])
                return cls(version, {name: handle.get_tensor(name) for name in handle.keys()})  # noqa: SIM118 - not a dict
        except (safetensors.SafetensorError, KeyError, TypeError) as error:
            raise ValueError(f"published weights {path} cannot be read ({error}); delete the file and resume the cell") from error


def sha256(path: Path) -> str:
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
