"""The clip rules: Prop. 4.1 of arXiv 2607.18722 as properties, SAT's reference points, DPPO's mask, and the exact quantile."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipeline.objective.parts.dppo import dppo_masked
from pipeline.objective.parts.ppo import clip_cap
from pipeline.objective.parts.sat import sat_contraction
from pipeline.objective.quantile import order_statistic_rank, staleness_quantile

deterministic = settings(derandomize=True, deadline=None)
EPS = st.floats(0.01, 0.9)
QUANTILE = st.one_of(st.just(0.0), st.floats(1e-6, 3.0))
LOG_RATIO = st.floats(-3.0, 3.0)
ADVANTAGE = st.one_of(st.just(0.0), st.floats(-4.0, 4.0))


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def surrogate(d: float, advantage: float, eps_low: float, eps_high: float, quantile: float | None) -> tuple[float, float]:
    """S and dS/dd at one token, as the loss composes them; quantile None: PPO."""
    log_ratio, a = double(d).requires_grad_(), double(advantage)
    contraction = None if quantile is None else sat_contraction(log_ratio.detach() * a.sign(), double(quantile)[0])
    value = (log_ratio.exp() * a).clamp(max=clip_cap(a, eps_low, eps_high, contraction))
    value.backward()
    return value.item(), log_ratio.grad.item()


def contractions(d: float, quantile: float) -> tuple[float, float]:
    low, high = (float(sat_contraction(sign * double(d), double(quantile)[0])) for sign in (-1.0, 1.0))
    return low, high


@deterministic
@given(LOG_RATIO, ADVANTAGE, EPS, EPS)
def test_the_cap_is_ppos_minimum(d: float, advantage: float, eps_low: float, eps_high: float) -> None:
    r = math.exp(d)
    clipped = min(max(r, 1 - eps_low), 1 + eps_high)
    value, slope = surrogate(d, advantage, eps_low, eps_high, None)
    assert value == pytest.approx(min(r * advantage, clipped * advantage), abs=1e-12)
    assume(abs(r - (1 - eps_low)) > 1e-9 and abs(r - (1 + eps_high)) > 1e-9)
    binds = (advantage > 0 and r > 1 + eps_high) or (advantage < 0 and r < 1 - eps_low)
    assert slope == pytest.approx(0.0 if binds else r * advantage, abs=1e-12)


@deterministic
@given(LOG_RATIO, QUANTILE)
def test_the_contraction_gates_strictly_and_on_the_side_of_the_log_ratio(d: float, q: float) -> None:
    low, high = contractions(d, q)
    psi = 1.0 / (1.0 + (d / q) ** 2) if q > 0 and abs(d) > q else 1.0
    assert (low, high) == pytest.approx((psi, 1.0) if d < 0 else (1.0, psi), rel=1e-14)
    assert (low < 0.5 or high < 0.5) if q > 0 and abs(d) > q * (1 + 1e-12) else True
    assert contractions(q, q) == (1.0, 1.0) and contractions(-q, q) == (1.0, 1.0)  # ties are not gated


@deterministic
@given(LOG_RATIO, QUANTILE, EPS, EPS)
def test_proposition_4_1_i_the_interval_is_contained_in_ppos(d: float, q: float, eps_low: float, eps_high: float) -> None:
    low, high = contractions(d, q)
    assert 1 - eps_low <= 1 - eps_low * low <= 1.0 <= 1 + eps_high * high <= 1 + eps_high


@deterministic
@given(LOG_RATIO, ADVANTAGE, QUANTILE, EPS, EPS)
def test_proposition_4_1_ii_the_surrogate_is_never_above_ppos(
    d: float, a: float, q: float, eps_low: float, eps_high: float
) -> None:
    assert surrogate(d, a, eps_low, eps_high, q)[0] <= surrogate(d, a, eps_low, eps_high, None)[0]


@deterministic
@given(st.floats(-0.6, 0.6), st.sampled_from([-1.5, -0.3, 0.0, 0.3, 1.5]), st.floats(1e-4, 0.3), EPS, EPS)
def test_proposition_4_1_iii_derivatives_differ_exactly_between_the_limits(
    d: float, a: float, q: float, eps_low: float, eps_high: float
) -> None:
    low, high = contractions(d, q)
    r, limits = math.exp(d), (1 - eps_low, 1 - eps_low * low, 1 + eps_high * high, 1 + eps_high)
    assume(all(abs(r - limit) > 1e-9 for limit in limits))
    sat, ppo = (surrogate(d, a, eps_low, eps_high, quantile)[1] for quantile in (q, None))
    between = (a > 0 and limits[2] < r < limits[3]) or (a < 0 and limits[0] < r < limits[1])
    assert (sat != ppo) == between
    assert sat == 0.0 if between else sat == ppo


@pytest.mark.parametrize(
    ("q", "point"), [(0.001, 0.0058), (0.005, 0.0166), (0.01, 0.026), (0.02, 0.040), (0.05, 0.068), (0.1, 0.10)]
)
def test_the_effective_upper_clip_point(q: float, point: float) -> None:
    """max(u, q), where u solves e^u - 1 = 0.2 / (1 + (u/q)^2); PPO's is log 1.2 = 0.182."""
    d = torch.linspace(0.0, 0.25, 250_001, dtype=torch.float64)
    ones = torch.ones_like(d)
    unclipped = d.exp() <= clip_cap(ones, 0.2, 0.2, sat_contraction(d, double(q)[0]))
    assert d[unclipped].max().item() == pytest.approx(point, rel=0.02)
    assert d[d.exp() <= clip_cap(ones, 0.2, 0.2)].max().item() == pytest.approx(math.log(1.2), abs=2e-6)


