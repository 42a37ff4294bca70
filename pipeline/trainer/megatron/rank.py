"""A training rank: python -m pipeline.trainer.megatron.rank, with torchrun's environment and the controller's address and key.

It reads its job from the controller, sets up its part of the policy, and then takes part in every command that rank 0 hands on:
train, publish, save, restore. A Refusal, which all ranks raise together, is the command's answer; anything else ends the rank.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import dataclasses
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pipeline.config import CellSettings
from pipeline.trainer.megatron import cpu_adapter, layout, state
from pipeline.trainer.megatron.channel import Generating, Job, RankChannel
from pipeline.trainer.megatron.names import parameter_sources
from pipeline.trainer.megatron.shares import BatchShare, receive
from pipeline.trainer.megatron.token_row import on_device
from pipeline.trainer.megatron.weights import Weights
from pipeline.trainer.step import optimizer_step, with_constants
from pipeline.trainer.update import Update


class RankTrainer:
    """One rank of the trainer. Every method is called on all ranks, with the same arguments but for the shares of a batch."""

    def __init__(self, settings: CellSettings, base: Path, groups: layout.Groups, beat: Callable[[], None]) -> None:
        from pipeline.trainer.megatron import model as models
        from pipeline.trainer.megatron.optimizer import PolicyOptimizer
        from pipeline.trainer.megatron.passes import Passes
        from pipeline.trainer.megatron.replay import Replay

        self.settings, self.recipe, self.groups = settings, settings.recipe(), groups
        self.version = 0
        megatron, sizes = layout.sections(settings)[0], settings.model
        model = models.build(sizes, megatron, groups, self.recipe.method.routing_replay)
        sources = parameter_sources(sizes, groups.layout, megatron.layer_spec)
        self.weights = Weights(models.parameters(model), sources, sizes, groups)
        models.mark_cut(self.weights.parameters, sources)
        self.weights.load(base)
        self.optimizer = PolicyOptimizer(model, settings.trainer, megatron)
        self.replay = Replay(model, sizes, groups.layout, megatron.recompute) if self.recipe.method.routing_replay else None
        self.passes = Passes(settings, groups, model, self.optimizer, self.weights, self.replay, beat)
        if settings.objective.reference_kl_coefficient:
            self.passes.frozen["reference"] = self.weights.frozen(base)
        self._generating: Generating | None = None

    def train(self, share: BatchShare, generating: Generating, yield_update: Callable[[Update], None]) -> None:
        started = time.perf_counter()
        if "rollout_weights" in self.recipe.reads:
            self._take_generating(generating)
        own = share.micro_batches(self.settings.objective.aggregation, routing_replay=False, dtype=torch.float32)
        own = [[on_device(micro, self.groups.device) for micro in micros] for micros in own]
        own = with_constants(self.passes, self.settings, self.recipe, own)
        prepare_s = (time.perf_counter() - started) / len(own)
        for step, micros in zip(share.steps, own, strict=True):
            started = time.perf_counter()
            update = optimizer_step(self.passes, self.recipe, micros, step.num_micros)
            self.version += 1  # a skipped step has taken place in the schedule, and versions count scheduled steps
            yield_update(dataclasses.replace(update, train_s=prepare_s + time.perf_counter() - started))

    def _take_generating(self, generating: Generating) -> None:
        if self._generating is None or self._generating.version != generating.version:
            if generating.folder is None:
                raise layout.Refusal(f"version {generating.version} has no folder that the ranks could read; publish it to one")
            self.passes.frozen.pop("generating", None)  # host memory for one
            self.passes.frozen["generating"] = self.weights.frozen(Path(generating.folder))
            self._generating = generating

    def publish(self, folder: str) -> int:
        """Fill `folder`, which appears when it is whole, and return the version."""
        part = Path(f"{folder}.part")
        self._write_weights(part)
        if self.groups.layout.rank == 0:
            part.rename(folder)
        return self.version

    def save(self, folder: str) -> None:
        self._write_weights(Path(folder) / state.WEIGHTS)
        megatron = layout.sections(self.settings)[0]
        apart = megatron.dtype != "float32" or megatron.optimizer_offload
        state.write(Path(folder), self.version, self.groups.layout, self.optimizer.adams, apart, self.passes.memory)
        dist.barrier(self.groups.control)

    def _write_weights(self, folder: Path) -> None:
        from pipeline.trainer.megatron.publish import write_weights

        if self.groups.layout.rank == 0:
            folder.mkdir()
        dist.barrier(self.groups.control)
        write_weights(folder, self.version, self.weights)
        dist.barrier(self.groups.control)

    def restore(self, folder: str) -> int:
        """Continue from a folder filled by `save`; Refusal, and nothing changed, where a rank cannot read its part."""
        found, problem = None, None
        try:
            found = state.read(Path(folder), self.groups.layout)
            state.check(found, self.optimizer.adams)
            self.weights.check(Path(folder) / state.WEIGHTS)
        except ValueError as error:
            problem = str(error)
        self.groups.agree(problem)
        assert found is not None
        self.weights.load(Path(folder) / state.WEIGHTS)
        state.apply(found, self.optimizer.adams)
        self.passes.memory = found.memory(self.groups.device)
        self.version = found.version
        return self.version


class _Commands:
    """Commands reach rank 0 from the controller and all others from rank 0."""

    def __init__(self, channel: RankChannel, groups: layout.Groups) -> None:
        self.channel, self.groups = channel, groups

    def next(self) -> Any:
        message = [self.channel.receive() if self.groups.layout.rank == 0 else None]
        dist.broadcast_object_list(message, src=0, group=self.groups.control)
        return message[0]

    def answer(self, kind: str, value: Any) -> None:
        if self.groups.layout.rank == 0:
            self.channel.send(kind, value)


def serve(trainer: RankTrainer, commands: _Commands) -> None:
    """Take part in commands until the controller ends this process."""
    while True:
        name, arguments = commands.next()
        try:
            commands.answer("done", _run(trainer, commands, name, arguments))
        except layout.Refusal as error:
            commands.answer("refused", str(error))


def _run(trainer: RankTrainer, commands: _Commands, name: str, arguments: dict[str, Any]) -> Any:
    if name != "train":
        return getattr(trainer, name)(**arguments)
    max_tokens = trainer.settings.trainer.micro_batch_tokens
    share = receive(commands.channel, commands.groups, arguments.pop("lengths"), max_tokens)
    trainer.train(share, **arguments, yield_update=lambda update: commands.answer("update", update))
    return None


def main() -> None:
    rank = int(os.environ["RANK"])
    channel = RankChannel(rank)
    try:
        job: Job = channel.receive()
        settings = CellSettings.model_validate_json(job.settings)
        device = torch.device("cpu")
        megatron, cluster = layout.sections(settings)
        torch.set_num_threads(megatron.threads)
        if cluster.device == "cpu":
            cpu_adapter.install()
        else:
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
        groups = layout.initialize(megatron, device)
        trainer = RankTrainer(settings, Path(job.base), groups, channel.progress)
        commands = _Commands(channel, groups)
        commands.answer("done", groups.heads)
        serve(trainer, commands)
    except KeyboardInterrupt:
        sys.exit(130)  # how the guard ends a rank: nothing to explain
    except Exception:
        channel.send("failed", traceback.format_exc(limit=-3))
        raise


if __name__ == "__main__":
    main()
