"""Sequences of different lengths as one flat batch, with the index arrays that the policy's attention needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BUCKET_SIZE = 32  # sequences per attention bucket: the attention weights of 32 x 36 tokens fit a 1 MB L2 cache


@dataclass(frozen=True)
class Bucket:
    """`count` sequences of similar length, padded on the right to `length` for attention; n real tokens.

    rows: int64 [n], the packed rows of the tokens.  row_to_padded: int64 [n], where each stands among count * length.
    padded_to_row: int64 [count * length], the inverse; padding points at its sequence's first token.
    """

    count: int
    length: int
    rows: Tensor
    row_to_padded: Tensor
    padded_to_row: Tensor


@dataclass(frozen=True)
class PackedBatch:
    """B sequences (prompt + response) laid end to end: `total` tokens, of which N are response tokens.

    token_ids, positions: int64 [total], positions counted from 0 in each sequence.  response_lengths: int64 [B].
    scored_rows: int64 [N], for each response token the row whose hidden state predicts it (one before its own).
    scored_ids: int64 [N], the response tokens, response after response.
    routed_experts: int64 [total, layers with experts, k] or None; rows of -1 (the last token of each sequence, which no engine
    forwards) leave the choice to the policy's own router.
    """

    token_ids: Tensor
    positions: Tensor
    response_lengths: Tensor
    scored_rows: Tensor
    scored_ids: Tensor
    routed_experts: Tensor | None
    buckets: tuple[Bucket, ...]


def pack(
    prompt_ids: Sequence[NDArray[np.int32]],
    response_ids: Sequence[NDArray[np.int32]],
    routed_experts: Sequence[NDArray[np.uint8]] | None = None,
) -> PackedBatch:
    """Pack prompts and their responses; routed_experts as recorded: [len(prompt) + len(response) - 1, layers, k] each."""
    parts = [part for pair in zip(prompt_ids, response_ids, strict=True) for part in pair]
    part_lengths = np.array([len(part) for part in parts], dtype=np.int64)
    if len(parts) == 0 or part_lengths.min() == 0:
        raise ValueError(f"cannot pack {len(prompt_ids)} sequences: there must be at least one, with no empty prompt or response")
    lengths = part_lengths.reshape(-1, 2).sum(1)
    starts = np.cumsum(lengths) - lengths
    token_ids = np.concatenate(parts).astype(np.int64)
    is_response = np.repeat(np.arange(len(parts)) % 2 == 1, part_lengths)
    return PackedBatch(
        token_ids=torch.from_numpy(token_ids),
        positions=torch.from_numpy(np.arange(len(token_ids)) - np.repeat(starts, lengths)),
        response_lengths=torch.from_numpy(part_lengths[1::2].copy()),
        scored_rows=torch.from_numpy(np.flatnonzero(is_response) - 1),
        scored_ids=torch.from_numpy(token_ids[is_response]),
        routed_experts=None if routed_experts is None else _pack_experts(routed_experts, starts, lengths),
        buckets=_buckets(starts, lengths),
    )


def _buckets(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> tuple[Bucket, ...]:
    longest_first = np.argsort(-lengths, kind="stable")
    return tuple(
        _bucket(starts[members], lengths[members])
        for members in np.split(longest_first, range(BUCKET_SIZE, len(longest_first), BUCKET_SIZE))
    )


def _bucket(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Bucket:
    columns = np.arange(lengths.max())
    real = columns < lengths[:, None]
    rows = starts[:, None] + np.where(real, columns, 0)
    return Bucket(
        count=len(lengths),
        length=len(columns),
        rows=torch.from_numpy(rows[real]),
        row_to_padded=torch.from_numpy(np.flatnonzero(real)),
        padded_to_row=torch.from_numpy(rows.reshape(-1)),
    )


def _pack_experts(routed_experts: Sequence[NDArray[np.uint8]], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Tensor:
    if len(routed_experts) != len(lengths):
        raise ValueError(f"{len(lengths)} sequences came with routed experts for {len(routed_experts)}")
    for index, rows in enumerate(routed_experts):
        if len(rows) != lengths[index] - 1:
            raise ValueError(
                f"sequence {index} of {lengths[index]} tokens came with {len(rows)} rows of experts, expected {lengths[index] - 1}"
            )
    packed = np.full((int(lengths.sum()), *routed_experts[0].shape[1:]), -1, dtype=np.int64)
    recorded = np.ones(len(packed), dtype=bool)
    recorded[starts + lengths - 1] = False
    packed[recorded] = np.concatenate(routed_experts)
    return torch.from_numpy(packed)
