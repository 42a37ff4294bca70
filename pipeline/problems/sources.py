"""Published data sets as distinct (problem, answer) rows: schema checked, rows counted, templates stripped, answers normalised.

Each published form is a row of FORMS. A file is read in batches and made distinct batch by batch, so that the 1,791,700 rows of
DAPO-Math-17k (each prompt about a hundred times) never lie in memory at once; only the distinct rows are normalised.
"""

# pyright: reportAttributeAccessIssue=false
# pyarrow.compute makes its functions when it is imported
from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.problems.hub import Files, fetch
from pipeline.problems.template import strip_templates
from pipeline.sections import SourceSettings

BATCH_ROWS = 65_536
MERGE_ROWS = 200_000  # distinct rows of several batches are merged when they exceed this


@dataclass(frozen=True)
class Form:
    """One published form: which files hold it, and the columns of prompt and answer ("a.b" is field b of the struct column a)."""

    patterns: tuple[str, ...]
    prompt: str
    answer: str


FORMS = {
    "dapo": Form(("data/*.parquet",), "prompt", "reward_model.ground_truth"),  # BytedTsinghua-SIA/DAPO-Math-17k
    "open_r1": Form(("all/*.parquet",), "prompt", "solution"),  # open-r1/DAPO-Math-17k-Processed
    "zhuzilin": Form(("*.jsonl",), "prompt", "label"),  # zhuzilin/dapo-math-17k
    "dolci": Form(("data/*.parquet",), "prompt", "ground_truth"),  # allenai/Dolci-RL-Zero-Math-7B
}


@dataclass(frozen=True)
class Source:
    """One data set. rows: as published. distinct: columns prompt, answer, row (the first of its kind), repeats; in row order."""

    name: str
    files: Files
    rows: int
    distinct: pd.DataFrame


def read_source(name: str, settings: SourceSettings, form: str, record: Path | None = None) -> Source:
    """Read a data set. ValueError names the missing column, the changed type, or the row with an empty prompt or answer.

    record: as in hub.fetch.
    """
    shape = FORMS[form]
    files = fetch(f"published.{name}", settings, shape.patterns, record=record)
    rows, parts = 0, []
    for path in files.paths:
        before = rows
        for batch in _batches(path, shape):
            parts.append(_distinct(_columns(batch, shape, path, rows - before), rows))
            rows += batch.num_rows
            if sum(part.num_rows for part in parts) > MERGE_ROWS:
                parts = [_merge(parts)]
    if not rows:
        raise ValueError(f"{files.name} holds zero rows; download it again")
    merged = _merge(parts).sort_by("row")
    table = pa.table({**{c: merged[c] for c in ("row", "repeats")}, "prompt": strip_templates(merged["prompt"].combine_chunks())})
    distinct = table.to_pandas()
    distinct["answer"] = [normalise_answer(answer) for answer in merged["answer"].to_pylist()]
    for field in ("prompt", "answer"):
        empty = distinct.loc[distinct[field] == "", "row"]
        if len(empty):
            raise ValueError(
                f"{files.name}: row {empty.iloc[0]} has an empty {field} (and {len(empty) - 1} more); correct or remove it"
            )
    return Source(name, files, rows, distinct)


def normalise_answer(answer: str) -> str:
    r"""Outer white space, the brackets of a JSON list of one, and one pair of outer $ removed: ' ["$5$"] ' -> '5'."""
    answer = answer.strip()
    if answer.startswith('["') and answer.endswith('"]'):
        try:
            elements = json.loads(answer)
        except json.JSONDecodeError:  # brackets of the answer itself
            elements = [answer]
        answer = elements[0].strip() if len(elements) == 1 else answer
    if len(answer) > 2 and answer[0] == answer[-1] == "$" and "$" not in answer[1:-1]:
        answer = answer[1:-1].strip()
    return answer


