"""Planned stops, what SLURM's signals lead to, attempts without progress, and leases of holders that are elsewhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from pipeline.cell import lease as leases
from pipeline.cell.attempts import begin_attempt
from pipeline.cell.lease import lease, this_process
from pipeline.processes.stop import PlannedStop, Stop, stop_on_signals


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job 7 whose commands are stand-ins: squeue prints the file `state`, scontrol notes its arguments, srun runs the command."""
    scripts = {
        "squeue": 'cat "$0.state"',
        "scontrol": 'echo "$@" >> "$0.calls"',
        "srun": 'while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"',
    }
    for name, body in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "squeue.state").write_text("RUNNING\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    return tmp_path


def test_a_stop_waits_for_a_moment_that_does_no_harm() -> None:
    stop = Stop()
    stop.check()
    stop.tell("told")
    with pytest.raises(PlannedStop) as stopped:
        stop.check()
    assert stopped.value.code == 75
    with pytest.raises(PlannedStop), stop.interruptible():
        pytest.fail("a wait that begins after the stop was told ends at once")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_ends_a_wait_at_once(number: signal.Signals) -> None:
    before, started = signal.getsignal(number), time.monotonic()
    with pytest.raises(PlannedStop), stop_on_signals() as stop, stop.interruptible():
        os.kill(os.getpid(), number)
        time.sleep(30)
    assert time.monotonic() - started < 10 and signal.getsignal(number) == before


@pytest.mark.parametrize(("state", "calls"), [("RUNNING", "requeue 7\n"), ("COMPLETING", ""), ("CANCELLED", "")])
def test_only_a_running_job_is_requeued(slurm: Path, state: str, calls: str) -> None:
    (slurm / "squeue.state").write_text(state + "\n")
    with pytest.raises(PlannedStop), stop_on_signals() as stop:
        stop.tell("told")
        stop.check()
    noted = slurm / "scontrol.calls"
    assert (noted.read_text() if noted.exists() else "") == calls


def test_an_error_is_no_planned_stop_and_a_finished_cell_is_not_requeued(slurm: Path) -> None:
    with pytest.raises(ValueError, match="broken"), stop_on_signals():
        raise ValueError("broken")
    with stop_on_signals() as stop:
        stop.tell("told too late")
    assert not (slurm / "scontrol.calls").exists()


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal."""
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt"))
    return bool(int(line.split()[1], 16) >> (number - 1) & 1)


def test_the_listener_s_signals_reach_the_cell_and_it_ends_with_the_cell(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "node")
    others = set(psutil.Process().children())  # graders of earlier tests
    with pytest.raises(PlannedStop), stop_on_signals() as stop:
        (step,) = set(psutil.Process().children()) - others
        while not catches(step.pid, signal.SIGUSR1):  # the handler that is set last
            time.sleep(0.01)
        step.send_signal(signal.SIGTERM)
        with stop.interruptible():
            time.sleep(30)
    assert not step.is_running()
    assert (slurm / "scontrol.calls").read_text() == "requeue 7\n"


def test_a_signal_that_ends_the_listener_before_it_listens_is_heard(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "node")
    (slurm / "srun").write_text(f"#!/bin/sh\nexit {128 + signal.SIGUSR1}\n")
    with pytest.raises(PlannedStop), stop_on_signals() as stop, stop.interruptible():
        time.sleep(30)
    assert stop.told and (slurm / "scontrol.calls").read_text() == "requeue 7\n"


def test_two_attempts_without_a_new_step_are_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    for step in (0, 0, 20, 20):
        begin_attempt(tmp_path, step)
    with pytest.raises(ValueError, match="2 attempts in a row of SLURM job 7 ended at step 20"):
        begin_attempt(tmp_path, 20)
    monkeypatch.setenv("SLURM_JOB_ID", "8")  # another job: somebody, or a bounded number of retries, wants it
    begin_attempt(tmp_path, 20)
    monkeypatch.delenv("SLURM_JOB_ID")
    for _ in range(5):
        begin_attempt(tmp_path / "laptop", 0)
    assert not (tmp_path / "laptop").exists()


def held_elsewhere(folder: Path, job: str | None) -> Path:
    path = folder / "lease.json"
    holder = {"pid": 1, "host": "far", "machine": "another", "started": 0.0, "job": job, "token": "theirs"}
    path.write_text(json.dumps(holder))
    return path


@pytest.mark.parametrize("state", ["", "PENDING\n"])
def test_the_lease_of_a_job_that_ended_or_was_requeued_is_taken_over(
    slurm: Path, tmp_path: Path, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (slurm / "squeue.state").write_text(state)
    monkeypatch.setattr(leases, "_SETTLE_S", {True: 0.0, False: 0.0})
    path = held_elsewhere(tmp_path, "6")
    with lease(tmp_path, Stop()):
        assert json.loads(path.read_text())["pid"] == os.getpid()


def test_a_silent_holder_elsewhere_is_dead_and_one_that_is_heard_is_not(
    slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "SILENCE_S", 1.0)
    monkeypatch.setattr(leases, "_SETTLE_S", {True: 0.0, False: 0.0})
    path, ended = held_elsewhere(tmp_path, "6"), threading.Event()

    def live(number: int = 0) -> None:
        while not ended.wait(0.1):
            number += 1
            os.utime(path, (number, number))  # its clock is years away from ours

    thread = threading.Thread(target=live)
    thread.start()
    threading.Timer(2.0, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
    monkeypatch.delenv("SLURM_JOB_ID")
    with pytest.raises(PlannedStop), stop_on_signals() as stop, lease(tmp_path, stop):
        pytest.fail("its holder lives")
    ended.set()
    thread.join()
    assert "theirs" in path.read_text()
    with lease(tmp_path, Stop()):
        assert "theirs" not in path.read_text()


def test_a_holder_whose_lease_was_taken_over_ends_before_it_can_write(tmp_path: Path) -> None:
    code = "import sys, time; from pathlib import Path\n"
    code += "from pipeline.cell.lease import lease; from pipeline.processes.stop import Stop\n"
    code += "with lease(Path(sys.argv[1]), Stop(), touch_s=0.1): print('held', flush=True); time.sleep(60)"
    holder = subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    held_elsewhere(tmp_path, None)
    _, errors = holder.communicate(timeout=30)
    assert holder.returncode == 1 and "was taken over by process 1 on far" in errors


def test_a_damaged_lease_is_named(tmp_path: Path) -> None:
    (tmp_path / "lease.json").write_text("{")
    with pytest.raises(ValueError, match=r"lease .*lease.json cannot be read .* delete it"), lease(tmp_path, Stop()):
        pytest.fail("nobody knows who holds it")


def test_a_process_is_known_by_more_than_its_number(tmp_path: Path) -> None:
    reused = {**vars(this_process()), "started": 1.0, "token": "theirs"}  # our number, another process
    (tmp_path / "lease.json").write_text(json.dumps(reused))
    with lease(tmp_path, Stop()):
        pass
