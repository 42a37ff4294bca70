"""Arithmetic problems and their files: right answers, carried slips, disjoint splits, clear errors."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.problems.arithmetic import KINDS, MIX, response_text, sample, sample_kind
from pipeline.problems.prepare import prepare, read_problems
from pipeline.section import SettingsError
from pipeline.sections import ProblemSettings

SETTINGS = ProblemSettings(kind="arithmetic", seed=17, train_count=2048, evaluation_count=30, scoring_count=120)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("problems")
    prepare(SETTINGS, folder)
    return folder


def independent_answer(prompt: str) -> int:
    """Solve a prompt from its text alone."""
    numbers = [int(number) for number in re.findall(r"\d+", prompt)]
    if "x" in prompt:
        factor, offset, total = numbers
        return next(x for x in range(200) if factor * x + offset == total)
    if "mod" in prompt:
        return numbers[0] * numbers[1] % numbers[2]
    if "left" in prompt:
        return numbers[0] + numbers[1] - numbers[2]
    if "total" in prompt:
        return numbers[0] * numbers[1] + numbers[2]
    return eval(prompt.rstrip("?"))


@given(st.sampled_from(tuple(KINDS)), st.integers(0, 2**32))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_answers_and_working_are_right(kind: str, seed: int) -> None:
    rng = Random(seed)
    worked = sample_kind(kind, rng)
    assert int(worked.problem.answer) == independent_answer(worked.problem.prompt) >= 0
    *steps, box = response_text(worked, rng, direct_answer_share=0.0, wrong_step_share=0.0).split(";")
    assert box == rf"\boxed{{{worked.problem.answer}}}"
    for step in steps:
        expression, result = step.split("=")
        assert eval(expression.replace("/", "//")) == int(result)


def test_a_slip_carries_into_every_later_step() -> None:
    rng = Random(0)
    slips = 0
    for _ in range(500):
        worked = sample_kind("chain", rng)
        *steps, box = response_text(worked, rng, direct_answer_share=0.0, wrong_step_share=0.3).split(";")
        results = [step.split("=")[1] for step in steps]
        for step, before in zip(steps[1:], results, strict=False):
            assert re.match(r"\d+", step).group() == before  # type: ignore[union-attr]
        assert box == rf"\boxed{{{results[-1]}}}"
        slips += sum(max(0, eval(step.split("=")[0])) != int(step.split("=")[1]) for step in steps)
    # three steps on average, 30 % of them wrong: 450, binomial sd 18; a few slips below zero are cut off at the right result
    assert 380 < slips < 500


def test_shares_are_kept() -> None:
    rng = Random(1)
    texts = [response_text(sample(rng), rng, direct_answer_share=0.25, wrong_step_share=0.0) for _ in range(4000)]
    assert sum(text.startswith(r"\boxed") for text in texts) / 4000 == pytest.approx(0.25, abs=0.03)
    kinds = Counter(sample(rng).problem.source.removeprefix("arithmetic/") for _ in range(4000))
    for kind, share in zip(KINDS, MIX, strict=True):
        assert kinds[kind] / 4000 == pytest.approx(share, abs=0.03)


def test_files_hold_the_counts_unique_and_disjoint_in_the_mix(folder: Path) -> None:
    splits = {name: read_problems(folder / f"{name}.parquet") for name in ("train", "evaluation", "scoring")}
    assert {name: len(problems) for name, problems in splits.items()} == {"train": 2048, "evaluation": 30, "scoring": 120}
    everything = [problem for problems in splits.values() for problem in problems]
    assert len({problem.prompt for problem in everything}) == len({problem.id for problem in everything}) == 2198
    kinds = Counter(problem.source.removeprefix("arithmetic/") for problem in splits["train"])
    for kind, share in zip(KINDS, MIX, strict=True):
        assert kinds[kind] / 2048 == pytest.approx(share, abs=0.04)


def test_manifest_states_hashes_drops_and_settings(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["settings"] == SETTINGS.model_dump()
    for name, entry in manifest["files"].items():
        assert entry["sha256"] == hashlib.sha256((folder / f"{name}.parquet").read_bytes()).hexdigest()
    assert manifest["files"]["train"]["drops"]["duplicate"] > 0
    assert manifest["files"]["train"]["drops"]["held out for scoring"] > 0


def test_preparing_is_deterministic_and_counts_are_independent(folder: Path, tmp_path: Path) -> None:
    prepare(SETTINGS, tmp_path / "same")
    prepare(SETTINGS.model_copy(update={"train_count": 50}), tmp_path / "smaller")
    assert (tmp_path / "same/train.parquet").read_bytes() == (folder / "train.parquet").read_bytes()
    assert read_problems(tmp_path / "smaller/scoring.parquet") == read_problems(folder / "scoring.parquet")
    assert read_problems(tmp_path / "smaller/train.parquet") == read_problems(folder / "train.parquet")[:50]


def test_asking_for_more_problems_than_exist_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no new (linear|modular) problem .* lower problems.train_count"):
        prepare(SETTINGS.model_copy(update={"train_count": 20_000}), tmp_path)
    assert not (tmp_path / "manifest.json").exists()


def test_the_papers_problems_need_their_section(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"problems.kind 'dapo_dolci' reads the section `published`"):
        prepare(SETTINGS.model_copy(update={"kind": "dapo_dolci"}), tmp_path)


def write(path: Path, columns: dict[str, list[str]]) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def test_reading_names_what_is_wrong(tmp_path: Path, folder: Path) -> None:
    good = {"id": ["a"], "source": ["s"], "prompt": ["1+1?"], "answer": ["2"]}
    cases = {
        "does not exist": tmp_path / "absent.parquet",
        "lacks the columns prompt, answer": write(tmp_path / "columns.parquet", {"id": ["a"], "source": ["s"]}),
        "holds zero problems": write(tmp_path / "zero.parquet", {name: pa.array([], pa.string()) for name in good}),
        r"row 0 \(id 'a'\) has an empty answer": write(tmp_path / "empty.parquet", {**good, "answer": [""]}),
        "not a complete parquet file": tmp_path / "half.parquet",
    }
    whole = (folder / "train.parquet").read_bytes()
    (tmp_path / "half.parquet").write_bytes(whole[: len(whole) // 2])
    for message, path in cases.items():
        with pytest.raises(ValueError, match=message) as error:
            read_problems(path)
        assert f"snakemake {path}" in str(error.value)
    (tmp_path / "nothing.parquet").write_bytes(b"")
    with pytest.raises(ValueError, match="not a complete parquet file"):
        read_problems(tmp_path / "nothing.parquet")
