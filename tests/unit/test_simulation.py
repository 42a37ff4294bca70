"""The discrete-event simulation: exact cases, determinism, agreement with the closed form, published speed-ups."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from benchmarks.published_runs.decode_pool import DecodePool
from benchmarks.published_runs.simulate import scenario_of
from benchmarks.published_runs.simulation import Scenario, balanced_share, response_lengths, simulate, simulate_cell
from benchmarks.published_runs.speedups import CLAIMS, compare_speedups
from pipeline.config import load_settings
from pipeline.planning.constants import DEVICES, gpu_rates
from pipeline.planning.deployment import Servers
from pipeline.planning.estimate import plan_run
from pipeline.planning.model_size import QWEN3_30B_A3B
from pipeline.planning.timing import Lengths, generation_s, training_s

PUBLISH_S = 12.0

# simulated over published speed-up; the nearer end where a range was published
SPEEDUP_RATIOS = {
    "verl, Qwen3-30B-A3B, 128 H20, cap 8k": 0.97,
    "NeMo-RL, Qwen3-30B-A3B, 32 H100, cap 4k": 1.05,
    "verl, Qwen2.5-Math-7B, 128 H20, cap 28k": 1.00,
    "AReaL, up to": 0.78,
    "ROLL Flash, RLVR, up to": 1.26,
    "VCPO, lag 2": 0.98,
    "Laminar, 1,024 GPUs, up to": 1.40,
}


def small(**changes: object) -> Scenario:
    """512 responses on 16 H100, fast to simulate."""
    pace = gpu_rates(DEVICES["H100"], "distributed").middle()
    lengths = Lengths(prompt=100, response=1000, longest=8192)
    values = Scenario(QWEN3_30B_A3B, DEVICES["H100"], pace, 16, 0.5, 2, 512, 16, lengths, 4.0, 5.0, PUBLISH_S)
    return dataclasses.replace(values, **changes)


def drained(pool: DecodePool) -> list[float]:
    ends = []
    while pool.in_system:
        pool.complete_next()
        ends.append(pool.now)
    return ends


def test_responses_of_one_slot_follow_each_other():
    pool = DecodePool(1, 1, lambda count, context: 0.5, prompt_tokens=0)
    pool.submit([3, 1, 2])
    assert drained(pool) == pytest.approx([1.5, 2.0, 3.0])
    assert pool.busy_s() == pytest.approx(3.0) and pool.tokens == pytest.approx(6)


def test_responses_of_several_slots_share_decode_steps():
    """Two slots, step time = responses: 1 and 3 start, 2 takes over the slot of 1; all advance together until 3 and 2 end."""
    pool = DecodePool(1, 2, lambda count, context: float(count), prompt_tokens=0)
    pool.submit([1, 3, 2])
    assert drained(pool) == pytest.approx([2.0, 6.0, 6.0])


def test_the_step_time_sees_the_mean_context():
    """One response of 10 tokens after a prompt of 5, a second per token of context: sum of 5 .. 15 at the midpoint."""
    pool = DecodePool(1, 1, lambda count, context: context, prompt_tokens=5)
    pool.submit([10])
    assert drained(pool) == pytest.approx([10 * (5 + 5)])


def test_requests_spread_over_servers_and_a_pause_delays_them():
    pool = DecodePool(2, 4, lambda count, context: float(count), prompt_tokens=0)
    pool.submit([4, 4])
    assert [len(server.leaving) for server in pool.servers] == [1, 1]
    pool.pause(10.0)
    assert drained(pool) == pytest.approx([14.0, 14.0])
    assert pool.next_time() == math.inf


def test_lengths_have_the_mean_and_the_cap_they_are_asked_for():
    lengths = response_lengths(Lengths(prompt=0, response=1000, longest=4000), 20000, seed=3)
    assert lengths.mean() == pytest.approx(1000, rel=1e-6) and lengths.max() == 4000
    assert 0.01 < (lengths == 4000).mean() < 0.1  # a long tail runs into the cap
    assert len(response_lengths(Lengths(prompt=0, response=1000, longest=4000), 0, seed=3)) == 0
    with pytest.raises(ValueError, match="a mean of 5000 tokens needs a cap above it; the cap is 4000"):
        response_lengths(Lengths(prompt=0, response=5000, longest=4000), 10, seed=0)


def test_a_simulation_is_a_function_of_its_arguments():
    assert simulate_cell(small(), batches=4, seed=1) == simulate_cell(small(), batches=4, seed=1)
    assert simulate(small(), "streaming", 4, seed=1) != simulate(small(), "streaming", 4, seed=2)


def test_generation_agrees_with_the_closed_form():
    """A drained batch takes what timing.generation_s says within 25 %, with the responses at once and in waves."""
    for responses in (512, 8192):
        scenario = small(responses=responses, synchronous_passes=0.0)
        batch = simulate(scenario, "synchronous", 4).step_s - PUBLISH_S
        servers = Servers(8, 2, scenario.memory_fraction)
        closed = generation_s(scenario.size, scenario.device, servers, scenario.pace, scenario.lengths, responses, 16)
        assert batch == pytest.approx(closed, rel=0.25)


def test_synchronous_steps_are_generation_plus_training_plus_publication():
    with_training, without = simulate(small(), "synchronous", 4), simulate(small(synchronous_passes=0.0), "synchronous", 4)
    scenario = small()
    train = training_s(scenario.size, 16, scenario.pace, scenario.lengths, 512, 5.0)
    assert with_training.step_s - without.step_s == pytest.approx(train, rel=1e-6)
    assert with_training.train_idle == pytest.approx(1 - train / with_training.step_s, rel=1e-6)


def test_batchwise_steps_are_the_slower_of_generation_and_training():
    scenario = small(passes=400.0)
    train = training_s(scenario.size, scenario.train_gpus, scenario.pace, scenario.lengths, 512, 400.0)
    run = simulate(scenario, "batchwise", 4)
    assert run.step_s == pytest.approx(train + PUBLISH_S, rel=1e-6)
    assert run.train_idle < 0.1 and run.rollout_idle > 0.3


def test_streaming_never_waits_for_the_longest_response():
    """With little training the streaming servers are never idle, and the lag bound decides how full they are."""
    one, four = (simulate(small(max_lag=lag, passes=1.0, publish_interval=100), "streaming", 6) for lag in (1, 4))
    assert four.rollout_idle < 0.05 and four.step_s <= one.step_s
    assert four.step_s < simulate(small(passes=1.0, publish_interval=100), "batchwise", 6).step_s


def test_evaluations_take_time_of_the_servers():
    scenario = small(evaluation_responses=512, evaluation_interval=1)
    for regime in ("synchronous", "batchwise", "streaming"):
        assert simulate(scenario, regime, 5).step_s >= simulate(small(), regime, 5).step_s


def test_publishing_rarely_saves_what_a_publication_takes():
    often, rarely = (simulate(small(publish_interval=n, passes=400.0), "batchwise", 10) for n in (1, 8))
    assert often.step_s - rarely.step_s == pytest.approx(PUBLISH_S * 7 / 8)


def test_the_balanced_share_is_the_best_of_the_eighths():
    scenario = small()
    times = {}
    for eighth in range(1, 8):
        times[eighth / 8] = simulate(dataclasses.replace(scenario, train_share=eighth / 8), "batchwise", 4).step_s
    assert times[balanced_share(scenario, "batchwise")] <= 1.1 * min(times.values())


def test_more_gpus_help_streaming_longer_than_synchronous():
    """The paper's cell: the tail bounds synchronous steps, so the speed-up grows with the number of GPUs."""
    plan = plan_run(load_settings(overrides={"preset": "full"}))
    scenario = dataclasses.replace(scenario_of(plan, "H100"), responses=1024)
    speedups = []
    for gpus in (8, 64, 512):
        regimes = simulate_cell(dataclasses.replace(scenario, gpus=gpus), batches=4)
        speedups.append(regimes["synchronous"].step_s / regimes["streaming"].step_s)
    assert speedups == sorted(speedups) and 1.0 < speedups[0] < speedups[-1]
    assert scenario.train_gpus == 4


def test_published_speedups_are_simulated_as_well_as_it_says():
    ratios = {row.claim.name: row.ratio for row in compare_speedups()}
    assert set(ratios) == {claim.name for claim in CLAIMS}
    assert {name: round(ratio, 2) for name, ratio in ratios.items()} == pytest.approx(SPEEDUP_RATIOS, abs=0.011)


def test_speedups_hardly_depend_on_the_seed():
    speedups = []
    for seed in range(5):
        regimes = simulate_cell(small(), batches=6, seed=seed)
        speedups.append(regimes["synchronous"].step_s / regimes["streaming"].step_s)
    assert max(speedups) < 1.1 * min(speedups)


def test_cpu_plans_are_not_simulated_as_if_they_had_gpus():
    with pytest.raises(ValueError, match="preset tiny runs on CPUs"):
        scenario_of(plan_run(load_settings()), "H100")


def test_too_few_batches_are_refused():
    with pytest.raises(ValueError, match="2 batches: give more than 2"):
        simulate(small(), "synchronous", 2)
    with pytest.raises(ValueError, match="0 servers of 4 slots"):
        DecodePool(0, 4, lambda count, context: 1.0, 0)
    assert np.isfinite(simulate(small(), "synchronous", 3).step_s)
