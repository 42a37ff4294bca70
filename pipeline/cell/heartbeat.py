"""A file that is touched as long as a process lives, so that others can tell from files alone, on any node, whether it does."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import TracebackType

HEARTBEAT = "heartbeat"  # its name in the state folder of a cell
INTERVAL_S = 5.0
STALE_S = 60.0  # far above the interval: attribute caches of shared file systems and clocks that differ by seconds


class Heartbeat:
    """Touches `path` every few seconds from a thread of its own, until the context ends; then the file is removed."""

    def __init__(self, path: Path, interval_s: float = INTERVAL_S) -> None:
        self.path, self.interval_s = path, interval_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"heartbeat {path}", daemon=True)

    def __enter__(self) -> Heartbeat:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.touch()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        self.path.unlink(missing_ok=True)

    def _beat(self) -> None:
        while not self._ended.wait(self.interval_s):
            self.path.touch()


def alive(path: Path, now: float | None = None) -> bool:
    """Whether the file was touched within STALE_S; one from the future counts, a missing one does not."""
    try:
        touched = path.stat().st_mtime
    except FileNotFoundError:
        return False
    return (time.time() if now is None else now) - touched < STALE_S
