"""Score one published version: k responses per problem by the rollout engine, graded, one row per response."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from pipeline.config import CellSettings
from pipeline.evaluation.rows import SampleRow, sample_row
from pipeline.policy.tokenizer import Tokenizer
from pipeline.records import Problem, Request, SamplingKey
from pipeline.rollout.collector import grade_response
from pipeline.rollout.engine import Generation, RolloutEngine, SamplingSettings, awaited


class Evaluation:
    """A requested evaluation of `version`; `rows()` waits for its responses.

    The engine must hold `version` when this is constructed. purpose: "evaluation" (the curve) or "scoring" (fresh samples at
    the end of a cell); the two never share randomness.
    """

    def __init__(
        self,
        engine: RolloutEngine,
        tokenizer: Tokenizer,
        problems: Sequence[Problem],
        settings: CellSettings,
        version: int,
        purpose: str,
    ) -> None:
        evaluation, rollout = settings.evaluation, settings.rollout
        self.version, self.problems, self.tokenizer = version, problems, tokenizer
        self.num_samples = evaluation.num_samples if purpose == "evaluation" else evaluation.scoring_samples
        temperature = rollout.temperature if evaluation.temperature is None else evaluation.temperature
        sampling = SamplingSettings(temperature, evaluation.max_response_tokens, rollout.context_length)
        requests = []
        for index, problem in enumerate(problems):
            prompt_ids = np.array(tokenizer.encode(problem.prompt), dtype=np.int32)
            for sample in range(self.num_samples):
                requests.append(Request(prompt_ids, SamplingKey(settings.seed, purpose, version, index, sample)))  # type: ignore[arg-type]
        self._future: Future[Generation] = engine.generate(requests, sampling)

    def wait(self, check: Callable[[], None]) -> None:
        """Return once the responses are generated; `check` may end the wait by raising."""
        awaited(self._future, check)

    def rows(self) -> list[SampleRow]:
        """One row per response, in order of problem and sample."""
        rows = []
        for position, response in enumerate(self._future.result().responses):
            problem = self.problems[position // self.num_samples]
            versions = set(response.policy_version.tolist())
            if versions != {self.version}:
                raise ValueError(f"an evaluation of version {self.version} got tokens of versions {sorted(versions)}")
            rows.append(
                sample_row(
                    self.version,
                    problem.id,
                    position % self.num_samples,
                    self.tokenizer.decode(response.response_ids),
                    problem.answer,
                    response.finish_reason,
                    len(response.response_ids),
                )
            )
        return rows

    def examples(self, count: int, rows: Sequence[SampleRow]) -> list[dict[str, Any]]:
        """The first response to each of `count` problems spread over the set, and at most two more on which the grading policies
        differ, as text, for the report; `rows` are those of `rows()`.
        """
        responses = self._future.result().responses
        stride = max(1, len(self.problems) // count)
        chosen = [index * self.num_samples for index in range(0, len(self.problems), stride)[:count]]
        differing = [position for position, row in enumerate(rows) if row.correct != row.correct_strict]
        chosen += [position for position in differing if position not in chosen][:2]
        examples = []
        for position in chosen:
            problem, response = self.problems[position // self.num_samples], responses[position]
            examples.append(
                {
                    "policy_version": self.version,
                    "problem_id": problem.id,
                    "prompt": problem.prompt,
                    "response": self.tokenizer.decode(response.response_ids),
                    "answer": problem.answer,
                    "outcome": grade_response(response, problem, self.tokenizer),
                    "finish_reason": response.finish_reason,
                    "policies_differ": position in differing,
                }
            )
        return examples
