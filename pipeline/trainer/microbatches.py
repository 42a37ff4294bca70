"""From graded samples to micro-batches: what the policy reads (packed tokens) beside what the loss reads (flat per-token tensors).

The loss weights carry the normaliser of the whole optimizer step, so micro-batches simply add up and their number cannot matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
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


def split(samples: Sequence[Sample], max_tokens: int) -> list[list[Sample]]:
    """Neighbouring samples of at most `max_tokens` prompt and response tokens together; a longer sample gets its own part."""
    parts: list[list[Sample]] = []
    filled = max_tokens
    for sample in samples:
        length = len(sample.response.prompt_ids) + len(sample.response.response_ids)
        if filled + length > max_tokens:
            parts.append([])
            filled = 0
        parts[-1].append(sample)
        filled += length
    return parts


def micro_batches(
    samples: Sequence[Sample], max_tokens: int, aggregation: Aggregation, routing_replay: bool, dtype: torch.dtype
) -> list[MicroBatch]:
    """The micro-batches of one optimizer step."""
    lengths = torch.tensor([len(sample.response.response_ids) for sample in samples])
    weights = token_weights(aggregation, lengths, dtype=dtype)
    batches, first = [], 0
    for part in split(samples, max_tokens):
        batches.append(_micro_batch(part, weights[first : first + len(part)], routing_replay, dtype))
        first += len(part)
    return batches


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
