"""The interpreters of a run's engines, the servers' and the ranks', and what each has installed.

Each is asked by a small program that it runs itself, so that an environment or an image is seen as its processes will see it.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, replace
from typing import Any

from pipeline.config import CellSettings, Settings

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
