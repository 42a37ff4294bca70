"""Strict verdicts on the adversarial corpora, and safety: no code runs, nothing hangs, nothing raises."""

from __future__ import annotations

import json
import random
import re
import time
from pathlib import Path

import pytest

from pipeline.grading.grade import Grade, grade, grade_many

HERE = Path(__file__).parent
CANARY = "open('CANARY','w')"
FRAGMENTS = re.findall(
    r"\S+",
    r"\frac \sqrt { } ( ) [ ] 1 2 0.5 x y ^ _ + - * / ! | , : = < \pi \pm \cup \{ \} \text{ and % ° \sum_{k=1}^{9} \sin \log "
    r"\binom \begin{pmatrix} \end{pmatrix} & \\ \infty e i \le \in 99999 ² π − $ . 答案",
)


def read_cases(name: str) -> list[dict]:
    return [json.loads(line) for line in (HERE / name).read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("name", ["grader_cases.jsonl", "grader_variants.jsonl", "grader_hostile.jsonl", "grader_unseen.jsonl"])
def test_at_least_99_percent_of_the_verdicts_are_as_expected(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No wrong answer is accepted; of the right ones at most 1 % of the cases are not read."""
    monkeypatch.chdir(tmp_path)
    cases = read_cases(name)
    grades = [grade(case["response"], case["gold"], "strict", truncated=case["kind"] == "truncated") for case in cases]
    wrong = [
        (case["kind"], case["response"][-80:], case["gold"], result.outcome)
        for case, result in zip(cases, grades, strict=True)
        if (result.outcome == "correct") != case["expected"]
    ]
    assert len(wrong) <= 0.01 * len(cases), wrong
    assert "correct" not in [outcome for _, _, _, outcome in wrong]
    assert max(result.seconds for result in grades) <= 10.0  # the worker's deadline, and its imports on a loaded machine
    assert sorted(result.seconds for result in grades)[len(grades) // 2] < 1e-3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("policy", ["strict", "primemath"])
@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("7" * 5000, "7"),
        ("(" * 400 + "1" + ")" * 400, "2"),
        (r"\frac{1}{" * 60 + "x" + "}" * 60, "3"),
        (r"((((2^{99})^{99})^{99})^{99})^{99}", "3"),
        (r"2^{3^{4^{5^{6}}}}", "3"),
        (r"((9!)!)!", "3"),
        (r"\binom{10^{9}}{5\cdot 10^{8}}", "3"),
        (r"\sum_{i=1}^{2000}\sum_{j=1}^{2000}\sum_{k=1}^{2000} ijk", "3"),
        (r"\int_0^{\infty} e^{-x^x} \sin(x^{x^x}) dx", "3"),
        (r"\sin(10^{10^{6}})", "3"),
        (r"e^{e^{e^{e^{10}}}}", "3"),
        ("-" * 900 + "5", "6"),
        ("5" + "!" * 500, "5"),
        ("1" + ",1" * 450, "1,2"),
        ("so " * 300, "3"),
        ("one hundred and " * 60, "3"),
        ("area is is " * 90 + "3", "4"),
        ("3 cm square " * 80, "3"),
        ("3" + "不同的" * 300, "3"),
        ("负" * 900 + "3", "3"),
        ("(" * 300 + "forty-two", "3"),
        ("0.33" * 200 + "...", "3"),
        (r"{1}cm" * 180, "3"),
        (r"\sin" * 300, "3"),
        (r"\alpha" * 150 + "=", "3"),
        (f"[{CANARY}]", r"\begin{pmatrix}1\end{pmatrix}"),
        (f"\\pi+{CANARY}.write('x')", "0"),
        (f'exec("{CANARY}")', "1"),
        (f"Point({CANARY},1)", "(1,1)"),
    ],
)
def test_bombs_and_code_are_neither_run_nor_accepted(
    policy: str, answer: str, gold: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    start = time.perf_counter()
    for response in (f"\\boxed{{{answer}}}", f"Answer: {answer}"):
        assert grade(response, gold, policy).outcome in ("incorrect", "no_answer", "timeout")
    assert time.perf_counter() - start <= 30.0  # each response has a deadline of its own
    assert list(tmp_path.iterdir()) == []


def test_random_formulas_always_get_an_outcome() -> None:
    generator = random.Random(0)
    golds = ["5", "x+1", r"\{1,2\}", "(1,2)", "x<3", r"[0,1)", r"\sqrt{2}", r"\begin{pmatrix}1&2\end{pmatrix}", "204_5", "3:4"]
    pairs = [
        ("\\boxed{" + "".join(generator.choices(FRAGMENTS, k=generator.randrange(1, 14))) + "}", golds[i % 10]) for i in range(600)
    ]
    for policy in ("strict", "primemath"):
        outcomes = {result.outcome for result in grade_many(pairs, policy)}
        assert outcomes <= {"correct", "incorrect", "no_answer"}


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"\frac{63}{400}", "63/400"),
        (r"2\sqrt{3}", r"\sqrt{12}"),
        ("(1,2)", "(1, 2)"),
        ("1,-2", "-2,1"),
        ("x+1", "1+x"),
        ("17", "17.0"),
        (r"[0,\infty)", r"x \ge 0"),
    ],
)
def test_verdicts_do_not_depend_on_the_wrapping(gold: str, answer: str) -> None:
    for wrapped in (
        f"${answer}$",
        f"\\({answer}\\)",
        f" {answer} ",
        f"\\left.{answer}\\right."[6:-7],
        f"{{{answer}}}",
        f"{answer}.",
    ):
        for prose in ("So \\boxed{%s}.", "\\[ \\boxed{%s} \\]\n\nThis proves it.", "Thus\nAnswer: %s<|im_end|>"):
            assert grade(prose.replace("%s", wrapped), gold, "strict").outcome == "correct", (prose, wrapped)


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"10^{40}", r"\sqrt{10^{80}+1}"),
        (r"10^{25}", r"\sqrt{10^{50}+1}"),
        (r"\pi", r"\pi+10^{-55}"),
        ("x", r"x+10^{-50}"),
        (r"10^{10^{10}}", r"10^{10^{10}}+1"),
        (r"\frac{\pi}{2}", r"\arctan(10^{70})"),
    ],
)
def test_what_is_lost_to_rounding_is_not_equal(gold: str, answer: str) -> None:
    assert grade(f"\\boxed{{{answer}}}", gold, "strict").outcome == "incorrect"
    assert grade(f"\\boxed{{{answer}}}", answer, "strict").outcome == "correct"


def test_every_word_beside_a_number_makes_another_answer_unless_it_is_known() -> None:
    """Pseudo-words stand for all words that no table holds."""
    generator = random.Random(7)
    for _ in range(300):
        word = "".join(generator.choices("bcdfghjklmnpqrstvwxz", k=1)) + "".join(generator.choices("aeioubdfklmnprstv", k=5))
        for answer in (f"7 {word}", f"{word} 7", f"\\text{{{word} }}7", f"7\\text{{ {word}}}", f"$7$ {word}", f"{word} $7$"):
            for response in (f"Answer: {answer}", f"\\boxed{{{answer.replace('$', '')}}}", f"The answer is {answer}."):
                assert grade(response, "7", "strict").outcome == "incorrect", response


def test_a_unit_may_be_missing_but_not_differ() -> None:
    for gold, answer, outcome in [
        ("3", r"3\text{ cm}", "correct"),
        (r"3\text{ cm}", "3", "correct"),
        (r"3\text{ cm}", "3 centimeters", "correct"),
        (r"3\text{ cm}", r"3\text{ m}", "incorrect"),
    ]:
        assert grade(f"\\boxed{{{answer}}}", gold, "strict").outcome == outcome


def test_whatever_goes_wrong_is_an_outcome_and_a_wrong_policy_is_refused() -> None:
    assert grade(None, "5", "strict").outcome == "error"  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="primemath, strict"):
        grade("5", "5", "lenient")  # type: ignore[arg-type]
    assert isinstance(grade("\ud800\\boxed{\ud800}", "5", "primemath"), Grade)
