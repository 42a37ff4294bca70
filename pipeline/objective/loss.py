"""The one loss body: ratio -> surrogate -> masks and weights -> aggregation, plus the reference KL, on the tokens of a micro-batch.

In: a recipe (a method with its settings), the trainer's log-probs with gradient, and what the rollout says of the same tokens.
Out: this micro-batch's share of the optimizer step's loss (shares add up to the step loss, see aggregate.py) and the detached
per-token terms that diagnostics.py turns into a row of steps.parquet. What a method does of its own stands in its parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import mul

import torch
from torch import Tensor

from pipeline.objective.methods import Method
from pipeline.objective.part import Contraction, Factor, OneProcess, Statistic
from pipeline.objective.ratios import at_granularity, token_log_ratio
from pipeline.objective.recipe import Recipe
from pipeline.objective.reference_kl import reference_k3
from pipeline.objective.terms import Scores, Tokens, TokenTerms


def log_ratio(method: Method, trainer_logprobs: Tensor, tokens: Tokens) -> Tensor:
    """The method's log importance ratio [N], after granularity, with gradient. Raises NotANumberError on NaN."""
    differences = _denominator_log_ratio(method, trainer_logprobs, tokens)
    return at_granularity(differences, method.granularity, tokens.response_index, tokens.num_responses)


def detached_scores(method: Method, trainer_logprobs: Tensor, tokens: Tokens) -> Scores:
    """What a Statistic's contributions are taken from: nothing has a gradient. Raises NotANumberError on NaN."""
    trainer_logprobs = trainer_logprobs.detach()
    return Scores(tokens, trainer_logprobs, log_ratio(method, trainer_logprobs, tokens))


def statistics_of(parts: Iterable[Statistic], scores: Sequence[Scores]) -> dict[str, Tensor]:
    """What `parts` reduce from these micro-batches, where no other process has any of the same scope."""
    return {part.name: part.reduce(torch.cat([part.contributions(s) for s in scores]), OneProcess()) for part in parts}


def objective(
    recipe: Recipe,
    trainer_logprobs: Tensor,
    entropy: Tensor | None,
    tokens: Tokens,
    statistics: Mapping[str, Tensor] | None = None,
) -> tuple[Tensor, TokenTerms]:
    """This micro-batch's share of the step loss (a scalar with gradient) and its detached terms (arXiv 2607.18722, Sec. 3-4).

    loss = -sum of weight * (surrogate x factors - kl_coefficient k3 + entropy_coefficient entropy); factors: masks, weights.
    trainer_logprobs [N]: log pi at the rollout temperature, with gradient.  entropy [N], nats: None where its coefficient is 0.
    statistics: by the name of the part that reduces them.  Raises ValueError for a missing input and NotANumberError on NaN.
    """
    method, settings = recipe.method, recipe.settings
    differences = _denominator_log_ratio(method, trainer_logprobs, tokens)
    log_ratios = at_granularity(differences, method.granularity, tokens.response_index, tokens.num_responses)
    scores = Scores(tokens, trainer_logprobs, log_ratios, statistics or {})
    contractions = [part.contraction(scores) for part in recipe.having(Contraction)]
    gain = recipe.surrogate.surrogate(scores, reduce(mul, contractions) if contractions else None)
    value, k3 = gain.value, None
    factors = {part.name: part.factor(scores) for part in recipe.having(Factor)}
    for factor in factors.values():
        value = value * factor.value
    surrogate = value.detach()
    if tokens.reference_logprobs is not None:
        granularity = settings.reference_kl_granularity
        k3 = reference_k3(trainer_logprobs, tokens.reference_logprobs, granularity, tokens.response_index, tokens.num_responses)
        value = value - settings.reference_kl_coefficient * k3
    if settings.entropy_coefficient > 0.0:
        if entropy is None:
            raise ValueError(f"entropy_coefficient is {settings.entropy_coefficient}, but no entropy was given")
        value = value + settings.entropy_coefficient * entropy
    terms = TokenTerms(
        response_index=tokens.response_index,
        num_responses=tokens.num_responses,
        weights=tokens.weights,
        advantages=tokens.advantages,
        surrogate=surrogate,
        log_ratio=log_ratios.detach(),
        rollout_log_ratio=_rollout_log_ratio(method, differences, trainer_logprobs, tokens),
        clipped=gain.clipped,
        reference_k3=None if k3 is None else k3.detach(),
        entropy=None if entropy is None else entropy.detach(),
        parts={name: factor.terms for name, factor in factors.items()},
        statistics=scores.statistics,
    )
    return -torch.dot(tokens.weights, value), terms


def _denominator_log_ratio(method: Method, trainer_logprobs: Tensor, tokens: Tokens) -> Tensor:
    """log pi minus the log-prob in the method's denominator, per token [N], with gradient."""
    denominators = {
        "rollout": tokens.rollout_logprobs,
        "proximal": trainer_logprobs.detach() if tokens.proximal_logprobs is None else tokens.proximal_logprobs,
        "rollout_weights": tokens.rollout_weights_logprobs,
    }
    denominator = denominators[method.denominator]
    if denominator is None:
        raise ValueError(f"{method.label}: ratio_denominator {method.denominator!r} needs {method.denominator}_logprobs in Tokens")
    return token_log_ratio(trainer_logprobs, denominator, f"trainer_logprobs - {method.denominator}_logprobs")


def _rollout_log_ratio(method: Method, differences: Tensor, trainer_logprobs: Tensor, tokens: Tokens) -> Tensor:
    """d = log pi - log mu per token, detached: the method's own `differences` where they are against the rollout engine."""
    if method.denominator == "rollout":
        return differences.detach()
    return token_log_ratio(trainer_logprobs.detach(), tokens.rollout_logprobs, "trainer_logprobs - rollout_logprobs")
