"""What a trainer says of one optimizer step: the objective's part of a row of steps.parquet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Update:
    """loss: of the whole step.  grad_norm: before the clip.  finite: whether both and all log-probs are numbers.  skipped: whether
    the weights stayed, because a value was not finite or a part of the method said so.  diagnostics: by the names of `columns_of`
    (objective/diagnostics.py).  train_s: seconds, with its share of what precedes the first step of its rollout batch.
    """

    loss: float
    grad_norm: float
    finite: bool
    skipped: bool
    diagnostics: Mapping[str, float]
    train_s: float = 0.0

    def flat(self) -> dict[str, float]:
        """One entry a column."""
        own = {"loss": self.loss, "grad_norm": self.grad_norm, "skipped": self.skipped, "finite": self.finite}
        return {**own, **self.diagnostics, "train_s": self.train_s}
