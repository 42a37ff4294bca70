"""What the ranks of a parity test run: python -m tests.cluster.megatron_ranks FOLDER LAYOUT, once per rank.

Builds one RankTrainer after another in the same processes, which start slowly, and leaves what rank 0 saw in FOLDER/found.pt.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from pipeline.config import CellSettings
from pipeline.records import RolloutBatch
from pipeline.trainer.megatron import cpu_adapter, layout
from pipeline.trainer.megatron.channel import Generating
from pipeline.trainer.megatron.rank import RankTrainer
from pipeline.trainer.megatron.shares import BatchShare
from pipeline.trainer.microbatches import MicroBatch, micro_batches
from tests.cluster.megatron_cells import BATCHES, CASES, OTHER, TWO_BATCHES, base_folder, batch, cell


def main(folder: Path, layout_name: str) -> None:
    torch.set_num_threads(1)
    cpu_adapter.install()
    first = cell("grpo", layout_name)
    groups = layout.initialize(layout.sections(first)[0], torch.device("cpu"))
    found: dict[str, Any] = {}
    for name, (method, changes) in CASES[layout_name].items():
        trainer = trainer_of(cell(method, layout_name, **changes), folder, groups)
        found[name] = trained(trainer, folder, name)
        if name == "sat-gspo-r3":
            found["replay"] = replay_identity(trainer)
            found["skipped"] = skipped_step(trainer, folder)
        if name == "bfloat16":
            found["continued"] = continued(trainer, trainer_of(trainer.settings, folder, groups), folder)
        if name == "grpo" and (other := folder.parent / OTHER / "sat-gspo-r3").exists():
            trainer.weights.load(other)
            trainer.publish(str(folder / "loaded"))
    if groups.layout.rank == 0:
        torch.save(found, folder / "found.pt")
    dist.barrier()


def trainer_of(settings: CellSettings, folder: Path, groups: layout.Groups) -> RankTrainer:
    return RankTrainer(settings, base_folder(folder.parent, settings), groups, beat=lambda: None)


def train(trainer: RankTrainer, folder: Path, rollouts: RolloutBatch, num_steps: int = 1) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    generating = Generating(0, str(base_folder(folder.parent, trainer.settings)))
    place, limit = trainer.groups.layout, trainer.settings.trainer.micro_batch_tokens
    share = BatchShare.of(rollouts, num_steps, limit, place.data_rank, place.data_size)
    trainer.train(share, generating, lambda update: rows.append(update.flat()))
    return rows


def trained(trainer: RankTrainer, folder: Path, name: str) -> dict[str, Any]:
    """Log-probs before any step, the rows of two steps, and the weights after them in `folder`/`name`."""
    logprobs = [values.clone() for values in trainer.passes.logprobs(own_micros(trainer), "policy", replay=True)]
    rows: list[dict[str, Any]] = []
    for index, num_steps in BATCHES.get(name, TWO_BATCHES):
        rows += train(trainer, folder, batch(trainer.settings, index), num_steps)
    trainer.publish(str(folder / name))
    return {"logprobs": gathered(trainer, logprobs), "rows": rows}


def own_micros(trainer: RankTrainer) -> list[MicroBatch]:
    settings, place = trainer.settings, trainer.groups.layout
    aggregation, limit = settings.objective.aggregation, settings.trainer.micro_batch_tokens
    step = micro_batches(batch(settings).samples, limit, aggregation, routing_replay=False, dtype=torch.float32)
    return step[place.data_rank :: place.data_size]


def gathered(trainer: RankTrainer, values: list[torch.Tensor]) -> torch.Tensor:
    """The values of all micro-batches in order, on rank 0."""
    place = trainer.groups.layout
    received: list[Any] = [None] * place.num_ranks
    dist.all_gather_object(received, (place.data_rank, values) if place.reports else None, group=trainer.groups.control)
    dealt = [values for _, values in sorted((entry for entry in received if entry), key=lambda entry: entry[0])]
    return torch.cat([values[turn] for turn in range(max(map(len, dealt))) for values in dealt if turn < len(values)])


def replay_identity(trainer: RankTrainer) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of one micro-batch with the routers' own choice, and with that choice recorded and replayed."""
    from megatron.core.transformer.moe.router_replay import RouterReplayAction

    micro = own_micros(trainer)[0]
    assert trainer.replay is not None
    for layer in trainer.replay.layers:
        layer.set_router_replay_action(RouterReplayAction.RECORD)
    own = trainer.passes.logprobs([micro], "policy", replay=False)
    recorded = torch.stack([layer.get_recorded_indices() for layer in trainer.replay.layers], 1)
    trainer.replay.clear()
    parts: list[Any] = [None] * trainer.groups.layout.num_ranks
    dist.all_gather_object(parts, (trainer.groups.layout, recorded), group=trainer.groups.control)
    place = trainer.groups.layout
    stages = [
        torch.cat([rows for other, rows in parts if (other.pipeline_rank, other.data_rank) == (stage, place.data_rank)])
        for stage in range(place.pipeline_size)
    ]
    routes = torch.cat(stages, 1).numpy().astype(np.uint8)
    responses, start = [], 0
    for response in micro.responses:
        length = len(response.prompt_ids) + len(response.response_ids)
        responses.append(dataclasses.replace(response, routed_experts=routes[start : start + length - 1]))
        start += length
    replayed = trainer.passes.logprobs([dataclasses.replace(micro, responses=tuple(responses))], "policy", replay=True)
    return gathered(trainer, own), gathered(trainer, replayed)


def skipped_step(trainer: RankTrainer, folder: Path) -> dict[str, Any]:
    """A step with one log-prob that is not a number: its row, and the weights after it in `folder`/skipped."""
    rollouts = batch(trainer.settings, 2)
    rollouts.samples[3].response.rollout_logprobs[0] = np.nan
    (row,) = train(trainer, folder, rollouts)
    trainer.publish(str(folder / "skipped"))
    return row


def continued(trainer: RankTrainer, fresh: RankTrainer, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The row of a third step, and of the same step after a save and a restore into a fresh trainer; weights beside them."""
    third = batch(trainer.settings, 2)
    if trainer.groups.layout.rank == 0:
        (folder / "state").mkdir()
    dist.barrier()
    trainer.save(str(folder / "state"))
    (uninterrupted,) = train(trainer, folder, third)
    trainer.publish(str(folder / "uninterrupted"))
    fresh.restore(str(folder / "state"))
    (restored,) = train(fresh, folder, third)
    fresh.publish(str(folder / "restored"))
    return uninterrupted, restored


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
