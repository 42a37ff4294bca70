"""Attempts of one SLURM job at a cell: a job that is requeued again and again without getting on ends in an error.

The job's first attempt, and those after progress, start the count anew; another job does too, so a person is never refused.
"""

from __future__ import annotations

import os
from pathlib import Path

from pipeline.artifacts import read_json, write_json

_ALLOWED = 2  # attempts in a row that end at the step at which they began


def begin_attempt(folder: Path, step: int) -> None:
    """Count an attempt that continues at `step` of the state in `folder`. ValueError after too many without a new step."""
    job, record = os.environ.get("SLURM_JOB_ID"), folder / "attempts.json"
    if job is None:
        return
    last = read_json(record) if record.exists() else {}
    in_vain = last["in_vain"] + 1 if (last.get("job"), last.get("step")) == (job, step) else 0
    if in_vain >= _ALLOWED:
        raise ValueError(
            f"{in_vain} attempts in a row of SLURM job {job} ended at step {step}, where they began; see its log and "
            f"{folder / 'logs'}. If they were stopped before the first checkpoint, "
            "raise job.time_limit_min or lower trainer.checkpoint_interval, "
            "then run snakemake again"
        )
    write_json(record, {"job": job, "step": step, "in_vain": in_vain})
