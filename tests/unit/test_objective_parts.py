"""Parts beyond the paper's table: the derivative of the token loss against the published coefficient, by hand and as properties."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pipeline.objective.loss import objective
from pipeline.objective.methods import METHODS, Method
from pipeline.objective.part import OneProcess
from pipeline.objective.parts.gac import Gac, GacSettings
from pipeline.objective.parts.m2po import M2po, M2poSettings
from pipeline.objective.recipe import Recipe
from pipeline.objective.terms import StepTerms, Tokens
from tests.unit.objective_reference import example, objective_settings, recipe, statistics_of

PLAIN = {"reference_kl_coefficient": 0.0, "entropy_coefficient": 0.0}
deterministic = settings(derandomize=True, deadline=None, max_examples=60)


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def coefficients(of: Recipe, d: list[float], advantages: list[float]) -> list[float]:
    """d(surrogate)/d(log pi) of each token over its advantage, where d = log pi - log mu; the first step of its rollout batch."""
    count = len(d)
    rollout = torch.full((count,), math.log(0.3), dtype=torch.float64)
    tokens = Tokens(rollout, double(*advantages), torch.arange(count), count, torch.ones(count, dtype=torch.float64))
    trainer = (rollout + double(*d)).requires_grad_()
    case = dataclasses.replace(example(), trainer=trainer, tokens=tokens)
    loss, _ = objective(of, trainer, None, tokens, statistics_of(of, [case]))
    loss.backward()
    assert trainer.grad is not None
    return [-float(slope) / advantage for slope, advantage in zip(trainer.grad, advantages, strict=True)]


def test_cispo_weighs_every_token_by_its_clipped_ratio() -> None:
    of = recipe("cispo", objective_settings(**PLAIN, cispo={"eps_low": 0.4, "eps_high": 1.0}))
    d = [0.0, math.log(3.0), math.log(3.0), math.log(0.25), math.log(0.25), math.log(0.7)]
    assert coefficients(of, d, [1.0, 1.0, -2.0, 1.0, -2.0, 0.5]) == pytest.approx([1.0, 2.0, 2.0, 0.6, 0.6, 0.7], abs=1e-12)
    unlimited = recipe("cispo", objective_settings(**PLAIN))  # no lower limit, 6 above
    found = coefficients(unlimited, [-30.0, -5.0, math.log(5.0), 3.0], [1.0] * 4)
    assert found == pytest.approx([math.exp(-20.0), math.exp(-5.0), 5.0, 6.0], abs=1e-12)


def test_cispo_is_grpo_where_nothing_is_clipped() -> None:
    d = [0.05, -0.1, 0.15, -0.15, 0.0]
    wide = {"cispo": {"eps_low": 0.9, "eps_high": 9.0}, "ppo": {"eps_low": 0.9, "eps_high": 9.0}}
    found = [
        coefficients(recipe(name, objective_settings(**PLAIN, **wide)), d, [1.0, -1.0, 2.0, -2.0, 1.0])
        for name in ("cispo", "grpo")
    ]
    assert found[0] == pytest.approx(found[1], abs=1e-12)


@pytest.mark.parametrize(("weighted", "kept"), [(True, [1.0, 4.9, 0.5, 0.51]), (False, [1.0] * 4)])
def test_icepop_keeps_its_band_with_both_ends_and_masks_the_rest(weighted: bool, kept: list[float]) -> None:
    of = recipe("icepop", objective_settings(**PLAIN, icepop={"low": 0.5 - 1e-12, "high": 5.0, "weighted": weighted}))
    d = [0.0, math.log(4.9), math.log(0.5), math.log(0.51), math.log(5.1), math.log(0.49), 800.0, -800.0]
    assert coefficients(of, d, [1.0, -1.0] * 4) == pytest.approx([*kept, 0.0, 0.0, 0.0, 0.0], abs=1e-10)


def test_icepop_is_the_uncorrected_policy_gradient_where_engine_and_trainer_agree() -> None:
    d, advantages = [0.0] * 4, [1.0, -1.0, 0.5, 2.0]
    found = [coefficients(recipe(name, objective_settings(**PLAIN)), d, advantages) for name in ("icepop", "grpo-uncorrected")]
    assert found[0] == found[1] == [1.0] * 4


def test_icepop_masks_by_the_proximal_policy_and_clips_by_the_current_one() -> None:
    case, of = example(6), recipe("icepop", objective_settings(**PLAIN))
    terms = objective(of, case.trainer, None, case.tokens)[1]
    assert case.tokens.proximal_logprobs is not None
    k = (case.tokens.proximal_logprobs - case.tokens.rollout_logprobs).exp()
    assert torch.equal(terms.parts["icepop"]["kept"], (k >= 0.5) & (k <= 5.0))
    torch.testing.assert_close(terms.log_ratio, case.trainer - case.tokens.proximal_logprobs, rtol=0, atol=1e-12)


def threshold(values: list[float], budget: float) -> float:
    part = M2po(M2poSettings(budget=budget, least_eps_low=0.0, least_eps_high=0.0))
    return float(part.reduce(double(*values), OneProcess()))


@deterministic
@given(st.lists(st.floats(1e-3, 2.0), min_size=1, max_size=40), st.floats(1e-4, 1.0))
def test_m2po_takes_the_largest_threshold_that_fits_the_budget(values: list[float], budget: float) -> None:
    found = threshold(values, budget)
    inside = [value for value in values if value <= found]
    assert not inside or math.fsum(v * v for v in inside) / len(inside) <= budget * (1 + 1e-12)
    beyond = [value for value in values if value > found * (1 + 3e-6)]
    if beyond:  # one value more, with all that equal it, would be too much
        more = [value for value in values if value <= min(beyond)]
        assert math.fsum(v * v for v in more) / len(more) > budget * (1 - 1e-12)
    else:
        assert found * (1 + 3e-6) >= max(values)


def test_m2po_measures_harmful_tokens_alone_and_clips_on_both_sides() -> None:
    loose = {"budget": 0.04, "least_eps_low": 0.0, "least_eps_high": 0.0}
    of = recipe("m2po", objective_settings(**PLAIN, m2po=loose))
    # harmful, A log r > 0: 0.1, 0.2, 0.3, 0.6; means of squares 0.01, 0.025, 0.0467: the third is too much
    d, advantages = [0.1, -0.2, 0.3, -0.6, -0.9, 0.9], [1.0, -1.0, 1.0, -1.0, 1.0, -1.0]
    found = coefficients(of, d, advantages)
    assert found == pytest.approx([math.exp(0.1), math.exp(-0.2), 0.0, 0.0, math.exp(-0.9), math.exp(0.9)], abs=1e-12)


def test_m2po_is_never_tighter_than_its_least_limits_and_clips_nothing_within_the_budget() -> None:
    d, advantages = [0.39, 0.41, -0.35, -0.36], [1.0, 1.0, -1.0, -1.0]
    strict = recipe("m2po", objective_settings(**PLAIN, m2po={"budget": 1e-6}))
    assert coefficients(strict, d, advantages) == pytest.approx([math.exp(0.39), 0.0, math.exp(-0.35), 0.0], abs=1e-12)
    roomy = recipe("m2po", objective_settings(**PLAIN, m2po={"budget": 1.0}))
    assert coefficients(roomy, d, advantages) == pytest.approx([math.exp(x) for x in d], abs=1e-12)


class FakeGradient:
    def __init__(self, **buffers: Tensor) -> None:
        self.buffers = buffers

    def dot(self, a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
        return sum(float(torch.dot(a[name].double(), b[name].double())) for name in a)


def gac(**changes: float | None) -> Gac:
    return Gac(GacSettings.model_validate({"kappa": 1.0, "cosine_low": 0.2, "cosine_high": None} | changes))


def test_gac_takes_out_what_exceeds_the_threshold_and_no_more() -> None:
    h = {"a": double(2.0, 0.0), "b": double(0.0)}
    gradient = FakeGradient(a=double(3.0, 4.0), b=double(0.0))  # cosine 0.6, |g| 5
    done = gac().control(gradient, h, StepTerms([]))
    assert done.values == {"gac_cosine": pytest.approx(0.6), "gac_removed": pytest.approx((6.0 - 0.2 * 10.0) / 4.0)}
    torch.testing.assert_close(gradient.buffers["a"], double(1.0, 4.0), rtol=0, atol=1e-6)
    assert gradient.dot(gradient.buffers, h) / (2.0 * 5.0) == pytest.approx(0.2)  # <g', h> = cosine_low |g| |h|
    assert done.memory["a"].tolist() == [3.0, 4.0] and not done.skip  # the gradient as it was accumulated


@pytest.mark.parametrize("direction", [(-3.0, 4.0), (0.0, 4.0), (0.5, 4.0)])
def test_gac_leaves_a_gradient_that_does_not_repeat_the_one_before(direction: tuple[float, float]) -> None:
    gradient = FakeGradient(a=double(*direction))
    done = gac().control(gradient, {"a": double(2.0, 0.0)}, StepTerms([]))
    assert done.values["gac_removed"] == 0.0 and gradient.buffers["a"].tolist() == list(direction)


def test_gac_skips_beyond_its_upper_threshold_and_has_nothing_to_compare_at_first() -> None:
    aligned = FakeGradient(a=double(1.0, 0.1))
    assert gac(cosine_high=0.9).control(aligned, {"a": double(1.0, 0.0)}, StepTerms([])).skip
    first = gac().control(FakeGradient(a=double(1.0)), {}, StepTerms([]))
    assert math.isnan(first.values["gac_cosine"]) and first.values["gac_removed"] == 0.0
    flat = gac().control(FakeGradient(a=double(1.0)), {"a": double(0.0)}, StepTerms([]))
    assert math.isnan(flat.values["gac_cosine"]) and not flat.skip


@pytest.mark.parametrize("name", ["cispo", "icepop", "m2po"])
@pytest.mark.parametrize("denominator", ["rollout", "rollout_weights"])
def test_parts_work_with_the_denominators_that_they_allow(name: str, denominator: str) -> None:
    method = dataclasses.replace(METHODS[name], denominator=denominator)
    if name == "icepop":
        with pytest.raises(ValueError, match=r"icepop already corrects .* use 'proximal'"):
            method.check(steps_per_rollout=1)
        return
    method.check(steps_per_rollout=1)
    case, of = example(3), recipe(method, objective_settings(**PLAIN))
    trainer = case.trainer.clone().requires_grad_()
    objective(of, trainer, None, case.tokens, statistics_of(of, [case]))[0].backward()
    assert trainer.grad is not None and torch.isfinite(trainer.grad).all() and (trainer.grad != 0).any()


def test_sat_contracts_the_limits_of_any_clip() -> None:
    """SAT on M2PO's limits: what is not gated is M2PO's gradient, what is gated has limits within them (Prop. 4.1, i)."""
    from pipeline.objective.parts.sat import Sat

    both = Method("SAT on M2PO", "token", "rollout", (M2po, Sat))
    case = dataclasses.replace(example(4), tokens=dataclasses.replace(example(4).tokens, reference_logprobs=None))
    found = {}
    for name, method in (("m2po", METHODS["m2po"]), ("both", both)):
        of = recipe(method, objective_settings(**PLAIN, sat={"quantile_alpha": 0.5}))
        trainer = case.trainer.clone().requires_grad_()
        statistics = statistics_of(of, [case])
        objective(of, trainer, None, case.tokens, statistics)[0].backward()
        found[name] = trainer.grad, statistics
    gated = (case.trainer - case.tokens.rollout_logprobs).abs() > found["both"][1]["sat"]
    changed = found["m2po"][0] != found["both"][0]
    assert changed.any() and not (changed & ~gated).any() and (found["both"][0][changed] == 0.0).all()
