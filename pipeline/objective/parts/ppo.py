"""PPO's clip: the pessimistic minimum of the ratio and the ratio between fixed limits."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import Field

from pipeline.objective.part import Gain, Surrogate
from pipeline.section import Section

if TYPE_CHECKING:
    from torch import Tensor

    from pipeline.objective.terms import Scores


def clip_cap(advantages: Tensor, eps_low: float, eps_high: float, contraction: Tensor | None = None) -> Tensor:
    """The value [N] at which PPO's clip caps the surrogate: min(r A, clip(r, 1 - eps_low, 1 + eps_high) A) = min(r A, cap).

    Only one limit can bind for a given sign of A, the upper for A > 0 and the lower for A < 0, so cap = limit * A = A + |A| eps.
    SAT (Eqs. 17-19) multiplies that side's eps by its contraction c [N]; c = 1 gives PPO's cap bit for bit.
    """
    distance = (advantages * -eps_low).maximum(advantages * eps_high)
    return advantages + distance if contraction is None else advantages.addcmul(distance, contraction)


class Clip(Surrogate):
    """min(r A, clip(r, 1 - eps_low, 1 + eps_high) A), wherever the limits come from."""

    limited = True

    @abstractmethod
    def limits(self, statistics: Mapping[str, Tensor]) -> tuple[float, float]:
        """(eps_low, eps_high), the distances of the limits from 1, before any contraction."""

    def surrogate(self, scores: Scores, contraction: Tensor | None) -> Gain:
        advantages = scores.tokens.advantages
        cap = clip_cap(advantages, *self.limits(scores.statistics), contraction)
        unclipped = scores.log_ratio.exp() * advantages
        # clamped from above, so that a ratio exactly at its limit keeps its gradient
        return Gain(unclipped.clamp(max=cap), clipped=unclipped.detach() > cap)


class PpoSettings(Section):
    eps_low: float = Field(gt=0, lt=1)
    eps_high: float = Field(gt=0)


class Ppo(Clip):
    name = "ppo"
    Settings = PpoSettings
    settings: PpoSettings

    def limits(self, statistics: Mapping[str, Tensor]) -> tuple[float, float]:
        return self.settings.eps_low, self.settings.eps_high
