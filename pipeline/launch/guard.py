"""Run a command and end it, with every process of its session, as soon as the starter is gone: python guard.py COMMAND ...

The starter holds the other end of this process's standard input. When the pipe closes - the starter closed it, or died in whatever
way - the command's session is asked to end, and killed after a grace period. Standard library only: it also runs under
interpreters that have nothing of the pipeline installed.
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
    for ignored in (signal.SIGINT, signal.SIGTERM):  # both reach whole groups; the starter decides and closes the pipe
        signal.signal(ignored, signal.SIG_IGN)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_default_signals)
    try:
        while child.poll() is None:
            readable, _, _ = select.select([sys.stdin.fileno()], [], [], _POLL_S)
            if readable and not os.read(sys.stdin.fileno(), 1024):
                break
    finally:
        end_session(child)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def end_session(child: subprocess.Popen) -> None:
    """Terminate what the child's session still holds, kill what does not go, and reap the child."""
    deadline = time.monotonic() + GRACE_S
    _signal(child.pid, signal.SIGTERM)
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


def _default_signals() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
