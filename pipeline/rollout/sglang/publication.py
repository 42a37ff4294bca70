"""A published version into every server, by one of three routes, and the proof that it arrived.

disk         each server reads the version's folder
tensor       the tensors go through the node's shared memory, handles to which travel over HTTP
distributed  a sender process broadcasts the folder in a process group with the servers (NCCL, or gloo on a CPU)

The last two run between begin_weight_update and end_weight_update; every route flushes the radix cache, whose keys and values
belong to the old weights. Proof, each time: as many tensors and bytes were sent as for the first version, every server reports the
version, and the servers' checksums agree with each other. Where there are `verifiers`, servers that can read the version's folder,
the checksum after the route must also equal theirs after a load of the same version from disk, and differ from that of the last
verified version unless both hold the same tensors.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import os
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
import torch.multiprocessing
from torch import Tensor

from pipeline.artifacts import sha256_of
from pipeline.config import CellSettings
from pipeline.processes.errors import EngineDied
from pipeline.processes.hosts import LOOPBACK, free_port
from pipeline.processes.process import Process, ProcessSpec
from pipeline.published_weights import PublishedWeights, shards
from pipeline.rollout.sglang import sender
from pipeline.rollout.sglang.client import ServerClient, ServerLost
from pipeline.rollout.sglang.server import collectives, sections

Route = Literal["disk", "tensor", "distributed"]
Checksum = tuple[str, ...]  # one per tensor-parallel rank
T = TypeVar("T")
_POLL_S = 0.2


@dataclass(frozen=True)
class Target:
    """A server that weights are published into."""

    client: ServerClient
    process: Process


@dataclass(frozen=True)
class Publication:
    """One version that reached the servers: how, in how many seconds (verification apart), how much, and how it was checked.

    changed: whether the servers' checksum differs from that of the last verified version; None where nothing was compared.
    """

    version: int
    route: Route
    seconds: float
    num_tensors: int
    num_bytes: int
    verified: bool
    verify_s: float
    changed: bool | None


@dataclass(frozen=True)
class Verified:
    """A verified version, what the servers' checksum of it was, and a digest of its tensors."""

    version: int
    checksum: Checksum
    content: str


class NotPublished(EngineDied):
    """The servers hold something else than the version that was sent; the message says what differs."""


@dataclass(frozen=True)
class Sent:
    """What a route has sent to each server."""

    num_tensors: int = 0
    num_bytes: int = 0

    def __add__(self, other: Sent) -> Sent:
        return Sent(self.num_tensors + other.num_tensors, self.num_bytes + other.num_bytes)


