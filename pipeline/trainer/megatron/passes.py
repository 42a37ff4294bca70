"""The StepEngine of a rank: forward and backward passes over its micro-batches through Megatron's schedule.

All ranks run the same number of rounds, because experts, tensor parts and pipeline stages exchange tokens in each of them; a rank
that has no micro-batch left takes an empty one. Log-probs exist on the last pipeline stage; elsewhere they are zeros that nothing
reads. Gradients are sums over micro-batches and data ranks: the loss's weights carry the normaliser of the whole step.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, finalize_model_grads
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from torch import Tensor

from pipeline.config import CellSettings
from pipeline.objective.part import Buffers, Gradient
from pipeline.objective.terms import TokenTerms
from pipeline.trainer.megatron.layout import Groups, sections
from pipeline.trainer.megatron.optimizer import PolicyOptimizer
from pipeline.trainer.megatron.replay import Replay
from pipeline.trainer.megatron.scores import Head, response_scores
from pipeline.trainer.megatron.token_row import token_row
from pipeline.trainer.megatron.weights import Weights as ModelWeights
from pipeline.trainer.microbatches import MicroBatch
from pipeline.trainer.step import StepLoss, StepTotals, Weights

Consume = Callable[[MicroBatch, Tensor, Tensor], Tensor | None]


class _Ranks:
    """Processes over all ranks of the trainer."""

    alone = False

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    def sum(self, values: Tensor) -> Tensor:
        total = values.clone()
        dist.all_reduce(total, group=self._group)
        return total


class Passes:
    """frozen: the other weights by their kind, in host memory.  beat: called after every round, to say that this rank is alive."""

    def __init__(
        self,
        settings: CellSettings,
        groups: Groups,
        model: DistributedDataParallel,
        optimizer: PolicyOptimizer,
        weights: ModelWeights,
        replay: Replay | None,
        beat: Callable[[], None],
    ) -> None:
        self.settings, self.groups, self.model, self.optimizer = settings, groups, model, optimizer
        self.weights, self.replay, self.beat = weights, replay, beat
        self.frozen: dict[Weights, Mapping[str, Tensor]] = {}
        self.processes, self.memory = _Ranks(groups.control), dict[str, Buffers]()
        model.config.finalize_model_grads_func = _finalize
        rows = settings.model.vocab_size // groups.layout.tensor_size
        self._head = Head(
            first_id=groups.layout.tensor_rank * rows,
            temperature=settings.rollout.temperature,
            chunk=sections(settings)[0].logprob_chunk_tokens,
            group=parallel_state.get_tensor_model_parallel_group(),
        )

    def logprobs(self, micros: Sequence[MicroBatch], weights: Weights, replay: bool) -> list[Tensor]:
        found: list[Tensor] = []

        def keep(_: MicroBatch, logprobs: Tensor, entropy: Tensor) -> None:
            found.append(logprobs)

        lending: AbstractContextManager[Any] = nullcontext()
        if weights != "policy":
            lending = self.weights.lent_to(self.frozen[weights])
        with lending, torch.no_grad():
            self._run(micros, keep, replay, forward_only=True)
        if self.groups.layout.last_stage:
            return found
        return [torch.zeros_like(micro.tokens.rollout_logprobs) for micro in micros]

    def accumulate(self, micros: Sequence[MicroBatch], loss: StepLoss) -> None:
        detached = not self.settings.objective.entropy_coefficient

        def share(micro: MicroBatch, logprobs: Tensor, entropy: Tensor) -> Tensor | None:
            found = loss(micro, logprobs, entropy.detach() if detached else entropy)
            if found is not None:  # the terms of a whole step are gigabytes
                loss.terms[-1] = loss.terms[-1].cpu()
            return found

        self.model.zero_grad_buffer()
        self.optimizer.zero_grad()
        self._run(micros, share, replay=True, forward_only=False)

    def _run(self, micros: Sequence[MicroBatch], consume: Consume, replay: bool, forward_only: bool) -> None:
        remaining = iter(micros)
        replaying = self.replay if replay else None

        def forward(_: Any, model: DistributedDataParallel) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, Tensor, Any]]]:
            row = token_row(next(remaining, None), self.groups.layout.tensor_size, self.groups.device)
            if replaying is not None:
                replaying.feed(row)
            states = model(row.token_ids, row.positions, None, packed_seq_params=row.sequence_parameters)
            self.beat()

            def loss(states: Tensor) -> tuple[Tensor, Tensor, Any]:
                share = None if row.micro is None else self._consume(row.micro, states, consume)
                # a rank without a loss still takes part in the exchanges of the backward pass
                return states.sum() * 0.0 if share is None else share, torch.ones((), dtype=torch.int), None

            return states, loss

        get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=None,
            model=[self.model],
            num_microbatches=self._most(len(micros)),
            seq_length=1,  # pipeline stages exchange the shapes
            micro_batch_size=1,
            forward_only=forward_only,
        )
        if replaying is not None:
            replaying.clear()

    def _consume(self, micro: MicroBatch, states: Tensor, consume: Consume) -> Tensor | None:
        """Scores of the response tokens from the last stage's states [tokens, 1, hidden], each tensor rank holding its part."""
        if self.groups.layout.tensor_size > 1:
            states = gather_from_sequence_parallel_region(states, tensor_parallel_output_grad=True)
        device = self.groups.device
        weight = self.weights.parameters["output_layer.weight"]
        # Float16Module returns float32
        scored = states.squeeze(1).index_select(0, micro.packed.scored_rows.to(device)).to(weight.dtype)
        logprobs, entropy = response_scores(scored, weight, micro.packed.scored_ids.to(device), self._head)
        return consume(micro, logprobs, entropy)

    def contributed(self, values: Tensor) -> Tensor:
        return values.float().cpu() if self.groups.layout.reports else torch.zeros(0)

    def totals(self, loss: StepLoss) -> StepTotals:
        layout = self.groups.layout
        own = layout.reports
        sums = torch.tensor([loss.loss if own else 0.0, float(not loss.finite)], dtype=torch.float64)
        dist.all_reduce(sums, group=self.groups.control)
        terms = loss.terms if own else []
        if layout.data_size > 1 or layout.pipeline_size > 1:  # else rank 0 has them all
            terms = self._gathered(terms)
        return StepTotals(float(sums[0]), terms, finite=float(sums[1]) == 0.0)

    def _gathered(self, terms: list[TokenTerms]) -> list[TokenTerms]:
        """All terms of the step in the order of its micro-batches, which are dealt to data ranks in turn; on rank 0 only.

        A turn at a time: no message is larger than the terms of one micro-batch. terms: empty on ranks that do not report.
        """
        place, gathered = self.groups.layout, list[TokenTerms]()
        for turn in range(self._most(len(terms))):
            own = (place.data_rank, terms[turn]) if turn < len(terms) else None
            received: list[Any] | None = [None] * place.num_ranks if place.rank == 0 else None
            dist.gather_object(own, received, dst=0, group=self.groups.control)
            dealt = [entry for entry in received or () if entry is not None]
            gathered += [terms for _, terms in sorted(dealt, key=lambda entry: entry[0])]
        return gathered

    def gradient(self) -> Gradient:
        return self.optimizer.gradient()

    def clip(self) -> float:
        return self.optimizer.clip()

    def apply(self, learning_rate_scale: float) -> None:
        self.optimizer.apply(learning_rate_scale)

    def _most(self, count: int) -> int:
        most = torch.tensor(count)
        dist.all_reduce(most, dist.ReduceOp.MAX, group=self.groups.control)
        return int(most)


def _finalize(models: list[DistributedDataParallel], _: Tensor | None, **options: Any) -> None:
    """Sum the gradients over ranks; megatron-core would divide them by the number of tokens it is given."""
    finalize_model_grads(models, None, **options)
