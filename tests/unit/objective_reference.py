"""The objective once more, as one would write it from the equations: plain numbers, one response and one token at a time.

Shares nothing with pipeline/objective except the description of a method and of its inputs; it knows the paper's methods and
their baselines. Also holds the examples to compare on.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import torch
from torch import Tensor

from pipeline.config import _merge, load_settings
from pipeline.objective import loss
from pipeline.objective.aggregate import token_weights
from pipeline.objective.methods import METHODS, Method
from pipeline.objective.part import Statistic
from pipeline.objective.parts.dppo import Dppo, DppoSettings
from pipeline.objective.parts.ppo import PpoSettings
from pipeline.objective.parts.sat import Sat, SatSettings
from pipeline.objective.parts.tis import Tis, TisSettings
from pipeline.objective.recipe import Recipe
from pipeline.objective.terms import Tokens
from pipeline.sections import ObjectiveSettings

LENGTHS = [5, 1, 23, 8, 12, 2, 17, 6, 9, 3, 14, 1, 4, 20, 7, 11]
RESPONSES = len(LENGTHS)
CONFIG = Path(__file__).parents[2] / "config.yaml"


@functools.cache
def _paper() -> ObjectiveSettings:
    return load_settings(CONFIG).objective


def objective_settings(**changes: object) -> ObjectiveSettings:
    """The paper's settings with `changes`; with an entropy bonus, so that its term is not idle in tests."""
    values = _merge(_paper().model_dump() | {"entropy_coefficient": 0.01}, changes)
    return ObjectiveSettings.model_validate(values)


def recipe(method: str | Method, settings: ObjectiveSettings | None = None) -> Recipe:
    """A method of METHODS, or another one, with the paper's settings where none are given."""
    return Recipe.of(METHODS[method] if isinstance(method, str) else method, settings or objective_settings())


def statistics_of(of: Recipe, cases: Sequence[Example]) -> dict[str, Tensor]:
    """What the parts of a method reduce, over the tokens of all cases together, as the optimizer step takes them."""
    return loss.statistics_of(of.having(Statistic), [loss.detached_scores(of.method, case.trainer, case.tokens) for case in cases])


@dataclass(frozen=True)
class Example:
    """Trainer log-probs and entropies [N] of an optimizer step with the tokens they belong to."""

    trainer: Tensor
    entropy: Tensor
    tokens: Tokens


def example(seed: int = 0, spread: float = 0.15, aggregation: str = "response_mean", dtype: torch.dtype = torch.float64) -> Example:
    """Responses of 1 to 23 tokens, tokens in random order, one advantage 0; `spread` scales the heavy-tailed drift."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor(LENGTHS)
    count = int(lengths.sum())

    def normal(scale: float, size: int = count) -> Tensor:
        return scale * torch.randn(size, generator=generator, dtype=torch.float64)

    rollout = -2.0 * torch.rand(count, generator=generator, dtype=torch.float64)
    trainer = rollout + normal(spread) * normal(1.0) + normal(spread, RESPONSES).repeat_interleave(lengths)
    advantages = normal(1.0, RESPONSES)
    advantages[3] = 0.0
    vectors = {
        "rollout_logprobs": rollout,
        "advantages": advantages.repeat_interleave(lengths),
        "weights": token_weights(aggregation, lengths, torch.float64).repeat_interleave(lengths),
        "proximal_logprobs": trainer + normal(spread),
        "rollout_weights_logprobs": trainer + normal(spread),
        "reference_logprobs": trainer + normal(2.0),
    }
    order = torch.randperm(count, generator=generator)
    tokens = Tokens(
        response_index=torch.arange(RESPONSES).repeat_interleave(lengths)[order],
        num_responses=RESPONSES,
        **{name: values[order].to(dtype) for name, values in vectors.items()},
    )
    entropy = torch.rand(count, generator=generator, dtype=torch.float64)
    return Example(trainer[order].to(dtype), entropy.to(dtype), tokens)


def members(tokens: Tokens) -> list[list[int]]:
    """The positions of each response's tokens."""
    index = tokens.response_index.tolist()
    return [[i for i, response in enumerate(index) if response == b] for b in range(tokens.num_responses)]


def reference_log_ratios(method: Method, trainer: list[float], tokens: Tokens) -> list[float]:
    """log r of every token: its own difference, or the mean of its response's, limited to +-20."""
    proximal = trainer if tokens.proximal_logprobs is None else tokens.proximal_logprobs.tolist()
    weights_logprobs = [] if tokens.rollout_weights_logprobs is None else tokens.rollout_weights_logprobs.tolist()
    below = {"rollout": tokens.rollout_logprobs.tolist(), "proximal": proximal, "rollout_weights": weights_logprobs}[
        method.denominator
    ]
    return _spread_means([a - b for a, b in zip(trainer, below, strict=True)], method.granularity, tokens)


