"""What a trainer says of one optimizer step: the objective's part of a row of steps.parquet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.columns import column, values_of_row


@dataclass(frozen=True)
class Update:
    """diagnostics: the values of the method's own columns, `columns_of` in objective/diagnostics.py."""

    diagnostics: Mapping[str, float]
    loss: float = column("1", "of the whole step, with reference KL and entropy bonus")
    grad_norm: float = column("1", "of the gradient, before it is clipped")
    skipped: bool = column("", "whether the weights stayed: a value was not finite, or a part of the method said so")
    finite: bool = column("", "whether loss, gradient and all log-probs are numbers")
    train_s: float = column("s", "of this step in the trainer, with its share of what precedes its rollout batch's first")

    def flat(self) -> dict[str, float]:
        """One entry a column."""
        own = values_of_row(self)
        train_s = own.pop("train_s")
        return {**own, **self.diagnostics, "train_s": train_s}
