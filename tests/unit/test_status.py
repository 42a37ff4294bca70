"""Progress files, heartbeats, failure records and the states that the status table reads from them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pipeline.artifacts import Cell, Layout, read_json, write_json
from pipeline.cell.failure import FailureRecord
from pipeline.cell.heartbeat import HEARTBEAT, STALE_S, Heartbeat, alive
from pipeline.cell.progress import CellProgress
from pipeline.cell.status import cell_states, run_settings, show_status
from pipeline.cell.step_row import SampleColumns, StepRow
from pipeline.config import Settings, fingerprint, load_settings
from pipeline.dag import write_stage_settings
from pipeline.evaluation.rows import EvalRow, SampleRow
from pipeline.planning.plan import _finished_runs
from pipeline.results.runs import read_results
from pipeline.trainer.update import Update
from tests.unit.synthetic_results import World, cells, write_cell

REPOSITORY = Path(__file__).parents[2]
LAYOUT = Layout("tiny")
CELL = Cell("grpo", "8", 0)


@pytest.fixture
def settings(tmp_path, monkeypatch) -> Settings:
    """A planned run of two cells, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    overrides = cells(["grpo", "gspo"], ["8"]) | {"trainer": {"steps": 8}, "evaluation": {"interval": 4}}
    read = load_settings(REPOSITORY / "config.yaml", overrides)
    write_stage_settings(read, LAYOUT, read.all_cells())
    return read


def row(step: int) -> StepRow:
    update = Update({"mismatch": 0.01 * step, "sat_quantile": float("nan")}, 0.0, 1.0, skipped=False, finite=True, train_s=0.1)
    samples = SampleColumns(2.0, 2, 2, '{"2": 6}', 0.25 * (step % 2), 0.0, 3.0, 0.0, 2, 6)
    return StepRow(update, samples, step, step, True, 0, step, generate_s=0.1, wait_s=0.0, publish_s=0.0)


def evaluation(step: int, correct: bool) -> EvalRow:
    sample = SampleRow(step + 1, "p0", 0, correct, correct, "correct" if correct else "incorrect", "7", "stop", 3)
    return EvalRow(sample, step, repeated=False)


def report_steps(settings: Settings, count: int = 4, cell: Cell = CELL) -> Path:
    """Write what a cell's process writes until step `count`; returns its state folder."""
    folder = LAYOUT.cell_state(cell) / "abc"
    progress = CellProgress(settings.cell(cell), folder)
    for step in range(count):
        progress._written = 0.0
        progress(row(step), [evaluation(1, True), evaluation(1, False)] if step > 1 else [])
    progress.close()
    return folder


def states(settings: Settings) -> list[str]:
    return [status.state for status in cell_states(settings)]


def test_progress_is_written_for_people_and_for_tensorboard(settings):
    folder = report_steps(settings)
    progress = read_json(folder / "progress.json")
    assert [progress[name] for name in ("step", "steps", "reward", "accuracy", "lag_mean")] == [4, 8, 0.125, 0.5, 2.0]
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    assert [event.value for event in events.Scalars("cell/mismatch")] == pytest.approx([0.0, 0.01, 0.02, 0.03])
    assert [event.step for event in events.Scalars("cell/evaluation_accuracy")] == [2]
    assert "cell/sat_quantile" not in events.Tags()["scalars"]


def test_time_of_earlier_attempts_is_counted(settings):
    folder = report_steps(settings)
    write_json(folder / "progress.json", read_json(folder / "progress.json") | {"seconds": 1000.0})
    report_steps(settings)
    assert 1000.0 < read_json(folder / "progress.json")["seconds"] < 1010.0


def test_a_cell_is_missing_then_running_then_resumable(settings):
    assert states(settings) == ["missing", "missing"]
    with Heartbeat(LAYOUT.cell_state(CELL) / HEARTBEAT):
        assert states(settings) == ["running", "queued"]
        folder = report_steps(settings)
        running = cell_states(settings)[0]
        assert (running.state, running.step, running.steps, running.reward, running.accuracy) == ("running", 4, 8, 0.125, 0.5)
        assert running.seconds_left is not None and running.gpu_hours is None
        # the table and the report name it too
        reasons = {gap.cell: gap.reason for gap in read_results(LAYOUT, settings).gaps}
        assert reasons[str(CELL)].endswith("running at step 4 of 8")
    assert states(settings) == ["missing", "missing"]  # without a checkpoint it would start over
    (folder / "checkpoints" / "step_000003").mkdir(parents=True)
    assert states(settings) == ["resumable", "missing"]
    resumable = cell_states(settings)[0]
    assert (resumable.step, resumable.seconds_left) == (3, None)  # step 4 is lost


def test_a_heartbeat_that_stopped_is_a_dead_cell_and_one_from_the_future_is_not(settings):
    heartbeat = LAYOUT.cell_state(CELL) / HEARTBEAT
    heartbeat.parent.mkdir(parents=True)
    heartbeat.touch()
    now = heartbeat.stat().st_mtime
    assert [alive(heartbeat, now + age) for age in (-3600.0, 0.0, STALE_S - 1, STALE_S + 1)] == [True, True, True, False]
    os.utime(heartbeat, (time.time() - STALE_S - 1,) * 2)
    assert states(settings) == ["missing", "missing"]


