"""What the loop asks of a trainer. Nothing else knows whether PyTorch or Megatron-core computes the gradient."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from pipeline.published_weights import PublishedWeights
from pipeline.records import RolloutBatch
from pipeline.trainer.update import Update


class PolicyTrainer(Protocol):
    version: int
    """Optimizer steps in the current weights."""

    def train_batch(self, batch: RolloutBatch, num_steps: int, generating: PublishedWeights) -> Iterator[Update]:
        """Train on `batch` in `num_steps` optimizer steps and yield what each step did.

        generating: the version that sampled the batch, for the denominator `rollout_weights`.
        """
        ...

    def publish(self) -> PublishedWeights:
        """A copy of the current weights under their Hugging Face names, stamped with `version`."""
        ...

    def save(self, folder: Path) -> None:
        """Write everything a bit-identical continuation needs into `folder`, which exists and is empty."""
        ...

    def restore(self, folder: Path) -> None:
        """Continue from a folder filled by `save`. Raises ValueError when it is damaged or of another model or layout."""
        ...

    def check(self) -> None:
        """Raise EngineDied where a process of the trainer has ended: for whoever waits for something else. Takes no time."""
        ...

    def close(self) -> None:
        """End the trainer's processes, where it has any; safe to call twice."""
        ...
