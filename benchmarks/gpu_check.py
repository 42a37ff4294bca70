"""The trainer on one device, as JSON on standard output: run it through gpu_check.sh.

A random Qwen3-MoE of about a billion parameters, with the vocabulary of the paper's policy, in bfloat16 (on a CPU: a toy in
float32). accuracy: mean |log-prob - reference| over mean |reference|, the reference being the project's own policy in float32 on
the CPU, with own routes and with the reference's routes replayed.  training: tokens per second of whole optimizer steps, and the
share of the device's peak that the model's FLOPs are, with the peak of memory; unchunked_logprobs: the same with all logits at
once.  sat_loss_over_ppo_loss: seconds of the one loss over those of the other, forward and backward, on the same tokens.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from pipeline.artifacts import Cell
from pipeline.config import CellSettings, load_settings
from pipeline.objective.loss import detached_scores, objective, statistics_of
from pipeline.objective.terms import Tokens
from pipeline.policy.hf_folder import hf_shapes, load_hf_state
from pipeline.policy.qwen3_moe import Policy, RouterTrace
from pipeline.processes.hosts import free_port
from pipeline.records import Response, RolloutBatch, Sample
from pipeline.trainer.megatron import cpu_adapter, layout
from pipeline.trainer.megatron.channel import Generating
from pipeline.trainer.megatron.rank import RankTrainer
from pipeline.trainer.megatron.shares import BatchShare
from pipeline.trainer.microbatches import micro_batches

PEAK_FLOPS = {"H100": 989e12, "H200": 989e12, "B200": 2250e12, "A100": 312e12}  # bfloat16, dense, of the vendor's data sheets
BILLION = {
    "path": None,
    "revision": None,
    "vocab_size": 151936,
    "hidden_size": 1024,
    "num_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 32,
    "num_experts_per_token": 8,
    "expert_intermediate_size": 768,
    "dense_intermediate_size": 3072,
}
TOY = BILLION | {"vocab_size": 512, "hidden_size": 64, "num_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
TOY |= {"head_dim": 16, "num_experts": 8, "num_experts_per_token": 2, "expert_intermediate_size": 32}


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sequences x tokens of each part, and how often it is repeated after one warm-up."""

    model: dict[str, Any]
    accuracy: tuple[int, int]
    training: tuple[int, int]
    loss_tokens: int
    repeats: int


REAL = Sizes(BILLION, (4, 256), (32, 2048), 2**20, 5)
MINIATURE = Sizes(TOY, (4, 24), (8, 48), 2**12, 2)


def cell(sizes: Sizes, device: torch.device, method: str, chunk: int = 2048) -> CellSettings:
    on_gpu = device.type == "cuda"
    layers = "transformer_engine" if on_gpu and _has_transformer_engine() else "local"
    one = {"num_ranks": 1, "tensor_parallel": 1, "expert_parallel": 1, "distributed_optimizer": False, "optimizer_offload": False}
    one |= {"layer_spec": layers, "dtype": "bfloat16" if on_gpu else "float32", "logprob_chunk_tokens": chunk}
    overrides = {
        "preset": "rehearsal",
        "model": sizes.model,
        "megatron": one,
        "cluster": {"device": device.type, "gpus_per_node": 1},
        "trainer": {"micro_batch_tokens": 32768, "learning_rate": 1e-6},
    }
    return load_settings(overrides=overrides).cell(Cell(method, "1", 0))


