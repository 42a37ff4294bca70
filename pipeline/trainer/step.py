"""One optimizer step, in order, for every trainer: constants -> statistics -> loss -> control -> clip -> Adam.

A StepEngine runs passes over micro-batches and owns gradients and weights; which passes a method needs, what the loss is, when a
step is skipped and what its row says is decided here, once, by asking the parts of the method. A step: (reference and, where the
method reads them, proximal or generating-weights log-probs without gradient) -> for statistics of a step with several micro-batches
a pass without gradient -> forward and backward per micro-batch -> what controls the update -> clip -> Adam.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from pipeline.config import CellSettings
from pipeline.objective.diagnostics import step_diagnostics
from pipeline.objective.loss import detached_scores, objective, statistics_of
from pipeline.objective.part import Buffers, Control, Gradient, Processes, Statistic
from pipeline.objective.ratios import NotANumberError
from pipeline.objective.recipe import Recipe
from pipeline.objective.terms import StepTerms, TokenTerms
from pipeline.trainer.microbatches import MicroBatch
from pipeline.trainer.update import Update

Weights = Literal["policy", "reference", "generating"]
# Where a denominator's log-probs come from, and whether the pass is made with one optimizer step a rollout batch too: then the
# proximal policy is the one being trained, and the loss takes its own log-probs, detached.
_PASSES: dict[str, tuple[Weights, bool]] = {"proximal": ("policy", False), "rollout_weights": ("generating", True)}


class StepLoss:
    """The loss of one optimizer step: call it once for each micro-batch, in order, with the policy's scores.

    loss: the shares so far.  terms: of each micro-batch.  finite: False once a log-prob was not finite; the step is to be skipped.
    statistics: those of the whole step, by part; what is missing each micro-batch takes for itself.
    """

    def __init__(self, recipe: Recipe, statistics: Mapping[str, Tensor]) -> None:
        self.recipe, self.statistics = recipe, statistics
        self.loss, self.terms, self.finite = 0.0, list[TokenTerms](), True

    def __call__(self, micro: MicroBatch, logprobs: Tensor, entropy: Tensor | None) -> Tensor | None:
        """This micro-batch's share of the loss, with gradient; None where a value is not finite."""
        try:
            if torch.isfinite(logprobs).all():
                share, terms = objective(self.recipe, logprobs, entropy, micro.tokens, self._statistics(micro, logprobs))
                self.loss += float(share.detach())
                self.terms.append(terms)
                return share
        except NotANumberError:
            pass
        self.loss, self.finite = math.nan, False
        return None

    def _statistics(self, micro: MicroBatch, logprobs: Tensor) -> Mapping[str, Tensor]:
        own = [part for part in self.recipe.having(Statistic) if part.name not in self.statistics]
        if not own:
            return self.statistics
        return {**self.statistics, **statistics_of(own, [detached_scores(self.recipe.method, logprobs, micro.tokens)])}


@dataclass(frozen=True)
class StepTotals:
    """A StepLoss over all ranks. terms: those of all micro-batches in order, on the rank that writes the row."""

    loss: float
    terms: Sequence[TokenTerms]
    finite: bool


class StepEngine(Protocol):
    """Passes over the micro-batches of this process, which takes part in the step with others or alone.

    memory: what each Control keeps from one step to the next, by the part's name; saved in checkpoints.
    """

    @property
    def processes(self) -> Processes: ...

    memory: dict[str, Buffers]

    def logprobs(self, micros: Sequence[MicroBatch], weights: Weights, replay: bool) -> list[Tensor]:
        """Log-probs of the response tokens [N] of each micro-batch under `weights`, without gradient."""
        ...

    def accumulate(self, micros: Sequence[MicroBatch], loss: StepLoss) -> None:
        """Forward and backward: afterwards the gradient is that of the whole step's loss, unless `loss` was not finite."""
        ...

    def contributed(self, values: Tensor) -> Tensor:
        """The values that this process adds to those of all: none where another process adds the same."""
        ...

    def totals(self, loss: StepLoss) -> StepTotals: ...

    def gradient(self) -> Gradient:
        """The accumulated gradient, before the norm is clipped."""
        ...

    def clip(self) -> float:
        """Clip the gradient to trainer.gradient_clip and return its norm from before."""
        ...

    def apply(self, learning_rate_scale: float) -> None:
        """Update the weights with the clipped gradient, this step's learning rate multiplied by `learning_rate_scale`."""
        ...


