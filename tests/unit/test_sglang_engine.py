"""SGLangEngine against fake servers: order, what is refused, what is generated again, and what ends the engine."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.artifacts import Cell
from pipeline.config import CellSettings, load_settings
from pipeline.processes.errors import EngineDied
from pipeline.processes.hosts import THIS_HOST
from pipeline.processes.process import ProcessSpec
from pipeline.published_weights import PublishedWeights
from pipeline.records import Request, Response, SamplingKey
from pipeline.rollout.engine import SamplingSettings
from pipeline.rollout.sglang import fleet
from pipeline.rollout.sglang.engine import SGLangEngine
from tests.unit import fake_sglang
from tests.unit.fake_sglang import TROUBLE

SAMPLING = SamplingSettings(temperature=0.95, max_response_tokens=40, context_length=64, return_routed_experts=True)
TOKEN = {name: token for token, name in TROUBLE.items()}


def settings(cluster: dict[str, object], **servers: object) -> CellSettings:
    chosen = {"publication": "disk", "startup_timeout_s": 20, **servers}
    overrides = {"preset": "rehearsal", "servers": chosen, "cluster": cluster, "trainer": {"engine": "torch"}}
    return load_settings(overrides=overrides).cell(Cell("grpo-r3", "8", 0))


Start = Callable[..., SGLangEngine]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts engines over fake servers whose folder is tmp_path, and closes them."""
    engines: list[SGLangEngine] = []

    def begin(cluster: dict[str, object] | None = None, **servers: object) -> SGLangEngine:
        cell = settings(cluster or {}, **servers)
        sizes = (cell.model.vocab_size, cell.model.num_layers, cell.model.num_experts, cell.model.num_experts_per_token)

        def spec_of(number: int, port: int) -> ProcessSpec:
            words = (sys.executable, fake_sglang.__file__, str(port), str(tmp_path), *map(str, sizes))
            return ProcessSpec(f"server-{number}", words)

        hosts = (THIS_HOST,) * 2
        engines.append(SGLangEngine(cell, tmp_path, (1,), tmp_path / "logs", hosts, spec_of=spec_of))
        return engines[-1]

    yield begin
    for engine in engines:
        engine.close()


def version(number: int) -> PublishedWeights:
    return PublishedWeights(number, {"weight": torch.full((3,), float(number))})


def request(*prompt: int) -> Request:
    return Request(np.array(prompt, dtype=np.int32), SamplingKey(0, "train", 0, 0, 0))


