"""Whether this node can run the cells of a preset: `python -m pipeline doctor`. Every finding says what to do.

Checks are pure of side effects but for small files that are removed again. `--smoke` (pipeline/launch/smoke.py) goes further and
trains two steps of the tiny policy through the engines and the device that the preset names.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import json
import math
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pipeline.artifacts import Layout
from pipeline.config import Settings
from pipeline.planning.estimate import plan_run
from pipeline.policy.checkpoint import MANIFEST, hf_shapes

Status = Literal["ok", "warning", "failed"]
GIB = 2**30
_SKEW_S = 5.0
# what an interpreter is asked: the versions of its packages and, where torch sees any, its GPUs
_PROBE = """
import importlib.metadata as m, json, sys
wanted = json.loads(sys.argv[1]); found = {}
for name in wanted:
    try: found[name] = m.version(name)
    except m.PackageNotFoundError: found[name] = None
gpus, nccl = [], None
if found.get("torch"):
    import torch
    if torch.cuda.is_available():
        gpus = [[torch.cuda.get_device_name(i), *torch.cuda.mem_get_info(i)] for i in range(torch.cuda.device_count())]
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
print(json.dumps({"packages": found, "gpus": gpus, "nccl": nccl}))
"""
ENGINE_PACKAGES = {"server": ("sglang", "torch", "transformers"), "trainer": ("megatron-core", "torch", "safetensors")}


@dataclass(frozen=True)
class Finding:
    """One check: what was found, and for anything but "ok" what to do about it."""

    check: str
    status: Status
    found: str
    remedy: str = ""


def examine(settings: Settings, layout: Layout) -> list[Finding]:
    """All findings about this node for `settings`, in the order in which they are worth mending."""
    findings = [*_pipeline(), *_interpreters(settings), *_folders(layout), *_scratch(settings), *_memory(settings)]
    return [*findings, *_ports(), *_inputs(settings, layout)]


def _pipeline() -> Iterator[Finding]:
    for name in ("snakemake", "pydantic", "pyarrow", "lm-eval"):
        try:
            yield Finding(f"package {name}", "ok", importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Finding(f"package {name}", "failed", f"not installed for {sys.executable}", "install the environment in envs/")


def _interpreters(settings: Settings) -> Iterator[Finding]:
    """The engines' packages at their pinned versions, and the GPUs that their torch sees."""
    pinned = _pins(Path("envs/cluster-cpu.txt" if settings.cluster.device == "cpu" else "envs/cluster-gpu.txt"))
    needed = {"server": settings.rollout.engine == "sglang", "trainer": settings.trainer.engine == "megatron"}
    pythons = {"server": settings.cluster.server_python, "trainer": settings.cluster.trainer_python}
    for role, names in ENGINE_PACKAGES.items():
        if not needed[role]:
            continue
        python = pythons[role] or sys.executable
        try:
            answer = _ask(python, names)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            yield Finding(f"{role} interpreter", "failed", f"{python}: {error}", f"correct cluster.{role}_python")
            continue
        for name, version in answer["packages"].items():
            wanted = pinned.get(name)
            right = version is not None and wanted in (None, version.split("+")[0])
            found = f"{version or 'not installed'} ({python})"
            yield Finding(
                f"{role} package {name}",
                "ok" if right else "failed",
                found,
                "" if right else f"install {name}=={wanted or 'any version'}",
            )
        if settings.cluster.device == "cuda":
            yield from _gpus(role, answer, settings.cluster.gpus_per_node)


def _gpus(role: str, answer: dict[str, Any], wanted: int) -> Iterator[Finding]:
    gpus = answer["gpus"]
    names = ", ".join(sorted({name for name, _, _ in gpus})) or "none"
    enough = len(gpus) >= wanted
    remedy = "" if enough else "ask for GPUs (srun --gres=gpu:8), check the driver, or lower cluster.gpus_per_node"
    yield Finding(f"{role} GPUs", "ok" if enough else "failed", f"{len(gpus)} of {wanted} ({names})", remedy)
    for number, (_, free, total) in enumerate(gpus):
        if free < 0.95 * total:
            found = f"{free / GIB:.0f} of {total / GIB:.0f} GiB free"
            yield Finding(f"{role} GPU {number} memory", "failed", found, "end the process that holds it (nvidia-smi shows which)")
    if gpus:
        yield Finding(f"{role} NCCL", "ok" if answer["nccl"] else "failed", str(answer["nccl"]), "install torch with NCCL")


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
    for name, folder, target in (
        ("problems", layout.problems, layout.problems / "manifest.json"),
        ("base policy", layout.base_policy, layout.base_policy / MANIFEST),
    ):
        made = target.exists()
        remedy = "" if made else f"run `snakemake --config preset={settings.preset} -- {target}` where the network can be reached"
        yield Finding(name, "ok" if made else "warning", f"{folder} {'is complete' if made else 'is not made yet'}", remedy)


def _weight_bytes(settings: Settings) -> int:
    return _bytes_per_weight(settings) * sum(math.prod(shape) for shape in hf_shapes(settings.model).values())


def _bytes_per_weight(settings: Settings) -> int:
    return 2 if settings.megatron.dtype == "bfloat16" else 4


def _ask(python: str, names: tuple[str, ...]) -> dict[str, Any]:
    done = subprocess.run([python, "-c", _PROBE, json.dumps(names)], capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise ValueError(f"ended with exit code {done.returncode}: {done.stderr.strip()[-300:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _pins(path: Path) -> dict[str, str]:
    """Package -> version of a requirements file; empty where there is none."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    pairs = (re.match(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;#]+)", line) for line in lines)
    return {match[1].lower().replace("_", "-"): match[2] for match in pairs if match}
