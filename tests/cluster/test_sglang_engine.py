"""The SGLang engine with SGLang itself, on a CPU in float32: one server for all tests, started again once by a kill.

At equal weights its log-probs and experts are those of the project's own policy at every temperature; each route of publication
leaves the same weights in the server; a killed server costs its own responses alone; its load tells that it generates; the loop
runs over it with the lags of the closed form, and ends when a training rank is killed while it waits for rollouts.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.artifacts import Cell
from pipeline.cell.loop import CellInputs, CellLoop
from pipeline.config import CellSettings, load_settings
from pipeline.policy.cpu import configure_cpu
from pipeline.policy.hf_folder import hf_state, write_policy
from pipeline.policy.packing import pack
from pipeline.policy.qwen3_moe import Policy, RouterTrace
from pipeline.policy.tokenizer import Tokenizer, build_tokenizer
from pipeline.problems.prepare import prepare, read_problems
from pipeline.processes.errors import EngineDied
from pipeline.published_weights import PublishedWeights
from pipeline.records import Response
from pipeline.rollout.engine import Generation, SamplingSettings
from pipeline.rollout.schedule import Schedule
from pipeline.rollout.sglang.client import ServerClient
from pipeline.rollout.sglang.engine import SGLangEngine
from pipeline.trainer.megatron.trainer import MegatronTrainer
from pipeline.trainer.torch_trainer import TorchTrainer
from tests.cluster.test_megatron_trainer import rank_process
from tests.engines.conftest import policy, requests


def cell(lag: str, **overrides: Any) -> CellSettings:
    chosen = {
        "preset": "rehearsal",
        "rollout": {"group_size": 4, "prompts_per_step": 4, "context_length": 64, "generate_ahead": 1},
        "trainer": {"engine": "torch", "steps": 10, "learning_rate": 1e-3, "checkpoint_interval": 5},
        "evaluation": {"interval": 5, "num_samples": 2},
        **overrides,
    }
    return load_settings(overrides=chosen).cell(Cell("grpo-r3", lag, 0))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    configure_cpu(1)
    return build_tokenizer(cell("8").model.vocab_size)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Path:
    folder = tmp_path_factory.mktemp("base")
    write_policy(folder, policy(cell("8").model, seed=0), tokenizer)
    return folder


@pytest.fixture(scope="module")
def engine(base: Path, tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SGLangEngine]:
    engine = SGLangEngine(cell("8"), base, tokenizer.eos_token_ids, tmp_path_factory.mktemp("logs"))
    yield engine
    engine.close()


def generate(
    engine: SGLangEngine, tokenizer: Tokenizer, weights: PublishedWeights, temperature: float, group_size: int = 4
) -> Generation:
    engine.load(weights)
    sampling = SamplingSettings(temperature, max_response_tokens=40, context_length=64, return_routed_experts=True)
    return engine.generate(requests(tokenizer, group_size, weights.version), sampling).result(600)


@torch.no_grad()
def scores(of: Policy, responses: Sequence[Response], temperature: float) -> tuple[np.ndarray, list[np.ndarray]]:
    """Log-probs of all response tokens by our policy with its own routing, and per layer its experts, sorted, for every token."""
    batch = pack([r.prompt_ids for r in responses], [r.response_ids for r in responses])
    trace = RouterTrace()
    logprobs = of.response_logprobs(batch, temperature, trace=trace).logprobs
    return logprobs.numpy(), [chosen.sort(-1).values.numpy() for chosen in trace.chosen]


@pytest.mark.parametrize("temperature", [0.5, 0.95, 1.0, 1.5])
def test_log_probs_and_experts_are_those_of_our_policy(engine: SGLangEngine, tokenizer: Tokenizer, temperature: float) -> None:
    ours = policy(cell("8").model, seed=3)
    responses = generate(engine, tokenizer, PublishedWeights(3, hf_state(ours)), temperature).responses
    logprobs, experts = scores(ours, responses, temperature)
    theirs = np.concatenate([response.rollout_logprobs for response in responses])
    assert np.abs(theirs - logprobs).max() <= 1e-5
    ends = np.cumsum([len(r.prompt_ids) + len(r.response_ids) for r in responses])
    for layer, chosen in enumerate(experts):
        kept = np.delete(chosen, ends - 1, axis=0)  # the last token of a sequence is never forwarded
        recorded = np.concatenate([np.sort(r.routed_experts[:, layer], axis=-1) for r in responses if r.routed_experts is not None])
        assert (recorded == kept).all()
    assert {response.finish_reason for response in responses} <= {"stop", "length"}
    for response in responses:
        assert (response.response_ids[-1] in tokenizer.eos_token_ids) == (response.finish_reason == "stop")
        assert response.finish_reason == "stop" or len(response.response_ids) == min(40, 64 - len(response.prompt_ids) - 1)


@pytest.mark.parametrize("route", ["disk", "tensor", "distributed"])
def test_every_route_leaves_the_published_weights_in_the_server(engine: SGLangEngine, tokenizer: Tokenizer, route: str) -> None:
    engine.servers = engine.servers.model_copy(update={"publication": route, "verify_interval": 1})
    version = {"disk": 10, "tensor": 11, "distributed": 12}[route]
    ours = policy(cell("8").model, seed=version)
    responses = generate(engine, tokenizer, PublishedWeights(version, hf_state(ours)), 1.0, group_size=1).responses
    theirs = np.concatenate([response.rollout_logprobs for response in responses])
    assert np.abs(theirs - scores(ours, responses, 1.0)[0]).max() <= 1e-5
    done = engine.publications[-1]
    weights = hf_state(ours).values()
    assert (done.version, done.route, done.verified) == (version, route, True)
    assert (done.num_tensors, done.num_bytes) == (len(weights), sum(tensor.nbytes for tensor in weights))


def test_a_killed_server_is_started_again_with_the_published_version(
    engine: SGLangEngine, tokenizer: Tokenizer, base: Path
) -> None:
    ours = policy(cell("8").model, seed=20)
    engine.load(PublishedWeights(20, hf_state(ours)))
    sampling = SamplingSettings(1.0, max_response_tokens=40, context_length=64, return_routed_experts=True)
    before = engine.generate(requests(tokenizer, 1), sampling)
    before.result(600)
    future = engine.generate(requests(tokenizer, 32), sampling)
    os.kill(server_pid(base), signal.SIGKILL)
    responses = future.result(600).responses
    assert len(responses) == 128
    assert {int(version) for response in responses for version in response.policy_version} == {20}
    theirs = np.concatenate([response.rollout_logprobs for response in responses])
    assert np.abs(theirs - scores(ours, responses, 1.0)[0]).max() <= 1e-5


def server_pid(model: Path) -> int:
    """The server's first process: the one that runs the launcher on `model` and is nobody's guard."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if str(model) in words and words[2].endswith("cpu/launch.py"):
            return int(process.name)
    raise AssertionError(f"no server of {model} runs")


