"""R3: the experts that the rollout engine recorded, replayed by this rank's routers through megatron-core's RouterReplay.

Rows are those of this rank's part of the tokens (sequence parallelism) and of its own layers with experts (pipeline stages);
dense layers have none. A sequence's last token was never forwarded by the rollout engine: its row is -1 and the router chooses for
itself, once, also where a layer is computed again in the backward pass. Padding gets distinct experts in turn: a token that names
an expert twice would break the exchange of tokens, and an even spread keeps it cheap. What waits on the device is int16: the rows
of one micro-batch, and where layers are computed again those of the micro-batches in flight.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.moe.router_replay import RouterReplay
from torch import Tensor

from pipeline.sections import ModelSettings
from pipeline.trainer.megatron.layout import RankLayout
from pipeline.trainer.megatron.token_row import TokenRow


class LayerReplay(RouterReplay):
    """One router's replay. A layer that is recomputed takes its rows from the queue that megatron-core keeps for that."""

    def __init__(self, recompute: bool) -> None:
        super().__init__()
        self.recompute = recompute

    def set_target_indices(self, topk_indices: Tensor) -> None:
        """Replay these experts in the next forward pass, and once more, in the order of the calls, where it is recomputed."""
        self.target_topk_idx = topk_indices
        if self.recompute and torch.is_grad_enabled():  # no other pass takes from the queue
            self.replay_backward_list.append(topk_indices)

    def get_replay_topk(
        self,
        scores: Tensor,
        topk: int,
        num_groups: int | None = None,
        group_topk: int | None = None,
        default_compute_topk: Callable[..., tuple[Tensor, Tensor]] | None = None,
    ) -> tuple[Tensor, Tensor]:
        assert default_compute_topk is not None
        if self.target_topk_idx is None:
            return super().get_replay_topk(scores, topk, num_groups, group_topk, default_compute_topk)
        if self.recompute and torch.is_grad_enabled():  # a checkpointed layer runs forward without gradients and again with them
            experts = self.replay_backward_list.pop(0)
        else:
            experts = self.target_topk_idx
            own = (experts[:, 0] < 0).nonzero().squeeze(1)
            # in place: the queue of the backward pass holds the same tensor
            experts[own] = default_compute_topk(scores[own], topk, num_groups, group_topk)[1].to(experts.dtype)
        wide = experts.long()  # what gather and the router's own scatter take
        return scores.gather(1, wide), wide


class Replay:
    """The replays of a model's routers. `feed` before each forward pass, `clear` after all passes of a kind."""

    def __init__(self, policy: torch.nn.Module, model: ModelSettings, layout: RankLayout, recompute: bool) -> None:
        self.model, self.layout = model, layout
        RouterReplay.clear_global_router_replay_instances()  # of other models, and of this one's own replaced here
        routers = [module for module in policy.modules() if isinstance(module, TopKRouter)]
        self.layers = [LayerReplay(recompute) for _ in routers]
        for router, layer in zip(routers, self.layers, strict=True):
            router.router_replay = layer

    def feed(self, row: TokenRow) -> None:
        rows = replay_rows(row, self.model, self.layout).movedim(1, 0).contiguous().to(row.token_ids.device)
        for layer, experts in zip(self.layers, rows.unbind(0), strict=True):
            layer.set_target_indices(experts)

    def clear(self) -> None:
        for layer in self.layers:
            layer.clear_indices()
            layer.clear_router_replay_action()


def replay_rows(row: TokenRow, model: ModelSettings, layout: RankLayout) -> Tensor:
    """Expert ids, int16 [tokens of this rank, its layers with experts, k]; -1 where the router chooses."""
    with_experts = [layer for layer in range(model.num_layers) if layer not in model.dense_layers]
    columns = [position for position, layer in enumerate(with_experts) if layer in layout.layers(model.num_layers)]
    k, count = model.num_experts_per_token, row.total // layout.tensor_size
    first = layout.tensor_rank * count
    padding = (np.arange(count)[:, None] * k + np.arange(k)) % model.num_experts
    rows = np.repeat(padding[:, None].astype(np.int16), len(columns), axis=1)
    start = 0
    for response in () if row.micro is None else row.micro.responses:
        recorded = _recorded(response.routed_experts, len(with_experts), k)
        length = len(recorded) + 1
        begin, end = max(start, first), min(start + length, first + count)
        if begin < end:
            own = recorded[begin - start : end - start, columns]
            rows[begin - first : begin - first + len(own)] = own
            rows[begin - first + len(own) : end - first] = -1
        start += length
    return torch.from_numpy(rows)


def _recorded(experts: Any, num_layers: int, k: int) -> np.ndarray:
    if experts is None:
        raise ValueError("a response came without routed experts; the rollout engine must record them for a method with R3")
    if experts.shape[1:] != (num_layers, k):
        raise ValueError(
            f"routed experts of shape {list(experts.shape[1:])} for a policy with (expert layers, k) = {(num_layers, k)}; "
            "rollout engine and trainer must run the same model"
        )
    return experts
