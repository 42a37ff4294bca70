"""Where a cell stands, for people: a small JSON file per cell, a TensorBoard event file, and plain log lines."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from pipeline.artifacts import Cell, read_json, write_json
from pipeline.cell.step_row import StepRow
from pipeline.config import CellSettings, fingerprint
from pipeline.evaluation.rows import EvalRow

_WRITE_EVERY_S = 1.0
_LOG_EVERY_S = 15.0


class CellProgress:
    """Follows one cell. Call it with every step's row; `close` marks the end.

    How long earlier attempts took is read back from the progress.json that they wrote into `folder`.
    """

    def __init__(self, settings: CellSettings, folder: Path) -> None:
        self.cell, self.steps, self.folder = Cell(settings.method, settings.lag, settings.seed), settings.trainer.steps, folder
        self.settings = fingerprint(settings)
        previous = folder / "progress.json"
        self._earlier_s = read_json(previous)["seconds"] if previous.exists() else 0.0
        self.started = self._logged = time.time()
        self._written = 0.0
        self._first_step: int | None = None
        self._rewards: list[float] = []
        self._evaluated: int | None = None
        self._events = EventFileWriter(str(folder / "tensorboard"))

    def __call__(self, row: StepRow, eval_rows: list[EvalRow]) -> None:
        step, now = row.step, time.time()
        if self._first_step is None:
            self._first_step = step
        self._rewards.append(row.samples.reward_mean)
        self._write_events(row, eval_rows)
        if now - self._written > _WRITE_EVERY_S or step == self.steps - 1:
            self._written = now
            write_json(self.folder / "progress.json", self._snapshot(row, eval_rows, now))
        if now - self._logged > _LOG_EVERY_S:
            self._logged = now
            shown = self._snapshot(row, eval_rows, now)
            print(
                f"{self.cell}: step {shown['step']}/{self.steps}  reward {shown['reward']:.3f}  "
                f"mismatch {shown['mismatch']:.4f}  {shown['seconds_left']:.0f} s left",
                flush=True,
            )

    def _snapshot(self, row: StepRow, eval_rows: list[EvalRow], now: float) -> dict[str, Any]:
        done = row.step + 1
        rate = (done - (self._first_step or 0)) / max(now - self.started, 1e-9)
        recent = self._rewards[-10:]
        last_version = eval_rows[-1].sample.policy_version if eval_rows else None
        last = [r.sample.correct for r in eval_rows if r.sample.policy_version == last_version and not r.repeated]
        return {
            "method": self.cell.method,
            "lag": self.cell.lag,
            "seed": self.cell.seed,
            "settings": self.settings,
            "step": done,
            "steps": self.steps,
            "reward": sum(recent) / len(recent),
            "mismatch": row.update.diagnostics["mismatch"],
            "accuracy": sum(last) / len(last) if last else None,
            "lag_mean": row.samples.lag_mean,
            "seconds": self._earlier_s + now - self.started,
            "updated": now,
            "seconds_left": (self.steps - done) / rate,
        }

    def _write_events(self, row: StepRow, eval_rows: list[EvalRow]) -> None:
        values = {k: float(v) for k, v in row.flat().items() if isinstance(v, (int, float)) and math.isfinite(v)}
        if eval_rows and eval_rows[-1].sample.policy_version != self._evaluated:
            self._evaluated = eval_rows[-1].sample.policy_version
            fresh = [r.sample.correct for r in eval_rows if r.sample.policy_version == self._evaluated and not r.repeated]
            values["evaluation_accuracy"] = sum(fresh) / len(fresh)
        summary = Summary(value=[Summary.Value(tag=f"cell/{name}", simple_value=value) for name, value in values.items()])
        self._events.add_event(Event(wall_time=time.time(), step=row.step, summary=summary))

    def close(self) -> None:
        self._events.close()
