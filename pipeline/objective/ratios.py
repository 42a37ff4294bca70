"""Log importance ratios of packed tokens, per token (GRPO) or per response (GSPO)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.objective.axes import Granularity

LOG_RATIO_LIMIT = 20.0  # exp(20) = 4.9e8 is far outside every clip limit and still finite in float32


class NotANumberError(ValueError):
    """Log-probs hold NaN: nothing can be learnt from this micro-batch. The message names the side and the first token."""


def token_log_ratio(numerator: Tensor, denominator: Tensor, name: str) -> Tensor:
    """numerator - denominator, both log-probs [N]; `name` says in an error which pair it was. Raises NotANumberError on NaN."""
    difference = numerator - denominator
    # One reduction instead of a mask: the sum is NaN if an element is (or if +inf meets -inf, which the slow path lets pass).
    if torch.isnan(difference.detach().sum()):
        for side, values in zip(name.split(" - "), (numerator, denominator), strict=True):
            bad = torch.isnan(values.detach()).nonzero().flatten()
            if len(bad):
                raise NotANumberError(
                    f"{side} is NaN for {len(bad)} of {len(values)} tokens, first at token {int(bad[0])}; "
                    "check the learning rate and the engine that computed it"
                )
    return difference


def response_means(values: Tensor, response_index: Tensor, num_responses: int) -> Tensor:
    """Mean of `values` [N] over the tokens of each response: [num_responses], 0 for a response without tokens. Differentiable."""
    counts = torch.bincount(response_index, minlength=num_responses).clamp(min=1)
    return values.new_zeros(num_responses).index_add(0, response_index, values) / counts


def at_granularity(token_log_ratios: Tensor, granularity: Granularity, response_index: Tensor, num_responses: int) -> Tensor:
    """The log-ratio [N] that the method exponentiates: per token, or the response's mean broadcast to its tokens.

    Sequence: log of GSPO's length-normalised ratio (arXiv 2507.18071, Eq. 7), and the gradient flows through the mean. The limit of
    +-20 comes after the mean, so that it cannot bias it: (+30, -30) is a ratio of 1. Beyond the limit the gradient is 0.
    """
    if granularity == "token":
        return _limited(token_log_ratios)
    means = response_means(token_log_ratios, response_index, num_responses)
    return _limited(means).index_select(0, response_index)


def _limited(values: Tensor) -> Tensor:
    return functional.hardtanh(values, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)  # clamp, with a vectorised backward pass
