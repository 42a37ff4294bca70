"""A method that is none of the paper's rows goes through the table, every figure, the diff and the report; no two look alike."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pandas as pd
import pytest

from pipeline.objective.methods import METHODS, TABLE_1, method_of
from pipeline.paper.figures import FIGURES
from pipeline.paper.stages import assemble
from pipeline.results import families
from pipeline.results.frames import column, rows_where
from pipeline.results.style import FAMILY_COLOURS, PATTERNS, looks
from tests.unit import synthetic_results as synthetic

NEW = {  # a trust region without a colour of its own, the same with R3, one that differs from GRPO by its denominator alone
    "dppo-gspo": dataclasses.replace(METHODS["dppo"], label="DPPO on sequences", granularity="sequence"),
    "dppo-gspo-r3": dataclasses.replace(METHODS["dppo"], label="the same w/ R3", granularity="sequence", routing_replay=True),
    "grpo-generator": dataclasses.replace(METHODS["grpo"], label="GRPO over its generator", denominator="rollout_weights"),
}


@pytest.fixture
def added(monkeypatch) -> None:
    for name, method in NEW.items():
        monkeypatch.setitem(METHODS, name, method)


def test_the_rows_of_the_paper_keep_their_looks(added):
    found = looks()
    colours = {name: FAMILY_COLOURS[name.removesuffix("-r3").removesuffix("-tis")] for name in TABLE_1}
    assert {name: found[name].colour for name in TABLE_1} == colours
    assert [found[name].pattern for name in ("grpo", "grpo-r3", "grpo-tis", "grpo-tis-r3")] == list(PATTERNS.values())
    uncorrected = [found[f"{name}-uncorrected"] for name in ("grpo", "gspo", "grpo-r3")]
    assert {look.colour for look in uncorrected} == {"#CC79A7"}
    assert [look.pattern for look in uncorrected] == ["-", (0, (6, 1, 1, 1, 1, 1)), (0, (5, 1.6))]


def test_no_two_methods_look_alike(monkeypatch):
    """Not even a hundred: their colours and dashes go on."""
    for index in range(100):
        label, granularity = f"method {index}", ("token", "sequence")[index % 2]
        monkeypatch.setitem(METHODS, f"m{index}", dataclasses.replace(METHODS["grpo"], label=label, granularity=granularity))
    found = [(look.colour, str(look.pattern)) for look in looks().values()]
    assert len(found) == len(METHODS) == len(set(found))


def test_a_family_shares_its_colour(added):
    found = looks()
    assert families.family("dppo-gspo-r3") == "dppo-gspo" and families.family("grpo-generator") == "grpo"
    assert found["dppo-gspo"].colour == found["dppo-gspo-r3"].colour not in FAMILY_COLOURS.values()
    assert found["dppo-gspo"].pattern != found["dppo-gspo-r3"].pattern
    assert found["grpo-generator"].colour == found["grpo"].colour and found["grpo-generator"].pattern != found["grpo"].pattern


def test_a_new_method_goes_all_the_way_to_the_report(added, tmp_path, monkeypatch):
    cells = synthetic.cells(["grpo", *NEW], ["1", "8"])["cells"] | {"stress": {"methods": list(NEW), "lags": ["8-15"]}}
    made = synthetic.write_run(tmp_path, synthetic.World({}), {"cells": cells})
    monkeypatch.chdir(tmp_path)
    assemble(made.layout, made.settings)
    folder = made.layout.results
    table = pd.read_csv(folder / "table1.csv").set_index(["method", "lag"])
    assert table.loc[("dppo-gspo", "8"), "block"] == "further" and table.loc[("dppo-gspo", "8-15"), "block"] == "stress"
    for name in NEW:
        drawn = pd.read_csv(folder / "figures" / "figure4.csv").query("source == 'ours' and method == @name")
        steps = pd.read_parquet(f"results/tiny/cells/{name}/lag8/seed0/steps.parquet")
        values = column(rows_where(drawn, drawn["lag"] == 8), "value").to_numpy()
        assert values == pytest.approx(steps["mismatch"].to_numpy(), rel=1e-5)
    assert all(Path(folder / "figures" / f"{figure}.png").exists() for figure in FIGURES)
    assert not set(NEW) & {cell["method"] for cell in json.loads((folder / "diff.json").read_text())["cells"]}
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert all(method_of(name).label in page for name in NEW)
