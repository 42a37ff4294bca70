"""Chunked log-probs and entropy equal log_softmax, with gradients, whatever the chunk."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pipeline.trainer.megatron.scores import Head, response_scores


@pytest.mark.parametrize("temperature", [0.5, 0.95, 1.0, 1.5])
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_scores_and_gradients_equal_log_softmax(chunk: int, temperature: float) -> None:
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(23, 16, generator=generator).requires_grad_()
    weight = torch.randn(50, 16, generator=generator).requires_grad_()
    ids = torch.randint(0, 50, (23,), generator=generator)
    upstream = torch.randn(2, 23, generator=generator)

    logprobs, entropy = response_scores(states, weight, ids, Head(0, temperature, chunk, None))
    found = torch.autograd.grad(torch.stack([logprobs, entropy]), (states, weight), upstream)

    every = (states.double() @ weight.double().t() / temperature).log_softmax(-1)
    expected = every.gather(1, ids[:, None]).squeeze(1), -(every.exp() * every).sum(-1)
    gradients = torch.autograd.grad(torch.stack(expected), (states, weight), upstream.double())
    for value, reference in zip((logprobs, entropy, *found), (*expected, *gradients), strict=True):
        assert value.dtype == torch.float32
        assert (value - reference).abs().max() <= 2e-5 * reference.abs().max()


def test_no_tensor_of_all_logits_exists() -> None:
    """The largest tensor made on the way has `chunk` rows, forward and backward."""
    states, weight = torch.randn(200, 4, requires_grad=True), torch.randn(1000, 4, requires_grad=True)
    sizes: list[int] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            sizes.extend(value.numel() for value in tree_leaves(result) if isinstance(value, torch.Tensor))
            return result

    with Watch():
        logprobs, entropy = response_scores(states, weight, torch.zeros(200, dtype=torch.int64), Head(0, 1.0, 10, None))
        (logprobs.sum() + entropy.sum()).backward()
    assert 0 < max(sizes) <= 10 * 1000
