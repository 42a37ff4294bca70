"""The one loss body: ratio x clip rule x correction, plus the reference KL, on the packed tokens of one micro-batch.

In: a method (a row of METHODS), the settings, the trainer's log-probs with gradient, and what the rollout says of the same tokens.
Out: this micro-batch's share of the optimizer step's loss (shares add up to the step loss, see aggregate.py) and the detached
per-token terms that diagnostics.py turns into a row of steps.parquet. A method is a special case of this body, never a copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pipeline.objective.corrections import truncated_importance_weights
from pipeline.objective.methods import Method
from pipeline.objective.ratios import at_granularity, token_log_ratio
from pipeline.objective.reference_kl import reference_k3
from pipeline.objective.trust_region import clip_cap, dppo_masked, sat_contraction

if TYPE_CHECKING:
    from pipeline.sections import ObjectiveSettings


@dataclass(frozen=True)
class Tokens:
    """The N active response tokens of a micro-batch of num_responses whole responses, in any order; constants for the gradient.

    rollout_logprobs [N]: log mu, as the rollout engine reported it.  advantages [N]: its response's advantage.
    response_index int64 [N]: which response, 0 .. num_responses - 1.  weights [N]: weight in the step loss (token_weights).
    proximal_logprobs [N] or None: the trainer's at the start of the update; None: this is the start, they are trainer_logprobs.
    rollout_weights_logprobs [N] or None: the trainer's at the weights that generated the response.
    reference_logprobs [N] or None: the frozen base model's; None: no reference KL.
    """

    rollout_logprobs: Tensor
    advantages: Tensor
    response_index: Tensor
    num_responses: int
    weights: Tensor
    proximal_logprobs: Tensor | None = None
    rollout_weights_logprobs: Tensor | None = None
    reference_logprobs: Tensor | None = None

    def __post_init__(self) -> None:
        shape = self.rollout_logprobs.shape
        for name, values in vars(self).items():
            if isinstance(values, Tensor) and values.shape != shape:
                raise ValueError(f"{name} has shape {list(values.shape)}, rollout_logprobs {list(shape)}; both must be [N]")
        if self.response_index.dtype != torch.int64:
            raise ValueError(f"response_index must be int64, got {self.response_index.dtype}")


@dataclass(frozen=True)
class TokenTerms:
    """What one call of `objective` saw: detached [N] vectors, None where the method has no such thing.

    surrogate: S, with DPPO's mask and the TIS weight applied; the policy loss is -S.  log_ratio: the method's, after granularity.
    rollout_log_ratio: d = log pi - log mu per token, for every method.  clipped, dppo_masked, tis_truncated: bool.
    reference_k3, entropy: nats.  sat_quantile: a scalar, which with log_ratio gives SAT's contractions.
    """

    response_index: Tensor
    num_responses: int
    weights: Tensor
    advantages: Tensor
    surrogate: Tensor
    log_ratio: Tensor
    rollout_log_ratio: Tensor
    clipped: Tensor
    reference_k3: Tensor | None = None
    entropy: Tensor | None = None
    dppo_masked: Tensor | None = None
    tis_weight: Tensor | None = None
    tis_truncated: Tensor | None = None
    sat_quantile: Tensor | None = None


def log_ratio(method: Method, trainer_logprobs: Tensor, tokens: Tokens) -> Tensor:
    """The method's log importance ratio [N], after granularity, with gradient. Raises NotANumberError on NaN."""
    differences = _denominator_log_ratio(method, trainer_logprobs, tokens)
    return at_granularity(differences, method.granularity, tokens.response_index, tokens.num_responses)


def staleness(method: Method, trainer_logprobs: Tensor, tokens: Tokens) -> Tensor:
    """|log_ratio| [N] without gradient: of all micro-batches of the scope together, what staleness_quantile takes."""
    return log_ratio(method, trainer_logprobs.detach(), tokens).abs_()


