"""The node check: what is right is said, what is wrong is named with a remedy, and nothing is left behind."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from pipeline.artifacts import Cell, Layout
from pipeline.config import Settings, load_settings
from pipeline.doctor import node, packages
from pipeline.doctor.finding import Finding
from pipeline.doctor.smoke import tiny_settings
from pipeline.planning.estimate import plan_run
from pipeline.policy.hf_folder import write_policy
from pipeline.policy.qwen3_moe import Policy
from pipeline.policy.tokenizer import build_tokenizer
from pipeline.problems.prepare import prepare
from pipeline.processes import interpreters


def settings(preset: str = "rehearsal", **overrides: object) -> Settings:
    return load_settings(overrides={"preset": preset, **overrides})


def by_check(found: Iterable[Finding]) -> dict[str, Finding]:
    return {finding.check: finding for finding in found}


PACKAGES = {"sglang": "0.5.23", "torch": "2.14.1", "transformers": "5.19.0", "lm-eval": "0.4.13", "math-verify": "0.9.0"}
RANKS = {
    "megatron-core": "0.16.1",
    "transformer-engine": "2.11.0+abc",
    "numpy": "2.3.5",
    "pydantic": "2.14.4",
    "safetensors": "0.8.0",
}


def engine(tmp_path: Path, glibc: str = "glibc 2.34", errors: dict[str, str] | None = None, **packages: str | None) -> str:
    """An interpreter that answers the probe as one with the pinned packages, but for these, and two GPUs would."""
    gpus = [["H", 80 * 2**30, 80 * 2**30], ["H", 40 * 2**30, 80 * 2**30]]
    found = PACKAGES | RANKS | {name.replace("_", "-"): version for name, version in packages.items()}
    answer = {"packages": found, "errors": errors or {}, "gpus": gpus, "nccl": "2.28.3", "nvcc": None, "glibc": glibc}
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(answer)}\nEND\n")
    path.chmod(0o755)
    return str(path)


def asked(python: object, **cluster: object) -> dict[str, Finding]:
    """The findings about the interpreters of preset full when both engines run `python`."""
    chosen = {"server_python": python, "trainer_python": python, **cluster}
    return by_check(packages.examine_interpreters(settings("full", cluster=chosen)))


def test_every_finding_that_is_not_ok_has_a_remedy_and_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(Layout, "state", property(lambda self: tmp_path / "state" / self.preset))
    monkeypatch.setattr(Layout, "results", property(lambda self: tmp_path / "results" / self.preset))
    found = node.examine(settings("full", cluster={"server_python": "nowhere/python"}), Layout("full"))
    assert all(finding.remedy for finding in found if finding.status != "ok")
    assert "correct cluster.server_python" in by_check(found)["server interpreter"].remedy
    assert "nowhere/python" in by_check(found)["server interpreter"].found
    for name, rule in (("problems", "prepare"), ("base policy", "base_policy")):
        remedy = by_check(found)[name].remedy
        assert "--config preset=full -- " in remedy and f"where the network can be reached (rule {rule} fetches)" in remedy
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("version", "status", "remedy"),
    [("0.5.23", "ok", ""), ("0.5.22", "failed", "install sglang==0.5.23"), (None, "failed", "install sglang==0.5.23")],
)
def test_packages_are_compared_with_the_pinned_versions(tmp_path, version, status, remedy):
    found = asked(engine(tmp_path, sglang=version))
    assert found["server package sglang"].status == status and remedy in found["server package sglang"].remedy
    assert found["server package torch"].status == "ok"


def test_a_trainer_may_have_another_torch_but_needs_transformer_engine_where_its_layers_are_used(tmp_path):
    found = asked(engine(tmp_path, torch="2.9.0", transformer_engine=None, errors={"transformer_engine.pytorch": "ImportError: x"}))
    assert found["server package torch"].status == "failed" and found["trainer package torch"].status == "ok"
    assert "install transformer-engine==2.11.0" in found["trainer package transformer-engine"].remedy
    assert found["trainer import transformer_engine.pytorch"].found == "ImportError: x"
    assert asked(engine(tmp_path))["trainer package transformer-engine"].status == "ok"  # 2.11.0+abc: built from source
    plain = settings("full", megatron={"layer_spec": "local"})
    assert interpreters.engine_interpreters(plain)[1].modules == ("megatron.core",)


def test_lm_eval_is_looked_for_where_the_servers_run_and_an_older_system_is_named(tmp_path):
    found = asked(engine(tmp_path, glibc="glibc 2.31", lm_eval=None))
    assert found["server package lm-eval"].status == "failed" and "controller package lm-eval" not in found
    assert found["server C library"].status == "failed" and "cluster-gpu.def" in found["server C library"].remedy
    assert asked(engine(tmp_path))["server C library"].status == "ok"


def test_an_interpreter_may_be_the_words_of_a_command(tmp_path):
    found = asked(["env", "INSIDE=1", engine(tmp_path)])
    assert found["trainer package megatron-core"].found == f"0.16.1 (env INSIDE=1 {tmp_path / 'python'})"


def test_too_few_gpus_and_memory_that_others_hold_are_named(tmp_path):
    found = asked(engine(tmp_path))
    assert found["server GPUs"].found == "2 of 8 (H)" and found["server GPUs"].status == "failed"
    assert found["server GPU 1 memory"].found == "40 of 80 GiB free" and "server GPU 0 memory" not in found


def test_a_policy_that_cannot_be_read_whole_is_not_complete(tmp_path, monkeypatch):
    """A link into a folder that this node lacks, and a shard shorter than its header says."""
    tiny, folder = settings("tiny"), tmp_path / "base_policy"
    monkeypatch.setattr(Layout, "results", property(lambda self: tmp_path))
    prepare(
        settings("tiny", problems={"train_count": 8, "evaluation_count": 2, "scoring_count": 2}).problem_stage(),
        tmp_path / "problems",
    )
    write_policy(folder, Policy(tiny.model), build_tokenizer(tiny.model.vocab_size))
    found = by_check(node._inputs(tiny, Layout("tiny")))
    assert found["base policy"].status == found["problems"].status == "ok" and "1 shards" in found["base policy"].found
    shard = folder / "model.safetensors"
    content = shard.read_bytes()
    shard.write_bytes(content[:-8])
    (finding,) = [f for f in node._inputs(tiny, Layout("tiny")) if f.check == "base policy"]
    assert finding.status == "failed" and "model.safetensors is damaged or incomplete" in finding.found
    shard.unlink()
    shard.symlink_to("/nowhere/cache/blob")
    (tmp_path / "problems" / "train.parquet").write_bytes(b"other")
    found = by_check(node._inputs(tiny, Layout("tiny")))
    assert "model.safetensors cannot be opened" in found["base policy"].found
    assert "train.parquet is not the file that the manifest describes" in found["problems"].found


def test_host_memory_is_compared_with_the_plan_of_the_largest_cell():
    """Expert ids of 8 steps' responses in four ranks and the controller, beside the states; per node where there are several."""
    (finding,) = node._memory(settings("full"))
    largest = max(plan_run(settings("full")).cells, key=lambda estimate: estimate.host_bytes.high)
    low, high = (f"{needed / 2**30:.0f}" for needed in largest.host_bytes.pair())
    assert largest.cell.lag == "8-15" and f"{largest.cell.method} at lag 8-15 needs {low} to {high} GiB" in finding.found
    (halved,) = node._memory(settings("full", cluster={"num_nodes": 2}))
    assert f"needs {largest.host_bytes.low / 2**31:.0f} to {largest.host_bytes.high / 2**31:.0f} GiB" in halved.found


