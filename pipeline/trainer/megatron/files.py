"""Safetensors files of limited size: many tensors go to a folder, and come back one at a time.

Writing a file copies its tensors once in memory, so a rank's share of a large model must not be one file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

FILE_BYTES = 4 << 30


def write_files(folder: Path, prefix: str, tensors: Iterable[tuple[str, Tensor]], metadata: Mapping[str, str]) -> None:
    """Write <prefix>-00000.safetensors and so on, each with `metadata`; none where there is no tensor."""
    for number, part in enumerate(_parts(tensors)):
        safetensors.torch.save_file(part, folder / f"{prefix}-{number:05}.safetensors", dict(metadata))


def _parts(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
    part: dict[str, Tensor] = {}
    size = 0
    for name, tensor in tensors:
        if part and size + tensor.nbytes > FILE_BYTES:
            yield part
            part, size = {}, 0
        part[name] = tensor.detach().cpu().contiguous()
        size += tensor.nbytes
    if part:
        yield part


class StoredTensors(Mapping[str, Tensor]):
    """The tensors of safetensors files, whole or in slices, read when asked for.

    Opening reads headers, which tell a damaged file. ValueError for one, for a tensor twice, and for a tensor that is missing.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths, self._handles = list(paths), dict[str, Any]()
        for path in paths:
            try:
                handle = safetensors.safe_open(path, framework="pt")
            except (safetensors.SafetensorError, OSError) as error:
                raise ValueError(f"{path} cannot be read ({error}); it is damaged, make {path.parent} again") from error
            for name in handle.keys():  # noqa: SIM118 - not a dict
                if name in self._handles:
                    raise ValueError(f"{path.parent} holds {name} twice; make it again")
                self._handles[name] = handle

    def metadata(self) -> list[dict[str, str]]:
        """Of each file."""
        return [safetensors.safe_open(path, framework="pt").metadata() or {} for path in self.paths]

    def shape(self, name: str) -> Sequence[int]:
        return self._handle(name).get_slice(name).get_shape()

    def read(self, name: str, index: tuple[slice, ...]) -> Tensor:
        return self._handle(name).get_slice(name)[index]

    def __getitem__(self, name: str) -> Tensor:
        return self._handle(name).get_tensor(name)

    def __contains__(self, name: object) -> bool:
        return name in self._handles

    def __iter__(self) -> Iterator[str]:
        return iter(self._handles)

    def __len__(self) -> int:
        return len(self._handles)

    def _handle(self, name: str) -> Any:
        if name not in self._handles:
            folder = self.paths[0].parent if self.paths else "an empty folder"
            raise ValueError(f"{folder} has no tensor {name}; it belongs to another model")
        return self._handles[name]
