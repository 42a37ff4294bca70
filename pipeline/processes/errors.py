"""Errors of the outside world - settings, files, processes - as opposed to faults of the program, which keep their traceback."""

from __future__ import annotations


class EngineDied(RuntimeError):
    """An engine's process ended while work was outstanding; the message says how and what to do."""


USER_ERRORS = (ValueError, OSError, EngineDied)
