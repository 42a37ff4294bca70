"""Cells on a real SLURM: they survive preemption, time limit, scancel and a killed Snakemake, and leave no process behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.conftest import CELLS, SlurmWorkflow, strays, wait_until

TIMES = ["train_s", "generate_s", "wait_s", "publish_s"]


def result(lag: str) -> str:
    return f"results/tiny/cells/sat-gspo-r3/{lag}/seed0/run.json"


def assert_equal(found: Path, expected: Path) -> None:
    for name in ("steps.parquet", "evals.parquet"):
        tables = [pd.read_parquet(folder / name).drop(columns=TIMES, errors="ignore") for folder in (found, expected)]
        pd.testing.assert_frame_equal(*tables, check_exact=True)
    weights = [json.loads((folder / "run.json").read_text())["retained_weights"] for folder in (found, expected)]
    assert weights[0]["last"]["sha256"] == weights[1]["last"]["sha256"]


def test_a_preemption_and_a_time_limit_change_no_bit(
    cluster: Cluster, workflow: SlurmWorkflow, uninterrupted: Callable[[str], Path]
) -> None:
    preempted, out_of_time = CELLS["preempted"], CELLS["out_of_time"]
    targets = [result(preempted), result(out_of_time)]
    run = workflow.start("--set-resources", "train_cell:slurm_partition=spot", "--", *targets)
    wait_until(lambda: workflow.checkpoints(preempted), "the first cell has a checkpoint")
    jobs = workflow.jobs(cluster)
    cluster.run("scontrol", "update", f"JobId={jobs[out_of_time]}", "TimeLimit=1")
    node = cluster.run("squeue", "-h", "-j", jobs[preempted], "-o", "%N").strip()
    cluster.run("sbatch", "-p", "gpu", "-w", node, "--exclusive", "--mem=0", "-t", "1", "-o", "/dev/null", "--wrap", "sleep 2")
    wait_until(lambda: "SIGUSR1: the cell stops" in workflow.job_log(out_of_time), "the time limit is signalled")
    cluster.run("scontrol", "update", f"JobId={jobs[out_of_time]}", "TimeLimit=30")
    assert run.wait(timeout=600) == 0, workflow.log
    assert "SIGTERM: the cell stops" in workflow.job_log(preempted)
    for lag in (preempted, out_of_time):
        assert f"SLURM job {jobs[lag]} is requeued" in workflow.job_log(lag)
        record = json.loads((workflow.folder / result(lag)).read_text())
        assert len(record["resumed_at"]) >= 1 and 0 < record["resumed_at"][0] < 240
        assert_equal((workflow.folder / result(lag)).parent, uninterrupted(lag))
    assert "Trying to restart" not in workflow.log  # a planned stop is no failure and spends no retry
    wait_until(lambda: not strays(workflow.folder), "no process is left", 30)


def test_a_second_snakemake_waits_for_the_orphan_of_the_first_and_takes_over_when_it_is_cancelled(
    cluster: Cluster, workflow: SlurmWorkflow
) -> None:
    lag = CELLS["orphaned"]
    first = workflow.start("--", result(lag))
    wait_until(lambda: workflow.checkpoints(lag), "the cell has a checkpoint")
    first.kill()
    first.wait()
    orphan = workflow.jobs(cluster)[lag]
    second = workflow.start("--", result(lag))
    wait_until(lambda: f"in SLURM job {orphan}; waiting until it has finished" in workflow.job_log(lag), "the second job waits")
    cluster.run("scancel", orphan)
    assert second.wait(timeout=600) == 0, workflow.log
    assert "it is not requeued" in workflow.job_log(lag) or "is requeued" not in workflow.job_log(lag)
    assert json.loads((workflow.folder / result(lag)).read_text())["resumed_at"][0] > 0
    assert cluster.run("squeue", "-h").split() == []
    wait_until(lambda: not strays(workflow.folder), "no process is left", 30)


def test_a_run_whose_preset_nobody_named_is_refused(cluster: Cluster, workflow: SlurmWorkflow) -> None:
    (workflow.folder / "nameless.yaml").write_text("seeds: 1\n")
    shown = workflow.snakemake("--configfile", "nameless.yaml", check=False)
    assert "a SLURM run without a preset" in shown and cluster.run("squeue", "-h") == ""


@pytest.mark.parametrize("lag", [CELLS["preempted"]])
def test_the_state_of_a_finished_cell_needs_no_second_training(workflow: SlurmWorkflow, lag: str) -> None:
    assert workflow.planned("--", result(lag)) == {}
