"""Ten steps of the paper's methods and their baselines give the committed rows: no change of the code may move a bit unnoticed."""

from __future__ import annotations

import json

import pytest

from tests.engines.ten_steps import FILE, FORMS, NAMES, arithmetic, digest, rows

EXPECTED = json.loads(FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_ten_steps_are_the_committed_ones(name: str, form: str) -> None:
    found, expected = rows(name, FORMS[form]), EXPECTED["methods"][f"{name}, {form}"]
    if arithmetic() == EXPECTED["arithmetic"]:
        assert digest(found) == expected["sha256"]
    # another processor rounds otherwise, and ten steps do not yet tell much of it apart
    last = {column: found[-1][column] for column in expected["last"]}
    assert last == pytest.approx(expected["last"], rel=2e-2, abs=2e-3)