def objective(
    method: Method,
    settings: ObjectiveSettings,
    trainer_logprobs: Tensor,
    entropy: Tensor | None,
    tokens: Tokens,
    quantile: Tensor | None = None,
) -> tuple[Tensor, TokenTerms]:
    """This micro-batch's share of the step loss (a scalar with gradient) and its detached terms (arXiv 2607.18722, Sec. 3-4).

    loss = -sum of weight * (min(r A, clip(r) A) m w - kl_coefficient k3 + entropy_coefficient entropy); m: DPPO's mask, w: TIS.
    trainer_logprobs [N]: log pi at the rollout temperature, with gradient.  entropy [N], nats: None where its coefficient is 0.
    quantile: SAT's q, a scalar; None for the others.  Raises ValueError for a missing input and NotANumberError on NaN.
    """
    differences = _denominator_log_ratio(method, trainer_logprobs, tokens)
    log_ratios = at_granularity(differences, method.granularity, tokens.response_index, tokens.num_responses)
    contraction = _contraction(method, log_ratios, tokens.advantages, quantile)
    cap = clip_cap(tokens.advantages, settings.eps_low, settings.eps_high, contraction)
    unclipped = log_ratios.exp() * tokens.advantages
    gain = unclipped.clamp(max=cap)  # a ratio exactly at its limit keeps its gradient
    masked = weight = truncated = k3 = None
    if method.clip_rule == "dppo":
        assert settings.dppo_delta is not None, "CellSettings refuses a DPPO cell without delta"
        masked = dppo_masked(trainer_logprobs.detach(), tokens.rollout_logprobs, tokens.advantages, settings.dppo_delta)
        gain = gain * ~masked
    if method.truncated_importance_sampling:
        assert settings.tis_cap is not None, "CellSettings refuses a TIS cell without a cap"
        proximal = _proximal(trainer_logprobs, tokens)
        weight, truncated = truncated_importance_weights(proximal, tokens.rollout_logprobs, settings.tis_cap)
        gain = gain * weight
    surrogate = gain.detach()
    if tokens.reference_logprobs is not None:
        granularity = settings.reference_kl_granularity
        k3 = reference_k3(trainer_logprobs, tokens.reference_logprobs, granularity, tokens.response_index, tokens.num_responses)
        gain = gain - settings.reference_kl_coefficient * k3
    if settings.entropy_coefficient > 0.0:
        if entropy is None:
            raise ValueError(f"entropy_coefficient is {settings.entropy_coefficient}, but no entropy was given")
        gain = gain + settings.entropy_coefficient * entropy
    terms = TokenTerms(
        response_index=tokens.response_index,
        num_responses=tokens.num_responses,
        weights=tokens.weights,
        advantages=tokens.advantages,
        surrogate=surrogate,
        log_ratio=log_ratios.detach(),
        rollout_log_ratio=_rollout_log_ratio(method, differences, trainer_logprobs, tokens),
        clipped=unclipped.detach() > cap,
        reference_k3=None if k3 is None else k3.detach(),
        entropy=None if entropy is None else entropy.detach(),
        dppo_masked=masked,
        tis_weight=weight,
        tis_truncated=truncated,
        sat_quantile=quantile if method.clip_rule == "sat" else None,
    )
    return -torch.dot(tokens.weights, gain), terms


def _contraction(method: Method, log_ratios: Tensor, advantages: Tensor, quantile: Tensor | None) -> Tensor | None:
    """SAT's contraction of the limit that can bind at each token; None for fixed limits."""
    if method.clip_rule != "sat":
        return None
    if quantile is None:
        raise ValueError(f"{method.label} needs SAT's quantile; pass staleness_quantile(staleness(...), quantile_alpha)")
    return sat_contraction(advantages.sign().mul_(log_ratios.detach()), quantile)


def _proximal(trainer_logprobs: Tensor, tokens: Tokens) -> Tensor:
    return trainer_logprobs.detach() if tokens.proximal_logprobs is None else tokens.proximal_logprobs


def _denominator_log_ratio(method: Method, trainer_logprobs: Tensor, tokens: Tokens) -> Tensor:
    """log pi minus the log-prob in the method's denominator, per token [N], with gradient."""
    if method.denominator == "rollout":
        denominator = tokens.rollout_logprobs
    elif method.denominator == "proximal":
        denominator = _proximal(trainer_logprobs, tokens)
    elif tokens.rollout_weights_logprobs is not None:
        denominator = tokens.rollout_weights_logprobs
    else:
        raise ValueError(f"{method.label}: ratio_denominator 'rollout_weights' needs rollout_weights_logprobs in Tokens")
    return token_log_ratio(trainer_logprobs, denominator, f"trainer_logprobs - {method.denominator}_logprobs")


def _rollout_log_ratio(method: Method, differences: Tensor, trainer_logprobs: Tensor, tokens: Tokens) -> Tensor:
    """d = log pi - log mu per token, detached: the method's own `differences` where they are against the rollout engine."""
    if method.denominator == "rollout":
        return differences.detach()
    return token_log_ratio(trainer_logprobs.detach(), tokens.rollout_logprobs, "trainer_logprobs - rollout_logprobs")