def log(folder: Path, path: str = "/generate") -> list[dict]:
    entries = [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    return [entry for entry in entries if entry["path"] == path]


def assert_is_answer(response: Response, prompt: tuple[int, ...], of_version: int) -> None:
    """The response holds what the fake says about this prompt, token for token."""
    count = 1 + sum(prompt) % fake_sglang.LIMIT
    ids = (sum(prompt) + np.arange(count)) % 64
    assert response.response_ids.tolist() == ids.tolist()
    assert (response.rollout_logprobs == np.float32(-ids / 64)).all()
    assert response.policy_version.tolist() == [of_version] * count
    assert response.routed_experts is not None
    rows, layers, k = np.indices((len(prompt) + count - 1, 2, 4))
    assert response.routed_experts.dtype == np.uint8 and (response.routed_experts == (rows + layers + k) % 16).all()


def test_generations_use_the_version_loaded_before_them(start: Start, tmp_path: Path) -> None:
    engine = start(num_servers=2)
    futures = []
    for number in (0, 3, 7):
        engine.load(version(number))
        futures += [(number, engine.generate([request(5, number, i) for i in range(20)], SAMPLING)) for _ in range(2)]
    for number, future in futures:
        for i, response in enumerate(future.result(60).responses):
            assert_is_answer(response, (5, number, i), number)
    assert {(entry["version"], entry["prompt"][1]) for entry in log(tmp_path)} == {("0", 0), ("3", 3), ("7", 7)}
    assert len({entry["pid"] for entry in log(tmp_path)}) == 2  # both servers have worked
    assert [(row.version, row.num_tensors, row.num_bytes) for row in engine.publications] == [(0, 1, 12), (3, 1, 12), (7, 1, 12)]


def test_servers_on_other_nodes_are_compared_with_one_that_reads_the_first_node_s_copy(start: Start, tmp_path: Path) -> None:
    engine = start({"num_nodes": 2, "gpus_per_node": 1}, num_servers=2, publication="distributed", verify_interval=2)
    for number in (0, 1, 2):
        engine.load(version(number))
    engine.generate([request(2)], SAMPLING).result(60)
    assert [row.verified for row in engine.publications] == [True, False, True]
    loads = [entry["pid"] for entry in log(tmp_path, "/update_weights_from_disk")]
    assert len(loads) == 2 and len(set(loads)) == 1
    assert len({entry["pid"] for entry in log(tmp_path, "/update_weights_from_distributed")}) == 2


def test_a_load_waits_for_the_long_tail_before_it(start: Start) -> None:
    engine = start()
    engine.load(version(0))
    slow = engine.generate([request(TOKEN["slow"]), request(2)], SAMPLING)
    engine.load(version(1))
    assert engine.generate([request(2)], SAMPLING).result(60).responses[0].policy_version.tolist() == [1, 1, 1]
    assert slow.done() and {int(v) for r in slow.result().responses for v in r.policy_version} == {0}


def test_requests_outside_the_vocabulary_or_the_context_never_reach_a_server(start: Start, tmp_path: Path) -> None:
    engine = start()
    engine.load(version(0))
    with pytest.raises(ValueError, match="id 64 is outside the policy's vocabulary of 64"):
        engine.generate([request(3), request(64)], SAMPLING).result(60)
    with pytest.raises(ValueError, match="leaves no room"):
        engine.generate([request(*[2] * 63)], SAMPLING).result(60)
    assert_is_answer(engine.generate([request(3)], SAMPLING).result(60).responses[0], (3,), 0)
    assert [entry["prompt"] for entry in log(tmp_path)] == [[3]]


def test_the_limit_is_the_cap_or_what_the_context_leaves(start: Start) -> None:
    engine = start()
    engine.load(version(0))
    prompt = (2,) * 61 + (1,)  # 123: 4 tokens, where 64 - 62 - 1 leave one
    (response,) = engine.generate([request(*prompt)], SAMPLING).result(60).responses
    assert (len(response.response_ids), response.finish_reason) == (1, "length")


@pytest.mark.parametrize(
    "trouble", ["die", "hang", "other_version", "two_versions", "abort", "unavailable", "no_routes", "lost_logprob"]
)
def test_only_the_response_that_failed_is_generated_again(start: Start, tmp_path: Path, trouble: str) -> None:
    engine = start(stall_timeout_s=2)
    engine.load(version(0))
    engine.load(version(8))
    prompts = [(i, 2) for i in range(2, 30)]
    done = engine.generate([request(*prompt) for prompt in prompts], SAMPLING).result(60)
    prompts.append((TOKEN[trouble], 3))
    hit = engine.generate([request(*prompts[-1])], SAMPLING).result(60)
    for prompt, response in zip(prompts, done.responses + hit.responses, strict=True):
        assert_is_answer(response, prompt, 8)
    asked = Counter(tuple(entry["prompt"]) for entry in log(tmp_path))
    assert asked.pop(prompts[-1]) == 2 and set(asked.values()) == {1}
    loads = [entry["pid"] for entry in log(tmp_path, "/update_weights_from_disk")]
    assert len(loads) == (3 if trouble in ("die", "hang") else 2)  # version 8 once more, into the server that was started again


def test_a_silent_server_whose_tokens_grow_in_number_is_waited_for(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer takes twice the stall timeout."""
    monkeypatch.setattr(fleet, "_WATCH_S", 0.05)
    engine = start(stall_timeout_s=fake_sglang.LONG_S / 2)
    engine.load(version(0))
    (response,) = engine.generate([request(TOKEN["always_long"], 3)], SAMPLING).result(60).responses
    assert_is_answer(response, (TOKEN["always_long"], 3), 0)
    assert len(log(tmp_path)) == len(log(tmp_path, "/update_weights_from_disk")) == 1


def test_a_server_whose_load_stands_still_is_started_again_within_the_stall_timeout(start: Start, tmp_path: Path) -> None:
    """It still answers its health check, and what it tells of its load."""
    engine = start(stall_timeout_s=1)
    engine.load(version(0))
    engine.generate([request(2)], SAMPLING).result(60)
    began = time.monotonic()
    assert_is_answer(engine.generate([request(TOKEN["hang"])], SAMPLING).result(60).responses[0], (TOKEN["hang"],), 0)
    assert 1.0 < time.monotonic() - began < 8.0  # the timeout and a start
    assert len({entry["pid"] for entry in log(tmp_path)}) == 2


def test_a_server_that_dies_mid_batch_loses_its_own_responses_alone(start: Start, tmp_path: Path) -> None:
    engine = start(num_servers=2)
    engine.load(version(4))
    prompts = [(TOKEN["die"], 0), *((2, i) for i in range(60))]
    responses = engine.generate([request(*prompt) for prompt in prompts], SAMPLING).result(60).responses
    for prompt, response in zip(prompts, responses, strict=True):
        assert_is_answer(response, prompt, 4)
    dead = {entry["pid"] for entry in log(tmp_path) if entry["prompt"] == [TOKEN["die"], 0]}
    again = [prompt for prompt, count in Counter(tuple(entry["prompt"]) for entry in log(tmp_path)).items() if count > 1]
    first_asked = {tuple(entry["prompt"]): entry["pid"] for entry in reversed(log(tmp_path))}
    assert {first_asked[prompt] for prompt in again} <= dead


def test_a_request_that_the_server_refuses_fails_its_generation_alone(start: Start) -> None:
    engine = start()
    engine.load(version(0))
    refused = engine.generate([request(2), request(TOKEN["always_refused"])], SAMPLING)
    with pytest.raises(ValueError, match="too long for this server"):
        refused.result(60)
    assert_is_answer(engine.generate([request(2)], SAMPLING).result(60).responses[0], (2,), 0)


def test_a_response_that_is_never_usable_ends_the_generation(start: Start, tmp_path: Path) -> None:
    engine = start()
    engine.load(version(0))
    with pytest.raises(EngineDied, match="8 attempts; the last: the server aborted the response"):
        engine.generate([request(TOKEN["always_abort"])], SAMPLING).result(60)
    assert len(log(tmp_path)) == 8


def test_a_server_that_cannot_start_is_reported_with_its_log(start: Start, tmp_path: Path) -> None:
    engine = SGLangEngine(
        settings({}),
        tmp_path,
        (1,),
        tmp_path / "logs",
        spec_of=lambda number, port: ProcessSpec("server-0", (sys.executable, "-c", "1/0")),
    )
    engine.load(version(0))
    with pytest.raises(EngineDied, match="ZeroDivisionError"):
        engine.generate([request(2)], SAMPLING).result(60)
    with pytest.raises(EngineDied, match="ZeroDivisionError"):
        engine.load(version(1))
    engine.close()


def test_a_server_lost_during_a_publication_is_started_again_and_reads_the_version_from_disk(start: Start, tmp_path: Path) -> None:
    engine = start(num_servers=2)
    engine.load(version(0))
    engine.load(version(13))
    assert_is_answer(engine.generate([request(3)], SAMPLING).result(60).responses[0], (3,), 13)
    assert [(row.version, row.route) for row in engine.publications] == [(0, "disk"), (13, "disk")]


def test_servers_that_are_lost_again_and_again_end_the_engine(start: Start) -> None:
    engine = start()
    engine.load(version(14))
    with pytest.raises(EngineDied, match="lost 4 times with one version"):
        engine.generate([request(2)], SAMPLING).result(60)


@pytest.mark.parametrize("number", [15, 17])
def test_a_server_that_refuses_a_version_is_started_again_and_reads_it_from_disk(start: Start, tmp_path: Path, number: int) -> None:
    engine = start(num_servers=2)
    engine.load(version(0))
    engine.load(version(number))
    assert_is_answer(engine.generate([request(3)], SAMPLING).result(60).responses[0], (3,), number)
    assert [(row.version, row.route) for row in engine.publications] == [(0, "disk"), (number, "disk")]
    assert len({entry["pid"] for entry in log(tmp_path, "/update_weights_from_disk")}) == 4


def test_a_version_that_is_always_refused_ends_the_engine_with_the_reason(start: Start) -> None:
    engine = start()
    engine.load(version(16))
    with pytest.raises(EngineDied, match=r"lost 4 times with one version.*no memory left"):
        engine.generate([request(2)], SAMPLING).result(60)


def test_more_connections_than_the_system_allows_are_refused_at_the_start(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1024, 4096))
    with pytest.raises(ValueError, match=r"is 4000, but this process may open 4096 files .* lower servers\.requests_in_flight"):
        start(num_servers=2, requests_in_flight=2000)


def test_closing_answers_what_is_outstanding_and_can_be_repeated(start: Start) -> None:
    engine = start()
    engine.load(version(0))
    future = engine.generate([request(TOKEN["hang"])], SAMPLING)
    engine.close()
    engine.close()
    with pytest.raises(EngineDied, match="closed"):
        future.result(1)
    with pytest.raises(EngineDied, match="closed"):
        engine.generate([request(2)], SAMPLING)


def test_a_damaged_folder_of_weights_reaches_the_generations_that_follow(start: Start, tmp_path: Path) -> None:
    engine = start()
    folder = tmp_path / "weights"
    version(2).write(folder)
    published = PublishedWeights.read(folder)
    (folder / "model.safetensors").write_bytes(b"damaged")
    engine.load(published)
    with pytest.raises(ValueError, match="cannot be read"):
        engine.generate([request(2)], SAMPLING).result(60)
