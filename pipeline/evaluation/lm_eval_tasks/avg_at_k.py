"""The functions of aime24.yaml: problems in, k responses per problem graded as our own evaluation grades them.

lm-eval loads this file by its path; it needs the repository root on the Python path (`python -m lm_eval` from there has it).
lm-eval keeps only the text of a response. Whether it was cut off and which weights wrote it stand in SGLang's meta_info, so
`load_problems` makes the sglang-generate model keep them beside the text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pipeline.evaluation.rows import sample_row

COLUMNS = {".jsonl": ("id", "problem", "answer"), ".parquet": ("id", "prompt", "answer")}


class Generated(str):
    """A response's text with what SGLang says about it: finish_reason, number of tokens, version of the weights."""

    finish_reason: str
    length: int
    policy_version: int


def load_problems(problems: str, prompt_template: str, **_: Any) -> dict[str, Any]:
    """The split "test" with id, prompt and answer. `problems`: a parquet file written by `prepare`, whose prompts are taken as they
    are, or JSON lines with id, problem and answer, whose problems are put into `prompt_template`.
    """
    import datasets  # pyright: ignore[reportMissingImports]

    keep_meta_info()
    path = Path(problems)
    if path.suffix not in COLUMNS or not path.is_file():
        raise ValueError(
            f"problems: {problems!r} is not a .jsonl or .parquet file; give one with id, problem or prompt, and answer"
        )
    if path.suffix == ".parquet":
        rows = datasets.Dataset.from_parquet(str(path), keep_in_memory=True).to_list()
    else:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    for number, row in enumerate(rows, 1):
        absent = [column for column in COLUMNS[path.suffix] if row.get(column) in (None, "")]
        if absent:
            raise ValueError(f"{path}: row {number} has no {' and no '.join(absent)}")
    docs = [
        {
            "id": str(row["id"]),
            "prompt": row["prompt"] if path.suffix == ".parquet" else prompt_template.format(problem=row["problem"]),
            "answer": str(row["answer"]),
        }
        for row in rows
    ]
    if not docs or len({doc["id"] for doc in docs}) != len(docs):
        raise ValueError(f"{path} holds no problem or an id twice; every problem needs an id of its own")
    return {"test": datasets.Dataset.from_list(docs)}


def prompt(doc: dict[str, Any]) -> str:
    return doc["prompt"]


def all_samples(responses: Iterable[list[str]], docs: Sequence[dict[str, Any]]) -> Iterable[list[str]]:
    """The filter that keeps every response."""
    return responses


def process_results(doc: dict[str, Any], results: list[list[Generated]]) -> dict[str, Any]:
    """The metrics of one problem from its k responses; `samples` holds their rows, which lm-eval logs with the problem."""
    for response in results[0]:
        if not isinstance(response, Generated):
            raise ValueError("a response without SGLang's meta_info; run with --model sglang-generate and without --use_cache")
    rows = [
        sample_row(text.policy_version, doc["id"], sample, text, doc["answer"], text.finish_reason, text.length)  # type: ignore[arg-type]
        for sample, text in enumerate(results[0])
    ]
    k = len(rows)
    correct, strict = ([getattr(row, verdict) for row in rows] for verdict in ("correct", "correct_strict"))
    return {
        "avg_at_k": sum(correct) / k,
        "pass_at_k": float(any(correct)),
        "avg_at_k_strict": sum(strict) / k,
        "pass_at_k_strict": float(any(strict)),
        "disagreements": sum(one != other for one, other in zip(correct, strict, strict=True)),
        "no_answer": sum(row.outcome == "no_answer" for row in rows) / k,
        "truncated": sum(row.finish_reason == "length" for row in rows) / k,
        "policy_version": [row.policy_version for row in rows],
        "samples": [row.flat() for row in rows],
    }


def total(values: Sequence[int]) -> int:
    return sum(values)


def one_version(values: Sequence[Sequence[int]]) -> int:
    """The policy version that wrote every response. ValueError when there are several."""
    versions = sorted({version for problem in values for version in problem})
    if len(versions) != 1:
        raise ValueError(
            f"responses of policy versions {versions}; an evaluation is of one version, pause weight updates and repeat it"
        )
    return versions[0]


def samples_per_problem(values: Sequence[Sequence[dict[str, Any]]]) -> int:
    """k, the same for every problem. ValueError when it is not."""
    counts = sorted({len(rows) for rows in values})
    if len(counts) != 1:
        raise ValueError(f"problems with {counts} responses; every problem needs the same number")
    return counts[0]


def keep_meta_info() -> None:
    """From now on lm-eval's sglang-generate model returns `Generated` texts."""
    from lm_eval.models.sglang_generate_API import SGLANGGENERATEAPI  # pyright: ignore[reportMissingImports]

    SGLANGGENERATEAPI.parse_generations = staticmethod(parse_generations)


def parse_generations(outputs: dict[str, Any] | list[dict[str, Any]], **_: Any) -> list[Generated]:
    """The texts of SGLang's reply. Raises ValueError, upon which lm-eval asks again, for an aborted response; and for weights whose
    version is not a number.
    """
    generated = []
    for output in outputs if isinstance(outputs, list) else [outputs]:
        meta = output["meta_info"]
        text = Generated(output["text"])
        text.finish_reason, text.length = meta["finish_reason"]["type"], meta["completion_tokens"]
        if text.finish_reason == "abort":
            raise ValueError(f"the server aborted a response: {meta['finish_reason'].get('message', 'no reason given')}")
        if not str(meta["weight_version"]).isdecimal():
            raise ValueError(
                f"the server's weights are of version {meta['weight_version']!r}, not a policy version; "
                "give weight_version with the weight update, or --weight-version when the server starts"
            )
        text.policy_version = int(meta["weight_version"])
        generated.append(text)
    return generated
