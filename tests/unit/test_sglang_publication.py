"""What the servers hold after a publication is checked, whatever they claim."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from pipeline.artifacts import Cell
from pipeline.config import load_settings
from pipeline.published_weights import PublishedWeights
from pipeline.rollout.sglang.client import ServerClient
from pipeline.rollout.sglang.publication import NotPublished, Publication, Publisher, Target
from pipeline.rollout.sglang.sender import buckets, flat_bucket


class Running:
    """A process that does not end."""

    exit_code = None


class Held:
    """A server's weights as far as a publication can see them: version, checksum, and the requests made, in order."""

    def __init__(self, **changes: Any) -> None:
        self.version, self.source, self.changes = "none", "", changes
        self.requests: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        body = json.loads(request.content or b"{}")
        self.requests.append((path, body))
        if version := body.get("weight_version"):
            self.version, self.source = self.changes.get("version", version), path
            assert body["flush_cache"]
        checksum = self.changes.get(self.source, "right")
        return httpx.Response(
            200, json={"success": True, "weight_version": self.version, "ranks": [{"per_gpu_checksum": checksum}]}
        )


WEIGHTS = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(5, dtype=torch.bfloat16)}


def publisher(tmp_path: Path) -> Publisher:
    return Publisher(load_settings(overrides={"preset": "rehearsal"}).cell(Cell("grpo", "8", 0)), tmp_path)


def publish_with(
    publisher: Publisher, tmp_path: Path, published: PublishedWeights, route: str, verify: bool | int, *servers: Held
) -> Publication:
    """verify: whether, or by how many of the servers."""
    folder = tmp_path / f"version_{published.version}"
    if not folder.exists():
        published.write(folder)

    async def run() -> Publication:
        targets = [
            Target(ServerClient(f"http://server-{i}", None, 4, httpx.MockTransport(held)), Running())  # type: ignore[arg-type]
            for i, held in enumerate(servers)
        ]
        verifiers = targets[: len(targets) if verify is True else verify]
        done, _ = await publisher.publish(targets, published, folder, route, verifiers)  # type: ignore[arg-type]
        return done

    return asyncio.run(run())


def publish(tmp_path: Path, route: str, verify: bool | int, *servers: Held) -> Publication:
    return publish_with(publisher(tmp_path), tmp_path, PublishedWeights(8, WEIGHTS), route, verify, *servers)


@pytest.mark.parametrize("route", ["disk", "tensor", "distributed"])
def test_a_publication_is_recorded_with_its_size(tmp_path: Path, route: str) -> None:
    held = Held()
    done = publish(tmp_path, route, True, held, Held())
    assert (done.version, done.route, done.num_tensors, done.num_bytes, done.verified) == (8, route, 2, 34, True)
    loads = {"disk": "/update_weights_from_disk", "tensor": "/update_weights_from_tensor"}
    load = loads.get(route, "/update_weights_from_distributed")
    paths = [path for path, _ in held.requests]
    begin, end = ("/begin_weight_update", "/end_weight_update") if route != "disk" else (load, load)
    assert paths.index(begin) <= paths.index(load) <= paths.index(end)


class Counted(dict[str, torch.Tensor]):
    """Weights that count how often each tensor is read."""

    def __init__(self, weights: dict[str, torch.Tensor]) -> None:
        super().__init__(weights)
        self.reads: Counter[str] = Counter()

    def __getitem__(self, name: str) -> torch.Tensor:
        self.reads[name] += 1
        return super().__getitem__(name)


def test_the_tensor_route_reads_each_tensor_once_and_from_the_version_itself(tmp_path: Path) -> None:
    PublishedWeights(8, WEIGHTS).write(tmp_path / "version_8")
    stored = Counted(WEIGHTS)
    done = publish_with(publisher(tmp_path), tmp_path, PublishedWeights(8, stored), "tensor", False, Held())
    assert (done.num_tensors, done.num_bytes) == (2, 34) and stored.reads == {"a": 1, "b": 1}


def test_a_route_that_changes_the_weights_is_found_by_the_load_from_disk(tmp_path: Path) -> None:
    wrong = {"/update_weights_from_tensor": "wrong"}
    with pytest.raises(NotPublished, match="does not carry the weights unchanged"):
        publish(tmp_path, "tensor", True, Held(**wrong), Held(**wrong))
    assert not publish(tmp_path, "tensor", False, Held(**wrong)).verified


def test_one_server_that_reads_the_folder_verifies_for_those_that_cannot(tmp_path: Path) -> None:
    held, remote = Held(), Held()
    assert publish(tmp_path, "tensor", 1, held, remote).verified
    loads = [[path for path, _ in server.requests].count("/update_weights_from_disk") for server in (held, remote)]
    assert loads == [1, 0]
    wrong = {"/update_weights_from_tensor": "wrong"}
    with pytest.raises(NotPublished, match="does not carry the weights unchanged"):
        publish(tmp_path, "tensor", 1, Held(**wrong), Held(**wrong))


def publish_two(tmp_path: Path, factor: float, later_checksum: str) -> Publication:
    """The second of two verified versions, whose tensors are `factor` times those of the first."""
    by, held = publisher(tmp_path), Held()
    first = publish_with(by, tmp_path, PublishedWeights(8, WEIGHTS), "disk", True, held)
    assert first.changed is None
    held.changes["/update_weights_from_disk"] = later_checksum
    later = PublishedWeights(9, {name: factor * tensor for name, tensor in WEIGHTS.items()})
    assert publish_with(by, tmp_path, later, "disk", False, held).changed is None
    return publish_with(by, tmp_path, later, "disk", True, held)


def test_a_checksum_that_new_tensors_do_not_change_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotPublished, match="versions 8 and 9 hold different tensors, but the servers' checksum of both"):
        publish_two(tmp_path, 2.0, "right")


@pytest.mark.parametrize(("factor", "checksum", "changed"), [(1.0, "right", False), (2.0, "another", True)])
def test_whether_the_checksum_changed_is_recorded(tmp_path: Path, factor: float, checksum: str, changed: bool) -> None:
    assert publish_two(tmp_path, factor, checksum).changed is changed


def test_servers_that_disagree_are_found_at_every_publication(tmp_path: Path) -> None:
    with pytest.raises(NotPublished, match="different weights under version 8"):
        publish(tmp_path, "tensor", False, Held(), Held(**{"/update_weights_from_tensor": "wrong"}))


def test_a_server_that_reports_another_version_is_found(tmp_path: Path) -> None:
    with pytest.raises(NotPublished, match="versions \\['8', '7'\\] instead of 8"):
        publish(tmp_path, "disk", False, Held(), Held(version="7"))


def test_buckets_hold_every_tensor_once_aligned_and_within_their_size(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    weights = {
        f"t{i}": torch.randn(i % 7 + 1, 3, generator=generator).to(torch.bfloat16 if i % 3 else torch.float32) for i in range(40)
    }
    PublishedWeights(0, weights).write(tmp_path / "version")
    plan = buckets(tmp_path / "version", bucket_bytes=200)
    assert sorted(entry.name for bucket in plan for entry in bucket) == sorted(weights)
    assert all(sum(entry.num_bytes for entry in bucket) <= 200 for bucket in plan)
    for bucket in plan:
        flat, start = flat_bucket(bucket, torch.device("cpu")), 0
        for entry in bucket:
            part = flat[start : start + entry.num_bytes].view(entry.dtype).view(entry.shape)
            assert start % entry.dtype.itemsize == 0 and torch.equal(part, weights[entry.name])
            start += entry.num_bytes
