"""Problems on disk: settings in, three disjoint parquet files and a manifest out.

train.parquet feeds reinforcement learning, evaluation.parquet the curves, scoring.parquet the final scores. Prompts are unique, and
those of evaluation and scoring appear nowhere else. manifest.json, written last, says how many problems each file holds, its
sha256, what was dropped and why, and the settings.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.artifacts import atomic_path, write_json
from pipeline.config import ProblemSettings, SettingsError
from pipeline.problems import arithmetic
from pipeline.records import Problem

SPLITS = ("evaluation", "scoring", "train")  # in the order in which they take their problems
SCHEMA = pa.schema([(name, pa.string()) for name in ("id", "source", "prompt", "answer")])
MAX_CONSECUTIVE_DROPS = 10_000

SplitsAndDrops = tuple[dict[str, list[Problem]], dict[str, dict[str, int]]]


def prepare(settings: ProblemSettings, directory: Path) -> None:
    """Write <split>.parquet for train, evaluation and scoring, then manifest.json, below `directory`, each file atomically."""
    splits, drops = KINDS[settings.kind](settings)
    files = {}
    for split in SPLITS:
        path = directory / f"{split}.parquet"
        _write_problems(path, splits[split])
        files[split] = {"count": len(splits[split]), "sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "drops": drops[split]}
    write_json(directory / "manifest.json", {"settings": settings.model_dump(), "files": files})


def read_problems(path: Path) -> list[Problem]:
    """Read a file written by `prepare`; a missing, damaged, empty or incomplete one is a ValueError that says what to do."""
    remedy = f"delete it and run `snakemake {path}`"
    try:
        table = pq.read_table(path)
    except FileNotFoundError as error:
        raise ValueError(f"{path} does not exist; run `snakemake {path}`") from error
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path} is not a complete parquet file ({error}); {remedy}") from error
    missing = [name for name in SCHEMA.names if name not in table.column_names]
    if missing:
        raise ValueError(f"{path} lacks the columns {', '.join(missing)} (it has {', '.join(table.column_names)}); {remedy}")
    problems = [Problem(**row) for row in table.select(SCHEMA.names).to_pylist()]
    if not problems:
        raise ValueError(f"{path} holds zero problems; {remedy}")
    for row, problem in enumerate(problems):
        for field in ("prompt", "answer"):
            if not getattr(problem, field):
                raise ValueError(f"{path}: row {row} (id {problem.id!r}) has an empty {field}; {remedy}")
    return problems


def _write_problems(path: Path, problems: list[Problem]) -> None:
    with atomic_path(path) as temporary:
        pq.write_table(pa.Table.from_pylist([asdict(problem) for problem in problems], schema=SCHEMA), temporary)


def _arithmetic(settings: ProblemSettings) -> SplitsAndDrops:
    """Each split draws from its own stream, so that changing one count leaves the earlier splits as they are."""
    counts = {"evaluation": settings.evaluation_count, "scoring": settings.scoring_count, "train": settings.train_count}
    taken: dict[str, str] = {}  # prompt -> the split that has it
    splits: dict[str, list[Problem]] = {}
    drops: dict[str, dict[str, int]] = {}
    for split in SPLITS:
        dropped: Counter[str] = Counter()
        stream = _fresh_problems(Random(f"{settings.seed}/{split}"), split, taken, dropped)
        splits[split] = [replace(next(stream), id=f"{split}-{index}") for index in range(counts[split])]
        drops[split] = dict(dropped)
    return splits, drops


def _fresh_problems(rng: Random, split: str, taken: dict[str, str], dropped: Counter[str]) -> Iterator[Problem]:
    """Yield problems with prompts not in `taken`, which it extends. A dropped problem is replaced by one of the same kind."""
    while True:
        (kind,) = rng.choices(tuple(arithmetic.KINDS), weights=arithmetic.MIX)
        for _ in range(MAX_CONSECUTIVE_DROPS):
            problem = arithmetic.sample_kind(kind, rng).problem
            owner = taken.get(problem.prompt)
            if owner is None:
                taken[problem.prompt] = split
                yield problem
                break
            dropped["duplicate" if owner == split else f"held out for {owner}"] += 1
        else:
            raise ValueError(
                f"no new {kind} problem in {MAX_CONSECUTIVE_DROPS} draws after {len(taken)} problems; "
                f"lower problems.train_count, problems.evaluation_count or problems.scoring_count"
            )


def _dapo_dolci(settings: ProblemSettings) -> SplitsAndDrops:
    raise SettingsError(
        f"problems.kind: {settings.kind!r} cannot be prepared yet; set problems.kind to 'arithmetic' (preset tiny does)"
    )


KINDS = {"arithmetic": _arithmetic, "dapo_dolci": _dapo_dolci}
