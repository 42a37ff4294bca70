"""Qwen3-MoE in plain PyTorch, built to train short sequences fast on a CPU.

RMSNorm, rotary positions, grouped-query attention with normalised queries and keys, SwiGLU experts chosen by a softmax router whose
top-k gates are renormalised, optionally dense layers, an untied head. Every token-wise operation runs on the packed tokens of a
PackedBatch, attention on buckets of similar length, experts on their own tokens only, the head on response positions only.
A sequence's result does not depend on what it is packed with.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.policy.kernels import attend, mix_experts, normalize_rotate, rms_normalize, select_rows
from pipeline.policy.packing import PackedBatch
from pipeline.sections import ModelSettings

EntropyMode = Literal["none", "detached", "differentiable"]


@dataclass
class RouterTrace:
    """Filled by a forward pass that is given one: per layer with experts, in order,

    chosen: the experts used, int64 [total, k].
    balance_losses: num_experts * sum_e (share of assignments to e) * (mean router probability of e); 1 when perfectly balanced.
    """

    chosen: list[Tensor] = field(default_factory=list)
    balance_losses: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True)
class ResponseScores:
    """logprobs: [N], of each response token after temperature.  entropy: [N] in nats of the same distributions, or None."""

    logprobs: Tensor
    entropy: Tensor | None


class Policy(nn.Module):
    """The policy of `settings`, with random weights drawn from `generator`."""

    def __init__(self, settings: ModelSettings, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.settings = settings
        hidden = settings.hidden_size
        self.embedding = _weight(generator, settings.vocab_size, hidden, scale=0.5)
        self.layers = nn.ModuleList(Layer(settings, i in settings.dense_layers, generator) for i in range(settings.num_layers))
        self.norm = nn.Parameter(torch.ones(hidden))
        self.head = _weight(generator, settings.vocab_size, hidden, scale=hidden**-0.5)

    def forward(self, batch: PackedBatch, routed_experts: Tensor | None = None, trace: RouterTrace | None = None) -> Tensor:
        """Final normalised hidden states [total, hidden]. routed_experts (R3): replay these experts, as in PackedBatch."""
        return self._final_states(batch, None, routed_experts, trace)

    def response_logprobs(
        self,
        batch: PackedBatch,
        temperature: float,
        routed_experts: Tensor | None = None,
        entropy: EntropyMode = "none",
        trace: RouterTrace | None = None,
    ) -> ResponseScores:
        """Log-prob of every response token under softmax(logits / temperature), response after response."""
        states = self._final_states(batch, batch.scored_rows, routed_experts, trace)
        all_logprobs = functional.linear(states, self.head / temperature).log_softmax(-1)
        logprobs = -functional.nll_loss(all_logprobs, batch.scored_ids, reduction="none")
        if entropy == "none":
            return ResponseScores(logprobs, None)
        of = all_logprobs if entropy == "differentiable" else all_logprobs.detach()
        return ResponseScores(logprobs, -(of.exp() * of).sum(-1))

    def _final_states(
        self, batch: PackedBatch, rows: Tensor | None, routed_experts: Tensor | None, trace: RouterTrace | None
    ) -> Tensor:
        """Final states of `rows` only (all if None): the last layer's experts have nothing to do for the others."""
        cos, sin = self._rotary(batch.positions)
        x = functional.embedding(batch.token_ids, self.embedding)
        for layer, replay in zip(self.layers, self._replays(routed_experts), strict=True):
            assert isinstance(layer, Layer)
            x = layer.attend(x, batch, cos, sin)
            if layer is self.layers[-1] and rows is not None and trace is None:
                x, replay = select_rows(x, rows), None if replay is None else replay[rows]
                rows = None
            x = layer.feed_forward(x, replay, trace)
        states = rms_normalize(x, self.settings.rms_norm_eps) * self.norm
        return states if rows is None else select_rows(states, rows)

    def _replays(self, routed_experts: Tensor | None) -> list[Tensor | None]:
        """The experts to replay in each layer; dense layers have no rows in `routed_experts`."""
        with_experts = [index for index in range(self.settings.num_layers) if index not in self.settings.dense_layers]
        replays: list[Tensor | None] = [None] * self.settings.num_layers
        if routed_experts is not None:
            expected = (len(with_experts), self.settings.num_experts_per_token)
            if routed_experts.shape[1:] != expected:
                raise ValueError(
                    f"routed experts of shape {list(routed_experts.shape)} for a policy with (expert layers, k) = {expected}; "
                    "rollout engine and trainer must run the same model"
                )
            for index, replay in zip(with_experts, routed_experts.unbind(1), strict=True):
                replays[index] = replay
        return replays

    def _rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [total, 1, head_dim] as `normalize_rotate` takes them."""
        half = self.settings.head_dim // 2
        frequencies = self.settings.rope_theta ** -(torch.arange(half, dtype=torch.float32) / half)
        angles = torch.outer(torch.arange(int(positions.max()) + 1, dtype=torch.float32), frequencies)
        tables = torch.stack([angles.cos().repeat(1, 2), torch.cat([-angles.sin(), angles.sin()], dim=1)]).to(self.head.dtype)
        cos, sin = tables.index_select(1, positions).unsqueeze(2).unbind(0)
        return cos, sin


class Layer(nn.Module):
    """One transformer block. Norm weights are multiplied into the projection that follows, the cheaper side.

    qkv: [(query heads + 2 kv heads) * head_dim, hidden], query rows first, then key, then value.  A layer with experts has
    router [experts, hidden], gate_up [experts, 2 * width, hidden] and down [experts, width, hidden]; a dense one has one "expert".
    """

    def __init__(self, settings: ModelSettings, dense: bool, generator: torch.Generator | None) -> None:
        super().__init__()
        self.settings, self.dense = settings, dense
        hidden, width = settings.hidden_size, settings.head_dim
        query_width, kv_width = settings.num_attention_heads * width, settings.num_key_value_heads * width
        self.attention_norm = nn.Parameter(torch.ones(hidden))
        self.qkv = _weight(generator, query_width + 2 * kv_width, hidden, scale=hidden**-0.5)
        self.query_norm = nn.Parameter(torch.ones(width))
        self.key_norm = nn.Parameter(torch.ones(width))
        self.output = _weight(generator, hidden, query_width, scale=0.5 * query_width**-0.5)
        self.feed_forward_norm = nn.Parameter(torch.ones(hidden))
        experts = 1 if dense else settings.num_experts
        inner = settings.dense_intermediate_size if dense else settings.expert_intermediate_size
        if not dense:
            self.router = _weight(generator, experts, hidden, scale=hidden**-0.5)
        self.gate_up = _weight(generator, experts, 2 * inner, hidden, scale=hidden**-0.5)
        self.down = _weight(generator, experts, inner, hidden, scale=0.5 * inner**-0.5)

    def attend(self, x: Tensor, batch: PackedBatch, cos: Tensor, sin: Tensor) -> Tensor:
        """x plus attention, [total, hidden]."""
        s = self.settings
        normalized = rms_normalize(x, s.rms_norm_eps)
        qkv = functional.linear(normalized, self.qkv * self.attention_norm)
        norms = torch.cat([self.query_norm.expand(s.num_attention_heads, -1), self.key_norm.expand(s.num_key_value_heads, -1)])
        qkv = normalize_rotate(qkv, norms, cos, sin, s.rms_norm_eps)
        return torch.addmm(x, attend(qkv, batch.buckets, s.num_attention_heads, s.num_key_value_heads), self.output.t())

    def feed_forward(self, x: Tensor, replay: Tensor | None, trace: RouterTrace | None) -> Tensor:
        """x plus the experts' (or the dense layer's) output, [total, hidden]."""
        normalized = rms_normalize(x, self.settings.rms_norm_eps)
        gate_up = self.gate_up * self.feed_forward_norm
        if self.dense:
            gate, up = functional.linear(normalized, gate_up[0]).chunk(2, -1)
            return torch.addmm(x, functional.silu(gate) * up, self.down[0])
        logits = functional.linear(normalized, self.router * self.feed_forward_norm)
        experts = _choose(logits.detach(), self.settings.num_experts_per_token, replay)
        gates = logits.gather(-1, experts).softmax(-1)  # the softmax over all experts, renormalised over the chosen
        if trace is not None:
            trace.chosen.append(experts)
            trace.balance_losses.append(_balance_loss(logits, experts))
        return x + mix_experts(normalized, gates, experts, gate_up, self.down)


def _choose(logits: Tensor, k: int, replay: Tensor | None) -> Tensor:
    """The k experts of each token, in no order, int64 [total, k]: the replayed ones where given, otherwise the router's top k."""
    if replay is None:
        return _top_k(logits, k)
    own = (replay[:, 0] < 0).nonzero().squeeze(1)
    return replay.index_copy(0, own, _top_k(logits.index_select(0, own), k))


def _top_k(logits: Tensor, k: int) -> Tensor:
    # three times faster than Tensor.topk for a few experts a row
    return torch.from_numpy(np.argpartition(logits.numpy(), -k, axis=1)[:, -k:].copy())


def _balance_loss(logits: Tensor, experts: Tensor) -> Tensor:
    num_experts = logits.shape[1]
    shares = torch.bincount(experts.reshape(-1), minlength=num_experts).to(logits.dtype) / experts.numel()
    return num_experts * (shares * logits.softmax(-1).mean(0)).sum()


def _weight(generator: torch.Generator | None, *shape: int, scale: float) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape, generator=generator) * scale)
