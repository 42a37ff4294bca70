"""Differentiable operations of the policy whose backward passes are written out by hand.

Each does in a few cache-sized pieces what a chain of elementwise operations does in many passes over memory: at this model's size
memory traffic, not arithmetic, is what a step costs. All keep the dtype of their input; none supports a second derivative.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import Function, once_differentiable
from torch.nn import functional

from pipeline.policy.packing import Bucket


class _RMSNormalize(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        scale = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        normalized = x * scale
        ctx.save_for_backward(normalized, scale)
        return normalized

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        normalized, scale = ctx.saved_tensors
        return _rms_normalize_backward(grad, normalized, scale), None


def _rms_normalize_backward(grad: Tensor, normalized: Tensor, scale: Tensor) -> Tensor:
    projection = (grad * normalized).mean(-1, keepdim=True)
    return torch.addcmul(grad, normalized, projection, value=-1).mul_(scale)


def rms_normalize(x: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) over the last dimension; the learned weight belongs to the projection that follows."""
    return _RMSNormalize.apply(x, eps)


class _NormalizeRotate(Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
        heads, width = weight.shape
        qk = qkv[:, : heads * width].unflatten(1, (heads, width))
        scale = torch.linalg.vector_norm(qk, dim=-1, keepdim=True).square_().div_(width).add_(eps).rsqrt_()
        normalized = qk * scale
        weighted = normalized * weight
        out = qkv.clone()
        turned = weighted.roll(width // 2, -1).mul_(sin)
        torch.addcmul(turned, weighted, cos, out=out[:, : heads * width].unflatten(1, (heads, width)))
        ctx.save_for_backward(normalized, scale, weight, cos, sin)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        normalized, scale, weight, cos, sin = ctx.saved_tensors
        heads, width = weight.shape
        grad_qkv = grad.clone()
        grad_qk = grad_qkv[:, : heads * width].unflatten(1, (heads, width))
        grad_weighted = (grad_qk * sin).roll(width // 2, -1).addcmul_(grad_qk, cos)
        grad_weight = (grad_weighted * normalized).sum(0)
        grad_qk.copy_(_rms_normalize_backward(grad_weighted.mul_(weight), normalized, scale))
        return grad_qkv, grad_weight, None, None, None


def normalize_rotate(qkv: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    """RMSNorm and rotary embedding of the query and key heads in qkv [tokens, (heads + value heads) * width]; values pass through.

    weight: [heads, width], the norm weight of each query and key head.  cos, sin: [tokens, 1, width], the first half of sin
    negated, so that rotating is x * cos + (x with its halves swapped) * sin.
    """
    return _NormalizeRotate.apply(qkv, weight, cos, sin, eps)


class _Attend(Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, buckets: tuple[Bucket, ...], query_heads: int, kv_heads: int) -> Tensor:
        width = qkv.shape[1] // (query_heads + 2 * kv_heads)
        out = qkv.new_empty(len(qkv), query_heads * width)
        kept: list[Tensor] = []
        for bucket in buckets:
            query, key, value = _split_heads(qkv.index_select(0, bucket.padded_to_row), bucket, query_heads, kv_heads)
            scores = torch.baddbmm(_causal_mask(bucket.length, query), query, key.transpose(1, 2), alpha=width**-0.5)
            weights = scores.softmax(-1)
            mixed = torch.bmm(weights, value).view(bucket.count, query_heads, bucket.length, width).transpose(1, 2)
            out.index_copy_(0, bucket.rows, mixed.reshape(-1, query_heads * width).index_select(0, bucket.row_to_padded))
            kept += [query, key, value, weights]
        ctx.save_for_backward(*kept)
        ctx.buckets, ctx.heads = buckets, (query_heads, kv_heads)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query_heads, kv_heads = ctx.heads
        width = grad.shape[1] // query_heads
        grad_qkv = grad.new_empty(len(grad), (query_heads + 2 * kv_heads) * width)
        for index, bucket in enumerate(ctx.buckets):
            query, key, value, weights = ctx.saved_tensors[4 * index : 4 * index + 4]
            grad_mixed = grad.new_zeros(bucket.count * bucket.length, query_heads * width)
            grad_mixed.index_copy_(0, bucket.row_to_padded, grad.index_select(0, bucket.rows))
            grad_mixed = grad_mixed.view(bucket.count, bucket.length, query_heads, width).transpose(1, 2).reshape(query.shape)
            grad_weights = torch.bmm(grad_mixed, value.transpose(1, 2))
            grad_scores = torch.ops.aten._softmax_backward_data(grad_weights, weights, -1, grad.dtype).mul_(width**-0.5)
            padded = grad.new_empty(bucket.count, bucket.length, query_heads + 2 * kv_heads, width)
            heads = padded.transpose(1, 2)
            heads[:, :query_heads] = torch.bmm(grad_scores, key).view(bucket.count, query_heads, bucket.length, width)
            kv_shape = (bucket.count, kv_heads, bucket.length, width)
            heads[:, query_heads:-kv_heads] = torch.bmm(grad_scores.transpose(1, 2), query).view(kv_shape)
            heads[:, -kv_heads:] = torch.bmm(weights.transpose(1, 2), grad_mixed).view(kv_shape)
            grad_qkv.index_copy_(0, bucket.rows, padded.view(-1, grad_qkv.shape[1]).index_select(0, bucket.row_to_padded))
        return grad_qkv, None, None, None


def _split_heads(padded: Tensor, bucket: Bucket, query_heads: int, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """[count * length, heads * width] -> query [count * kv heads, group * length, width], key and value [.., length, width]."""
    heads = padded.view(bucket.count, bucket.length, query_heads + 2 * kv_heads, -1).transpose(1, 2)
    width = heads.shape[-1]
    query = heads[:, :query_heads].reshape(bucket.count * kv_heads, -1, width)
    key = heads[:, query_heads:-kv_heads].reshape(bucket.count * kv_heads, bucket.length, width)
    value = heads[:, -kv_heads:].reshape(bucket.count * kv_heads, bucket.length, width)
    return query, key, value


def _causal_mask(length: int, query: Tensor) -> Tensor:
    """[group * length, length]: 0 where a query may look, -inf at what comes after it."""
    mask = query.new_full((length, length), float("-inf")).triu_(1)
    return mask.repeat(query.shape[1] // length, 1)


def attend(qkv: Tensor, buckets: tuple[Bucket, ...], query_heads: int, kv_heads: int) -> Tensor:
    """Causal grouped-query attention within each sequence: qkv [tokens, (query + 2 kv heads) * width] -> [tokens, query * width].

    Sequences are padded on the right within buckets of similar length. Causality alone keeps padding from being seen.
    """
    return _Attend.apply(qkv, buckets, query_heads, kv_heads)


class _MixExperts(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gates: Tensor, experts: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        by_expert, position, counts = _sort_assignments(experts, len(gate_up))
        rows_of = (by_expert // experts.shape[1]).split(counts)
        gates_of = gates.reshape(-1).index_select(0, by_expert).split(counts)
        outputs = x.new_empty(len(by_expert), x.shape[1])
        inner_of = []  # [2 * width, tokens of the expert]: transposed, so that both halves are contiguous
        for expert, output in enumerate(outputs.split(counts)):
            inner = torch.mm(gate_up[expert], x.index_select(0, rows_of[expert]).t())
            opened, up = inner.chunk(2)
            torch.mm(functional.silu(opened).mul_(up).mul_(gates_of[expert]).t(), down[expert], out=output)
            inner_of.append(inner)
        ctx.save_for_backward(x, position, gate_up, down, *rows_of, *gates_of, *inner_of)
        return functional.embedding_bag(position, outputs, mode="sum")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, position, gate_up, down, *per_expert = ctx.saved_tensors
        num_experts = len(gate_up)
        rows_of, gates_of, inner_of = (per_expert[i * num_experts : (i + 1) * num_experts] for i in range(3))
        grad_gate_up, grad_down = torch.empty_like(gate_up), torch.empty_like(down)
        grad_inputs = x.new_empty(position.numel(), x.shape[1])
        grad_gates = x.new_empty(position.numel())
        counts = [len(rows) for rows in rows_of]
        for expert, (grad_input, grad_gate) in enumerate(zip(grad_inputs.split(counts), grad_gates.split(counts), strict=True)):
            opened, up = inner_of[expert].chunk(2)
            grad_output = grad.index_select(0, rows_of[expert])
            silu = functional.silu(opened)
            activation = silu * up
            grad_activation = torch.mm(down[expert], grad_output.t())
            torch.sum(grad_activation * activation, 0, out=grad_gate)
            torch.mm(activation.mul_(gates_of[expert]), grad_output, out=grad_down[expert])
            grad_activation.mul_(gates_of[expert])
            grad_inner = torch.empty_like(inner_of[expert])
            grad_opened, grad_up = grad_inner.chunk(2)
            torch.mul(grad_activation, silu, out=grad_up)
            torch.ops.aten.silu_backward.grad_input(grad_activation.mul_(up), opened, grad_input=grad_opened)
            torch.mm(grad_inner, x.index_select(0, rows_of[expert]), out=grad_gate_up[expert])
            torch.mm(grad_inner.t(), gate_up[expert], out=grad_input)
        grad_x = functional.embedding_bag(position, grad_inputs, mode="sum")
        return grad_x, grad_gates.index_select(0, position.view(-1)).view_as(position), None, grad_gate_up, grad_down


def _sort_assignments(experts: Tensor, num_experts: int) -> tuple[Tensor, Tensor, list[int]]:
    """Order the tokens * k (token, choice) pairs by expert.

    Returns the pairs' flat indices in that order, each pair's place in it [tokens, k], and the number of pairs of each expert.
    """
    chosen = experts.numpy().astype(np.uint8).reshape(-1)
    order = torch.from_numpy(np.argsort(chosen, kind="stable"))  # a radix sort for 8-bit keys, ten times faster than torch's
    position = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
    return order, position.view_as(experts), np.bincount(chosen, minlength=num_experts).tolist()


def mix_experts(x: Tensor, gates: Tensor, experts: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Sum over each token's chosen experts of gate * SwiGLU(x), only the chosen ones computed; x [tokens, hidden].

    gates, experts (int64): [tokens, k].  gate_up: [num experts, 2 * width, hidden], gate rows first.
    down: [num experts, width, hidden].
    """
    return _MixExperts.apply(x, gates, experts, gate_up, down)


class _SelectRows(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.count = len(x)
        return x.index_select(0, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (rows,) = ctx.saved_tensors
        return grad.new_zeros(ctx.count, grad.shape[1]).index_copy_(0, rows, grad), None


def select_rows(x: Tensor, rows: Tensor) -> Tensor:
    """x[rows] for distinct rows."""
    return _SelectRows.apply(x, rows)
