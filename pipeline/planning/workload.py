"""What one cell asks of its engines, from its settings alone: batches, responses, publications, evaluations, trainer's passes."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.config import CellSettings
from pipeline.planning.bounds import Bounds
from pipeline.planning.constants import PROMPT_TOKENS, RESPONSE_TOKENS, Constant
from pipeline.rollout.schedule import Schedule


@dataclass(frozen=True)
class PassCounts:
    """Forward passes' worth of work per training token (a backward pass is two), by what asks for it."""

    update: float
    recompute: float
    reference_kl: float
    statistics: float
    proximal: float

    @property
    def total(self) -> float:
        return self.update + self.recompute + self.reference_kl + self.statistics + self.proximal


@dataclass(frozen=True)
class Workload:
    """One cell. flight: rollout batches generated in one call.  evaluated_versions: evaluations that are generated.

    evaluation_responses: of one evaluation.  scoring_responses: of the two checkpoints scored at the end.
    """

    asynchronous: bool
    lag_histogram: dict[int, int]
    batches: int
    steps_per_batch: int
    responses_per_batch: int
    flight: int
    publications: int
    evaluated_versions: int
    evaluation_responses: int
    scoring_responses: int
    response_tokens: Constant
    prompt_tokens: Constant
    max_response_tokens: int
    group_size: int
    micro_batch_tokens: int
    passes: PassCounts
    routing_replay: bool

    @property
    def responses(self) -> int:
        return self.batches * self.responses_per_batch

    @property
    def tokens(self) -> Bounds:
        """Response tokens that are trained on."""
        return self.responses * self.response_tokens.value


def workload_of(
    cell: CellSettings,
    evaluation_problems: int,
    scoring_problems: int,
    recompute: bool,
    response_tokens: Bounds | None = None,
) -> Workload:
    """The workload of one cell. response_tokens: mean response length where it is known better than the constants say."""
    schedule = Schedule.of(cell)
    kind = "published" if cell.model.path else "tiny"
    length = RESPONSE_TOKENS[kind] if response_tokens is None else Constant(response_tokens, "tokens", "given on the command line")
    if length.value.high > cell.rollout.max_response_tokens:
        raise ValueError(
            f"a mean of {length.value.high:g} response tokens exceeds rollout.max_response_tokens "
            f"{cell.rollout.max_response_tokens}; give a smaller --response-tokens"
        )
    per_batch = cell.rollout.prompts_per_step * cell.rollout.group_size * schedule.steps_per_batch
    versions = {schedule.published_version(batch) for batch in range(schedule.num_batches + 1)}
    tokens_per_step = per_batch / schedule.steps_per_batch * (length.value.low + PROMPT_TOKENS[kind].value.low)
    return Workload(
        asynchronous=schedule.asynchronous,
        lag_histogram=schedule.lag_histogram(),
        batches=schedule.num_batches,
        steps_per_batch=schedule.steps_per_batch,
        responses_per_batch=per_batch,
        flight=max(len(schedule.flight(batch)) for batch in range(schedule.num_batches)),
        publications=len(versions) - 1,
        evaluated_versions=sum(bool(schedule.evaluation_steps(version)) for version in versions),
        evaluation_responses=evaluation_problems * cell.evaluation.num_samples,
        scoring_responses=2 * scoring_problems * cell.evaluation.scoring_samples,
        response_tokens=length,
        prompt_tokens=PROMPT_TOKENS[kind],
        max_response_tokens=cell.rollout.max_response_tokens,
        group_size=cell.rollout.group_size,
        micro_batch_tokens=cell.trainer.micro_batch_tokens,
        passes=passes_of(cell, recompute, several_micro_batches=tokens_per_step > cell.trainer.micro_batch_tokens),
        routing_replay=cell.resolved_method().routing_replay,
    )


def passes_of(cell: CellSettings, recompute: bool, several_micro_batches: bool) -> PassCounts:
    """The trainer's passes: statistics of a whole step need one of their own only where the step has several micro-batches."""
    recipe = cell.recipe()
    statistics = bool(recipe.step_statistics) and several_micro_batches
    several_steps = cell.schedule.optimizer_steps_per_rollout > 1
    constant = ("rollout_weights" in recipe.reads) + ("proximal" in recipe.reads and several_steps)
    return PassCounts(
        update=3.0,
        recompute=float(recompute),
        reference_kl=float(cell.objective.reference_kl_coefficient > 0),
        statistics=float(statistics),
        proximal=float(constant),
    )