def with_constants(
    engine: StepEngine, settings: CellSettings, recipe: Recipe, steps: Sequence[Sequence[MicroBatch]]
) -> list[list[MicroBatch]]:
    """The micro-batches of each optimizer step of a rollout batch, with the log-probs that stay constant over all of them."""
    passes: dict[str, tuple[Weights, bool]] = {}
    if settings.objective.reference_kl_coefficient:
        passes["reference_logprobs"] = "reference", False
    for name, (weights, with_one_step) in _PASSES.items():
        if name in recipe.reads and (with_one_step or len(steps) > 1):
            passes[f"{name}_logprobs"] = weights, True
    micros = [micro for step in steps for micro in step]
    for name, (weights, replay) in passes.items():
        values = engine.logprobs(micros, weights, replay)
        micros = [
            dataclasses.replace(micro, tokens=dataclasses.replace(micro.tokens, **{name: logprobs}))
            for micro, logprobs in zip(micros, values, strict=True)
        ]
    remaining = iter(micros)
    return [[next(remaining) for _ in step] for step in steps]


def optimizer_step(engine: StepEngine, recipe: Recipe, micros: Sequence[MicroBatch], num_micros: int) -> Update:
    """Update the weights with one step and return its row; unless a value is not finite: then the step is skipped and recorded.

    micros: those of this process.  num_micros: those of the step, over all processes.
    """
    nothing = StepTotals(math.nan, [], False)
    try:
        loss = StepLoss(recipe, _step_statistics(engine, recipe, micros, num_micros))
    except NotANumberError:
        return _update(recipe, nothing, math.nan)
    engine.accumulate(micros, loss)
    totals = engine.totals(loss)
    if not totals.finite:
        return _update(recipe, nothing, math.nan)
    control = _controlled(engine, recipe, totals)
    grad_norm = engine.clip()
    if not math.isfinite(totals.loss) or not math.isfinite(grad_norm):
        return _update(recipe, totals, math.nan)
    if control.skip:
        return _update(recipe, totals, grad_norm, control.values, skipped=True)
    engine.apply(control.learning_rate_scale)
    engine.memory |= control.memory
    return _update(recipe, totals, grad_norm, control.values, skipped=False)


@dataclass(frozen=True)
class _StepControl:
    """What all Controls of a step did together."""

    values: Mapping[str, float]
    memory: Mapping[str, Buffers]
    learning_rate_scale: float
    skip: bool


def _controlled(engine: StepEngine, recipe: Recipe, totals: StepTotals) -> _StepControl:
    controls = recipe.having(Control)
    gradient, step = engine.gradient() if controls else None, StepTerms(totals.terms)
    done = {part.name: part.control(gradient, engine.memory.get(part.name, {}), step) for part in controls if gradient is not None}
    return _StepControl(
        values={column: value for controlled in done.values() for column, value in controlled.values.items()},
        memory={name: controlled.memory for name, controlled in done.items()},
        learning_rate_scale=math.prod(controlled.learning_rate_scale for controlled in done.values()),
        skip=any(controlled.skip for controlled in done.values()),
    )


def _update(
    recipe: Recipe, totals: StepTotals, grad_norm: float, values: Mapping[str, float] | None = None, skipped: bool = True
) -> Update:
    """The row of a step. values: what the Controls measured; None: the step was left before them, a number was not finite."""
    diagnostics = step_diagnostics(totals.terms, recipe) | dict(values or {})
    return Update(diagnostics, totals.loss, grad_norm, skipped=skipped, finite=values is not None, train_s=0.0)


def _step_statistics(engine: StepEngine, recipe: Recipe, micros: Sequence[MicroBatch], num_micros: int) -> dict[str, Tensor]:
    """The statistics of the whole optimizer step: one more pass where it has several micro-batches, none where it has one."""
    if not recipe.step_statistics or num_micros == 1:
        return {}
    logprobs = engine.logprobs(micros, "policy", True)
    found: dict[str, Tensor] = {}
    for part in recipe.step_statistics:
        values = [_contributions(part, recipe, values, micro) for micro, values in zip(micros, logprobs, strict=True)]
        own = torch.cat(values) if values else torch.zeros(0)
        contributed = engine.contributed(own)
        if engine.processes.sum(torch.isnan(contributed).sum()):
            raise NotANumberError(f"a value that {part.name} reduces is NaN")
        found[part.name] = part.reduce(contributed, engine.processes).to(own)
    return found


def _contributions(part: Statistic, recipe: Recipe, logprobs: Tensor, micro: MicroBatch) -> Tensor:
    """NaN where a log-prob is NaN, so that all processes learn of it together, before the reduction."""
    try:
        return part.contributions(detached_scores(recipe.method, logprobs, micro.tokens))
    except NotANumberError:
        return torch.full_like(logprobs, math.nan)