def _spread_means(values: list[float], granularity: str, tokens: Tokens) -> list[float]:
    result = list(values)
    if granularity == "sequence":
        for positions in members(tokens):
            for i in positions:
                result[i] = math.fsum(values[j] for j in positions) / len(positions)
    return [max(-20.0, min(20.0, value)) for value in result]


def reference_quantile(log_ratios: list[float], alpha: float) -> float:
    ordered = sorted(abs(value) for value in log_ratios)
    return ordered[math.ceil(Fraction(str(alpha)) * len(ordered)) - 1]


def reference_objective(method: Method, settings: ObjectiveSettings, case: Example) -> tuple[float, list[float]]:
    """Loss of a step that is one micro-batch, and its gradient with respect to every trainer log-prob."""
    tokens, trainer = case.tokens, case.trainer.tolist()
    log_ratios = reference_log_ratios(method, trainer, tokens)
    quantile = reference_quantile(log_ratios, settings.section(SatSettings).quantile_alpha) if method.has(Sat) else 0.0
    total, log_ratio_slope, x_slope = 0.0, [0.0] * len(trainer), [0.0] * len(trainer)
    x = _spread_means(
        [a - b for a, b in zip(tokens.reference_logprobs.tolist(), trainer, strict=True)], settings.reference_kl_granularity, tokens
    )
    for i, weight in enumerate(tokens.weights.tolist()):
        surrogate, slope = _surrogate(method, settings, i, log_ratios[i], quantile, case)
        k3 = math.exp(x[i]) - x[i] - 1.0
        k3_slope = settings.reference_kl_coefficient * (math.exp(x[i]) - 1.0) if k3 < 10.0 else 0.0
        penalty = settings.reference_kl_coefficient * min(k3, 10.0) - settings.entropy_coefficient * float(case.entropy[i])
        total += weight * (penalty - surrogate)
        log_ratio_slope[i] = -weight * slope
        x_slope[i] = weight * k3_slope
    ratio_gradient = _through_means(log_ratio_slope, method.granularity, tokens)
    kl_gradient = _through_means(x_slope, settings.reference_kl_granularity, tokens)
    return total, [a - b for a, b in zip(ratio_gradient, kl_gradient, strict=True)]


def _surrogate(
    method: Method, settings: ObjectiveSettings, i: int, log_ratio: float, quantile: float, case: Example
) -> tuple[float, float]:
    """Mask times weight times min(r A, clip(r) A) of token i, and the derivative with respect to its log-ratio."""
    tokens, trainer, rollout = case.tokens, case.trainer.tolist(), float(case.tokens.rollout_logprobs[i])
    advantage, ratio, factor = float(tokens.advantages[i]), math.exp(log_ratio), 1.0
    contraction_low = contraction_high = 1.0
    if method.has(Sat) and quantile > 0.0 and abs(log_ratio) > quantile:
        contraction_low = 1.0 / (1.0 + (max(-log_ratio, 0.0) / quantile) ** 2)
        contraction_high = 1.0 / (1.0 + (max(log_ratio, 0.0) / quantile) ** 2)
    limits = settings.section(PpoSettings)
    low, high = 1.0 - limits.eps_low * contraction_low, 1.0 + limits.eps_high * contraction_high
    clipped = min(max(ratio, low), high)
    surrogate = min(ratio * advantage, clipped * advantage)
    slope = ratio * advantage if ratio * advantage <= clipped * advantage else 0.0
    if method.has(Dppo):
        from_rollout = math.exp(trainer[i] - rollout)  # the mask is against mu, whatever the ratio divides by
        outward = (advantage > 0 and from_rollout > 1) or (advantage < 0 and from_rollout < 1)
        factor = 0.0 if outward and math.exp(rollout) * abs(from_rollout - 1) > settings.section(DppoSettings).delta else 1.0
    if method.has(Tis):
        proximal = trainer[i] if tokens.proximal_logprobs is None else float(tokens.proximal_logprobs[i])
        factor *= min(math.exp(proximal - rollout), settings.section(TisSettings).cap)
    return factor * surrogate, factor * slope


def _through_means(slopes: list[float], granularity: str, tokens: Tokens) -> list[float]:
    """The gradient per token log-prob, given it per log-ratio after granularity."""
    result = list(slopes)
    if granularity == "sequence":
        for positions in members(tokens):
            for i in positions:
                result[i] = math.fsum(slopes[j] for j in positions) / len(positions)
    return result
