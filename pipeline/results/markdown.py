"""Tables in Markdown, and the sign for what there is not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MISSING = "–"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table as lines, every cell as it is given."""
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *(f"| {' | '.join(row)} |" for row in rows)]
