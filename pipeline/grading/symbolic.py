"""The pool of worker processes that compare formulas: started on the first need, killed at the deadline, replaced when gone.

ask() may be called from any thread and after any fork; each process has a pool of its own. A worker serves one request at a time.
Its parent kills it when DEADLINE_S has passed, so that no response can hang a trainer; it ends by itself when its parent does.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import select
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEADLINE_S = 2.5  # for one pair
START_S = 30.0  # for a worker to come up on a loaded machine
MAX_WORKERS = 8
_ROOT = str(Path(__file__).resolve().parents[2])


@dataclass(frozen=True)
class Reply:
    """A worker's verdict; None where it was killed at the deadline (rule "timeout") or failed (rule "error:...")."""

    verdict: bool | None
    rule: str


class WorkerGone(Exception):
    """The worker's pipe is closed: it died, or was killed for memory or CPU time."""


class _Worker:
    """One child process and its two pipes."""

    def __init__(self) -> None:
        environment = {
            **os.environ,
            "SYMPY_GROUND_TYPES": "python",  # inside GMP no signal and no limit but SIGKILL is obeyed
            "MPMATH_NOGMPY": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, (_ROOT, os.environ.get("PYTHONPATH")))),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "pipeline.grading.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            bufsize=0,
        )
        self.buffer = b""
        if self._line(START_S) is None:
            self.kill()
            raise WorkerGone("no worker came up")

    def exchange(self, request: dict[str, Any], deadline_s: float) -> dict[str, Any] | None:
        """The reply, or None when the deadline passed. Raises WorkerGone."""
        try:
            os.write(self._stdin, json.dumps(request).encode() + b"\n")
        except OSError as error:
            raise WorkerGone("closed") from error
        line = self._line(deadline_s)
        if line == b"loading":  # importing sympy takes as long as the machine is loaded; only the comparison has a deadline
            line = self._line(START_S) and self._line(deadline_s)
        return None if line is None else json.loads(line)

    @property
    def _stdin(self) -> int:
        assert self.process.stdin is not None
        return self.process.stdin.fileno()

    def _line(self, seconds: float) -> bytes | None:
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        poll = select.poll()  # select() fails beyond 1024 open files, which a trainer may have
        poll.register(descriptor, select.POLLIN | select.POLLHUP)
        end = time.monotonic() + seconds
        while b"\n" not in self.buffer:
            left = end - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                return None
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                raise WorkerGone("ended")
            self.buffer += chunk
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line

    def kill(self) -> None:
        """End the process at once and reap it."""
        self.process.kill()
        self.close()
        self.process.wait()

    def close(self) -> None:
        """Close this process's ends of the pipes, whereupon an idle worker ends."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


class WorkerPool:
    """At most `size` workers; idle ones wait in a stack, so that a single caller keeps to one warm worker."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._slots: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        self._alive: set[_Worker] = set()
        for _ in range(size):
            self._slots.put(None)

    def ask(self, request: dict[str, Any], deadline_s: float = DEADLINE_S) -> Reply:
        """The verdict on one pair; blocks while all workers are busy, never longer than the work in front takes."""
        worker = self._slots.get()
        kept: _Worker | None = None
        try:
            worker, reply = self._exchange(worker, request, deadline_s)
            if reply is None:
                return Reply(None, "timeout")
            kept = worker
            if "error" in reply:
                return Reply(None, f"error:{reply['error']}")
            return Reply(reply["verdict"], reply["rule"])
        except WorkerGone:
            return Reply(None, "error:WorkerGone")
        finally:
            if kept is None:
                self._discard(worker)
            self._slots.put(kept)

    def _exchange(
        self, worker: _Worker | None, request: dict[str, Any], deadline_s: float
    ) -> tuple[_Worker, dict[str, Any] | None]:
        """One exchange; a worker that had died while idle is replaced first."""
        if worker is not None and worker.process.poll() is not None:
            self._discard(worker)
            worker = None
        if worker is None:
            worker = _Worker()
            self._alive.add(worker)
        try:
            return worker, worker.exchange(request, deadline_s)
        except BaseException:
            self._discard(worker)
            raise

    def _discard(self, worker: _Worker | None) -> None:
        if worker in self._alive:
            self._alive.discard(worker)
            worker.kill()

    def worker_pids(self) -> list[int]:
        return [worker.process.pid for worker in self._alive]

    def shut_down(self) -> None:
        for worker in list(self._alive):
            self._discard(worker)

    def forget(self) -> None:
        """After a fork, in the child: the workers are the parent's; only the copied pipe ends are closed."""
        for worker in self._alive:
            worker.close()


_pool: WorkerPool | None = None
_pool_lock = threading.Lock()


def pool() -> WorkerPool:
    """This process's pool; making it starts no worker."""
    global _pool
    with _pool_lock:
        if _pool is None:
            _pool = WorkerPool(min(len(os.sched_getaffinity(0)), MAX_WORKERS))
        return _pool


def shut_down() -> None:
    """End this process's workers; the next question starts new ones."""
    global _pool
    if _pool is not None:
        _pool.shut_down()
        _pool = None


def _after_fork_in_child() -> None:
    global _pool, _pool_lock
    _pool_lock = threading.Lock()
    if _pool is not None:
        _pool.forget()
        _pool = None


atexit.register(shut_down)
os.register_at_fork(after_in_child=_after_fork_in_child)
