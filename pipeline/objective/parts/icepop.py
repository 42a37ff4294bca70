"""IcePop: tokens on which trainer and engine disagree too much are masked, the others weighted (arXiv 2510.18855)."""

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


class IcePopSettings(Section):
    low: float = Field(ge=0, lt=1)
    high: float = Field(gt=1)
    weighted: bool


class IcePop(Factor):
    """k 1{low <= k <= high} with k = proximal / mu per token, equality keeps; the mask alone without `weighted` (Eq. 42)."""

    name = "icepop"
    Settings = IcePopSettings
    settings: IcePopSettings
    reads = frozenset({"proximal"})
    corrects = True
    columns = (Column("icepop_masked_share", "share", "tokens whose proximal / mu lies outside IcePop's band"),)

    @classmethod
    def check(cls, label: str, denominator: Denominator, steps_per_rollout: int) -> None:
        refuse_second_correction(cls.name, label, denominator)

    def factor(self, scores: Scores) -> Multiplier:
        ratio = scores.proximal_log_ratio().exp()
        kept = (ratio >= self.settings.low) & (ratio <= self.settings.high)
        # masked_fill, not a product: an infinite ratio outside the band must weigh nothing
        return Multiplier(ratio.masked_fill(~kept, 0.0) if self.settings.weighted else kept, {"kept": kept})

    def measure(self, step: StepTerms, surrogate: Surrogate) -> dict[str, float]:
        return {"icepop_masked_share": 1.0 - float(step.of_part(self.name, "kept").mean())}
