"""The paper's lags, by the names that config.yaml gives them."""

from __future__ import annotations

from pipeline.config import Settings

SMALL, LARGE = LAGS = ("1", "8")
STRESS = "8-15"  # lag 8 as Figure 1 draws it


def large_lag(settings: Settings) -> str:
    """What the table sets against lag 1: the largest of its lags; 8, the paper's, where it has none beyond 1."""
    largest = {lag: settings.lags[lag].range()[1] for lag in settings.cells.table.lags}
    return max((lag for lag in largest if largest[lag] > 1), key=largest.__getitem__, default=LARGE)


def lag_pairs(settings: Settings) -> list[tuple[str, str]]:
    """Our lags, each with the paper's that is shown beside it."""
    return [(SMALL, SMALL), (large_lag(settings), LARGE)]
