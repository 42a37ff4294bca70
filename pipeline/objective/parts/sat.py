"""SAT: clip limits that contract where a token has drifted further than a quantile of the step (arXiv 2607.18722, Eqs. 13-20)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from pipeline.columns import Column
from pipeline.objective.axes import Denominator
from pipeline.objective.part import Contraction, Processes, Statistic, Surrogate
from pipeline.objective.refusals import refuse_ratio_one
from pipeline.section import Section

if TYPE_CHECKING:
    from torch import Tensor

    from pipeline.objective.terms import Scores, StepTerms


def sat_contraction(drift: Tensor, quantile: Tensor) -> Tensor:
    """How far SAT contracts a clip limit for each token: c [N] in (0, 1], a constant for the gradient (Eqs. 13-19).

    drift: the log-ratio d [N] without gradient at the method's granularity, signed towards the limit in question: d gives c+ of the
    upper limit, -d gives c- of the lower one, d sign(A) the c of the one limit that can bind. The side is the sign of d's, never
    A's. quantile: q >= 0, a scalar. c = psi(drift; q) = 1 / (1 + (drift/q)^2) < 1/2 where drift > q > 0, otherwise exactly 1.
    Raises ValueError for a negative or NaN quantile.
    """
    from torch.nn import functional

    q = float(quantile)
    if not q >= 0.0:
        raise ValueError(f"the staleness quantile must be >= 0, got {q}; it is a quantile of |log ratio|")
    if q == 0.0:
        return drift.new_ones(drift.shape)
    # in place after the first operation: such passes are bound by memory
    return functional.threshold(drift, q, 0.0).div_(q).square_().add_(1.0).reciprocal_()


class SatSettings(Section):
    quantile_alpha: float = Field(gt=0, le=1)
    quantile_scope: Literal["batch", "microbatch"]


class Sat(Contraction, Statistic):
    name = "sat"
    Settings = SatSettings
    settings: SatSettings
    corrects = True
    columns = (
        Column("sat_quantile", "nats", "q, the quantile of |log ratio| that gates; a mean where micro-batches have their own"),
        Column("sat_gate_share", "share", "tokens with |log ratio| > q"),
        Column("sat_min_contraction", "1", "smallest contraction c of a token"),
        Column("sat_radius_low", "1", "mean eps_low c-, the distance of the lower limit from 1"),
        Column("sat_radius_high", "1", "mean eps_high c+, the distance of the upper limit from 1"),
        Column("sat_newly_clipped_low", "share", "tokens with A < 0 that are clipped and that fixed limits would not clip"),
        Column("sat_newly_clipped_high", "share", "tokens with A > 0 that are clipped and that fixed limits would not clip"),
        Column("sat_fixed_clip_share_low", "share", "tokens with A < 0 that fixed limits would clip"),
        Column("sat_fixed_clip_share_high", "share", "tokens with A > 0 that fixed limits would clip"),
    )

    @classmethod
    def check(cls, label: str, denominator: Denominator, steps_per_rollout: int) -> None:
        refuse_ratio_one(cls.name, label, denominator, steps_per_rollout)

    @property
    def step_wide(self) -> bool:
        return self.settings.quantile_scope == "batch"

    def contributions(self, scores: Scores) -> Tensor:
        return scores.log_ratio.detach().abs()

    def reduce(self, values: Tensor, processes: Processes) -> Tensor:
        from pipeline.objective.quantile import quantile

        return quantile(values, self.settings.quantile_alpha, processes)

    def contraction(self, scores: Scores) -> Tensor:
        drift = scores.tokens.advantages.sign().mul_(scores.log_ratio.detach())
        return sat_contraction(drift, scores.statistic(self.name))

    def measure(self, step: StepTerms, surrogate: Surrogate) -> dict[str, float]:
        import torch

        from pipeline.objective.parts.ppo import Clip, clip_cap

        assert isinstance(surrogate, Clip)  # Method refuses SAT on a surrogate without limits
        limits = [surrogate.limits(term.statistics) for term in step]
        scopes = [(term.log_ratio.double(), term.statistics[self.name].double()) for term in step]
        low = torch.cat([sat_contraction(-log_ratio, q) for log_ratio, q in scopes])
        high = torch.cat([sat_contraction(log_ratio, q) for log_ratio, q in scopes])
        contracted = torch.minimum(low, high)
        # in the loss's own precision: rounded alike, contracted limits clip all that fixed ones do
        fixed = torch.cat(
            [t.log_ratio.exp() * t.advantages > clip_cap(t.advantages, *eps) for t, eps in zip(step, limits, strict=True)]
        )
        fixed_low, fixed_high = step.by_side(fixed)
        newly_low, newly_high = step.by_side(step.joined("clipped") * ~fixed)
        quantiles = torch.cat([q.expand_as(log_ratio) for log_ratio, q in scopes])
        return {
            "sat_quantile": float(scopes[0][1] + (quantiles - scopes[0][1]).mean()),  # exactly q where all have the same
            "sat_gate_share": float((contracted < 1.0).double().mean()),
            "sat_min_contraction": float(contracted.min()),
            "sat_radius_low": float(limits[0][0] * low.mean()),
            "sat_radius_high": float(limits[0][1] * high.mean()),
            "sat_newly_clipped_low": newly_low,
            "sat_newly_clipped_high": newly_high,
            "sat_fixed_clip_share_low": fixed_low,
            "sat_fixed_clip_share_high": fixed_high,
        }
