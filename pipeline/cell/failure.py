"""failure.json: how the last attempt at a cell ended, where it ended by an error. Gone as soon as the next attempt starts."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from types import TracebackType

from pipeline.artifacts import write_json

_NAME = "failure.json"


class FailureRecord:
    """Context of one attempt with state in `folder`. An interruption (Ctrl-C, a signal's SystemExit) is not a failure."""

    def __init__(self, folder: Path, settings: str) -> None:
        self.path, self.settings = failure_path(folder), settings

    def __enter__(self) -> None:
        self.path.unlink(missing_ok=True)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, Exception):
            record = {"time": time.time(), "message": f"{type(error).__name__}: {error}", "settings": self.settings}
            with contextlib.suppress(OSError):  # a full disk: the error itself matters more than its record
                write_json(self.path, record)


def failure_path(folder: Path) -> Path:
    """Where the failure of the attempt with state in `folder` is recorded."""
    return folder / _NAME
