"""From graded samples to micro-batches: what the policy reads (packed tokens) beside what the loss reads (flat per-token tensors).

The loss weights carry the normaliser of the whole optimizer step, so micro-batches simply add up and their number cannot matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.objective.aggregate import Aggregation, token_weights
from pipeline.objective.loss import Tokens
from pipeline.policy.packing import PackedBatch, pack
from pipeline.records import Response, Sample


@dataclass(frozen=True)
class MicroBatch:
    """packed: the sequences, for the policy's forward pass.  tokens: rollout log-probs, advantages, weights, for the loss.

    responses: what was packed, in order.
    """

    packed: PackedBatch
    tokens: Tokens
    responses: tuple[Response, ...]


def split(lengths: Sequence[int], max_tokens: int) -> list[range]:
    """Indices of neighbouring samples of at most `max_tokens` tokens together; a longer sample gets its own part.

    lengths: prompt and response tokens of each sample.
    """
    parts: list[range] = []
    filled = max_tokens
    for index, length in enumerate(lengths):
        if filled + length > max_tokens:
            parts.append(range(index, index))
            filled = 0
        parts[-1] = range(parts[-1].start, index + 1)
        filled += length
    return parts


@dataclass(frozen=True)
class StepLengths:
    """Tokens of each sample of one optimizer step, in order: all that a process has to know of the samples of others.

    prompts, responses: int32 [n].
    """

    prompts: NDArray[np.int32]
    responses: NDArray[np.int32]

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> StepLengths:
        responses = [sample.response for sample in samples]
        return cls(
            np.array([len(response.prompt_ids) for response in responses], dtype=np.int32),
            np.array([len(response.response_ids) for response in responses], dtype=np.int32),
        )


@dataclass(frozen=True)
class StepShare:
    """The micro-batches of an optimizer step that one data rank computes; they are dealt to data ranks in turn.

    own: the indices within the step of the samples of each own micro-batch.  num_micros: those of the step, over all data ranks.
    response_lengths: int32 [n], of all samples of the step, because the loss weights carry its normaliser.
    """

    own: tuple[range, ...]
    num_micros: int
    response_lengths: NDArray[np.int32]

    @classmethod
    def of(cls, lengths: StepLengths, max_tokens: int, data_rank: int = 0, data_size: int = 1) -> StepShare:
        parts = split((lengths.prompts + lengths.responses).tolist(), max_tokens)
        return cls(tuple(parts[data_rank::data_size]), len(parts), lengths.responses)

    def chosen(self, samples: Sequence[Sample]) -> list[Sample]:
        """The share's samples out of those of the step."""
        return [samples[index] for part in self.own for index in part]

    def micro_batches(
        self, chosen: Iterable[Sample], aggregation: Aggregation, routing_replay: bool, dtype: torch.dtype
    ) -> list[MicroBatch]:
        """The share's samples as micro-batches. chosen: no more of it is taken than belongs to them."""
        weights = token_weights(aggregation, torch.from_numpy(self.response_lengths.astype(np.int64)), dtype=dtype)
        samples = iter(chosen)
        return [
            _micro_batch([next(samples) for _ in part], weights[part.start : part.stop], routing_replay, dtype) for part in self.own
        ]


def micro_batches(
    samples: Sequence[Sample], max_tokens: int, aggregation: Aggregation, routing_replay: bool, dtype: torch.dtype
) -> list[MicroBatch]:
    """The micro-batches of one optimizer step, all of them in this process."""
    return StepShare.of(StepLengths.of(samples), max_tokens).micro_batches(samples, aggregation, routing_replay, dtype)


def _micro_batch(samples: list[Sample], weights: Tensor, routing_replay: bool, dtype: torch.dtype) -> MicroBatch:
    responses = tuple(sample.response for sample in samples)
    experts = [response.routed_experts for response in responses if response.routed_experts is not None]
    lengths = torch.tensor([len(response.response_ids) for response in responses])
    advantages = torch.tensor([sample.advantage for sample in samples], dtype=dtype)
    return MicroBatch(
        packed=pack([r.prompt_ids for r in responses], [r.response_ids for r in responses], experts if routing_replay else None),
        tokens=Tokens(
            rollout_logprobs=torch.from_numpy(np.concatenate([r.rollout_logprobs for r in responses])).to(dtype),
            advantages=advantages.repeat_interleave(lengths),
            response_index=torch.arange(len(samples)).repeat_interleave(lengths),
            num_responses=len(samples),
            weights=weights.repeat_interleave(lengths),
            proximal_logprobs=None,
            rollout_weights_logprobs=None,
            reference_logprobs=None,
        ),
        responses=responses,
    )
