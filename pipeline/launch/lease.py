"""One writer per state folder: a second process that would train the same cell waits for the first."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


@contextmanager
def lease(folder: Path) -> Iterator[None]:
    """Hold `folder` for this process; the kernel releases it when the holder dies, however it dies.

    Waits, and says for whom, while another process holds it: after a killed Snakemake its jobs may still be finishing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lease", "a+", encoding="utf-8") as handle:
        _acquire(handle, folder)
        handle.truncate(0)
        handle.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        handle.flush()
        yield


def _acquire(handle: TextIO, folder: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.seek(0)
        holder = handle.read().strip() or "another process"
        print(f"{folder} is being written by {holder}; waiting until it has finished (end it to take over)", flush=True)
        fcntl.flock(handle, fcntl.LOCK_EX)
