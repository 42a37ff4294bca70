"""How a column of a table is declared: once, beside what computes it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    """A column of steps.parquet or evals.parquet.

    name: as the file has it.  unit: what its numbers count (nats, tokens, s, share); "" for a name or a choice.
    meaning: what it says, a sentence without a full stop.
    """

    name: str
    unit: str
    meaning: str
