"""The estimators against truths that are known: closed forms, and intervals whose coverage is counted over simulated worlds."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from pipeline.evaluation import estimators as est


def world(
    rng: np.random.Generator, seeds: int, problems: int, samples: int, shift: float = 0.0, seed_sd: float = 0.0
) -> np.ndarray:
    """Outcomes [seeds, problems, samples] with problem abilities common to the seeds and a level of each seed's own."""
    ability = rng.normal(0.0, 1.2, size=(1, problems, 1))
    level = rng.normal(0.0, seed_sd, size=(seeds, 1, 1))
    return rng.random((seeds, problems, samples)) < 1 / (1 + np.exp(-(ability + level + shift)))


def test_avg_at_k_is_the_mean_of_the_problem_means():
    assert est.avg_at_k([[1, 0, 0, 1], [1, 1, 1, 1], [0, 0, 0, 0]]) == pytest.approx(0.5)


def test_pass_at_k_equals_the_share_of_subsets_with_a_correct_sample():
    rows = np.array([[1, 0, 0, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0, 0, 1, 0, 0]])
    for k in range(1, 6):
        exact = np.mean([np.mean([any(row[list(subset)]) for subset in combinations(range(5), k)]) for row in rows])
        assert est.pass_at_k(rows, k) == pytest.approx(exact, abs=1e-12)
    assert est.pass_at_k(rows, 1) == pytest.approx(est.avg_at_k(rows))


def test_pass_at_k_refuses_more_than_it_has():
    with pytest.raises(ValueError, match=r"pass@9 .* n = 8"):
        est.pass_at_k(np.ones((3, 8)), 9)


def test_standard_error_is_clustered_by_problem():
    """Copying every sample adds no information, so the error must not shrink."""
    outcomes = np.array([[1, 0], [1, 1], [0, 0], [0, 1]])
    assert est.clustered_standard_error(outcomes) == pytest.approx(np.std([0.5, 1, 0, 0.5], ddof=1) / 2)
    assert est.clustered_standard_error(np.repeat(outcomes, 5, axis=1)) == pytest.approx(est.clustered_standard_error(outcomes))


def test_t_interval_agrees_with_scipy():
    values = np.array([0.1, 0.4, 0.35, 0.9, 0.2])
    ours = est.t_interval(values)
    reference = stats.ttest_1samp(values, 0.0)
    low, high = reference.confidence_interval(0.95)
    assert (ours.low, ours.high, ours.p_value) == pytest.approx((low, high, reference.pvalue))


def test_interval_over_problems_matches_the_t_interval():
    outcomes = world(np.random.default_rng(0), 1, 120, 8)
    boot = est.hierarchical_interval(outcomes, np.random.default_rng(1), draws=20000)
    exact = est.t_interval(outcomes[0].mean(axis=1))
    assert boot.over == ("problems",)
    assert (boot.low, boot.high) == pytest.approx((exact.low, exact.high), abs=0.004)


@pytest.mark.parametrize(("seeds", "seed_sd"), [(1, 0.0), (2, 0.0), (3, 0.0), (3, 0.5), (5, 0.5)])
def test_coverage_of_the_paired_difference(seeds: int, seed_sd: float):
    """Two cells of equal true accuracy, problems shared: the 95 % interval must hold 0 in 92 to 99.5 % of 400 worlds."""
    rng = np.random.default_rng(17)
    covered = 0
    for _ in range(400):
        ability = rng.normal(0.0, 1.2, size=(1, 60, 1))
        cells = []
        for _ in range(2):
            level = rng.normal(0.0, seed_sd, size=(seeds, 1, 1))
            cells.append(rng.random((seeds, 60, 8)) < 1 / (1 + np.exp(-(ability + level))))
        interval = est.paired_difference(cells[0], cells[1], rng, draws=500)
        covered += interval.low <= 0.0 <= interval.high
    assert 0.92 <= covered / 400 <= 0.995, covered / 400


