"""Leases, progress files, the watch table and error messages of the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pipeline.artifacts import Cell, Layout, read_json, write_json
from pipeline.config import load_settings
from pipeline.dag import write_stage_settings
from pipeline.launch.lease import lease
from pipeline.launch.progress import CellProgress
from pipeline.launch.stop import Stop
from pipeline.launch.watch import watch

REPOSITORY = Path(__file__).parents[2]
HOLD = """
import sys, time
from pathlib import Path
from pipeline.launch.lease import lease
from pipeline.launch.stop import Stop

with lease(Path(sys.argv[1]), Stop(), touch_s=0.2):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_lease_waits_for_its_holder_and_passes_on_when_it_is_killed(tmp_path, capfd):
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    waiting = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert waiting.stdout is not None
    assert f"is being written by process {holder.pid} on " in waiting.stdout.readline()
    holder.kill()
    holder.wait()
    assert waiting.stdout.readline() == "held\n"
    waiting.kill()
    waiting.wait()
    with lease(tmp_path, Stop()):
        assert read_json(tmp_path / "lease.json")["pid"] == os.getpid()
    assert not (tmp_path / "lease.json").exists()


def row(step: int) -> dict:
    return {"step": step, "reward_mean": 0.25 * (step % 2), "mismatch": 0.01 * step, "sat_quantile": float("nan"), "finite": True}


def evaluation(step: int, correct: bool) -> dict:
    return {"step": step, "policy_version": step + 1, "correct": correct, "repeated": False}


@pytest.fixture
def running_cell(tmp_path, monkeypatch) -> Cell:
    """One cell of a two-cell run that reports from this very process."""
    monkeypatch.chdir(tmp_path)
    groups = {name: {"methods": [], "lags": []} for name in ("uncorrected", "stress")}
    overrides = {
        "cells": {"table": {"methods": ["grpo", "gspo"], "lags": ["8"]}, **groups},
        "trainer": {"steps": 8},
        "evaluation": {"interval": 4},
    }
    settings = load_settings(REPOSITORY / "config.yaml", overrides)
    write_stage_settings(settings, Layout("tiny"), settings.all_cells())
    cell = Cell("grpo", "8", 0)
    progress = CellProgress(cell, 8, Layout("tiny").cell_state(cell) / "abc")
    progress._written = 0.0
    for step in range(4):
        progress._written = 0.0
        progress(row(step), [evaluation(1, True), evaluation(1, False)] if step > 1 else [])
    progress.close()
    return cell


def test_progress_is_written_for_people_and_for_tensorboard(running_cell):
    folder = Layout("tiny").cell_state(running_cell) / "abc"
    progress = read_json(folder / "progress.json")
    assert (progress["step"], progress["steps"], progress["reward"], progress["accuracy"]) == (4, 8, 0.125, 0.5)
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    assert [event.value for event in events.Scalars("cell/mismatch")] == pytest.approx([0.0, 0.01, 0.02, 0.03])
    assert [event.step for event in events.Scalars("cell/evaluation_accuracy")] == [2]
    assert "cell/sat_quantile" not in events.Tags()["scalars"]


def test_watch_shows_running_and_finished_cells(running_cell, capsys):
    watch("tiny", once=True)
    shown = capsys.readouterr().out
    assert "0 of 2 cells done, 1 waiting" in shown and "4/8" in shown and "0.500" in shown
    write_json(Layout("tiny").cell(running_cell) / "run.json", {})
    watch("tiny", once=True)
    shown = capsys.readouterr().out
    assert "1 of 2 cells done, 1 waiting" in shown and "4/8" not in shown


def test_a_dead_cell_is_not_shown_as_running(running_cell, capsys):
    path = Layout("tiny").cell_state(running_cell) / "abc" / "progress.json"
    write_json(path, read_json(path) | {"pid": 2**22 + 1})
    watch("tiny", once=True)
    assert "0 of 2 cells done, 2 waiting" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["prepare", "--settings", "none.json", "--out", "x"], "settings file none.json does not exist"),
        (["score-cell", "--run", "none.json", "--problems", "p", "--base-policy", "b", "--out", "x"], "none.json does not exist"),
        (["watch"], "settings file state/tiny/settings/run.json does not exist"),
    ],
)
def test_user_errors_are_one_line(tmp_path, arguments, message):
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and done.stderr.startswith("error: ") and message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_help_lists_the_stages_and_imports_no_torch():
    done = subprocess.run([sys.executable, "-m", "pipeline", "--help"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert all(stage in done.stdout for stage in ("prepare", "base-policy", "train-cell", "score-cell", "report", "watch"))
    imported = subprocess.run(
        [sys.executable, "-c", "import sys, pipeline.__main__; print('torch' in sys.modules)"],
        cwd=REPOSITORY, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert imported.stdout == "False\n"
