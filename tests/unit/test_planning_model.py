"""Sizes, memory and storage against published numbers of the model and against counting by hand."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from pipeline.config import load_settings
from pipeline.planning.bounds import Bounds
from pipeline.planning.constants import DEVICES, GB, gpu_rates
from pipeline.planning.deployment import Ranks, Servers, deployment_of
from pipeline.planning.estimate import plan_run
from pipeline.planning.memory import (
    fits,
    offloaded_bytes,
    optimizer_bytes,
    parameters_per_rank,
    route_bytes,
    server_fits,
    total_bytes,
    trainer_memory,
)
from pipeline.planning.model_size import QWEN3_30B_A3B, QWEN25_7B, ModelSize
from pipeline.planning.storage import check_signal_lead, checkpoint_size
from pipeline.planning.timing import Lengths, cache_tokens, slots_of
from pipeline.policy.qwen3_moe import Policy

PAPER = Ranks(4, 4, 1, 4, 1, distributed_optimizer=True, optimizer_offload=True, recompute=True, logprob_chunk_tokens=2048)


def test_the_policy_of_the_paper_has_the_published_sizes():
    size = QWEN3_30B_A3B
    assert size.weight_bytes() == pytest.approx(61.06e9, rel=1e-3)
    assert size.parameters == pytest.approx(30.5e9, rel=2e-3) and size.active_parameters == pytest.approx(3.04e9, rel=1e-3)
    assert size.cache_bytes_per_token() == 96 * 1024
    assert size.replay_bytes_per_token == 384
    assert ModelSize.of(load_settings(overrides={"preset": "full"}).model) == size
    assert QWEN25_7B.parameters == pytest.approx(7.62e9, rel=2e-3)


def test_floating_point_operations_are_those_behind_published_utilisations():
    """23.0 GFLOP per token at 4k (Megatron-Bridge); 1,594 and 764 tokens/s/GPU are 15.4 % and 2.9 % of an H100 (prime-rl)."""
    backward_too = 3
    assert backward_too * QWEN3_30B_A3B.forward_flops(4096 / 2) == pytest.approx(23.0e9, rel=5e-3)
    for tokens_per_s, sequence, utilisation in ((1594, 65536, 0.154), (764, 16384, 0.029)):
        flops = tokens_per_s * backward_too * QWEN3_30B_A3B.forward_flops(sequence / 2)
        assert flops / DEVICES["H100"].peak_flops == pytest.approx(utilisation, rel=0.01)


def test_parameters_are_those_of_the_torch_policy():
    settings = load_settings()
    count = sum(parameter.numel() for parameter in Policy(settings.model, torch.Generator().manual_seed(0)).parameters())
    assert ModelSize.of(settings.model).parameters == count
    dense = settings.model.model_copy(update={"dense_layers": (0,), "num_layers": 3})
    count = sum(parameter.numel() for parameter in Policy(dense, torch.Generator().manual_seed(0)).parameters())
    assert ModelSize.of(dense).parameters == count


def test_a_decode_step_of_few_sequences_reads_few_experts():
    size = QWEN3_30B_A3B
    assert size.read_bytes(1) == pytest.approx(2 * size.active_parameters, rel=1e-6)
    assert size.read_bytes(1000) == pytest.approx(size.weight_bytes() - 2 * size.vocab_size * size.hidden_size, rel=1e-6)


def test_the_papers_trainer_fits_80_gb_only_with_offloaded_states():
    parts = trainer_memory(QWEN3_30B_A3B, PAPER, 32768, num_policies=2)
    assert fits(parts, 80 * GB)
    resident = dataclasses.replace(PAPER, optimizer_offload=False)
    states = total_bytes(trainer_memory(QWEN3_30B_A3B, resident, 32768, 2)) - total_bytes(parts)
    assert states == pytest.approx(QWEN3_30B_A3B.parameters * 12 / 4)  # 91.6 GB on each of four GPUs
    weights_and_states = 18 * sum(parameters_per_rank(QWEN3_30B_A3B, resident))
    assert weights_and_states == pytest.approx(137.4e9, rel=1e-3)
    assert not fits(trainer_memory(QWEN3_30B_A3B, resident, 32768, 2), 141 * GB)


def test_offloaded_states_and_frozen_weights_fill_host_memory():
    """16 bytes a parameter for Adam, 2 for the reference and 2 for the weights it displaces; 12 of these 20 are pinned."""
    assert 4 * offloaded_bytes(QWEN3_30B_A3B, PAPER) == pytest.approx(QWEN3_30B_A3B.parameters * (8 + 8 * 4 / 3))
    plan = plan_run(load_settings(overrides={"preset": "full"}))
    host = {(cell.cell.method, cell.cell.lag): cell.host_bytes for cell in plan.cells}
    processes, tokens = 2 * GB + 4 * 4 * GB, 4096 * 1150
    states = QWEN3_30B_A3B.parameters * (8 + 12 * 4 / 3)
    assert host["grpo", "8"].low == pytest.approx(states + processes + 6 * 12 * tokens)
    assert host["grpo-r3", "8"].low - host["grpo", "8"].low == pytest.approx(6 * 384 * tokens)  # four ranks, two batches in flight


def test_whole_logits_take_what_was_published_for_32k_tokens():
    """19.9 GB in float32, 5.0 GB at TP4, before the copies of softmax and gradient."""
    whole = trainer_memory(QWEN3_30B_A3B, dataclasses.replace(PAPER, logprob_chunk_tokens=None), 32768, 1)
    logits = next(part.bytes for part in whole if part.name == "logits")
    assert logits / 3 == pytest.approx(19.9e9 / 4, rel=2e-3)


def test_replayed_routes_are_those_in_flight():
    """32,768 tokens over four ranks, 8 of 48 layers' experts each: int16 while they wait, int64 in the layer that uses them."""
    ids = 32768 / 4 * 8
    assert route_bytes(QWEN3_30B_A3B, PAPER, 32768) == ids * (48 * 2 + 8) == pytest.approx(6.8e6, rel=0.01)
    stages = dataclasses.replace(PAPER, pipeline_parallel=4)  # a quarter of the layers, four micro-batches
    assert route_bytes(QWEN3_30B_A3B, stages, 32768) == route_bytes(QWEN3_30B_A3B, PAPER, 32768)
    kept = dataclasses.replace(PAPER, recompute=False)
    assert route_bytes(QWEN3_30B_A3B, kept, 32768) == ids * 48 * (2 + 8)


