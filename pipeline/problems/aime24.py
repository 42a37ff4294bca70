"""The 30 problems of AIME 2024 under stable ids, from the copy beside this module or from any published one.

Published copies differ in column names, row order, padding of answers and small corrections of the text. Each row is recognised by
its answer and its text, so that 2024-I-1 is the same problem whatever the copy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.artifacts import sha256
from pipeline.problems.duplicates import jaccard, shingles, skeleton
from pipeline.problems.hub import Files, fetch
from pipeline.problems.sources import json_lines
from pipeline.records import Problem
from pipeline.sections import SourceSettings

SOURCE = "aime24"
COPY = Path(__file__).with_name("aime24.jsonl")
COUNT = 30
IDS = tuple(f"2024-{paper}-{number}" for paper in ("I", "II") for number in range(1, 16))
PROBLEM_COLUMNS = ("problem", "Problem", "prompt", "question")
ANSWER_COLUMNS = ("expected_answer", "answer", "Answer", "solution", "label")
SIMILAR = 0.6  # corrected texts stay above, other problems far below


@dataclass(frozen=True)
class Aime24:
    """problems: in the order of IDS, prompts bare. provenance: for the manifest."""

    problems: tuple[Problem, ...]
    provenance: Mapping[str, object]


def read_aime24(source: SourceSettings | None, record: Path | None = None) -> Aime24:
    """The problems from `source`, or from the copy in this repository. ValueError unless they are the 30, answers 0..999.

    record: as in hub.fetch.
    """
    reference = _problems([(row["id"], row["problem"], row["answer"]) for row in json_lines(COPY)], str(COPY))
    if source is None:
        return Aime24(reference, {"path": COPY.name, "revision": "local", "pinned": True, "sha256": {COPY.name: sha256(COPY)}})
    files = fetch("published.aime24", source, ("data/*.parquet", "*.parquet", "*.jsonl", "test.txt"), record=record)
    rows = [_recognised(problem, answer, reference, files.name) for problem, answer in _rows(files)]
    by_id = {row[0]: row for row in reversed(rows)}  # copies repeat rows; the first one counts
    return Aime24(_problems(list(by_id.values()), files.name), files.provenance())


def _problems(rows: list[tuple[str, str, str]], where: str) -> tuple[Problem, ...]:
    found = {name: Problem(name, SOURCE, problem.strip(), answer) for name, problem, answer in rows}
    missing = [name for name in IDS if name not in found]
    if missing or len(found) != COUNT:
        raise ValueError(f"{where} holds {len(found)} of the {COUNT} problems of AIME 2024; missing: {', '.join(missing)}")
    return tuple(found[name] for name in IDS)


def _recognised(problem: str, answer: str, reference: tuple[Problem, ...], where: str) -> tuple[str, str, str]:
    """(id, problem, answer) of a row of another copy."""
    boxed = re.search(r"\\boxed\{(\d+)\}\s*\$?\.?\s*\Z", answer)
    digits = boxed[1] if boxed else answer.strip()
    if not re.fullmatch(r"\d{1,3}", digits):
        raise ValueError(
            f"{where}: answer {answer!r} of {problem[:60]!r} is not an integer from 0 to 999; the copy is not AIME 2024"
        )
    pieces, digits = shingles(skeleton(problem)), str(int(digits))
    same = [(jaccard(pieces, shingles(skeleton(other.prompt))), other.id) for other in reference if other.answer == digits]
    similarity, name = max(same, default=(0.0, ""))
    if similarity < SIMILAR:
        raise ValueError(
            f"{where}: {problem[:60]!r} with answer {digits} is no problem of AIME 2024; check the path and the revision"
        )
    return name, problem, digits


def _rows(files: Files) -> Iterator[tuple[str, str]]:
    for path in files.paths:
        try:
            rows = pq.read_table(path).to_pylist() if path.suffix == ".parquet" else list(json_lines(path))
        except (pa.ArrowInvalid, OSError) as error:
            raise ValueError(f"{path} cannot be read ({error}); download it again") from error
        for number, row in enumerate(rows):
            problem, answer = (
                next((c for c in columns if row.get(c) is not None), None) for columns in (PROBLEM_COLUMNS, ANSWER_COLUMNS)
            )
            if problem is None or answer is None:
                needed = " and ".join(" or ".join(columns) for columns in (PROBLEM_COLUMNS, ANSWER_COLUMNS))
                raise ValueError(f"{path}: row {number} lacks {needed} (it has {', '.join(row)}); its schema has changed")
            yield str(row[problem]), str(row[answer])
