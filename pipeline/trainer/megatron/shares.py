"""How the samples of a rollout batch reach the ranks: to each only those of its own micro-batches.

Which data rank computes which micro-batches follows from the lengths of all samples, which go to every rank with the command. The
controller hands each data rank's samples to the first of the ranks that share it, over the connection that the two have; that rank
broadcasts every message to the others as it comes in. So a sample leaves the controller once, arrives once at every rank that
computes with it, passes through no rank that does not, and a message that nobody takes is noticed, and the rank named, by the
watch that the controller keeps over every send. Messages go to the data ranks in turn: while one is passed on, the next is sent.
The controller holds one message for each of them at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist

from pipeline.objective.aggregate import Aggregation
from pipeline.records import RolloutBatch, Sample
from pipeline.trainer.megatron.channel import ControllerChannel, RankChannel
from pipeline.trainer.megatron.layout import Groups
from pipeline.trainer.megatron.parcel import MESSAGE_BYTES, Arrival, Parcel
from pipeline.trainer.microbatches import MicroBatch, StepLengths, StepShare


@dataclass(frozen=True)
class BatchShare:
    """What one data rank trains on. steps: its share of each optimizer step.  samples: those of all its shares, in order."""

    steps: tuple[StepShare, ...]
    samples: tuple[Sample, ...]

    @classmethod
    def of(cls, batch: RolloutBatch, num_steps: int, max_tokens: int, data_rank: int = 0, data_size: int = 1) -> BatchShare:
        """Raises ValueError where the batch's groups cannot be split into `num_steps` equal steps."""
        parts = batch.parts(num_steps)
        steps = tuple(StepShare.of(StepLengths.of(part), max_tokens, data_rank, data_size) for part in parts)
        return cls(steps, tuple(sample for share, part in zip(steps, parts, strict=True) for sample in share.chosen(part)))

    def micro_batches(self, aggregation: Aggregation, routing_replay: bool, dtype: torch.dtype) -> list[list[MicroBatch]]:
        """The rank's own micro-batches of each step."""
        remaining = iter(self.samples)
        return [share.micro_batches(remaining, aggregation, routing_replay, dtype) for share in self.steps]


def hand_out(
    channel: ControllerChannel,
    heads: Sequence[int],
    batch: RolloutBatch,
    num_steps: int,
    max_tokens: int,
    message_bytes: int = MESSAGE_BYTES,
) -> None:
    """Send each data rank's samples to its head. Raises EngineDied where a message is not taken within the stall timeout.

    heads: by data rank, the rank that takes its samples.  message_bytes: the most that one message has.
    """
    shares = [BatchShare.of(batch, num_steps, max_tokens, data_rank, len(heads)) for data_rank in range(len(heads))]
    parcels = [Parcel.of(share.samples, message_bytes) for share in shares]
    for head, parcel in zip(heads, parcels, strict=True):
        channel.send(parcel.manifest, head)
    for messages in zip_longest(*(parcel.messages() for parcel in parcels)):
        for head, message in zip(heads, messages, strict=True):
            if message is not None:
                channel.send_bytes(message, head)


def receive(channel: RankChannel, groups: Groups, lengths: Sequence[StepLengths], max_tokens: int) -> BatchShare:
    """This rank's share of what `hand_out` sends. Every rank calls. lengths: of each optimizer step, all samples."""
    place, head = groups.layout, groups.head
    first: list[Any] = [channel.receive() if place.rank == head else None]
    dist.broadcast_object_list(first, src=head, group=groups.sharing)
    arrival = Arrival.of(first[0])
    for message in arrival.messages():
        if place.rank == head:
            channel.receive_into(message)
        dist.broadcast(torch.from_numpy(message), src=head, group=groups.sharing)
    steps = tuple(StepShare.of(step, max_tokens, place.data_rank, place.data_size) for step in lengths)
    channel.progress()  # so that ranks which are still waiting for samples are behind those that have theirs
    return BatchShare(steps, arrival.unpack())