def test_a_heartbeat_beats_until_its_context_ends(tmp_path):
    path = tmp_path / "state" / HEARTBEAT
    with Heartbeat(path, interval_s=0.01):
        os.utime(path, (0, 0))
        deadline = time.monotonic() + 10.0
        while path.stat().st_mtime == 0 and time.monotonic() < deadline:
            time.sleep(0.005)
        assert alive(path)
    assert not path.exists()


def test_a_failed_attempt_says_why_until_the_next_one_starts(settings):
    folder = LAYOUT.cell_state(CELL) / "abc"
    identity = fingerprint(settings.cell(CELL))
    with pytest.raises(ValueError, match="no space"), FailureRecord(folder, identity):
        raise ValueError("no space\nleft")
    failed = cell_states(settings)[0]
    assert (failed.state, failed.note) == ("failed", "ValueError: no space left")
    with pytest.raises(SystemExit), FailureRecord(folder, identity):
        assert not (folder / "failure.json").exists()
        raise SystemExit(130)
    assert states(settings) == ["missing", "missing"]


def test_state_of_other_settings_does_not_count(settings):
    folder = report_steps(settings)
    (folder / "checkpoints" / "step_000004").mkdir(parents=True)
    other = settings.model_copy(update={"trainer": settings.trainer.model_copy(update={"learning_rate": 1.0})})
    assert states(settings)[0] == "resumable" and states(other)[0] == "missing"


def test_an_operational_change_leaves_cells_resumable_finished_and_up_to_date(settings):
    """Here the interval of checkpoints, and where and how long the cells of a cluster run."""
    folder = report_steps(settings)
    (folder / "checkpoints" / "step_000004").mkdir(parents=True)
    write_cell(LAYOUT, settings, Cell("gspo", "8", 0), World(collapsed={}))
    other = settings.model_copy(update={"trainer": settings.trainer.model_copy(update={"checkpoint_interval": 4})})
    assert states(settings) == states(other) == ["resumable", "finished"]
    assert [gap for gap in read_results(LAYOUT, other).gaps if gap.kind == "settings"] == []
    full = load_settings(REPOSITORY / "config.yaml", cells(["grpo"], ["8"]) | {"preset": "full"})
    record = {"settings": full.cell(CELL).model_dump(mode="json"), "steps": 544, "wall_s": {"total": 7200.0}}
    write_json(Layout("full").cell(CELL) / "run.json", record)
    moved = {"cluster": {"scratch": "/scratch"}, "servers": {"stall_timeout_s": 5000}, "megatron": {"threads": 8}}
    elsewhere = load_settings(REPOSITORY / "config.yaml", cells(["grpo"], ["8"]) | {"preset": "full", **moved})
    assert states(full) == states(elsewhere) == ["finished"]
    assert [_finished_runs(s, Layout("full")) for s in (full, elsewhere)] == [[record], [record]]


def test_finished_cells_are_read_from_their_results_and_stale_ones_say_what_changed(settings):
    write_cell(LAYOUT, settings, CELL, World(collapsed={}))
    finished = cell_states(settings)[0]
    assert (finished.state, finished.step) == ("finished", 8) and finished.seconds is not None
    assert finished.lag_mean == 7.0 and finished.reward is not None and finished.accuracy is not None  # step 7 of an interval of 8
    other = settings.model_copy(update={"trainer": settings.trainer.model_copy(update={"learning_rate": 1.0})})
    stale = cell_states(other)[0]
    assert stale.state == "stale" and stale.note == "made with other settings: trainer.learning_rate 0.0006, now 1.0"


def test_gpu_hours_count_the_gpus_a_cell_holds(settings):
    overrides = cells(["grpo"], ["8"]) | {"preset": "full"}
    full = load_settings(REPOSITORY / "config.yaml", overrides)
    write_json(
        Layout("full").cell(CELL) / "run.json",
        {"settings": full.cell(CELL).model_dump(mode="json"), "steps": 544, "wall_s": {"total": 7200.0}},
    )
    assert cell_states(full)[0].gpu_hours == 16.0  # two hours of eight GPUs


def test_the_table_names_every_cell_and_its_state(settings):
    with Heartbeat(LAYOUT.cell_state(CELL) / HEARTBEAT):
        report_steps(settings)
        console = Console(width=120, record=True, file=open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        show_status("tiny", console)
    shown = console.export_text()
    assert "2 cells: 1 running, 1 queued" in shown and "min left" not in shown
    lines = {line.split("│")[1].strip(): line for line in shown.splitlines() if line.startswith("│")}
    assert all(text in lines["grpo/lag8/seed0"] for text in ("running", "4/8", "0.125", "0.0300", "0.500", "2.0"))
    assert all(text in lines["gspo/lag8/seed0"] for text in ("queued", "0/8", "-"))


def test_without_a_planned_run_the_present_settings_count(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text((REPOSITORY / "config.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    assert run_settings("rehearsal") == load_settings(overrides={"preset": "rehearsal"})
