"""The policy: independence of packing, log-probs, entropy, record and replay of experts, load balance."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pipeline.policy.packing import BUCKET_SIZE, PackedBatch, pack
from pipeline.policy.qwen3_moe import Policy, RouterTrace
from pipeline.sections import ModelSettings
from tests.unit.test_policy_hf_folder import make_policy

RNG = np.random.default_rng(0)
PROMPTS = [RNG.integers(0, 64, RNG.integers(1, 12), dtype=np.int32) for _ in range(BUCKET_SIZE + 9)]
RESPONSES = [RNG.integers(0, 64, RNG.integers(1, 30), dtype=np.int32) for _ in PROMPTS]


def recorded_experts(policy: Policy, batch: PackedBatch, lengths: list[int]) -> list[NDArray[np.uint8]]:
    """What an engine with the same weights would report: every token but the last of each sequence."""
    trace = RouterTrace()
    with torch.no_grad():
        policy(batch, trace=trace)
    return [rows[:-1].numpy().astype(np.uint8) for rows in torch.stack(trace.chosen, dim=1).split(lengths)]


def total_lengths() -> list[int]:
    return [len(prompt) + len(response) for prompt, response in zip(PROMPTS, RESPONSES, strict=True)]


def test_a_sequence_does_not_feel_its_neighbours() -> None:
    policy = make_policy()
    with torch.no_grad():
        together = policy.response_logprobs(pack(PROMPTS, RESPONSES), 1.0).logprobs.split([len(r) for r in RESPONSES])
        for prompt, response, logprobs in zip(PROMPTS, RESPONSES, together, strict=True):
            alone = policy.response_logprobs(pack([prompt], [response]), 1.0).logprobs
            assert (alone - logprobs).abs().max() < 2e-6
    policy = policy.double()
    with torch.no_grad():
        first = policy.response_logprobs(pack(PROMPTS, RESPONSES), 1.0).logprobs[: len(RESPONSES[0])]
        other = policy.response_logprobs(pack([PROMPTS[0], PROMPTS[5]], [RESPONSES[0], RESPONSES[7]]), 1.0).logprobs
    assert (first - other[: len(first)]).abs().max() < 1e-12


def test_gradient_is_the_sum_over_sequences() -> None:
    policy = make_policy().double()

    def gradient(prompts: list[NDArray[np.int32]], responses: list[NDArray[np.int32]]) -> torch.Tensor:
        loss = policy.response_logprobs(pack(prompts, responses), 0.7).logprobs.square().sum()
        return torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, list(policy.parameters()))])

    whole = gradient(PROMPTS, RESPONSES)
    parts = gradient(PROMPTS[:3], RESPONSES[:3]) + gradient(PROMPTS[3:], RESPONSES[3:])
    assert (whole - parts).abs().max() < 1e-10 * whole.abs().max()


def test_later_tokens_are_not_seen() -> None:
    policy = make_policy()
    changed = RESPONSES[0].copy()
    changed[-1] = (changed[-1] + 1) % 64
    with torch.no_grad():
        before, after = (policy(pack(PROMPTS[:1], [response])) for response in (RESPONSES[0], changed))
    assert (before[:-1] - after[:-1]).abs().max() < 1e-6
    assert (before[-1] - after[-1]).abs().max() > 0.1


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
def test_logprobs_and_entropy_are_of_the_tempered_distribution(temperature: float) -> None:
    policy, batch = make_policy(), pack(PROMPTS, RESPONSES)
    with torch.no_grad():
        scores = policy.response_logprobs(batch, temperature, entropy="detached")
        expected = (policy(batch)[batch.scored_rows] @ policy.head.t() / temperature).log_softmax(-1)
    assert scores.entropy is not None
    assert torch.allclose(scores.logprobs, expected.gather(1, batch.scored_ids[:, None])[:, 0], atol=1e-5)
    assert torch.allclose(scores.entropy, -(expected.exp() * expected).sum(-1), atol=1e-5)


def test_entropy_of_a_zero_head_is_that_of_the_uniform_distribution() -> None:
    policy = make_policy()
    torch.nn.init.zeros_(policy.head)
    scores = policy.response_logprobs(pack(PROMPTS, RESPONSES), 1.0, entropy="differentiable")
    assert scores.entropy is not None
    assert torch.allclose(scores.entropy, torch.tensor(math.log(64)))
    assert torch.allclose(scores.logprobs, torch.tensor(-math.log(64)))


def test_entropy_carries_a_gradient_only_when_asked() -> None:
    policy, batch = make_policy(), pack(PROMPTS[:2], RESPONSES[:2])
    detached = policy.response_logprobs(batch, 1.0, entropy="detached").entropy
    differentiable = policy.response_logprobs(batch, 1.0, entropy="differentiable").entropy
    assert detached is not None and not detached.requires_grad
    assert differentiable is not None and differentiable.requires_grad


@pytest.mark.parametrize("dense_layers", [(), (0,), (1,)])
def test_replay_of_own_routing_changes_nothing(dense_layers: tuple[int, ...]) -> None:
    policy = make_policy(dense_layers=dense_layers)
    batch = pack(PROMPTS, RESPONSES)
    experts = recorded_experts(policy, batch, total_lengths())
    replayed = pack(PROMPTS, RESPONSES, experts)
    assert replayed.routed_experts is not None
    assert replayed.routed_experts.shape[1] == 2 - len(dense_layers)
    own, again = RouterTrace(), RouterTrace()
    with torch.no_grad():
        plain = policy(batch, trace=own)
        assert torch.equal(policy(replayed, replayed.routed_experts, trace=again), plain)
        logprobs = policy.response_logprobs(replayed, 1.0, replayed.routed_experts).logprobs
        assert torch.equal(logprobs, policy.response_logprobs(batch, 1.0).logprobs)
    assert all(torch.equal(one, other) for one, other in zip(own.chosen, again.chosen, strict=True))


def test_replay_uses_the_recorded_experts_and_the_policy_own_choice_for_last_tokens() -> None:
    policy, other = make_policy(0), make_policy(1)
    batch = pack(PROMPTS, RESPONSES, recorded_experts(other, pack(PROMPTS, RESPONSES), total_lengths()))
    assert batch.routed_experts is not None
    trace = RouterTrace()
    scores = policy.response_logprobs(batch, 1.0, batch.routed_experts, trace=trace)
    last = np.cumsum(total_lengths()) - 1
    for layer, chosen in enumerate(trace.chosen):
        recorded = batch.routed_experts[:, layer]
        assert (recorded[last] == -1).all() and (chosen[last] >= 0).all()
        keep = recorded[:, 0] >= 0
        assert torch.equal(chosen[keep], recorded[keep])
    # the shortcut that runs the last layer's experts on scored rows only replays the same rows
    assert torch.allclose(policy.response_logprobs(batch, 1.0, batch.routed_experts).logprobs, scores.logprobs, atol=1e-6)
    with torch.no_grad():
        assert not torch.allclose(policy.response_logprobs(batch, 1.0).logprobs, scores.logprobs, atol=1e-2)


def test_experts_of_another_model_are_refused() -> None:
    policy, wider = make_policy(), make_policy(num_experts_per_token=4)
    batch = pack(PROMPTS, RESPONSES, recorded_experts(wider, pack(PROMPTS, RESPONSES), total_lengths()))
    with pytest.raises(ValueError, match=r"routed experts of shape \[\d+, 2, 4\] .* = \(2, 3\)"):
        policy.response_logprobs(batch, 1.0, batch.routed_experts)


def test_replayed_gates_are_the_current_softmax_over_the_replayed_experts() -> None:
    """One token, one layer of experts whose outputs are all alike: the gates then sum to one whatever was chosen."""
    policy = make_policy(num_layers=1)
    layer: Any = policy.layers[0]
    with torch.no_grad():
        layer.gate_up.copy_(layer.gate_up[:1].expand_as(layer.gate_up))
        layer.down.copy_(layer.down[:1].expand_as(layer.down))
    own = policy.response_logprobs(pack(PROMPTS, RESPONSES), 1.0).logprobs
    odd = [np.tile(np.array([1, 4, 6], np.uint8), (n - 1, 1, 1)) for n in total_lengths()]
    batch = pack(PROMPTS, RESPONSES, odd)
    assert torch.allclose(policy.response_logprobs(batch, 1.0, batch.routed_experts).logprobs, own, atol=1e-5)


def test_router_keeps_its_gradient_under_replay_and_only_for_replayed_experts() -> None:
    policy = make_policy(num_layers=1)
    odd = [np.tile(np.array([1, 4, 6], np.uint8), (n - 1, 1, 1)) for n in total_lengths()]
    batch = pack(PROMPTS, RESPONSES, odd)
    policy.response_logprobs(batch, 1.0, batch.routed_experts).logprobs.sum().backward()
    layer: Any = policy.layers[0]
    gradient = layer.router.grad.abs().sum(1)
    assert (gradient[[1, 4, 6]] > 0).all()
    assert not gradient[[0, 2, 3, 5, 7]].any()


def test_balance_loss_is_one_for_a_uniform_router_and_num_experts_over_k_for_a_collapsed_one() -> None:
    policy = make_policy(num_layers=1)
    layer: Any = policy.layers[0]
    uniform, collapsed = RouterTrace(), RouterTrace()
    batch = pack(PROMPTS, RESPONSES)
    with torch.no_grad():
        layer.router.zero_()
        policy(batch, trace=uniform)
        # one direction of the state decides: experts 0-2 always win
        layer.feed_forward_norm.zero_()[0] = 1e4
        policy.embedding[:, 0] = 100.0
        layer.router[:3, 0] = 1.0
        policy(batch, trace=collapsed)
    assert float(uniform.balance_losses[0]) == pytest.approx(1.0)
    assert float(collapsed.balance_losses[0]) == pytest.approx(8 / 3, rel=1e-4)


def test_same_generator_seed_same_weights() -> None:
    settings: ModelSettings = make_policy().settings
    one, two, three = (Policy(settings, torch.Generator().manual_seed(seed)) for seed in (3, 3, 4))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(one.embedding, three.embedding)


def test_pack_places_every_token() -> None:
    batch = pack(PROMPTS, RESPONSES)
    assert batch.token_ids.tolist() == [int(t) for pair in zip(PROMPTS, RESPONSES, strict=True) for part in pair for t in part]
    assert batch.scored_ids.tolist() == [int(t) for response in RESPONSES for t in response]
    assert torch.equal(batch.token_ids[batch.scored_rows + 1], batch.scored_ids)
    assert batch.response_lengths.tolist() == [len(response) for response in RESPONSES]
    assert [int(p) for p in batch.positions[: len(PROMPTS[0]) + 2]] == [*range(total_lengths()[0])][: len(PROMPTS[0]) + 2]
    assert sorted(row for bucket in batch.buckets for row in bucket.rows.tolist()) == list(range(len(batch.token_ids)))
    for bucket in batch.buckets:
        assert torch.equal(bucket.padded_to_row[bucket.row_to_padded], bucket.rows)


def test_pack_refuses_what_it_cannot_place() -> None:
    token = np.zeros(1, np.int32)
    with pytest.raises(ValueError, match="no empty prompt"):
        pack([token], [np.zeros(0, np.int32)])
    with pytest.raises(ValueError, match="at least one"):
        pack([], [])
    with pytest.raises(ValueError, match="sequence 0 of 2 tokens came with 2 rows of experts, expected 1"):
        pack([token], [token], [np.zeros((2, 2, 3), np.uint8)])
    with pytest.raises(ValueError, match="2 sequences came with routed experts for 1"):
        pack([token, token], [token, token], [np.zeros((1, 2, 3), np.uint8)])
