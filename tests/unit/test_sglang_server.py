"""Command lines, environments and GPUs of the servers follow from the settings."""

from __future__ import annotations

import itertools
import socket
from pathlib import Path

import pytest

from pipeline.artifacts import Cell, write_json
from pipeline.config import CellSettings, load_settings
from pipeline.processes.hosts import Host, free_port
from pipeline.processes.placement import Place, place
from pipeline.processes.process import environment
from pipeline.records import SamplingKey
from pipeline.rollout.sglang.client import sampling_seed
from pipeline.rollout.sglang.publication import Publisher
from pipeline.rollout.sglang.server import sections, server_spec


def cell(preset: str, **overrides: object) -> CellSettings:
    return load_settings(overrides={"preset": preset, **overrides}).cell(Cell("grpo-r3", "8", 0))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_json(tmp_path / "config.json", {"max_position_embeddings": 32768})
    return tmp_path


def options(command: tuple[str, ...]) -> dict[str, str]:
    return {word: value for word, value in itertools.pairwise(command) if word.startswith("--")}


def test_the_paper_s_server_takes_the_four_gpus_after_the_training_ranks(model: Path) -> None:
    settings = cell("full")
    (placed,) = place(settings).servers
    assert placed == Place(0, (4, 5, 6, 7))
    spec = server_spec(settings, 0, placed, model, 30000, routed_experts=True)
    assert (spec.name, spec.gpus) == ("server-0", (4, 5, 6, 7))
    assert spec.command[:3] == (".venv-engines/bin/python", "-m", "sglang.launch_server")
    expected = {
        "--device": "cuda",
        "--dtype": "bfloat16",
        "--tensor-parallel-size": "4",
        "--mem-fraction-static": "0.85",
        "--context-length": "36864",
        "--host": "127.0.0.1",
        "--port": "30000",
        "--weight-version": "none",
    }
    given = options(spec.command)
    assert {name: given[name] for name in expected} == expected
    assert {"--skip-tokenizer-init", "--enable-return-routed-experts"} <= set(spec.command)
    assert spec.environment["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"] == "1"  # 36,864 exceeds the model's own 32,768
    assert "SGLANG_USE_CPU_ENGINE" not in spec.environment


def test_experts_are_recorded_and_text_is_read_only_where_asked(model: Path) -> None:
    command = server_spec(cell("full"), 0, Place(), model, 1, text=True).command
    assert "--enable-return-routed-experts" not in command and "--skip-tokenizer-init" not in command


def test_the_rehearsal_s_server_sees_no_gpu_and_runs_the_stand_ins(model: Path) -> None:
    settings = cell("rehearsal", cluster={"server_python": "python-of-the-servers"})
    spec = server_spec(settings, 0, place(settings).servers[0], model, 30000)
    assert spec.command[:2] == ("python-of-the-servers", "-P")
    assert Path(spec.command[2]).parts[-2:] == ("cpu", "launch.py")
    assert spec.environment["SGLANG_USE_CPU_ENGINE"] == "1" and spec.environment["CUDA_VISIBLE_DEVICES"] == ""
    assert "--mem-fraction-static" not in spec.command and options(spec.command)["--dtype"] == "float32"


def test_an_interpreter_in_an_image_is_the_words_that_start_it(model: Path) -> None:
    words = ("apptainer", "exec", "--nv", "cluster-gpu.sif", "python")
    settings = cell("full", cluster={"server_python": list(words), "trainer_python": "/opt/my env/python"})
    command = server_spec(settings, 0, Place(), model, 1).command
    assert command[:7] == (*words, "-m", "sglang.launch_server")
    publisher = Publisher(settings, model)
    assert publisher.sender_spec(model, "g", 1, 2).command[:6] == (*words, "-P")
    assert settings.cluster is not None and settings.cluster.trainer_command == ("/opt/my env/python",)  # a path is one word


def test_a_server_on_another_node_listens_on_its_address_and_asks_for_a_key(model: Path) -> None:
    host = Host("two", "10.0.0.2")
    spec = server_spec(cell("full"), 1, Place(1, (0,)), model, 1, host=host, key_file=model / "key.yaml")
    given = options(spec.command)
    assert spec.host == host and given["--host"] == "10.0.0.2" and given["--config"] == str(model / "key.yaml")


@pytest.mark.parametrize(("num_nodes", "interface"), [(1, "lo"), (2, None)])
def test_the_collectives_of_one_node_stay_on_its_loopback_interface(model: Path, num_nodes: int, interface: str | None) -> None:
    settings = cell("full", cluster={"num_nodes": num_nodes}, servers={"publication": "distributed"})
    server = server_spec(settings, 0, Place(), model, 1)
    sender = Publisher(settings, model).sender_spec(model, "version-1", 2, 5)
    for spec in (server, sender):
        assert [spec.environment.get(f"{name}_SOCKET_IFNAME") for name in ("NCCL", "GLOO")] == [interface] * 2


@pytest.mark.parametrize("num_nodes", [1, 2])
def test_servers_and_sender_have_the_same_nccl(model: Path, num_nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang turns both off in its own processes where they are unset; the sender's group with them would not come about."""
    monkeypatch.setenv("NCCL_CUMEM_ENABLE", "1")  # of the user's shell: it reaches neither end
    settings = cell("full", cluster={"num_nodes": num_nodes}, servers={"publication": "distributed"})
    specs = (server_spec(settings, 0, Place(), model, 1), Publisher(settings, model).sender_spec(model, "version-1", 2, 5))
    server, sender = (
        {name: value for name, value in environment(spec).items() if name.startswith(("NCCL_", "GLOO_"))} for spec in specs
    )
    assert server == sender and (server["NCCL_CUMEM_ENABLE"], server["NCCL_NVLS_ENABLE"]) == ("0", "0")


def test_dense_layers_which_sglang_would_not_load_are_refused() -> None:
    with pytest.raises(ValueError, match=r"model\.dense_layers \[0\]: SGLang takes every layer"):
        sections(cell("rehearsal", model={"dense_layers": [0]}))


def test_a_free_port_can_be_bound_and_is_not_one_that_systems_hand_out() -> None:
    port = free_port()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))
    assert 20000 <= port < 32000


def test_every_response_has_a_seed_of_its_own() -> None:
    keys = [
        SamplingKey(seed, purpose, draw, problem, sample)  # type: ignore[arg-type]
        for seed in range(2)
        for purpose in ("train", "evaluation")
        for draw in range(5)
        for problem in range(12)
        for sample in range(12)
    ]
    seeds = {sampling_seed(key) for key in keys}
    assert len(seeds) == len(keys) and all(0 <= seed < 2**63 for seed in seeds)
