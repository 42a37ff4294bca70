"""The trainer's processes in preset full: torchrun's environment, a GPU each beside the servers', and no Megatron-core here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.artifacts import Cell
from pipeline.config import load_settings
from pipeline.processes.hosts import THIS_HOST
from pipeline.trainer.megatron.trainer import MegatronTrainer, Rendezvous, rank_specs

REPOSITORY = Path(__file__).parents[2]
MEET = Rendezvous("127.0.0.1:4000", "ab", "5000", "lo")


def test_each_rank_has_its_place_and_its_gpu() -> None:
    settings = load_settings(overrides={"preset": "full"}).cell(Cell("grpo-r3", "8", 0))
    specs = rank_specs(settings, (THIS_HOST,), MEET)
    assert [spec.name for spec in specs] == [f"rank-{rank}" for rank in range(4)]
    assert [spec.gpus for spec in specs] == [(0,), (1,), (2,), (3,)]
    for rank, spec in enumerate(specs):
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
        assert [spec.environment[name] for name in names] == [str(rank), "4", "0", "127.0.0.1", "5000"]
        assert [spec.environment[name] for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")] == ["lo", "lo"]
        assert spec.environment["OMP_NUM_THREADS"] == "16"  # the ranks', not the controller's
        assert spec.command == (".venv-engines/bin/python", "-m", "pipeline.trainer.megatron.rank")
        assert spec.environment["PYTHONPATH"].split(":")[0] == str(REPOSITORY)


def test_ranks_may_use_another_interpreter_and_have_no_gpu_on_a_cpu() -> None:
    overrides = {"preset": "rehearsal", "cluster": {"trainer_python": "bin/python"}}
    specs = rank_specs(load_settings(overrides=overrides).cell(Cell("grpo", "1", 0)), (THIS_HOST,), MEET)
    assert [(spec.command[0], spec.gpus) for spec in specs] == [("bin/python", ())] * 2


def test_a_layout_that_cannot_be_is_refused_before_anything_starts(tmp_path) -> None:
    overrides = {"preset": "rehearsal", "megatron": {"num_ranks": 3, "tensor_parallel": 1, "expert_parallel": 3}}
    settings = load_settings(overrides=overrides).cell(Cell("grpo", "1", 0))
    with pytest.raises(ValueError, match=r"num_experts 16 cannot be cut into megatron\.expert_parallel 3"):
        MegatronTrainer(settings, tmp_path, tmp_path / "logs")
    assert not (tmp_path / "logs").exists()


def test_the_controller_imports_no_megatron() -> None:
    code = "import sys, pipeline.trainer.megatron.trainer; sys.exit(any(name.startswith('megatron') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY).returncode == 0
