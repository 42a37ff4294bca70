"""Planned stops: told to stop, a cell finishes what it is at, writes a checkpoint and ends with status 75; it continues from there.

SIGTERM and SIGUSR1 tell it. In a SLURM job a step of its own (listener.py) passes on those of the time limit and of a preemption,
for the cell is no step. Its servers and ranks on other nodes are, and ignore these signals (guard.py) until it ends. Whoever is
told to stop while its job is running has the job requeued; a job that was cancelled stays so.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from pipeline.processes import listener
from pipeline.processes.process import step, step_environment

EXIT_STATUS = 75  # EX_TEMPFAIL: try again later
_ASK_S = 60.0


class PlannedStop(SystemExit):
    """Unwinds the stack to a clean end with EXIT_STATUS."""

    def __init__(self) -> None:
        super().__init__(EXIT_STATUS)


class Stop:
    """Whether the cell was told to stop. Raises PlannedStop where that does no harm: in `check`, and while `interruptible`."""

    def __init__(self) -> None:
        self.told = False
        self._interruptible = False

    def tell(self, reason: str) -> None:
        """Called by signal handlers, in the main thread."""
        if not self.told:  # not print: the handler may have interrupted one
            os.write(1, f"{reason}: the cell stops at the next checkpoint that it can write\n".encode())
        self.told = True
        if self._interruptible:
            self._interruptible = False
            raise PlannedStop

    def check(self) -> None:
        if self.told:
            raise PlannedStop

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Inside, a stop is obeyed at once: for waits that can be begun anew."""
        self._interruptible = True
        try:
            self.check()
            yield
        finally:
            self._interruptible = False


@contextlib.contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """A Stop that SIGTERM, SIGUSR1 and the SLURM job tell; a planned stop ends with the job requeued."""
    stop, job = Stop(), os.environ.get("SLURM_JOB_ID")

    def heard(number: int, _: FrameType | None) -> None:
        stop.tell(signal.Signals(number).name)

    previous = {number: signal.signal(number, heard) for number in listener.HEARD}
    try:
        with _listening(job) if job else contextlib.nullcontext():
            yield stop
    except PlannedStop:
        if job:
            _requeue(job)
        raise
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _listening(job: str) -> Iterator[None]:
    """Pass the signals of the job's steps on to this process, whose main thread has handlers for them."""
    node = os.environ.get("SLURMD_NODENAME")
    if node is None:  # a shell inside an allocation: its signals reach this process itself
        yield
        return
    command = [*step(node), "--gres=none", sys.executable, listener.__file__]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=step_environment(), start_new_session=True
    )
    assert process.stdin is not None and process.stdout is not None
    lines, closing = process.stdout, threading.Event()

    def pass_on() -> None:
        for line in lines:
            if line.startswith("SIG"):
                os.kill(os.getpid(), signal.Signals[line.strip()])
        status = process.wait()
        if closing.is_set():
            return
        if status - 128 in listener.HEARD:  # so srun tells of a task that a signal ended: it came before the handlers stood
            os.kill(os.getpid(), status - 128)
        else:
            print(f"the step that hears SLURM's signals ended with status {status}: the cell will not hear them", flush=True)

    thread = threading.Thread(target=pass_on, name="slurm-signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        closing.set()
        process.stdin.close()
        try:
            process.wait(_ASK_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _requeue(job: str) -> None:
    """Have SLURM start this job again, unless it is being ended for good."""
    state = _ask("squeue", "-h", "-j", job, "-o", "%T")
    if state != "RUNNING":
        print(f"SLURM job {job} is {state or 'gone'}; it is not requeued", flush=True)
        return
    print(f"SLURM job {job} is requeued {_ask('scontrol', 'requeue', job)}", flush=True)


def _ask(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_S, check=False)
    return done.stdout.strip() if done.returncode == 0 else f"in vain: {' '.join(command)}: {done.stderr.strip()}"