class Publisher:
    """Publishes the versions of one cell. host: where servers on other nodes reach this process; logs: for the sender's output."""

    def __init__(self, settings: CellSettings, logs: Path, host: str = LOOPBACK) -> None:
        servers, cluster = sections(settings)
        self.tensor_parallel, self.timeout_s = servers.tensor_parallel, servers.startup_timeout_s
        self.backend = "nccl" if cluster.device == "cuda" else "gloo"
        self.python = cluster.server_command
        self.gpus = (0,) if cluster.device == "cuda" else ()  # of the training ranks, beside whose memory a bucket has room
        self.logs, self.host, self.environment = logs, host, collectives(cluster)
        self._whole: Sent | None = None  # what the first version held: all versions hold as much
        self._verified: Verified | None = None  # the last one

    async def publish(
        self, targets: Sequence[Target], published: PublishedWeights, folder: Path, route: Route, verifiers: Sequence[Target] = ()
    ) -> tuple[Publication, Checksum]:
        """Bring `published`, which lies in `folder`, into all targets, and return their common checksum as well.

        verifiers: those of the targets that load it from disk for comparison; none: it is not verified.

        Raises ServerLost where a server ends, Refused where one does not take it, NotPublished where one holds something else.
        """
        started = time.perf_counter()
        match route:
            case "disk":
                sent = await self.load_from_disk(targets, published.version, folder)
            case "tensor":
                sent = await self._send_tensors(targets, published, folder)
            case "distributed":
                sent = await self._broadcast(targets, published.version, folder)
        seconds = time.perf_counter() - started
        checksum = await self.agreed_checksum(targets, published.version)
        self._whole = self._whole or sent
        if sent != self._whole or sent.num_tensors != len(published.weights):
            raise NotPublished(
                f"route {route} sent {sent} of version {published.version}, which has {len(published.weights)} tensors; "
                f"the first version sent had {self._whole}"
            )
        if verifiers and route != "disk":
            await self._compare_with_disk(verifiers, published.version, folder, route, checksum)
        changed = await self._compare_with_last(published.version, folder, checksum) if verifiers else None
        verify_s = time.perf_counter() - started - seconds
        verified = bool(verifiers)
        return Publication(
            published.version, route, seconds, sent.num_tensors, sent.num_bytes, verified, verify_s, changed
        ), checksum

    async def _compare_with_disk(
        self, targets: Sequence[Target], version: int, folder: Path, route: Route, checksum: Checksum
    ) -> None:
        await self.load_from_disk(targets, version, folder)
        from_disk = await self.agreed_checksum(targets, version)
        if from_disk != checksum:
            raise NotPublished(
                f"after route {route} the servers' checksum of version {version} is {checksum}, after a load from disk "
                f"{from_disk}: the route does not carry the weights unchanged; set servers.publication to disk"
            )

    async def _compare_with_last(self, version: int, folder: Path, checksum: Checksum) -> bool | None:
        """Whether the checksum differs from the last verified version's. A checksum that never does would prove nothing."""
        last, new = self._verified, Verified(version, checksum, await asyncio.to_thread(_content_digest, folder))
        if last is not None and last.version != version and last.checksum == checksum and last.content != new.content:
            raise NotPublished(
                f"versions {last.version} and {version} hold different tensors, but the servers' checksum of both is {checksum}: "
                "they did not take the new weights, or their checksum does not see them; use the pinned version of SGLang"
            )
        self._verified = new
        return None if last is None else checksum != last.checksum

    async def load_from_disk(self, targets: Sequence[Target], version: int, folder: Path) -> Sent:
        body = {"model_path": str(folder), "weight_version": str(version), "flush_cache": True}
        await self._all(targets, "/update_weights_from_disk", body)
        return _content(folder)

    async def agreed_checksum(self, targets: Sequence[Target], version: int) -> Checksum:
        """The checksum of all targets, which must hold `version`. NotPublished where a version or a checksum differs."""
        held = await _while_running(targets, asyncio.gather(*(target.client.weight_version() for target in targets)))
        if set(held) != {str(version)}:
            raise NotPublished(f"the servers hold versions {held} instead of {version}")
        answers = await self._all(targets, "/weights_checker", {"action": "checksum"})
        checksums = {tuple(rank["per_gpu_checksum"] for rank in answer["ranks"]) for answer in answers}
        if len(checksums) != 1:
            raise NotPublished(f"the servers hold different weights under version {version}: checksums {sorted(checksums)}")
        return checksums.pop()

    async def _send_tensors(self, targets: Sequence[Target], published: PublishedWeights, folder: Path) -> Sent:
        sent, parts = Sent(), sender.buckets(folder)
        await self._all(targets, "/begin_weight_update", {})
        for number, bucket in enumerate(parts, start=1):
            # copies, which must outlive the request: the servers read from the shared memory that holds them
            named = ((entry.name, published.weights[entry.name]) for entry in bucket)
            tensors = [(name, tensor.clone(memory_format=torch.contiguous_format)) for name, tensor in named]
            body = {"serialized_named_tensors": [_shared(tensors)] * self.tensor_parallel}
            await self._all(targets, "/update_weights_from_tensor", body | _finish(published.version, number == len(parts)))
            sent += Sent(len(tensors), sum(tensor.nbytes for _, tensor in tensors))
        await self._all(targets, "/end_weight_update", {})
        return sent

    async def _broadcast(self, targets: Sequence[Target], version: int, folder: Path) -> Sent:
        """One sender process and one process group per publication: a server that was started again needs no special case."""
        group, port, world_size = f"version-{version}", free_port(), 1 + len(targets) * self.tensor_parallel
        process = Process(self.sender_spec(folder, group, port, world_size), self.logs / "sender.log")
        try:
            return await self._receive(targets, process, version, folder, group, port, world_size)
        finally:
            await asyncio.to_thread(process.stop)

    async def _receive(
        self, targets: Sequence[Target], process: Process, version: int, folder: Path, group: str, port: int, world_size: int
    ) -> Sent:
        member = {"master_address": self.host, "master_port": port, "world_size": world_size, "group_name": group}
        joins = (
            target.client.control(
                "/init_weights_update_group",
                member | {"backend": self.backend, "rank_offset": 1 + number * self.tensor_parallel},
                self.timeout_s,
            )
            for number, target in enumerate(targets)
        )
        await _while_running(targets, asyncio.gather(*joins), process)
        await self._all(targets, "/begin_weight_update", {})
        sent, parts = Sent(), sender.buckets(folder)
        for number, bucket in enumerate(parts, start=1):
            body = {
                "names": [entry.name for entry in bucket],
                "dtypes": [str(entry.dtype).removeprefix("torch.") for entry in bucket],
                "shapes": [list(entry.shape) for entry in bucket],
                "group_name": group,
                "load_format": "flattened_bucket",
            }
            await self._all(
                targets, "/update_weights_from_distributed", body | _finish(version, number == len(parts)), sending=process
            )
            sent += Sent(len(bucket), sum(entry.num_bytes for entry in bucket))
        await self._all(targets, "/end_weight_update", {})
        await self._all(targets, "/destroy_weights_update_group", {"group_name": group})
        return sent

    def sender_spec(self, folder: Path, group: str, port: int, world_size: int) -> ProcessSpec:
        options = {
            "--folder": folder,
            "--host": self.host,
            "--port": port,
            "--world-size": world_size,
            "--group": group,
            "--backend": self.backend,
            "--timeout-s": self.timeout_s,
        }
        words = [str(word) for option in options.items() for word in option]
        return ProcessSpec("sender", (*self.python, "-P", sender.__file__, *words), self.environment, self.gpus)

    async def _all(
        self, targets: Sequence[Target], path: str, body: Mapping[str, Any], sending: Process | None = None
    ) -> list[dict[str, Any]]:
        """The answers of all targets to one control request."""
        calls = (target.client.control(path, body, self.timeout_s) for target in targets)
        return await _while_running(targets, asyncio.gather(*calls), sending)


