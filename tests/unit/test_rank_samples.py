"""Each data rank gets the samples of its own micro-batches, and they make what packing the whole batch would have made of them."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from pipeline.objective.aggregate import Aggregation
from pipeline.records import Response, RolloutBatch, Sample
from pipeline.trainer.megatron.channel import ADDRESS, KEY, ControllerChannel, RankChannel
from pipeline.trainer.megatron.layout import Groups, RankLayout
from pipeline.trainer.megatron.parcel import Arrival, Parcel
from pipeline.trainer.megatron.shares import BatchShare, hand_out, receive
from pipeline.trainer.microbatches import MicroBatch, StepLengths, StepShare, micro_batches, split
from tests.unit.test_megatron_channel import processes

MAX_TOKENS, NUM_STEPS, NUM_RANKS, MESSAGE_BYTES = 40, 2, 6, 700
DATA_SIZES = (1, 2, 3, 6)


def made_up(with_routes: bool = True) -> RolloutBatch:
    """Two steps of five and two micro-batches; a sample of the first is longer than MAX_TOKENS."""
    random = np.random.default_rng(0)
    samples = []
    for number, length in enumerate((20, 9, 30, 85, 3, 12, 13, 11, 1, 4, 8, 2, 7, 3, 1, 5)):
        prompt = random.integers(0, 99, 3).astype(np.int32)
        routes = random.integers(0, 128, (3 + length - 1, 4, 2)).astype(np.uint8)
        response = Response(
            prompt_ids=prompt,
            response_ids=random.integers(0, 99, length).astype(np.int32),
            rollout_logprobs=random.normal(-4.0, 0.6, length).astype(np.float32),
            policy_version=random.integers(0, 9, length).astype(np.int32),
            routed_experts=routes if with_routes else None,
            finish_reason="length" if number % 3 else "stop",
        )
        samples.append(Sample(f"problem-{number // 4}", response, "incorrect", float(number % 2), float(random.normal())))
    return RolloutBatch(0, tuple(samples), 4, 0.0)


def equal(one: Any, other: Any) -> bool:
    """Whether two records hold the same, bit for bit, of the same types."""
    if dataclasses.is_dataclass(one):
        names = [item.name for item in dataclasses.fields(one)]
        return type(one) is type(other) and all(equal(getattr(one, name), getattr(other, name)) for name in names)
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return type(one) is type(other) and one == other


def test_neighbours_are_packed_up_to_the_limit_and_a_longer_sample_alone() -> None:
    assert split([10, 20, 10, 1, 90, 40, 41], 40) == [range(0, 3), range(3, 4), range(4, 5), range(5, 6), range(6, 7)]
    assert split([], 40) == []
    first, second = (split((step.prompts + step.responses).tolist(), MAX_TOKENS) for step in lengths(made_up()))
    assert (len(first), len(second)) == (5, 2) and range(3, 4) in first


@pytest.mark.parametrize("aggregation", ["response_mean", "token_mean"])
@pytest.mark.parametrize("data_size", DATA_SIZES)
def test_shares_make_the_micro_batches_of_the_whole_step(data_size: int, aggregation: Aggregation) -> None:
    batch = made_up()
    whole = [micro_batches(part, MAX_TOKENS, aggregation, True, torch.float32) for part in batch.parts(NUM_STEPS)]
    for data_rank in range(data_size):
        share = BatchShare.of(batch, NUM_STEPS, MAX_TOKENS, data_rank, data_size)
        expected = [step[data_rank::data_size] for step in whole]
        assert equal(share.micro_batches(aggregation, True, torch.float32), expected)
        assert [step.num_micros for step in share.steps] == [5, 2]
        assert equal(share.samples, tuple(sample for step in expected for micro in step for sample in samples_of(batch, micro)))


def samples_of(batch: RolloutBatch, micro: MicroBatch) -> list[Sample]:
    return [next(sample for sample in batch.samples if sample.response is response) for response in micro.responses]


def test_the_weights_carry_the_normaliser_of_the_whole_step() -> None:
    """All shares' weights sum to 1; one share's own lengths alone would give it 1 for itself."""
    shares = [BatchShare.of(made_up(), NUM_STEPS, MAX_TOKENS, rank, 3) for rank in range(3)]
    sums = [sum(float(m.tokens.weights.sum()) for m in s.micro_batches("token_mean", False, torch.float64)[0]) for s in shares]
    assert sum(sums) == pytest.approx(1.0, abs=1e-12) and max(sums) < 0.8


@pytest.mark.parametrize("limit", [1, 63, 64, 700, 1 << 20])
@pytest.mark.parametrize("with_routes", [True, False])
def test_a_parcel_arrives_bit_for_bit_in_messages_up_to_the_limit(limit: int, with_routes: bool) -> None:
    samples = made_up(with_routes).samples
    parcel = Parcel.of(samples, limit)
    messages = list(parcel.messages())
    assert all(len(message) == limit for message in messages[:-1]) and 0 < len(messages[-1]) <= limit
    arrival = Arrival.of(parcel.manifest)
    for space, message in zip(arrival.messages(), messages, strict=True):
        space[:] = np.frombuffer(message, dtype=np.uint8)
    unpacked = arrival.unpack()
    assert equal(unpacked, samples)
    assert all(np.shares_memory(sample.response.rollout_logprobs, arrival.space) for sample in unpacked)


def test_arrays_stay_where_they_are_until_their_message_is_made() -> None:
    samples = made_up().samples
    parcel = Parcel.of(samples)
    arrays = [array for s in samples for array in vars(s.response).values() if isinstance(array, np.ndarray)]
    assert list(parcel.manifest.sizes[1:]) == [array.nbytes for array in arrays]
    assert all(
        np.shares_memory(np.frombuffer(held, np.uint8), array) for held, array in zip(parcel.contents[1:], arrays, strict=True)
    )
    scattered = np.arange(24, dtype=np.int32).reshape(4, 6)[:, ::2]
    arrival = Arrival.of(Parcel.of(scattered).manifest)
    for space, message in zip(arrival.messages(), Parcel.of(scattered).messages(), strict=True):
        space[:] = np.frombuffer(message, dtype=np.uint8)
    assert equal(arrival.unpack(), np.ascontiguousarray(scattered))


def lengths(batch: RolloutBatch) -> list[StepLengths]:
    return [StepLengths.of(part) for part in batch.parts(NUM_STEPS)]


def rank_main(rank: int, folder: str, address: str, step_lengths: list[StepLengths]) -> None:
    """Takes part in one delivery for each of DATA_SIZES, with tensor ranks next to each other as megatron-core has them."""
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", ADDRESS: address, KEY: b"secret".hex()}
    torch.set_num_threads(1)
    channel = RankChannel(rank)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=NUM_RANKS)
    found = []
    for data_size in DATA_SIZES:
        tensor_size = NUM_RANKS // data_size
        place = RankLayout(rank, NUM_RANKS, tensor_size, rank % tensor_size, data_size=data_size, data_rank=rank // tensor_size)
        groups = Groups.join(place, torch.device("cpu"))
        found.append((place, groups.heads, receive(channel, groups, step_lengths, MAX_TOKENS)))
    Path(folder, f"{rank}.pickle").write_bytes(pickle.dumps(found))
    channel.send("done", None)
    dist.barrier()


@dataclass
class Delivery:
    """What every rank received, and (rank, bytes) of each message that the controller sent, for one of DATA_SIZES."""

    received: list[tuple[RankLayout, tuple[int, ...], BatchShare]] = field(default_factory=list)
    sent: list[tuple[int, int]] = field(default_factory=list)


class Counted(ControllerChannel):
    sent: list[tuple[int, int]]

    def send_bytes(self, message: bytearray, rank: int) -> None:
        self.sent.append((rank, len(message)))
        super().send_bytes(message, rank)


@pytest.fixture(scope="module")
def deliveries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Delivery]]:
    folder, batch = tmp_path_factory.mktemp("delivery"), made_up()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed", "pipeline.trainer.megatron.shares"])  # once, not in every rank
    with connection.Listener(("127.0.0.1", 0), authkey=b"secret") as listener:
        address = f"127.0.0.1:{listener.address[1]}"
        ranks = [context.Process(target=rank_main, args=(rank, str(folder), address, lengths(batch))) for rank in range(NUM_RANKS)]
        for rank in ranks:
            rank.start()
        channel = Counted(processes(NUM_RANKS), listener, 120.0, 120.0)  # pyright: ignore[reportArgumentType]
    deliveries = {data_size: Delivery() for data_size in DATA_SIZES}
    for data_size, delivery in deliveries.items():
        channel.sent = delivery.sent
        heads = range(0, NUM_RANKS, NUM_RANKS // data_size)
        hand_out(channel, heads, batch, NUM_STEPS, MAX_TOKENS, MESSAGE_BYTES)
    channel.expect()
    for rank in ranks:
        rank.join()
    channel.close()
    for rank in range(NUM_RANKS):
        for delivery, found in zip(deliveries.values(), pickle.loads((folder / f"{rank}.pickle").read_bytes()), strict=True):
            delivery.received.append(found)
    yield deliveries


@pytest.mark.parametrize("data_size", DATA_SIZES)
def test_each_rank_gets_exactly_its_own_samples(deliveries: dict[int, Delivery], data_size: int) -> None:
    for place, heads, received in deliveries[data_size].received:
        assert heads == tuple(range(0, NUM_RANKS, NUM_RANKS // data_size))
        assert equal(received, BatchShare.of(made_up(), NUM_STEPS, MAX_TOKENS, place.data_rank, data_size))
    identities = [{s.response.response_ids.tobytes() for s in share.samples} for _, _, share in deliveries[data_size].received]
    assert len(set.union(*identities)) == len(made_up().samples)


@pytest.mark.parametrize("data_size", DATA_SIZES)
def test_the_controller_sends_each_sample_once_in_messages_up_to_the_limit(deliveries: dict[int, Delivery], data_size: int) -> None:
    sent = deliveries[data_size].sent
    heads = deliveries[data_size].received[0][1]
    assert {rank for rank, _ in sent} <= set(heads) and max(size for _, size in sent) == MESSAGE_BYTES
    for data_rank, head in enumerate(heads):
        samples = BatchShare.of(made_up(), NUM_STEPS, MAX_TOKENS, data_rank, data_size).samples
        assert sum(size for rank, size in sent if rank == head) == Parcel.of(samples).manifest.starts[-1]


def test_a_data_rank_without_micro_batches_still_knows_the_step() -> None:
    share = BatchShare.of(made_up(), NUM_STEPS, MAX_TOKENS, 5, 6)
    assert share.samples == () and [step.num_micros for step in share.steps] == [5, 2]
    assert share.micro_batches("token_mean", True, torch.float32) == [[], []]
    assert equal(share.steps[0], StepShare((), 5, lengths(made_up())[0].responses))
