"""The private SLURM, and scratch workflows that run on it with `snakemake --profile slurm`."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from pipeline.artifacts import Cell, Layout
from tests.slurm.cluster import Cluster
from tests.workflow.conftest import REPOSITORY, Workflow

PREEMPTED, OUT_OF_TIME, ORPHANED = (Cell("sat-gspo-r3", lag, 0) for lag in ("1", "8-15", "8"))
SETTINGS = {
    "preset": "tiny",
    "problems": {"train_count": 256, "evaluation_count": 4, "scoring_count": 6},
    "warm_start": {"steps": 40, "batch_size": 32, "threads": 1},
    "rollout": {"group_size": 8, "prompts_per_step": 8},
    "trainer": {"steps": 96, "checkpoint_interval": 16},
    "evaluation": {"interval": 40, "num_samples": 2, "scoring_samples": 2},
    "cells": {
        "table": {"methods": ["sat-gspo-r3"], "lags": ["1", "8", "8-15"]},
        "uncorrected": {"methods": [], "lags": []},
        "stress": {"methods": [], "lags": []},
    },
    "job": {"time_limit_min": 30, "signal_lead_s": 60, "cpus": 16, "memory_mb": 2000},  # all CPUs: one job on a node
}


class SlurmWorkflow(Workflow):
    """Runs `snakemake --profile slurm` with the profile of this repository, asking SLURM more often than a person would."""

    def __init__(self, folder: Path, settings: dict, cluster: Cluster) -> None:
        super().__init__(folder, settings)
        self.paths = Layout(settings["preset"])
        self.environment_extra = {"SLURM_CONF": str(cluster.conf)}
        shutil.copytree(REPOSITORY / "slurm", folder / "slurm")

    def command(self, *arguments: str) -> list[str]:
        quick = ["--slurm-init-seconds-before-status-checks", "3", "--latency-wait", "10", "--quiet", "rules"]
        return [sys.executable, "-m", "snakemake", "--profile", "slurm", "--configfile", "micro.yaml", *quick, *arguments]

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """A run in the background, whose output goes to the file `log`."""
        with open(self.folder / "log", "ab") as log:
            return subprocess.Popen(self.command(*arguments), cwd=self.folder, env=self.environment, stdout=log, stderr=log)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def result(self, cell: Cell) -> str:
        return str(self.paths.cell(cell) / "run.json")

    def settings(self, cell: Cell) -> Path:
        (found,) = self.folder.glob(f"{self.paths.state}/settings/cells/{cell}-*.json")
        return found

    def checkpoints(self, cell: Cell) -> list[Path]:
        return sorted((self.folder / self.paths.cell_state(cell)).glob("*/checkpoints/step_*"))

    def job_log(self, cell: Cell) -> str:
        logs = (self.folder / "state/slurm_logs/rule_train_cell" / _comment(cell)).glob("*.log")
        return "".join(path.read_text() for path in sorted(logs, key=lambda path: int(path.stem)))

    def job(self, cluster: Cluster, cell: Cell) -> str:
        """The job in the queue that trains `cell`; of several the newest."""
        rows = (line.split() for line in cluster.run("squeue", "-h", "-o", "%A %k").splitlines())
        return max((row[0] for row in rows if row[-1].endswith(_comment(cell))), key=int)

    @contextlib.contextmanager
    def held(self, *cells: Cell) -> Iterator[None]:
        """From its first checkpoint on each cell waits for an engine that stands still, so that it cannot end; it hears signals.

        SLURM looks at time limits every 30 s, and a second Snakemake takes a while to start a job: these cells may be faster.
        """
        held: dict[Cell, list[psutil.Process]] = {}

        def hold() -> bool:
            for cell in cells:
                if cell not in held and self.checkpoints(cell):
                    lease = json.loads((self.folder / self.paths.cell_state(cell) / "lease.json").read_text())
                    held[cell] = [child for child in psutil.Process(lease["pid"]).children() if child.name() != "srun"]
                    for process in held[cell]:
                        process.suspend()
            return len(held) == len(cells)

        try:
            wait_until(hold, "the cells have a checkpoint")
            yield
        finally:
            for process in itertools.chain(*held.values()):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.resume()

    def preempt(self, cluster: Cluster, cell: Cell) -> None:
        """Have a job of partition gpu want the whole node on which `cell` trains in partition spot."""
        node = cluster.run("squeue", "-h", "-j", self.job(cluster, cell), "-o", "%N").strip()
        options = ("-p", "gpu", "-w", node, "--exclusive", "--mem=0", "-t", "1", "-o", "/dev/null")
        cluster.run("sbatch", *options, "--wrap", "sleep 2")


def _comment(cell: Cell) -> str:
    return f"{cell.method}_{cell.lag}_{cell.seed}"


def strays(folder: Path) -> list[str]:
    """Command lines of processes that work in `folder`."""
    running = psutil.process_iter(["cwd", "cmdline"])
    return [" ".join(process.info["cmdline"] or ()) for process in running if process.info["cwd"] == str(folder)]


def wait_until(condition: Callable[[], object], what: str, patience_s: float = 240.0) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {patience_s:g} s in vain until {what}"
        time.sleep(0.2)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()


@pytest.fixture(scope="session")
def workflow(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> SlurmWorkflow:
    """A workflow whose problems and base policy are made; both rules are local, so this needs no job."""
    workflow = SlurmWorkflow(tmp_path_factory.mktemp("workflow").resolve(), SETTINGS, cluster)
    workflow.snakemake("--", "results/tiny/base_policy/manifest.json")
    assert cluster.run("squeue", "-h") == ""
    return workflow


@pytest.fixture(scope="session")
def uninterrupted(workflow: SlurmWorkflow) -> Iterator[Callable[[Cell], Path]]:
    """The results folder of a cell that ran to its end without SLURM and without a stop; all start at once, in the background."""
    running = {}
    workflow.snakemake("-n")  # writes the settings files
    for cell in (PREEMPTED, OUT_OF_TIME):
        settings, out = workflow.settings(cell), workflow.folder / "uninterrupted" / str(cell)
        options = {"settings": settings, "problems": "results/tiny/problems", "base-policy": "results/tiny/base_policy"}
        options |= {"state": f"{out}-state", "out": out}
        words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
        command = [sys.executable, "-m", "pipeline", "train-cell", *words]
        running[cell] = subprocess.Popen(command, cwd=workflow.folder, env=workflow.environment, stdout=subprocess.DEVNULL), out

    def finished(cell: Cell) -> Path:
        process, out = running[cell]
        assert process.wait(timeout=600) == 0
        return out

    yield finished
    for process, _ in running.values():
        process.kill()
        process.wait()
