"""Leases, what a failed start leaves behind, and error messages of the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.artifacts import Cell, read_json
from pipeline.cell import job
from pipeline.cell.lease import lease
from pipeline.cell.loop import CellInputs
from pipeline.config import load_settings
from pipeline.processes.errors import EngineDied
from pipeline.processes.stop import Stop

REPOSITORY = Path(__file__).parents[2]
HOLD = """
import sys, time
from pathlib import Path
from pipeline.cell.lease import lease
from pipeline.processes.stop import Stop

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


def test_a_rollout_engine_that_cannot_start_leaves_no_trainer_behind(tmp_path, monkeypatch):
    closed: list[str] = []

    def opened(name: str) -> SimpleNamespace:
        return SimpleNamespace(close=lambda: closed.append(name))

    def failing(*_: object) -> None:
        raise EngineDied("server-0 ended")

    monkeypatch.setattr(job, "CellProgress", lambda *_: opened("progress"))
    monkeypatch.setattr(job, "policy_trainer", lambda *_: opened("trainer"))
    monkeypatch.setattr(job, "rollout_engine", failing)
    settings = load_settings().cell(Cell("grpo", "1", 0))
    with pytest.raises(EngineDied, match="server-0 ended"):
        job._train(settings, CellInputs([], [], None), tmp_path, tmp_path, "revision", Stop())  # pyright: ignore[reportArgumentType]
    assert closed == ["trainer", "progress"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["prepare", "--settings", "none.json", "--out", "x"], "settings file none.json does not exist"),
        (["score-cell", "--run", "none.json", "--problems", "p", "--base-policy", "b", "--out", "x"], "none.json does not exist"),
        (["watch"], "config.yaml does not exist; run from the repository root"),
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
    assert all(
        stage in done.stdout
        for stage in ("prepare", "base-policy", "train-cell", "score-cell", "report", "plan", "status", "watch")
    )
    imported = subprocess.run(
        [sys.executable, "-c", "import sys, pipeline.__main__; print('torch' in sys.modules)"],
        cwd=REPOSITORY, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert imported.stdout == "False\n"
