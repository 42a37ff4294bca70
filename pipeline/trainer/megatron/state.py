"""A rank's optimizer state in safetensors files, rank_<rank>-*, beside weights/, which holds the model for any layout.

Moments and float32 main weights are cut as the layout cuts them, so they can be read under the same layout only; the weights can be
loaded under every layout. `read` and `check` look at everything before `apply` changes anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.objective.part import Buffers
from pipeline.trainer.megatron.files import StoredTensors, write_files
from pipeline.trainer.megatron.layout import RankLayout

WEIGHTS = "weights"
_MEMORY = "memory"
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class RankState:
    version: int
    tensors: StoredTensors

    def memory(self, device: torch.device) -> dict[str, Buffers]:
        """What `write` was given as memory, on `device`."""
        found: dict[str, dict[str, Tensor]] = {}
        for name in self.tensors:
            kind, part, buffer = (*name.split(".", 2), "", "")[:3]
            if kind == _MEMORY:
                found.setdefault(part, {})[buffer] = self.tensors[name].to(device)
        return dict(found)


def write(
    folder: Path,
    version: int,
    layout: RankLayout,
    adams: list[torch.optim.Optimizer],
    with_main_weights: bool,
    memory: Mapping[str, Buffers] | None = None,
) -> None:
    """with_main_weights: the optimizer's float32 weights are not the model's own and have to be kept beside it.

    memory: what parts of the method keep from step to step.
    """
    tensors = {"version": torch.tensor(version)}
    for name, group, parameter, state in _entries(adams):
        if with_main_weights:
            tensors[f"{name}.main"] = parameter
        tensors |= {f"{name}.{key}": torch.as_tensor(state[key]) for key in _MOMENTS if key in state}
        if "step" in group and state:  # TransformerEngine's Adam counts steps by group
            tensors[f"{name}.step"] = torch.as_tensor(group["step"])
    for part, buffers in (memory or {}).items():
        tensors |= {f"{_MEMORY}.{part}.{name}": buffer for name, buffer in buffers.items()}
    content = json.dumps({"layout": layout.describe(), "tensors": len(tensors)}, sort_keys=True)
    write_files(folder, _prefix(layout), tensors.items(), {"state": content})


def read(folder: Path, layout: RankLayout) -> RankState:
    """The state that `write` left for this rank. ValueError when it is damaged or was written under another layout."""
    paths = sorted(folder.glob(f"{_prefix(layout)}-*.safetensors"))
    tensors = StoredTensors(paths)
    try:
        content = json.loads(tensors.metadata()[0]["state"])
        complete = content["tensors"] == len(tensors)
    except (IndexError, KeyError, ValueError):
        content, complete = {}, False
    if not complete:
        raise ValueError(f"{folder} does not hold the whole state of rank {layout.rank}; delete it to resume from the one before")
    if content["layout"] != layout.describe():
        differing = [name for name, value in layout.describe().items() if content["layout"].get(name) != value]
        values = ", ".join(f"{name} {content['layout'].get(name)} instead of {getattr(layout, name)}" for name in differing)
        raise ValueError(
            f"{folder} was written under another layout ({values}): the optimizer's state fits the same layout only; "
            f"resume with it, or start a cell from the weights in {folder / WEIGHTS}"
        )
    return RankState(int(tensors["version"]), tensors)


def _prefix(layout: RankLayout) -> str:
    return f"rank_{layout.rank:05}"


def check(state: RankState, adams: list[torch.optim.Optimizer]) -> None:
    """Raise ValueError where a moment or main weight does not have its parameter's shape, or belongs to none."""
    shapes = {name: parameter.shape for name, _, parameter, _ in _entries(adams)}
    for name in state.tensors.keys() - {"version"}:
        if name.startswith(f"{_MEMORY}."):
            continue
        entry, _, kind = name.rpartition(".")
        shape = list(state.tensors.shape(name))
        if entry not in shapes or (kind != "step" and shape != list(shapes[entry])):
            raise ValueError(f"the optimizer has no place for {name} of shape {shape}; it belongs to another model")


@torch.no_grad()
def apply(state: RankState, adams: list[torch.optim.Optimizer]) -> None:
    """Make the optimizer continue where `state` was written."""
    for adam in adams:
        adam.state.clear()
    for name, group, parameter, _ in _entries(adams):
        kept = {key: state.tensors[f"{name}.{key}"] for key in _MOMENTS if f"{name}.{key}" in state.tensors}
        if f"{name}.main" in state.tensors:
            parameter.copy_(state.tensors[f"{name}.main"])
        if "step" in group and kept:
            group["step"] = kept.pop("step").item()
        if kept:  # before the first step that was not skipped Adam has no state
            moments = {key: value if key == "step" else value.to(parameter.device) for key, value in kept.items()}
            adams[int(name.split(".")[0])].state[parameter] = moments


def _entries(adams: list[torch.optim.Optimizer]) -> Iterator[tuple[str, dict[str, Any], Tensor, dict[str, Any]]]:
    """(name, group, parameter, state) of every parameter; names follow the order, which the model and the layout fix."""
    for number, adam in enumerate(adams):
        for group_number, group in enumerate(adam.param_groups):
            for index, parameter in enumerate(group["params"]):
                yield f"{number}.{group_number}.{index}", group, parameter, adam.state.get(parameter, {})