def test_the_load_moves_while_the_server_generates_and_then_stands_still(engine: SGLangEngine, tokenizer: Tokenizer) -> None:
    sampling = SamplingSettings(1.0, max_response_tokens=40, context_length=64, return_routed_experts=True)
    engine.load(PublishedWeights(30, hf_state(policy(cell("8").model, seed=30))))
    engine.generate(requests(tokenizer, 1), sampling).result(600)

    async def loads(of: Future[Generation]) -> tuple[list[Any], list[Any]]:
        client = ServerClient(engine.endpoints[0], None, 1)
        busy, idle = [], []
        while not of.done():
            busy.append(await client.load())
            await asyncio.sleep(0.1)
        for _ in range(2):
            await asyncio.sleep(1.0)
            idle.append(await client.load())
        await client.close()
        return busy, idle

    busy, idle = asyncio.run(loads(engine.generate(requests(tokenizer, 32), sampling)))
    assert None not in busy + idle and len(set(busy)) > 2 and idle[0] == idle[1]


def cell_inputs(folder: Path, tokenizer: Tokenizer) -> CellInputs:
    problems = load_settings(overrides={"preset": "rehearsal"}).problems
    prepare(problems.model_copy(update={"train_count": 64, "evaluation_count": 4, "scoring_count": 4}), folder)
    train, evaluation = (read_problems(folder / f"{name}.parquet") for name in ("train", "evaluation"))
    return CellInputs(train, evaluation, tokenizer)


