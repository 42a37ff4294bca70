"""How the samples of a batch reach the trainer's ranks: the trainer's way, beside handing all of them to every rank.

    PYTHONPATH=. python -m benchmarks.rank_samples                             # 2.5 GB of samples, two data ranks
    PYTHONPATH=. python -m benchmarks.rank_samples --data 2 --tensor 2 --ways shares
    PYTHONPATH=. python -m benchmarks.rank_samples --tokens 32768 --ways shares

Samples are made up, with routes of the policy of preset full (384 bytes a token). Ranks are processes of their own, joined by
gloo; no policy is built. `shares` is what the trainer does: hand_out, receive, and the rank's own micro-batches. `all` is what is
usual: pickles of 256 samples to rank 0, from there to all ranks, each packs the batch and takes its own part. Memory is what a
process needed at its peak beyond what it had before, its samples included; seconds are those until every rank has its
micro-batches and their checksum. Both ways must end with the same micro-batches, bit for bit. The routes of the controller's
samples are windows of one array, so it starts small. Linux alone tells the peaks.
"""

from __future__ import annotations

import argparse
import os
import pickle
import secrets
import sys
import tempfile
import time
import zlib
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.routed_experts import forget_peak, peak_bytes
from pipeline.config import load_settings
from pipeline.processes.hosts import free_port
from pipeline.processes.process import Process, ProcessSpec, stop_all
from pipeline.records import Response, RolloutBatch, Sample
from pipeline.trainer.megatron.channel import ADDRESS, KEY, ControllerChannel, RankChannel
from pipeline.trainer.megatron.layout import Groups, RankLayout
from pipeline.trainer.megatron.shares import hand_out, receive
from pipeline.trainer.microbatches import MicroBatch, StepLengths, micro_batches

MAX_TOKENS, GROUP, PATIENCE_S, SAMPLES_PER_MESSAGE = 32768, 8, 600.0, 256


@dataclass(frozen=True)
class Found:
    """Of one process: bytes at its peak, bytes received and in its largest message, and a checksum of its micro-batches."""

    peak: int
    received: int
    largest: int
    checksum: int


