"""Every method against an independent implementation written from the equations, loss and gradient, to 1e-12."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest
import torch

from pipeline.objective.diagnostics import step_diagnostics
from pipeline.objective.loss import objective
from pipeline.objective.methods import METHODS, TABLE_1, Method
from pipeline.objective.terms import TokenTerms
from pipeline.sections import ObjectiveSettings
from tests.unit.objective_reference import (
    CONFIG,
    Example,
    example,
    objective_settings,
    recipe,
    reference_objective,
    statistics_of,
)

PAPERS = {name: METHODS[name] for name in (*TABLE_1, "grpo-uncorrected", "gspo-uncorrected", "grpo-r3-uncorrected")}
OTHER_DENOMINATORS = {
    f"{name} / rollout weights": dataclasses.replace(METHODS[name], denominator="rollout_weights")
    for name in ("grpo", "gspo", "dppo", "sat-grpo", "sat-gspo")
}


def loss_and_gradient(method: Method, settings: ObjectiveSettings, case: Example) -> tuple[float, torch.Tensor]:
    trainer = case.trainer.clone().requires_grad_()
    of = recipe(method, settings)
    loss, _ = objective(of, trainer, case.entropy, case.tokens, statistics_of(of, [case]))
    (gradient,) = torch.autograd.grad(loss, trainer)
    return float(loss.detach()), gradient


@pytest.mark.parametrize("one_step_per_rollout", [True, False])
@pytest.mark.parametrize("method", [*PAPERS.values(), *OTHER_DENOMINATORS.values()], ids=[*PAPERS, *OTHER_DENOMINATORS])
def test_loss_and_gradient_follow_the_equations(method: Method, one_step_per_rollout: bool) -> None:
    for seed, spread, aggregation, granularity in ((4, 0.2, "response_mean", "token"), (2, 0.05, "token_mean", "sequence")):
        settings = objective_settings(
            ppo={"eps_low": 0.15, "eps_high": 0.25},
            dppo={"delta": 0.02},
            reference_kl_coefficient=0.1,
            reference_kl_granularity=granularity,
        )
        case = example(seed, spread, aggregation)
        if one_step_per_rollout:
            case = dataclasses.replace(case, tokens=dataclasses.replace(case.tokens, proximal_logprobs=None))
        expected_loss, expected_gradient = reference_objective(method, settings, case)
        loss, gradient = loss_and_gradient(method, settings, case)
        assert loss == pytest.approx(expected_loss, abs=1e-12)
        torch.testing.assert_close(gradient, torch.tensor(expected_gradient, dtype=torch.float64), rtol=0, atol=1e-12)


def test_the_examples_reach_every_branch() -> None:
    """Otherwise agreement with the equations would say little: clips on both sides, gates, masks, truncations and limits occur."""
    settings = objective_settings(ppo={"eps_low": 0.15, "eps_high": 0.25}, dppo={"delta": 0.02})
    seen: dict[str, list[TokenTerms]] = {name: [] for name in ("grpo", "gspo", "dppo", "grpo-tis", "sat-grpo", "sat-gspo")}
    for case in (example(4, 0.2), example(2, 0.05)):
        for name, terms in seen.items():
            of = recipe(name, settings)
            terms.append(objective(of, case.trainer, case.entropy, case.tokens, statistics_of(of, [case]))[1])
    share = {name: step_diagnostics(terms, recipe(name, settings)) for name, terms in seen.items()}
    for name in ("grpo", "gspo", "sat-grpo", "sat-gspo"):
        assert share[name]["clip_share_low"] > 0 and share[name]["clip_share_high"] > 0, name
    for side in ("clip_share_low", "clip_share_high"):
        assert share["sat-grpo"][side] > share["grpo"][side], side
    assert share["sat-gspo"]["sat_gate_share"] > 0
    assert 0 < share["dppo"]["mask_share"] < 1
    assert 0 < share["grpo-tis"]["tis_truncated_share"] < 1
    assert any((terms.reference_k3 == 10.0).any() for terms in seen["grpo"])


def test_the_rows_of_the_table_are_read_without_torch() -> None:
    program = "import sys, pipeline.objective.methods; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=CONFIG.parent, check=False).returncode == 0
