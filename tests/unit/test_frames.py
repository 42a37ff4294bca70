"""Parts of a table keep their values, order and index, and a name that stands twice is no column."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pipeline.results.frames import column, mean_of, rolling_mean, rows_where

TABLE = pd.DataFrame({"step": [3, 1, 2], "value": [4.0, np.nan, 1.0]}, index=[7, 5, 6])


def test_rows_keep_their_order_and_index():
    assert rows_where(TABLE, TABLE["step"] > 1).to_dict("index") == {7: {"step": 3, "value": 4.0}, 6: {"step": 2, "value": 1.0}}


def test_means_leave_out_what_was_not_measured():
    assert mean_of(TABLE, "value") == 2.5
    assert np.isnan(mean_of(TABLE.iloc[:0], "value"))
    assert rolling_mean(column(TABLE, "step"), 2).tolist()[1:] == [2.0, 1.5]


def test_a_name_that_stands_twice_is_refused():
    with pytest.raises(TypeError, match="several columns step"):
        column(pd.concat([TABLE, TABLE], axis=1), "step")
    with pytest.raises(KeyError):
        column(TABLE, "stage")
