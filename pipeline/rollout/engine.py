"""What the loop asks of a rollout engine. Nothing else knows whether PyTorch on a laptop or SGLang on a node answers.

Calls take effect in the order in which they are made. A generation uses the version loaded before it, and a load waits for the
generations requested before it. That order is the whole contract of batch-wise asynchrony: the caller never waits for a load,
and no response spans two versions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from pipeline.published_weights import PublishedWeights
from pipeline.records import Request, Response

_CHECK_S = 1.0


@dataclass(frozen=True)
class SamplingSettings:
    """How to sample: temperature > 0, at most max_response_tokens per response and context_length tokens with the prompt."""

    temperature: float
    max_response_tokens: int
    context_length: int
    return_routed_experts: bool = False


@dataclass(frozen=True)
class Generation:
    """The answer to one generate call: one response per request, in their order, and the engine's own seconds."""

    responses: tuple[Response, ...]
    seconds: float


class RolloutEngine(Protocol):
    def load(self, published: PublishedWeights) -> None:
        """Use these weights for all later generations."""
        ...

    def generate(self, requests: Sequence[Request], sampling: SamplingSettings) -> Future[Generation]:
        """Generate one response per request with the weights loaded last. The future raises EngineDied if the engine ends."""
        ...

    def close(self) -> None:
        """End the engine's processes; safe to call twice."""
        ...


def awaited(future: Future[Generation], check: Callable[[], None]) -> Generation:
    """The future's result. `check` is called every second while it is waited for, and ends the wait by raising."""
    while future in futures.wait([future], _CHECK_S).not_done:
        check()
    return future.result()
