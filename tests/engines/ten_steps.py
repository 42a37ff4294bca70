"""Ten optimizer steps of every method on made-up rollouts: what a change of the loss or the trainer must leave as it is.

    python -m tests.engines.ten_steps       # write ten_steps.json anew: only where a change of the numbers is meant

PyTorch rounds differently on different processors, so the file names the arithmetic it was written with (`arithmetic`): on the same
arithmetic every row must have the same hash, on another one the rows must be close (test_ten_steps.py).
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline.artifacts import Cell
from pipeline.config import CellSettings, load_settings
from pipeline.objective.methods import METHODS
from pipeline.policy.hf_folder import hf_state
from pipeline.policy.qwen3_moe import Policy
from pipeline.records import Response, RolloutBatch, Sample
from pipeline.trainer.torch_trainer import TorchTrainer

FILE = Path(__file__).with_suffix(".json")
NAMES = tuple(METHODS)[: list(METHODS).index("grpo-r3-uncorrected") + 1]
STEPS = 10


@dataclass(frozen=True)
class Form:
    """How a rollout batch is cut into optimizer steps, and what is set besides."""

    steps_per_batch: int
    lag: str
    overrides: dict[str, Any]


FORMS = {
    "one micro-batch": Form(1, "8", {}),
    "several micro-batches": Form(
        2,
        "8-15",
        {
            "trainer": {"micro_batch_tokens": 96},
            "objective": {"entropy_coefficient": 0.01, "reference_kl_coefficient": 0.1},
        },
    ),
}


def rows(name: str, form: Form) -> list[dict[str, float]]:
    """The trainer's rows of ten steps, times left out."""
    torch.set_num_threads(1)
    settings = load_settings(overrides={"preset": "tiny", **form.overrides}).cell(Cell(name, form.lag, 0))
    trainer = TorchTrainer(settings, hf_state(Policy(settings.model, torch.Generator().manual_seed(0))))
    found: list[dict[str, float]] = []
    for index in range(STEPS // form.steps_per_batch):
        generating = trainer.publish()
        for update in trainer.train_batch(_batch(settings, index), form.steps_per_batch, generating):
            found.append({column: float(value) for column, value in update.flat().items() if column != "train_s"})
    return found


def _batch(settings: CellSettings, index: int) -> RolloutBatch:
    """Four groups of four responses of 1 to 30 tokens with made-up log-probs, routes and advantages."""
    random, model = np.random.default_rng([7, index]), settings.model
    samples = []
    for number in range(16):
        prompt, length = int(random.integers(2, 9)), int(random.integers(1, 31))
        order = random.random((prompt + length - 1, model.num_layers, model.num_experts)).argsort(-1)
        response = Response(
            prompt_ids=random.integers(0, model.vocab_size, prompt).astype(np.int32),
            response_ids=random.integers(0, model.vocab_size, length).astype(np.int32),
            rollout_logprobs=random.normal(-4.2, 0.3, length).astype(np.float32),
            policy_version=np.zeros(length, dtype=np.int32),
            routed_experts=order[..., : model.num_experts_per_token].astype(np.uint8),
            finish_reason="stop",
        )
        samples.append(Sample(f"problem-{number // 4}", response, "correct", 1.0, float(random.normal())))
    return RolloutBatch(index, tuple(samples), 4, 0.0)


def digest(found: list[dict[str, float]]) -> str:
    """A hash of the bits of all values that are there: a column that a method does not have is NaN, or not there."""
    kept = [{column: value.hex() for column, value in sorted(row.items()) if not math.isnan(value)} for row in found]
    return hashlib.sha256(json.dumps(kept).encode()).hexdigest()[:16]


def arithmetic() -> str:
    """What names this machine's rounding: a hash of the operations that a step is made of."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(96, 96, generator=generator) for _ in range(2))
    parts = [a @ b, a.exp(), a.softmax(-1), torch.nn.functional.silu(a), a.sum(-1), a.square().mean(-1).rsqrt(), a.sin()]
    parts += [a.double().exp(), a.log_softmax(-1), a.cos(), a[:, :16] @ b[:16, :64]]
    return hashlib.sha256(b"".join(part.numpy().tobytes() for part in parts)).hexdigest()[:16]


def main() -> None:
    torch.set_num_threads(1)
    entries = {}
    for name in NAMES:
        for form, options in FORMS.items():
            found = rows(name, options)
            last = {column: value for column, value in found[-1].items() if not math.isnan(value)}
            entries[f"{name}, {form}"] = {"sha256": digest(found), "last": last}
    FILE.write_text(json.dumps({"arithmetic": arithmetic(), "steps": STEPS, "methods": entries}, indent=1) + "\n")


if __name__ == "__main__":
    main()
