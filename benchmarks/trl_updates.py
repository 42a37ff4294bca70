"""Updates per second against TRL's GRPOTrainer on a CPU: the same policy, prompts, group size, lengths and number of updates.

Both sample 16 problems x 8 responses of at most 40 tokens per update, grade them with the same grader, and take one AdamW
step at the same learning rate with the reference KL of the paper. Ours is a lag-0 cell (no overlap) and a lag-1 cell
(generation in a second process); TRL generates and trains in turn. One thread per process. Needs envs/bench.txt.

    python benchmarks/trl_updates.py --updates 10
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from pipeline.artifacts import Cell
from pipeline.cell.loop import CellInputs, CellLoop
from pipeline.config import load_settings
from pipeline.engines import policy_trainer, rollout_engine
from pipeline.grading.grade import grade
from pipeline.policy.cpu import configure_cpu
from pipeline.policy.tokenizer import read_tokenizer
from pipeline.problems.prepare import read_problems


def ours(folder: Path, problems: Path, lag: str, updates: int) -> float:
    """Updates per second of the loop, set-up excluded as it is for TRL."""
    overrides = {"trainer": {"steps": updates, "checkpoint_interval": 10**6}, "evaluation": {"interval": updates}}
    overrides |= {"rollout": {"overlap": lag != "0"}, "cells": {"stress": {"methods": [], "lags": []}}}
    settings = load_settings(overrides=overrides).cell(Cell("grpo", lag, 0))
    tokenizer = read_tokenizer(folder)
    inputs = CellInputs(read_problems(problems / "train.parquet"), read_problems(problems / "evaluation.parquet"), tokenizer)
    logs = folder / "logs"
    engine, trainer = rollout_engine(settings, folder, tokenizer, logs), policy_trainer(settings, folder, logs)
    ends: list[float] = []
    with tempfile.TemporaryDirectory() as state:
        try:
            CellLoop(settings, inputs, engine, trainer, Path(state), lambda *_: ends.append(time.perf_counter())).run()
        finally:
            engine.close()
    return (len(ends) - 1) / (ends[-1] - ends[0])


def trl(folder: Path, problems: Path, updates: int) -> float:
    """Updates per second of GRPOTrainer.train(), its first update excluded."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    settings = load_settings()
    rows = read_problems(problems / "train.parquet")[: settings.rollout.prompts_per_step * (updates + 1)]
    dataset = Dataset.from_list([{"prompt": row.prompt, "answer": row.answer} for row in rows])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ends: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_: object, **__: object) -> None:
            ends.append(time.perf_counter())

    def reward(completions: list[str], answer: list[str], **_: object) -> list[float]:
        return [float(grade(c, a, "primemath").outcome == "correct") for c, a in zip(completions, answer, strict=True)]

    size = settings.rollout.prompts_per_step * settings.rollout.group_size
    with tempfile.TemporaryDirectory() as out:
        options = GRPOConfig(
            output_dir=out,
            per_device_train_batch_size=size,
            num_generations=settings.rollout.group_size,
            max_completion_length=settings.rollout.max_response_tokens,
            temperature=settings.rollout.temperature,
            beta=settings.objective.reference_kl_coefficient,
            learning_rate=settings.trainer.learning_rate,
            max_steps=updates,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to=[],
            save_strategy="no",
            logging_steps=10**6,
            disable_tqdm=True,
        )
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        trainer = GRPOTrainer(model, reward, options, dataset, processing_class=tokenizer, callbacks=[Clock()])
        trainer.train()
    return (len(ends) - 1) / (ends[-1] - ends[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-policy", type=Path, default=Path("results/tiny/base_policy"))
    parser.add_argument("--problems", type=Path, default=Path("results/tiny/problems"))
    parser.add_argument("--updates", type=int, default=10)
    options = parser.parse_args()
    configure_cpu(1)
    theirs = trl(options.base_policy, options.problems, options.updates)
    print(f"TRL GRPOTrainer            {theirs:6.2f} updates/s")
    for lag, name in (("0", "lag 0, one process"), ("1", "lag 1, two processes")):
        rate = ours(options.base_policy, options.problems, lag, options.updates)
        print(f"ours, {name:20s} {rate:6.2f} updates/s   {rate / theirs:5.1f}x")


if __name__ == "__main__":
    main()
