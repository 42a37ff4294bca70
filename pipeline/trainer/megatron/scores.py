"""Log-probs and entropy of response tokens from hidden states and a head that is cut over the vocabulary.

Logits exist in float32 for `chunk` tokens at a time, once forward and once again backward; every rank of the tensor group computes
its part of the vocabulary and the sums over all of it are reduced, so that all ranks return the same values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import Function, once_differentiable


@dataclass(frozen=True)
class Head:
    """first_id: the token id of this rank's first row of the head.  group: the ranks that share the vocabulary; None: one."""

    first_id: int
    temperature: float
    chunk: int
    group: dist.ProcessGroup | None

    def reduce(self, values: Tensor, operation: Any = dist.ReduceOp.SUM) -> Tensor:
        if self.group is not None and self.group.size() > 1:
            dist.all_reduce(values, operation, group=self.group)
        return values


def response_scores(states: Tensor, weight: Tensor, ids: Tensor, head: Head) -> tuple[Tensor, Tensor]:
    """(log-prob, entropy) [N] of each token under softmax(states weight^T / temperature), float32, both differentiable.

    states: [N, hidden], whose gradient is this rank's part: the group's sum is the whole.  weight: [vocabulary part, hidden].
    """
    return _ResponseScores.apply(states, weight, ids, head)


def _chunks(count: int, size: int) -> Iterator[slice]:
    return (slice(first, min(first + size, count)) for first in range(0, count, size))


def _logits(states: Tensor, weight: Tensor, head: Head) -> Tensor:
    return torch.mm(states, weight.t()).float().div_(head.temperature)


class _ResponseScores(Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, ids: Tensor, head: Head) -> tuple[Tensor, Tensor]:
        logprobs, entropy, normaliser = (states.new_empty(len(ids), dtype=torch.float32) for _ in range(3))
        for rows in _chunks(len(ids), head.chunk):
            logits = _logits(states[rows], weight, head)
            largest = head.reduce(logits.amax(-1), dist.ReduceOp.MAX)
            logits -= largest[:, None]
            chosen, own = _own_ids(ids[rows], head, logits.shape[1])
            picked = logits.gather(1, chosen[:, None]).squeeze(1) * own
            weights = logits.exp()
            total, expected, picked = head.reduce(torch.stack([weights.sum(-1), (weights * logits).sum(-1), picked]))
            log_total = total.log()
            logprobs[rows] = picked - log_total
            entropy[rows] = log_total - expected / total
            normaliser[rows] = log_total + largest
        ctx.save_for_backward(states, weight, ids, normaliser, entropy)
        ctx.head = head
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logprobs: Tensor, grad_entropy: Tensor) -> tuple[Tensor | None, ...]:
        states, weight, ids, normaliser, entropy = ctx.saved_tensors
        head = ctx.head
        grad_states = torch.empty_like(states)
        grad_weight = torch.zeros_like(weight, dtype=torch.float32)
        with_entropy = bool(grad_entropy.any())
        for rows in _chunks(len(ids), head.chunk):
            all_logprobs = _logits(states[rows], weight, head).sub_(normaliser[rows, None])
            probabilities = all_logprobs.exp()
            grad = probabilities * -grad_logprobs[rows, None]
            if with_entropy:
                grad -= probabilities * (all_logprobs + entropy[rows, None]) * grad_entropy[rows, None]
            chosen, own = _own_ids(ids[rows], head, grad.shape[1])
            grad.scatter_add_(1, chosen[:, None], (grad_logprobs[rows] * own)[:, None])
            grad = grad.div_(head.temperature).to(states.dtype)
            grad_states[rows] = grad @ weight
            grad_weight += grad.t() @ states[rows]
        return grad_states, grad_weight.to(weight.dtype), None, None


def _own_ids(ids: Tensor, head: Head, width: int) -> tuple[Tensor, Tensor]:
    """Columns of `ids` in this rank's part, and whether they are there at all."""
    columns = ids - head.first_id
    own = (columns >= 0) & (columns < width)
    return columns.clamp(0, width - 1), own
