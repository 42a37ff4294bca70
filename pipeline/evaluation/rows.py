"""One graded response as one row of evals.parquet or scores.parquet, whichever program asked for the response."""

from __future__ import annotations

from typing import Any

from pipeline.grading.equivalence import answer_key
from pipeline.grading.grade import grade_both
from pipeline.records import FinishReason


def sample_row(
    policy_version: int, problem_id: str, sample: int, text: str, answer: str, finish_reason: FinishReason, length: int
) -> dict[str, Any]:
    """The row of response number `sample` to a problem; `text` is the response, `length` its tokens.

    `correct` and `outcome` are the verdict of policy primemath, with which the paper evaluates; `correct_strict` is that of policy
    strict on the same text (docs/grading.md says which decides what), and `answer` what that found in it, in the form in which
    answers are counted for maj@k; None for none. A response that ended at the length limit is graded as cut off.
    """
    grades = grade_both(text, answer, truncated=finish_reason == "length")
    return {
        "policy_version": policy_version,
        "problem_id": problem_id,
        "sample": sample,
        "correct": grades["primemath"].outcome == "correct",
        "correct_strict": grades["strict"].outcome == "correct",
        "outcome": grades["primemath"].outcome,
        "answer": None if grades["strict"].extracted is None else answer_key(grades["strict"].extracted),
        "finish_reason": finish_reason,
        "length": length,
    }