def made_up(gigabytes: float, tokens: int) -> RolloutBatch:
    """Responses of half to one and a half times `tokens` tokens, whose routes are windows of one array."""
    model, random = load_settings(overrides={"preset": "full"}).model, np.random.default_rng(0)
    longest = tokens + tokens // 2
    routes = random.integers(0, 128, (3 * longest, model.num_layers, model.num_experts_per_token), dtype=np.uint8)
    samples, filled = list[Sample](), 0
    while filled < gigabytes * 1e9 or len(samples) % GROUP:
        prompt, length, first = (
            int(random.integers(50, 400)),
            int(random.integers(tokens // 2, longest)),
            int(random.integers(longest)),
        )
        response = Response(
            random.integers(0, model.vocab_size, prompt).astype(np.int32),
            random.integers(0, model.vocab_size, length).astype(np.int32),
            -random.random(length, dtype=np.float32),
            np.zeros(length, dtype=np.int32),
            routes[first : first + prompt + length - 1],
            "stop",
        )
        samples.append(Sample(str(len(samples) // GROUP), response, "correct", 1.0, float(random.normal())))
        filled += sum(array.nbytes for array in vars(response).values() if isinstance(array, np.ndarray))
    return RolloutBatch(0, tuple(samples), GROUP, 0.0)


class Counted(ControllerChannel):
    largest = 0

    def send_bytes(self, message: bytearray, rank: int) -> None:
        self.largest = max(self.largest, len(message))
        super().send_bytes(message, rank)


def take_all(channel: RankChannel, groups: Groups, count: int) -> tuple[list[MicroBatch], int]:
    """The rank's micro-batches, where everything goes to everybody, and the bytes of the samples that it has."""
    samples = list[Sample]()
    while len(samples) < count:
        message: list[Any] = [channel.receive() if groups.layout.rank == 0 else None]
        dist.broadcast_object_list(message, src=0, group=groups.control)
        samples += message[0]
    step = micro_batches(samples, MAX_TOKENS, "response_mean", routing_replay=False, dtype=torch.float32)
    return step[groups.layout.data_rank :: groups.layout.data_size], array_bytes(samples)


def take_share(channel: RankChannel, groups: Groups, lengths: StepLengths) -> tuple[list[MicroBatch], int]:
    share = receive(channel, groups, [lengths], MAX_TOKENS)
    (own,) = share.micro_batches("response_mean", routing_replay=False, dtype=torch.float32)
    return own, array_bytes(share.samples)


def array_bytes(samples: Any) -> int:
    return sum(array.nbytes for s in samples for array in vars(s.response).values() if isinstance(array, np.ndarray))


def checksum(micros: list[MicroBatch]) -> int:
    found = 0
    for micro in micros:
        routes = [response.routed_experts for response in micro.responses]
        for array in (micro.packed.token_ids, micro.tokens.weights, micro.tokens.rollout_logprobs, *routes):
            found = zlib.crc32(np.ascontiguousarray(array), found)
    return found


def rank_main(way: str, data_size: int) -> None:
    rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    channel = RankChannel(rank)
    dist.init_process_group("gloo")
    tensor_size = num_ranks // data_size
    place = RankLayout(rank, num_ranks, tensor_size, rank % tensor_size, data_size=data_size, data_rank=rank // tensor_size)
    groups = Groups.join(place, torch.device("cpu"))
    channel.send("done", None)
    lengths: StepLengths = channel.receive()
    forget_peak()
    before = peak_bytes()
    micros, received = take_share(channel, groups, lengths) if way == "shares" else take_all(channel, groups, len(lengths.prompts))
    peak = peak_bytes() - before
    channel.send("done", (rank, Found(peak, received, 0, checksum(micros))))
    channel.receive()


def measure(way: str, batch: RolloutBatch, data_size: int, tensor_size: int) -> tuple[float, dict[str, Found]]:
    """Seconds, and what each process found, by its name."""
    num_ranks, key = data_size * tensor_size, secrets.token_bytes(32)
    command = (sys.executable, "-m", "benchmarks.rank_samples", "--rank-of", way, "--data", str(data_size))
    messages = [batch.samples[first : first + SAMPLES_PER_MESSAGE] for first in range(0, len(batch.samples), SAMPLES_PER_MESSAGE)]
    largest = max(len(pickle.dumps(message)) for message in messages) if way == "all" else 0
    with tempfile.TemporaryDirectory() as folder, connection.Listener(("127.0.0.1", 0), authkey=key) as listener:
        shared = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": str(num_ranks),
            "GLOO_SOCKET_IFNAME": "lo",
        }
        shared |= {ADDRESS: f"127.0.0.1:{listener.address[1]}", KEY: key.hex(), "OMP_NUM_THREADS": "1"}
        specs = [ProcessSpec(f"rank-{rank}", command, shared | {"RANK": str(rank)}) for rank in range(num_ranks)]
        processes = [Process(spec, Path(folder, spec.name)) for spec in specs]
        try:
            channel = Counted(processes, listener, PATIENCE_S, PATIENCE_S)
            for _ in processes:
                channel.expect()
            forget_peak()
            before, started = peak_bytes(), time.perf_counter()
            channel.send_to_all(StepLengths.of(batch.samples))
            if way == "shares":
                hand_out(channel, range(0, num_ranks, tensor_size), batch, 1, MAX_TOKENS)
                largest = channel.largest
            else:
                for message in messages:
                    channel.send(message)
            found = dict(channel.expect()[1] for _ in processes)
            seconds = time.perf_counter() - started
            controller = Found(peak_bytes() - before, 0, largest, 0)
            return seconds, {"controller": controller} | {f"rank {rank}": found[rank] for rank in sorted(found)}
        finally:
            stop_all(processes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.5)
    parser.add_argument("--tokens", type=int, default=2048, help="of a response, on average")
    parser.add_argument("--data", type=int, default=2, help="data ranks")
    parser.add_argument("--tensor", type=int, default=1, help="ranks that share a data rank")
    parser.add_argument("--ways", nargs="+", choices=("all", "shares"), default=("all", "shares"))
    parser.add_argument("--rank-of", choices=("all", "shares"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of:
        return rank_main(options.rank_of, options.data)
    batch = made_up(options.gigabytes, options.tokens)
    print(f"{len(batch.samples)} samples, {array_bytes(batch.samples) / 1e9:.2f} GB; {options.data} x {options.tensor} ranks")
    checksums = set()
    for way in options.ways:
        seconds, found = measure(way, batch, options.data, options.tensor)
        checksums.add(tuple(process.checksum for process in found.values()))
        total = sum(process.peak for process in found.values()) / 1e9
        print(f"{way}: {seconds:.1f} s, largest message {found['controller'].largest / 1e6:.0f} MB, peaks together {total:.2f} GB")
        for name, process in found.items():
            print(f"  {name:12s}received {process.received / 1e9:5.2f} GB   peak {process.peak / 1e9:5.2f} GB")
    if len(options.ways) > 1:
        print("the same micro-batches, bit for bit" if len(checksums) == 1 else "DIFFERENT micro-batches")


if __name__ == "__main__":
    main()
