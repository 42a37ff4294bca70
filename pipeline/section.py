"""What every section of the settings is: frozen, typed, and without a key that nobody declared."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict


class SettingsError(ValueError):
    """A setting is unknown, has the wrong type, or contradicts another; the message names it and the remedy."""


def unknown(kind: str, name: object, known: Iterable[object]) -> str:
    """An error text for a name that is not among the known ones, with the nearest of them."""
    names = [str(entry) for entry in known]
    near = difflib.get_close_matches(str(name), names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"unknown {kind} {name!r}; {hint}known: {', '.join(names)}"


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
