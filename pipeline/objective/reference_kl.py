"""The penalty that keeps the policy near the frozen base model."""

from __future__ import annotations

from torch import Tensor

from pipeline.objective.axes import Granularity
from pipeline.objective.ratios import at_granularity, token_log_ratio

K3_LIMIT = 10.0


def reference_k3(
    trainer_logprobs: Tensor, reference_logprobs: Tensor, granularity: Granularity, response_index: Tensor, num_responses: int
) -> Tensor:
    """The k3 ("low variance") estimate exp(x) - x - 1 with x = reference - trainer log-prob, limited to [-10, 10] (Table 9).

    trainer_logprobs (with gradient), reference_logprobs: [N]. `sequence` takes x as the response's mean, broadcast to its tokens.
    Returns [N] in nats; where the limit binds the gradient is 0. x is limited to +-20 first, which changes no value (k3 is above 10
    there) and keeps the gradient of exp finite. Raises NotANumberError on NaN.
    """
    differences = token_log_ratio(reference_logprobs, trainer_logprobs, "reference_logprobs - trainer_logprobs")
    x = at_granularity(differences, granularity, response_index, num_responses)
    return (x.exp() - x - 1.0).clamp(-K3_LIMIT, K3_LIMIT)
