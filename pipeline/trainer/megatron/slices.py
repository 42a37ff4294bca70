"""Slices of the tensors in a folder of safetensors files: what a rank reads of a checkpoint, and nothing else of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import safetensors
from torch import Tensor

from pipeline.broadcast.published import shards


class StoredSlices:
    """Slices over a folder. Opening reads headers only. Raises ValueError for a damaged file, and a tensor twice or missing."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._handles = folder, dict[str, Any]()
        for path in shards(folder):
            try:
                handle = safetensors.safe_open(path, framework="pt")
            except (safetensors.SafetensorError, OSError) as error:
                raise ValueError(f"weights {path} cannot be read ({error}); make {folder} again") from error
            for name in handle.keys():  # noqa: SIM118 - not a dict
                if name in self._handles:
                    raise ValueError(f"weights {folder} hold {name} twice; make the folder again")
                self._handles[name] = handle

    def shape(self, name: str) -> Sequence[int]:
        return self._slice(name).get_shape()

    def read(self, name: str, index: tuple[slice, ...]) -> Tensor:
        return self._slice(name)[index]

    def _slice(self, name: str) -> Any:
        if name not in self._handles:
            raise ValueError(f"weights {self.folder} have no tensor {name}; they belong to another model")
        return self._handles[name].get_slice(name)
