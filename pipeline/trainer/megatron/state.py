"""A rank's optimizer state as a safetensors file: rank_<rank>.safetensors beside weights/, which hold the model for any layout.

Moments and float32 main weights are cut as the layout cuts them, so they can be read under the same layout only; the weights can be
loaded under every layout. `read` checks everything before anything is changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from pipeline.trainer.megatron.layout import Layout

WEIGHTS = "weights"
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class RankState:
    version: int
    tensors: dict[str, Tensor]


def state_file(folder: Path, rank: int) -> Path:
    return folder / f"rank_{rank:05}.safetensors"


def write(folder: Path, version: int, layout: Layout, adams: list[torch.optim.Optimizer], with_main_weights: bool) -> None:
    """with_main_weights: the optimizer's float32 weights are not the model's own and have to be kept beside it."""
    tensors: dict[str, Tensor] = {}
    for name, group, parameter, state in _entries(adams):
        if with_main_weights:
            tensors[f"{name}.main"] = parameter
        tensors |= {f"{name}.{key}": torch.as_tensor(state[key]) for key in _MOMENTS if key in state}
        if "step" in group and state:  # TransformerEngine's Adam counts steps by group
            tensors[f"{name}.step"] = torch.as_tensor(group["step"])
    content = json.dumps({"version": version, "layout": layout.describe()}, sort_keys=True)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    safetensors.torch.save_file(tensors, state_file(folder, layout.rank), {"state": content})


def read(folder: Path, layout: Layout) -> RankState:
    """The state that `write` left for this rank. ValueError when it is damaged or was written under another layout."""
    path = state_file(folder, layout.rank)
    try:
        with safetensors.safe_open(path, framework="pt") as handle:
            content = json.loads(handle.metadata()["state"])
            tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118 - not a dict
    except (OSError, safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({error}); delete its folder to resume from the checkpoint before") from error
    if content["layout"] != layout.describe():
        differing = [name for name, value in layout.describe().items() if content["layout"].get(name) != value]
        values = ", ".join(f"{name} {content['layout'].get(name)} instead of {getattr(layout, name)}" for name in differing)
        raise ValueError(
            f"{path} was written under another layout ({values}): the optimizer's state fits the same layout only; "
            f"resume with it, or start a cell from the weights in {folder / WEIGHTS}"
        )
    return RankState(content["version"], tensors)


def check(state: RankState, adams: list[torch.optim.Optimizer]) -> None:
    """Raise ValueError where a moment or main weight does not have its parameter's shape, or belongs to none."""
    shapes = {name: parameter.shape for name, _, parameter, _ in _entries(adams)}
    for name, tensor in state.tensors.items():
        entry, _, kind = name.rpartition(".")
        if entry not in shapes or (kind != "step" and tensor.shape != shapes[entry]):
            raise ValueError(f"the optimizer has no place for {name} of shape {list(tensor.shape)}; it belongs to another model")


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
            _adam_of(adams, name).state[parameter] = moments


def _entries(adams: list[torch.optim.Optimizer]) -> Iterator[tuple[str, dict[str, Any], Tensor, dict[str, Any]]]:
    """(name, group, parameter, state) of every parameter; names follow the order, which the model and the layout fix."""
    for number, adam in enumerate(adams):
        for group_number, group in enumerate(adam.param_groups):
            for index, parameter in enumerate(group["params"]):
                yield f"{number}.{group_number}.{index}", group, parameter, adam.state.get(parameter, {})


def _adam_of(adams: list[torch.optim.Optimizer], name: str) -> torch.optim.Optimizer:
    return adams[int(name.split(".")[0])]
