"""What the evaluations of a cell amount to under any protocol: its evals.parquet and scores.parquet in, lines of text out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.evaluation.protocols import EvaluationProtocol, evaluate_protocol

FILES = {"evals.parquet": "step", "scores.parquet": "checkpoint", "aime24.parquet": "checkpoint"}
COLUMNS = ("policy_version", "problem_id", "sample", "correct", "finish_reason", "outcome")


@dataclass(frozen=True)
class EvaluationSummary:
    """One evaluation: where it stands (`name`: "evals step 19"), its version, and the value of every protocol by either grader.

    strict is empty and disagreements None for rows that do not say what policy strict found. disagreements: responses on which the
    two policies differ.  no_answer, truncated: shares of the responses.
    """

    name: str
    policy_version: int
    num_problems: int
    num_rows: int
    primemath: Mapping[str, Fraction]
    strict: Mapping[str, Fraction]
    disagreements: int | None
    no_answer: Fraction
    truncated: Fraction


def summarise(
    name: str,
    rows: Sequence[Mapping[str, Any]],
    protocols: Sequence[EvaluationProtocol] = (),
    problems: Collection[str] | None = None,
) -> EvaluationSummary:
    """The summary of one evaluation's rows; `problems` are the ids that it must hold, None for those that it holds.

    Without `protocols`: avg@n and pass@n of all n samples, and avg@8 where there are more than 8.
    """
    n = len({row["sample"] for row in rows})
    chosen = protocols or [*(EvaluationProtocol("avg", k) for k in sorted({8, n}) if k <= n), EvaluationProtocol("pass", n)]
    graded_twice = all(row.get("correct_strict") is not None for row in rows)
    values = {
        verdict: {str(protocol): evaluate_protocol(rows, protocol, problems=problems, verdict=verdict) for protocol in chosen}
        for verdict in ("correct", *(["correct_strict"] if graded_twice else []))
    }
    return EvaluationSummary(
        name=name,
        policy_version=rows[0]["policy_version"],
        num_problems=len({row["problem_id"] for row in rows}),
        num_rows=len(rows),
        primemath=values["correct"],
        strict=values.get("correct_strict", {}),
        disagreements=sum(row["correct"] != row["correct_strict"] for row in rows) if graded_twice else None,
        no_answer=Fraction(sum(row["outcome"] == "no_answer" for row in rows), len(rows)),
        truncated=Fraction(sum(row["finish_reason"] == "length" for row in rows), len(rows)),
    )


def summarise_folder(folder: Path, protocols: Sequence[EvaluationProtocol]) -> list[EvaluationSummary]:
    """Summaries of every evaluation in a cell's (or the base policy's) folder; a version reported at several steps comes once."""
    present = {name: key for name, key in FILES.items() if (folder / name).is_file()}
    if not present:
        raise ValueError(f"{folder} holds neither {' nor '.join(FILES)}; give the results folder of a cell or of the base policy")
    summaries = []
    for name, key in present.items():
        try:
            table = pq.read_table(folder / name)
        except (OSError, pa.ArrowInvalid) as error:
            raise ValueError(
                f"{folder / name} is not a readable Parquet file ({error}); delete it and run snakemake again"
            ) from error
        if not table.num_rows:
            raise ValueError(f"{folder / name} holds no responses; delete it and run snakemake again")
        for column in {"correct", "correct_strict"} & set(table.column_names):
            kind = table.schema.field(column).type
            if not (pa.types.is_boolean(kind) or pa.types.is_null(kind)):
                raise ValueError(f"{folder / name}: {column} holds {kind}, not verdicts; delete it and run snakemake again")
        splits = key not in table.column_names  # the base policy's file: a checkpoint column that names two problem sets
        key = "checkpoint" if splits else key
        absent = [column for column in (*COLUMNS, key) if column not in table.column_names]
        if absent:
            raise ValueError(f"{folder / name} lacks the columns {', '.join(absent)}")
        evaluations: dict[Any, list[dict[str, Any]]] = {}
        for row in table.to_pylist():
            if not row.get("repeated"):
                evaluations.setdefault(row[key], []).append(row)
        problems = None if splits else {row["problem_id"] for rows in evaluations.values() for row in rows}
        label = f"{name.partition('.')[0]} {key}"
        summaries += [summarise(f"{label} {value}", rows, protocols, problems) for value, rows in evaluations.items()]
    return summaries


def as_lines(summaries: Sequence[EvaluationSummary]) -> list[str]:
    """A line per evaluation: each protocol in percent (primemath, then strict), disagreements of the two, shares."""
    lines = []
    for summary in summaries:
        values = [
            f"{name} {_percent(value)}" + (f" (strict {_percent(summary.strict[name])})" if summary.strict else "")
            for name, value in summary.primemath.items()
        ]
        differ = "strict not recorded" if summary.disagreements is None else f"the policies differ on {summary.disagreements}"
        lines.append(
            f"{summary.name}, version {summary.policy_version}: {', '.join(values)}; {summary.num_rows} responses to "
            f"{summary.num_problems} problems, {differ}, no answer {_percent(summary.no_answer)}, "
            f"truncated {_percent(summary.truncated)}"
        )
    return lines


def _percent(value: Fraction) -> str:
    return f"{float(100 * value):.2f} %"
