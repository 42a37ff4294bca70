r"""The tiny base policy: supervised training from scratch on a stream of worked arithmetic problems.

Part of the targets answer directly and part of the worked steps are wrong, so that the policy is unsure where it could be right:
sampled at temperature 1 it often errs, sampled coldly it mostly does not, and reinforcement learning has something to sharpen.
The problems held out for evaluation and scoring never occur in the stream.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import numpy as np
import torch
from torch import nn

from pipeline.policy.cpu import configure_cpu
from pipeline.policy.hf_folder import write_policy
from pipeline.policy.packing import PackedBatch, pack
from pipeline.policy.qwen3_moe import Policy, RouterTrace
from pipeline.policy.tokenizer import Tokenizer, build_tokenizer
from pipeline.problems import arithmetic
from pipeline.problems.prepare import read_problems
from pipeline.sections import ModelSettings, WarmStartSettings

BETAS, WEIGHT_DECAY, GRADIENT_CLIP = (0.9, 0.98), 0.01, 1.0
RAMP_STEPS, FINAL_RATE = 30, 0.05  # linear rise, then half a cosine down to this share of the learning rate
BALANCE_COEFFICIENT = 0.01  # keeps every expert in use; reinforcement learning has no such loss
PROGRESS_INTERVAL_S = 5.0


def warm_start(
    problems_folder: Path,
    settings: WarmStartSettings,
    model: ModelSettings,
    seed: int,
    out_folder: Path,
    progress: Callable[[str], None] = print,
) -> None:
    """Train the base policy and write it to `out_folder`. The same seed and threads give the same weights, bit for bit."""
    configure_cpu(settings.threads)
    held_out = {
        problem.prompt for split in ("evaluation", "scoring") for problem in read_problems(problems_folder / f"{split}.parquet")
    }
    tokenizer = build_tokenizer(model.vocab_size)
    policy = Policy(model, torch.Generator().manual_seed(seed))
    optimizer = torch.optim.AdamW(
        policy.parameters(), lr=settings.learning_rate, betas=BETAS, weight_decay=WEIGHT_DECAY, fused=True
    )
    batches = _batches(tokenizer, settings, held_out, Random(f"{seed}/warm_start"))
    started = reported = time.monotonic()
    for step in range(settings.steps):
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * learning_rate_share(step, settings.steps)
        loss = _train_step(policy, optimizer, next(batches))
        if not math.isfinite(loss):
            raise ValueError(f"warm start: loss {loss} at step {step}; lower warm_start.learning_rate {settings.learning_rate}")
        now = time.monotonic()
        if now - reported >= PROGRESS_INTERVAL_S or step + 1 == settings.steps:
            left_s = (now - started) / (step + 1) * (settings.steps - step - 1)
            progress(f"warm start: step {step + 1} of {settings.steps}, loss {loss:.4f}, {left_s:.0f} s left")
            reported = now
    write_policy(out_folder, policy, tokenizer)


def learning_rate_share(step: int, steps: int) -> float:
    """The share of the peak learning rate that step 0 .. steps-1 uses."""
    cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
    return min(1.0, (step + 1) / RAMP_STEPS) * (FINAL_RATE + (1 - FINAL_RATE) * cosine)


def _train_step(policy: Policy, optimizer: torch.optim.Optimizer, batch: PackedBatch) -> float:
    """One step on the mean negative log-prob of the response tokens; returns it."""
    trace = RouterTrace()
    cross_entropy = -policy.response_logprobs(batch, temperature=1.0, trace=trace).logprobs.mean()
    loss = cross_entropy + BALANCE_COEFFICIENT * torch.stack(trace.balance_losses).sum() if trace.balance_losses else cross_entropy
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), GRADIENT_CLIP)
    optimizer.step()
    return float(cross_entropy.detach())


def _batches(tokenizer: Tokenizer, settings: WarmStartSettings, held_out: set[str], rng: Random) -> Iterator[PackedBatch]:
    while True:
        prompts, responses = [], []
        while len(prompts) < settings.batch_size:
            worked = arithmetic.sample(rng)
            if worked.problem.prompt in held_out:
                continue
            text = arithmetic.response_text(worked, rng, settings.direct_answer_share, settings.wrong_step_share)
            prompts.append(np.array(tokenizer.encode(worked.problem.prompt), dtype=np.int32))
            responses.append(np.array([*tokenizer.encode(text), tokenizer.eos_token_ids[0]], dtype=np.int32))
        yield pack(prompts, responses)