def _content(folder: Path) -> Sent:
    entries = [entry for bucket in sender.buckets(folder) for entry in bucket]
    return Sent(len(entries), sum(entry.num_bytes for entry in entries))


def _content_digest(folder: Path) -> str:
    """One SHA-256 over the tensors' bytes, file by file; not over the files' headers, which name the version."""
    return hashlib.sha256("".join(sha256_of(shards(folder), _data_digest).values()).encode()).hexdigest()


def _data_digest(path: Path) -> str:
    with open(path, "rb") as handle:
        handle.seek(int.from_bytes(handle.read(8), "little"), os.SEEK_CUR)  # a header behind its length precedes the tensors
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _finish(version: int, last: bool) -> dict[str, Any]:
    """The last part names the version and flushes the cache; before it the servers keep their old version."""
    return {"flush_cache": True, "weight_version": str(version)} if last else {"flush_cache": False}


def _shared(tensors: Sequence[tuple[str, Tensor]]) -> str:
    """Move the tensors to shared memory and return handles to them, as SGLang reads them.

    The sharing strategy must be file_system: SGLang's processes cannot receive the file descriptors of the default one.
    """
    buffer, usual = io.BytesIO(), torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy("file_system")
    try:
        ForkingPickler(buffer).dump(list(tensors))
    finally:
        torch.multiprocessing.set_sharing_strategy(usual)
    return base64.b64encode(buffer.getvalue()).decode()


async def _while_running(targets: Sequence[Target], work: Awaitable[T], sending: Process | None = None) -> T:
    """The result of `work`, or ServerLost as soon as a process that it needs ends."""
    task = asyncio.ensure_future(work)
    while not task.done():
        await asyncio.wait([task], timeout=_POLL_S)
        needed = [target.process for target in targets] + ([sending] if sending is not None else [])
        ended = [process for process in needed if process.exit_code is not None]
        if ended and not task.done():
            task.cancel()
            await asyncio.wait([task])
            raise ServerLost(ended[0].death())
    return task.result()
