"""Hand-written backward passes against numerical derivatives, forward passes against plain formulas; all in float64."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn import functional

from pipeline.policy.kernels import attend, mix_experts, normalize_rotate, rms_normalize, select_rows
from pipeline.policy.packing import pack

torch.manual_seed(0)


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def test_rms_normalize() -> None:
    x = random(5, 6)
    assert torch.allclose(rms_normalize(x, 1e-3), functional.rms_norm(x, (6,), eps=1e-3), atol=1e-14)
    assert gradcheck(lambda x: rms_normalize(x, 1e-3), (x,))


def test_normalize_rotate() -> None:
    tokens, heads, width = 3, 2, 4
    qkv, weight = random(tokens, (heads + 1) * width), random(heads, width)
    angles = torch.rand(tokens, 1, width // 2, dtype=torch.float64)
    cos, sin = angles.cos().repeat(1, 1, 2), torch.cat([-angles.sin(), angles.sin()], -1)
    out = normalize_rotate(qkv, weight, cos, sin, 1e-3)
    normalized = functional.rms_norm(qkv[:, : heads * width].view(tokens, heads, width), (width,), eps=1e-3) * weight
    turned = torch.view_as_complex(torch.stack(normalized.chunk(2, -1), -1).contiguous()) * torch.polar(
        torch.ones_like(angles), angles
    )
    assert torch.allclose(out[:, : heads * width].view(tokens, heads, width), torch.cat([turned.real, turned.imag], -1), atol=1e-14)
    assert torch.equal(out[:, heads * width :], qkv[:, heads * width :])
    assert gradcheck(lambda qkv, weight: normalize_rotate(qkv, weight, cos, sin, 1e-3), (qkv, weight))


def test_attend() -> None:
    query_heads, kv_heads, width = 4, 2, 2
    lengths = (3, 1, 4)
    batch = pack([np.zeros(n, np.int32) for n in lengths], [np.zeros(1, np.int32)] * 3)
    qkv = random(sum(lengths) + 3, (query_heads + 2 * kv_heads) * width)
    out = attend(qkv, batch.buckets, query_heads, kv_heads)
    for ours, sequence in zip(out.split([n + 1 for n in lengths]), qkv.split([n + 1 for n in lengths]), strict=True):
        heads = sequence.view(len(sequence), -1, width).transpose(0, 1)
        query, key, value = heads.split([query_heads, kv_heads, kv_heads])
        plain = functional.scaled_dot_product_attention(
            query, key.repeat_interleave(2, 0), value.repeat_interleave(2, 0), is_causal=True
        )
        assert torch.allclose(ours, plain.transpose(0, 1).reshape(len(sequence), -1), atol=1e-14)
    assert gradcheck(lambda qkv: attend(qkv, batch.buckets, query_heads, kv_heads), (qkv,))


def test_mix_experts() -> None:
    num_experts, width, hidden, tokens = 4, 2, 3, 5
    x, gates = random(tokens, hidden), random(tokens, 2)
    gate_up, down = random(num_experts, 2 * width, hidden), random(num_experts, width, hidden)
    experts = torch.tensor([[0, 2], [2, 0], [2, 3], [3, 0], [2, 0]])  # expert 1 has no token
    out = mix_experts(x, gates, experts, gate_up, down)
    for token in range(tokens):
        expected = sum(
            gates[token, choice] * ((functional.silu(gate_up[e, :width] @ x[token]) * (gate_up[e, width:] @ x[token])) @ down[e])
            for choice, e in enumerate(experts[token].tolist())
        )
        assert torch.allclose(out[token], expected, atol=1e-14)
    assert gradcheck(lambda *inputs: mix_experts(inputs[0], inputs[1], experts, *inputs[2:]), (x, gates, gate_up, down))
    out.sum().backward()
    assert gate_up.grad is not None and down.grad is not None
    assert not gate_up.grad[1].any() and not down.grad[1].any()


def test_select_rows() -> None:
    x, rows = random(5, 2), torch.tensor([4, 0, 3])
    assert torch.equal(select_rows(x, rows), x[rows])
    assert gradcheck(lambda x: select_rows(x, rows), (x,))
