"""The audit of the published numbers: known facts come out of the arithmetic, and the committed page is what the code writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.evaluation.power import Difficulty, expected_maximum, power, smallest_detectable
from pipeline.paper.audit.granularity import chance_of_one, fit, numerator, smallest_common
from pipeline.paper.audit.page import audit_stage
from pipeline.paper.audit.protocol import (
    CLOSE,
    PaperProtocol,
    closeness,
    impossible_steps,
    labelled_batches,
    mismatch_coverage,
    overlaps,
    protocols_share,
    score_curves,
)
from pipeline.paper.audit.resolution import inflation, noises, resolution, sat_gaps
from pipeline.paper.reference import read_reference
from pipeline.results.frames import column

REPOSITORY = Path(__file__).parents[2]
REFERENCE = read_reference(REPOSITORY / "results" / "reference")
VALUES = [float(value) for value in REFERENCE.table["aime24"]]
PROTOCOL = PaperProtocol.of(REFERENCE)


@pytest.mark.parametrize(
    ("value", "n", "k"),
    [(34.79, 480, 167), (9.38, 480, 45), (33.75, 240, 81), (32.25, 480, None), (34.0, 1920, None), (34.0, 2400, 816)],
)
def test_a_printed_value_names_its_fraction(value, n, k):
    assert numerator(value, n) == k


def test_how_many_values_fit_each_grid():
    assert [fit(VALUES, n, "").fitting for n in (240, 480, 1920, 2400)] == [7, 17, 17, 26]
    assert smallest_common(VALUES, 30) == 80
    fits = [numerator(value, 480) is not None for value in VALUES]
    shares = protocols_share(REFERENCE, fits)
    assert (shares["SAT", True], shares["DPPO", True], shares["baselines", True], shares["baselines", False]) == (8, 2, 7, 9)


def test_few_values_fit_by_accident():
    """n values are k/n; each rounding tie (10000 k/480 = 125 k/6 ends in .5 for one k in six) adds one more."""
    assert chance_of_one(480) == pytest.approx((480 + 80) / 10_000)
    assert fit([34.79], 480, "").chance == pytest.approx(chance_of_one(480)) and fit([32.25], 480, "").chance == 1.0


def test_evaluations_take_place_at_4_9_14():
    assert list(PROTOCOL.evaluated())[:3] == [4, 9, 14] and PROTOCOL.evaluated()[-1] == 539 and len(PROTOCOL.evaluated()) == 108
    assert impossible_steps(REFERENCE, PROTOCOL) == []
    assert (PROTOCOL.versions(1), PROTOCOL.versions(8)) == (108, 68)


def test_figure_3_and_table_1_differ_for_gspo():
    lag1, lag8 = score_curves(REFERENCE).to_dict("records")
    assert (lag1["maximum"], lag1["maximum_step"], lag1["table"]) == (31.25, 474, 32.25)
    assert lag8["maximum"] == pytest.approx(33.75, abs=0.011) and (lag8["maximum_step"], lag8["table_step"]) == (374, 424)
    assert lag8["table"] - lag8["maximum"] == pytest.approx(31.46 - 33.76)


def test_the_largest_of_108_is_two_and_a_half_deviations_high():
    """Against a simulation, and the closed form 1/sqrt(pi) for two."""
    simulated = np.random.default_rng(1).normal(size=(20_000, 108)).max(axis=1).mean()
    assert expected_maximum(108) == pytest.approx(simulated, abs=0.01) and expected_maximum(108) == pytest.approx(2.535, abs=0.001)
    assert expected_maximum(2) == pytest.approx(1 / np.sqrt(np.pi), abs=1e-6) and expected_maximum(1) == pytest.approx(0, abs=1e-9)
    assert [inflation(noise, 108) for noise in (0.6, 1.9)] == pytest.approx([1.52, 4.82], abs=0.01)


def test_noise_of_the_protocols_is_that_of_simulated_evaluations():
    assert [noise.fixed for noise in noises(30, 16, 4)] == pytest.approx([2.02, 1.43, 0.72], abs=0.01)
    rng, difficulty = np.random.default_rng(2), Difficulty(0.33, 0.8)
    chances = rng.beta(0.33 * 0.8, 0.67 * 0.8, size=(20_000, 30))
    scores = rng.binomial(16, chances).mean(axis=1) / 16
    assert difficulty.total_error(30, 16) == pytest.approx(scores.std(), rel=0.02)
    assert difficulty.sampling_error(30, 16) == pytest.approx((scores - chances.mean(axis=1)).std(), rel=0.02)


def test_power_agrees_with_simulated_tests():
    observed = np.random.default_rng(3).normal(2.0, 1.0, 100_000)
    assert power(2.0, 1.0) == pytest.approx(np.mean(np.abs(observed) > 1.959964), abs=0.005)
    assert power(0.0, 1.0) == pytest.approx(0.05) and power(smallest_detectable(1.3), 1.3) == pytest.approx(0.8, abs=1e-3)
    four = resolution(noises(30, 16, 4)[2], 0.0)
    assert four.powers == pytest.approx((0.17, 0.51, 0.84, 0.98), abs=0.01) and four.smallest == pytest.approx(2.83, abs=0.01)
    with pytest.raises(ValueError, match="standard_error 0"):
        power(1.0, 0.0)


def test_differences_and_curves_of_the_reference():
    gaps = sat_gaps(REFERENCE)
    assert len(gaps) == 8 and (min(gaps["gap"]), max(gaps["gap"])) == pytest.approx((1.25, 3.55))
    coverage = mismatch_coverage(REFERENCE)
    assert column(coverage, "last_step").lt(column(coverage, "best_step")).sum() == 19
    assert [(pair.points, pair.common) for pair in overlaps(REFERENCE)] == [(67, 67), (58, 58)]


def test_curves_that_are_alike_and_batches_that_are_not():
    """SAT-GSPO and SAT-GRPO with R3 at lag 8 differ by 0.28 % at the middle step; pairs in general by a third."""
    pairs = closeness(REFERENCE)
    first = pairs[0]
    assert first.first.startswith("SAT-GRPO w/ R3 lag 8") and first.second.startswith("SAT-GSPO w/ R3 lag 8")
    assert (first.median, first.common) == (pytest.approx(0.0028, abs=1e-4), 231)
    assert len([pair for pair in pairs if pair.median < CLOSE]) == 4 and np.median([pair.median for pair in pairs]) > 0.3
    assert labelled_batches(REFERENCE) == [("GRPO lag 1", "grpo_slime__s1_gbs2048", 2048)]


def test_the_committed_page_is_what_the_code_writes(tmp_path):
    """After a change of the reference or of the audit: python -m pipeline audit."""
    written = audit_stage(tmp_path / "audit.md", REPOSITORY / "results" / "reference", REPOSITORY / "config.yaml")
    assert written == (REPOSITORY / "docs" / "audit.md").read_text(encoding="utf-8")
    assert "100 x 167/480 = 34.792" in written and "4,096 / 2,048 = 2" in written
