"""One cell: batch-wise asynchronous RL, as the paper's algorithm box.

    load the base weights into the engine as version 0, request batch 0
    for k = 0, 1, ...:
        request batch k+1 (asynchronous: it is generated with the weights the engine holds now, while batch k trains)
        wait for batch k, grade it, take m optimizer steps on it
        every n batches: publish the weights; the engine loads them after what it was asked before
        every few steps: evaluate the engine's version, on the engine

Batches that the same version samples may be requested in one call (rollout.generate_ahead); their lags are the same either way.
Weights, versions and data order are a function of the settings alone: whether generation overlaps training, where the run was
killed and how often it was resumed change nothing (with SGLang: nothing but the responses themselves).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.cell import checkpoint
from pipeline.cell.checkpoint import CellState
from pipeline.cell.step_row import SampleColumns, StepRow
from pipeline.config import CellSettings
from pipeline.evaluation.evaluate import Evaluation
from pipeline.evaluation.rows import EvalRow
from pipeline.policy.tokenizer import Tokenizer
from pipeline.processes.stop import PlannedStop, Stop
from pipeline.records import Problem, RolloutBatch
from pipeline.rollout.collector import Collector
from pipeline.rollout.engine import RolloutEngine
from pipeline.rollout.schedule import Schedule
from pipeline.trainer.trainer import PolicyTrainer


@dataclass(frozen=True)
class CellInputs:
    """What a cell reads: training problems, evaluation problems, the tokenizer of the base policy."""

    train: Sequence[Problem]
    evaluation: Sequence[Problem]
    tokenizer: Tokenizer


class CellLoop:
    """The loop over one cell. state_folder: checkpoints and retained weights.

    report: called with every finished step's row.  stop: asked between batches whether to end here, after a checkpoint.
    """

    def __init__(
        self,
        settings: CellSettings,
        inputs: CellInputs,
        engine: RolloutEngine,
        trainer: PolicyTrainer,
        state_folder: Path,
        report: Callable[[StepRow, list[EvalRow]], None],
        revision: str = "unknown",
        stop: Stop | None = None,
    ) -> None:
        self.settings, self.inputs, self.engine, self.trainer = settings, inputs, engine, trainer
        self.folder, self.report, self.revision, self.stop = state_folder, report, revision, stop or Stop()
        self.schedule = Schedule.of(settings)
        replay = settings.resolved_method().routing_replay
        self.collector = Collector(
            engine, self.schedule, inputs.train, inputs.tokenizer, settings.rollout, settings.seed, return_routed_experts=replay
        )
        self.state = CellState()
        self.evaluation: Evaluation | None = None
        self.last_s: dict[str, float] = {}

    def run(self) -> CellState:
        """Train to the end and return the final state; PlannedStop, once the state is saved, where the cell was told to stop."""
        try:
            return self._run()
        except PlannedStop:
            self._save_checkpoint()
            raise

    def _run(self) -> CellState:
        schedule, state = self.schedule, self._start()
        for batch in range(state.next_batch, schedule.num_batches):
            with self._timed("wait"):
                self.collector.submit(batch)
                if schedule.asynchronous:
                    self.collector.submit(batch + 1)
                self._request_evaluation()
                with self.stop.interruptible():
                    self.collector.wait(batch, self.trainer.check)
            with self._timed("grade"):
                rollouts = self.collector.take(batch)
            self._train(rollouts)
            if schedule.publishes_after(batch):
                self._collect_evaluation()
                self._publish()
            state.next_batch = batch + 1
            self._forget_unneeded_versions()
            self._save_checkpoint_if_due()
            self.stop.check()
        self._request_evaluation()
        self._collect_evaluation()
        self._retain("last", state.newest.version)
        self._count_time()
        return state

    def _start(self) -> CellState:
        """Resume from the newest checkpoint, or begin with the base weights as version 0. Either way the engine is loaded first."""
        resumed = checkpoint.resume(self.folder / "checkpoints", self.trainer, self.folder / "published")
        self.state = resumed or CellState(published={0: self.trainer.publish()})
        if self.revision not in self.state.revisions[-1:]:
            self.state.revisions.append(self.revision)
        self.counted, self.saved = time.perf_counter(), self.trainer.version
        for version in sorted(self.state.published):
            self.engine.load(self.state.published[version])
            if version == self.schedule.generating_version(self.state.next_batch):
                self.collector.submit(self.state.next_batch)
        return self.state

    def _train(self, rollouts: RolloutBatch) -> None:
        m = self.schedule.steps_per_batch
        generating = self.state.published[self.schedule.generating_version(rollouts.index)]
        wait_s = self.last_s["wait"]
        with self._timed("train"):
            rows = zip(rollouts.parts(m), self.trainer.train_batch(rollouts, m, generating), strict=True)
            for position, (samples, update) in enumerate(rows):
                step = self.trainer.version - 1  # the version that this step trained, of which the lag is measured
                assert step == rollouts.index * m + position, (step, rollouts.index, position)
                published = self.state.newest.version
                row = StepRow(
                    update=update,
                    samples=SampleColumns.of(samples, step, rollouts.group_size),
                    step=step,
                    batch=rollouts.index,
                    first_of_batch=position == 0,
                    published_version=published,
                    publish_debt=step - published,
                    generate_s=rollouts.generate_s / m,
                    wait_s=wait_s if position == 0 else 0.0,
                    publish_s=0.0,
                )
                self.state.step_rows.append(row)
                self.report(row, self.state.eval_rows)

    def _publish(self) -> None:
        with self._timed("publish"):
            published = self.trainer.publish()
            self.state.published[published.version] = published
            self.engine.load(published)
        self.state.step_rows[-1] = replace(self.state.step_rows[-1], publish_s=self.last_s["publish"])

    def _request_evaluation(self) -> None:
        """Ask for the evaluation of the newest version once it is due; a version is generated once."""
        version = self.state.newest.version
        done = any(row.sample.policy_version == version for row in self.state.eval_rows[-1:])
        if self.evaluation is None and not done and self.schedule.evaluation_steps(version):
            self.evaluation = Evaluation(
                self.engine, self.inputs.tokenizer, self.inputs.evaluation, self.settings, version, "evaluation"
            )

    def _collect_evaluation(self) -> None:
        """Wait for the evaluation in flight, record its rows at every step that reports this version, keep the best weights."""
        if self.evaluation is None:
            return
        with self._timed("evaluate"):
            self.evaluation.wait(self.trainer.check)
            rows = self.evaluation.rows()
        version = self.evaluation.version
        for number, step in enumerate(self.schedule.evaluation_steps(version)):
            self.state.eval_rows += [EvalRow(row, step, repeated=number > 0) for row in rows]
        score = sum(row.correct for row in rows) / len(rows)
        if self.state.best is None or score > self.state.best[0]:
            self.state.best = score, version
            self._retain("best", version)
        self.state.examples = self.evaluation.examples(6, rows)
        self.evaluation = None

    def _retain(self, name: str, version: int) -> None:
        """Keep the weights of `version` on disk under `name`; checkpoint.save removes files that no checkpoint names any more."""
        path = self.folder / "weights" / f"version_{version:06d}"
        self.state.retained[name] = {"version": version, "path": str(path), "sha256": self.state.published[version].write(path)}

    def _forget_unneeded_versions(self) -> None:
        needed = {self.state.newest.version, self.schedule.generating_version(self.state.next_batch)}
        for version in self.state.published.keys() - needed:
            self.state.published.pop(version).discard()

    def _save_checkpoint_if_due(self) -> None:
        """Save every checkpoint_interval optimizer steps, at the batch boundary on or after it, and at the end."""
        m, interval = self.schedule.steps_per_batch, self.settings.trainer.checkpoint_interval
        step = self.state.next_batch * m
        if step // interval > (step - m) // interval or self.state.next_batch == self.schedule.num_batches:
            self._save_checkpoint()

    def _save_checkpoint(self) -> None:
        """Save the state between two batches, unless it is saved already."""
        step = self.state.next_batch * self.schedule.steps_per_batch
        if step > self.saved:
            self._count_time()
            checkpoint.save(self.folder / "checkpoints", step, self.state, self.trainer)
            self.saved = step

    def _count_time(self) -> None:
        """Add the wall time since the last count to the total, which a checkpoint carries on."""
        now = time.perf_counter()
        self.state.seconds["total"] = self.state.seconds.get("total", 0.0) + now - self.counted
        self.counted = now

    @contextmanager
    def _timed(self, activity: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        elapsed = time.perf_counter() - started
        self.last_s[activity] = elapsed
        self.state.seconds[activity] = self.state.seconds.get(activity, 0.0) + elapsed
