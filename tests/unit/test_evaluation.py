"""An evaluation is of one policy version, whatever the engine did in the meantime."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
import pytest

from pipeline.artifacts import Cell
from pipeline.config import load_settings
from pipeline.evaluation.evaluate import Evaluation
from pipeline.policy.tokenizer import build_tokenizer
from pipeline.records import Problem, Response
from pipeline.rollout.engine import Generation

TOKENIZER = build_tokenizer(64)
PROBLEMS = [Problem("a", "arithmetic", "1+2?", "3"), Problem("b", "arithmetic", "4+5?", "9")]


class Engine:
    """Answers every request with \\boxed{3}; `versions` are those of the four tokens of the last response, all others are 40."""

    def __init__(self, versions: list[int]) -> None:
        self.versions = versions

    def generate(self, requests, sampling) -> Future[Generation]:
        ids = np.array([*TOKENIZER.encode("\\boxed{3}"), TOKENIZER.eos_token_ids[0]], dtype=np.int32)
        last = len(requests) - 1
        responses = [
            Response(
                request.prompt_ids,
                ids,
                np.zeros(len(ids), np.float32),
                np.array(self.versions if index == last else [40] * len(ids), dtype=np.int32),
                None,
                "stop",
            )
            for index, request in enumerate(requests)
        ]
        future: Future[Generation] = Future()
        future.set_result(Generation(tuple(responses), 0.0))
        return future


def evaluation(versions: list[int]) -> Evaluation:
    settings = load_settings(overrides={"preset": "tiny"}).cell(Cell("grpo", "1", 0))
    return Evaluation(Engine(versions), TOKENIZER, PROBLEMS, settings, 40, "evaluation")  # type: ignore[arg-type]


def test_every_row_names_the_version_and_each_problem_has_every_sample() -> None:
    rows = evaluation([40] * 4).rows()
    assert [(row.policy_version, row.problem_id, row.sample) for row in rows] == [(40, i, s) for i in "ab" for s in range(8)]
    assert [row.correct for row in rows] == [True] * 8 + [False] * 8


@pytest.mark.parametrize("versions", [[40, 40, 40, 41], [39, 39, 39, 39]])
def test_one_token_of_another_version_is_an_error(versions: list[int]) -> None:
    with pytest.raises(ValueError, match=r"an evaluation of version 40 got tokens of versions \["):
        evaluation(versions).rows()
