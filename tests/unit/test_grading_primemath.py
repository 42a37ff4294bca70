"""PRIME's verdicts, one per documented rule, and the switch that turns each leniency off."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from pipeline.grading.grade import grade, grade_both
from pipeline.grading.primemath import PRIME, Switches

EXACT = Switches(
    answer_phrases=False, percent_scale=False, rel_tol=0.0, remove_commas=False, drop_brackets=False, drop_base=False, pi_314=False
)


def verdict(answer: str, gold: str, switches: Switches = PRIME) -> bool:
    return grade(f"\\boxed{{{answer}}}", gold, "primemath", switches=switches).outcome == "correct"


def test_integers_agree_with_the_published_rule_everywhere() -> None:
    """Integer gold, one boxed integer: equal, or within 1e-4 of gold/100, gold or gold*100 (ToRA's rule as PRIME configures it)."""
    generator = random.Random(1)
    for _ in range(4000):
        gold = generator.choice([generator.randrange(-50, 1000), generator.randrange(10**4, 10**7)])
        answer = generator.choice([gold, gold * 100, gold // 100, gold + generator.randrange(-30, 30), -gold])
        near = any(math.isclose(candidate, answer, rel_tol=1e-4) for candidate in (gold / 100, gold, gold * 100))
        text = generator.choice(["{}", "0{}", " {} ", "{}.", "+{}"]).format(answer) if answer >= 0 else str(answer)
        assert verdict(text, str(gold)) is (gold == answer or near), (gold, answer)


@pytest.mark.parametrize(
    ("answer", "gold", "switch", "off"),
    [
        ("200", "2", "percent_scale", False),
        ("5", "500", "percent_scale", False),
        ("100001", "100000", "rel_tol", 0.0),
        ("1.41421", r"\sqrt{2}", "rel_tol", 0.0),
        ("1,2", "12", "remove_commas", False),
        ("2,3,5,7", "2,3,5,7,13", "remove_commas", False),
        ("(2,3)", "(2,3]", "drop_brackets", False),
        (r"\frac{12}{3}", r"\frac{1}{23}", "drop_brackets", False),
        ("10_8", "10_2", "drop_base", False),
        ("3.14", r"\pi", "pi_314", False),
    ],
)
def test_each_leniency_is_a_switch(answer: str, gold: str, switch: str, off: object) -> None:
    assert verdict(answer, gold)
    assert not verdict(answer, gold, replace(PRIME, **{switch: off}))
    assert not verdict(answer, gold, EXACT)


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("007", "7", True),
        ("1,234", "1234", True),
        (r"\$5", "5", True),
        (r"28\%", "28", True),
        (r"90^\circ", "90", True),
        (r"12\text{ cm}", "12", True),
        ("x=5", "5", True),
        (r"\frac{2}{4}", r"\frac12", True),
        (r"7\frac{3}{4}", r"\frac{31}{4}", True),
        (r"2\sqrt{3}", r"\sqrt{12}", True),
        (r"(0.5,2)", r"(\frac12,2)", True),
        ("x+1", "1+x", True),
        ("1,-2", "-2,1", False),
        ("x>3", "3<x", False),
        (r"\{1,2\}", r"\{2,1\}", False),
        ("−7", "-7", False),
        (r"\begin{pmatrix}0.5&2\end{pmatrix}", r"\begin{pmatrix}\frac12&2\end{pmatrix}", False),
        ("nan", "5", False),
        (r"\infty", "5", False),
    ],
)
def test_what_prime_accepts_and_refuses(answer: str, gold: str, expected: bool) -> None:
    assert verdict(answer, gold) is expected


def test_the_last_answer_phrase_wins_over_a_box_before_it() -> None:
    response = r"The answer is \boxed{42}. The answer is unique."
    assert grade(response, "42", "primemath").outcome == "incorrect"
    assert grade(response, "42", "primemath", switches=replace(PRIME, answer_phrases=False)).outcome == "correct"
    assert grade(r"so x^2+y^2=\boxed{25}", "25", "primemath").outcome == "correct"
    assert grade("no idea", "5", "primemath").outcome == "no_answer"


def test_disagreements_of_the_policies_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        assert {policy: result.outcome for policy, result in grade_both(r"\boxed{5}", "5").items()} == {
            "primemath": "correct",
            "strict": "correct",
        }
        assert not caplog.records
        assert grade_both(r"\boxed{200}", "2")["strict"].outcome == "incorrect"
    assert "policies disagree" in caplog.text
