"""The plan of a run before anything is launched: every cell's time and tokens as intervals, memory and disk, and the totals.

A cell's low end takes the shortest responses and the best of every rate, its high end the longest and the worst; the truth lies
inside if every constant does (docs/planning.md). results/<preset>/plan.json holds the plan, to be compared with what is measured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pipeline.artifacts import Cell
from pipeline.config import CellSettings, Settings
from pipeline.planning import storage
from pipeline.planning.bounds import Bounds
from pipeline.planning.constants import LENGTH_SPREAD, Pace, Rates
from pipeline.planning.deployment import Deployment, deployment_of
from pipeline.planning.model_size import ModelSize
from pipeline.planning.timing import Lengths, folder_s, generation_s, training_s, transport_s
from pipeline.planning.workload import Workload, workload_of

SCHEMA = 1
_LONGEST_OVER_MEAN = 8.0  # the longest of thousands of log-normal lengths with sd = mean, where the cap does not come first


@dataclass(frozen=True)
class CellTimes:
    """Seconds of one cell by part, over the whole run, at one end of the interval; total also has start-up and what overlaps."""

    generate: float
    train: float
    reference_kl: float
    statistics: float
    publish: float
    evaluate: float
    checkpoint: float
    total: float


@dataclass(frozen=True)
class CellEstimate:
    """One cell's plan. low, high: its times at either end. batch_s: one rollout batch with its
    optimizer steps and publication."""

    cell: Cell
    workload: Workload
    low: CellTimes
    high: CellTimes
    num_devices: int
    checkpoint: storage.CheckpointSize
    checkpoint_write_s: Bounds
    batch_s: Bounds
    host_bytes: Bounds
    scratch_bytes: float
    log_bytes: float
    rollout_bytes_per_step: Bounds

    def part(self, name: str) -> Bounds:
        return Bounds(getattr(self.low, name), getattr(self.high, name))

    @property
    def wall_s(self) -> Bounds:
        return self.part("total")

    @property
    def gpu_hours(self) -> Bounds:
        return self.wall_s * (self.num_devices / 3600)


@dataclass(frozen=True)
class Plan:
    """All cells of a run, on one deployment."""

    settings: Settings
    size: ModelSize
    deployment: Deployment
    cells: tuple[CellEstimate, ...]

    @property
    def gpu_hours(self) -> Bounds:
        return sum((cell.gpu_hours for cell in self.cells), Bounds.point(0.0))

    @property
    def running_disk_bytes(self) -> float:
        """Disk for the checkpoints of all cells at once."""
        return sum(cell.checkpoint.running_bytes for cell in self.cells)

    @property
    def finished_disk_bytes(self) -> float:
        return sum(cell.checkpoint.finished_bytes for cell in self.cells)


def plan_run(settings: Settings, gpu: str = "H100", response_tokens: Bounds | None = None, rates: Rates | None = None) -> Plan:
    """Estimate every cell of `settings`.

    gpu: what the cluster's GPUs are.  response_tokens: mean response length, if known.  rates: in place of the deployment's own.
    """
    deployment, size = deployment_of(settings, gpu), ModelSize.of(settings.model)
    deployment = replace(deployment, rates=rates) if rates else deployment
    estimates = tuple(_planned(settings, cell, size, deployment, response_tokens) for cell in settings.all_cells())
    return Plan(settings, size, deployment, estimates)


def plan_cell(settings: Settings, cell: Cell, gpu: str = "H100") -> CellEstimate:
    """Estimate one cell of `settings`, which need not be among those of the run."""
    return _planned(settings, cell, ModelSize.of(settings.model), deployment_of(settings, gpu), None)


def _planned(
    settings: Settings, cell: Cell, size: ModelSize, deployment: Deployment, response_tokens: Bounds | None
) -> CellEstimate:
    read, problems = settings.cell(cell), settings.problems
    counts = (problems.evaluation_count, problems.scoring_count)
    return estimate_cell(cell, read, workload_of(read, *counts, deployment.ranks.recompute, response_tokens), size, deployment)


def estimate_cell(cell: Cell, settings: CellSettings, workload: Workload, size: ModelSize, deployment: Deployment) -> CellEstimate:
    """Put the parts of one cell together."""
    interval = settings.trainer.checkpoint_interval
    steps = workload.batches * workload.steps_per_batch
    versions = 2 if workload.asynchronous else 1  # the newest, and the one that samples the next batch
    checkpoint = storage.checkpoint_size(size, deployment.ranks, versions)
    paces = [deployment.rates.pace(best) for best in (True, False)]
    low, high = (
        cell_times(workload, size, deployment, pace, lengths_of(workload, best), checkpoint, steps // interval)
        for pace, best in zip(paces, (True, False), strict=True)
    )
    writes = Bounds(*(checkpoint.write_s(pace) for pace in paces))
    batch = Bounds(*(_batch_s(workload, times, deployment.shared) for times in (low, high)))
    tokens = workload.responses_per_batch * (workload.response_tokens.value + workload.prompt_tokens.value)
    held = Bounds(*(storage.rollout_bytes(size, count, workload.routing_replay) for count in tokens.pair()))
    return CellEstimate(
        cell=cell,
        workload=workload,
        low=low,
        high=high,
        num_devices=deployment.num_devices,
        checkpoint=checkpoint,
        checkpoint_write_s=writes,
        batch_s=batch,
        host_bytes=_host_bytes(settings, workload, size, deployment, held),
        scratch_bytes=storage.scratch_bytes(checkpoint, versions),
        log_bytes=storage.log_bytes(steps, workload.evaluated_versions * workload.evaluation_responses),
        rollout_bytes_per_step=held * (1 / workload.steps_per_batch),
    )


def _host_bytes(settings: CellSettings, workload: Workload, size: ModelSize, deployment: Deployment, batch: Bounds) -> Bounds:
    """Host memory of a cell. batch: bytes of one rollout batch, of which each rank of a trainer with processes has its share."""
    frozen = (settings.objective.reference_kl_coefficient > 0) + ("rollout_weights" in settings.recipe().reads)
    in_flight = 1 + workload.flight if workload.asynchronous else 1
    copied = 1 if settings.trainer.engine == "megatron" else 0
    ends = (
        storage.host_bytes(size, deployment.servers, deployment.ranks, pace, frozen, copied * held, in_flight * held)
        for pace, held in zip((deployment.rates.pace(best) for best in (True, False)), batch.pair(), strict=True)
    )
    return Bounds(*ends)


def lengths_of(workload: Workload, best: bool) -> Lengths:
    """Lengths at one end of the interval."""
    prompt, response = workload.prompt_tokens.value, workload.response_tokens.value
    mean = response.low if best else response.high
    cap = workload.max_response_tokens
    longest = min(_LONGEST_OVER_MEAN * mean, cap) if best else cap
    return Lengths(prompt.low if best else prompt.high, mean, longest, LENGTH_SPREAD.value.low)


def cell_times(
    workload: Workload,
    size: ModelSize,
    deployment: Deployment,
    pace: Pace,
    lengths: Lengths,
    checkpoint: storage.CheckpointSize,
    num_checkpoints: int,
) -> CellTimes:
    """Seconds of one cell at one pace.

    Asynchronous: generation (with evaluations, which the servers do) and training overlap on GPUs of their own, and the slower one
    counts. On shared processors at worst both count.
    """
    device, servers, ranks = deployment.device, deployment.servers, deployment.ranks.count

    def generated(responses: float, group_size: int) -> float:
        return generation_s(size, device, servers, pace, lengths, responses, group_size)

    def trained(passes: float) -> float:
        return training_s(size, ranks, pace, lengths, workload.responses, passes)

    flights = workload.batches / workload.flight
    generate = flights * generated(workload.flight * workload.responses_per_batch, workload.group_size)
    evaluate = workload.evaluated_versions * generated(workload.evaluation_responses, 1)
    train = trained(workload.passes.total)
    publish = workload.publications * _publish_s(size, deployment, pace)
    save = num_checkpoints * checkpoint.write_s(pace)
    first = generate / flights
    slow = pace == deployment.rates.pace(best=False)
    if workload.asynchronous and not (deployment.shared and slow):
        loop = first + max(generate + evaluate, train)
    else:
        loop = generate + evaluate + train
    scoring = generated(workload.scoring_responses, 1)
    return CellTimes(
        generate=generate,
        train=train,
        reference_kl=trained(workload.passes.reference_kl),
        statistics=trained(workload.passes.statistics),
        publish=publish,
        evaluate=evaluate + scoring,
        checkpoint=save,
        total=pace.startup_s + loop + publish + save,
    )


def _publish_s(size: ModelSize, deployment: Deployment, pace: Pace) -> float:
    """One publication: the folder that every version becomes, and the way to the servers."""
    return folder_s(size, pace, deployment.ranks.weight_bytes) + transport_s(size, pace, deployment.ranks.weight_bytes)


def _batch_s(workload: Workload, times: CellTimes, shared: bool) -> float:
    """One rollout batch: from one boundary at which a checkpoint can be taken to the next."""
    both = times.generate + times.train
    loop = max(times.generate, times.train) if workload.asynchronous and not shared else both
    return (loop + times.publish) / workload.batches


def as_json(plan: Plan) -> dict[str, Any]:
    """The content of plan.json. wall_s is comparable with wall_s.total of run.json; scoring, a rule of its own, is not in it."""
    return {
        "schema": SCHEMA,
        "preset": plan.settings.preset,
        "device": plan.deployment.device.name,
        "num_devices": plan.deployment.num_devices,
        "gpu_hours": plan.gpu_hours.pair(),
        "disk_bytes": {"running": plan.running_disk_bytes, "finished": plan.finished_disk_bytes},
        "cells": [_cell_json(cell) for cell in plan.cells],
    }


def _cell_json(estimate: CellEstimate) -> dict[str, Any]:
    cell, workload = estimate.cell, estimate.workload
    names = ("generate", "train", "reference_kl", "statistics", "publish", "evaluate", "checkpoint")
    return {
        "method": cell.method,
        "lag": cell.lag,
        "seed": cell.seed,
        "wall_s": estimate.wall_s.pair(),
        "gpu_hours": estimate.gpu_hours.pair(),
        "tokens": workload.tokens.pair(),
        "parts_s": {name: estimate.part(name).pair() for name in names},
        "batch_s": estimate.batch_s.pair(),
        "lag_histogram": {str(lag): count for lag, count in workload.lag_histogram.items()},
        "checkpoint_bytes": estimate.checkpoint.bytes,
        "checkpoint_write_s": estimate.checkpoint_write_s.pair(),
        "host_bytes": estimate.host_bytes.pair(),
        "scratch_bytes": estimate.scratch_bytes,
        "log_bytes": estimate.log_bytes,
    }
