"""What the loss reads of a micro-batch's tokens, what parts see of them, and what an optimizer step keeps for its row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pipeline.objective.ratios import response_means, token_log_ratio


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
class Scores:
    """What a part sees: the tokens, and the trainer's log-probs of them under the current weights.

    trainer_logprobs, log_ratio [N]: with gradient; log_ratio is the method's, after granularity.
    statistics: of the whole step (or of the micro-batch, where that is its scope), by the name of their part.
    """

    tokens: Tokens
    trainer_logprobs: Tensor
    log_ratio: Tensor
    statistics: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def proximal_logprobs(self) -> Tensor:
        """The trainer's log-probs [N] at the start of the update, without gradient."""
        given = self.tokens.proximal_logprobs
        return self.trainer_logprobs.detach() if given is None else given

    def proximal_log_ratio(self) -> Tensor:
        """log proximal - log mu, per token [N], without gradient. Raises NotANumberError on NaN."""
        return token_log_ratio(self.proximal_logprobs, self.tokens.rollout_logprobs, "proximal_logprobs - rollout_logprobs")

    def statistic(self, part: str) -> Tensor:
        """The statistic of a part. Raises ValueError where the caller did not take it."""
        if part not in self.statistics:
            raise ValueError(f"part {part} reads a statistic of the step that was not taken; pass it in `statistics`")
        return self.statistics[part]


@dataclass(frozen=True)
class TokenTerms:
    """What one call of `objective` saw: detached [N] vectors, None where the method has no such thing.

    surrogate: S, with masks and weights applied; the policy loss is -S.  log_ratio: the method's, after granularity.
    rollout_log_ratio: d = log pi - log mu per token, for every method.  clipped: bool, where the surrogate's limit binds.
    reference_k3, entropy: nats.  parts: what each part's `measure` wants back.  statistics: as the parts read them.
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
    parts: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    statistics: Mapping[str, Tensor] = field(default_factory=dict)

    def cpu(self) -> TokenTerms:
        """The same in host memory."""
        return TokenTerms(**{name: _on_host(value) for name, value in vars(self).items()})


def _on_host(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.cpu()
    return {name: _on_host(entry) for name, entry in value.items()} if isinstance(value, Mapping) else value


class StepTerms(Sequence[TokenTerms]):
    """The terms of all micro-batches of an optimizer step that have tokens, with what diagnostics ask of them together."""

    def __init__(self, terms: Sequence[TokenTerms]) -> None:
        self._terms = [term for term in terms if len(term.weights)]

    def __len__(self) -> int:
        return len(self._terms)

    def __getitem__(self, index):  # pyright: ignore[reportIncompatibleMethodOverride] - one term or a slice of them
        return self._terms[index]

    def __iter__(self) -> Iterator[TokenTerms]:
        return iter(self._terms)

    def has(self, name: str) -> bool:
        return getattr(self._terms[0], name) is not None

    def joined(self, name: str) -> Tensor:
        """A vector of all tokens of the step, in float64."""
        return torch.cat([getattr(term, name) for term in self._terms]).double()

    def of_part(self, part: str, name: str) -> Tensor:
        """The same of what a part kept."""
        return torch.cat([term.parts[part][name] for term in self._terms]).double()

    def response_means(self, values: Tensor) -> Tensor:
        """Means of `values` (the step's tokens, term after term) over each response of the step that has tokens."""
        index, num_responses = [], 0
        for term in self._terms:
            index.append(term.response_index + num_responses)
            num_responses += term.num_responses
        responses = torch.cat(index)
        present = torch.bincount(responses, minlength=num_responses) > 0
        return response_means(values, responses, num_responses)[present]

    def by_side(self, chosen: Tensor) -> tuple[float, float]:
        """The shares of the tokens that are chosen and have A < 0, and A > 0."""
        side = chosen * self.joined("advantages")
        return float((side < 0.0).double().mean()), float((side > 0.0).double().mean())