def test_a_negative_or_nan_quantile_is_refused() -> None:
    for q in (-1.0, math.nan):
        with pytest.raises(ValueError, match="quantile must be >= 0"):
            sat_contraction(double(0.1), double(q)[0])


def test_dppo_masks_outward_moves_beyond_delta_on_both_sides() -> None:
    mu, pi = double(0.5, 0.5, 0.5, 0.5, 0.5, 0.5), double(0.75, 0.75, 0.25, 0.25, 0.52, 0.48)
    for advantage, expected in ((1.0, [1, 1, 0, 0, 0, 0]), (-1.0, [0, 0, 1, 1, 0, 0]), (0.0, [0] * 6)):
        masked = dppo_masked(pi.log(), mu.log(), torch.full_like(mu, advantage), 0.1)
        assert masked.tolist() == [bool(value) for value in expected]


def test_dppo_keeps_a_token_exactly_at_delta() -> None:
    trainer, rollout = double(math.log(0.75)), double(math.log(0.5))
    delta = float(trainer.exp() - rollout.exp())
    assert not dppo_masked(trainer, rollout, double(1.0), delta).any()
    assert dppo_masked(trainer, rollout, double(1.0), math.nextafter(delta, 0.0)).all()
    assert not dppo_masked(rollout, rollout, double(1.0), 0.0).any()


def test_the_rank_is_computed_without_rounding() -> None:
    assert math.ceil(0.55 * 100) == 56  # what floating point says
    assert order_statistic_rank(0.55, 100) == 55
    assert [order_statistic_rank(0.9, n) for n in (1, 9, 10, 11, 20)] == [1, 9, 9, 10, 18]
    assert order_statistic_rank(1.0, 7) == 7 and order_statistic_rank(1e-9, 7) == 1


@deterministic
@given(st.lists(st.floats(0, 1e3, width=32), min_size=1, max_size=60), st.sampled_from([0.01, 0.5, 0.9, 0.99, 1.0]))
def test_the_quantile_is_numpys_inverted_cdf(values: list[float], alpha: float) -> None:
    q = staleness_quantile(torch.tensor(values), alpha)
    assert q.item() == sorted(values)[order_statistic_rank(alpha, len(values)) - 1]
    if alpha in (0.5, 1.0):  # where alpha N has no rounding error in numpy
        assert q.item() == np.quantile(np.array(values, np.float32), alpha, method="inverted_cdf")
    assert (torch.tensor(values) > q).double().mean() <= 1 - alpha + 1e-15  # the gate share


def layouts(count: int) -> dict[str, np.ndarray]:
    """Values on which a selection that samples first could go wrong."""
    generator = np.random.default_rng(0)
    stride = count // (1 << 14)
    spikes = np.zeros(count)
    spikes[stride // 2 :: stride] = 1 + generator.random(len(spikes[stride // 2 :: stride]))
    return {
        "heavy-tailed": np.abs(generator.standard_cauchy(count)),
        "sorted": np.sort(generator.random(count)),
        "constant": np.full(count, 0.25),
        "mostly zero": generator.random(count) * (generator.random(count) < 0.1),
        "hidden from the sample": spikes,
        "few values": generator.integers(0, 3, count).astype(float),
        "with infinity": np.where(generator.random(count) < 0.2, np.inf, generator.random(count)),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_quantile_of_many_values_is_exact_for_every_layout(dtype: torch.dtype) -> None:
    for name, array in layouts(200_003).items():
        values = torch.from_numpy(array).to(dtype)
        ordered = values.sort().values
        for alpha in (1e-6, 0.1, 0.5, 0.9, 0.92, 0.999, 1.0):
            q = staleness_quantile(values, alpha)
            assert q == ordered[order_statistic_rank(alpha, len(values)) - 1] and q.dtype == dtype, (name, alpha)


def test_more_than_2_to_the_24_values() -> None:
    count = (1 << 24) + 1
    values = torch.arange(count, dtype=torch.float32).roll(12_345)  # float32 holds each of these integers exactly
    with pytest.raises(RuntimeError, match="too large"):
        torch.quantile(values, 0.9)
    assert staleness_quantile(values, 0.9).item() == order_statistic_rank(0.9, count) - 1 == math.ceil(9 * count / 10) - 1


def test_a_quantile_of_nothing_of_nan_or_at_an_impossible_alpha_is_refused() -> None:
    for values, alpha, message in (
        (torch.zeros(0), 0.9, "at least one active token"),
        (torch.tensor([0.0, math.nan]), 0.9, "1 of 2 staleness values are NaN"),
        (torch.zeros(3), 0.0, r"must lie in \(0, 1\], got 0.0"),
        (torch.zeros(3), 1.1, "must lie in"),
    ):
        with pytest.raises(ValueError, match=message):
            staleness_quantile(values, alpha)
