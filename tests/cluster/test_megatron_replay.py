"""A router replays the experts that it is fed, once more in order where it is recomputed, and holds no more than that needs."""

from __future__ import annotations

from collections import deque

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pipeline.trainer.megatron.replay import LayerReplay

MICRO_BATCHES, TOKENS, EXPERTS, K = 7, 5, 6, 2


def choose(scores: Tensor, topk: int, *_: object) -> tuple[Tensor, Tensor]:
    values, experts = torch.topk(scores, topk, dim=1)
    return values, experts


class Router:
    """Replays in one layer; `used` holds the experts of every call, in order."""

    def __init__(self, recompute: bool) -> None:
        self.replay, self.used = LayerReplay(recompute), list[Tensor]()

    def __call__(self, scores: Tensor) -> Tensor:
        values, experts = self.replay.get_replay_topk(scores, K, default_compute_topk=choose)
        assert torch.equal(values, scores.gather(1, experts))
        self.used.append(experts)
        return values.sum()

    @property
    def num_held(self) -> int:
        return len({id(held) for held in (self.replay.target_topk_idx, *self.replay.replay_backward_list) if held is not None})


def micro_batches() -> list[tuple[Tensor, Tensor]]:
    """Scores and experts of each; the last token of each has none."""
    generator = torch.Generator().manual_seed(0)
    rows = []
    for _ in range(MICRO_BATCHES):
        scores = torch.randn(TOKENS, EXPERTS, generator=generator, requires_grad=True)
        experts = torch.rand(TOKENS, EXPERTS, generator=generator).argsort(1)[:, :K].to(torch.int16)
        experts[-1] = -1
        rows.append((scores, experts))
    return rows


def expected(scores: Tensor, experts: Tensor) -> Tensor:
    return torch.cat([experts[:-1].long(), choose(scores[-1:], K)[1]])


@pytest.mark.parametrize(("recompute", "gradient"), [(True, False), (False, False), (False, True)])
def test_a_pass_in_which_nothing_is_recomputed_holds_the_experts_of_one_micro_batch(recompute: bool, gradient: bool) -> None:
    router = Router(recompute)
    rows = micro_batches()
    wanted = [expected(scores, experts) for scores, experts in rows]
    with torch.set_grad_enabled(gradient):
        for scores, experts in rows:
            router.replay.set_target_indices(experts)
            router(scores)
            assert router.num_held == 1
    assert all(torch.equal(used, want) for used, want in zip(router.used, wanted, strict=True))


@pytest.mark.parametrize("in_flight", [1, 3])
def test_recomputed_layers_replay_each_micro_batch_twice_and_in_order(in_flight: int) -> None:
    """Backward passes trail the forward ones by `in_flight` micro-batches, as in a pipeline."""
    router = Router(recompute=True)
    rows = micro_batches()
    wanted = [expected(scores, experts) for scores, experts in rows]
    flying: deque[tuple[int, Tensor]] = deque()
    forward, backward = dict[int, Tensor](), dict[int, Tensor]()

    def finish_one() -> None:
        number, total = flying.popleft()
        total.backward()
        backward[number] = router.used[-1]

    for number, (scores, experts) in enumerate(rows):
        router.replay.set_target_indices(experts)
        flying.append((number, checkpoint(router, scores, use_reentrant=True)))  # pyright: ignore
        forward[number] = router.used[-1]
        assert router.num_held <= in_flight
        if len(flying) == in_flight:
            finish_one()
    while flying:
        finish_one()
    assert router.replay.replay_backward_list == [] and len(router.used) == 2 * MICRO_BATCHES
    for number, want in enumerate(wanted):
        assert torch.equal(forward[number], want) and torch.equal(backward[number], want)
        grad = rows[number][0].grad
        assert grad is not None and torch.equal(grad, torch.zeros(TOKENS, EXPERTS).scatter(1, want, 1.0))
