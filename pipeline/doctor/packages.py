"""What the interpreters of a run have installed, against the pins in envs/: the controller's, the servers' and the ranks'.

The controller's pins are cpu.txt's; an engine's are those of cluster-gpu.txt, or of cluster-cpu.txt on a CPU - there also the
controller's, which is the same interpreter. A trainer's torch is its own affair: only SGLang asks for one version.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.config import Settings
from pipeline.doctor.finding import GIB, Finding, Status
from pipeline.processes.interpreters import Interpreter, ask, engine_interpreters

OLDEST_GLIBC = (2, 34)  # sglang has no wheels for older ones
ENVIRONMENTS = Path("envs")


def examine_interpreters(settings: Settings) -> Iterator[Finding]:
    """Packages, imports, C library, CUDA compiler and GPUs of every interpreter."""
    engines = engine_interpreters(settings)
    files = ["cluster-cpu.txt"] if settings.cluster.device == "cpu" else ["cluster-gpu.txt", "cluster-gpu-te.txt"]
    pins = {name: version for file in files for name, version in read_pins(ENVIRONMENTS / file).items()}
    alone = all(engine.command != (sys.executable,) for engine in engines)
    controller = Interpreter(
        "controller",
        (sys.executable,),
        ("snakemake", "torch", "numpy", "pydantic", "pyarrow", "tokenizers", "safetensors", "math-verify"),
        ("snakemake-executor-plugin-slurm",) if engines else (),
    )
    torches: dict[str, str | None] = {}
    for interpreter in (controller, *engines):
        try:
            answer = ask(interpreter, devices=interpreter is not controller)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            yield Finding(f"{interpreter.name} interpreter", "failed", f"{interpreter}: {error}", _repair(interpreter))
            continue
        torches[interpreter.name] = answer["packages"].get("torch")
        if interpreter is controller:
            yield from _packages(interpreter, answer, read_pins(ENVIRONMENTS / "cpu.txt") if alone else pins)
            continue
        yield from _packages(interpreter, answer, pins)
        yield from _system(interpreter, answer)
        if settings.cluster.device == "cuda":
            yield from _compiler(interpreter, answer)
            yield from _gpus(interpreter.name, answer, settings.cluster.gpus_per_node)
    if settings.rollout.engine == "sglang" and settings.servers.publication == "tensor":
        yield from _same_torch(torches)


def _packages(interpreter: Interpreter, answer: dict[str, Any], pins: dict[str, str]) -> Iterator[Finding]:
    """The versions. Another version than the pinned one fails an engine; the controller is tested with its own alone."""
    for name in (*interpreter.pinned, *interpreter.present):
        version, wanted = answer["packages"].get(name), pins.get(name) if name in interpreter.pinned else None
        right = version is not None and wanted in (None, version.split("+")[0])
        status: Status = "ok" if right else "warning" if version and interpreter.name == "controller" else "failed"
        remedy = "" if right else f"install {name}{f'=={wanted}' if wanted else ''} there; {_repair(interpreter)}"
        yield Finding(f"{interpreter.name} package {name}", status, f"{version or 'not installed'} ({interpreter})", remedy)
    for module, error in answer["errors"].items():
        yield Finding(f"{interpreter.name} import {module}", "failed", error, _repair(interpreter))


def _repair(interpreter: Interpreter) -> str:
    if interpreter.name == "controller":
        return "make the environment again: `make setup`"
    return f"make its environment (`make engines`, on a CPU `make rehearse`) or correct cluster.{interpreter.name}_python"


def _system(interpreter: Interpreter, answer: dict[str, Any]) -> Iterator[Finding]:
    """The C library that an engine finds: in an image it is the image's."""
    numbers = re.findall(r"\d+", answer["glibc"] or "")
    enough = tuple(map(int, numbers[:2])) >= OLDEST_GLIBC
    remedy = "" if enough else "2.34 or newer is needed: take a newer system, or the image envs/cluster-gpu.def"
    yield Finding(f"{interpreter.name} C library", "ok" if enough else "failed", f"{answer['glibc']}", remedy)


def _compiler(interpreter: Interpreter, answer: dict[str, Any]) -> Iterator[Finding]:
    remedy = "" if answer["nvcc"] else "load a module with CUDA 13 or set CUDA_HOME: SGLang compiles kernels when it starts"
    yield Finding(f"{interpreter.name} nvcc", "ok" if answer["nvcc"] else "warning", answer["nvcc"] or "none", remedy)


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


def _same_torch(torches: dict[str, str | None]) -> Iterator[Finding]:
    """Route tensor hands torch's own handles from the controller to the servers."""
    ours, theirs = ((torches.get(name) or "none").split("+")[0] for name in ("controller", "server"))
    remedy = "" if ours == theirs else "set servers.publication to distributed or disk, or install one torch on both sides"
    yield Finding("torch on both sides", "ok" if ours == theirs else "warning", f"controller {ours}, server {theirs}", remedy)


def read_pins(path: Path) -> dict[str, str]:
    """Package -> version of a requirements file; empty where there is none."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    pairs = (re.match(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;#]+)", line) for line in lines)
    return {normal(match[1]): match[2] for match in pairs if match}


def normal(name: str) -> str:
    """A package's name as indices compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()
