"""The estimators against truths that are known: closed forms, and intervals whose coverage is counted over simulated worlds."""

from __future__ import annotations

from itertools import combinations
from typing import Any

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
    reference: Any = stats.ttest_1samp(values, 0.0)
    low, high = reference.confidence_interval(0.95)
    assert (ours.low, ours.high, ours.p_value) == pytest.approx((low, high, reference.pvalue))


def test_interval_of_one_seed_is_the_t_interval_over_problems():
    outcomes = world(np.random.default_rng(0), 1, 120, 8)
    interval, exact = est.hierarchical_interval(outcomes), est.t_interval(outcomes[0].mean(axis=1))
    assert interval.over == ("problems",)
    assert (interval.low, interval.high, interval.p_value) == pytest.approx((exact.low, exact.high, exact.p_value))


def test_interval_and_p_value_agree_at_every_level():
    """The interval at level 1 - p ends at 0."""
    rng = np.random.default_rng(1)
    for shift, seeds in ((0.0, 3), (0.5, 3), (1.5, 3), (0.4, 1), (0.6, 2)):
        a, b = world(rng, seeds, 60, 8, shift, 0.2), world(rng, seeds, 60, 8, 0.0, 0.1)
        p_value = est.paired_difference(a, b).p_value
        edge = est.paired_difference(a, b, level=1 - p_value)
        assert min(abs(edge.low), abs(edge.high)) < 1e-6
        usual = est.paired_difference(a, b)
        assert (p_value <= 0.05) == (not usual.low <= 0 <= usual.high)


def logistic(values: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-values))


def truth(sd: float, shift: float = 0.0) -> float:
    """Accuracy over fresh problems and fresh seeds: abilities N(shift, 1.2^2), seeds N(0, sd^2)."""
    return float(np.mean(logistic(shift + np.random.default_rng(5).normal(0, np.hypot(1.2, sd), 2_000_000))))


def coverage(seeds: int, problems: int, sd: float, shift: float, worlds: int = 1200) -> dict[str, float]:
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
        cell, difference = est.hierarchical_interval(b), est.paired_difference(a, b)
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
    """Nominal 95 % (standard error .6 %): 93 to 96.5 % of the worlds, up to 97.5 for a cell whose seeds and problems add alike."""
    found = coverage(seeds, problems, sd, shift)
    assert all(0.93 <= found[name] <= (0.975 if name == "cell" else 0.965) for name in names), found


@pytest.mark.parametrize(
    ("seeds", "problems", "spreads"),
    [
        (1, 120, (0.0, 0.0)),
        (3, 120, (0.0, 0.0)),
        (3, 120, (0.1, 0.1)),  # as large as the sampling noise of a seed
        (3, 120, (0.8, 0.8)),
        (3, 120, (0.4, 0.1)),  # two cells whose seeds differ unequally
    ],
)
def test_without_a_difference_p_values_are_as_rare_as_they_say(seeds, problems, spreads):
    """2,000 worlds in which two cells differ by nothing but chance: p <= 0.05 in 5 % of them (standard error .5 %; up to 7 where
    the cells' spreads are unequal), p <= 0.002 in at most 0.4 %.
    """
    rng = np.random.default_rng(29)
    p_values = []
    for _ in range(2000):
        ability = rng.normal(0.0, 1.2, size=(1, problems))
        sides = [
            rng.binomial(8, logistic(ability + rng.normal(0.0, spread, size=(seeds, 1))))[:, :, None] / 8 for spread in spreads
        ]
        p_values.append(est.paired_difference(*sides).p_value)
    found = [np.mean(np.array(p_values) <= alpha) for alpha in (0.05, 0.002)]
    assert 0.038 <= found[0] <= (0.075 if spreads[0] != spreads[1] else 0.06) and found[1] <= 0.004, found


def test_two_checkpoints_of_the_same_runs_are_paired_by_seed():
    """Seeds far apart, the second checkpoint 5 points below the first in each: found, where separate seeds would hide it."""
    rng = np.random.default_rng(3)
    levels = np.array([-1.0, 0.0, 1.0])[:, None, None]
    first, second = (rng.random((3, 400, 16)) < logistic(levels + shift) for shift in (0.0, -0.25))
    terms = [(1.0, second), (-1.0, first)]
    paired, separate = est.contrast_interval(terms, runs=["x", "x"]), est.contrast_interval(terms)
    assert paired.high < 0 < separate.high and paired.estimate == pytest.approx(separate.estimate)
    by_seed = est.t_interval(second.mean(axis=(1, 2)) - first.mean(axis=(1, 2)))
    assert (paired.low, paired.high) == pytest.approx((by_seed.low, by_seed.high), abs=0.01)
    with pytest.raises(ValueError, match="3 and 2 seeds"):
        est.contrast_interval([(1.0, first), (-1.0, second[:2])], runs=["x", "x"])


