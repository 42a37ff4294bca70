"""A scratch copy of the repository in which whole workflows of a few steps run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).parents[2]

MICRO = {
    "problems": {"train_count": 64, "evaluation_count": 4, "scoring_count": 6},
    "warm_start": {"steps": 40, "batch_size": 32, "threads": 1},
    "rollout": {"group_size": 4, "prompts_per_step": 4},
    "trainer": {"steps": 8, "checkpoint_interval": 2},
    "evaluation": {"interval": 4, "num_samples": 2, "scoring_samples": 2},
    "cells": {
        "table": {"methods": ["grpo", "dppo"], "lags": ["1"]},
        "uncorrected": {"methods": [], "lags": []},
        "stress": {"methods": ["sat-gspo-r3"], "lags": ["8-15"]},
    },
}


class Workflow:
    """Runs snakemake in a scratch folder that holds the Snakefile, the settings and the package of this repository."""

    def __init__(self, folder: Path, settings: dict) -> None:
        self.folder, self.environment_extra, self.timeout_s = folder, {}, 400
        for name in ("Snakefile", "config.yaml"):
            shutil.copy(REPOSITORY / name, folder / name)
        (folder / "pipeline").symlink_to(REPOSITORY / "pipeline")
        shutil.copytree(REPOSITORY / "results" / "reference", folder / "results" / "reference")
        (folder / "micro.yaml").write_text(yaml.safe_dump(settings))

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "snakemake", "--cores", "2", "--nolock", "--configfile", "micro.yaml", *arguments]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.folder), "OMP_NUM_THREADS": "1", **self.environment_extra}

    def snakemake(self, *arguments: str, check: bool = True) -> str:
        done = subprocess.run(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=self.timeout_s,
            check=False,
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def planned(self, *arguments: str) -> dict[str, int]:
        """Rule -> number of jobs that a dry run would start, the target rule apart."""
        text = self.snakemake("-n", *arguments)
        table = text.split("Job stats:")[1].split("total")[0] if "Job stats:" in text else ""
        counts = {rule: int(number) for rule, number in re.findall(r"^(\w+)\s+(\d+)$", table, re.MULTILINE)}
        counts.pop("reproduce", None)
        return counts

    def jobs(self, rule: str, *arguments: str) -> list[str]:
        """The first output of every job of `rule` that a dry run would start."""
        text = self.snakemake("-n", *arguments)
        return re.findall(rf"^rule {rule}:.*?^    output: ([^\s,]+)", text, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Workflow:
    """A workflow of two table cells and one stress cell, run to its end once per test session."""
    workflow = Workflow(tmp_path_factory.mktemp("workflow"), MICRO)
    workflow.snakemake()
    return workflow
