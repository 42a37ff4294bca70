"""What a guard starts: deaf to what SLURM signals, and gone soon after the pipe closes, whatever it ignores."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from pipeline.processes import guard
from pipeline.processes.process import Process, ProcessSpec

WAITS = "import sys, time; print('up', flush=True); time.sleep(100)"
HAS_A_CHILD = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
CLEANS_UP = "import time\ntry:\n  print('up', flush=True); time.sleep(100)\nexcept KeyboardInterrupt:\n  print('clean', flush=True)"
DEAF = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print('up', flush=True); time.sleep(100)"
COMMANDS = {
    "python": (sys.executable, "-c", WAITS),
    "env": ("env", "A=1", sys.executable, "-c", WAITS),
    "a child": (sys.executable, "-c", HAS_A_CHILD, WAITS),
    "a shell": ("sh", "-c", f'{sys.executable} -c "{WAITS}"; true'),
}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., tuple[Process, list[psutil.Process]]]]:
    """Starts a command under a guard and waits until it is up; returns it, and its guard with all descendants."""
    started: list[Process] = []

    def start(*command: str) -> tuple[Process, list[psutil.Process]]:
        process = Process(ProcessSpec("guarded", command), tmp_path / "log")
        started.append(process)
        wait_until(lambda: b"up" in process.log.read_bytes())
        top = psutil.Process(process._guard.pid)
        return process, [top, *top.children(recursive=True)]

    yield start
    for process in started:
        process.stop()


def wait_until(condition: Callable[[], bool], patience_s: float = 20.0) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def signal_all(processes: list[psutil.Process], number: signal.Signals) -> None:
    """As SLURM does where it tracks a step's processes by their parents: each of them, children before parents."""
    for process in reversed(processes):
        os.kill(process.pid, number)


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_the_signals_of_a_time_limit_and_a_preemption_end_nothing(start, command) -> None:
    process, tree = start(*command)
    assert len(tree) >= 2
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal_all(tree, number)
    time.sleep(0.3)
    assert process.exit_code is None and all(one.status() != psutil.STATUS_ZOMBIE for one in tree)
    began = time.monotonic()
    process.stop()
    assert time.monotonic() - began < guard.GRACE_S / 2 and not any(one.is_running() for one in tree)


def test_a_command_may_clean_up_when_its_starter_closes_it(start) -> None:
    process, _ = start(sys.executable, "-c", CLEANS_UP)
    process.stop()
    assert process.exit_code == 0 and "clean" in process.tail()


def test_a_command_that_ignores_everything_is_killed_after_the_grace_period(monkeypatch) -> None:
    monkeypatch.setattr(guard, "GRACE_S", 0.5)
    child = subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE, start_new_session=True)
    with child:
        assert child.stdout is not None and child.stdout.readline() == b"up\n"
        began = time.monotonic()
        guard.end_session(child)
    assert child.returncode == -signal.SIGKILL and 0.5 <= time.monotonic() - began < 5
