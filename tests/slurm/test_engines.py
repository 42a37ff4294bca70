"""Two cells with the real SGLang and Megatron-core as SLURM jobs, one of them preempted in the middle."""

from __future__ import annotations

import json

import pandas as pd

from pipeline.artifacts import Cell
from tests.slurm.cluster import Cluster
from tests.slurm.conftest import SETTINGS, SlurmWorkflow, strays, wait_until

PREEMPTED, UNDISTURBED = Cell("sat-gspo-r3", "8", 0), Cell("grpo-r3", "8", 0)
SHORT = {
    "preset": "rehearsal",
    "problems": {"train_count": 256, "evaluation_count": 4, "scoring_count": 6},
    "warm_start": {"steps": 100},
    "evaluation": {"interval": 16, "num_samples": 2, "scoring_samples": 2},
    "job": SETTINGS["job"],
}
SCHEDULE = ["step", "batch", "first_of_batch", "published_version", "publish_debt", "num_responses", "lag_histogram"]


def test_a_preempted_cell_of_the_clusters_engines_loses_nothing(cluster: Cluster, tmp_path_factory) -> None:
    workflow = SlurmWorkflow(tmp_path_factory.mktemp("engines").resolve(), SHORT, cluster)
    targets = [workflow.result(cell) for cell in (PREEMPTED, UNDISTURBED)]
    run = workflow.start("--set-resources", "train_cell:slurm_partition=spot", "--", *targets)
    wait_until(lambda: workflow.checkpoints(PREEMPTED), "the cell has a checkpoint", 600)
    workflow.preempt(cluster, PREEMPTED)
    wait_until(lambda: "is requeued" in workflow.job_log(PREEMPTED), "the cell has stopped")
    saved = pd.read_parquet(workflow.checkpoints(PREEMPTED)[-1] / "steps.parquet")
    assert run.wait(timeout=900) == 0, workflow.log
    steps, undisturbed = (
        pd.read_parquet((workflow.folder / workflow.result(cell)).with_name("steps.parquet")) for cell in (PREEMPTED, UNDISTURBED)
    )
    pd.testing.assert_frame_equal(steps[: len(saved)], saved, check_exact=True)
    for rows in (steps, undisturbed):
        rows["lag_histogram"] = [list(json.loads(histogram)) for histogram in rows["lag_histogram"]]
    pd.testing.assert_frame_equal(steps[SCHEDULE], undisturbed[SCHEDULE], check_exact=True)
    records = {cell: json.loads((workflow.folder / workflow.result(cell)).read_text()) for cell in (PREEMPTED, UNDISTURBED)}
    assert records[PREEMPTED]["resumed_at"] == [len(saved)] and records[UNDISTURBED]["resumed_at"] == []
    assert "SIGTERM: the cell stops" in workflow.job_log(PREEMPTED) and "Trying to restart" not in workflow.log
    wait_until(lambda: not strays(workflow.folder), "no process is left", 30)
