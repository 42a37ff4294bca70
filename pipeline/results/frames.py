"""Parts of a pandas table, each of one type: pandas itself says that `table[...]` is a table, a column or a number."""

from __future__ import annotations

from typing import Any

import pandas as pd


def column(table: pd.DataFrame, name: str) -> pd.Series:
    """One column of a table. Raises KeyError where it has none of that name, TypeError where it has several."""
    found = table[name]
    if not isinstance(found, pd.Series):
        raise TypeError(f"the table has several columns {name}")
    return found


def rows_where(table: pd.DataFrame, condition: Any) -> pd.DataFrame:
    """The rows of a table for which `condition`, a truth a row, holds; in their order, with their index."""
    return table.loc[condition, :]


def mean_of(table: pd.DataFrame, name: str) -> float:
    """The mean of a column over the rows that have a value; NaN where none has."""
    return float(column(table, name).mean())


def rolling_mean(values: pd.Series, window: int) -> pd.Series:
    """Means over the last `window` values, NaN where there are fewer."""
    means = values.rolling(window).mean()
    assert isinstance(means, pd.Series)
    return means
