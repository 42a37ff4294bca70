"""What crosses the arrows of the pipeline: Problem -> Request -> Response -> Sample -> RolloutBatch.

Token ids, log-probs, policy versions and expert ids travel from the engine that produced them to the loss unchanged; nothing on the
way re-tokenises or recomputes them. Constructors check the lengths that later code relies on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

FinishReason = Literal["stop", "length", "abort"]
Outcome = Literal["correct", "incorrect", "no_answer", "timeout", "error"]


@dataclass(frozen=True)
class Problem:
    """A question with a checkable answer: Problem("lin-17", "arithmetic", "3x+4=19?", "5")."""

    id: str
    source: str
    prompt: str
    answer: str


@dataclass(frozen=True)
class SamplingKey:
    """Names one response for the random generator: (seed, purpose, draw, problem, sample).

    `draw` is the rollout batch index for training and the policy version for an evaluation, so that no response depends on what was
    generated beside it or before it. Example: SamplingKey(seed=0, purpose="train", draw=7, problem=12, sample=3).
    """

    seed: int
    purpose: Literal["train", "evaluation", "scoring"]
    draw: int
    problem: int
    sample: int


@dataclass(frozen=True)
class Request:
    """One response to generate: the prompt's token ids (int32 [P]) and the key of its randomness."""

    prompt_ids: NDArray[np.int32]
    key: SamplingKey


@dataclass(frozen=True)
class Response:
    """What a rollout engine says about one generated response of T tokens to a prompt of P tokens.

    response_ids: int32 [T], the stop token included.  rollout_logprobs: float32 [T], log-probability of each response token under
    the distribution that was really sampled, after temperature.  policy_version: int32 [T], stamped by the engine: the number of
    optimizer steps in the weights that sampled the token.  routed_experts: uint8 [P + T - 1, layers, k] or None; row i holds the
    experts of token i, the last sampled token is never forwarded.  finish_reason: stop | length | abort.
    """

    prompt_ids: NDArray[np.int32]
    response_ids: NDArray[np.int32]
    rollout_logprobs: NDArray[np.float32]
    policy_version: NDArray[np.int32]
    routed_experts: NDArray[np.uint8] | None
    finish_reason: FinishReason

    def __post_init__(self) -> None:
        tokens = len(self.response_ids)
        if tokens == 0:
            raise ValueError("a response needs at least one token; the engine returned none")
        if len(self.rollout_logprobs) != tokens or len(self.policy_version) != tokens:
            raise ValueError(
                f"a response of {tokens} tokens came with {len(self.rollout_logprobs)} log-probs and "
                f"{len(self.policy_version)} policy versions; the three must have one entry per token"
            )
        if self.rollout_logprobs.dtype != np.float32:
            raise ValueError(f"rollout_logprobs must be float32, got {self.rollout_logprobs.dtype}")
        if self.routed_experts is not None and len(self.routed_experts) != len(self.prompt_ids) + tokens - 1:
            raise ValueError(
                f"expected {len(self.prompt_ids) + tokens - 1} rows of routed experts "
                f"(prompt {len(self.prompt_ids)} + response {tokens} - 1), got {len(self.routed_experts)}"
            )


@dataclass(frozen=True)
class Sample:
    """A graded response, ready for the loss: reward in {0, 1} and its group-normalised advantage."""

    problem_id: str
    response: Response
    outcome: Outcome
    reward: float
    advantage: float


@dataclass(frozen=True)
class RolloutBatch:
    """Batch `index` of the run: num_groups x group_size samples, group after group, all responses of a group to one prompt."""

    index: int
    samples: tuple[Sample, ...]
    group_size: int
    generate_s: float

    def parts(self, count: int) -> list[tuple[Sample, ...]]:
        """The batch in `count` equal parts of whole groups, one per optimizer step (the paper's Figure 1 draws 8)."""
        groups, rest = divmod(len(self.samples) // self.group_size, count)
        if rest:
            raise ValueError(f"{len(self.samples) // self.group_size} groups cannot be split into {count} equal optimizer steps")
        size = groups * self.group_size
        return [self.samples[i * size : (i + 1) * size] for i in range(count)]
