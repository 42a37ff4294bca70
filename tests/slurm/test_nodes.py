"""What this project relies on in SLURM and in Snakemake's plugin for it: two nodes under one command, guarded steps, look-ups."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from tests.slurm.cluster import Cluster
from tests.slurm.conftest import strays, wait_until
from tests.workflow.conftest import REPOSITORY

SNAKEFILE = """
rule two_nodes:
    output: "out.json"
    resources: nodes=2, mpi="", gres="gpu:8", mem_mb=1000, cpus_per_task=2, runtime=5, slurm_extra="--signal=USR1@30"
    shell: "{python} -m tests.slurm.two_nodes {{output}}"
"""


def test_one_command_starts_guarded_processes_on_both_nodes_that_outlive_a_job_s_signals(cluster: Cluster, tmp_path: Path) -> None:
    for name in ("pipeline", "tests"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    shutil.copytree(REPOSITORY / "slurm", tmp_path / "slurm")
    (tmp_path / "Snakefile").write_text(SNAKEFILE.format(python=sys.executable))
    quick = ["--slurm-init-seconds-before-status-checks", "3", "--latency-wait", "10"]
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "--profile", "slurm", *quick],
        cwd=tmp_path, env=cluster.environment | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    logs = "".join(path.read_text() for path in tmp_path.glob("state/slurm_logs/**/*.log"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    found = json.loads((tmp_path / "out.json").read_text())
    shown = [text.splitlines()[-1] for text in found["shown"]]
    assert found["controller"] == "gpu1" and shown == ["gpu1 0,1 given", "gpu2 2,3 given"]
    assert found["running"] == [True, True]
    assert found["survived"] == {"USR1": [True] * 4, "TERM": [True] * 4} and all(found["stopped"])
    assert "killed ended with exit code 137" in found["death"] and "last words" in found["death"]
    wait_until(lambda: cluster.run("squeue", "-hs") == "", "SLURM has no steps left", 60)
    wait_until(lambda: not strays(tmp_path), "no process is left", 30)
