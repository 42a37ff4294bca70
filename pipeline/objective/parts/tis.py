"""TIS, truncated importance sampling: a capped weight corrects from the rollout engine to the policy at the start of the update."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from pipeline.columns import Column
from pipeline.objective.axes import Denominator
from pipeline.objective.part import Factor, Multiplier, Surrogate
from pipeline.objective.refusals import refuse_second_correction
from pipeline.section import Section

if TYPE_CHECKING:
    from pipeline.objective.terms import Scores, StepTerms


class TisSettings(Section):
    cap: float = Field(gt=0)


class Tis(Factor):
    """w = min(exp(proximal - rollout log-prob), cap), per token whatever the ratio's granularity, after the clip.

    With several optimizer steps a rollout batch this is the clipped proximal form, not w = min(pi / mu, cap) of Eq. 41.
    """

    name = "tis"
    Settings = TisSettings
    settings: TisSettings
    reads = frozenset({"proximal"})
    corrects = True
    columns = (
        Column("tis_truncated_share", "share", "tokens whose importance weight is above the cap"),
        Column("tis_weight_mean", "1", "mean truncated importance weight"),
    )

    @classmethod
    def check(cls, label: str, denominator: Denominator, steps_per_rollout: int) -> None:
        refuse_second_correction(cls.name, label, denominator)

    def factor(self, scores: Scores) -> Multiplier:
        weight = scores.proximal_log_ratio().exp()
        truncated = weight.clamp(max=self.settings.cap)
        return Multiplier(truncated, {"weight": truncated, "truncated": weight > self.settings.cap})

    def measure(self, step: StepTerms, surrogate: Surrogate) -> dict[str, float]:
        return {
            "tis_truncated_share": float(step.of_part(self.name, "truncated").mean()),
            "tis_weight_mean": float(step.of_part(self.name, "weight").mean()),
        }
