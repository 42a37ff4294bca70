"""Problems on disk: settings in, three parquet files and a manifest out.

train.parquet feeds reinforcement learning, evaluation.parquet the curves, scoring.parquet the final scores. No prompt of
evaluation or scoring is trained on. Arithmetic problems are disjoint in all three files; with the published ones evaluation and
scoring are the same 30 problems of AIME24. manifest.json is written last. It holds the number of problems and the sha256 of
each file, what was dropped and why, and the settings.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.artifacts import atomic_path, write_json
from pipeline.problems import arithmetic
from pipeline.problems.hub import REVISIONS
from pipeline.records import Problem
from pipeline.section import SettingsError
from pipeline.sections import ProblemSettings, PublishedProblemSettings

SPLITS = ("evaluation", "scoring", "train")  # in the order in which they take their problems
SCHEMA = pa.schema([(name, pa.string()) for name in ("id", "source", "prompt", "answer")])
MAX_CONSECUTIVE_DROPS = 10_000


@dataclass(frozen=True)
class Prepared:
    """The problems of each split, drops[split][reason], and what else the manifest says."""

    splits: Mapping[str, list[Problem]]
    drops: Mapping[str, Mapping[str, int]]
    details: Mapping[str, Any]


def prepare(settings: ProblemSettings, directory: Path) -> dict[str, Any]:
    """Write <split>.parquet for train, evaluation and scoring, then manifest.json, below `directory`, each file atomically.

    Returns the manifest. ValueError where no problem is left for a split.
    """
    prepared = KINDS[settings.kind](settings, directory / REVISIONS)
    for split in SPLITS:
        if not prepared.splits[split]:
            reasons = ", ".join(f"{count:+} {reason}" for reason, count in prepared.drops[split].items())
            raise ValueError(f"no problem is left for {split} ({reasons or 'none was asked for'}); change what drops them")
    files = {}
    for split in SPLITS:
        path = directory / f"{split}.parquet"
        problems = prepared.splits[split]
        _write_problems(path, problems)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        files[split] = {"count": len(problems), "sha256": digest, "drops": prepared.drops[split]}
    manifest = {"settings": settings.model_dump(), "files": files, **prepared.details}
    write_json(directory / "manifest.json", manifest)
    return manifest


def as_lines(manifest: Mapping[str, Any]) -> list[str]:
    """The manifest in short: the counts; of published problems also every difference from the paper's number, with its reason, and
    every prompt that fell because it gives away an evaluation problem.
    """
    lines = [", ".join(f"{entry['count']} problems for {split}" for split, entry in manifest["files"].items())]
    if "counts" not in manifest:
        return lines
    train = manifest["counts"]["train"]
    lines.append(f"the paper trains on {train['paper']}, difference {train['difference']:+}")
    lines += [f"  {count:+} {reason}" for reason, count in train["reasons"].items()]
    for case in manifest["contaminated"]:
        prompt = " ".join(case["prompt"].split())
        lines.append(f"  gives away {case['problem']} ({case['rule']}): {case['source']} row {case['row']}: {prompt}")
    return lines


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


def _arithmetic(settings: ProblemSettings, _: Path) -> Prepared:
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
    return Prepared(splits, drops, details={})


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


def _dapo_dolci(settings: ProblemSettings, record: Path) -> Prepared:
    """DAPO-Math-17k and Dolci-RL-Zero-Math-7B to train on, AIME24 to evaluate; see published.py."""
    from pipeline.problems.published import published_problems

    if not isinstance(settings, PublishedProblemSettings):
        raise SettingsError(
            "problems.kind 'dapo_dolci' reads the section `published`, which these settings lack; run it through snakemake"
        )
    splits, details = published_problems(settings, record)
    drops = {"train": details["counts"]["train"]["reasons"], "evaluation": {}, "scoring": {}}
    return Prepared(splits, drops, details)


KINDS = {"arithmetic": _arithmetic, "dapo_dolci": _dapo_dolci}
