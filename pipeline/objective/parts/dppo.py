"""DPPO's mask: tokens that move outward and have moved far in total variation are dropped (arXiv 2602.04879)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from pipeline.columns import Column
from pipeline.objective.axes import Denominator
from pipeline.objective.part import Factor, Multiplier, Surrogate
from pipeline.objective.refusals import refuse_ratio_one
from pipeline.section import Section

if TYPE_CHECKING:
    from torch import Tensor

    from pipeline.objective.terms import Scores, StepTerms


def dppo_masked(trainer_logprobs: Tensor, rollout_logprobs: Tensor, advantages: Tensor, delta: float) -> Tensor:
    """Which tokens DPPO drops: those that move outward with |pi - mu| > delta (arXiv 2602.04879; delta 1e-3 in 2607.18722).

    All [N] without gradient; returns bool [N]. Outward: A > 0 and pi > mu, or A < 0 and pi < mu. |pi - mu| = mu |r - 1| is the
    sampled token's part of the total variation; equality with delta keeps. Dropped tokens stay in the loss's denominator.
    """
    change = trainer_logprobs.exp() - rollout_logprobs.exp()
    return change * advantages.sign() > delta


class DppoSettings(Section):
    delta: float = Field(ge=0)


class Dppo(Factor):
    name = "dppo"
    Settings = DppoSettings
    settings: DppoSettings
    corrects = True
    columns = (Column("mask_share", "share", "tokens that DPPO's mask drops"),)

    @classmethod
    def check(cls, label: str, denominator: Denominator, steps_per_rollout: int) -> None:
        refuse_ratio_one(cls.name, label, denominator, steps_per_rollout)

    def factor(self, scores: Scores) -> Multiplier:
        tokens = scores.tokens
        trainer = scores.trainer_logprobs.detach()
        masked = dppo_masked(trainer, tokens.rollout_logprobs, tokens.advantages, self.settings.delta)
        return Multiplier(~masked, {"masked": masked})

    def measure(self, step: StepTerms, surrogate: Surrogate) -> dict[str, float]:
        return {"mask_share": float(step.of_part(self.name, "masked").mean())}
