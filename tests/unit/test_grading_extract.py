"""Extraction: which text is graded, for each way in which a response states its answer."""

from __future__ import annotations

import time

import pytest

from pipeline.grading.extract import Extraction, extract_answer


@pytest.mark.parametrize(
    ("response", "text", "rule"),
    [
        (r"17+5=22;22-4=18;\boxed{18}", "18", "box"),
        (r"first \boxed{41}, corrected: \boxed{42}", "42", "box"),
        (r"\boxed{2} and \boxed{3} and \boxed{5}", "2, 3, 5", "boxes"),
        (r"\boxed{7} \boxed{7}", "7", "box"),
        (r"\boxed{\boxed{8}}", "8", "box"),
        (r"\boxed{x = \fbox{8} + 1}", "x = 8 + 1", "box"),
        (r"\fbox{\frac{1}{2}}", r"\frac{1}{2}", "box"),
        (r"$\boxed 5$", "5", "box"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}", "box"),
        (r"early \boxed{42}, then \boxed{4", None, "unclosed_box"),
        (r"early \boxed{42}, at the end \boxed{}", None, "empty_box"),
        ("Answer: 41\nno:\nAnswer: 42", "42", "answer_line"),
        ("Answer: 3.5 metres. Seven other cases were excluded.", "3.5 metres", "answer_line"),
        ("Final Answer: **73**<|endoftext|>", "73", "answer_line"),
        ("Answer:\n\n$$\nx^2\n$$", "x^2", "answer_line"),
        ("答案：17", "17", "answer_line"),
        ("the final answer is $12$. I hope it is correct.", "12", "answer_is"),
        ("So 42 is the answer.", "42", "is_the_answer"),
        ("Hence the probability equals 2/3.", "2/3", "closing_value"),
        ("there are 3 cases with 4 choices each", None, "no_answer"),
        (r"<think>\boxed{1}</think>Answer: 2", "2", "answer_line"),
        ("", None, "no_answer"),
        ("Answer: $42$/$5$", "42/5", "answer_line"),
        ("Answer: 42 (= 6 \\cdot 7)", r"42 = 6 \cdot 7", "answer_line"),
        ("Answer: 42 (forty-two)", "42 = 42", "answer_line"),
        ("<answer> 42 </answer>", "42", "answer_tag"),
        (r"Answer: 42 \boxed", "42", "answer_line"),
        (r"write it in \boxed form. Answer: 42", "42", "answer_line"),
        ("Answer: 41\nA common wrong answer: 42", "41", "answer_line"),
        ("The answer is 41. Nobody believes the answer is 42.", "41", "answer_is"),
        ("Twice the answer is 42.", None, "no_answer"),
        ("The answer is 42? No.", None, "question"),
        ("The answer is 42. Wait, that is wrong.", None, "no_answer"),
        ("We rule out n = 42.", None, "no_answer"),
        ("Since 41 is not even, the answer is 42.", "42", "answer_is"),
    ],
)
def test_what_is_extracted(response: str, text: str | None, rule: str) -> None:
    assert extract_answer(response) == Extraction(text, rule)


@pytest.mark.parametrize("prose", ["the answer is 5", "So 5 is the answer.", "the sum equals 5."])
def test_a_cut_off_response_is_not_graded_on_its_prose(prose: str) -> None:
    assert extract_answer(prose).text == "5"
    assert extract_answer(prose, truncated=True).text is None


@pytest.mark.parametrize("stated", [r"\boxed{5} and then the", "Answer: 5\nand then the"])
def test_a_cut_off_response_keeps_its_box_and_its_answer_line(stated: str) -> None:
    assert extract_answer(stated, truncated=True).text == "5"


@pytest.mark.parametrize(
    "unit",
    [
        r"\boxed{",
        r"\boxed{1} ",
        "answer: ",
        "the answer is 3, ",
        "is the answer ",
        "$",
        "{",
        " ",
        "a. ",
        "<|",
        "\n",
        "answer",
        "wrong answer: ",
        "<answer>",
        "\\boxed ",
        "答案：",
        "not ",
    ],
)
def test_time_is_linear_in_the_length(unit: str) -> None:
    start = time.process_time()
    extract_answer(unit * (200_000 // len(unit)))
    assert time.process_time() - start < 1.0
