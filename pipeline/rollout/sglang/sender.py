"""Broadcast a published version to the servers: python -P sender.py --folder F --port P --world-size W --group G ...

Rank 0 of a process group in which every tensor-parallel rank of every server takes part. The tensors go out in buckets, each
one flat broadcast; who receives computes the same plan from the same folder. A process of its own, so that the cell's
controller holds no GPU and a broadcast that fails is ended without it. Runs under the servers' interpreter, because both ends
need the same NCCL: it imports torch and safetensors alone.
"""

from __future__ import annotations

import argparse
import datetime
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch

BUCKET_BYTES = 1 << 29
_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


@dataclass(frozen=True)
class Entry:
    """One tensor of a published version and the file that holds it."""

    name: str
    path: Path
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return self.dtype.itemsize * torch.Size(self.shape).numel()


def buckets(folder: Path, bucket_bytes: int = BUCKET_BYTES) -> list[list[Entry]]:
    """The tensors of `folder` in order of broadcast; a tensor larger than a bucket has one of its own.

    Wider dtypes come first, so that every tensor of a flat bucket is aligned.
    """
    entries = sorted(_entries(folder), key=lambda entry: (-entry.dtype.itemsize, entry.name))
    parts: list[list[Entry]] = []
    size = bucket_bytes
    for entry in entries:
        if size + entry.num_bytes > bucket_bytes:
            parts.append([])
            size = 0
        parts[-1].append(entry)
        size += entry.num_bytes
    return parts


def _entries(folder: Path) -> Iterable[Entry]:
    for path in sorted(folder.glob("*.safetensors")):
        try:
            handle = safetensors.safe_open(path, framework="pt")
        except safetensors.SafetensorError as error:
            raise ValueError(f"published weights {path} cannot be read ({error}); delete {folder} and resume the cell") from error
        for name in handle.keys():  # noqa: SIM118 - not a dict
            part = handle.get_slice(name)
            if part.get_dtype() not in _DTYPES:
                raise ValueError(f"{path}: {name} is of dtype {part.get_dtype()}; published weights are {sorted(_DTYPES)}")
            yield Entry(name, path, _DTYPES[part.get_dtype()], tuple(part.get_shape()))


def flat_bucket(bucket: list[Entry], device: torch.device) -> torch.Tensor:
    """uint8 [bytes of the bucket] on `device`."""
    flat = torch.empty(sum(entry.num_bytes for entry in bucket), dtype=torch.uint8, device=device)
    start = 0
    handles: dict[Path, safetensors.safe_open] = {}
    for entry in bucket:
        if entry.path not in handles:
            handles[entry.path] = safetensors.safe_open(entry.path, framework="pt")
        tensor = handles[entry.path].get_tensor(entry.name)
        flat[start : start + entry.num_bytes].copy_(tensor.flatten().view(torch.uint8))
        start += entry.num_bytes
    return flat


def join(host: str, port: int, world_size: int, name: str, backend: str, timeout_s: float) -> Any:
    """The group that the servers join through their `init_weights_update_group`, which uses these internals of torch as well."""
    from torch.distributed import distributed_c10d as c10d
    from torch.distributed.rendezvous import rendezvous

    timeout = datetime.timedelta(seconds=timeout_s)
    store, _, _ = next(rendezvous(f"tcp://{host}:{port}", 0, world_size, timeout=timeout))
    store.set_timeout(timeout)
    prefixed = c10d.PrefixStore(name, store)
    group, _ = c10d._new_process_group_helper(
        world_size, 0, [], c10d.Backend(backend), prefixed, group_name=c10d.GroupName(name), timeout=timeout
    )
    c10d._world.pg_group_ranks[group] = {rank: rank for rank in range(world_size)}
    return group


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--world-size", type=int, required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--backend", choices=("gloo", "nccl"), required=True)
    parser.add_argument("--timeout-s", type=float, required=True)
    options = parser.parse_args()
    device = torch.device("cuda:0" if options.backend == "nccl" else "cpu")
    group = join(options.host, options.port, options.world_size, options.group, options.backend, options.timeout_s)
    for bucket in buckets(options.folder):
        torch.distributed.broadcast(flat_bucket(bucket, device), src=0, group=group)
    signal.pause()  # the receivers may still be reading from this process; who started it ends it


if __name__ == "__main__":
    main()
