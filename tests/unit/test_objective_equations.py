"""Every method against an independent implementation written from the equations, loss and gradient, to 1e-12."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from pipeline.objective.loss import objective, staleness
from pipeline.objective.methods import METHODS, Method
from pipeline.objective.trust_region import staleness_quantile
from tests.unit.objective_reference import Example, example, objective_settings, reference_objective

OTHER_DENOMINATORS = {
    f"{name} / rollout weights": dataclasses.replace(METHODS[name], denominator="rollout_weights")
    for name in ("grpo", "gspo", "dppo", "sat-grpo", "sat-gspo")
}


def loss_and_gradient(method: Method, settings, case: Example) -> tuple[float, torch.Tensor]:
    trainer = case.trainer.clone().requires_grad_()
    quantile = staleness_quantile(staleness(method, trainer, case.tokens), 0.9) if method.clip_rule == "sat" else None
    loss, _ = objective(method, settings, trainer, case.entropy, case.tokens, quantile)
    loss.backward()
    return float(loss), trainer.grad


@pytest.mark.parametrize("one_step_per_rollout", [True, False])
@pytest.mark.parametrize("method", [*METHODS.values(), *OTHER_DENOMINATORS.values()], ids=[*METHODS, *OTHER_DENOMINATORS])
def test_loss_and_gradient_follow_the_equations(method: Method, one_step_per_rollout: bool) -> None:
    for seed, aggregation, granularity in ((1, "response_mean", "token"), (2, "token_mean", "sequence")):
        settings = objective_settings(
            eps_low=0.15, eps_high=0.25, dppo_delta=0.02, reference_kl_coefficient=0.1, reference_kl_granularity=granularity
        )
        case = example(seed, aggregation=aggregation)
        if one_step_per_rollout:
            case = dataclasses.replace(case, tokens=dataclasses.replace(case.tokens, proximal_logprobs=None))
        expected_loss, expected_gradient = reference_objective(method, settings, case)
        loss, gradient = loss_and_gradient(method, settings, case)
        assert loss == pytest.approx(expected_loss, abs=1e-12)
        torch.testing.assert_close(gradient, torch.tensor(expected_gradient, dtype=torch.float64), rtol=0, atol=1e-12)


def test_the_examples_reach_every_branch() -> None:
    """Otherwise agreement with the equations would say little: clips on both sides, gates, masks, truncations and limits occur."""
    settings = objective_settings(eps_low=0.15, eps_high=0.25, dppo_delta=0.02)
    case = example(1)
    seen = {}
    for name in ("grpo", "gspo", "dppo", "grpo-tis", "sat-grpo", "sat-gspo"):
        method = METHODS[name]
        quantile = staleness_quantile(staleness(method, case.trainer, case.tokens), 0.9)
        seen[name] = objective(method, settings, case.trainer, case.entropy, case.tokens, quantile)[1]
    for name in ("grpo", "gspo", "sat-grpo", "sat-gspo"):
        clipped = seen[name].clipped
        assert (clipped & (case.tokens.advantages > 0)).any() and (clipped & (case.tokens.advantages < 0)).any(), name
    assert 0 < seen["dppo"].dppo_masked.sum() < len(case.trainer)
    assert 0 < seen["grpo-tis"].tis_truncated.sum() < len(case.trainer)
    assert (seen["sat-grpo"].clipped & ~seen["grpo"].clipped).any()
    assert (seen["grpo"].reference_k3 == 10.0).any()
