"""M2PO: one pair of clip limits for the step, as wide as a budget of second moment allows (official code; arXiv 2510.01161)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import Field

from pipeline.columns import Column
from pipeline.objective.part import Processes, Statistic, Surrogate
from pipeline.objective.parts.ppo import Clip
from pipeline.section import Section

if TYPE_CHECKING:
    from torch import Tensor

    from pipeline.objective.terms import Scores, StepTerms


class M2poSettings(Section):
    budget: float = Field(gt=0)
    least_eps_low: float = Field(ge=0, lt=1)
    least_eps_high: float = Field(ge=0)


class M2po(Clip, Statistic):
    """PPO's clip at e^-t and e^t. t: the largest threshold up to which the harmful tokens, those with A log r > 0, have a mean
    (log r)^2 of at most `budget`; limits are never tighter than 1 - least_eps_low and 1 + least_eps_high."""

    name = "m2po"
    Settings = M2poSettings
    settings: M2poSettings
    corrects = True
    columns = (Column("m2po_threshold", "nats", "|log ratio| up to which the second moment of harmful tokens fits the budget"),)

    def contributions(self, scores: Scores) -> Tensor:
        harm = scores.tokens.advantages.sign() * scores.log_ratio.detach()
        return harm[harm > 0.0]

    def reduce(self, values: Tensor, processes: Processes) -> Tensor:
        from pipeline.objective.quantile import smallest_where

        budget = self.settings.budget
        beyond = smallest_where(values, lambda count, total: total > budget * count, processes, weights=values.double().square())
        return beyond * (1.0 - 1e-6)  # below the first value that is too much, by more than exp rounds

    def limits(self, statistics: Mapping[str, Tensor]) -> tuple[float, float]:
        threshold = min(float(statistics[self.name]), 20.0)  # log ratios end at 20: beyond it nothing is clipped
        low, high = -math.expm1(-threshold), math.expm1(threshold)
        return max(low, self.settings.least_eps_low), max(high, self.settings.least_eps_high)

    def measure(self, step: StepTerms, surrogate: Surrogate) -> dict[str, float]:
        return {"m2po_threshold": float(step[0].statistics[self.name])}