def rollouts(settings: CellSettings, count: int, length: int, routes: np.ndarray | None = None) -> RolloutBatch:
    """Random responses, a quarter of each sequence being its prompt. routes: uint8 [count * length, layers, k]."""
    rng, group = np.random.default_rng(0), 2
    samples = []
    for index in range(count):
        ids = rng.integers(0, settings.model.vocab_size, length).astype(np.int32)
        prompt, response = np.split(ids, [length // 4])
        experts = None if routes is None else routes[index * length : (index + 1) * length - 1]
        logprobs = np.full(len(response), -np.log(settings.model.vocab_size), np.float32)
        answer = Response(prompt, response, logprobs, np.zeros(len(response), np.int32), experts, "stop")
        samples.append(Sample(str(index), answer, "correct", float(index % 2), 1.0 - 2.0 * (index % 2)))
    return RolloutBatch(0, tuple(samples), group, 0.0)


def accuracy(sizes: Sizes, base: Path, weights: dict[str, torch.Tensor], groups: layout.Groups) -> dict[str, float]:
    settings = cell(sizes, groups.device, "grpo-r3")
    policy, trace = Policy(settings.model), RouterTrace()
    load_hf_state(policy, weights)
    plain = _micros(settings, rollouts(settings, *sizes.accuracy))
    with torch.no_grad():
        temperature = settings.rollout.temperature
        reference = torch.cat([policy.response_logprobs(micro.packed, temperature, trace=trace).logprobs for micro in plain])
    routes = torch.stack(trace.chosen, 1).numpy().astype(np.uint8)
    trainer = RankTrainer(settings, base, groups, beat=lambda: None)
    found = {}
    for name, replay in (("own_routes", False), ("replayed_routes", True)):
        micros = _micros(settings, rollouts(settings, *sizes.accuracy, routes=routes))
        logprobs = torch.cat(trainer.passes.logprobs(micros, "policy", replay)).float().cpu()
        found[name] = float((logprobs - reference).abs().mean() / reference.abs().mean())
    return found


def training(sizes: Sizes, base: Path, groups: layout.Groups, method: str, chunk: int) -> dict[str, float | None]:
    """Whole optimizer steps: reference, quantile where the method has one, forward, backward, Adam."""
    settings = cell(sizes, groups.device, method, chunk)
    trainer = RankTrainer(settings, base, groups, beat=lambda: None)
    routes = None
    if settings.resolved_method().routing_replay:
        count, length = sizes.training
        per_token, layers = settings.model.num_experts_per_token, settings.model.num_layers
        drawn = np.random.default_rng(1).random((count * length, layers, settings.model.num_experts))
        routes = drawn.argpartition(per_token, -1)[..., :per_token].astype(np.uint8)
    batch = rollouts(settings, *sizes.training, routes=routes)
    share = BatchShare.of(batch, 1, settings.trainer.micro_batch_tokens)
    if groups.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    step_s = _median_s(lambda: trainer.train(share, Generating(0, None), lambda _: None), sizes.repeats, groups.device)
    tokens = sizes.training[0] * sizes.training[1]
    peak = next((value for name, value in PEAK_FLOPS.items() if name in _device_name(groups.device)), None)
    flops = 6 * active_parameters(settings) * tokens
    return {
        "tokens_per_s": tokens / step_s,
        "mfu": flops / step_s / peak if peak else None,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if groups.device.type == "cuda" else None,
    }


def loss_ratio(sizes: Sizes, device: torch.device) -> float:
    """Seconds of SAT's loss with its quantile over those of the fixed clip, forward and backward."""
    recipes = {name: cell(sizes, device, name).recipe() for name in ("grpo", "sat-grpo")}
    generator = torch.Generator().manual_seed(0)
    count, per_response = sizes.loss_tokens, 1024
    rollout = -torch.rand(count, generator=generator)
    logprobs = (rollout + 0.01 * torch.randn(count, generator=generator)).to(device).requires_grad_()
    index = (torch.arange(count) // per_response).to(device)
    ones = torch.ones(count, device=device)
    tokens = Tokens(rollout.to(device), ones, index, int(index[-1]) + 1, ones / count, None, None, rollout.to(device))

    def run(name: str) -> None:
        recipe = recipes[name]
        taken = statistics_of(recipe.step_statistics, [detached_scores(recipe.method, logprobs, tokens)])
        objective(recipe, logprobs, torch.zeros_like(logprobs), tokens, taken)[0].backward()

    return _median_s(lambda: run("sat-grpo"), sizes.repeats, device) / _median_s(lambda: run("grpo"), sizes.repeats, device)


def active_parameters(settings: CellSettings) -> int:
    """Weights that one token meets; the embedding is looked up, not multiplied."""
    model = settings.model
    total = sum(int(np.prod(shape)) for name, shape in hf_shapes(model).items() if "embed" not in name)
    expert = 3 * model.hidden_size * model.expert_intermediate_size
    return total - model.num_layers * (model.num_experts - model.num_experts_per_token) * expert


def _micros(settings: CellSettings, batch: RolloutBatch) -> list[Any]:
    limit, aggregation = settings.trainer.micro_batch_tokens, settings.objective.aggregation
    return micro_batches(batch.samples, limit, aggregation, routing_replay=False, dtype=torch.float32)


def _median_s(run: Callable[[], None], repeats: int, device: torch.device) -> float:
    times = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def _has_transformer_engine() -> bool:
    from importlib.util import find_spec

    return find_spec("transformer_engine") is not None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--miniature", action="store_true", help="toy sizes, on a CPU")
    miniature = parser.parse_args().miniature
    if not miniature and not torch.cuda.is_available():
        parser.error("torch sees no GPU; --miniature runs the same on a CPU")
    sizes = MINIATURE if miniature else REAL
    device = torch.device("cpu" if miniature else "cuda:0")
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", str(free_port()))):
        os.environ.setdefault(name, value)
    if miniature:
        cpu_adapter.install()
    settings = cell(sizes, device, "grpo")
    groups = layout.initialize(layout.sections(settings)[0], device)
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: torch.ones(shape) if name.endswith("norm.weight") else 0.02 * torch.randn(shape, generator=generator)
        for name, shape in hf_shapes(settings.model).items()
    }
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        save_file(weights, base / "model.safetensors", {"format": "pt"})
        found = {
            "device": _device_name(device),
            "torch": torch.__version__,
            "parameters": sum(tensor.numel() for tensor in weights.values()),
            "layers": layout.sections(settings)[0].layer_spec,
            "accuracy": accuracy(sizes, base, weights, groups),
            "training": {method: training(sizes, base, groups, method, 2048) for method in ("grpo", "grpo-r3", "sat-gspo-r3")},
            "unchunked_logprobs": training(sizes, base, groups, "grpo", 10**9),
            "sat_loss_over_ppo_loss": loss_ratio(sizes, device),
        }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