def test_a_count_of_runs_comes_with_clopper_and_pearson_s_interval():
    for successes, trials in ((0, 3), (3, 3), (1, 3), (4, 10)):
        exact = stats.binomtest(successes, trials).proportion_ci(0.95, method="exact")
        interval = est.binomial_interval(successes, trials)
        assert (interval.low, interval.high) == pytest.approx((exact.low, exact.high))
    with pytest.raises(ValueError, match="4 of 3"):
        est.binomial_interval(4, 3)


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_published_value_is_compared_at_these_very_problems(seeds: int):
    """30 fixed problems, the published value a mean of 64 samples of the same chances: the interval holds 0 in 95 % of 1,500 worlds
    (standard error .6 %), and is less than half as wide as the one over problems.
    """
    rng = np.random.default_rng(8)
    chances = rng.beta(0.33 * 0.8, 0.67 * 0.8, size=30)
    held = 0
    for _ in range(1500):
        published = float(rng.binomial(64, chances).mean() / 64)
        interval = est.difference_at_fixed_problems(rng.random((seeds, 30, 16)) < chances[:, None], published, 30 * 64)
        held += interval.low <= 0 <= interval.high
    assert 0.93 <= held / 1500 <= 0.97, held / 1500
    over_problems = est.hierarchical_interval(rng.random((1, 30, 16)) < chances[:, None])
    assert seeds > 1 or interval.high - interval.low < 0.5 * (over_problems.high - over_problems.low)


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
    paired = est.paired_difference(outcomes, harder)
    alone = est.hierarchical_interval(outcomes)
    assert paired.high - paired.low < 0.3 * (alone.high - alone.low)
    assert paired.low > 0.0 and paired.p_value < 0.01


def test_difference_is_antisymmetric():
    a, b = world(np.random.default_rng(7), 3, 50, 8, 0.3), world(np.random.default_rng(8), 2, 50, 4)
    there, back = est.paired_difference(a, b), est.paired_difference(b, a)
    assert (there.low, there.high, there.p_value) == pytest.approx((-back.high, -back.low, back.p_value))
    assert there.estimate == pytest.approx(a.mean() - b.mean())


def test_cells_scored_on_different_problem_counts_are_refused():
    with pytest.raises(ValueError, match=r"\[50, 60\] problems"):
        est.paired_difference(np.ones((1, 50, 2)), np.ones((1, 60, 2)))


@pytest.mark.parametrize(("seeds", "spread"), [(1, 0.0), (2, 0.1), (3, 0.0), (3, 0.1), (3, 0.4)])
def test_coverage_of_the_ratio_of_autocorrelated_series(seeds: int, spread: float):
    """Two AR(1) series (0.5) with true ratio 2, 50 steps as in a last quarter: the interval holds log 2 in 93 to 96 % of 1,500
    worlds (standard error .6 %).
    """
    rng = np.random.default_rng(11)
    covered = 0
    for _ in range(1500):
        noise = rng.normal(size=(2, seeds, 70))
        for step in range(1, 70):
            noise[..., step] += 0.5 * noise[..., step - 1]
        levels = np.array([2.0, 1.0])[:, None, None] * np.exp(rng.normal(0, spread, (2, seeds, 1)))
        interval = est.log_ratio_of_means(*(levels * (1 + 0.1 * noise[..., 20:])))
        covered += interval.low <= np.log(2) <= interval.high
    assert 0.925 <= covered / 1500 <= 0.965, covered / 1500


def test_ratio_of_several_seeds_is_a_t_test_of_their_log_means():
    """Equal spread on both sides: Welch's second formula gives 6 degrees of freedom at 95 %, his first 4 far in the tail."""
    sides = [[np.full(20, value * factor) for factor in (0.9, 1.0, 1.1)] for value in (2.0, 1.0)]
    interval = est.log_ratio_of_means(*sides)
    logs = [np.log([values[0] for values in side]) for side in sides]
    error = np.sqrt(sum(values.var(ddof=1) / 3 for values in logs))
    assert interval.over == ("seeds",) and interval.high - interval.estimate == pytest.approx(stats.t.ppf(0.975, 6) * error)
    strict = est.log_ratio_of_means(*sides, level=1 - 1e-9)
    assert strict.high - strict.estimate == pytest.approx(stats.t.ppf(1 - 5e-10, 4) * error, rel=1e-3)


def test_ratio_of_series_is_exact_for_constants():
    interval = est.log_ratio_of_means([[3.0] * 20], [[1.5] * 20])
    assert (interval.estimate, interval.low, interval.high) == pytest.approx((np.log(2),) * 3)
    assert est.log_ratio_to([[3.0] * 20], 1.5).estimate == pytest.approx(np.log(2))
    assert np.isnan(est.log_ratio_of_means([[3.0]], [[1.5] * 20]).low)  # one step tells nothing of its noise


def test_tail_mean_takes_the_trailing_quarter():
    steps = np.arange(19, 200, 20)
    assert est.tail_mean(steps, steps, 200) == pytest.approx(np.mean([159, 179, 199]))
    assert np.isnan(est.tail_mean([10], [0.5], 200))


def test_best_counts_every_version_once():
    """A repeated row of a version carries the same score; the best must name the first step that reported it."""
    assert est.best_over_versions([0, 8, 8, 16], [0.3, 0.5, 0.5, 0.4]) == 1
    assert est.best_over_versions([0, 8, 16, 24], [0.3, 0.5, 0.5, 0.4]) == 1
