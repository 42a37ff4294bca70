"""One writer per state folder: a second process that would train the same cell waits for the first.

The lease is a file that names its holder - process, machine, SLURM job - and that the holder touches as long as it lives. It is no
lock of the kernel: those do not reach over every shared file system. A dead holder's lease is taken over: on the same machine when
its process is gone; from another when its SLURM job has ended, or when the file has not changed for SILENCE_S by the clock of the
one who waits, so that clocks may differ. A holder that finds its lease taken over ends at once, before it can write.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from pipeline.artifacts import write_text
from pipeline.processes.stop import Stop

SILENCE_S = 600.0  # far above the interval of touches: a shared file system may be slow
_TOUCH_S = 20.0
_POLL_S = 0.5
_ASK_S = 30.0
_SETTLE_S = {True: 0.3, False: 3.0}  # of two that take over at once the second's file stays; by whether both are on one machine


@dataclass(frozen=True)
class Holder:
    """Who holds a lease. machine: where `pid` means anything.  started: pids are used again.  token: of this very lease."""

    pid: int
    host: str
    machine: str
    started: float
    job: str | None
    token: str = field(default_factory=lambda: secrets.token_hex(8))

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}" + (f" in SLURM job {self.job}" if self.job else "")


def this_process() -> Holder:
    return Holder(os.getpid(), socket.gethostname(), _machine(), psutil.Process().create_time(), os.environ.get("SLURM_JOB_ID"))


def _machine() -> str:
    """This boot of this machine, and the container in it: hosts of a cluster may share a name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"{socket.gethostname()} {psutil.boot_time():.0f}"


@contextlib.contextmanager
def lease(folder: Path, stop: Stop, touch_s: float = _TOUCH_S) -> Iterator[None]:
    """Hold `folder` for this process; waits, and says for whom, while another one holds it, unless told to stop."""
    folder.mkdir(parents=True, exist_ok=True)
    path, mine = folder / "lease.json", this_process()
    with stop.interruptible():
        _acquire(path, mine)
    ended = threading.Event()
    thread = threading.Thread(target=_keep, args=(path, mine, ended, touch_s), name=f"lease {folder}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        if _holder(path) == mine:
            path.unlink(missing_ok=True)


def _acquire(path: Path, mine: Holder) -> None:
    told: str | None = None
    is_dead = _death_watch(path)
    while True:
        holder = _holder(path)
        if holder is None:
            if _create(path, mine):
                return
        elif is_dead(holder):
            write_text(path, json.dumps(asdict(mine)))
            time.sleep(_SETTLE_S[holder.machine == mine.machine])
            if _holder(path) == mine:
                return
        elif told != holder.token:
            told = holder.token
            print(f"{path.parent} is being written by {holder}; waiting until it has finished (end it to take over)", flush=True)
        time.sleep(_POLL_S)


def _create(path: Path, mine: Holder) -> bool:
    """Write the lease where there is none; of several at once one succeeds."""
    temporary = path.with_name(f".{path.name}.{mine.token}")
    write_text(temporary, json.dumps(asdict(mine)))
    try:
        os.link(temporary, path)  # unlike a rename it fails where the file exists, on network file systems too
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    return True


def _holder(path: Path) -> Holder | None:
    try:
        return Holder(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise ValueError(f"lease {path} cannot be read ({error}); delete it if nobody is writing to {path.parent}") from error


def _death_watch(path: Path) -> Callable[[Holder], bool]:
    """A function that says whether a holder is dead, called again and again while waiting."""
    seen: tuple[str, float] | None = None
    since = asked = -SILENCE_S

    def is_dead(holder: Holder) -> bool:
        nonlocal seen, since, asked
        if holder.machine == _machine():
            return not _runs(holder)
        now = time.monotonic()
        with contextlib.suppress(FileNotFoundError):
            touched = (holder.token, path.stat().st_mtime)
            if touched != seen:
                seen, since = touched, now
        if holder.job is not None and now - asked > _ASK_S:
            asked = now
            if _job_has_ended(holder.job):
                return True
        return now - since > SILENCE_S

    return is_dead


def _runs(holder: Holder) -> bool:
    """Whether the holder's process runs on this host; a zombie does not."""
    try:
        process = psutil.Process(holder.pid)
        return abs(process.create_time() - holder.started) < 1.0 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _job_has_ended(job: str) -> bool:
    """Whether SLURM says so; where it cannot be asked it does not. A requeued job that runs again is this very process's."""
    if job == os.environ.get("SLURM_JOB_ID"):
        return True
    try:
        asked = subprocess.run(["squeue", "-h", "-j", job, "-o", "%T"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    if asked.returncode:
        return "Invalid job id" in asked.stderr
    return asked.stdout.strip() in ("", "PENDING")  # pending: requeued, and its holder gone


def _keep(path: Path, mine: Holder, ended: threading.Event, touch_s: float) -> None:
    while not ended.wait(touch_s):
        with contextlib.suppress(OSError):  # a file system that is away for a moment
            if _holder(path) != mine:
                print(
                    f"error: the lease of {path.parent} was taken over by {_holder(path)}; this process ends",
                    file=sys.stderr,
                    flush=True,
                )
                os._exit(1)  # at once and without cleaning up: what it would write now is another's
            path.touch()
