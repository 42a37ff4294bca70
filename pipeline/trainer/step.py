"""What one optimizer step computes and in which order, for every trainer: constants -> quantile -> loss -> clip -> Adam.

A StepEngine runs passes over micro-batches and owns gradients and weights; which passes a method needs, what the loss is, when a
step is skipped and what its row says is decided here, once. A step: (reference and, where the method needs them, proximal or
generating-weights log-probs without gradient) -> for SAT with several micro-batches the step-wide quantile from a pass without
gradient -> forward and backward per micro-batch -> clip -> Adam.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from pipeline.config import CellSettings
from pipeline.objective.diagnostics import step_diagnostics
from pipeline.objective.loss import TokenTerms, objective, staleness
from pipeline.objective.methods import Method
from pipeline.objective.ratios import NotANumberError
from pipeline.objective.trust_region import staleness_quantile
from pipeline.trainer.microbatches import MicroBatch

Weights = Literal["policy", "reference", "generating"]


class StepLoss:
    """The loss of one optimizer step: call it once for each micro-batch, in order, with the policy's scores.

    loss: the shares so far.  terms: of each micro-batch.  finite: False once a log-prob was not finite; the step is to be skipped.
    quantile: SAT's q of the whole step; None: each micro-batch takes its own.
    """

    def __init__(self, settings: CellSettings, quantile: Tensor | None) -> None:
        self.settings, self.method, self.quantile = settings.objective, settings.resolved_method(), quantile
        self.loss, self.terms, self.finite = 0.0, list[TokenTerms](), True

    def __call__(self, micro: MicroBatch, logprobs: Tensor, entropy: Tensor | None) -> Tensor | None:
        """This micro-batch's share of the loss, with gradient; None where a value is not finite."""
        try:
            if torch.isfinite(logprobs).all():
                share, terms = self._share(micro, logprobs, entropy)
                self.loss += float(share.detach())
                self.terms.append(terms)
                return share
        except NotANumberError:
            pass
        self.loss, self.finite = math.nan, False
        return None

    def _share(self, micro: MicroBatch, logprobs: Tensor, entropy: Tensor | None) -> tuple[Tensor, TokenTerms]:
        quantile = self.quantile
        if self.method.clip_rule == "sat" and quantile is None:
            assert self.settings.quantile_alpha is not None  # CellSettings refuses a SAT cell without it
            quantile = staleness_quantile(staleness(self.method, logprobs, micro.tokens), self.settings.quantile_alpha)
        return objective(self.method, self.settings, logprobs, entropy, micro.tokens, quantile)


@dataclass(frozen=True)
class StepTotals:
    """A StepLoss over all ranks. terms: those of all micro-batches in order, on the rank that writes the row."""

    loss: float
    terms: Sequence[TokenTerms]
    finite: bool


class StepEngine(Protocol):
    """Passes over the micro-batches of this process, which takes part in the step with others or alone."""

    def logprobs(self, micros: Sequence[MicroBatch], weights: Weights, replay: bool) -> list[Tensor]:
        """Log-probs of the response tokens [N] of each micro-batch under `weights`, without gradient."""
        ...

    def accumulate(self, micros: Sequence[MicroBatch], loss: StepLoss) -> None:
        """Forward and backward: afterwards the gradient is that of the whole step's loss, unless `loss` was not finite."""
        ...

    def quantile(self, values: Tensor, alpha: float) -> Tensor:
        """staleness_quantile of the values of all processes together. Raises NotANumberError where one is NaN."""
        ...

    def totals(self, loss: StepLoss) -> StepTotals: ...

    def clip(self) -> float:
        """Clip the gradient to trainer.gradient_clip and return its norm from before."""
        ...

    def apply(self) -> None:
        """Update the weights with the clipped gradient."""
        ...


def with_constants(
    engine: StepEngine, settings: CellSettings, method: Method, steps: Sequence[Sequence[MicroBatch]]
) -> list[list[MicroBatch]]:
    """The micro-batches of each optimizer step of a rollout batch, with the log-probs that stay constant over all of them."""
    passes: dict[str, tuple[Weights, bool]] = {}
    if settings.objective.reference_kl_coefficient:
        passes["reference_logprobs"] = "reference", False
    # With one step per rollout the proximal policy is the one being trained: the loss takes its own log-probs, detached.
    if len(steps) > 1 and method.denominator == "proximal":
        passes["proximal_logprobs"] = "policy", True
    if method.denominator == "rollout_weights":
        passes["rollout_weights_logprobs"] = "generating", True
    micros = [micro for step in steps for micro in step]
    for name, (weights, replay) in passes.items():
        values = engine.logprobs(micros, weights, replay)
        micros = [
            dataclasses.replace(micro, tokens=dataclasses.replace(micro.tokens, **{name: logprobs}))
            for micro, logprobs in zip(micros, values, strict=True)
        ]
    remaining = iter(micros)
    return [[next(remaining) for _ in step] for step in steps]


def optimizer_step(
    engine: StepEngine, settings: CellSettings, method: Method, micros: Sequence[MicroBatch], num_micros: int
) -> dict[str, Any]:
    """Update the weights with one step and return its row; unless a value is not finite: then the step is skipped and recorded.

    micros: those of this process.  num_micros: those of the step, over all processes.
    """
    try:
        loss = StepLoss(settings, _step_quantile(engine, settings, method, micros, num_micros))
    except NotANumberError:
        return _row(settings, StepTotals(math.nan, [], False), math.nan, skipped=True)
    engine.accumulate(micros, loss)
    totals = engine.totals(loss)
    if not totals.finite:
        return _row(settings, StepTotals(math.nan, [], False), math.nan, skipped=True)
    grad_norm = engine.clip()
    if not math.isfinite(totals.loss) or not math.isfinite(grad_norm):
        return _row(settings, totals, math.nan, skipped=True)
    engine.apply()
    return _row(settings, totals, grad_norm, skipped=False)


def _row(settings: CellSettings, totals: StepTotals, grad_norm: float, skipped: bool) -> dict[str, Any]:
    diagnostics = step_diagnostics(totals.terms, settings.objective)
    return {"loss": totals.loss, "grad_norm": grad_norm, "skipped": skipped, "finite": not skipped, **diagnostics}


def _step_quantile(
    engine: StepEngine, settings: CellSettings, method: Method, micros: Sequence[MicroBatch], num_micros: int
) -> Tensor | None:
    """q over the whole optimizer step: one more pass where it has several micro-batches, none where it has one."""
    options = settings.objective
    if method.clip_rule != "sat" or num_micros == 1 or options.quantile_scope == "microbatch":
        return None
    assert options.quantile_alpha is not None  # CellSettings refuses a SAT cell without it
    logprobs = engine.logprobs(micros, "policy", True)
    values = [_staleness(method, values, micro) for micro, values in zip(micros, logprobs, strict=True)]
    return engine.quantile(torch.cat(values) if values else torch.zeros(0), options.quantile_alpha)


def _staleness(method: Method, logprobs: Tensor, micro: MicroBatch) -> Tensor:
    """NaN throughout where a log-prob is NaN, so that all processes learn of it together, in `quantile`."""
    try:
        return staleness(method, logprobs, micro.tokens)
    except NotANumberError:
        return torch.full_like(logprobs, math.nan)
