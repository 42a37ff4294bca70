"""Folders for what a process needs only while it lives, on a node-local disk: one that was killed leaves its folder to the next.

Each folder holds a file that its owner has locked, for as long as the owner runs. Whoever makes a folder first removes those of the
same host and prefix whose lock nobody holds. The host's name is part of the folder's, because on some shared file systems a lock
reaches no other host; where a file system has no locks at all nothing is removed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import tempfile
from pathlib import Path

_LOCK = ".lock"


def scratch_folder(parent: str | None, prefix: str) -> Path:
    """A new folder below `parent`, or the system's temporary folder, for this process. The caller removes it when done."""
    where = Path(parent or tempfile.gettempdir()).resolve()
    where.mkdir(parents=True, exist_ok=True)
    prefix = f"{prefix}{socket.gethostname()}-"
    for sibling in where.glob(f"{prefix}*"):
        if _abandoned(sibling):
            shutil.rmtree(sibling, ignore_errors=True)
    hidden = Path(tempfile.mkdtemp(prefix=f".{prefix}", dir=where))
    _locked(os.open(hidden / _LOCK, os.O_RDWR | os.O_CREAT, 0o600))  # stays open, and so locked, until this process ends
    return hidden.rename(where / hidden.name.removeprefix("."))  # visible to others once it is locked


def _abandoned(folder: Path) -> bool:
    """Whether its owner is gone; without a lock it was being removed by someone who was killed."""
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR)
    except FileNotFoundError:
        return True
    except OSError:  # another user's
        return False
    try:
        return _locked(lock)
    finally:
        os.close(lock)


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
