"""Some graded responses for the report, each with the trace of both grading policies, disagreements of the two first."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from pipeline.grading.grade import grade_both
from pipeline.objective.methods import method_of
from pipeline.results.frames import column, rows_where
from pipeline.results.runs import Results

OUTCOME_ORDER = ("correct", "incorrect", "no_answer", "timeout", "error")
NUM_EXAMPLES = 8


def examples(results: Results) -> list[dict[str, Any]]:
    """A few graded responses: those the policies differ on, then from several runs in turn, one outcome after the other."""
    pool = [
        {
            "cell": f"{method_of(cell.method).label}, lag {cell.lag}, seed {cell.seed}",
            **example.model_dump(),
            "version": example.policy_version,
        }
        for cell, run in sorted(results.runs.items())
        for example in run.run.examples
    ]
    pool.sort(key=lambda item: OUTCOME_ORDER.index(item["outcome"]) if item["outcome"] in OUTCOME_ORDER else len(OUTCOME_ORDER))
    chosen = [item for item in pool if item["policies_differ"]][: NUM_EXAMPLES // 2]
    by_outcome = [list(group) for _, group in groupby(pool, key=lambda item: item["outcome"])]
    for turn in range(NUM_EXAMPLES):
        for group in by_outcome:
            index = turn * max(1, len(group) // 4)
            if len(chosen) < NUM_EXAMPLES and index < len(group) and group[index] not in chosen:
                chosen.append(group[index])
    return [item | {"traces": traces(item)} for item in chosen]


def traces(item: dict[str, Any]) -> list[dict[str, str]]:
    """What each policy read in the response, by which rule it decided, and how."""
    grades = grade_both(item["response"], item["answer"], truncated=item["finish_reason"] == "length")
    return [
        {
            "policy": name,
            "outcome": grade.outcome.replace("_", " "),
            "extracted": "nothing" if grade.extracted is None else grade.extracted,
            "rule": grade.rule,
        }
        for name, grade in grades.items()
    ]


def disagreements(results: Results) -> str:
    """On how many graded held-out responses the two policies differ; says so where runs did not record it."""
    tables = [run.evaluations for run in results.runs.values()]
    recorded = [table for table in tables if column(table, "correct_strict").notna().all()]
    rows = [rows_where(table, ~column(table, "repeated").to_numpy(dtype=bool)) for table in recorded]
    total = sum(len(table) for table in rows)
    if total == 0:
        return "No run recorded the verdict of the strict policy beside that of primemath."
    differ = sum(int((column(table, "correct") != column(table, "correct_strict")).sum()) for table in rows)
    return (
        f"Policy primemath is the reward and the evaluation, strict is recorded beside it: they differ on {differ:,} of {total:,} "
        f"held-out responses ({differ / total:.2%}), {len(rows)} runs."
    )
