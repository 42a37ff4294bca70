"""The processes that a cell starts beside itself: servers and training ranks.

A ProcessSpec says what runs where; a Process runs it under pipeline/processes/guard.py, which ends it with all its descendants when
the starter ends or closes it. On another node of the job the guard runs in a SLURM step, whose srun passes on the starter's end of
the pipe. Each process writes a log of its own, whose tail goes into the message when it dies.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.processes import guard
from pipeline.processes.errors import EngineDied
from pipeline.processes.hosts import THIS_HOST, Host

_TAIL_LINES, _TAIL_BYTES = 15, 1 << 16
# a step inherits this process's CPUs and tasks from the rest of SLURM's variables, which is another step's business
_STEP_READS = ("SLURM_JOB_ID", "SLURM_CONF", "SLURM_CLUSTER_NAME")


@dataclass(frozen=True)
class ProcessSpec:
    """One process: name ("server-0", "rank-2"), command line, environment beside the starter's, and the GPUs it may see: their
    positions among those that the starter sees, on another node among all.

    host: the machine that it runs on.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    gpus: tuple[int, ...] = ()
    host: Host = THIS_HOST


class Process:
    """A started ProcessSpec. log: its standard output and error, appended over restarts."""

    def __init__(self, spec: ProcessSpec, log: Path) -> None:
        self.spec, self.log = spec, log
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as output:
            self._guard = subprocess.Popen(
                launcher(spec, os.environ.get("CUDA_VISIBLE_DEVICES")),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment(spec),
                start_new_session=True,  # Ctrl-C reaches the starter alone, which ends its processes in order
            )

    @property
    def exit_code(self) -> int | None:
        """None while it runs; 128 + n after signal n."""
        return self._guard.poll()

    def wait(self) -> int:
        """Its exit code, once it has ended by itself."""
        return self._guard.wait()

    def check(self) -> None:
        """Raise EngineDied, with the end of the log, once the process has ended."""
        if self.exit_code is not None:
            raise EngineDied(self.death())

    def death(self) -> str:
        """How the process ended, for an error message."""
        return f"{self.spec.name} ended with exit code {self.exit_code}; the end of {self.log}:\n{self.tail()}"

    def tail(self) -> str:
        """The last lines of the log."""
        try:
            with open(self.log, "rb") as log:
                log.seek(max(0, self.log.stat().st_size - _TAIL_BYTES))
                lines = log.read().decode("utf-8", errors="replace").splitlines()
        except OSError:
            return "(no log)"
        return "\n".join(f"  | {line}" for line in lines[-_TAIL_LINES:])

    def stop(self) -> None:
        """End the process and its descendants, and wait for it; safe to call twice."""
        stop_all([self])

    def _release(self) -> None:
        """Close the pipe, which is how the guard learns that its command is to end."""
        if self._guard.stdin is not None and not self._guard.stdin.closed:
            self._guard.stdin.close()


def stop_all(processes: Sequence[Process]) -> None:
    """End processes side by side: one that waits for another takes its whole grace period, and then so would each after it."""
    for process in processes:
        process._release()
    for process in processes:
        process.wait()


def launcher(spec: ProcessSpec, inherited: str | None = None) -> list[str]:
    """The command line that runs `spec` under its guard, on another node through srun.

    inherited: CUDA_VISIBLE_DEVICES of the starter, which holds for this machine alone; None: all GPUs.
    """
    gpus = visible_gpus(spec.gpus, inherited if spec.host.name is None else None)
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}
    assignments = [f"{name}={value}" for name, value in visible.items()]
    guarded = [sys.executable, guard.__file__, *(["env", *assignments] if assignments else []), *spec.command]
    return guarded if spec.host.name is None else [*step(spec.host.name), *guarded]


def visible_gpus(gpus: Sequence[int], inherited: str | None) -> list[str]:
    """What CUDA calls the GPUs at these positions of an inherited list of indices or UUIDs. ValueError where it is too short."""
    if inherited is None or not gpus:
        return [str(gpu) for gpu in gpus]
    seen = [name.strip() for name in inherited.split(",") if name.strip()]
    if max(gpus) >= len(seen):
        raise ValueError(
            f"a process needs GPUs {','.join(map(str, gpus))}, but CUDA_VISIBLE_DEVICES={inherited!r} shows {len(seen)}; ask for "
            "more GPUs, unset it, or lower cluster.gpus_per_node and the engines' numbers"
        )
    return [seen[gpu] for gpu in gpus]


def step(node: str) -> list[str]:
    """The beginning of a command line that runs the rest as one task on `node`, beside the job's other steps."""
    place = ["--nodes=1", "--ntasks=1", f"--nodelist={node}"]
    return ["srun", "--overlap", *place, "--mem=0", "--cpu-bind=none", "--kill-on-bad-exit=1"]


def environment(spec: ProcessSpec) -> dict[str, str]:
    """The starter's environment with the spec's."""
    return (step_environment() if spec.host.name else dict(os.environ)) | dict(spec.environment)


def step_environment() -> dict[str, str]:
    """This process's environment for a `step`."""
    foreign = ("SLURM_", "SRUN_", "SBATCH_")
    return {name: value for name, value in os.environ.items() if name in _STEP_READS or not name.startswith(foreign)}
