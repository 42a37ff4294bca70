"""One line of what `pipeline doctor` says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warning", "failed"]
GIB = 2**30


@dataclass(frozen=True)
class Finding:
    """One check: what was found, and for anything but "ok" what to do about it."""

    check: str
    status: Status
    found: str
    remedy: str = ""
