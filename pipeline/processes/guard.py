"""Run a command and end it, with every process of its session, as soon as the starter is gone: python guard.py COMMAND ...

The starter holds the other end of this process's standard input. When the pipe closes - the starter closed it, or died in whatever
way - the command's session is interrupted, and killed after a grace period. What SLURM sends to a job's steps ahead of a time limit
and a preemption is no reason to end: the cell still needs its servers and ranks to reach a checkpoint. Guard and command ignore it;
a command that handles SIGTERM itself, as SGLang does, hears one only where SLURM signals more than the guard (proctrack/linuxproc).
Standard library only: it also runs under interpreters that have nothing of the pipeline installed.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time

GRACE_S = 10.0
_POLL_S = 0.2


def main(command: list[str]) -> int:
    """The command's exit status, negative signals as 128 + signal."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):  # of whole groups and steps; the starter closes the pipe
        signal.signal(ignored, signal.SIG_IGN)  # which the command inherits, and all that it starts
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_can_be_interrupted)
    try:
        while child.poll() is None:
            readable, _, _ = select.select([sys.stdin.fileno()], [], [], _POLL_S)
            if readable and not os.read(sys.stdin.fileno(), 1024):
                break
    finally:
        end_session(child)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def end_session(child: subprocess.Popen) -> None:
    """Interrupt what the child's session still holds, kill what does not go, and reap the child."""
    deadline = time.monotonic() + GRACE_S
    _signal(child.pid, signal.SIGINT)
    while time.monotonic() < deadline and _alive(child):
        time.sleep(_POLL_S / 4)
    _signal(child.pid, signal.SIGKILL)
    child.wait()


def _alive(child: subprocess.Popen) -> bool:
    child.poll()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, 0)
        return True
    return False


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def _can_be_interrupted() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