@pytest.mark.parametrize("lag", ["1", "8"])
def test_the_loop_trains_over_it_with_the_lags_of_the_closed_form(
    engine: SGLangEngine, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lag: str
) -> None:
    def by_length(response: Response, *_: object) -> str:
        return "correct" if len(response.response_ids) % 2 else "incorrect"  # so that an untrained policy moves

    monkeypatch.setattr("pipeline.rollout.collector.grade_response", by_length)
    settings = cell(lag)
    trainer = TorchTrainer(settings, hf_state(policy(settings.model, seed=0)))
    route = {"1": "tensor", "8": "distributed"}[lag]
    engine.servers = engine.servers.model_copy(update={"publication": route, "verify_interval": 4})
    published = len(engine.publications)
    inputs = cell_inputs(tmp_path / "problems", tokenizer)
    run = CellLoop(settings, inputs, engine, trainer, tmp_path / "state", lambda *_: None)
    state = run.run()
    engine.generate([], run.collector.sampling).result(600)  # the last version is published once this is answered
    schedule = Schedule.of(settings)
    assert [(row.samples.lag_min, row.samples.lag_max) for row in state.step_rows] == [(schedule.lag(i),) * 2 for i in range(10)]
    assert [row.version for row in engine.publications[published:]] == {"1": list(range(11)), "8": [0, 8]}[lag]
    assert state.step_rows[0].update.diagnostics["mismatch"] < 1e-4  # equal weights: the rest is float32 rounding
    if lag == "8":  # step 8 has lag 8, step 9 lag 1
        assert state.step_rows[9].update.diagnostics["mismatch"] < state.step_rows[8].update.diagnostics["mismatch"]
    assert not any(row.update.skipped for row in state.step_rows)


def test_a_rank_that_is_killed_while_rollouts_are_generated_ends_the_loop(
    engine: SGLangEngine, base: Path, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = cell(
        "8",
        rollout={"group_size": 16, "prompts_per_step": 64, "context_length": 64, "generate_ahead": 1},
        trainer={"engine": "megatron", "steps": 10, "checkpoint_interval": 5},
        megatron={"num_ranks": 1, "tensor_parallel": 1, "expert_parallel": 1},
        cluster={"scratch": str(tmp_path)},
    )
    trainer, asked = MegatronTrainer(settings, base, tmp_path / "logs"), list[Future[Generation]]()
    usual, published, killed = engine.generate, len(engine.publications), list[float]()

    def generate(*arguments: Any) -> Future[Generation]:
        asked.append(usual(*arguments))
        return asked[-1]

    def kill() -> None:
        while len(engine.publications) == published:
            time.sleep(0.1)
        killed.append(time.monotonic())
        os.kill(rank_process(trainer, 0), signal.SIGKILL)

    monkeypatch.setattr(engine, "generate", generate)
    run = CellLoop(settings, cell_inputs(tmp_path / "problems", tokenizer), engine, trainer, tmp_path / "state", lambda *_: None)
    killing = threading.Thread(target=kill, daemon=True)
    try:
        killing.start()
        with pytest.raises(EngineDied, match="rank-0 ended with exit code 137"):
            run.run()
        assert time.monotonic() - killed[0] < 10.0 and not asked[0].done()
        assert len(asked[0].result(600).responses) == 64 * 16  # the servers know nothing of it
    finally:
        trainer.close()