def test_coverage_of_a_cell_with_three_seeds():
    """The accuracy of fresh problems and fresh seeds, known from a large simulation, is held by the interval in 90 to 99.5 % of
    worlds.
    """
    rng = np.random.default_rng(3)
    truth = np.mean(1 / (1 + np.exp(-np.random.default_rng(5).normal(0, np.hypot(1.2, 0.4), 400_000))))
    covered = 0
    for _ in range(400):
        interval = est.hierarchical_interval(world(rng, 3, 60, 8, seed_sd=0.4), rng, draws=500)
        covered += interval.low <= truth <= interval.high
    assert 0.90 <= covered / 400 <= 0.995, covered / 400


def test_pairing_by_problem_narrows_the_difference():
    rng = np.random.default_rng(2)
    outcomes = world(rng, 1, 100, 32)
    harder = np.concatenate([outcomes[:, :, :30], np.zeros((1, 100, 2))], axis=2)
    paired = est.paired_difference(outcomes, harder, np.random.default_rng(0))
    alone = est.hierarchical_interval(outcomes, np.random.default_rng(0))
    assert paired.high - paired.low < 0.3 * (alone.high - alone.low)
    assert paired.low > 0.0 and paired.p_value < 0.01


def test_resampling_the_samples_too_is_wider():
    outcomes = world(np.random.default_rng(6), 1, 80, 2)
    plain = est.hierarchical_interval(outcomes, np.random.default_rng(0))
    twice = est.hierarchical_interval(outcomes, np.random.default_rng(0), levels=("seeds", "problems", "samples"))
    assert twice.high - twice.low > 1.05 * (plain.high - plain.low)
    assert twice.over == ("problems", "samples")


def test_difference_is_antisymmetric_and_repeatable():
    a, b = world(np.random.default_rng(7), 3, 50, 8, 0.3), world(np.random.default_rng(8), 2, 50, 4)
    first = est.paired_difference(a, b, np.random.default_rng(9))
    again = est.paired_difference(a, b, np.random.default_rng(9))
    back = est.paired_difference(b, a, np.random.default_rng(9))
    assert first == again
    assert first.estimate == pytest.approx(-back.estimate, abs=1e-12) == pytest.approx(a.mean() - b.mean())


def test_cells_scored_on_different_problem_counts_are_refused():
    with pytest.raises(ValueError, match=r"\[50, 60\] problems"):
        est.paired_difference(np.ones((1, 50, 2)), np.ones((1, 60, 2)), np.random.default_rng(0))


@pytest.mark.parametrize("seeds", [1, 3])
def test_coverage_of_the_ratio_of_autocorrelated_series(seeds: int):
    """Two AR(1) series (0.5) with true ratio 2, 50 steps as in a last quarter: the interval holds log 2 in 88 to 99.5 % of
    worlds.
    """
    rng = np.random.default_rng(11)
    covered = 0
    for _ in range(300):
        sides = []
        for mean in (2.0, 1.0):
            noise = rng.normal(size=(seeds, 70))
            for step in range(1, 70):
                noise[:, step] += 0.5 * noise[:, step - 1]
            sides.append(list(mean * np.exp(rng.normal(0, 0.1, (seeds, 1)) * (seeds > 1)) * (1 + 0.1 * noise[:, 20:])))
        interval = est.log_ratio_of_means(sides[0], sides[1], rng, draws=400)
        covered += interval.low <= np.log(2) <= interval.high
    assert 0.88 <= covered / 300 <= 0.995, covered / 300


def test_ratio_of_series_is_exact_for_constants():
    interval = est.log_ratio_of_means([[3.0] * 20], [[1.5] * 20], np.random.default_rng(0))
    assert (interval.estimate, interval.low, interval.high) == pytest.approx((np.log(2),) * 3)


def test_tail_mean_takes_the_trailing_quarter():
    steps = np.arange(19, 200, 20)
    assert est.tail_mean(steps, steps, 200) == pytest.approx(np.mean([159, 179, 199]))
    assert np.isnan(est.tail_mean([10], [0.5], 200))


def test_best_counts_every_version_once():
    """A repeated row of a version carries the same score; the best must name the first step that reported it."""
    assert est.best_over_versions([0, 8, 8, 16], [0.3, 0.5, 0.5, 0.4]) == 1
    assert est.best_over_versions([0, 8, 16, 24], [0.3, 0.5, 0.5, 0.4]) == 1
