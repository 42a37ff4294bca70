"""The loss of every method: closed-form gradients, invariance to layout, bit identities, extremes."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from pipeline.objective.diagnostics import columns_of, step_diagnostics
from pipeline.objective.loss import log_ratio, objective
from pipeline.objective.methods import METHODS
from pipeline.objective.ratios import NotANumberError
from pipeline.objective.terms import Tokens
from pipeline.sections import ObjectiveSettings
from tests.unit.objective_reference import (
    LENGTHS,
    RESPONSES,
    Example,
    example,
    members,
    objective_settings,
    recipe,
    statistics_of,
)

CORRECTED = [name for name in METHODS if not name.endswith("uncorrected")]
PLAIN = objective_settings(reference_kl_coefficient=0.0, entropy_coefficient=0.0)


def first_update(case: Example, **changes: object) -> Example:
    """The example as the first optimizer step of its rollout batch, without a reference model."""
    tokens = dataclasses.replace(case.tokens, proximal_logprobs=None, reference_logprobs=None, **changes)
    return dataclasses.replace(case, tokens=tokens)


def staleness(name: str, case: Example) -> Tensor:
    return log_ratio(METHODS[name], case.trainer, case.tokens).abs()


def loss_and_gradient(
    name: str, case: Example, settings: ObjectiveSettings = PLAIN, statistics: dict[str, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    trainer = case.trainer.clone().requires_grad_()
    of = recipe(name, settings)
    loss, _ = objective(of, trainer, case.entropy, case.tokens, statistics or statistics_of(of, [case]))
    loss.backward()
    assert trainer.grad is not None
    return loss.detach(), trainer.grad


def part(case: Example, positions: list[int], responses: list[int]) -> Example:
    """The micro-batch of the tokens at `positions`, which are all those of `responses`."""
    rename = torch.full((case.tokens.num_responses,), -1)
    rename[responses] = torch.arange(len(responses))
    fields = {name: v[positions] for name, v in vars(case.tokens).items() if isinstance(v, Tensor) and name != "response_index"}
    index = rename[case.tokens.response_index[positions]]
    return Example(
        case.trainer[positions], case.entropy[positions], Tokens(response_index=index, num_responses=len(responses), **fields)
    )


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(
    "groups", [[[*range(16)]], [[4], [15, 2, 6], [*range(7, 15), 0, 1, 3, 5]], [[b] for b in range(16)]], ids=["order", "3", "16"]
)
def test_micro_batches_and_token_order_change_nothing(name: str, groups: list[list[int]]) -> None:
    case, of = example(3), recipe(name)
    trainer = case.trainer.clone().requires_grad_()
    statistics = statistics_of(of, [case])
    loss, terms = objective(of, trainer, case.entropy, case.tokens, statistics)
    loss.backward()
    generator, owned = torch.Generator().manual_seed(1), members(case.tokens)
    order = [[i for b in responses for i in owned[b]] for responses in groups]
    order = [[positions[j] for j in torch.randperm(len(positions), generator=generator)] for positions in order]
    parts = [part(case, positions, responses) for positions, responses in zip(order, groups, strict=True)]
    of_parts = statistics_of(of, parts)
    whole, in_parts = ({part: float(value) for part, value in found.items()} for found in (statistics, of_parts))
    assert in_parts == pytest.approx(whole, rel=0, abs=1e-15)
    total, gradient, all_terms = 0.0, torch.zeros_like(case.trainer), []
    for micro, positions in zip(parts, order, strict=True):
        leaf = micro.trainer.clone().requires_grad_()
        share, micro_terms = objective(of, leaf, micro.entropy, micro.tokens, of_parts)
        share.backward()
        total += share.item()
        gradient[positions] = leaf.grad
        all_terms.append(micro_terms)
    assert total == pytest.approx(loss.item(), abs=1e-10)
    torch.testing.assert_close(gradient, trainer.grad, rtol=0, atol=1e-10)
    expected = step_diagnostics([terms], of)
    assert step_diagnostics(all_terms, of) == pytest.approx(expected, abs=1e-10, nan_ok=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sat", ["sat-grpo", "sat-gspo", "sat-grpo-r3", "sat-gspo-r3"])
def test_sat_without_a_contraction_is_its_base_recipe_bit_for_bit(sat: str, dtype: torch.dtype) -> None:
    case = example(4, dtype=dtype)
    largest = staleness(sat, case).max()
    for eps in (0.2, 0.1, 0.03, 0.28):
        settings = objective_settings(ppo={"eps_low": eps, "eps_high": eps})
        base = loss_and_gradient(sat.removeprefix("sat-"), case, settings)
        for quantile in (largest, torch.zeros((), dtype=dtype)):
            loss, gradient = loss_and_gradient(sat, case, settings, {"sat": quantile})
            assert torch.equal(loss, base[0]) and torch.equal(gradient, base[1])


def test_sat_changes_the_gradient_of_gated_tokens_alone() -> None:
    case = first_update(example(2, spread=0.05))
    gated = staleness("sat-grpo", case) > statistics_of(recipe("sat-grpo"), [case])["sat"]
    change = loss_and_gradient("sat-grpo", case)[1] != loss_and_gradient("grpo", case)[1]
    assert change.any() and not (change & ~gated).any()
    assert gated.double().mean() <= 0.1


@pytest.mark.parametrize("name", ["grpo-uncorrected", "gspo-uncorrected", "grpo-r3-uncorrected"])
def test_uncorrected_methods_are_the_plain_policy_gradient(name: str) -> None:
    case = first_update(example(6))
    gradient = loss_and_gradient(name, case)[1]
    torch.testing.assert_close(gradient, -case.tokens.weights * case.tokens.advantages, rtol=0, atol=1e-15)


def test_a_second_optimizer_step_tells_the_uncorrected_granularities_apart() -> None:
    case = example(6)
    assert not torch.allclose(loss_and_gradient("grpo-uncorrected", case)[1], loss_and_gradient("gspo-uncorrected", case)[1])


def test_gspo_is_the_published_gradient() -> None:
    """(1/B) sum of A_b rho_b mean over t of grad log pi, where the clip does not bind (arXiv 2507.18071, Eq. 10)."""
    case = first_update(example(7))
    wide = objective_settings(ppo={"eps_low": 0.99, "eps_high": 50.0}, reference_kl_coefficient=0.0, entropy_coefficient=0.0)
    gradient = loss_and_gradient("gspo", case, wide)[1]
    for positions in members(case.tokens):
        d = case.trainer[positions] - case.tokens.rollout_logprobs[positions]
        expected = -case.tokens.advantages[positions[0]] * d.mean().exp() / (RESPONSES * len(positions))
        torch.testing.assert_close(gradient[positions], expected.expand(len(positions)), rtol=0, atol=1e-15)


def test_tis_with_the_sequence_ratio_scales_a_response_by_its_mean_weight() -> None:
    case = first_update(example(8))
    gradient = loss_and_gradient("gspo-tis", case)[1]
    for positions in members(case.tokens):
        weight = (case.trainer - case.tokens.rollout_logprobs)[positions].exp().clamp(max=2.0)
        expected = -case.tokens.advantages[positions[0]] * weight.mean() / (RESPONSES * len(positions))
        torch.testing.assert_close(gradient[positions], expected.expand(len(positions)), rtol=0, atol=1e-15)


def test_tokens_that_dppo_masks_stay_in_the_denominator() -> None:
    case = first_update(example(9))
    loose, tight = (
        objective_settings(dppo={"delta": delta}, reference_kl_coefficient=0.0, entropy_coefficient=0.0) for delta in (1.0, 1e-3)
    )
    assert torch.equal(loss_and_gradient("dppo", case, loose)[1], loss_and_gradient("grpo", case)[1])
    masked = objective(recipe("dppo", tight), case.trainer, None, case.tokens)[1].parts["dppo"]["masked"]
    kept = loss_and_gradient("grpo", case)[1] * ~masked
    assert masked.any() and torch.equal(loss_and_gradient("dppo", case, tight)[1], kept)


@pytest.mark.parametrize("name", METHODS)
def test_the_loss_follows_the_rollout_logprobs_unless_uncorrected(name: str) -> None:
    case = first_update(example(10, spread=0.02))
    shifted = first_update(case, rollout_logprobs=case.tokens.rollout_logprobs + 0.01)
    changed = loss_and_gradient(name, case)[0] != loss_and_gradient(name, shifted)[0]
    assert changed == (name in CORRECTED)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", METHODS)
def test_extreme_ratios_stay_finite(name: str, dtype: torch.dtype) -> None:
    case = example(11, dtype=dtype)
    sizes = torch.tensor([1e4, -1e4, 50.0, -50.0, 0.0], dtype=dtype)
    trainer = case.tokens.rollout_logprobs + sizes[torch.arange(len(case.trainer)) % 5]
    for proximal in (None, case.tokens.rollout_logprobs):
        extreme = Example(trainer, case.entropy, dataclasses.replace(case.tokens, proximal_logprobs=proximal))
        loss, gradient = loss_and_gradient(name, extreme, objective_settings())
        assert torch.isfinite(loss) and torch.isfinite(gradient).all()
        of = recipe(name, PLAIN)
        terms = objective(of, trainer, case.entropy, extreme.tokens, statistics_of(of, [extreme]))[1]
        values = step_diagnostics([terms], of)
        assert all(math.isfinite(value) or math.isnan(value) for value in values.values())
        assert values["abs_d_max"] == pytest.approx(1e4, rel=1e-4)


@pytest.mark.parametrize("name", METHODS)
def test_nan_in_any_logprob_that_a_method_reads_is_refused(name: str) -> None:
    case = example(12)
    reads = {"rollout_logprobs", "reference_logprobs"} | {f"{denominator}_logprobs" for denominator in METHODS[name].reads}
    for field in reads:
        values = getattr(case.tokens, field).clone()
        values[5] = math.nan
        with pytest.raises(NotANumberError, match=f"NaN for 1 of {sum(LENGTHS)} tokens, first at token 5"):
            tokens = dataclasses.replace(case.tokens, **{field: values})
            objective(recipe(name, PLAIN), case.trainer, None, tokens, dict.fromkeys(("sat", "m2po"), torch.tensor(0.1)))
    trainer = case.trainer.clone()
    trainer[5] = math.nan
    with pytest.raises(NotANumberError, match="trainer_logprobs is NaN"):
        log_ratio(METHODS[name], trainer, case.tokens)


def test_missing_inputs_are_refused_with_a_remedy() -> None:
    case = first_update(example(13), rollout_weights_logprobs=None)
    with pytest.raises(ValueError, match="part sat reads a statistic of the step that was not taken"):
        objective(recipe("sat-grpo", PLAIN), case.trainer, None, case.tokens)
    with pytest.raises(ValueError, match="needs rollout_weights_logprobs"):
        other = dataclasses.replace(METHODS["grpo"], denominator="rollout_weights")
        objective(recipe(other, PLAIN), case.trainer, None, case.tokens)
    with pytest.raises(ValueError, match="no entropy was given"):
        objective(recipe("grpo"), case.trainer, None, case.tokens)
    with pytest.raises(ValueError, match=r"weights has shape \[3\]"):
        dataclasses.replace(case.tokens, weights=case.tokens.weights[:3])
    with pytest.raises(ValueError, match="must be int64"):
        dataclasses.replace(case.tokens, response_index=case.tokens.response_index.int())


def step_of(d: list[float], name: str, quantile: float | None = None) -> dict[str, float]:
    """Diagnostics of two responses (three tokens with A = 1, the rest with A = -1) with these token log-ratios."""
    size = torch.tensor(d, dtype=torch.float64)
    count = len(d)
    tokens = Tokens(
        rollout_logprobs=torch.full((count,), math.log(0.5), dtype=torch.float64),
        advantages=torch.tensor([1.0] * 3 + [-1.0] * (count - 3), dtype=torch.float64),
        response_index=torch.tensor([0] * 3 + [1] * (count - 3)),
        num_responses=2,
        weights=torch.full((count,), 1.0 / count, dtype=torch.float64),
    )
    statistics = {} if quantile is None else {"sat": torch.tensor(quantile, dtype=torch.float64)}
    trainer = tokens.rollout_logprobs + size
    of = recipe(name, PLAIN)
    return step_diagnostics([objective(of, trainer, torch.full_like(size, 0.7), tokens, statistics)[1]], of)


def test_diagnostics_of_a_small_step() -> None:
    d = [0.3, 0.0, -0.1, -0.4, 0.1]
    values = step_of(d, "grpo")
    w = [math.exp(x) for x in d]
    assert set(values) == {column.name for column in columns_of(recipe("grpo"))}
    assert (
        values["mismatch"] == pytest.approx(0.18)
        and values["k1"] == pytest.approx(0.02)
        and values["abs_d_max"] == pytest.approx(0.4)
    )
    assert values["mismatch_response_mean"] == pytest.approx((0.4 / 3 + 0.5 / 2) / 2)
    assert values["k3"] == pytest.approx(sum(math.exp(x) - 1 - x for x in d) / 5)
    assert values["ess"] == pytest.approx(sum(w) ** 2 / (5 * sum(x * x for x in w)))
    assert values["ratio_mean"] == pytest.approx(sum(w) / 5) and values["ratio_max"] == pytest.approx(math.exp(0.3))
    assert values["clip_share_high"] == pytest.approx(0.2) and values["clip_share_low"] == pytest.approx(0.2)
    assert [values[f"abs_d_p{p}"] for p in (50, 90, 99)] == pytest.approx([0.1, 0.4, 0.4])
    assert values["policy_loss"] == pytest.approx(-(1.2 + 1.0 + math.exp(-0.1) - 0.8 - math.exp(0.1)) / 5)
    assert values["entropy"] == pytest.approx(0.7)
    assert math.isnan(values["reference_kl"]) and not any(key.startswith(("sat_", "tis_", "mask_")) for key in values)


def test_diagnostics_of_the_clip_rules_and_the_correction() -> None:
    d = [0.3, 0.0, -0.1, -0.4, 0.1]
    sat = step_of(d, "sat-grpo", quantile=0.1 + 1e-12)
    c_high, c_low = 1 / (1 + 3.0**2), 1 / (1 + 4.0**2)
    assert sat["sat_quantile"] == pytest.approx(0.1) and sat["sat_gate_share"] == pytest.approx(0.4)
    assert sat["sat_min_contraction"] == pytest.approx(c_low)
    assert sat["sat_radius_high"] == pytest.approx(0.2 * (4 + c_high) / 5)
    assert sat["sat_radius_low"] == pytest.approx(0.2 * (4 + c_low) / 5)
    assert step_of(d, "sat-grpo", quantile=0.0)["sat_gate_share"] == 0.0
    assert step_of(d, "dppo")["mask_share"] == pytest.approx(0.4)
    tis = step_of([math.log(3), 0.0, 0.0, math.log(0.5), 0.0], "grpo-tis")
    assert tis["tis_truncated_share"] == pytest.approx(0.2) and tis["tis_weight_mean"] == pytest.approx(5.5 / 5)
    assert tis["ratio_max"] == 1.0 and tis["mismatch"] == pytest.approx((math.log(3) + math.log(2)) / 5)


def test_what_sat_clips_anew_is_what_fixed_limits_would_not() -> None:
    d = [0.3, 0.15, -0.1, -0.4, -0.15]  # A = 1, 1, 1, -1, -1; fixed limits at log 1.2 = 0.18 and log 0.8 = -0.22
    sat = step_of(d, "sat-grpo", quantile=0.1)
    assert sat["sat_newly_clipped_high"] == sat["sat_newly_clipped_low"] == pytest.approx(0.2)
    assert sat["sat_fixed_clip_share_high"] == sat["sat_fixed_clip_share_low"] == pytest.approx(0.2)


@pytest.mark.parametrize("quantile", [0.0, 0.02, 0.1, 0.4])
def test_sat_clips_all_that_fixed_limits_do_and_what_is_new(quantile: float) -> None:
    d = (0.3 * torch.randn(200, generator=torch.Generator().manual_seed(0))).tolist()
    sat, fixed = step_of(d, "sat-grpo", quantile), step_of(d, "grpo")
    for side in ("low", "high"):
        assert sat[f"sat_fixed_clip_share_{side}"] == fixed[f"clip_share_{side}"]
        assert sat[f"clip_share_{side}"] == pytest.approx(fixed[f"clip_share_{side}"] + sat[f"sat_newly_clipped_{side}"])


def test_a_step_without_tokens_is_recorded_as_nan() -> None:
    of = recipe("sat-gspo-r3")
    values = step_diagnostics([], of)
    assert set(values) == {column.name for column in columns_of(of)} and all(math.isnan(value) for value in values.values())
