"""The unbiased best against truths that are known: equal versions, one better version, and a single one."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.evaluation.power import expected_maximum
from pipeline.evaluation.selection import unbiased_best


def simulate(chances: np.ndarray, worlds: int, samples: int = 8, problems: int = 30) -> np.ndarray:
    """Mean (best, unbiased, accuracy of the version chosen on all samples) over worlds; chances: accuracy of each version."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(worlds):
        outcomes = rng.random((len(chances), problems, samples)) < chances[:, None, None]
        found = unbiased_best(outcomes, rng, splits=40)
        rows.append((found.best, found.unbiased, chances[outcomes.mean(axis=(1, 2)).argmax()]))
    return np.mean(rows, axis=0)


def test_among_equal_versions_the_best_is_inflated_and_the_unbiased_best_is_not():
    """20 versions of accuracy 0.4: best lies E(20) standard errors above, the unbiased best on the truth."""
    best, unbiased, _ = simulate(np.full(20, 0.4), 600)
    error = np.sqrt(0.4 * 0.6 / 240)
    assert best - 0.4 == pytest.approx(expected_maximum(20) * error, rel=0.03)
    assert unbiased == pytest.approx(0.4, abs=0.003)


def test_a_version_that_is_better_is_found():
    """One of 20 is clearly better: nothing is inflated and nothing lost."""
    best, unbiased, chosen = simulate(np.r_[np.full(19, 0.3), 0.7], 200)
    assert (best, unbiased, chosen) == pytest.approx((0.7, 0.7, 0.7), abs=0.005)


def test_on_a_rising_curve_the_unbiased_best_is_near_the_accuracy_of_the_chosen_version():
    best, unbiased, chosen = simulate(np.linspace(0.3, 0.5, 20), 600)
    assert best > chosen + 0.015 and chosen - 0.012 < unbiased <= chosen + 0.002


def test_one_version_has_nothing_to_choose():
    outcomes = np.random.default_rng(1).random((1, 30, 8)) < 0.5
    found = unbiased_best(outcomes, np.random.default_rng(2))
    assert found.inflation == pytest.approx(0.0, abs=1e-12) and found.best == pytest.approx(outcomes.mean())


def test_one_sample_cannot_be_split():
    found = unbiased_best(np.ones((3, 5, 1)), np.random.default_rng(0))
    assert found.best == 1.0 and np.isnan(found.unbiased) and np.isnan(found.inflation)
    with pytest.raises(ValueError, match="versions, problems, samples"):
        unbiased_best(np.ones((3, 5)), np.random.default_rng(0))
