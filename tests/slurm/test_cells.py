"""Cells on a real SLURM: they survive preemption, time limit, scancel and a killed Snakemake, and leave no process behind."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from pipeline.artifacts import Cell
from tests.slurm.cluster import Cluster
from tests.slurm.conftest import ORPHANED, OUT_OF_TIME, PREEMPTED, SETTINGS, SlurmWorkflow, strays, wait_until

TIMES = ["train_s", "generate_s", "wait_s", "publish_s"]


def assert_equal(found: Path, expected: Path) -> None:
    for name in ("steps.parquet", "evals.parquet"):
        tables = [pd.read_parquet(folder / name).drop(columns=TIMES, errors="ignore") for folder in (found, expected)]
        pd.testing.assert_frame_equal(*tables, check_exact=True)
    weights = [json.loads((folder / "run.json").read_text())["retained_weights"] for folder in (found, expected)]
    assert weights[0]["last"]["sha256"] == weights[1]["last"]["sha256"]


def test_a_preemption_and_a_time_limit_change_no_bit(
    cluster: Cluster, workflow: SlurmWorkflow, uninterrupted: Callable[[Cell], Path]
) -> None:
    targets = [workflow.result(cell) for cell in (PREEMPTED, OUT_OF_TIME)]
    run = workflow.start("--set-resources", "train_cell:slurm_partition=spot", "--", *targets)
    with workflow.held(PREEMPTED, OUT_OF_TIME):
        jobs = {cell: workflow.job(cluster, cell) for cell in (PREEMPTED, OUT_OF_TIME)}
        cluster.run("scontrol", "update", f"JobId={jobs[OUT_OF_TIME]}", "EndTime=now+90")
        wait_until(lambda: "SIGUSR1: the cell stops" in workflow.job_log(OUT_OF_TIME), "the time limit is signalled")
        cluster.run("scontrol", "update", f"JobId={jobs[OUT_OF_TIME]}", "TimeLimit=30")
        workflow.preempt(cluster, PREEMPTED)
        wait_until(lambda: "SIGTERM: the cell stops" in workflow.job_log(PREEMPTED), "the preemption is signalled")
    assert run.wait(timeout=600) == 0, workflow.log
    for cell, job in jobs.items():
        assert f"SLURM job {job} is requeued" in workflow.job_log(cell)
        record = json.loads((workflow.folder / workflow.result(cell)).read_text())
        assert len(record["resumed_at"]) >= 1 and 0 < record["resumed_at"][0] < SETTINGS["trainer"]["steps"]
        assert_equal((workflow.folder / workflow.result(cell)).parent, uninterrupted(cell))
    assert "Trying to restart" not in workflow.log  # a planned stop is no failure and spends no retry
    wait_until(lambda: not strays(workflow.folder), "no process is left", 30)


def test_a_second_snakemake_waits_for_the_orphan_of_the_first_and_takes_over_when_it_is_cancelled(
    cluster: Cluster, workflow: SlurmWorkflow
) -> None:
    target = workflow.result(ORPHANED)
    first = workflow.start("--", target)
    with workflow.held(ORPHANED):
        first.kill()
        first.wait()
        orphan = workflow.job(cluster, ORPHANED)
        second = workflow.start("--", target)
        waits = f"in SLURM job {orphan}; waiting until it has finished"
        wait_until(lambda: waits in workflow.job_log(ORPHANED), "the second job waits")
    cluster.run("scancel", orphan)
    assert second.wait(timeout=600) == 0, workflow.log
    assert "it is not requeued" in workflow.job_log(ORPHANED) or "is requeued" not in workflow.job_log(ORPHANED)
    assert json.loads((workflow.folder / target).read_text())["resumed_at"][0] > 0
    assert cluster.run("squeue", "-h").split() == []
    wait_until(lambda: not strays(workflow.folder), "no process is left", 30)


def test_a_run_whose_preset_nobody_named_is_refused(cluster: Cluster, workflow: SlurmWorkflow) -> None:
    (workflow.folder / "nameless.yaml").write_text("seeds: 1\n")
    shown = workflow.snakemake("--configfile", "nameless.yaml", check=False)
    assert "a SLURM run without a preset" in shown and cluster.run("squeue", "-h") == ""


def test_snakemake_itself_as_a_job_submits_the_others(cluster: Cluster, workflow: SlurmWorkflow) -> None:
    """As docs/slurm.md runs it; here it scores the cell that was preempted above."""
    scores = workflow.folder / Path(workflow.result(PREEMPTED)).with_name("scores.parquet")
    log = workflow.folder / "controller.log"
    controller = ["--job-name", "controller", "--cpus-per-task", "1", "--mem", "4G", "--time", "10", "--requeue"]
    controller += ["--signal=B:TERM@60", "--open-mode=append", "--output", str(log), "--chdir", str(workflow.folder)]
    environment = f"--export=ALL,PYTHONPATH={workflow.folder},OMP_NUM_THREADS=1"
    command = shlex.join(workflow.command("--", str(scores.relative_to(workflow.folder))))
    cluster.run("sbatch", "--wait", environment, *controller, "--wrap", command, timeout=300)
    assert scores.exists(), log.read_text()
    assert (workflow.folder / "state/slurm_logs/rule_score_cell").exists()  # a job of its own, not the controller's


def test_the_state_of_a_finished_cell_needs_no_second_training(workflow: SlurmWorkflow) -> None:
    assert workflow.planned("--", workflow.result(PREEMPTED)) == {}
