"""Differences between cells and what an undecided comparison could have shown."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from pipeline.evaluation.estimators import Interval, holm
from pipeline.objective.methods import TABLE_1
from pipeline.paper.evidence import Evidence
from pipeline.paper.figures import FIGURES
from pipeline.paper.lags import LAGS
from pipeline.paper.reference import read_reference
from pipeline.paper.table1 import FORM
from pipeline.paper.undecided import resolution, summary
from pipeline.results import variants
from pipeline.results.collect import summarise
from pipeline.results.contrasts import contrast_rows, contrasts, pairs
from pipeline.results.runs import read_results
from pipeline.results.table import rows_of
from pipeline.results.variants import setting_effects, setting_rows
from tests.unit import synthetic_results as synthetic

ABOVE = {"statistic": "accuracy", "direction": "above", "threshold": 0.0}


def test_pairs_differ_in_one_thing():
    found = list(pairs(TABLE_1, LAGS))
    assert Counter(what for what, _, _ in found) == {"lag": 13, "R3": 12, "SAT": 8, "TIS": 8}
    rows = [(method, "8-15") for method in ("grpo", "grpo-r3", "sat-grpo", "grpo-tis", "dppo", "grpo-uncorrected")]
    more = set(pairs(TABLE_1, LAGS, [*rows, ("gspo-uncorrected", "8"), ("gspo-uncorrected", "1"), ("gspo", "1")])) - set(found)
    assert more == {
        ("R3", "grpo-r3@8-15", "grpo@8-15"),
        ("SAT", "sat-grpo@8-15", "grpo@8-15"),
        ("TIS", "grpo-tis@8-15", "grpo@8-15"),
        ("correction", "grpo@8-15", "grpo-uncorrected@8-15"),
        ("correction", "gspo@1", "gspo-uncorrected@1"),
    }
    assert ("SAT", "sat-gspo-r3@8", "gspo-r3@8") in found and ("lag", "dppo@8", "dppo@1") in found
    assert not any(a.startswith("dppo") for what, a, _ in found if what != "lag")
    assert ("lag", "dppo@8-15", "dppo@1") in pairs(TABLE_1, LAGS, large_lag="8-15")


def test_differences_are_those_of_the_scores_and_corrected_over_the_list(tmp_path, monkeypatch):
    made = synthetic.write_run(tmp_path, synthetic.World({}, seed_sd=0.0), synthetic.cells(["grpo", "sat-grpo"], ["1", "8"]))
    monkeypatch.chdir(tmp_path)
    results = read_results(made.layout, made.settings)
    found = contrasts(results, TABLE_1, LAGS)
    assert [(item.a, item.b) for item in found] == [
        ("grpo@8", "grpo@1"), ("sat-grpo@8", "sat-grpo@1"), ("sat-grpo@1", "grpo@1"), ("sat-grpo@8", "grpo@8"),
    ]  # fmt: skip
    difference = results.scored("grpo", "8", "last").mean() - results.scored("grpo", "1", "last").mean()
    assert found[0].estimate == pytest.approx(difference) and found[0].low < difference < found[0].high
    assert [item.p_holm for item in found] == pytest.approx(holm([item.p_value for item in found]))
    assert found[0].seeds == (1, 1) and found[0].over == ("problems",) and contrast_rows(found)[0][4:] == ["1 and 1", "problems"]
    assert found[0].label == "GRPO: lag 8 − lag 1" and found[3].label == "SAT-GRPO − GRPO, lag 8"


def test_a_variant_is_a_row_of_its_own_beside_its_method(tmp_path, monkeypatch):
    """Collected, in a block of Table 1, compared with its method, and kept out of the figures of the paper's rows."""
    overrides = {"ablations": ["eps_high_0.28"], **synthetic.cells(["grpo", "gspo", "sat-grpo", "sat-gspo"], ["8"])}
    made = synthetic.write_run(tmp_path, synthetic.World({}), overrides)
    monkeypatch.chdir(tmp_path)
    results = read_results(made.layout, made.settings)
    assert len(results.runs) == 8 and results.gaps == ()
    rows = rows_of(results, summarise(results), FORM)
    assert [row.label for row in rows if row.block == "variants"] == [
        f"{label}, eps high 0.28" for label in ("GRPO", "GSPO", "SAT-GRPO", "SAT-GSPO")
    ]
    settings = [item for item in contrasts(results, TABLE_1, LAGS) if item.what == "setting"]
    assert settings[0].label == "GRPO, eps high 0.28 − GRPO, lag 8" and len(settings) == 4
    (effect, *others) = setting_effects(results, contrasts(results, TABLE_1, LAGS))
    assert [effect.method for effect in others] == ["gspo+eps_high_0.28", "sat-grpo+eps_high_0.28", "sat-gspo+eps_high_0.28"]
    shares = [float(results.scored(name, "8", "last").mean()) for name in ("grpo", "grpo+eps_high_0.28")]
    assert effect.accuracy == pytest.approx(shares) and effect.points[0] == pytest.approx(shares[1] - shares[0])
    (row, *_) = setting_rows(variants.from_json(json.loads(json.dumps(variants.as_json([effect])))))
    assert row == setting_rows([effect])[0] and row[:3] == ["GRPO, eps high 0.28", "8", "1 → 1"]
    assert effect.mismatch[1] / effect.mismatch[0] == pytest.approx(effect.mismatch_ratio[0])
    plotted = FIGURES["figure4"].draw(results, read_reference()).data
    assert not any("+" in method for method in plotted["method"])


def item(low: float, high: float, paper: float | None, finding: str = "undecided") -> Evidence:
    return Evidence("", finding, "", Interval((low + high) / 2, low, high, 0.95, ()), paper)


def test_an_undecided_difference_tells_its_power_at_the_paper_s_value():
    """Half width 1.96 x 1 point: 2.8 points are found with chance 0.8, a true 1.96 with chance one half."""
    found = resolution(item(-0.0096, 0.0296, 0.0196), ABOVE)
    assert found.power == pytest.approx(0.5, abs=0.001) and found.smallest == pytest.approx(2.80, abs=0.01)
    assert resolution(item(-0.01, 0.03, -0.01), ABOVE).power is None  # the paper's value lies on the other side
    assert resolution(item(0.01, 0.03, 0.02, "supports"), ABOVE) is None


def test_a_ratio_is_resolved_as_a_factor():
    rule = {"statistic": "mismatch_ratio", "direction": "below", "threshold": 1.0}
    half = 1.96 * 0.1
    found = resolution(item(float(np.exp(-half)), float(np.exp(half)), float(np.exp(-0.196))), rule)
    assert found.power == pytest.approx(0.5, abs=0.001) and found.smallest == pytest.approx(np.exp(0.28), abs=0.002)


def test_a_claim_gives_the_median_of_its_undecided_comparisons():
    power, text = summary([item(-0.0096, 0.0296, 0.0196), item(0.1, 0.2, 0.1, "supports")], ABOVE)
    assert (
        power == pytest.approx(0.5, abs=0.001) and text == "power 0.50 at the paper's difference; found with chance 0.8: 2.8 points"
    )
    runs = [Evidence("", "undecided", "1 of 3 collapsed", runs=3)]
    assert summary(runs, {"statistic": "collapse"}) == (
        pytest.approx(0.729),
        "power 0.73 if each run did as claimed with chance 0.9",
    )
    assert summary([], ABOVE) == (None, "")
