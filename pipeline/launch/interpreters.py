"""What the interpreters of a run have installed, against the pins in envs/: the controller's, the servers' and the ranks'.

Each is asked by a small program that it runs itself, so that an environment or an image is seen as its processes will see it. The
controller's pins are cpu.txt's; an engine's are those of cluster-gpu.txt, or of cluster-cpu.txt on a CPU - there also the
controller's, which is the same interpreter. A trainer's torch is its own affair: only SGLang asks for one version.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.config import CellSettings, Settings
from pipeline.launch.finding import GIB, Finding, Status

OLDEST_GLIBC = (2, 34)  # sglang has no wheels for older ones
ENVIRONMENTS = Path("envs")
_TIMEOUT_S = 600  # the first import of an engine from a network file system
_PROBE = """
import importlib, importlib.metadata as m, json, os, shutil, subprocess, sys
names, modules, devices = json.loads(sys.argv[1])
found, errors, gpus, nccl, nvcc = {}, {}, [], None, None
for name in names:
    try: found[name] = m.version(name)
    except m.PackageNotFoundError: found[name] = None
for name in modules:
    try: importlib.import_module(name)
    except Exception as error: errors[name] = f"{type(error).__name__}: {error}"[:300]
if devices and found.get("torch"):
    import torch
    if torch.cuda.is_available():
        gpus = [[torch.cuda.get_device_name(i), *torch.cuda.mem_get_info(i)] for i in range(torch.cuda.device_count())]
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
compiler = os.path.join(home, "bin", "nvcc") if home else shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
if os.access(compiler, os.X_OK): nvcc = compiler
print(json.dumps({"packages": found, "errors": errors, "gpus": gpus, "nccl": nccl, "nvcc": nvcc,
                  "glibc": os.confstr("CS_GNU_LIBC_VERSION"), "python": sys.version.split()[0]}))
"""


@dataclass(frozen=True)
class Interpreter:
    """What runs a part of the run. name: controller, server or trainer.  command: the words before Python's own arguments.

    pinned: packages that must have the version in envs/.  present: packages of any version.  modules: what must be importable.
    """

    name: str
    command: tuple[str, ...]
    pinned: tuple[str, ...]
    present: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join(self.command)


def engine_interpreters(settings: Settings | CellSettings) -> list[Interpreter]:
    """The interpreters of the engines that the settings name; lm-eval and its grader run where SGLang does."""
    cluster, found = settings.cluster, []
    if settings.rollout.engine == "sglang" and cluster:
        pinned = ("sglang", "torch", "transformers", "lm-eval", "math-verify")
        found.append(Interpreter("server", cluster.server_command, pinned, ("safetensors",), ("sglang", "lm_eval")))
    if settings.megatron and settings.trainer.engine == "megatron" and cluster:
        transformer = settings.megatron.layer_spec == "transformer_engine"
        pinned = ("megatron-core", *(["transformer-engine"] if transformer else []))
        modules = ("megatron.core", *(["transformer_engine.pytorch"] if transformer else []))
        found.append(
            Interpreter("trainer", cluster.trainer_command, pinned, ("torch", "numpy", "pydantic", "safetensors"), modules)
        )
    return found


def engine_packages(settings: CellSettings) -> dict[str, str]:
    """The versions that a cell's engines have, as "sglang (server)"; of an interpreter that does not answer, why."""
    found: dict[str, str] = {}
    for interpreter in engine_interpreters(settings):
        try:
            packages = ask(replace(interpreter, modules=()), devices=False)["packages"]
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            packages = {"all": f"not known: {error}"}
        found |= {f"{name} ({interpreter.name})": version for name, version in packages.items() if version}
    return found


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


def ask(interpreter: Interpreter, *, devices: bool) -> dict[str, Any]:
    """The probe's answer, with its GPUs if `devices`.

    ValueError where it ends by an error or says something else, OSError where there is no such command.
    """
    names = [*interpreter.pinned, *interpreter.present]
    question = json.dumps([names, interpreter.modules, devices])
    command = [*interpreter.command, "-c", _PROBE, question]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode or not done.stdout.strip():
        raise ValueError(f"ended with exit code {done.returncode}: {done.stderr.strip()[-300:]}")
    return json.loads(done.stdout.splitlines()[-1])


def read_pins(path: Path) -> dict[str, str]:
    """Package -> version of a requirements file; empty where there is none."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    pairs = (re.match(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;#]+)", line) for line in lines)
    return {normal(match[1]): match[2] for match in pairs if match}


def normal(name: str) -> str:
    """A package's name as indices compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()
