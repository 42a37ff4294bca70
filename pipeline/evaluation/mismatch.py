"""Where mismatch comes from when the weights are equal: rollout batches of the base policy, scored by the trainer.

Rollout batches are generated in bfloat16, and on a CPU in float32 too. The trainer scores each twice: with its own routing, and
with the routes that the engine recorded (R3). The mismatch of float32 comes from kernels. What bfloat16 adds comes from
precision, and what replay takes away from routing. The share of lag is read from the cells' own steps.

Scoring is a training step whose learning rate changes nothing, so that only its diagnostics remain.
"""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

from pipeline.artifacts import write_json
from pipeline.config import CellSettings
from pipeline.engines import policy_trainer, rollout_engine
from pipeline.policy.cpu import configure_cpu
from pipeline.policy.tokenizer import read_tokenizer
from pipeline.problems.prepare import read_problems
from pipeline.published_weights import PublishedWeights, StoredWeights
from pipeline.records import RolloutBatch
from pipeline.rollout.collector import Collector
from pipeline.rollout.schedule import Schedule

BATCHES = 5  # rollout batches per measurement; the standard error is taken over them
PROMPTS, GROUP = 16, 8  # of a batch, at most: all batches and their routes wait in memory
METHODS = {False: "grpo", True: "grpo-r3"}  # by whether routes are replayed; they read the same settings
_NO_CHANGE = 1e-30  # a learning rate


def measure_mismatch(settings: CellSettings, problems: Path, base_policy: Path, out: Path) -> None:
    """Write {rows: [{name, dtype, replay, lag, mismatch, se, n_tokens, seeds}]}: mismatch in nats and its standard error.

    settings: of a synchronous cell of this run.
    """
    configure_cpu(settings.trainer.threads)
    rows = []
    batches = {dtype: _rollouts(settings, dtype, problems, base_policy, out.parent / "mismatch") for dtype in levels(settings)}
    for replay in METHODS:
        cell = _cell(settings, METHODS[replay], settings.rollout.dtype)
        trainer = policy_trainer(cell, base_policy, out.parent / "mismatch" / METHODS[replay])
        base = trainer.publish()
        try:
            for dtype, rollouts in batches.items():
                measured = [update for batch in rollouts for update in trainer.train_batch(batch, 1, base)]
                rows.append(_row(dtype, replay, [update.diagnostics["mismatch"] for update in measured], rollouts))
        finally:
            trainer.close()
    write_json(out, {"rows": rows})


def levels(settings: CellSettings) -> tuple[str, ...]:
    """The dtypes to generate in: float32 only on a CPU, because SGLang's attention on GPUs may know none."""
    on_gpus = settings.rollout.engine == "sglang" and settings.cluster and settings.cluster.device == "cuda"
    return ("bfloat16",) if on_gpus else ("float32", "bfloat16")


def _cell(settings: CellSettings, method: str, dtype: str) -> CellSettings:
    """The cell with steps that change nothing."""
    sizes = {
        "prompts_per_step": min(PROMPTS, settings.rollout.prompts_per_step),
        "group_size": min(GROUP, settings.rollout.group_size),
    }
    changed = {
        "method": method,
        "rollout": settings.rollout.model_copy(update={"dtype": dtype, "overlap": False, "generate_ahead": 1, **sizes}),
        "trainer": settings.trainer.model_copy(update={"learning_rate": _NO_CHANGE, "steps": BATCHES}),
        "evaluation": settings.evaluation.model_copy(update={"interval": BATCHES}),
    }
    return settings.model_copy(update=changed)


def _rollouts(settings: CellSettings, dtype: str, problems: Path, base_policy: Path, logs: Path) -> list[RolloutBatch]:
    cell, tokenizer = _cell(settings, METHODS[True], dtype), read_tokenizer(base_policy)
    engine = rollout_engine(cell, base_policy, tokenizer, logs / dtype)
    train = read_problems(problems / "train.parquet")
    collector = Collector(engine, Schedule.of(cell), train, tokenizer, cell.rollout, cell.seed, return_routed_experts=True)
    try:
        engine.load(PublishedWeights(0, StoredWeights(base_policy), base_policy))
        for batch in range(BATCHES):
            collector.submit(batch)
        return [collector.take(batch) for batch in range(BATCHES)]
    finally:
        engine.close()


def _row(dtype: str, replay: bool, values: list[float], rollouts: list[RolloutBatch]) -> dict[str, Any]:
    return {
        "name": f"equal weights, rollouts in {dtype}, {'routes replayed' if replay else 'own routes'}",
        "dtype": dtype,
        "replay": replay,
        "lag": 0,
        "mismatch": statistics.fmean(values),
        "se": statistics.stdev(values) / math.sqrt(len(values)),
        "n_tokens": sum(len(sample.response.response_ids) for batch in rollouts for sample in batch.samples),
        "seeds": 1,
    }
