"""Batched autoregressive decoding of a Qwen3-MoE on a CPU: the arithmetic of the `torch` rollout engine.

A code path of its own, on purpose: reduced precision (bfloat16 weights, activations and KV cache), one token at a time against
a static KV cache, finished rows dropped. The mismatch between its log-probs and the trainer's comes from these differences
alone.

Prompts are padded on the left, so that every row writes its next key and value into the same cache column; equal neighbouring
prompts (the responses of a group) are prefilled once. Row counts and cache widths move in coarse steps because every new matrix
shape costs the kernel library a compilation.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.records import Request, Response
from pipeline.rollout.engine import SamplingSettings
from pipeline.rollout.sampling import uniforms
from pipeline.sections import ModelSettings

_CACHE_STEP = 8  # cache columns read by attention grow in steps of this
_ROW_STEP = 32  # rows are dropped in multiples of this
_MASKED = -1e30


@dataclass(frozen=True)
class _Layer:
    """One decoder layer's tensors in the engine's dtype; H hidden, D head dim, E experts, I expert width."""

    input_norm: Tensor  # [H]
    qkv: Tensor  # [(heads + 2 kv_heads) D, H]
    qk_norm: Tensor  # [heads + kv_heads, D]: the two norms' weights, one row per head
    output: Tensor  # [H, heads D]
    mlp_norm: Tensor  # [H]
    router: Tensor | None  # [E, H]; None in a dense layer
    gate_up: Tensor  # [2 E I, H], or [2 I, H] when dense
    down: Tensor  # [H, E I], or [H, I]


class TorchDecoder:
    """Holds one version of the weights and generates responses with it."""

    def __init__(self, model: ModelSettings, dtype: torch.dtype, stop_token_ids: Sequence[int], pad_token_id: int) -> None:
        self.model, self.dtype = model, dtype
        self.stop_token_ids = torch.tensor(list(stop_token_ids))
        self.pad_token_id = pad_token_id
        self.version: int | None = None

    def load(self, version: int, weights: Mapping[str, Tensor]) -> None:
        """Take over the weights of `version`, given under their Hugging Face names."""
        model = self.model

        def tensor(name: str) -> Tensor:
            if name not in weights:
                raise ValueError(f"published version {version} has no tensor {name!r}; it does not fit the model in the settings")
            return weights[name].to(self.dtype)

        self.layers = [self._layer(index, tensor) for index in range(model.num_layers)]
        self.embedding, self.final_norm, self.head = map(
            tensor, ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")
        )
        self.version = version

    def _layer(self, index: int, tensor) -> _Layer:
        model, prefix = self.model, f"model.layers.{index}."
        dense = index in model.dense_layers
        experts = [""] if dense else [f"experts.{expert}." for expert in range(model.num_experts)]
        gate, up, down = (
            [tensor(f"{prefix}mlp.{expert}{part}_proj.weight") for expert in experts] for part in ("gate", "up", "down")
        )
        return _Layer(
            input_norm=tensor(prefix + "input_layernorm.weight"),
            qkv=torch.cat([tensor(f"{prefix}self_attn.{part}_proj.weight") for part in "qkv"]),
            qk_norm=torch.cat(
                [
                    tensor(prefix + "self_attn.q_norm.weight").expand(model.num_attention_heads, -1),
                    tensor(prefix + "self_attn.k_norm.weight").expand(model.num_key_value_heads, -1),
                ]
            ),
            output=tensor(prefix + "self_attn.o_proj.weight"),
            mlp_norm=tensor(prefix + "post_attention_layernorm.weight"),
            router=None if dense else tensor(prefix + "mlp.gate.weight"),
            gate_up=torch.cat(gate + up),
            down=torch.cat(down, dim=1),
        )

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request], sampling: SamplingSettings) -> list[Response]:
        """One response per request. Raises ValueError for a prompt that is empty, too long, or has ids outside the vocabulary."""
        if self.version is None:
            raise ValueError("generate was called before any weights were loaded")
        limits = np.array([self._limit(request, sampling) for request in requests])
        decoding = _Decoding(self, requests, limits, sampling)
        decoding.run()
        return decoding.responses(self.version)

    def _limit(self, request: Request, sampling: SamplingSettings) -> int:
        """Response tokens that fit: one position of the context stays free, as in SGLang."""
        prompt = request.prompt_ids
        if len(prompt) == 0 or prompt.min() < 0 or prompt.max() >= self.model.vocab_size:
            raise ValueError(f"prompt ids {prompt.tolist()} must be non-empty and lie in 0..{self.model.vocab_size - 1}")
        limit = min(sampling.max_response_tokens, sampling.context_length - len(prompt) - 1)
        if limit < 1:
            raise ValueError(
                f"a prompt of {len(prompt)} tokens leaves no room in rollout.context_length {sampling.context_length}; raise it"
            )
        return limit

    # Token-wise arithmetic, shared by prefill ([prompts, columns, H]) and decoding ([rows, 1, H]).

    def norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(hidden, (weight.shape[-1],), weight, self.model.rms_norm_eps)

    def project(self, layer: _Layer, hidden: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Normed and rotated queries, keys, and values: each [..., heads, D]."""
        heads, kv_heads, width = self.model.num_attention_heads, self.model.num_key_value_heads, self.model.head_dim
        qkv = F.linear(self.norm(hidden, layer.input_norm), layer.qkv).unflatten(-1, (heads + 2 * kv_heads, width))
        qk, value = qkv.split([heads + kv_heads, kv_heads], dim=-2)
        qk = F.rms_norm(qk, (width,), None, self.model.rms_norm_eps) * layer.qk_norm
        left, right = qk.chunk(2, dim=-1)
        qk = qk * cos + torch.cat([-right, left], dim=-1) * sin
        query, key = qk.split([heads, kv_heads], dim=-2)
        return query, key, value

    def mlp(self, layer: _Layer, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        """hidden + MLP(hidden), and the chosen experts [..., k] (None in a dense layer)."""
        model, normed = self.model, self.norm(hidden, layer.mlp_norm)
        gate, up = F.linear(normed, layer.gate_up).chunk(2, dim=-1)
        inner = F.silu(gate) * up
        if layer.router is None:
            return hidden + F.linear(inner, layer.down), None
        scores = F.linear(normed, layer.router).float().softmax(-1)
        top, experts = scores.topk(model.num_experts_per_token, dim=-1)
        gates = torch.zeros_like(scores).scatter_(-1, experts, top / top.sum(-1, keepdim=True)).to(self.dtype)
        inner = (inner.unflatten(-1, (model.num_experts, -1)) * gates[..., None]).flatten(-2)
        return hidden + F.linear(inner, layer.down), experts

    def rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [..., 1, D] of the rotary angles at `positions` [...]."""
        half = torch.arange(0, self.model.head_dim, 2).float() / self.model.head_dim
        angles = positions[..., None].float() / self.model.rope_theta**half
        angles = torch.cat([angles, angles], dim=-1)[..., None, :]
        return angles.cos().to(self.dtype), angles.sin().to(self.dtype)


class _Decoding:
    """One generate call: R requests, their caches, and what has been sampled so far."""

    def __init__(self, decoder: TorchDecoder, requests: Sequence[Request], limits: np.ndarray, sampling: SamplingSettings) -> None:
        self.decoder, self.requests, self.sampling = decoder, requests, sampling
        self.limits = torch.from_numpy(limits)
        num_rows, self.max_tokens = len(requests), int(limits.max())
        self.prompt_width = max(len(request.prompt_ids) for request in requests)
        self.uniforms = torch.from_numpy(uniforms([request.key for request in requests], self.max_tokens))
        self.tokens = torch.full((num_rows, self.max_tokens), decoder.pad_token_id)
        self.logprobs = torch.zeros(num_rows, self.max_tokens)
        self.lengths = torch.zeros(num_rows, dtype=torch.long)
        self.stopped = torch.zeros(num_rows, dtype=torch.bool)
        model = decoder.model
        moe_layers = model.num_layers - len(model.dense_layers)
        shape = (num_rows, self.prompt_width + self.max_tokens, moe_layers, model.num_experts_per_token)
        self.experts = torch.zeros(shape, dtype=torch.uint8) if sampling.return_routed_experts else None

    def run(self) -> None:
        hidden = self._prefill()
        self.row_step = max(_ROW_STEP, len(self.rows) // 8)
        for position in range(self.max_tokens):
            sampled = self._sample(hidden, position)
            running = ~self.stopped[self.rows] & (self.limits[self.rows] > position + 1)
            if not running.any():
                return
            sampled = self._drop_finished(running, sampled)
            hidden = self._forward(sampled, self.prompt_width + position)

    def _prefill(self) -> Tensor:
        """Run every distinct prompt once, fill the caches, and return the last hidden state of each row [R, H]."""
        decoder, model = self.decoder, self.decoder.model
        groups = [list(group) for _, group in itertools.groupby(self.requests, key=lambda request: request.prompt_ids.tobytes())]
        repeats = torch.tensor([len(group) for group in groups])
        width = self.prompt_width
        ids = torch.full((len(groups), width), decoder.pad_token_id)
        starts = torch.tensor([width - len(group[0].prompt_ids) for group in groups])
        for row, group in zip(ids, groups, strict=True):
            row[width - len(group[0].prompt_ids) :] = torch.from_numpy(group[0].prompt_ids.astype(np.int64))
        columns = torch.arange(width)
        cos, sin = decoder.rotary((columns - starts[:, None]).clamp_(min=0))
        visible = (columns[:, None] >= columns) & (columns >= starts[:, None, None])
        visible |= torch.eye(width, dtype=torch.bool)  # a padded position sees itself, so that no softmax row is empty
        bias = torch.zeros(len(groups), 1, width, width, dtype=decoder.dtype).masked_fill_(~visible[:, None], _MASKED)

        self.rows = torch.arange(len(self.requests))
        self.starts = starts.repeat_interleave(repeats)
        cache_shape = (len(self.requests), model.num_key_value_heads, width + self.max_tokens, model.head_dim)
        self.keys = [torch.zeros(cache_shape, dtype=decoder.dtype) for _ in decoder.layers]
        self.values = [torch.zeros(cache_shape, dtype=decoder.dtype) for _ in decoder.layers]
        hidden, moe_layer = F.embedding(ids, decoder.embedding), 0
        for index, layer in enumerate(decoder.layers):
            query, key, value = (part.transpose(1, 2) for part in decoder.project(layer, hidden, cos, sin))
            self.keys[index][:, :, :width] = key.repeat_interleave(repeats, 0)
            self.values[index][:, :, :width] = value.repeat_interleave(repeats, 0)
            attended = F.scaled_dot_product_attention(query, key, value, attn_mask=bias, enable_gqa=True)
            hidden = hidden + F.linear(attended.transpose(1, 2).flatten(2), layer.output)
            hidden, experts = decoder.mlp(layer, hidden)
            if experts is not None:
                if self.experts is not None:
                    self.experts[:, :width, moe_layer] = experts.to(torch.uint8).repeat_interleave(repeats, 0)
                moe_layer += 1
        self.cache_bias = torch.zeros(len(self.requests), 1, 1, width + self.max_tokens)
        self.cache_bias.masked_fill_((torch.arange(width + self.max_tokens) < self.starts[:, None])[:, None, None], _MASKED)
        return hidden[:, -1].repeat_interleave(repeats, 0)

    def _sample(self, hidden: Tensor, position: int) -> Tensor:
        """Sample the token at `position` of every active row by inverting the cumulative distribution; record id and log-prob."""
        decoder = self.decoder
        logits = F.linear(decoder.norm(hidden, decoder.final_norm), decoder.head).float() / self.sampling.temperature
        logprobs = logits.log_softmax(-1)
        cumulative = logprobs.exp().cumsum(-1)
        # The sum of float32 probabilities is not exactly 1; scaling the uniform keeps the last token from taking the residue.
        thresholds = self.uniforms[self.rows, position, None] * cumulative[:, -1:]
        sampled = (cumulative <= thresholds).sum(-1).clamp_(max=decoder.model.vocab_size - 1)
        open_rows = ~self.stopped[self.rows] & (self.limits[self.rows] > position)
        rows = self.rows[open_rows]
        self.tokens[rows, position] = sampled[open_rows]
        self.logprobs[rows, position] = logprobs.gather(-1, sampled[:, None])[open_rows, 0]
        self.lengths[rows] = position + 1
        self.stopped[rows] = torch.isin(sampled[open_rows], decoder.stop_token_ids)
        return sampled

    def _drop_finished(self, running: Tensor, sampled: Tensor) -> Tensor:
        """Shrink the caches once a quarter of the active rows has finished; some finished rows stay to fill the last step."""
        alive = int(running.sum())
        target = -(-alive // self.row_step) * self.row_step
        if target > 0.75 * len(running):
            return sampled
        keep = torch.cat([running.nonzero()[:, 0], (~running).nonzero()[: target - alive, 0]])
        self.rows, self.starts, self.cache_bias = self.rows[keep], self.starts[keep], self.cache_bias[keep]
        self.keys = [cache[keep] for cache in self.keys]
        self.values = [cache[keep] for cache in self.values]
        return sampled[keep]

    def _forward(self, sampled: Tensor, column: int) -> Tensor:
        """Forward the sampled tokens through the model at cache column `column`; returns the hidden state [active rows, H]."""
        decoder, model = self.decoder, self.decoder.model
        group = model.num_attention_heads // model.num_key_value_heads
        cos, sin = decoder.rotary(column - self.starts)
        width = min(-(-(column + 1) // _CACHE_STEP) * _CACHE_STEP, self.cache_bias.shape[-1])
        bias = self.cache_bias[..., :width].clone()
        bias[..., column + 1 :] = _MASKED
        hidden, moe_layer = F.embedding(sampled, decoder.embedding), 0
        for index, layer in enumerate(decoder.layers):
            query, key, value = decoder.project(layer, hidden, cos, sin)
            self.keys[index][:, :, column] = key
            self.values[index][:, :, column] = value
            query = query.unflatten(1, (model.num_key_value_heads, group)) * model.head_dim**-0.5
            scores = torch.matmul(query, self.keys[index][:, :, :width].transpose(-1, -2)).float().add_(bias)
            attended = torch.matmul(scores.softmax(-1).to(decoder.dtype), self.values[index][:, :, :width])
            hidden = hidden + F.linear(attended.flatten(1), layer.output)
            hidden, experts = decoder.mlp(layer, hidden)
            if experts is not None:
                if self.experts is not None:
                    self.experts[self.rows, column, moe_layer] = experts.to(torch.uint8)
                moe_layer += 1
        return hidden

    def responses(self, version: int) -> list[Response]:
        tokens, logprobs = self.tokens.numpy().astype(np.int32), self.logprobs.numpy()
        experts = None if self.experts is None else self.experts.numpy()
        out = []
        for row, (request, length, stopped) in enumerate(
            zip(self.requests, self.lengths.tolist(), self.stopped.tolist(), strict=True)
        ):
            prompt = len(request.prompt_ids)
            first = self.prompt_width - prompt
            out.append(
                Response(
                    prompt_ids=request.prompt_ids,
                    response_ids=tokens[row, :length].copy(),
                    rollout_logprobs=logprobs[row, :length].copy(),
                    policy_version=np.full(length, version, dtype=np.int32),
                    routed_experts=None if experts is None else experts[row, first : first + prompt + length - 1].copy(),
                    finish_reason="stop" if stopped else "length",
                )
            )
        return out
