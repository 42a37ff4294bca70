"""The numbers of one optimizer step, from the token terms of all its micro-batches: the objective's part of a row of steps.parquet.

Everything is computed over the step's tokens together, in float64, so that no micro-batching or token order changes a value. Here
stands what every method has; the parts of a method add theirs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from pipeline.columns import Column
from pipeline.objective.quantile import staleness_quantile
from pipeline.objective.ratios import LOG_RATIO_LIMIT
from pipeline.objective.recipe import Recipe
from pipeline.objective.step_columns import COMMON
from pipeline.objective.terms import StepTerms, TokenTerms


def columns_of(recipe: Recipe) -> tuple[Column, ...]:
    """The objective's columns of a row: those that every method has, and those of its parts."""
    return (*COMMON, *recipe.columns)


def step_diagnostics(terms: Sequence[TokenTerms], recipe: Recipe) -> dict[str, float]:
    """The values of `columns_of(recipe)`; NaN where a setting leaves a term out, and NaN throughout for a step without tokens.

    d = log pi - log mu per token, r = the method's ratio, shares and means are over active tokens. Under an exp d is limited to
    +-20.
    """
    values = {column.name: math.nan for column in columns_of(recipe)}
    step = StepTerms(terms)
    if not len(step):
        return values
    values |= _loss_values(step) | _mismatch(step) | _ratios(step)
    for part in recipe.parts:
        values |= part.measure(step, recipe.surrogate)
    return values


def _loss_values(step: StepTerms) -> dict[str, float]:
    weights = step.joined("weights")
    names = {"policy_loss": "surrogate", "reference_kl": "reference_k3", "entropy": "entropy"}
    sums = {key: float(weights @ step.joined(name)) for key, name in names.items() if step.has(name)}
    return sums | {"policy_loss": -sums["policy_loss"]}


def _mismatch(step: StepTerms) -> dict[str, float]:
    d = step.joined("rollout_log_ratio")
    size = d.abs()
    limited = d.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    weights = limited.exp()
    values = {
        "mismatch": float(size.mean()),
        "mismatch_response_mean": float(step.response_means(size).mean()),
        "k1": float(-d.mean()),
        "k3": float((torch.expm1(limited) - limited).mean()),
        "ess": float(weights.sum().square() / (len(d) * weights.square().sum())),
        "abs_d_max": float(size.max()),
    }
    return values | {f"abs_d_p{percent}": float(staleness_quantile(size, percent / 100)) for percent in (50, 90, 99)}


def _ratios(step: StepTerms) -> dict[str, float]:
    ratio = step.joined("log_ratio").exp()
    low, high = step.by_side(step.joined("clipped"))
    return {"ratio_mean": float(ratio.mean()), "ratio_max": float(ratio.max()), "clip_share_low": low, "clip_share_high": high}
