"""Problems in, graded rollout batches out: which problems a batch holds, when it is requested, what its responses are worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import lru_cache

import numpy as np
import torch

from pipeline.grading.grade import grade
from pipeline.objective.advantages import group_advantages
from pipeline.policy.tokenizer import Tokenizer
from pipeline.records import Outcome, Problem, Request, Response, RolloutBatch, Sample, SamplingKey
from pipeline.rollout.engine import Generation, RolloutEngine, SamplingSettings, awaited
from pipeline.rollout.sampling import keyed_generator
from pipeline.rollout.schedule import Schedule
from pipeline.sections import RolloutSettings


class ProblemStream:
    """The endless order of training problems: one permutation per epoch, a pure function of (seed, epoch)."""

    def __init__(self, num_problems: int, seed: int) -> None:
        self.num_problems, self.seed = num_problems, seed
        self._permutation = lru_cache(maxsize=2)(self._draw)

    def _draw(self, epoch: int) -> np.ndarray:
        return keyed_generator(self.seed, "order", epoch).permutation(self.num_problems)

    def take(self, start: int, count: int) -> list[int]:
        """Indices of the problems at positions start .. start+count-1."""
        positions = range(start, start + count)
        return [int(self._permutation(p // self.num_problems)[p % self.num_problems]) for p in positions]


class Collector:
    """Requests flights of batches from the engine and hands out each batch once, graded, in order."""

    def __init__(
        self,
        engine: RolloutEngine,
        schedule: Schedule,
        problems: Sequence[Problem],
        tokenizer: Tokenizer,
        settings: RolloutSettings,
        seed: int,
        return_routed_experts: bool,
    ) -> None:
        if not problems:
            raise ValueError("there are no training problems; check results/<preset>/problems/manifest.json for what was dropped")
        self.engine, self.schedule, self.problems, self.tokenizer, self.settings = engine, schedule, problems, tokenizer, settings
        self.seed, self.stream = seed, ProblemStream(len(problems), seed)
        self.sampling = SamplingSettings(
            settings.temperature, settings.max_response_tokens, settings.context_length, return_routed_experts
        )
        self._flights: dict[range, Future[Generation]] = {}

    def submit(self, batch: int) -> None:
        """Request the flight that holds `batch`, unless it is requested already or the run has no such batch."""
        if batch >= self.schedule.num_batches or any(batch in flight for flight in self._flights):
            return
        flight = self.schedule.flight(batch)
        requests = [request for index in flight for request in self._requests(index)]
        self._flights[flight] = self.engine.generate(requests, self.sampling)

    def wait(self, batch: int, check: Callable[[], None]) -> None:
        """Return once the engine has generated `batch`, which must have been submitted; `check` may end the wait by raising."""
        awaited(self._flight_of(batch)[1], check)

    def _flight_of(self, batch: int) -> tuple[range, Future[Generation]]:
        return next((flight, future) for flight, future in self._flights.items() if batch in flight)

    def take(self, batch: int) -> RolloutBatch:
        """`batch`, graded, its rewards normalised within groups. Earlier flights are forgotten.

        Raises ValueError when the engine was asked for routed experts and returned none.
        """
        self._flights = {flight: future for flight, future in self._flights.items() if flight.stop > batch}
        flight, future = self._flight_of(batch)
        generation = future.result()
        size = self._num_prompts * self.settings.group_size
        first = (batch - flight.start) * size
        responses = generation.responses[first : first + size]
        if self.sampling.return_routed_experts and any(response.routed_experts is None for response in responses):
            raise ValueError("routing replay (R3) is on but the engine returned no routed experts")
        problems = [self.problems[index] for index in self._problem_indices(batch) for _ in range(self.settings.group_size)]
        outcomes: list[Outcome] = [grade_response(r, p, self.tokenizer) for r, p in zip(responses, problems, strict=True)]
        rewards = torch.tensor([float(outcome == "correct") for outcome in outcomes])
        advantages = group_advantages(rewards.view(-1, self.settings.group_size)).flatten().tolist()
        graded = zip(problems, responses, outcomes, rewards.tolist(), advantages, strict=True)
        return RolloutBatch(
            index=batch,
            samples=tuple(Sample(p.id, response, outcome, reward, advantage) for p, response, outcome, reward, advantage in graded),
            group_size=self.settings.group_size,
            generate_s=generation.seconds / len(flight),
        )

    @property
    def _num_prompts(self) -> int:
        return self.settings.prompts_per_step * self.schedule.steps_per_batch

    def _problem_indices(self, batch: int) -> list[int]:
        return self.stream.take(batch * self._num_prompts, self._num_prompts)

    def _requests(self, batch: int) -> list[Request]:
        requests = []
        for position, index in enumerate(self._problem_indices(batch)):
            prompt_ids = np.array(self.tokenizer.encode(self.problems[index].prompt), dtype=np.int32)
            for sample in range(self.settings.group_size):
                requests.append(Request(prompt_ids, SamplingKey(self.seed, "train", batch, position, sample)))
        return requests


def grade_response(response: Response, problem: Problem, tokenizer: Tokenizer) -> Outcome:
    """The typed verdict on one response: the same entrance for training rewards and evaluation."""
    text = tokenizer.decode(response.response_ids)
    return grade(text, problem.answer, "primemath", truncated=response.finish_reason == "length").outcome
