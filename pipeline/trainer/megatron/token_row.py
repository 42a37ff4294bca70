"""A packed micro-batch as Megatron-core reads it: one row of tokens with sequence boundaries, padded for sequence parallelism.

Sequence parallelism cuts the tokens into equal parts, so their number is a multiple of the tensor ranks; what is added at the end
is a sequence of its own, which nothing attends to and no loss reads. A rank without a micro-batch of its own in a round that others
compute takes EMPTY, which is nothing but such padding.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.trainer.microbatches import MicroBatch


@dataclass(frozen=True)
class TokenRow:
    """token_ids, positions: int64 [1, T] with T a multiple of `parts`.  boundaries: int32, where sequences begin, and T.

    micro: what was packed, None for EMPTY.
    """

    token_ids: Tensor
    positions: Tensor
    boundaries: Tensor
    longest: int
    micro: MicroBatch | None

    @property
    def total(self) -> int:
        return self.token_ids.shape[1]

    @cached_property
    def sequence_parameters(self) -> Any:
        from megatron.core.packed_seq_params import PackedSeqParams

        return PackedSeqParams(
            qkv_format="thd",
            cu_seqlens_q=self.boundaries,
            cu_seqlens_kv=self.boundaries,
            max_seqlen_q=self.longest,
            max_seqlen_kv=self.longest,
        )


def token_row(micro: MicroBatch | None, parts: int, device: torch.device) -> TokenRow:
    """`micro` laid out for `parts` tensor ranks; None: EMPTY."""
    if micro is None:
        token_ids, positions = torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    else:
        token_ids, positions = micro.packed.token_ids, micro.packed.positions
    padding = parts if micro is None else -len(token_ids) % parts
    positions = torch.cat([positions, torch.arange(padding)])
    starts = (positions == 0).nonzero().squeeze(1)
    boundaries = functional.pad(starts, (0, 1), value=len(positions)).to(torch.int32)
    return TokenRow(
        token_ids=functional.pad(token_ids, (0, padding))[None].to(device),
        positions=positions[None].to(device),
        boundaries=boundaries.to(device),
        longest=int(boundaries.diff().max()),
        micro=micro,
    )


def on_device(micro: MicroBatch, device: torch.device) -> MicroBatch:
    """`micro` with what the loss reads on `device`."""
    values = {name: value.to(device) for name, value in vars(micro.tokens).items() if isinstance(value, Tensor)}
    return dataclasses.replace(micro, tokens=dataclasses.replace(micro.tokens, **values))
