"""A tiny policy on disk, a batch of responses with routes, and cells that train on it with either trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from pipeline.artifacts import Cell
from pipeline.config import CellSettings, load_settings
from pipeline.policy.hf_folder import hf_state
from pipeline.policy.qwen3_moe import Policy
from pipeline.published_weights import PublishedWeights
from pipeline.records import Response, RolloutBatch, Sample
from pipeline.sections import ModelSettings
from pipeline.trainer.torch_trainer import TorchTrainer

MODEL = {
    "hidden_size": 32,
    "num_layers": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_experts": 8,
    "num_experts_per_token": 2,
    "dense_intermediate_size": 48,
}
OBJECTIVE = {"entropy_coefficient": 0.01, "reference_kl_coefficient": 0.1}
# several micro-batches, of which one is a single long sample; a gradient that is clipped; and an Adam whose eps is so large that
# weights move in proportion to their gradient, so that equal weights mean equal gradients
TRAINER = {
    "engine": "megatron",
    "learning_rate": 1e-2,
    "adam_eps": 1e-3,
    "weight_decay": 0.1,
    "gradient_clip": 0.05,
    "micro_batch_tokens": 64,
}
ROLLOUT = {"group_size": 4, "prompts_per_step": 4, "temperature": 0.9}
LAYOUTS: dict[str, dict[str, Any]] = {
    "one process": {"num_ranks": 1},
    "TP2 EP2": {"num_ranks": 2, "tensor_parallel": 2, "expert_parallel": 2, "recompute": True},
    "EP2": {"num_ranks": 2, "expert_parallel": 2},
    "PP2": {"num_ranks": 2, "pipeline_parallel": 2, "recompute": True},
    "DP2": {"num_ranks": 2, "distributed_optimizer": False},
    "DP2 distributed optimizer": {"num_ranks": 2},
    "TP2 ETP2": {"num_ranks": 2, "tensor_parallel": 2, "expert_tensor_parallel": 2},
    "TP4 EP4": {"num_ranks": 4, "tensor_parallel": 4, "expert_parallel": 4, "recompute": True},
}
TEMPERATURES = (0.5, 0.95, 1.0, 1.5)
OTHER = "TP2 EP2"  # the layout whose weights the others load
_PARITY: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo": ("grpo", {}),
    "sat-gspo-r3": ("sat-gspo-r3", {}),
    # parts of each other kind: a selection that is no quantile, a mask on a second ratio, control of the update, another surrogate
    "m2po": ("m2po", {"objective": {"m2po": {"budget": 0.5, "least_eps_low": 0.05, "least_eps_high": 0.05}}}),
    "icepop": ("icepop", {"objective": {"icepop": {"low": 0.7, "high": 1.6}}}),
    "gac": ("gac", {"objective": {"gac": {"cosine_low": -0.5}}}),
    "cispo": ("cispo", {"objective": {"cispo": {"eps_high": 0.5}}}),
    "grpo-tis-r3": ("grpo-tis-r3", {"objective": {"aggregation": "token_mean", "entropy_coefficient": 0.0}}),
}
# the rollout batches of a case: (index, optimizer steps)
BATCHES: dict[str, tuple[tuple[int, int], ...]] = {"several steps": ((0, 2),)}
TWO_BATCHES = ((0, 1), (1, 1))
# what the ranks of each layout train: name -> (method, changed settings)
CASES: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    **dict.fromkeys(LAYOUTS, _PARITY),
    "one process": _PARITY
    | {
        "generating": ("dppo", {"objective": {"ratio_denominator": "rollout_weights"}}),
        "one micro-batch": ("sat-gspo-r3", {"trainer": {"micro_batch_tokens": 100_000}}),
        "quantile per micro-batch": ("sat-grpo", {"objective": {"sat": {"quantile_scope": "microbatch"}}}),
        **{f"temperature {value}": ("grpo-r3", {"rollout": {"temperature": value}}) for value in TEMPERATURES},
    },
    "PP2": _PARITY | {"dense layer": ("grpo-r3", {"model": {"num_layers": 4, "dense_layers": [0]}})},
    "DP2 distributed optimizer": _PARITY
    | {
        "quantile per micro-batch": ("sat-grpo", {"objective": {"sat": {"quantile_scope": "microbatch"}}}),
        "bfloat16": ("sat-gspo-r3", {"megatron": {"dtype": "bfloat16"}}),
    },
    "DP2": _PARITY | {"several steps": ("grpo-tis-r3", {})},
    "TP2 ETP2": {name: _PARITY[name] for name in ("sat-gspo-r3", "gac", "m2po")},
    "TP4 EP4": {
        name: (method, changes | {"model": {"num_key_value_heads": 4}})
        for name, (method, changes) in _PARITY.items()
        if name in ("sat-gspo-r3", "gac", "m2po")
    },
}
_ALONE = {"tensor_parallel": 1, "expert_parallel": 1, "pipeline_parallel": 1, "distributed_optimizer": True, "recompute": False}


def cell(method: str, layout: str = "one process", lag: str = "1", **changes: dict[str, Any]) -> CellSettings:
    overrides: dict[str, Any] = {
        "preset": "rehearsal",
        "model": MODEL,
        "objective": OBJECTIVE,
        "trainer": TRAINER,
        "rollout": ROLLOUT,
        "megatron": {**_ALONE, "logprob_chunk_tokens": 50, **LAYOUTS[layout]},
    }
    merged = {name: overrides.get(name, {}) | changes.get(name, {}) for name in (overrides | changes) if name != "preset"}
    return load_settings(overrides=merged | {"preset": "rehearsal"}).cell(Cell(method, lag, 0))


def base_folder(root: Path, settings: CellSettings) -> Path:
    """The initial weights of a cell, written when they are first asked for."""
    model = settings.model
    folder = root / f"base-{model.num_layers}-{model.num_key_value_heads}-{len(model.dense_layers)}"
    return folder if folder.exists() else write_base(folder, model)


def write_base(folder: Path, model: ModelSettings) -> Path:
    """A policy with random weights, norms included, in two files as a large checkpoint would be."""
    folder.mkdir(parents=True)
    policy = Policy(model, torch.Generator().manual_seed(0))
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(parameter))))
    state = hf_state(policy)
    names = sorted(state)
    for part, chosen in enumerate((names[::2], names[1::2])):
        safetensors.torch.save_file({name: state[name] for name in chosen}, folder / f"model-{part}.safetensors", {"version": "0"})
    return folder


def torch_trainer(settings: CellSettings, base: Path) -> TorchTrainer:
    return TorchTrainer(settings, dict(PublishedWeights.read(base).weights))


def batch(settings: CellSettings, index: int = 0, seed: int = 0) -> RolloutBatch:
    """Responses of 1 to 30 tokens, and one longer than a micro-batch; made-up log-probs and routes."""
    random = np.random.default_rng([seed, index])
    model, size = settings.model, settings.rollout.group_size * settings.rollout.prompts_per_step
    layers = model.num_layers - len(model.dense_layers)
    samples = []
    for number in range(size):
        prompt, length = int(random.integers(2, 9)), int(random.integers(1, 31)) if number != 5 else 85
        routes = random.random((prompt + length - 1, layers, model.num_experts)).argsort(-1)[..., : model.num_experts_per_token]
        response = Response(
            prompt_ids=random.integers(0, model.vocab_size, prompt).astype(np.int32),
            response_ids=random.integers(0, model.vocab_size, length).astype(np.int32),
            rollout_logprobs=random.normal(-4.0, 0.6, length).astype(np.float32),
            policy_version=np.zeros(length, dtype=np.int32),
            routed_experts=routes.astype(np.uint8),
            finish_reason="stop",
        )
        samples.append(Sample(f"problem-{number // 4}", response, "correct", 1.0, float(random.normal())))
    return RolloutBatch(index, tuple(samples), settings.rollout.group_size, 0.0)