def _batches(path: Path, form: Form) -> Iterator[pa.RecordBatch]:
    """The file in batches, with the columns of `form` alone. ValueError for a damaged file or a missing column."""
    wanted = [form.prompt, form.answer]
    try:
        if path.suffix in (".jsonl", ".json"):
            rows = json_lines(path)
            while chunk := list(islice(rows, BATCH_ROWS)):
                yield _as_batch(chunk, wanted, path)
        else:
            with pq.ParquetFile(path, pre_buffer=False) as file:
                _check_columns(file.schema_arrow, wanted, path)
                yield from file.iter_batches(BATCH_ROWS, columns=wanted)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OSError) as error:
        raise ValueError(f"{path} cannot be read ({error}); download it again") from error


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines, numbers as the text that is written; ValueError names the file and the line.

    A line ends with \\n alone (U+2028 may stand in a text); a byte order mark, \\r and blank lines are passed over.
    """
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                row = json.loads(text or "{}", parse_int=str, parse_float=str)
            except ValueError as error:
                raise ValueError(f"{path}: line {number} is not JSON ({error}); download it again") from error
            if not isinstance(row, dict):
                raise ValueError(f"{path}: line {number} is {text:.40}, not an object with a problem; download it again")
            if text:
                yield row


def _as_batch(rows: list[dict[str, Any]], wanted: list[str], path: Path) -> pa.RecordBatch:
    """The wanted columns of some rows, whose keys may differ."""
    outer = [column.partition(".")[0] for column in wanted]
    batch = pa.RecordBatch.from_pylist([{name: row.get(name) for name in outer} for row in rows])
    present = {name for row in rows for name in row}
    types = {name: batch.schema.field(name).type if name in outer else pa.null() for name in sorted(present)}
    _check_columns(pa.schema(list(types.items())), wanted, path)
    return batch


def _check_columns(schema: pa.Schema, wanted: list[str], path: Path) -> None:
    for column in wanted:
        outer, _, inner = column.partition(".")
        kind = schema.field(outer).type if outer in schema.names else None
        fields = [f.name for f in kind] if kind is not None and pa.types.is_struct(kind) else []
        if kind is None or (inner and inner not in fields):
            has = ", ".join(f"{f.name}: {f.type}" for f in schema)
            raise ValueError(
                f"{path} lacks the column {column} (it has {has}); its schema has changed, or it is another form: "
                f"set the source's form to one of {', '.join(FORMS)}"
            )


def _columns(batch: pa.RecordBatch, form: Form, path: Path, first: int) -> tuple[pa.Array, pa.Array]:
    """Prompt and answer of a batch as strings, whatever their published types; `first`: the number of its first row in the file."""
    prompt = batch.column(form.prompt)
    outer, _, inner = form.answer.partition(".")
    answer = pc.struct_field(batch.column(outer), inner) if inner else batch.column(outer)
    if _is_list(prompt.type):
        prompt = _user_messages(prompt, f"{path}: {form.prompt}", first)
    while _is_list(answer.type):
        answer = _only_element(answer, f"{path}: {form.answer}", first)
    if pa.types.is_integer(answer.type) or pa.types.is_floating(answer.type):
        answer = pa.array([_number_text(number) for number in answer.to_pylist()], pa.string())
    for column, array in ((form.prompt, prompt), (form.answer, answer)):
        if not (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)):
            raise ValueError(
                f"{path}: column {column} holds {array.type}, not text; its schema has changed: convert it, or pin another revision"
            )
        blank = pc.fill_null(pc.equal(pc.utf8_trim_whitespace(array), ""), True)
        if pc.any(blank).as_py():
            row = first + pc.index(blank, True).as_py()
            raise ValueError(
                f"{path}: row {row} has an empty {column} ({pc.sum(blank).as_py()} in its batch); correct or remove it"
            )
    return prompt, answer


def _number_text(number: float | None) -> str | None:
    """An answer published as a number: 5 and 5.0 (an integer beside missing values) are "5"; NaN is missing."""
    if number is None or number != number:
        return None
    return str(int(number)) if number == int(number) else repr(number)


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def _user_messages(conversations: pa.Array, where: str, first: int) -> pa.Array:
    """The text of the one user message of each conversation; other roles are part of a template and dropped."""
    flat = conversations.flatten()
    if not (pa.types.is_struct(flat.type) and {"role", "content"} <= {field.name for field in flat.type}):
        raise ValueError(
            f"{where} is a list of {flat.type}, not of messages with role and content; its schema has changed: convert it, or pin "
            "another revision"
        )
    chosen = pc.fill_null(pc.equal(pc.struct_field(flat, "role"), "user"), False)
    lengths = pc.fill_null(pc.list_value_length(conversations), 0)
    if not pc.all(pc.equal(lengths, 1)).as_py() or not pc.all(chosen).as_py():
        counts = pd.Series(pc.filter(pc.list_parent_indices(conversations), chosen)).value_counts()
        counts = counts.reindex(range(len(conversations)), fill_value=0)
        if (counts != 1).any():
            row = int((counts != 1).to_numpy().argmax())
            raise ValueError(f"{where}: row {first + row} has {counts[row]} user messages; exactly one is a problem")
        flat = pc.filter(flat, chosen)
    return pc.struct_field(flat, "content")


def _only_element(lists: pa.Array, where: str, first: int) -> pa.Array:
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    wrong = pc.not_equal(lengths, 1)
    if pc.any(wrong).as_py():
        row = pc.index(wrong, True).as_py()
        raise ValueError(f"{where}: row {first + row} holds {lengths[row]} answers; exactly one can be graded")
    return lists.flatten()


def _distinct(columns: tuple[pa.Array, pa.Array], first: int) -> pa.Table:
    prompt, answer = columns
    table = pa.table({"prompt": prompt, "answer": answer, "row": pa.array(range(first, first + len(prompt)), pa.int64())})
    grouped = table.group_by(["prompt", "answer"]).aggregate([("row", "min"), ("row", "count")])
    return grouped.rename_columns({"row_min": "row", "row_count": "repeats"}).select(["prompt", "answer", "row", "repeats"])


def _merge(parts: list[pa.Table]) -> pa.Table:
    grouped = pa.concat_tables(parts).group_by(["prompt", "answer"]).aggregate([("row", "min"), ("repeats", "sum")])
    return grouped.rename_columns({"row_min": "row", "repeats_sum": "repeats"}).select(["prompt", "answer", "row", "repeats"])
