"""CISPO: the clipped ratio weighs the gradient of log pi and is itself a constant, so that no token loses its gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from pipeline.columns import Column
from pipeline.objective.part import Gain, Surrogate
from pipeline.section import Section

if TYPE_CHECKING:
    from torch import Tensor

    from pipeline.objective.terms import Scores, StepTerms


class CispoSettings(Section):
    eps_low: float = Field(gt=0)
    eps_high: float = Field(gt=0)


class Cispo(Surrogate):
    """sg(clip(r, 1 - eps_low, 1 + eps_high)) A log pi (arXiv 2506.13585, Eq. 4); eps_low >= 1 is no lower limit."""

    name = "cispo"
    Settings = CispoSettings
    settings: CispoSettings
    columns = (Column("cispo_weight_mean", "1", "mean clipped ratio that weighs the gradient"),)

    def surrogate(self, scores: Scores, contraction: Tensor | None) -> Gain:
        ratio = scores.log_ratio.detach().exp()
        low, high = 1.0 - self.settings.eps_low, 1.0 + self.settings.eps_high
        # log pi minus itself: the derivative is that of log pi, the value stays comparable with that of the other surrogates
        change = scores.trainer_logprobs - scores.trainer_logprobs.detach()
        gain = ratio.clamp(low, high) * scores.tokens.advantages * (1.0 + change)
        return Gain(gain, clipped=(ratio < low) | (ratio > high))

    def measure(self, step: StepTerms, surrogate: Surrogate) -> dict[str, float]:
        ratio = step.joined("log_ratio").exp()
        return {"cispo_weight_mean": float(ratio.clamp(1.0 - self.settings.eps_low, 1.0 + self.settings.eps_high).mean())}
