"""The weights of a rank: loading its slices, and lending the model's storage to other weights for a pass without gradient.

Frozen weights (the base of the reference KL, the version that generated a batch) wait in host memory, pinned where there is CUDA.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from pipeline.published_weights import shards
from pipeline.sections import ModelSettings
from pipeline.trainer.megatron.files import StoredTensors
from pipeline.trainer.megatron.layout import Groups
from pipeline.trainer.megatron.names import ParameterSource, assemble


class Weights:
    """The model's parameters, their sources, and what they are exchanged with."""

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        sources: Mapping[str, ParameterSource],
        model: ModelSettings,
        groups: Groups,
    ) -> None:
        if parameters.keys() != sources.keys():
            differing = sorted(parameters.keys() ^ sources.keys())
            raise ValueError(f"{len(differing)} parameters have no source or no place in the model: {', '.join(differing[:6])}")
        self.parameters, self.sources, self.model, self.groups = parameters, sources, model, groups
        self._resident: dict[str, Tensor] = {}

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Fill the model from a folder of Hugging Face weights, reading this rank's slices only."""
        for name, value in self._read(folder):
            self.parameters[name].copy_(value)

    def check(self, folder: Path) -> None:
        """Raise ValueError where `load` would, but for sizes; reads headers only."""
        stored = StoredTensors(shards(folder))
        for source in self.sources.values():
            for name in source.tensors:
                stored.shape(name)

    def frozen(self, folder: Path) -> dict[str, Tensor]:
        """The same slices in host memory, in the model's dtype."""
        return {name: self._host_copy(value.to(self.parameters[name].dtype)) for name, value in self._read(folder)}

    def _read(self, folder: Path) -> Iterator[tuple[str, Tensor]]:
        slices = StoredTensors(shards(folder))
        for name, source in self.sources.items():
            value = assemble(source, slices, self.groups.layout, self.model.head_dim)
            if value.shape != self.parameters[name].shape:
                raise ValueError(
                    f"{', '.join(source.tensors)} in {folder} make {list(value.shape)}, the model has "
                    f"{list(self.parameters[name].shape)} for {name}; config.yaml describes another model"
                )
            yield name, value

    def _host_copy(self, value: Tensor) -> Tensor:
        host = torch.empty(value.shape, dtype=value.dtype, pin_memory=self.groups.device.type == "cuda")
        return host.copy_(value)

    @contextmanager
    def lent_to(self, others: Mapping[str, Tensor]) -> Iterator[None]:
        """Put `others` into the model's storage; afterwards its own weights are back, bit for bit, or RuntimeError is raised."""
        before = {name: _sum(parameter) for name, parameter in self.parameters.items()}
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                if name in self._resident:
                    self._resident[name].copy_(parameter)
                else:
                    self._resident[name] = self._host_copy(parameter)
                parameter.copy_(others[name])
        try:
            yield
        finally:
            with torch.no_grad():
                for name, parameter in self.parameters.items():
                    parameter.copy_(self._resident[name])
        for name, parameter in self.parameters.items():
            if _sum(parameter) != before[name] or not torch.equal(_bits(parameter.cpu()), _bits(self._resident[name])):
                raise RuntimeError(f"the weights of {name} changed while they were swapped out; this is a fault, not a setting")


def _bits(values: Tensor) -> Tensor:
    return values.detach().view(torch.int32 if values.element_size() == 4 else torch.int16)


def _sum(values: Tensor) -> int:
    """Of the bit patterns."""
    return int(_bits(values).sum(dtype=torch.int64))
