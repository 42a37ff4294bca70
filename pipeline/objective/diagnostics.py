"""The numbers of one optimizer step, from the token terms of all its micro-batches: the objective's part of a row of steps.parquet.

Everything is computed over the step's tokens together, in float64, so that no micro-batching or token order changes a value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pipeline.objective.loss import TokenTerms
from pipeline.objective.ratios import LOG_RATIO_LIMIT, response_means
from pipeline.objective.trust_region import clip_cap, sat_contraction, staleness_quantile

if TYPE_CHECKING:
    from pipeline.sections import ObjectiveSettings

DIAGNOSTICS = (
    *("policy_loss", "reference_kl", "entropy"),
    *("mismatch", "mismatch_response_mean", "k1", "k3", "ess", "abs_d_p50", "abs_d_p90", "abs_d_p99", "abs_d_max"),
    *("ratio_mean", "ratio_max", "clip_share_low", "clip_share_high", "mask_share", "tis_truncated_share", "tis_weight_mean"),
    *("sat_quantile", "sat_gate_share", "sat_min_contraction", "sat_radius_low", "sat_radius_high"),
    *("sat_newly_clipped_low", "sat_newly_clipped_high", "sat_fixed_clip_share_low", "sat_fixed_clip_share_high"),
)


def step_diagnostics(terms: Sequence[TokenTerms], settings: ObjectiveSettings) -> dict[str, float]:
    """The values of DIAGNOSTICS; NaN where the method has no such thing, and NaN throughout for a step without tokens.

    d = log pi - log mu per token, r = the method's ratio, shares and means are over active tokens.
    policy_loss, reference_kl, entropy: summed with the loss's weights, without coefficients.  mismatch: mean |d| (Eq. 52);
    mismatch_response_mean: per response first.  k1 = mean(-d), k3 = mean(e^d - 1 - d): estimates of KL(mu || pi) in nats.
    ess = (sum w)^2 / (N sum w^2), w = e^d.  Under an exp d is limited to +-20.  abs_d_*: inverse-CDF quantiles of |d|.
    clip_share_low, _high: where the clip binds for A < 0, A > 0.  mask_share: DPPO's.  sat_gate_share: |log r| > q.
    sat_fixed_clip_share_low, _high: the clip shares that fixed limits would have.  sat_newly_clipped_low, _high: the rest of them.
    sat_min_contraction: min c.  sat_radius_low, _high: mean eps c.  sat_quantile: q; where micro-batches have their own, the mean.
    """
    values = dict.fromkeys(DIAGNOSTICS, math.nan)
    terms = [term for term in terms if len(term.weights)]
    if not terms:
        return values
    return values | _loss_values(terms) | _mismatch(terms) | _ratios(terms) | _corrections(terms) | _sat(terms, settings)


def _loss_values(terms: list[TokenTerms]) -> dict[str, float]:
    weights = _joined(terms, "weights")
    names = {"policy_loss": "surrogate", "reference_kl": "reference_k3", "entropy": "entropy"}
    sums = {key: float(weights @ _joined(terms, name)) for key, name in names.items() if getattr(terms[0], name) is not None}
    return sums | {"policy_loss": -sums["policy_loss"]}


def _mismatch(terms: list[TokenTerms]) -> dict[str, float]:
    d = _joined(terms, "rollout_log_ratio")
    size = d.abs()
    limited = d.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    weights = limited.exp()
    values = {
        "mismatch": float(size.mean()),
        "mismatch_response_mean": float(_response_means(terms, size).mean()),
        "k1": float(-d.mean()),
        "k3": float((torch.expm1(limited) - limited).mean()),
        "ess": float(weights.sum().square() / (len(d) * weights.square().sum())),
        "abs_d_max": float(size.max()),
    }
    return values | {f"abs_d_p{percent}": float(staleness_quantile(size, percent / 100)) for percent in (50, 90, 99)}


def _response_means(terms: list[TokenTerms], values: Tensor) -> Tensor:
    """Means of `values` (the step's tokens, term after term) over each response of the step that has tokens."""
    index, num_responses = [], 0
    for term in terms:
        index.append(term.response_index + num_responses)
        num_responses += term.num_responses
    responses = torch.cat(index)
    present = torch.bincount(responses, minlength=num_responses) > 0
    return response_means(values, responses, num_responses)[present]


def _ratios(terms: list[TokenTerms]) -> dict[str, float]:
    ratio = _joined(terms, "log_ratio").exp()
    low, high = _by_side(_joined(terms, "clipped"), _joined(terms, "advantages"))
    return {"ratio_mean": float(ratio.mean()), "ratio_max": float(ratio.max()), "clip_share_low": low, "clip_share_high": high}


def _by_side(chosen: Tensor, advantages: Tensor) -> tuple[float, float]:
    """The shares of the tokens that are chosen and have A < 0, and A > 0."""
    side = chosen * advantages
    return float((side < 0.0).double().mean()), float((side > 0.0).double().mean())


def _corrections(terms: list[TokenTerms]) -> dict[str, float]:
    names = {"mask_share": "dppo_masked", "tis_truncated_share": "tis_truncated", "tis_weight_mean": "tis_weight"}
    return {key: float(_joined(terms, name).mean()) for key, name in names.items() if getattr(terms[0], name) is not None}


def _sat(terms: list[TokenTerms], settings: ObjectiveSettings) -> dict[str, float]:
    scopes = [(term.log_ratio.double(), term.sat_quantile.double()) for term in terms if term.sat_quantile is not None]
    if not scopes:
        return {}
    low = torch.cat([sat_contraction(-log_ratio, q) for log_ratio, q in scopes])
    high = torch.cat([sat_contraction(log_ratio, q) for log_ratio, q in scopes])
    contracted = torch.minimum(low, high)
    # in the loss's own precision: rounded alike, contracted limits clip all that fixed ones do
    fixed = torch.cat(
        [t.log_ratio.exp() * t.advantages > clip_cap(t.advantages, settings.eps_low, settings.eps_high) for t in terms]
    )
    advantages = _joined(terms, "advantages")
    fixed_low, fixed_high = _by_side(fixed, advantages)
    newly_low, newly_high = _by_side(_joined(terms, "clipped") * ~fixed, advantages)
    quantiles = torch.cat([q.expand_as(log_ratio) for log_ratio, q in scopes])
    return {
        "sat_quantile": float(scopes[0][1] + (quantiles - scopes[0][1]).mean()),  # exactly q where all have the same
        "sat_gate_share": float((contracted < 1.0).double().mean()),
        "sat_min_contraction": float(contracted.min()),
        "sat_radius_low": float(settings.eps_low * low.mean()),
        "sat_radius_high": float(settings.eps_high * high.mean()),
        "sat_newly_clipped_low": newly_low,
        "sat_newly_clipped_high": newly_high,
        "sat_fixed_clip_share_low": fixed_low,
        "sat_fixed_clip_share_high": fixed_high,
    }


def _joined(terms: list[TokenTerms], name: str) -> Tensor:
    return torch.cat([getattr(term, name) for term in terms]).double()
