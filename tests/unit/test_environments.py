"""The files in envs/ fit together, and the controller needs nothing of the engines' packages."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.doctor.packages import normal, read_pins

REPOSITORY = Path(__file__).parents[2]
ENVIRONMENTS = REPOSITORY / "envs"
ENGINE_PACKAGES = ("sglang", "megatron", "transformer_engine", "lm_eval", "transformers", "flashinfer")
CONTROLLER = (
    "pipeline.__main__",
    "pipeline.dag",
    "pipeline.cell.job",
    "pipeline.doctor.node",
    "pipeline.evaluation.score",
    "pipeline.evaluation.mismatch",
    "pipeline.rollout.sglang.engine",
    "pipeline.trainer.megatron.trainer",
)


def requirements(name: str) -> list[str]:
    lines = (line.split("#")[0].strip() for line in (ENVIRONMENTS / name).read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line]


def locked() -> dict[str, str]:
    return read_pins(ENVIRONMENTS / "cluster-gpu.txt") | read_pins(ENVIRONMENTS / "cluster-gpu-te.txt")


def test_every_direct_pin_of_the_engines_is_in_their_lock() -> None:
    direct = read_pins(ENVIRONMENTS / "cluster-gpu.in")
    assert len(direct) == len(requirements("cluster-gpu.in")) == 16
    assert {name: locked().get(name) for name in direct} == direct


@pytest.mark.parametrize("name", ["cluster-gpu.txt", "cluster-gpu-te.txt", "cluster-cpu.txt", "cpu.txt"])
def test_what_is_installed_is_one_exact_version_of_each_package(name: str) -> None:
    lines = requirements(name)
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[^\s;,*]+", line) for line in lines)
    assert len({normal(line.split("==")[0]) for line in lines}) == len(lines)


def test_transformer_engine_is_whole_and_of_one_cuda() -> None:
    found = {name: version for name, version in locked().items() if name.startswith("transformer-engine")}
    assert found == dict.fromkeys(("transformer-engine", "transformer-engine-cu13", "transformer-engine-torch"), "2.11.0")
    assert "transformer-engine-torch" not in read_pins(ENVIRONMENTS / "cluster-gpu.txt")  # compiled after torch is there


def test_the_gpu_engines_are_those_of_the_rehearsal() -> None:
    rehearsed = read_pins(ENVIRONMENTS / "cluster-cpu.txt")
    for name in ("sglang", "megatron-core", "lm-eval", "transformers", "tokenizers", "math-verify", "sympy", "safetensors"):
        assert locked()[name] == rehearsed[name], name


def test_what_both_environments_exchange_is_read_alike() -> None:
    """Weights as safetensors, problems as parquet, batches as pickled numpy arrays of one major version; grades by one grader."""
    controller, engines = read_pins(ENVIRONMENTS / "cpu.txt"), locked()
    for name in ("safetensors", "pyarrow", "math-verify", "sympy", "antlr4-python3-runtime", "pydantic"):
        assert controller[name] == engines[name], name
    assert {pins["numpy"].split(".")[0] for pins in (controller, engines)} == {"2"}
    assert "sglang" not in controller and "snakemake" not in engines  # no resolver finds an environment for both


def test_the_controller_imports_no_engine() -> None:
    code = f"import sys; sys.modules.update(dict.fromkeys({ENGINE_PACKAGES!r}))\n" + "\n".join(
        f"import {name}" for name in CONTROLLER
    )
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=True)
