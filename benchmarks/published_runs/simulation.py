"""One cell played event by event: long-tailed responses, decode slots, trainer, publications, evaluations - in three regimes.

synchronous: all GPUs generate a batch, then all train on it.
batchwise: rollout GPUs generate batch k+1 while the others train on batch k, and wait for each other at every publication.
streaming: rollout GPUs replace a finished response at once, up to max_lag batches ahead of the weights; a publication pauses them.

Lengths come from a seed, so that a simulation is a function of its arguments. Strong scaling: the batch is the same on 8 and on
1,024 GPUs. Not modelled: slower collectives on more GPUs, failures, prompts' prefill, grading.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks.published_runs.decode_pool import DecodePool, StepTime
from pipeline.planning.constants import Device, Pace
from pipeline.planning.deployment import Servers
from pipeline.planning.model_size import ModelSize
from pipeline.planning.timing import Lengths, decode_step_s, generation_s, slots_of, training_s

Regime = Literal["synchronous", "batchwise", "streaming"]
REGIMES: tuple[Regime, ...] = ("synchronous", "batchwise", "streaming")
_WARM_UP = 2  # steps before the rate is measured: the streaming pool fills up first


@dataclass(frozen=True)
class Scenario:
    """What is simulated. lengths.longest: the cap.  passes: of the trainer, per token; a synchronous run may need more, where it
    recomputes old log-probs.  publish_s: of one publication.  max_lag: of streaming, in batches.

    train_share: GPUs that train, where they are apart.  evaluation_responses every evaluation_interval batches, on the servers.
    """

    size: ModelSize
    device: Device
    pace: Pace
    gpus: int
    train_share: float
    tensor_parallel: int
    responses: int
    group_size: int
    lengths: Lengths
    passes: float
    synchronous_passes: float
    publish_s: float
    max_lag: int = 1
    publish_interval: int = 1
    evaluation_responses: int = 0
    evaluation_interval: int = 5
    memory_fraction: float = 0.85

    @property
    def train_gpus(self) -> int:
        return self.gpus - self.rollout_servers * self.tensor_parallel

    @property
    def rollout_servers(self) -> int:
        """Servers where GPUs are apart: what the training share leaves over, at least one; at least one GPU trains."""
        most = (self.gpus - 1) // self.tensor_parallel
        return min(max(round(self.gpus * (1 - self.train_share) / self.tensor_parallel), 1), most)


@dataclass(frozen=True)
class Simulated:
    """A regime's outcome. step_s: seconds per batch in steady state.  train_idle, rollout_idle: share of time in which the GPUs of
    that kind have nothing to do; rollout_unused: share of the decode rate of full slots that is not reached.
    """

    regime: Regime
    gpus: int
    train_gpus: int
    step_s: float
    train_idle: float
    rollout_idle: float
    rollout_unused: float

    def wall_s(self, batches: int) -> float:
        return batches * self.step_s


def response_lengths(lengths: Lengths, count: int, seed: int) -> NDArray[np.float64]:
    """`count` log-normal lengths, cut at lengths.longest, with mean lengths.response after the cut and sd / mean lengths.spread
    before it.
    """
    if not count:
        return np.empty(0)
    sigma = math.sqrt(math.log1p(lengths.spread**2))
    normal = np.random.default_rng(seed).standard_normal(count)
    low, high = 0.0, 64.0 * lengths.longest
    if lengths.response >= lengths.longest:
        raise ValueError(f"a mean of {lengths.response:g} tokens needs a cap above it; the cap is {lengths.longest:g}")
    for _ in range(60):
        scale = (low + high) / 2
        drawn = np.clip(scale * np.exp(sigma * normal), 1.0, lengths.longest)
        low, high = (scale, high) if drawn.mean() < lengths.response else (low, scale)
    return drawn


def simulate(scenario: Scenario, regime: Regime, batches: int = 8, seed: int = 0) -> Simulated:
    """Play `batches` batches and measure the steady state after the first ones."""
    if batches <= _WARM_UP:
        raise ValueError(f"{batches} batches: give more than {_WARM_UP}, the first ones only fill the slots")
    drawn = response_lengths(scenario.lengths, (batches + scenario.max_lag + 1) * scenario.responses, seed)
    drawn = drawn.reshape(-1, scenario.responses)
    play = {"synchronous": _synchronous, "batchwise": _batchwise, "streaming": _streaming}[regime]
    return play(scenario, drawn, batches, seed)


def simulate_cell(scenario: Scenario, batches: int = 8, seed: int = 0) -> dict[Regime, Simulated]:
    """All three regimes; where GPUs are apart, at the training share that balances generation and training best."""
    found: dict[Regime, Simulated] = {"synchronous": simulate(scenario, "synchronous", batches, seed)}
    for regime in REGIMES[1:]:
        found[regime] = simulate(replace(scenario, train_share=balanced_share(scenario, regime)), regime, batches, seed)
    return found


def balanced_share(scenario: Scenario, regime: Regime) -> float:
    """The eighth of the GPUs, from 1/8 to 7/8, whose training time is closest below or above the generation time."""

    def slower(share: float) -> float:
        trial = replace(scenario, train_share=share)
        servers = _servers(trial, trial.rollout_servers)
        if regime == "batchwise":
            generate = generation_s(trial.size, trial.device, servers, trial.pace, trial.lengths, trial.responses, trial.group_size)
        else:
            slots = min(_slots(trial), math.ceil((trial.max_lag + 1) * trial.responses / servers.count))
            step = _step_time(trial)(slots, slots * trial.lengths.context)
            generate = trial.responses * trial.lengths.response * step / (slots * servers.count)
        return max(generate, _train_s(trial, trial.train_gpus, trial.passes))

    return min((eighth / 8 for eighth in range(1, 8)), key=slower)


def _servers(scenario: Scenario, count: int) -> Servers:
    return Servers(count, scenario.tensor_parallel, scenario.memory_fraction)


def _slots(scenario: Scenario) -> int:
    return int(slots_of(scenario.size, scenario.device, _servers(scenario, 1), scenario.lengths))


def _step_time(scenario: Scenario) -> StepTime:
    def seconds(responses: float, context: float) -> float:
        return decode_step_s(scenario.size, scenario.device, scenario.tensor_parallel, scenario.pace, responses, context)

    return seconds


def _train_s(scenario: Scenario, gpus: int, passes: float) -> float:
    return training_s(scenario.size, gpus, scenario.pace, scenario.lengths, scenario.responses, passes)


def _pool(scenario: Scenario, count: int) -> DecodePool:
    return DecodePool(count, _slots(scenario), _step_time(scenario), scenario.lengths.prompt)


def _evaluation(scenario: Scenario, batch: int, seed: int) -> NDArray[np.float64]:
    """The lengths of the evaluation that is due with `batch`, if one is."""
    due = scenario.evaluation_responses and batch % scenario.evaluation_interval == scenario.evaluation_interval - 1
    return response_lengths(scenario.lengths, scenario.evaluation_responses if due else 0, seed + 1 + batch)


def _drain(pool: DecodePool) -> None:
    while pool.in_system:
        pool.complete_next()


def _publish_s(scenario: Scenario, batch: int) -> float:
    due = (batch + 1) % scenario.publish_interval == 0
    return scenario.publish_s if due else 0.0


def _result(scenario: Scenario, regime: Regime, pool: DecodePool, marks: list[tuple[float, float, float, float]]) -> Simulated:
    """marks: (time, trainer-busy seconds, server-busy seconds, tokens) at the end of the warm-up and of the run."""
    (begin, train0, busy0, tokens0), (end, train1, busy1, tokens1) = marks[_WARM_UP - 1], marks[-1]
    span, servers = end - begin, len(pool.servers)
    slots = _slots(scenario)
    full_rate = servers * slots / _step_time(scenario)(slots, slots * scenario.lengths.context)
    train_gpus = scenario.gpus if regime == "synchronous" else scenario.train_gpus
    return Simulated(
        regime=regime,
        gpus=scenario.gpus,
        train_gpus=train_gpus,
        step_s=float(span / (len(marks) - _WARM_UP)),
        train_idle=_share(1 - (train1 - train0) / span),
        rollout_idle=_share(1 - (busy1 - busy0) / (servers * span)),
        rollout_unused=_share(1 - (tokens1 - tokens0) / (full_rate * span)),
    )


def _share(value: float) -> float:
    """Within 0 and 1: the rate of full slots is that of the mean context, which a run can be slightly below."""
    return min(max(float(value), 0.0), 1.0)


def _synchronous(scenario: Scenario, drawn: NDArray[np.float64], batches: int, seed: int) -> Simulated:
    pool = _pool(scenario, scenario.gpus // scenario.tensor_parallel)
    train, trained, marks = _train_s(scenario, scenario.gpus, scenario.synchronous_passes), 0.0, []
    for batch in range(batches):
        pool.submit(drawn[batch])
        pool.submit(_evaluation(scenario, batch, seed))
        _drain(pool)
        trained += train
        pool.wait_until(pool.now + train + _publish_s(scenario, batch))
        marks.append((pool.now, trained, pool.busy_s(), pool.tokens))
    return _result(scenario, "synchronous", pool, marks)


def _batchwise(scenario: Scenario, drawn: NDArray[np.float64], batches: int, seed: int) -> Simulated:
    pool = _pool(scenario, scenario.rollout_servers)
    train, trained, marks = _train_s(scenario, scenario.train_gpus, scenario.passes), 0.0, []
    pool.submit(drawn[0])
    _drain(pool)
    for batch in range(batches):
        end = pool.now + train
        pool.submit(drawn[batch + 1])
        pool.submit(_evaluation(scenario, batch, seed))
        _drain(pool)
        trained += train
        pool.wait_until(max(pool.now, end) + _publish_s(scenario, batch))
        marks.append((pool.now, trained, pool.busy_s(), pool.tokens))
    return _result(scenario, "batchwise", pool, marks)


def _streaming(scenario: Scenario, drawn: NDArray[np.float64], batches: int, seed: int) -> Simulated:
    """Responses are trained on in the order in which they end; new ones start while at most max_lag + 1 batches are not trained on.

    Evaluations are awaited with the batch after which they were requested.
    """
    pool = _pool(scenario, scenario.rollout_servers)
    size, train = scenario.responses, _train_s(scenario, scenario.train_gpus, scenario.passes)
    requests, trained, marks = drawn.ravel(), 0.0, []
    started = ended = evaluated = 0
    for batch in range(batches):
        allowed = (batch + scenario.max_lag + 1) * size
        pool.submit(requests[started:allowed])
        started = allowed
        while ended < (batch + 1) * size + evaluated:
            pool.complete_next()
            ended += 1
        end = pool.now + train
        while pool.next_time() <= end:
            pool.complete_next()
            ended += 1
        pool.wait_until(end)
        trained += train
        pause = _publish_s(scenario, batch)
        pool.pause(pause)
        pool.wait_until(pool.now + pause)
        evaluation = _evaluation(scenario, batch, seed)
        pool.submit(evaluation)
        evaluated += len(evaluation)
        marks.append((pool.now, trained, pool.busy_s(), pool.tokens))
    return _result(scenario, "streaming", pool, marks)