def test_an_interpreter_without_the_packages_says_so():
    asked = interpreters.Interpreter("x", (sys.executable,), ("torch", "no-such-package"), modules=("no_such",))
    answer = interpreters.ask(asked, devices=True)
    assert answer["packages"]["no-such-package"] is None and answer["packages"]["torch"]
    assert list(answer["errors"]) == ["no_such"] and answer["glibc"].startswith("glibc")


def test_a_cell_records_what_its_engines_have_installed():
    """Each by its own interpreter; one that does not answer costs a finished cell nothing."""
    cell = settings("rehearsal", cluster={"server_python": "no-such-python"}).cell(Cell("grpo-r3", "8", 0))
    found = interpreters.engine_packages(cell)
    assert found["torch (trainer)"] == importlib.metadata.version("torch")
    assert found["all (server)"].startswith("not known: ") and "no-such-python" in found["all (server)"]
    assert interpreters.engine_packages(settings("tiny").cell(Cell("grpo-r3", "8", 0))) == {}


def test_the_smoke_test_keeps_device_precision_and_publication_and_has_a_scratch_folder_of_its_own(tmp_path):
    full = settings("full")
    tiny = tiny_settings(full, tmp_path)
    assert tiny.cluster == full.cluster.model_copy(update={"scratch": str(tmp_path)})
    nodes = settings("full", cluster={"num_nodes": 2, "scratch": "/shared", "scratch_shared": True}, servers={"num_servers": 3})
    assert tiny_settings(nodes, tmp_path).cluster == tiny.cluster
    assert tiny.rollout.dtype == "bfloat16" and tiny.servers.publication == "distributed"
    assert tiny.megatron.layer_spec == "transformer_engine" and tiny.megatron.optimizer_offload
    assert (tiny.trainer.steps, tiny.trainer.checkpoint_interval, tiny.model.hidden_size) == (2, 1, 64)
