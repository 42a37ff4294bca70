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


def logistic(values: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-values))


def truth(sd: float, shift: float = 0.0) -> float:
    """Accuracy over fresh problems and fresh seeds: abilities N(shift, 1.2^2), seeds N(0, sd^2)."""
    return float(np.mean(logistic(shift + np.random.default_rng(5).normal(0, np.hypot(1.2, sd), 2_000_000))))


def coverage(seeds: int, problems: int, sd: float, shift: float, worlds: int = 1500) -> dict[str, float]:
    """How often the 95 % intervals hold the truth: of a cell, of the difference to a second cell on the same problems whose
    level lies `shift` higher, and of a single seed's clustered t interval.
    """
    rng = np.random.default_rng(17)
    level, gap = truth(sd), truth(sd, shift) - truth(sd)
    held = {"cell": 0, "difference": 0, "t": 0}
    for _ in range(worlds):
        ability = rng.normal(0.0, 1.2, size=(1, problems, 1))
        a, b = (
            rng.random((seeds, problems, 8)) < logistic(ability + rng.normal(0.0, sd, size=(seeds, 1, 1)) + up)
            for up in (shift, 0.0)
        )
        cell, difference = est.hierarchical_interval(b, rng, draws=500), est.paired_difference(a, b, rng, draws=500)
        t = est.clustered_interval(b[0])
        held["cell"] += cell.low <= level <= cell.high
        held["difference"] += difference.low <= gap <= difference.high
        held["t"] += t.low <= level <= t.high
    return {name: count / worlds for name, count in held.items()}


@pytest.mark.parametrize(
    ("seeds", "problems", "sd", "shift", "names"),
    [
        (1, 30, 0.0, 0.0, ("cell", "difference", "t")),  # 29 degrees of freedom, as on AIME24
        (1, 60, 0.0, 0.5, ("cell", "difference", "t")),  # two cells, or one method at two lags, that differ
        (2, 60, 0.3, 0.0, ("cell", "difference")),
        (3, 120, 0.4, 0.5, ("cell", "difference")),  # three seeds scored on 120 problems, as in preset tiny
        (3, 120, 0.8, 0.0, ("cell", "difference")),
        (5, 120, 0.4, 0.5, ("cell", "difference")),
    ],
)
def test_coverage_is_nominal(seeds, problems, sd, shift, names):
    """Nominal 95 %: between 93 and 96 % of the worlds."""
    found = coverage(seeds, problems, sd, shift)
    assert all(0.93 <= found[name] <= 0.96 for name in names), found


def test_without_spread_between_seeds_the_interval_is_on_the_safe_side():
    """Three seeds that do not differ: their spread is estimated from two degrees of freedom, so the interval is somewhat wide."""
    found = coverage(3, 60, 0.0, 0.0, worlds=600)
    assert 0.93 <= found["cell"] <= 0.98 and 0.93 <= found["difference"] <= 0.99, found


def test_sampling_error_is_that_of_new_samples_of_the_same_problems():
    """Against 20,000 evaluations of 30 fixed problems; the clustered error, which counts the problems too, is far larger."""
    rng = np.random.default_rng(4)
    chances = rng.beta(0.33 * 0.8, 0.67 * 0.8, size=30)
    scores = rng.binomial(8, chances, size=(20_000, 30)).mean(axis=1) / 8
    outcomes = rng.random((400, 30, 8)) < chances[:, None]
    estimated = np.sqrt(np.mean([est.sampling_standard_error(one) ** 2 for one in outcomes]))
    assert estimated == pytest.approx(scores.std(), rel=0.03)
    assert np.mean([est.clustered_standard_error(one) for one in outcomes]) > 2 * estimated
    assert np.isnan(est.sampling_standard_error(np.ones((30, 1))))


def test_clustered_interval_is_the_t_interval_of_the_problem_means():
    outcomes = world(np.random.default_rng(0), 1, 30, 8)[0]
    mean, error = outcomes.mean(), outcomes.mean(axis=1).std(ddof=1) / np.sqrt(30)
    interval = est.clustered_interval(outcomes)
    assert (interval.low, interval.high) == pytest.approx((mean - 2.0452 * error, mean + 2.0452 * error), abs=1e-5)
    assert est.clustered_interval(np.eye(2)[:1].repeat(30, axis=0)).low == 0.5


def test_holm_by_hand():
    assert est.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert est.holm([0.2, np.nan, 0.6]) == pytest.approx([0.4, np.nan, 0.6], nan_ok=True)
    assert est.holm([0.9, 0.8]) == pytest.approx([1.0, 1.0]) and len(est.holm([])) == 0


def test_holm_keeps_the_chance_of_any_false_rejection():
    """20 true null hypotheses: some p-value is below 5 % in 64 % of the worlds, some adjusted one in 5 %."""
    p_values = np.random.default_rng(6).random((4000, 20))
    assert np.mean(p_values.min(axis=1) <= 0.05) == pytest.approx(1 - 0.95**20, abs=0.03)
    assert np.mean([est.holm(row).min() <= 0.05 for row in p_values]) == pytest.approx(0.05, abs=0.012)


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
