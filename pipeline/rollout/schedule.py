"""Who is generated with which weights: the batch-wise asynchronous schedule as pure arithmetic.

Rollout batch k trains in m optimizer steps. Weights are published after every n-th batch; a version is named by the optimizer
steps it contains. In the batch-wise asynchronous regime batch k+1 is generated while batch k trains, so it is sampled from the
version that was published before batch k began; in the synchronous regime it waits for the newest version. Everything else
follows: the lag of a step, the batches and evaluations of a version, and what a resumed run has to generate again.

Closed form (tests/unit/test_schedule.py simulates it event by event): step h of batch k >= 1 has lag m(((k-1) mod n) + 1) + h,
batch 0 has lag h; synchronous: m(k mod n) + h.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from pipeline.config import CellSettings


@dataclass(frozen=True)
class Schedule:
    """The publication schedule of one cell.

    asynchronous: whether a batch is generated one batch ahead.  broadcast_interval (n): rollout batches between publications.
    steps_per_batch (m): optimizer steps per rollout batch.  num_steps: optimizer steps of the run, a multiple of m.
    evaluation_interval: optimizer steps between evaluations.  generate_ahead: batches of one version generated in one call.
    """

    asynchronous: bool
    broadcast_interval: int
    steps_per_batch: int
    num_steps: int
    evaluation_interval: int
    generate_ahead: int = 1

    @classmethod
    def of(cls, settings: CellSettings) -> Schedule:
        return cls(
            asynchronous=settings.schedule.regime == "batchwise",
            broadcast_interval=settings.schedule.broadcast_interval,
            steps_per_batch=settings.schedule.optimizer_steps_per_rollout,
            num_steps=settings.trainer.steps,
            evaluation_interval=settings.evaluation.interval,
            generate_ahead=settings.rollout.generate_ahead,
        )

    @property
    def num_batches(self) -> int:
        return self.num_steps // self.steps_per_batch

    def publishes_after(self, batch: int) -> bool:
        """Whether the weights are published once `batch` has been trained on."""
        return (batch + 1) % self.broadcast_interval == 0

    def published_version(self, trained_batches: int) -> int:
        """The newest published version after `trained_batches` batches, in optimizer steps."""
        return trained_batches // self.broadcast_interval * self.broadcast_interval * self.steps_per_batch

    def generating_version(self, batch: int) -> int:
        """The version that samples `batch`: the newest one when its generation starts."""
        return self.published_version(max(batch - 1, 0) if self.asynchronous else batch)

    def lag(self, step: int) -> int:
        """Optimizer steps between the weights that train step `step` and the weights that sampled its responses."""
        return step - self.generating_version(step // self.steps_per_batch)

    def lag_histogram(self) -> dict[int, int]:
        """Optimizer steps at each lag over the whole run."""
        return dict(sorted(Counter(self.lag(step) for step in range(self.num_steps)).items()))

    def flight(self, batch: int) -> range:
        """The batches generated in one call with `batch`: at most generate_ahead neighbours of the same version."""
        version = self.generating_version(batch)
        first = batch
        while first > 0 and self.generating_version(first - 1) == version:
            first -= 1
        start = first + (batch - first) // self.generate_ahead * self.generate_ahead
        stop = start
        while stop < min(start + self.generate_ahead, self.num_batches) and self.generating_version(stop) == version:
            stop += 1
        return range(start, stop)

    def evaluation_steps(self, version: int) -> list[int]:
        """The steps at which an evaluation reports `version`: it is generated once, later points repeat its rows."""
        first, last = version - 1, version - 1 + self.broadcast_interval * self.steps_per_batch
        points = range(self.evaluation_interval - 1, self.num_steps, self.evaluation_interval)
        return [step for step in points if first <= step < last]
