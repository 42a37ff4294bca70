"""The torch rollout engine against the trainer's policy: same weights and dtype, same distribution, experts and versions."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
import torch

from pipeline.policy.packing import pack
from pipeline.processes.errors import EngineDied
from pipeline.records import Request, Response, SamplingKey
from pipeline.rollout.engine import SamplingSettings
from pipeline.rollout.sampling import uniforms
from pipeline.rollout.torch_decoder import TorchDecoder
from pipeline.rollout.torch_engine import EngineSpec, InlineTorchEngine, TorchRolloutEngine
from tests.engines.conftest import policy, published, requests

SAMPLING = SamplingSettings(temperature=1.0, max_response_tokens=20, context_length=64, return_routed_experts=True)


def decoder(model, tokenizer, dtype=torch.float32) -> TorchDecoder:
    made = TorchDecoder(model, dtype, tokenizer.eos_token_ids, tokenizer.pad_token_id)
    made.load(7, published(model).weights)
    return made


def trainer_logprobs(model, responses: list[Response], temperature: float, replay: bool) -> torch.Tensor:
    experts = [r.routed_experts for r in responses] if replay else None
    packed = pack([r.prompt_ids for r in responses], [r.response_ids for r in responses], experts)
    with torch.no_grad():
        return policy(model).response_logprobs(packed, temperature, packed.routed_experts).logprobs


@pytest.mark.parametrize("temperature", [0.5, 0.95, 1.0, 1.5])
@pytest.mark.parametrize("which", ["model", "dense_first"])
def test_float32_engine_and_trainer_agree(request, tokenizer, which, temperature):
    model = request.getfixturevalue(which)
    sampling = SamplingSettings(temperature, 20, 64, return_routed_experts=True)
    responses = decoder(model, tokenizer).generate(requests(tokenizer), sampling)
    rollout = torch.from_numpy(np.concatenate([r.rollout_logprobs for r in responses]))
    torch.testing.assert_close(trainer_logprobs(model, responses, temperature, replay=False), rollout, atol=2e-5, rtol=0)
    torch.testing.assert_close(trainer_logprobs(model, responses, temperature, replay=True), rollout, atol=2e-5, rtol=0)


def test_replay_removes_the_routing_part_of_the_mismatch(model, tokenizer):
    """In bfloat16 some routes flip; replaying them leaves precision alone, so the largest differences go."""
    responses = decoder(model, tokenizer, torch.bfloat16).generate(requests(tokenizer, group_size=32), SAMPLING)
    rollout = torch.from_numpy(np.concatenate([r.rollout_logprobs for r in responses]))
    own = (trainer_logprobs(model, responses, 1.0, replay=False) - rollout).abs()
    replayed = (trainer_logprobs(model, responses, 1.0, replay=True) - rollout).abs()
    assert 0 < replayed.mean() < own.mean()
    assert replayed.max() < 0.5 * own.max()


def test_sampled_frequencies_are_the_recorded_probabilities(model, tokenizer):
    prompt = np.array(tokenizer.encode("17+5-4?"), dtype=np.int32)
    many = [Request(prompt, SamplingKey(0, "train", 0, 0, sample)) for sample in range(8000)]
    responses = decoder(model, tokenizer).generate(many, SamplingSettings(1.0, 1, 64))
    tokens = np.array([r.response_ids[0] for r in responses])
    probability = {int(r.response_ids[0]): float(np.exp(r.rollout_logprobs[0])) for r in responses}
    for token, p in probability.items():
        assert abs((tokens == token).mean() - p) < 4 * np.sqrt(p * (1 - p) / len(tokens)) + 1 / len(tokens)


def test_a_response_does_not_depend_on_its_neighbours(model, tokenizer):
    """Randomness is keyed by the response; float32 arithmetic differs between batches by rounding only."""
    everything = requests(tokenizer, group_size=8)
    together = decoder(model, tokenizer).generate(everything, SAMPLING)
    reverse = decoder(model, tokenizer).generate(everything[::-1], SAMPLING)[::-1]
    alone = [decoder(model, tokenizer).generate([request], SAMPLING)[0] for request in everything[:6]]
    for one, other in [*zip(together, reverse, strict=True), *zip(together, alone, strict=False)]:
        np.testing.assert_array_equal(one.response_ids, other.response_ids)
        np.testing.assert_array_equal(one.routed_experts, other.routed_experts)
        np.testing.assert_allclose(one.rollout_logprobs, other.rollout_logprobs, atol=1e-5)


def test_shapes_limits_and_finish_reasons(model, tokenizer):
    sampling = SamplingSettings(1.0, max_response_tokens=12, context_length=20, return_routed_experts=True)
    responses = decoder(model, tokenizer).generate(requests(tokenizer, group_size=16), sampling)
    reasons = set()
    for response in responses:
        prompt, tokens = len(response.prompt_ids), len(response.response_ids)
        stopped = int(response.response_ids[-1]) in tokenizer.eos_token_ids
        assert not set(response.response_ids[:-1].tolist()) & set(tokenizer.eos_token_ids)
        assert response.finish_reason == ("stop" if stopped else "length")
        assert stopped or tokens == min(12, 20 - prompt - 1)
        routes = response.routed_experts
        assert routes is not None and routes.shape == (prompt + tokens - 1, 2, 4) and routes.dtype == np.uint8
        assert all(len(set(row)) == 4 for layer in routes for row in layer.tolist())
        assert (response.policy_version == 7).all() and response.policy_version.dtype == np.int32
        reasons.add(response.finish_reason)
    assert reasons == {"stop", "length"}


def test_prompts_that_cannot_be_served_are_refused(model, tokenizer):
    key = SamplingKey(0, "train", 0, 0, 0)
    for ids, message in [([64], r"lie in 0\.\.63"), ([], "non-empty"), ([5] * 63, "leaves no room")]:
        with pytest.raises(ValueError, match=message):
            decoder(model, tokenizer).generate([Request(np.array(ids, dtype=np.int32), key)], SAMPLING)


def test_uniforms_belong_to_the_key():
    keys = [SamplingKey(0, "train", 3, p, s) for p in range(4) for s in range(4)]
    rows = uniforms(keys, 10)
    np.testing.assert_array_equal(uniforms(keys[::-1], 10)[::-1], rows)
    np.testing.assert_array_equal(uniforms(keys, 6), rows[:, :6])
    assert len(np.unique(rows)) == rows.size
    others = [SamplingKey(1, "train", 3, 0, 0), SamplingKey(0, "scoring", 3, 0, 0), SamplingKey(0, "train", 4, 0, 0)]
    assert not np.isin(uniforms(others, 10), rows).any()


@pytest.fixture(scope="module")
def spec(model, tokenizer) -> EngineSpec:
    return EngineSpec(model, "bfloat16", tokenizer.eos_token_ids, tokenizer.pad_token_id)


def test_the_process_obeys_in_order_and_equals_the_inline_engine(model, tokenizer, spec):
    """Requested before a load: sampled by the old version; and every token, log-prob and expert equals the inline engine's."""
    process, inline = TorchRolloutEngine(spec), InlineTorchEngine(spec)
    try:
        answers = []
        for engine in (process, inline):
            engine.load(published(model, 0, seed=0))
            first = engine.generate(requests(tokenizer, draw=0), SAMPLING)
            engine.load(published(model, 8, seed=1))
            second = engine.generate(requests(tokenizer, draw=1), SAMPLING)
            answers.append([*first.result(60).responses, *second.result(60).responses])
        assert [r.policy_version[0] for r in answers[0]] == [0] * 16 + [8] * 16
        for one, other in zip(*answers, strict=True):
            for name in ("response_ids", "rollout_logprobs", "routed_experts", "policy_version"):
                np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        refused = process.generate([Request(np.array([99], dtype=np.int32), SamplingKey(0, "train", 0, 0, 0))], SAMPLING)
        with pytest.raises(ValueError, match=r"lie in 0\.\.63"):
            refused.result(60)
    finally:
        process.close()
        process.close()


def test_a_dead_engine_fails_its_futures_with_a_remedy(model, tokenizer, spec):
    engine = TorchRolloutEngine(spec)
    try:
        engine.load(published(model))
        engine.generate(requests(tokenizer), SAMPLING).result(60)
        outstanding = engine.generate(requests(tokenizer, group_size=2000), SAMPLING)
        os.kill(engine._process.pid, signal.SIGKILL)
        with pytest.raises(EngineDied, match=r"exit code -9.*resumes from its last checkpoint"):
            outstanding.result(60)
        with pytest.raises(EngineDied):
            for _ in range(100):
                engine.load(published(model))
    finally:
        engine.close()
