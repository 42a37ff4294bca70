"""Two steps of a tiny policy through the very engines, device and weight publication of a preset, with a kill in between.

What only a run can show - that servers start, ranks find each other, weights arrive and a killed cell continues - is shown in
minutes, before hours are paid for.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pipeline.artifacts import Cell, read_json, write_text
from pipeline.config import CellSettings, Settings, load_settings
from pipeline.doctor.finding import Finding
from pipeline.policy.warm_start import warm_start
from pipeline.problems.prepare import prepare

_STEPS = 2
_TAIL = 1500


def smoke_test(settings: Settings) -> list[Finding]:
    """Train, kill after the first step, continue to the end; one finding that names the first thing that went wrong."""
    with tempfile.TemporaryDirectory(prefix="smoke-", dir=settings.cluster.scratch) as name:
        folder = Path(name)
        tiny = tiny_settings(settings, folder / "scratch")
        prepare(tiny.problem_stage(), folder / "problems")
        warm_start(folder / "problems", tiny.warm_start, tiny.model, 0, folder / "base_policy", lambda _: None)
        cell = tiny.cell(Cell("sat-gspo-r3", "1", 0))
        started = time.monotonic()
        error = _killed_run(cell, folder) or _whole_run(cell, folder)
        if error:
            return [Finding("smoke", "failed", error, "mend what the text names, then run `pipeline doctor --smoke` again")]
        resumed = read_json(folder / "out" / "run.json")["resumed_at"]
        found = f"{_STEPS} steps, killed and continued at step {resumed}, {time.monotonic() - started:.0f} s"
        return [Finding("smoke", "ok", found) if resumed == [1] else Finding("smoke", "failed", found, "look into the log")]


def tiny_settings(settings: Settings, scratch: Path) -> Settings:
    """The rehearsal's policy and layout with the engines, device, precision and publication of `settings`.

    They run on one node, also where a cell of `settings` takes several, and with a scratch folder of their own.
    """
    kept_servers = ("publication", "attention_backend", "memory_fraction")
    kept_megatron = ("dtype", "layer_spec", "distributed_optimizer", "optimizer_offload", "recompute")
    return load_settings(
        overrides={
            "preset": "rehearsal",
            "problems": {"train_count": 64, "evaluation_count": 8, "scoring_count": 8},
            "warm_start": {"steps": 0},
            "rollout": {"engine": settings.rollout.engine, "dtype": settings.rollout.dtype, "prompts_per_step": 4, "group_size": 2},
            "trainer": {"engine": settings.trainer.engine, "steps": _STEPS, "checkpoint_interval": 1},
            "evaluation": {"interval": _STEPS, "num_samples": 1},
            "servers": {name: getattr(settings.servers, name) for name in kept_servers},
            "megatron": {name: getattr(settings.megatron, name) for name in kept_megatron},
            "cluster": settings.cluster.model_dump() | {"scratch": str(scratch), "num_nodes": 1, "scratch_shared": False},
        }
    )


def _killed_run(cell: CellSettings, folder: Path) -> str | None:
    """Train until the first checkpoint is there, then SIGKILL; returns what went wrong."""
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(_command(cell, folder), stdout=log, stderr=subprocess.STDOUT)
        try:
            while process.poll() is None:
                if any((folder / "state").glob("*/checkpoints/step_000001")):
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                    return None
                time.sleep(0.1)
        finally:
            process.kill()
            process.wait()
    return f"ended with exit code {process.returncode} before its first checkpoint:\n{_tail(folder)}"


def _whole_run(cell: CellSettings, folder: Path) -> str | None:
    with open(folder / "log", "wb") as log:
        status = subprocess.run(_command(cell, folder), stdout=log, stderr=subprocess.STDOUT, check=False).returncode
    return f"ended with exit code {status} after the kill:\n{_tail(folder)}" if status else None


def _command(cell: CellSettings, folder: Path) -> list[str]:
    write_text(folder / "settings.json", cell.model_dump_json())
    options = {"settings": "settings.json", "problems": "problems", "base-policy": "base_policy", "state": "state", "out": "out"}
    words = [word for name, value in options.items() for word in (f"--{name}", str(folder / value))]
    return [sys.executable, "-m", "pipeline", "train-cell", *words]


def _tail(folder: Path) -> str:
    return (folder / "log").read_text(encoding="utf-8", errors="replace")[-_TAIL:]
