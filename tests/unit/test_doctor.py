"""The node check: what is right is said, what is wrong is named with a remedy, and nothing is left behind."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pipeline.artifacts import Layout
from pipeline.config import Settings, load_settings
from pipeline.launch import doctor
from pipeline.launch.smoke import tiny_settings
from pipeline.planning.estimate import plan_run


def settings(preset: str = "rehearsal", **overrides: object) -> Settings:
    return load_settings(overrides={"preset": preset, **overrides})


def by_check(found: list[doctor.Finding]) -> dict[str, doctor.Finding]:
    return {finding.check: finding for finding in found}


def engine(tmp_path: Path, **packages: str | None) -> str:
    """An interpreter that answers the probe as one with these packages and two GPUs would."""
    answer = {"packages": packages, "gpus": [["H", 80 * 2**30, 80 * 2**30], ["H", 40 * 2**30, 80 * 2**30]], "nccl": "2.28.3"}
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(answer)}\nEND\n")
    path.chmod(0o755)
    return str(path)


def test_every_finding_that_is_not_ok_has_a_remedy_and_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(Layout, "state", property(lambda self: tmp_path / "state" / self.preset))
    monkeypatch.setattr(Layout, "results", property(lambda self: tmp_path / "results" / self.preset))
    found = doctor.examine(settings("full", cluster={"server_python": "nowhere/python"}), Layout("full"))
    assert all(finding.remedy for finding in found if finding.status != "ok")
    assert by_check(found)["server interpreter"].remedy == "correct cluster.server_python"
    assert "nowhere/python" in by_check(found)["server interpreter"].found
    assert "problems/manifest.json" in by_check(found)["problems"].remedy
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("version", "status", "remedy"),
    [("0.5.23", "ok", ""), ("0.5.22", "failed", "install sglang==0.5.23"), (None, "failed", "install sglang==0.5.23")],
)
def test_packages_are_compared_with_the_pinned_versions(tmp_path, version, status, remedy):
    python = engine(tmp_path, sglang=version, torch="2.14.1", transformers="5.19.0")
    found = by_check(list(doctor._interpreters(settings("full", cluster={"server_python": python, "trainer_python": python}))))
    assert (found["server package sglang"].status, found["server package sglang"].remedy) == (status, remedy)
    assert found["server package torch"].status == "ok"


def test_too_few_gpus_and_memory_that_others_hold_are_named(tmp_path):
    python = engine(tmp_path, sglang="0.5.23", torch="2.14.1", transformers="5.19.0")
    found = by_check(list(doctor._interpreters(settings("full", cluster={"server_python": python, "trainer_python": python}))))
    assert found["server GPUs"].found == "2 of 8 (H)" and found["server GPUs"].status == "failed"
    assert found["server GPU 1 memory"].found == "40 of 80 GiB free" and "server GPU 0 memory" not in found


def test_host_memory_is_compared_with_the_plan_of_the_largest_cell():
    """Expert ids of 8 steps' responses in four ranks and the controller, beside the states; per node where there are several."""
    (finding,) = doctor._memory(settings("full"))
    largest = max(plan_run(settings("full")).cells, key=lambda estimate: estimate.host_bytes.high)
    low, high = (f"{needed / 2**30:.0f}" for needed in largest.host_bytes.pair())
    assert largest.cell.lag == "8-15" and f"{largest.cell.method} at lag 8-15 needs {low} to {high} GiB" in finding.found
    (halved,) = doctor._memory(settings("full", cluster={"num_nodes": 2}))
    assert f"needs {largest.host_bytes.low / 2**31:.0f} to {largest.host_bytes.high / 2**31:.0f} GiB" in halved.found


def test_an_interpreter_without_the_packages_says_so():
    answer = doctor._ask(sys.executable, ("torch", "no-such-package"))
    assert answer["packages"]["no-such-package"] is None and answer["packages"]["torch"]


def test_the_smoke_test_keeps_device_precision_and_publication_and_has_a_scratch_folder_of_its_own(tmp_path):
    full = settings("full")
    tiny = tiny_settings(full, tmp_path)
    assert tiny.cluster == full.cluster.model_copy(update={"scratch": str(tmp_path)})
    assert tiny.rollout.dtype == "bfloat16" and tiny.servers.publication == "distributed"
    assert tiny.megatron.layer_spec == "transformer_engine" and tiny.megatron.optimizer_offload
    assert (tiny.trainer.steps, tiny.trainer.checkpoint_interval, tiny.model.hidden_size) == (2, 1, 64)
