"""One graded response as one row of evals.parquet or scores.parquet, whichever program asked for the response."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.columns import column, values_of_row
from pipeline.grading.equivalence import answer_key
from pipeline.grading.grade import grade_both
from pipeline.records import FinishReason, Outcome


@dataclass(frozen=True)
class SampleRow:
    """What both files say of a response. `correct` decides every score (docs/grading.md)."""

    policy_version: int = column("optimizer steps", "in the weights that wrote the response")
    problem_id: str = column("", "which problem")
    sample: int = column("", "number of the response to the problem, from 0")
    correct: bool = column("", "verdict of policy primemath, with which the paper evaluates")
    correct_strict: bool = column("", "verdict of policy strict on the same text, a second opinion")
    outcome: Outcome = column("", "correct, incorrect, no_answer, timeout or error, by primemath")
    answer: str | None = column("", "what strict found as the answer, in the form that maj@k counts; null for none")
    finish_reason: FinishReason = column("", "stop, length or abort; a response cut off at its limit is graded as cut off")
    length: int = column("tokens", "of the response")

    def flat(self) -> dict[str, Any]:
        return values_of_row(self)


@dataclass(frozen=True)
class EvalRow:
    """A row of evals.parquet: a response of an evaluation during training."""

    sample: SampleRow
    step: int = column("optimizer step", "at which the evaluation is reported, from 0")
    repeated: bool = column("", "whether an earlier row of this version is shown again: a version is generated once")

    def flat(self) -> dict[str, Any]:
        return values_of_row(self) | self.sample.flat()

    @classmethod
    def of(cls, flat: dict[str, Any]) -> EvalRow:
        """The row that `flat` gave."""
        own = {name: flat[name] for name in ("step", "repeated")}
        return cls(SampleRow(**{name: value for name, value in flat.items() if name not in own}), **own)


@dataclass(frozen=True)
class ScoreRow:
    """A row of scores.parquet: a response of the fresh scoring of a finished cell, or of the base policy."""

    sample: SampleRow
    checkpoint: str = column("", "best or last; of the base policy evaluation or scoring")

    def flat(self) -> dict[str, Any]:
        return values_of_row(self) | self.sample.flat()


def sample_row(
    policy_version: int, problem_id: str, sample: int, text: str, answer: str, finish_reason: FinishReason, length: int
) -> SampleRow:
    """The row of response number `sample` to a problem; `text` is the response, `length` its tokens, `answer` the right one."""
    grades = grade_both(text, answer, truncated=finish_reason == "length")
    found = grades["strict"].extracted
    return SampleRow(
        policy_version=policy_version,
        problem_id=problem_id,
        sample=sample,
        correct=grades["primemath"].outcome == "correct",
        correct_strict=grades["strict"].outcome == "correct",
        outcome=grades["primemath"].outcome,
        answer=None if found is None else answer_key(found),
        finish_reason=finish_reason,
        length=length,
    )