def test_the_distributed_optimizer_spreads_states_over_data_parallel_ranks():
    one = dataclasses.replace(PAPER, distributed_optimizer=False)
    assert optimizer_bytes(QWEN3_30B_A3B, PAPER) == optimizer_bytes(QWEN3_30B_A3B, one)  # four ranks leave no data parallelism
    eight = dataclasses.replace(PAPER, count=8)
    assert optimizer_bytes(QWEN3_30B_A3B, eight) == optimizer_bytes(QWEN3_30B_A3B, PAPER) / 2


def test_servers_hold_the_published_cache():
    """TP2 at 85 % of 2 x 80 GB leaves 75 GB: 372 responses of 2,048 tokens."""
    servers = Servers(1, 2, 0.85)
    lengths = Lengths(prompt=0, response=2048, longest=4096)
    assert slots_of(QWEN3_30B_A3B, DEVICES["H100"], servers, lengths) == pytest.approx(372, abs=1)
    assert cache_tokens(QWEN3_30B_A3B, DEVICES["H100"], Servers(1, 2, 0.85, max_total_tokens=1000)) == 1000
    assert server_fits(QWEN3_30B_A3B, DEVICES["H100"], Servers(1, 4, 0.85), 36864)
    one_gpu = Servers(1, 1, 0.85)
    assert not server_fits(QWEN3_30B_A3B, DEVICES["H100"], Servers(1, 1, 0.78), 36864)
    assert server_fits(QWEN3_30B_A3B, DEVICES["H200"], one_gpu, 36864)
    with pytest.raises(ValueError, match="no room for one response of 4000 tokens"):
        slots_of(QWEN3_30B_A3B, DEVICES["H100"], Servers(1, 1, 0.5), Lengths(prompt=0, response=4000, longest=8000))


def test_key_value_heads_are_copied_beyond_their_number():
    per_gpu = [QWEN3_30B_A3B.cache_bytes_per_token(tensor_parallel) for tensor_parallel in (1, 2, 4, 8)]
    assert per_gpu == [98304, 49152, 24576, 24576]


def test_a_checkpoint_holds_states_and_published_versions():
    checkpoint = checkpoint_size(QWEN3_30B_A3B, PAPER, published_versions=2)
    assert checkpoint.bytes == pytest.approx((2 + 4 + 8 + 2 * 2) * QWEN3_30B_A3B.parameters)
    in_float32 = checkpoint_size(QWEN3_30B_A3B, dataclasses.replace(PAPER, weight_bytes=4), published_versions=1)
    assert in_float32.bytes == pytest.approx((4 + 8 + 4) * QWEN3_30B_A3B.parameters)
    slow = gpu_rates(DEVICES["H100"], "distributed").pace(best=False)
    assert checkpoint.write_s(slow) == pytest.approx(550 + 275, abs=1)  # at 1 GB/s, read back at 2 GB/s
    assert checkpoint.running_bytes > 2 * checkpoint.bytes
    assert checkpoint.finished_bytes == 2 * 2 * QWEN3_30B_A3B.parameters  # the best and the last weights


def test_a_short_signal_lead_is_refused_with_what_would_do():
    check_signal_lead(300, 200, 100)
    with pytest.raises(ValueError, match=r"a signal lead of 299 s is shorter than one rollout batch .200 s. .* at least 300 s"):
        check_signal_lead(299, 200, 100)


def test_engines_that_need_more_gpus_than_there_are_are_refused():
    settings = load_settings(overrides={"preset": "full", "servers": {"num_servers": 2}})
    with pytest.raises(ValueError, match=r"need 12 GPUs, but .* are 8"):
        deployment_of(settings, "H100")
    with pytest.raises(ValueError, match="unknown GPU 'H900'; known: A100"):
        deployment_of(settings, "H900")


def test_intervals():
    assert Bounds.parse("3000") == Bounds(3000, 3000) and Bounds.parse("2000-4000") == Bounds(2000, 4000)
    assert Bounds(1, 4) * Bounds(2, 3) == Bounds(2, 12) and Bounds(1, 4) / Bounds(2, 4) == Bounds(0.25, 2)
    assert Bounds(1, 4).mid == 2 and 2 * Bounds(1, 2) + 1 == Bounds(3, 5)
    for text in ("x", "4000-2000", "-5"):
        with pytest.raises(ValueError, match=f"'{text}' is not a number or an interval"):
            Bounds.parse(text)
