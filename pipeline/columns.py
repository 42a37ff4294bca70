"""How a column of a table is declared: once, beside what computes it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class Column:
    """A column of steps.parquet, evals.parquet or scores.parquet.

    name: as the file has it.  unit: what its numbers count (nats, tokens, s, share); "" for a name or a choice.
    meaning: what it says, a sentence without a full stop.
    """

    name: str
    unit: str
    meaning: str


def column(unit: str, meaning: str) -> Any:
    """A field of a row that is a column of its own name."""
    return field(metadata={"unit": unit, "meaning": meaning})


def columns_of_row(row: type[Any]) -> tuple[Column, ...]:
    """The columns that the fields of a frozen row declare, in their order."""
    declared = (entry for entry in fields(row) if entry.metadata)
    return tuple(Column(entry.name, entry.metadata["unit"], entry.metadata["meaning"]) for entry in declared)


def values_of_row(row: Any) -> dict[str, Any]:
    """The values of those columns, by name."""
    return {entry.name: getattr(row, entry.name) for entry in fields(row) if entry.metadata}
