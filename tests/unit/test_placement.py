"""Which process runs on which node and GPUs: one source for both engines, and the plan that is printed from it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.artifacts import Cell, write_json, write_text
from pipeline.cell.process_plan import process_plan
from pipeline.config import CellSettings, load_settings
from pipeline.evaluation.lm_eval_score import on_one_node
from pipeline.processes.hosts import Host, interface_of
from pipeline.processes.placement import Place, place
from pipeline.processes.process import Process, ProcessSpec, environment, launcher, visible_gpus

REPOSITORY = Path(__file__).parents[2]
TWO = (Host(None, "10.0.0.1"), Host("two", "10.0.0.2"))


def cell(preset: str = "full", **overrides: object) -> CellSettings:
    return load_settings(overrides={"preset": preset, **overrides}).cell(Cell("sat-gspo-r3", "8", 0))


def gpus(places: tuple[Place, ...]) -> list[tuple[int, tuple[int, ...]]]:
    return [(place.node, place.gpus) for place in places]


def test_one_node_of_eight_as_in_the_paper() -> None:
    placed = place(cell())
    assert gpus(placed.ranks) == [(0, (0,)), (0, (1,)), (0, (2,)), (0, (3,))]
    assert gpus(placed.servers) == [(0, (4, 5, 6, 7))]


def test_servers_fill_further_nodes_after_the_ranks_and_never_span_two() -> None:
    placed = place(cell(cluster={"num_nodes": 2}, servers={"num_servers": 3}))
    assert gpus(placed.servers) == [(0, (4, 5, 6, 7)), (1, (0, 1, 2, 3)), (1, (4, 5, 6, 7))] and not placed.servers_read_scratch
    shared = {"num_nodes": 2, "scratch": "shared", "scratch_shared": True}
    wide = place(cell(cluster=shared, megatron={"num_ranks": 12}, servers={"tensor_parallel": 4}))
    assert [node for node, _ in gpus(wide.ranks)] == [0] * 8 + [1] * 4 and gpus(wide.servers) == [(1, (4, 5, 6, 7))]
    moved = place(cell(cluster={"num_nodes": 2}, megatron={"num_ranks": 4}, servers={"tensor_parallel": 8}))
    assert gpus(moved.servers) == [(1, tuple(range(8)))]  # four GPUs are left on the first node, too few


def test_scoring_takes_one_server_on_one_node() -> None:
    wide = cell(cluster={"num_nodes": 3}, servers={"num_servers": 5})
    assert gpus(place(on_one_node(wide)).servers) == [(0, (0, 1, 2, 3))] and not place(on_one_node(wide)).ranks
    assert on_one_node(cell()) == cell()


def test_no_gpu_is_given_twice() -> None:
    placed = place(cell(cluster={"num_nodes": 3}, servers={"num_servers": 9, "tensor_parallel": 2}))
    taken = [(place.node, gpu) for place in placed.ranks + placed.servers for gpu in place.gpus]
    assert len(taken) == len(set(taken)) == 4 + 18


def test_a_cpu_has_places_but_no_gpus() -> None:
    placed = place(cell("rehearsal"))
    assert gpus(placed.ranks) == [(0, ())] * 2 and gpus(placed.servers) == [(0, ())]
    placed = place(cell("rehearsal", cluster={"num_nodes": 2, "gpus_per_node": 2}))
    assert gpus(placed.ranks) == [(0, ())] * 2 and gpus(placed.servers) == [(1, ())]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"servers": {"num_servers": 2}}, "must fit one node"),
        ({"servers": {"tensor_parallel": 8}}, "must fit one node"),
        ({"megatron": {"num_ranks": 12}}, "raise cluster.num_nodes"),
        ({"cluster": {"num_nodes": 2}}, "the processes fit 1; lower it"),
        ({"cluster": {"num_nodes": 2}, "megatron": {"num_ranks": 12}}, "write a published version together"),
        ({"cluster": {"num_nodes": 2}, "servers": {"num_servers": 3, "publication": "tensor"}}, "publication tensor cannot reach"),
        ({"cluster": {"num_nodes": 2}, "servers": {"num_servers": 3, "publication": "disk"}}, "publication disk cannot reach"),
        ({"cluster": {"scratch_shared": True}}, "cluster.scratch names no folder"),
    ],
)
def test_what_does_not_fit_or_cannot_reach_the_weights_is_refused(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        place(cell(**settings))


def test_ranks_of_two_nodes_meet_at_the_first_one_s_address(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {"max_position_embeddings": 32768})
    shared = {"num_nodes": 2, "scratch": "shared", "scratch_shared": True}
    specs = process_plan(cell(cluster=shared, megatron={"num_ranks": 12}), tmp_path, TWO)
    assert {spec.environment["MASTER_ADDR"] for spec in specs[:12]} == {"10.0.0.1"}
    assert [spec.host for spec in specs] == [TWO[0]] * 8 + [TWO[1]] * 5
    assert [spec.environment["RANK"] for spec in specs[:12]] == [str(rank) for rank in range(12)]
    assert "10.0.0.2" in specs[12].command and specs[12].gpus == (4, 5, 6, 7)


def test_another_node_s_process_is_a_step_with_its_guard_and_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_STEP_NODELIST", "one")
    spec = ProcessSpec("server-1", ("serve",), {"A": "1"}, (4, 5), TWO[1])
    command = launcher(spec)
    assert command[:5] == ["srun", "--overlap", "--nodes=1", "--ntasks=1", "--nodelist=two"]
    assert [Path(word).name for word in command[-4:]] == ["guard.py", "env", "CUDA_VISIBLE_DEVICES=4,5", "serve"]
    given = environment(spec)
    assert given["A"] == "1" and given["SLURM_JOB_ID"] == "7" and "SLURM_STEP_NODELIST" not in given
    assert "srun" not in launcher(ProcessSpec("server-0", ("serve",)))


def test_gpus_are_positions_in_an_inherited_list_on_this_machine_alone() -> None:
    assert visible_gpus((0, 1), None) == ["0", "1"]
    assert visible_gpus((1,), "2,3") == ["3"] and visible_gpus((0, 1), "GPU-a, GPU-b") == ["GPU-a", "GPU-b"]
    with pytest.raises(ValueError, match=r"needs GPUs 1,2, but CUDA_VISIBLE_DEVICES='2,3' shows 2"):
        visible_gpus((1, 2), "2,3")
    assert "CUDA_VISIBLE_DEVICES=7" in launcher(ProcessSpec("server-0", ("serve",), gpus=(1,)), "6,7")
    assert "CUDA_VISIBLE_DEVICES=1" in launcher(ProcessSpec("server-1", ("serve",), gpus=(1,), host=TWO[1]), "6,7")


def test_the_tail_of_a_long_log_is_its_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "rank.log"
    log.write_bytes(b"\xff" * 100_000 + b"".join(b"\n%d" % line for line in range(20)))
    process = Process(ProcessSpec("rank-0", ("true",)), log)
    process.stop()
    assert process.tail().splitlines() == [f"  | {line}" for line in range(5, 20)]


def test_a_process_that_ends_by_itself_is_waited_for(tmp_path: Path) -> None:
    process = Process(ProcessSpec("lm-eval", (sys.executable, "-c", "print('last words'); raise SystemExit(3)")), tmp_path / "log")
    assert process.wait() == 3 and "exit code 3" in process.death() and "last words" in process.death()


def test_the_interface_of_an_address_is_found() -> None:
    assert interface_of("127.0.0.1").startswith("lo")
    with pytest.raises(ValueError, match=r"no network interface .* 192\.0\.2\.1"):
        interface_of("192.0.2.1")


@pytest.mark.parametrize("num_nodes", [1, 2])
def test_the_plan_is_printed_without_starting_anything(tmp_path: Path, num_nodes: int) -> None:
    settings = cell(cluster={"num_nodes": num_nodes}, servers={"num_servers": 2 * num_nodes - 1})
    write_text(tmp_path / "cell.json", settings.model_dump_json())
    write_json(tmp_path / "policy" / "config.json", {"max_position_embeddings": 32768})
    outside = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    options = ["--settings", tmp_path / "cell.json", "--base-policy", tmp_path / "policy"]
    shown = subprocess.run(
        [sys.executable, "-m", "pipeline", "plan-processes", *options],
        cwd=REPOSITORY, env=outside, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    titles = [line for line in shown.splitlines() if not line.startswith(" ")]
    assert titles[:4] == [f"rank-{rank}: the node of the controller, GPU {rank}" for rank in range(4)]
    assert titles[4] == "server-0: the node of the controller, GPU 4,5,6,7"
    assert titles[5:] == ["server-1: NODE-1, GPU 0,1,2,3", "server-2: NODE-1, GPU 4,5,6,7"] * (num_nodes - 1)
    assert shown.count("sglang.launch_server") == 2 * num_nodes - 1 and ("srun" in shown) == (num_nodes > 1)
