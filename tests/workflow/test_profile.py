"""`--profile slurm` plans the paper's preset, whatever else the command line says, and never takes one preset for another."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.workflow.conftest import REPOSITORY, Workflow


class Profiled(Workflow):
    """The commands that a person types, without the micro settings of other tests."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, {})
        shutil.copytree(REPOSITORY / "slurm", folder / "slurm")

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "snakemake", *arguments]


def test_the_profile_plans_the_paper_s_cells_and_the_bare_command_the_laptop_s(tmp_path: Path) -> None:
    workflow = Profiled(tmp_path)
    shown = workflow.snakemake("--profile", "slurm", "-n")
    assert "results/full/cells/sat-gspo-r3/lag8/seed0/run.json" in shown and "results/tiny" not in shown
    resources = re.findall(r"^rule train_cell:.*?^    resources: (.*?)$", shown, re.MULTILINE | re.DOTALL)
    for part in ("nodes=1", "mpi=", "gres=gpu:8", "runtime=1440", "cpus_per_task=64", "--signal=USR1@3600"):
        assert all(part in asked for asked in resources)
    large = [asked for asked in resources if "mem_mb=900000" not in asked]  # R3 with the rollouts of 8 steps at once
    assert len(resources) == 33 and len(large) == 2 and all(re.search(r"mem_mb=1\d{6}\b", asked) for asked in large)
    assert workflow.planned("--profile", "slurm", "--config", "seeds=3")["train_cell"] == 99
    assert "results/full" not in workflow.snakemake("-n")


def test_another_configfile_or_the_command_line_may_name_a_preset(tmp_path: Path) -> None:
    workflow = Profiled(tmp_path)
    assert workflow.planned("--profile", "slurm", "--config", "preset=rehearsal", "seeds=2")["train_cell"] == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["results/full/cells/grpo/lag1/seed0/run.json"], "but this run is of preset tiny; add --config preset=full"),
        (["--profile", "slurm", "results/tiny/report.html"], "belongs to preset tiny, but this run is of preset full"),
        (["--config", "preset=full", "cluster={num_nodes: 2}"], "cluster.num_nodes is 2, but the processes fit 1; lower it"),
        (["--config", "job={signal_lead_s: 90000}"], "signal_lead_s 90000 leaves nothing of time_limit_min"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_before_anything_is_planned(tmp_path: Path, arguments: list[str], message: str) -> None:
    assert message in Profiled(tmp_path).snakemake("-n", *arguments, check=False)
