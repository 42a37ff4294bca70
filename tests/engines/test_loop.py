"""The loop with the torch engines: realised lags, resumption bit for bit, overlap, micro-batching, odd batches."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.artifacts import Cell
from pipeline.cell import checkpoint
from pipeline.cell.loop import CellInputs, CellLoop
from pipeline.cell.step_row import StepRow, step_columns
from pipeline.columns import columns_of_row
from pipeline.config import CellSettings, load_settings
from pipeline.engines import rollout_engine
from pipeline.evaluation.rows import EvalRow, SampleRow
from pipeline.grading.grade import Grade
from pipeline.objective.diagnostics import columns_of
from pipeline.objective.methods import METHODS
from pipeline.objective.step_columns import COMMON, objective_columns
from pipeline.processes.stop import PlannedStop, Stop
from pipeline.published_weights import PublishedWeights
from pipeline.records import Problem, Request, Response, RolloutBatch
from pipeline.rollout.collector import Collector, ProblemStream
from pipeline.rollout.engine import Generation, SamplingSettings
from pipeline.rollout.schedule import Schedule
from pipeline.rollout.torch_engine import EngineSpec, InlineTorchEngine
from pipeline.trainer.torch_trainer import TorchTrainer
from tests.engines.conftest import published

SMALL = {
    "rollout": {"group_size": 4, "prompts_per_step": 4, "max_response_tokens": 16, "overlap": False, "generate_ahead": 8},
    "trainer": {"steps": 6, "checkpoint_interval": 3},
    "evaluation": {"interval": 2, "num_samples": 2, "max_response_tokens": 16},
    "cells": {"stress": {"methods": [], "lags": []}},
}


def cell(method: str, lag: str, **changes: dict[str, Any]) -> CellSettings:
    merged = {name: SMALL.get(name, {}) | changes.get(name, {}) for name in SMALL | changes}
    return load_settings(overrides=merged).cell(Cell(method, lag, 0))


@pytest.fixture(autouse=True)
def rewards_vary(monkeypatch):
    """An untrained policy answers nothing correctly; a verdict that depends on the tokens makes every step move the weights."""

    def parity(response: Response, *_: object) -> str:
        return "correct" if int(response.response_ids.sum()) % 2 else "incorrect"

    def parity_of_text(text: str, *_: object, **__: object) -> dict[str, Grade]:
        odd = len(text) % 2
        return {
            "primemath": Grade("correct" if odd else "incorrect", text, "parity", 0.0),
            "strict": Grade("correct" if odd and len(text) % 3 else "incorrect", text, "parity", 0.0),
        }

    for module in ("pipeline.rollout.collector", "pipeline.evaluation.evaluate"):
        monkeypatch.setattr(f"{module}.grade_response", parity)
    monkeypatch.setattr("pipeline.evaluation.rows.grade_both", parity_of_text)


class Killed(Exception):
    """Stands for the end of the process in the middle of a run."""


def run(
    settings: CellSettings, inputs: CellInputs, folder: Path, end_at: int | None = None, stop: Stop | None = None
) -> tuple[CellLoop, TorchTrainer]:
    """Run a cell; at step `end_at` it is killed, or where there is a `stop` told to stop."""

    def report(row: StepRow, _evals: list[EvalRow]) -> None:
        if row.step != end_at:
            return
        if stop is None:
            raise Killed
        stop.tell("told")

    trainer = TorchTrainer(settings, published(settings.model).weights)
    engine = rollout_engine(settings, folder, inputs.tokenizer, folder)
    cell_run = CellLoop(settings, inputs, engine, trainer, folder, report, stop=stop)
    try:
        cell_run.run()
    finally:
        engine.close()
    return cell_run, trainer


def assert_equal_runs(one: tuple[CellLoop, TorchTrainer], other: tuple[CellLoop, TorchTrainer]) -> None:
    """Bit for bit: weights (which have moved), every diagnostic, every evaluation row, the retained versions."""
    assert all(row.update.grad_norm > 0.0 for row in one[0].state.step_rows)
    for name, tensor in one[1].publish().weights.items():
        assert torch.equal(tensor, other[1].publish().weights[name]), name
    timings = {"train_s", "generate_s", "wait_s", "publish_s"}
    rows = ([row.flat() for row in cell_run.state.step_rows] for cell_run, _ in (one, other))
    for mine, theirs in zip(*rows, strict=True):
        assert mine.keys() == theirs.keys()
        for name in mine.keys() - timings:
            assert mine[name] == theirs[name] or (mine[name] != mine[name] and theirs[name] != theirs[name]), name
    assert one[0].state.eval_rows == other[0].state.eval_rows
    assert one[0].state.best == other[0].state.best
    shas = [{name: entry["sha256"] for name, entry in r[0].state.retained.items()} for r in (one, other)]
    assert shas[0] == shas[1]


def mismatch(row: StepRow) -> float:
    return row.update.diagnostics["mismatch"]


def realised_lags(cell_run: CellLoop) -> list[tuple[int, int]]:
    return [(row.samples.lag_min, row.samples.lag_max) for row in cell_run.state.step_rows]


@pytest.mark.parametrize("lag", ["0", "1", "8", "8-15"])
def test_realised_lags_are_the_schedules(lag, inputs, tmp_path):
    steps = 16 if lag == "8-15" else 11
    settings = cell("grpo", lag, trainer={"steps": steps, "checkpoint_interval": 100})
    cell_run, trainer = run(settings, inputs, tmp_path)
    assert realised_lags(cell_run) == [(Schedule.of(settings).lag(step),) * 2 for step in range(steps)]
    assert trainer.version == steps == len(cell_run.state.step_rows)
    for row in cell_run.state.step_rows:
        histogram = json.loads(row.samples.lag_histogram)
        assert sum(histogram.values()) == row.samples.num_tokens and list(histogram) == [str(row.samples.lag_min)]
        assert row.publish_debt == row.step - row.published_version


@pytest.mark.parametrize("method", ["grpo", "sat-gspo-r3", "grpo-tis", "gac"])
def test_rows_have_exactly_the_declared_columns(method, inputs, tmp_path):
    settings = cell(method, "1", trainer={"steps": 2, "checkpoint_interval": 9})
    state = run(settings, inputs, tmp_path)[0].state
    own = {column.name for column in columns_of(settings.recipe())}
    other = {column.name for column in objective_columns()} - own
    expected = [column.name for column in step_columns() if column.name not in other]
    assert [list(row.flat()) for row in state.step_rows] == [expected] * 2
    declared = [column.name for column in (*columns_of_row(EvalRow), *columns_of_row(SampleRow))]
    assert [list(row.flat()) for row in state.eval_rows] == [declared] * (5 * 2)


@pytest.mark.parametrize("method", ["sat-gspo-r3", "grpo-tis"])
@pytest.mark.parametrize(("lag", "kill_at"), [("1", 3), ("1", 5), ("8", 1), ("8", 4), ("8", 10), ("8-15", 9)])
def test_a_killed_run_continues_bit_for_bit(method, lag, kill_at, inputs, tmp_path):
    steps = {"1": 6, "8": 12, "8-15": 16}[lag]
    settings = cell(method, lag, trainer={"steps": steps, "checkpoint_interval": 3})
    whole = run(settings, inputs, tmp_path / "whole")
    with pytest.raises(Killed):
        run(settings, inputs, tmp_path / "killed", kill_at)
    continued = run(settings, inputs, tmp_path / "killed")
    assert_equal_runs(whole, continued)
    unit = 8 if lag == "8-15" else 3
    assert continued[0].state.resumed_at == ([kill_at // unit * unit] if kill_at >= unit else [])


@pytest.mark.parametrize(("lag", "told_at", "saved"), [("1", 3, 4), ("8", 10, 11), ("8-15", 9, 16)])
def test_a_planned_stop_saves_the_batch_that_is_trained_and_continues_bit_for_bit(lag, told_at, saved, inputs, tmp_path):
    steps = {"1": 6, "8": 12, "8-15": 24}[lag]
    settings = cell("sat-gspo-r3", lag, trainer={"steps": steps, "checkpoint_interval": 100})
    whole, stop = run(settings, inputs, tmp_path / "whole"), Stop()
    with pytest.raises(PlannedStop):
        run(settings, inputs, tmp_path / "stopped", told_at, stop)
    assert [path.name for path in (tmp_path / "stopped" / "checkpoints").iterdir()] == [f"step_{saved:06}"]
    continued = run(settings, inputs, tmp_path / "stopped")
    assert_equal_runs(whole, continued)
    assert continued[0].state.resumed_at == [saved]


def test_the_denominator_of_the_generating_weights_survives_a_kill(inputs, tmp_path):
    settings = cell(
        "grpo",
        "8",
        objective={"ratio_denominator": "rollout_weights"},
        trainer={"steps": 12, "checkpoint_interval": 3},
        cells={"table": {"methods": ["grpo"]}, "uncorrected": {"methods": []}, "stress": {"methods": []}},
    )
    whole = run(settings, inputs, tmp_path / "whole")
    with pytest.raises(Killed):
        run(settings, inputs, tmp_path / "killed", 10)
    assert_equal_runs(whole, run(settings, inputs, tmp_path / "killed"))
    drift = [row.update.diagnostics["ratio_mean"] for row in whole[0].state.step_rows]
    assert drift[0] == 1.0 and all(value != 1.0 for value in drift[1:8])


def test_overlap_changes_nothing(inputs, tmp_path):
    """The engine in a process of its own, generating while the trainer trains, gives the run of the engine in this process."""
    results = [
        run(cell("sat-grpo-r3", "1", rollout={**SMALL["rollout"], "overlap": overlap}), inputs, tmp_path / str(overlap))
        for overlap in (True, False)
    ]
    assert_equal_runs(*results)


def test_evaluation_does_not_touch_training(inputs, tmp_path):
    often = run(cell("grpo", "1", evaluation={**SMALL["evaluation"], "interval": 1}), inputs, tmp_path / "often")
    once = run(cell("grpo", "1", evaluation={**SMALL["evaluation"], "interval": 6}), inputs, tmp_path / "once")
    assert len(once[0].state.eval_rows) == 5 * 2 and len(often[0].state.eval_rows) == 6 * 5 * 2
    assert [mismatch(row) for row in often[0].state.step_rows] == [mismatch(row) for row in once[0].state.step_rows]


def test_a_version_is_evaluated_once_and_then_repeated(inputs, tmp_path):
    cell_run, _ = run(cell("grpo", "8", trainer={"steps": 16, "checkpoint_interval": 99}), inputs, tmp_path)
    points = {row.step: (row.sample.policy_version, row.repeated) for row in cell_run.state.eval_rows}
    assert points == {
        1: (0, False),
        3: (0, True),
        5: (0, True),
        7: (8, False),
        9: (8, True),
        11: (8, True),
        13: (8, True),
        15: (16, False),
    }
    best = cell_run.state.retained["best"]
    assert PublishedWeights.read(Path(best["path"]), best["sha256"]).version == best["version"]


def test_a_damaged_checkpoint_is_reported_and_the_one_before_is_used(inputs, tmp_path, capsys):
    settings = cell("grpo", "1", trainer={"steps": 9, "checkpoint_interval": 3})
    whole = run(settings, inputs, tmp_path / "whole")
    with pytest.raises(Killed):
        run(settings, inputs, tmp_path / "killed", 7)
    newest = tmp_path / "killed" / "checkpoints" / "step_000006"
    content = (newest / "trainer" / "state.safetensors").read_bytes()
    (newest / "trainer" / "state.safetensors").write_bytes(content[: len(content) // 2])
    continued = run(settings, inputs, tmp_path / "killed")
    assert "step_000006 is damaged" in " ".join(capsys.readouterr().err.split())
    assert continued[0].state.resumed_at == [3]
    assert (tmp_path / "killed" / "checkpoints" / "damaged_step_000006").is_dir()
    assert_equal_runs(whole, continued)


def test_retained_weights_that_are_gone_or_changed_are_refused(model, tmp_path):
    path = tmp_path / "version_000008"
    digest = published(model, 8).write(path)
    assert PublishedWeights.read(path, digest).version == 8
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ValueError, match="SHA-256 differs"):
        PublishedWeights.read(path, digest)
    with pytest.raises(ValueError, match="cannot be read"):
        PublishedWeights.read(path)
    path.rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="are gone; retrain the cell"):
        PublishedWeights.read(path, digest)


def rollouts(settings: CellSettings, inputs: CellInputs, replay: bool = True) -> RolloutBatch:
    spec = EngineSpec(settings.model, "bfloat16", inputs.tokenizer.eos_token_ids, inputs.tokenizer.pad_token_id)
    engine = InlineTorchEngine(spec)
    engine.load(published(settings.model, 0, seed=3))
    collector = Collector(engine, Schedule.of(settings), inputs.train, inputs.tokenizer, settings.rollout, 0, replay)
    collector.submit(0)
    return collector.take(0)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("lag", ["1", "8-15"])
def test_micro_batches_do_not_change_a_step(method, lag, inputs):
    """float64: parameters and diagnostics after the optimizer steps of one rollout batch, for one and for many micro-batches."""
    outcomes = []
    for tokens in (100_000, 60, 1):
        settings = cell(method, lag, trainer={"steps": 8, "checkpoint_interval": 9, "micro_batch_tokens": tokens})
        trainer = TorchTrainer(settings, published(settings.model).weights, dtype=torch.float64)
        steps = settings.schedule.optimizer_steps_per_rollout
        updates = trainer.train_batch(rollouts(settings, inputs), steps, published(settings.model, 0, seed=3))
        rows = [update.flat() for update in updates]
        outcomes.append((rows, trainer.publish().weights))
    for rows, weights in outcomes[1:]:
        for row, expected in zip(rows, outcomes[0][0], strict=True):
            for name in row.keys() - {"train_s"}:
                assert row[name] == pytest.approx(expected[name], rel=1e-9, abs=1e-10, nan_ok=True), name
        for name, tensor in weights.items():
            torch.testing.assert_close(tensor, outcomes[0][1][name], rtol=0, atol=1e-10)


def test_a_step_with_equal_rewards_moves_nothing_but_the_kl(inputs):
    settings = cell("grpo", "1", objective={"reference_kl_coefficient": 0.0})
    batch = rollouts(settings, inputs)
    batch = dataclasses.replace(batch, samples=tuple(dataclasses.replace(s, reward=1.0, advantage=0.0) for s in batch.samples))
    trainer = TorchTrainer(settings, published(settings.model).weights)
    (row,) = (update.flat() for update in trainer.train_batch(batch, 1, published(settings.model)))
    assert row["grad_norm"] == 0.0 and row["policy_loss"] == 0.0 and row["finite"] and row["mismatch"] > 0.0


def test_a_step_that_is_not_finite_is_recorded_and_skipped(inputs):
    settings = cell("sat-grpo", "1")
    batch = rollouts(settings, inputs)
    weights = published(settings.model).weights
    trainer = TorchTrainer(settings, weights)
    broken = dataclasses.replace(
        batch,
        samples=tuple(
            dataclasses.replace(s, advantage=float("inf") if i == 0 else s.advantage) for i, s in enumerate(batch.samples)
        ),
    )
    before = trainer.publish().weights
    (row,) = (update.flat() for update in trainer.train_batch(broken, 1, published(settings.model)))
    assert row["skipped"] and not row["finite"] and trainer.version == 1
    assert all(torch.equal(tensor, before[name]) for name, tensor in trainer.publish().weights.items())
    (row,) = (update.flat() for update in trainer.train_batch(batch, 1, published(settings.model)))
    assert row["finite"] and trainer.version == 2
    trainer._policy.head.data[0, 0] = float("nan")
    (row,) = (update.flat() for update in trainer.train_batch(batch, 1, published(settings.model)))
    assert row["skipped"] and np.isnan(row["mismatch"])


@pytest.mark.parametrize(("method", "tokens"), [("sat-grpo", 60), ("sat-gspo-r3", 8192), ("grpo-tis", 8192), ("dppo", 60)])
def test_not_a_number_from_the_engine_or_the_weights_skips_the_step(method, tokens, inputs, tmp_path):
    settings = cell(method, "1", trainer={**SMALL["trainer"], "micro_batch_tokens": tokens})
    batch = rollouts(settings, inputs)
    first = batch.samples[0]
    broken_logprobs = first.response.rollout_logprobs.copy()
    broken_logprobs[0] = np.nan
    response = dataclasses.replace(first.response, rollout_logprobs=broken_logprobs)
    broken = dataclasses.replace(batch, samples=(dataclasses.replace(first, response=response), *batch.samples[1:]))
    trainer = TorchTrainer(settings, published(settings.model).weights)
    (row,) = (update.flat() for update in trainer.train_batch(broken, 1, published(settings.model)))
    assert row["skipped"] and np.isnan(row["mismatch"]) and {column.name for column in COMMON} <= set(row)
    trainer.save(tmp_path)  # Adam has taken no step yet; the run must go on after a restore all the same
    restored = TorchTrainer(settings, published(settings.model).weights)
    restored.restore(tmp_path)
    (row,) = (update.flat() for update in restored.train_batch(batch, 1, published(settings.model)))
    assert row["finite"] and restored.version == 2
    restored._policy.head.data[0, 0] = float("nan")
    (row,) = (update.flat() for update in restored.train_batch(batch, 1, published(settings.model)))
    assert row["skipped"]


def test_replay_without_recorded_experts_is_refused_on_arrival(inputs, monkeypatch):
    def forgetful(self: InlineTorchEngine, requests: Sequence[Request], sampling: SamplingSettings) -> Future[Generation]:
        return generate(self, requests, dataclasses.replace(sampling, return_routed_experts=False))

    generate = InlineTorchEngine.generate
    monkeypatch.setattr(InlineTorchEngine, "generate", forgetful)
    with pytest.raises(ValueError, match="returned no routed experts"):
        rollouts(cell("grpo-r3", "1"), inputs)


@pytest.mark.parametrize("damage", ["both trainers", "cell.json", "empty cell.json"])
def test_damaged_checkpoints_never_come_back(damage, inputs, tmp_path):
    """Newer damaged checkpoints must not displace the ones that a restarted run writes."""
    settings = cell("grpo", "1", trainer={"steps": 9, "checkpoint_interval": 3})
    whole = run(settings, inputs, tmp_path / "whole")
    with pytest.raises(Killed):
        run(settings, inputs, tmp_path / "killed", 8)
    for step in ("step_000003", "step_000006"):
        folder = tmp_path / "killed" / "checkpoints" / step
        if damage == "both trainers":
            (folder / "trainer" / "state.safetensors").write_bytes(b"")
        else:
            (folder / "cell.json").write_text("{}" if damage.startswith("empty") else "{")
    with pytest.raises(Killed):
        run(settings, inputs, tmp_path / "killed", 5)
    continued = run(settings, inputs, tmp_path / "killed")
    assert continued[0].state.resumed_at == [3]
    assert_equal_runs(whole, continued)


def test_no_problems_are_refused(inputs):
    settings = cell("grpo", "1")
    with pytest.raises(ValueError, match="no training problems"):
        run(settings, dataclasses.replace(inputs, train=[]), Path("unused"))


def test_problem_order_is_a_function_of_seed_and_epoch():
    stream = ProblemStream(10, seed=0)
    epochs = [stream.take(0, 10), stream.take(10, 10)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(10)) and epochs[0] != epochs[1]
    assert ProblemStream(10, seed=0).take(7, 6) == epochs[0][7:] + epochs[1][:3]
    assert ProblemStream(10, seed=1).take(0, 10) != epochs[0]


def test_checkpoints_keep_two_and_prune_weights(inputs, tmp_path):
    run(cell("grpo", "1", trainer={"steps": 12, "checkpoint_interval": 2}), inputs, tmp_path)
    assert [path.name for path in sorted((tmp_path / "checkpoints").iterdir())] == ["step_000010", "step_000012"]
    shutil.rmtree(tmp_path / "checkpoints")
    assert checkpoint.resume(tmp_path / "checkpoints", None, tmp_path / "published") is None  # type: ignore[arg-type]


def test_problems_round_trip(inputs):
    assert all(isinstance(problem, Problem) and problem.prompt and problem.answer for problem in inputs.train)
