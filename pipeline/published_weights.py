"""A published version of the weights: Hugging Face names, float tensors, and the number of optimizer steps they contain.

The rollout engine, the evaluation, the best-checkpoint retention and a resumed run all use a *published* version, never the
trainer's newer weights. A small policy's version lives in memory, a large one's in a folder on a node-local disk, of which
tensors are read as they are needed; both are written the same way: a folder of safetensors files whose metadata carries the
version, whole or absent. Its digest is what run.json records.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor

from pipeline.artifacts import atomic_folder, sha256_of


class StoredWeights(Mapping[str, Tensor]):
    """The tensors of a folder's safetensors files, each read when asked for. ValueError for a damaged file or a name twice.

    version: what the files' metadata say, None where they say nothing.
    """

    def __init__(self, folder: Path) -> None:
        self._handles, self.version = {}, None
        for path in shards(folder):
            try:
                handle = safetensors.safe_open(path, framework="pt")
                version = (handle.metadata() or {}).get("version")
            except (safetensors.SafetensorError, OSError) as error:
                raise ValueError(f"weights {path} cannot be read ({error}); delete {folder} and resume the cell") from error
            if self._handles and self.version != version:
                raise ValueError(f"weights {folder} mix versions {self.version} and {version}; delete it and resume the cell")
            self.version = version
            for name in handle.keys():  # noqa: SIM118 - not a dict
                if name in self._handles:
                    raise ValueError(f"weights {folder} hold {name} twice; delete it and resume the cell")
                self._handles[name] = handle

    def __getitem__(self, name: str) -> Tensor:
        return self._handles[name].get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._handles)

    def __len__(self) -> int:
        return len(self._handles)


@dataclass(frozen=True)
class PublishedWeights:
    """Version `version` of the policy: name -> tensor, both as in the Hugging Face checkpoint.

    folder: where exactly these weights lie as safetensors files, or None while they are in memory only.
    """

    version: int
    weights: Mapping[str, Tensor]
    folder: Path | None = None

    def write(self, folder: Path) -> str:
        """Make `folder` hold these weights, atomically, and return its digest. Files of the same file system are linked."""
        with atomic_folder(folder) as part:
            if self.folder is None:
                # one entry only: safetensors writes several in random order, and equal weights must have equal digests
                metadata = {"version": str(self.version)}
                safetensors.torch.save_file(dict(self.weights), part / "model.safetensors", metadata)
            else:
                for path in shards(self.folder):
                    _link_or_copy(path, part / path.name)
        return digest(folder)

    def discard(self) -> None:
        """Remove the folder, where there is one: nothing will ask for this version again."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    @classmethod
    def read(cls, folder: Path, expected_digest: str | None = None) -> PublishedWeights:
        """Open a version that was written. ValueError when it is missing, truncated, or not the one that was recorded."""
        if not folder.exists():
            raise ValueError(
                f"published weights {folder} are gone; retrain the cell: snakemake <its run.json> --forcerun train_cell"
            )
        if expected_digest is not None and digest(folder) != expected_digest:
            raise ValueError(f"published weights {folder} are not the recorded ones (SHA-256 differs); retrain the cell")
        weights = StoredWeights(folder)
        if weights.version is None:
            raise ValueError(f"published weights {folder} hold no version; delete it and resume the cell")
        return cls(int(weights.version), weights, folder)


def shards(folder: Path) -> list[Path]:
    """The safetensors files of a folder, in order."""
    return sorted(folder.glob("*.safetensors"))


def digest(folder: Path) -> str:
    """One SHA-256 over the names and contents of a folder's safetensors files; several files are hashed at once."""
    lines = [f"{path.name} {hashed}\n" for path, hashed in sha256_of(shards(folder)).items()]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)
