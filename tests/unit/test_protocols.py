"""Evaluation protocols from per-sample rows: exact values, exact k, one version, no missing sample; and the summary of a folder."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.artifacts import write_rows
from pipeline.evaluation.estimators import avg_at_k, pass_at_k
from pipeline.evaluation.protocols import EvaluationProtocol, evaluate_protocol
from pipeline.evaluation.rows import sample_row
from pipeline.evaluation.summary import as_lines, summarise, summarise_folder


def rows_of(outcomes: np.ndarray, version: int = 40) -> list[dict[str, Any]]:
    """Rows in shuffled order of 0/1 outcomes [problems, samples]."""
    rows = [
        {
            "policy_version": version,
            "problem_id": f"p{problem:02d}",
            "sample": sample,
            "correct": bool(outcomes[problem, sample]),
            "outcome": "correct" if outcomes[problem, sample] else "no_answer",
            "finish_reason": "stop" if outcomes[problem, sample] else "length",
        }
        for problem, sample in np.ndindex(*outcomes.shape)
    ]
    np.random.default_rng(0).shuffle(rows)  # type: ignore[arg-type]
    return rows


@pytest.fixture(scope="module")
def outcomes() -> np.ndarray:
    rng = np.random.default_rng(3)
    return rng.random((30, 64)) < rng.beta(0.3, 0.5, size=(30, 1))


@pytest.mark.parametrize(("name", "samples"), [("avg@8", 8), ("avg@16", 16), ("4xavg@16", 64), ("2xavg@8", 16), ("avg@1", 1)])
def test_avg_is_exact_over_the_first_samples_and_a_multiple_of_one_over_30_k(name, samples, outcomes):
    value = evaluate_protocol(rows_of(outcomes), EvaluationProtocol.parse(name))
    assert value == Fraction(int(outcomes[:, :samples].sum()), 30 * samples)
    assert (30 * samples) % value.denominator == 0
    assert float(value) == pytest.approx(avg_at_k(outcomes[:, :samples]), abs=1e-15)


def test_mean_of_four_runs_is_the_mean_of_the_four_values(outcomes):
    runs = [evaluate_protocol(rows_of(outcomes[:, 16 * run : 16 * run + 16]), EvaluationProtocol("avg", 16)) for run in range(4)]
    assert len(set(runs)) > 1
    assert evaluate_protocol(rows_of(outcomes), EvaluationProtocol("avg", 16, runs=4)) == sum(runs) / 4


def test_pass_at_k_is_the_share_of_subsets_with_a_correct_sample(outcomes):
    few = outcomes[:6, :7]
    for k in range(1, 8):
        subsets = [list(subset) for subset in combinations(range(7), k)]
        hits = [Fraction(sum(any(row[subset]) for subset in subsets), len(subsets)) for row in few]
        assert evaluate_protocol(rows_of(few), EvaluationProtocol("pass", k)) == sum(hits) / 6
        assert pass_at_k(few, k) == pytest.approx(float(sum(hits) / 6), abs=1e-12)
    assert evaluate_protocol(rows_of(few), EvaluationProtocol("pass", 1)) == evaluate_protocol(
        rows_of(few), EvaluationProtocol("avg", 7)
    )


@settings(deadline=None)
@given(st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=6), st.integers(1, 5))
def test_pass_grows_with_k_and_avg_does_not_read_beyond_k(table, k):
    rows = rows_of(np.array(table))
    assert evaluate_protocol(rows, EvaluationProtocol("pass", k)) >= evaluate_protocol(rows, EvaluationProtocol("pass", 1))
    kept = [row for row in rows if row["sample"] < k]
    assert evaluate_protocol(kept, EvaluationProtocol("avg", k)) == evaluate_protocol(rows, EvaluationProtocol("avg", k))


def test_the_papers_base_value_is_45_of_480():
    outcomes = np.zeros((30, 16), dtype=bool)
    outcomes.flat[:45] = True
    assert evaluate_protocol(rows_of(outcomes), EvaluationProtocol("avg", 16)) == Fraction(45, 480)


@pytest.mark.parametrize("protocol", ["avg@8", "4xavg@2", "pass@2"])
def test_a_missing_sample_is_an_error_that_names_it(protocol, outcomes):
    rows = [row for row in rows_of(outcomes[:, :8]) if (row["problem_id"], row["sample"]) != ("p07", 5)]
    with pytest.raises(ValueError, match=r"problem p07 has 7 and lacks sample 5"):
        evaluate_protocol(rows, EvaluationProtocol.parse(protocol))


def test_what_is_not_one_whole_evaluation_is_refused(outcomes):
    rows = rows_of(outcomes[:, :8])
    with pytest.raises(ValueError, match=r"avg@16 needs samples 0..15"):
        evaluate_protocol(rows, EvaluationProtocol("avg", 16))
    with pytest.raises(ValueError, match="twice"):
        evaluate_protocol([*rows, rows[0]], EvaluationProtocol("avg", 8))
    with pytest.raises(ValueError, match=r"policy versions \[40, 41\]"):
        evaluate_protocol([*rows[1:], {**rows[0], "policy_version": 41}], EvaluationProtocol("avg", 8))
    with pytest.raises(ValueError, match=r"without a sample: \['p30'\]"):
        evaluate_protocol(rows, EvaluationProtocol("avg", 8), problems=[f"p{i:02d}" for i in range(31)])
    with pytest.raises(ValueError, match="no rows"):
        evaluate_protocol([], EvaluationProtocol("avg", 8))


@pytest.mark.parametrize("name", ["avg", "avg@0", "4xpass@8", "4xmaj@8", "maj@0", "mean@8", "avg@8x4", "0xavg@8"])
def test_an_unknown_protocol_is_refused(name):
    with pytest.raises(ValueError, match="unknown protocol"):
        EvaluationProtocol.parse(name)


@pytest.mark.parametrize("name", ["avg@8", "4xavg@16", "pass@8", "maj@8"])
def test_a_protocol_prints_as_it_is_written(name):
    assert str(EvaluationProtocol.parse(name)) == name


def test_a_row_says_where_the_strict_policy_disagrees():
    """primemath accepts an answer a hundred times too large, strict does not; a cut-off response needs a box for either."""
    scaled = sample_row(40, "p", 0, "so \\boxed{20400}", "204", "stop", 9)
    assert (scaled.correct, scaled.correct_strict, scaled.outcome) == (True, False, "correct")
    plain = sample_row(40, "p", 1, "so \\boxed{204}", "204", "stop", 9)
    assert (plain.correct, plain.correct_strict) == (True, True)
    cut = sample_row(40, "p", 2, "the answer is 204", "204", "length", 9)
    assert (cut.correct, cut.correct_strict, cut.outcome) == (False, False, "no_answer")
    summary = summarise("x", [row.flat() for row in (scaled, plain, cut)])
    assert summary.disagreements == 1 and summary.no_answer == summary.truncated == Fraction(1, 3)
    assert summary.primemath["avg@3"] == Fraction(2, 3) and summary.strict["avg@3"] == Fraction(1, 3)


def test_summary_of_a_cells_folder(tmp_path: Path, outcomes):
    curve = [row | {"step": step, "repeated": step > 4} for step in (4, 9) for row in rows_of(outcomes[:, :16], version=0)]
    scores = [row | {"checkpoint": "best", "correct_strict": False} for row in rows_of(outcomes[:, :16], version=40)]
    write_rows(tmp_path / "evals.parquet", curve)
    write_rows(tmp_path / "scores.parquet", scores)
    first, best = summarise_folder(tmp_path, [])
    assert (first.name, best.name, best.policy_version) == ("evals step 4", "scores checkpoint best", 40)
    assert first.primemath["avg@8"] == Fraction(int(outcomes[:, :8].sum()), 240)
    assert first.disagreements is None and best.disagreements == int(outcomes[:, :16].sum())
    lines = as_lines([first, best])
    assert "strict not recorded" in lines[0] and f"differ on {best.disagreements}" in lines[1]


def test_a_folder_with_a_partial_evaluation_is_refused(tmp_path: Path, outcomes):
    whole = [row | {"step": 4} for row in rows_of(outcomes[:, :4])]
    write_rows(tmp_path / "evals.parquet", whole + [row | {"step": 9} for row in whole if row["problem_id"] != "p03"])
    with pytest.raises(ValueError, match=r"without a sample: \['p03'\]"):
        summarise_folder(tmp_path, [])
    with pytest.raises(ValueError, match="holds neither"):
        summarise_folder(tmp_path / "none", [])
    write_rows(tmp_path / "evals.parquet", whole)
    (tmp_path / "evals.parquet").write_bytes((tmp_path / "evals.parquet").read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"evals\.parquet is not a readable Parquet file .* delete it"):
        summarise_folder(tmp_path, [])


def voted(*problems: list[tuple[str | None, bool]]) -> list[dict[str, Any]]:
    """Rows of problems, each a list of (answer, correct)."""
    return [
        {"policy_version": 3, "problem_id": f"p{number}", "sample": sample, "answer": answer, "correct": correct}
        for number, votes in enumerate(problems)
        for sample, (answer, correct) in enumerate(votes)
    ]


@pytest.mark.parametrize(
    ("votes", "value"),
    [
        ([("7", True), ("7", True), ("8", False)], Fraction(1)),
        ([("8", False), ("7", True), ("8", False)], Fraction(0)),
        ([("7", True), ("8", False)], Fraction(1, 2)),
        ([("7", True), ("8", False), ("9", False)], Fraction(1, 3)),
        ([("8", False), ("9", False), ("7", True), ("7", True), ("9", False)], Fraction(1, 2)),
        ([(None, False), (None, False), ("7", True)], Fraction(1)),
        ([(None, False), (None, False)], Fraction(0)),
    ],
)
def test_the_majority_is_of_answers_and_ties_are_shared(votes: list[tuple[str | None, bool]], value: Fraction) -> None:
    protocol = EvaluationProtocol.parse(f"maj@{len(votes)}")
    assert evaluate_protocol(voted(votes), protocol) == value
    assert evaluate_protocol(voted(votes[::-1]), protocol) == value
    assert evaluate_protocol(voted(votes, [("1", True)] * len(votes)), protocol) == (value + 1) / 2


def test_one_sample_makes_the_majority_an_average_and_later_samples_do_not_vote() -> None:
    rows = voted([("7", True), ("8", False), ("8", False)], [("1", False), ("2", True), ("2", True)])
    assert (
        evaluate_protocol(rows, EvaluationProtocol("maj", 1))
        == evaluate_protocol(rows, EvaluationProtocol("avg", 1))
        == Fraction(1, 2)
    )
    assert evaluate_protocol(rows, EvaluationProtocol("maj", 3)) == Fraction(1, 2)
    with pytest.raises(ValueError, match=r"maj@4 needs samples 0\.\.3"):
        evaluate_protocol(rows, EvaluationProtocol("maj", 4))


def test_votes_for_one_number_are_one_vote_however_written() -> None:
    texts = [
        "so \\boxed{0.5}",
        "Answer: 1/2",
        "Answer: one half",
        "\\boxed{\\frac{1}{2}}",
        "so \\boxed{x = 1/2}",
        "\\boxed{3}",
        "no idea",
    ]
    rows = [sample_row(1, "p", sample, text, "1/2", "stop", 9).flat() for sample, text in enumerate(texts)]
    assert [row["answer"] for row in rows] == ["1/2"] * 5 + ["3", None]
    assert evaluate_protocol(rows, EvaluationProtocol("maj", 7), verdict="correct_strict") == 1


@pytest.mark.parametrize("verdict", [float("nan"), None, "False", "True", 2, 0.5])
def test_what_is_no_verdict_is_not_counted_as_one(verdict: object) -> None:
    rows = voted([("7", True), ("8", False)])
    rows[1]["correct"] = verdict
    for protocol in ("avg@2", "pass@1", "maj@2"):
        with pytest.raises(ValueError, match=r"for sample 1 of problem p0; a verdict is true or false"):
            evaluate_protocol(rows, EvaluationProtocol.parse(protocol))


def test_more_samples_than_there_are_is_an_error_at_once(outcomes: np.ndarray) -> None:
    rows = rows_of(outcomes[:, :8])
    assert evaluate_protocol(rows, EvaluationProtocol("pass", 8)) == Fraction(int(outcomes[:, :8].any(axis=1).sum()), 30)
    with pytest.raises(ValueError, match=r"pass@1000000000 needs samples .* these have 8: take k up to that"):
        evaluate_protocol(rows, EvaluationProtocol("pass", 10**9))
    with pytest.raises(ValueError, match=r"avg@1000000000 needs samples"):
        evaluate_protocol(rows, EvaluationProtocol("avg", 10**9))
    with pytest.raises(ValueError, match=r"the rows say none .* evaluate again"):
        evaluate_protocol(rows, EvaluationProtocol("maj", 8))
    with pytest.raises(ValueError, match=r"nan.*every verdict is needed"):
        avg_at_k(np.array([[1.0, float("nan")]]))


def test_verdicts_on_disk_are_booleans(tmp_path: Path, outcomes: np.ndarray) -> None:
    rows = [row | {"step": 4, "correct": str(row["correct"])} for row in rows_of(outcomes[:, :4])]
    write_rows(tmp_path / "evals.parquet", rows)
    with pytest.raises(ValueError, match=r"evals\.parquet: correct holds string, not verdicts"):
        summarise_folder(tmp_path, [])
