"""What SAT's loss costs over plain PPO clipping: forward and backward on the same packed tokens, side by side in one run.

    PYTHONPATH=. python benchmarks/sat_cost.py                              # 4,096 responses x 1,024 tokens, float32, one thread
    PYTHONPATH=. python benchmarks/sat_cost.py --responses 128 --tokens 24  # the size of a step of the preset tiny

PPO (textbook) is the minimum of two products as trainers commonly write it, with automatic differentiation of every operation. The other
rows run `objective`, which also collects the terms of the diagnostics. SAT's time includes the staleness quantile of the step; the
log-probs of several micro-batches, which a step-wide quantile needs before the first backward pass, are the policy's cost, not the loss's.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from pipeline.config import ObjectiveSettings, load_settings
from pipeline.objective.aggregate import token_weights
from pipeline.objective.loss import Tokens, objective, staleness
from pipeline.objective.methods import METHODS
from pipeline.objective.trust_region import staleness_quantile

Step = Callable[[Tensor], Tensor]


def example(responses: int, tokens: int) -> tuple[Tensor, Tokens]:
    """Trainer log-probs [N] and the tokens they belong to; |log ratio| is heavy-tailed with a 0.9-quantile of about 0.02."""
    generator = torch.Generator().manual_seed(0)
    count = responses * tokens
    rollout = -torch.rand(count, generator=generator)
    drift = torch.randn(count, generator=generator) * torch.rand(count, generator=generator) * 0.02
    lengths = torch.full((responses,), tokens)
    return rollout + drift, Tokens(
        rollout_logprobs=rollout,
        advantages=torch.randn(responses, generator=generator).repeat_interleave(tokens),
        response_index=torch.arange(responses).repeat_interleave(tokens),
        num_responses=responses,
        weights=token_weights("response_mean", lengths).repeat_interleave(tokens),
    )


def split(tokens: Tokens, size: int) -> list[tuple[slice, Tokens]]:
    """The tokens in micro-batches of at most `size` tokens, whole responses of equal length."""
    length = len(tokens.weights) // tokens.num_responses
    per_batch = max(1, size // length)
    batches = []
    for first in range(0, tokens.num_responses, per_batch):
        count = min(per_batch, tokens.num_responses - first)
        part = slice(first * length, (first + count) * length)
        batches.append((part, Tokens(
            rollout_logprobs=tokens.rollout_logprobs[part], advantages=tokens.advantages[part],
            response_index=tokens.response_index[part] - first, num_responses=count, weights=tokens.weights[part])))
    return batches


def steps(settings: ObjectiveSettings, tokens: Tokens) -> dict[str, Step]:
    """The losses that are compared, each from trainer log-probs to a scalar."""

    def textbook(logprobs: Tensor) -> Tensor:
        ratio = (logprobs - tokens.rollout_logprobs).exp()
        clipped = ratio.clamp(1.0 - settings.eps_low, 1.0 + settings.eps_high)
        return -(torch.min(ratio * tokens.advantages, clipped * tokens.advantages) * tokens.weights).sum()

    def loss(name: str) -> Step:
        def step(logprobs: Tensor) -> Tensor:
            method, quantile = METHODS[name], None
            if method.clip_rule == "sat":
                quantile = staleness_quantile(staleness(method, logprobs, tokens), settings.quantile_alpha)
            return objective(method, settings, logprobs, None, tokens, quantile)[0]

        return step

    return {
        "PPO (textbook)": textbook,
        "GRPO": loss("grpo"),
        "SAT-GRPO": loss("sat-grpo"),
        "GSPO": loss("gspo"),
        "SAT-GSPO": loss("sat-gspo"),
    }


def seconds(run: Callable[[], object], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - start) / repeats


def measure(responses: int, tokens: int, rounds: int) -> dict[str, float]:
    """Median seconds of each step over interleaved rounds, so that a slow moment of the machine touches all of them."""
    settings = load_settings().objective
    trainer, packed = example(responses, tokens)
    compared = steps(settings, packed)
    repeats = max(1, 100_000 // (responses * tokens))

    def differentiate(step: Step) -> None:
        leaf = trainer.clone().requires_grad_()
        step(leaf).backward()

    sizes = staleness(METHODS["sat-grpo"], trainer, packed)
    runs: dict[str, Callable[[], object]] = {name: lambda step=step: differentiate(step) for name, step in compared.items()}
    runs["staleness quantile alone"] = lambda: staleness_quantile(sizes, settings.quantile_alpha)
    runs["torch.kthvalue alone"] = lambda: sizes.kthvalue(int(0.9 * len(sizes)))
    times: dict[str, list[float]] = {name: [] for name in runs}
    for round_index in range(rounds + 1):
        for name, run in runs.items():
            elapsed = seconds(run, repeats)
            if round_index > 0:  # the first round warms the allocator up
                times[name].append(elapsed)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--responses", type=int, default=4096)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    times = measure(arguments.responses, arguments.tokens, arguments.rounds)
    print(f"{arguments.responses} x {arguments.tokens} tokens, float32, {arguments.threads} thread(s), median of {arguments.rounds}")
    for name, value in times.items():
        print(f"  {name:26s} {value * 1e3:9.3f} ms")
    for sat, base in (("SAT-GRPO", "PPO (textbook)"), ("SAT-GRPO", "GRPO"), ("SAT-GSPO", "GSPO")):
        print(f"  {sat} / {base}: {times[sat] / times[base]:.2f}x")


if __name__ == "__main__":
    main()
