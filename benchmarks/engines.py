"""Our engines against transformers on the same weights and batch, side by side in one process, one thread.

rollout: tokens per second of the torch rollout engine (bfloat16, static KV cache) and of transformers' generate() (bfloat16,
its own cache), 16 problems x 8 responses, sampled at temperature 1, at most 40 tokens. training: forward and backward of the
mean log-prob of the response tokens of the same 128 responses, float32: the packed policy and Qwen3MoeForCausalLM on the
right-padded batch. Last, what SAT adds when a step has several micro-batches: one pass without gradient.

    python benchmarks/engines.py --base-policy results/tiny/base_policy --problems results/tiny/problems
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from pipeline.config import load_settings
from pipeline.policy.cpu import configure_cpu
from pipeline.policy.hf_folder import hf_state, read_policy
from pipeline.policy.packing import pack
from pipeline.problems.prepare import read_problems
from pipeline.published_weights import PublishedWeights
from pipeline.records import Request, Response, SamplingKey
from pipeline.rollout.engine import SamplingSettings
from pipeline.rollout.torch_engine import EngineSpec, InlineTorchEngine

GROUPS, GROUP_SIZE, MAX_TOKENS = 16, 8, 40


def median_s(function: Callable[[], object], rounds: int) -> float:
    function()
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
    return float(np.median(times))


def rollout(folder: Path, problems: Path, rounds: int) -> list[Response]:
    """Print tokens per second of both; return our responses."""
    policy, model, tokenizer = read_policy(folder)
    prompts = [tokenizer.encode(problem.prompt) for problem in read_problems(problems / "train.parquet")[:GROUPS]]
    engine = InlineTorchEngine(EngineSpec(model, "bfloat16", tokenizer.eos_token_ids, tokenizer.pad_token_id))
    engine.load(PublishedWeights(0, hf_state(policy)))
    requests = [
        Request(np.array(prompt, dtype=np.int32), SamplingKey(0, "train", 0, index, sample))
        for index, prompt in enumerate(prompts)
        for sample in range(GROUP_SIZE)
    ]
    sampling = SamplingSettings(1.0, MAX_TOKENS, load_settings().rollout.context_length, return_routed_experts=True)
    responses = list(engine.generate(requests, sampling).result().responses)
    ours_s = median_s(lambda: engine.generate(requests, sampling), rounds)
    ours = sum(len(response.response_ids) for response in responses) / ours_s

    theirs_model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    width = max(map(len, prompts))
    ids = torch.tensor([[tokenizer.pad_token_id] * (width - len(p)) + p for p in prompts]).repeat_interleave(GROUP_SIZE, 0)
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts]).repeat_interleave(GROUP_SIZE, 0)

    def generate() -> torch.Tensor:
        torch.manual_seed(0)
        return theirs_model.generate(
            ids, attention_mask=mask, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=MAX_TOKENS
        )

    new = generate()[:, width:]
    ended = (
        torch.isin(new, torch.tensor(tokenizer.eos_token_ids)).cumsum(1)
        - torch.isin(new, torch.tensor(tokenizer.eos_token_ids)).int()
    ) > 0
    theirs = int((~ended).sum()) / median_s(generate, rounds)
    print(f"rollout   ours {ours:9.0f} tokens/s   transformers generate() {theirs:8.0f} tokens/s   {ours / theirs:5.1f}x")
    return responses


def training(folder: Path, responses: list[Response], rounds: int) -> None:
    policy, _, tokenizer = read_policy(folder)
    packed = pack([r.prompt_ids for r in responses], [r.response_ids for r in responses])

    def ours() -> torch.Tensor:
        policy.zero_grad(set_to_none=True)
        loss = -policy.response_logprobs(packed, 1.0).logprobs.mean()
        loss.backward()
        return loss.detach()

    theirs_model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    sequences = [np.concatenate([r.prompt_ids, r.response_ids]) for r in responses]
    width = max(map(len, sequences))
    ids = torch.tensor([[*s.tolist(), *[tokenizer.pad_token_id] * (width - len(s))] for s in sequences])
    mask = torch.tensor([[1] * len(s) + [0] * (width - len(s)) for s in sequences])
    scored = torch.tensor(
        [[len(r.prompt_ids) <= i < len(s) for i in range(width)] for r, s in zip(responses, sequences, strict=True)]
    )

    def theirs() -> torch.Tensor:
        theirs_model.zero_grad(set_to_none=True)
        logits = theirs_model(input_ids=ids, attention_mask=mask).logits[:, :-1]
        logprobs = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        loss = -logprobs[scored[:, 1:]].mean()
        loss.backward()
        return loss.detach()

    @torch.no_grad()
    def without_gradient() -> torch.Tensor:
        return policy.response_logprobs(packed, 1.0).logprobs

    torch.testing.assert_close(ours(), theirs(), rtol=1e-4, atol=1e-5)
    ours_s, theirs_s = median_s(ours, rounds), median_s(theirs, rounds)
    theirs_text = f"transformers forward+backward {1e3 * theirs_s:6.1f} ms/step"
    print(f"training  ours {1e3 * ours_s:9.1f} ms/step     {theirs_text}    {theirs_s / ours_s:5.1f}x")
    pass_s = median_s(without_gradient, rounds)
    share = 100 * pass_s / ours_s
    print(f"the pass without gradient that a step-wide quantile needs with several micro-batches: +{share:.0f} % of a step")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-policy", type=Path, default=Path("results/tiny/base_policy"))
    parser.add_argument("--problems", type=Path, default=Path("results/tiny/problems"))
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    configure_cpu(1)
    responses = rollout(options.base_policy, options.problems, options.rounds)
    training(options.base_policy, responses, options.rounds)


if __name__ == "__main__":
    main()
