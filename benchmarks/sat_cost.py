"""What SAT's loss costs over plain PPO clipping: forward and backward on the same packed tokens, side by side in one run.

    PYTHONPATH=. python benchmarks/sat_cost.py                                  # 4,096 x 1,024 tokens, float32, one thread
    PYTHONPATH=. python benchmarks/sat_cost.py --micro-batch-tokens 32768       # the same step in micro-batches
    PYTHONPATH=. python benchmarks/sat_cost.py --responses 128 --tokens 24      # a step of the preset tiny

`PPO (textbook)` is the minimum of two products as commonly written, differentiated operation by operation. The other rows run the
project's `objective`, which collects the terms of the diagnostics as well. SAT's rows include the staleness quantile of the whole
step. Not included is the policy's extra forward pass that a step-wide quantile needs when a step has several micro-batches.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.config import load_settings
from pipeline.objective.aggregate import token_weights
from pipeline.objective.loss import detached_scores, objective, statistics_of
from pipeline.objective.methods import METHODS
from pipeline.objective.quantile import staleness_quantile
from pipeline.objective.recipe import Recipe
from pipeline.objective.terms import Tokens


@dataclass(frozen=True)
class MicroBatch:
    """Trainer log-probs [N] of whole responses and the tokens they belong to."""

    trainer_logprobs: Tensor
    tokens: Tokens


def optimizer_step(responses: int, length: int, micro_batch_tokens: int) -> list[MicroBatch]:
    """Responses of equal length in micro-batches; |log ratio| is heavy-tailed with a 0.9-quantile of about 0.02."""
    generator = torch.Generator().manual_seed(0)
    weight = token_weights("response_mean", torch.full((responses,), length))[0]
    batches, left = [], responses
    while left:
        count = min(left, max(1, micro_batch_tokens // length))
        left -= count
        size = count * length
        rollout = -torch.rand(size, generator=generator)
        drift = 0.02 * torch.randn(size, generator=generator) * torch.rand(size, generator=generator)
        tokens = Tokens(
            rollout_logprobs=rollout,
            advantages=torch.randn(count, generator=generator).repeat_interleave(length),
            response_index=torch.arange(count).repeat_interleave(length),
            num_responses=count,
            weights=weight.expand(size).contiguous(),
        )
        batches.append(MicroBatch(rollout + drift, tokens))
    return batches


def textbook_ppo(step: list[MicroBatch], low: float, high: float) -> None:
    for micro in step:
        logprobs, advantages = micro.trainer_logprobs.clone().requires_grad_(), micro.tokens.advantages
        ratio = (logprobs - micro.tokens.rollout_logprobs).exp()
        clipped = ratio.clamp(low, high)
        loss = -(torch.min(ratio * advantages, clipped * advantages) * micro.tokens.weights).sum()
        loss.backward()


def step_statistics(recipe: Recipe, step: list[MicroBatch]) -> dict[str, Tensor]:
    scores = [detached_scores(recipe.method, micro.trainer_logprobs, micro.tokens) for micro in step]
    return statistics_of(recipe.step_statistics, scores)


def loss_of(recipe: Recipe, step: list[MicroBatch]) -> None:
    taken = step_statistics(recipe, step) if recipe.step_statistics else {}
    for micro in step:
        loss, _ = objective(recipe, micro.trainer_logprobs.clone().requires_grad_(), None, micro.tokens, taken)
        loss.backward()


def measure(step: list[MicroBatch], rounds: int) -> dict[str, list[float]]:
    """Seconds of each row in each round; rounds interleave the rows, so that a slow moment of the machine touches all of them."""
    settings = load_settings().objective
    recipes = {name: Recipe.of(METHODS[name], settings) for name in ("grpo", "sat-grpo", "gspo", "sat-gspo")}
    sizes = torch.cat([(micro.trainer_logprobs - micro.tokens.rollout_logprobs).abs() for micro in step])
    rank = round(0.9 * len(sizes))
    rows: dict[str, Callable[[], object]] = {
        "PPO (textbook)": lambda: textbook_ppo(step, 0.8, 1.2),
        **{name.upper(): lambda recipe=recipe: loss_of(recipe, step) for name, recipe in recipes.items()},
        "|log ratio| and quantile": lambda: step_statistics(recipes["sat-grpo"], step),
        "quantile": lambda: staleness_quantile(sizes, 0.9),
        "the same by torch.kthvalue": lambda: sizes.kthvalue(rank),
    }
    repeats = max(1, 200_000 // len(sizes))
    times: dict[str, list[float]] = {name: [] for name in rows}
    for round_index in range(rounds + 1):
        for name, row in rows.items():
            start = time.perf_counter()
            for _ in range(repeats):
                row()
            if round_index > 0:  # the first round warms the allocator up
                times[name].append((time.perf_counter() - start) / repeats)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--responses", type=int, default=4096)
    parser.add_argument("--tokens", type=int, default=1024, help="tokens per response")
    parser.add_argument("--micro-batch-tokens", type=int, default=1 << 62, help="default: one micro-batch")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    step = optimizer_step(arguments.responses, arguments.tokens, arguments.micro_batch_tokens)
    times = measure(step, arguments.rounds)
    print(
        f"{arguments.responses} x {arguments.tokens} tokens in {len(step)} micro-batch(es), float32, "
        f"{arguments.threads} thread(s), median of {arguments.rounds} rounds"
    )
    for name, values in times.items():
        print(f"  {name:27s}{statistics.median(values) * 1e3:9.3f} ms")
    for sat, base in (("SAT-GRPO", "PPO (textbook)"), ("SAT-GRPO", "GRPO"), ("SAT-GSPO", "GSPO")):
        ratios = sorted(a / b for a, b in zip(times[sat], times[base], strict=True))
        print(f"  {sat} / {base}: {statistics.median(ratios):.2f}x ({ratios[0]:.2f} to {ratios[-1]:.2f} over rounds)")


if __name__ == "__main__":
    main()
