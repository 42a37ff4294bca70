"""Whether this node can run the cells of a preset: `python -m pipeline doctor`. Every finding says what to do.

Checks are pure of side effects but for small files that are removed again. `--smoke` (pipeline/doctor/smoke.py) goes further and
trains two steps of the tiny policy through the engines and the device that the preset names.
"""

from __future__ import annotations

import fcntl
import math
import os
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from pipeline.artifacts import Layout, read_json, sha256
from pipeline.config import Settings
from pipeline.doctor.finding import GIB, Finding, Status
from pipeline.doctor.packages import examine_interpreters
from pipeline.planning.estimate import plan_run
from pipeline.policy.fetch import check_tensors
from pipeline.policy.hf_folder import MANIFEST, hf_shapes

_SKEW_S = 5.0


def examine(settings: Settings, layout: Layout) -> list[Finding]:
    """All findings about this node for `settings`, in the order in which they are worth mending."""
    findings = [*examine_interpreters(settings), *_folders(layout), *_scratch(settings), *_memory(settings)]
    return [*findings, *_ports(), *_inputs(settings, layout)]


def _folders(layout: Layout) -> Iterator[Finding]:
    """Locks, renames and the clock of the file systems that hold state and results."""
    for folder in dict.fromkeys(_existing(folder) for folder in (layout.state, layout.results)):
        try:
            skew = _try_folder(folder)
        except OSError as error:
            yield Finding(f"folder {folder}", "failed", str(error), "put the checkout on a file system that can lock and rename")
            continue
        free = shutil.disk_usage(folder).free
        yield Finding(
            f"folder {folder}", "ok", f"locks, renames, {free / GIB:.0f} GiB free (`pipeline plan` says how much is needed)"
        )
        if abs(skew) > _SKEW_S:
            yield Finding(f"clock of {folder}", "failed", f"{skew:+.0f} s against this node", "synchronise the clocks (NTP)")


def _existing(folder: Path) -> Path:
    """The folder, or the nearest above it that there is."""
    return next(parent for parent in (folder.resolve(), *folder.resolve().parents) if parent.is_dir())


def _try_folder(folder: Path) -> float:
    """Write, lock and rename a file; returns the file system's clock minus this node's, in seconds."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".doctor", delete=False) as handle:
        path = Path(handle.name)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            handle.write(b"x")
            handle.flush()
            os.fsync(handle.fileno())
            os.replace(path, path.with_suffix(".renamed"))
            path = path.with_suffix(".renamed")
            return path.stat().st_mtime - time.time()
        finally:
            path.unlink(missing_ok=True)


def _scratch(settings: Settings) -> Iterator[Finding]:
    folder = Path(settings.cluster.scratch or tempfile.gettempdir())
    needed = 3 * _weight_bytes(settings)  # the newest version, the one that samples, and one being written
    if not folder.is_dir():
        yield Finding("scratch", "failed", f"{folder} does not exist", "set cluster.scratch to a node-local folder")
        return
    free = shutil.disk_usage(folder).free
    found = f"{folder}: {free / GIB:.1f} GiB free, {needed / GIB:.1f} GiB for three versions of the weights"
    enough = free >= needed
    yield Finding("scratch", "ok" if enough else "failed", found, "" if enough else "free space or set cluster.scratch elsewhere")


def _memory(settings: Settings) -> Iterator[Finding]:
    """Host memory of a node against the plan of the cell that needs most; failed where not even its low end fits."""
    if settings.trainer.engine != "megatron" or not Path("/proc/meminfo").exists():
        return
    available = int(re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(encoding="utf-8"))[1]) * 1024  # type: ignore[index]
    try:
        largest = max(plan_run(settings).cells, key=lambda estimate: estimate.host_bytes.high)
    except ValueError as error:
        yield Finding("host memory", "failed", str(error), "correct the settings")
        return
    low, high = (needed / settings.cluster.num_nodes for needed in largest.host_bytes.pair())
    status: Status = "failed" if available < low else "warning" if available < high else "ok"
    found = (
        f"{available / GIB:.0f} GiB available, {largest.cell.method} at lag {largest.cell.lag} needs {low / GIB:.0f} to "
        f"{high / GIB:.0f} GiB (by the length of responses)"
    )
    yield Finding(
        "host memory", status, found, "" if status == "ok" else "take a larger node or more nodes, or leave such cells out"
    )


def _ports() -> Iterator[Finding]:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", 0))
            yield Finding("loopback ports", "ok", "can be opened")
        except OSError as error:
            yield Finding("loopback ports", "failed", str(error), "allow processes to listen on 127.0.0.1")
    if _host_name_is_unknown():
        yield Finding("host name", "warning", f"{socket.gethostname()} does not resolve", "add it to /etc/hosts")


def _host_name_is_unknown() -> bool:
    try:
        socket.getaddrinfo(socket.gethostname(), None)
    except socket.gaierror:
        return True
    return False


def _inputs(settings: Settings, layout: Layout) -> Iterator[Finding]:
    """What cells read: every file whole. Made by rules that want the network, which a compute node may lack."""
    for name, folder, rule, check in (
        ("problems", layout.problems, "prepare", _check_problems),
        ("base policy", layout.base_policy, "base_policy", _check_policy),
    ):
        target = folder / MANIFEST
        make = f"run `snakemake --cores 2 --config preset={settings.preset} -- {target}`"
        if not target.exists():
            where = f"where the network can be reached (rule {rule} fetches)" if _from_hub(settings, name) else "here"
            yield Finding(name, "warning", f"{folder} is not made yet", f"{make} {where}")
            continue
        try:
            found = check(folder, settings)
        except (OSError, ValueError, KeyError) as error:
            yield Finding(name, "failed", f"{folder}: {error}", f"remove {target} and {make}")
            continue
        yield Finding(name, "ok", f"{folder} is complete: {found}")


def _from_hub(settings: Settings, name: str) -> bool:
    return settings.problems.kind == "dapo_dolci" if name == "problems" else settings.model.path is not None


def _check_problems(folder: Path, _: Settings) -> str:
    """ValueError where a file is missing or is not the one that the manifest describes."""
    files = read_json(folder / MANIFEST)["files"]
    for name, entry in files.items():
        if sha256(folder / f"{name}.parquet") != entry["sha256"]:
            raise ValueError(f"{name}.parquet is not the file that the manifest describes")
    return f"{files['train']['count']:,} to train on"


def _check_policy(folder: Path, settings: Settings) -> str:
    """ValueError where a file is missing, or a shard is shorter than its header says or holds other tensors than `model`'s."""
    names = read_json(folder / MANIFEST)["sha256"]
    absent = sorted(name for name in names if not (folder / name).exists())
    if absent:
        raise ValueError(f"{', '.join(absent)} cannot be opened (a link to a place that this node does not reach?)")
    shards = [folder / name for name in names if name.endswith(".safetensors")]
    check_tensors(folder, shards, settings.model)
    return f"{len(shards)} shards, {sum(shard.stat().st_size for shard in shards) / GIB:.1f} GiB"


def _weight_bytes(settings: Settings) -> int:
    return _bytes_per_weight(settings) * sum(math.prod(shape) for shape in hf_shapes(settings.model).values())


def _bytes_per_weight(settings: Settings) -> int:
    return 2 if settings.megatron.dtype == "bfloat16" else 4
