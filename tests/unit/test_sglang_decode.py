"""Answers of a server -> responses: exact values, and a reason for every answer that is refused."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config import load_settings
from pipeline.records import Request, SamplingKey
from pipeline.rollout.sglang.decode import Expected, Unusable, decode_response, experts_from_base64
from pipeline.sections import ModelSettings

PROMPT = Request(np.array([4, 5, 6], dtype=np.int32), SamplingKey(0, "train", 0, 0, 0))


@pytest.fixture(scope="module")
def model() -> ModelSettings:
    return load_settings(overrides={"preset": "rehearsal"}).model


def encoded(ids: np.ndarray) -> str:
    return base64.b64encode(ids.astype("<i4").tobytes()).decode()


def experts(model: ModelSettings, rows: int) -> np.ndarray:
    shape = (rows, model.num_layers, model.num_experts_per_token)
    return np.random.default_rng(rows).integers(0, model.num_experts, shape)


def answer(model: ModelSettings, **meta: Any) -> dict[str, Any]:
    """What a server says about two sampled tokens."""
    usual = {
        "finish_reason": {"type": "stop", "matched": 1},
        "output_token_logprobs": [[-0.1, 7, None], [-2.5000001, 1, None]],
        "weight_versions": [{"version": "8", "start": 0, "end": 2}],
        "routed_experts": encoded(experts(model, 4)),
    }
    return {"output_ids": [7, 1], "meta_info": usual | meta}


def decode(model: ModelSettings, content: dict[str, Any], routed: bool = True):
    return decode_response(json.dumps(content, separators=(",", ":")).encode(), PROMPT, Expected(8, model, routed))


def test_a_response_holds_what_the_server_said(model: ModelSettings) -> None:
    response = decode(model, answer(model))
    assert response.response_ids.tolist() == [7, 1]
    assert response.rollout_logprobs.dtype == np.float32
    assert response.rollout_logprobs.tolist() == [np.float32(-0.1), np.float32(-2.5000001)]
    assert response.policy_version.tolist() == [8, 8]
    assert response.finish_reason == "stop"
    assert (response.routed_experts == experts(model, 4)).all()
    assert decode(model, answer(model, routed_experts="x"), routed=False).routed_experts is None


def test_an_answer_that_breaks_off_at_any_byte_is_generated_again(model: ModelSettings) -> None:
    whole = json.dumps(answer(model), separators=(",", ":")).encode()
    for length in range(len(whole)):
        with pytest.raises(Unusable):
            decode_response(whole[:length], PROMPT, Expected(8, model, True))


def test_spans_of_one_version_may_be_split(model: ModelSettings) -> None:
    spans = [{"version": "8", "start": 0, "end": 1}, {"version": "8", "start": 1, "end": 2}]
    assert decode(model, answer(model, weight_versions=spans)).policy_version.tolist() == [8, 8]


def test_a_truncated_response_says_so(model: ModelSettings) -> None:
    assert decode(model, answer(model, finish_reason={"type": "length", "length": 2})).finish_reason == "length"


@pytest.mark.parametrize(
    ("meta", "reason"),
    [
        ({"finish_reason": {"type": "abort", "message": "Aborted"}}, "aborted the response: Aborted"),
        ({"finish_reason": {"type": "odd"}}, "unknown finish reason"),
        ({"finish_reason": None}, "lacks what was asked for"),
        ({"weight_versions": [{"version": "7", "start": 0, "end": 2}]}, r"versions \[7\] while version 8"),
        ({"weight_versions": [{"version": "none", "start": 0, "end": 2}]}, "version 'none'"),
        ({"weight_versions": [{"version": "8", "start": 0, "end": 1}]}, "cover 1 of 2 tokens"),
        ({"weight_versions": [{"version": "8", "start": 1, "end": 2}]}, "tokens 1 to 2"),
        ({"weight_versions": [{"version": v, "start": i, "end": i + 1} for i, v in enumerate("78")]}, r"versions \[7, 8\]"),
        ({"output_token_logprobs": [[-0.1, 7, None]]}, "1 log-probs do not belong to the 2 sampled tokens"),
        ({"output_token_logprobs": [[-0.1, 7, None], [-0.2, 3, None]]}, "do not belong"),
        ({"output_token_logprobs": [[-0.1, 7, None], [float("-inf"), 1, None]]}, "not finite"),
        ({"output_token_logprobs": [[-0.1, 7, None], [None, 1, None]]}, "not finite"),
        ({"routed_experts": "AAAA"}, "4 base64 characters are not 32 int32"),
        ({"routed_experts": encoded(np.full(32, 16))}, "expert id 16 of a policy with 16 experts"),
        ({"routed_experts": encoded(np.full(32, 256))}, "not in 0..255"),
        ({"routed_experts": encoded(np.full(32, -1))}, "not in 0..255"),
    ],
)
def test_an_answer_that_must_not_be_trained_on_is_refused(model: ModelSettings, meta: dict[str, Any], reason: str) -> None:
    with pytest.raises(Unusable, match=reason):
        decode(model, answer(model, **meta))


def test_missing_experts_and_empty_or_broken_answers_are_refused(model: ModelSettings) -> None:
    without = answer(model)
    del without["meta_info"]["routed_experts"]
    with pytest.raises(Unusable, match="none came back"):
        decode(model, without)
    with pytest.raises(Unusable, match="lacks what was asked for"):
        decode_response(b'{"output_ids": [1, 2', PROMPT, Expected(8, model, False))
    empty = answer(model, output_token_logprobs=[], weight_versions=[]) | {"output_ids": []}
    with pytest.raises(Unusable, match=r"versions \[\]"):
        decode(model, empty)


@settings(deadline=None)
@given(st.lists(st.integers(0, 255), max_size=100))
def test_base64_of_int32_decodes_to_the_same_bytes(ids: list[int]) -> None:
    assert experts_from_base64(encoded(np.array(ids, dtype=np.int64)).encode(), len(ids)).tolist() == ids


@pytest.mark.parametrize("count", [49151, 49152, 49153, 98305])  # around the edges of the chunks
def test_sizes_around_the_chunks(count: int) -> None:
    ids = np.random.default_rng(0).integers(0, 256, count)
    assert (experts_from_base64(encoded(ids).encode(), count) == ids).all()


@settings(deadline=None)
@given(st.integers(0, 8), st.one_of(st.integers(256, 2**31 - 1), st.integers(-(2**31), -1)))
def test_a_value_that_is_no_byte_is_refused_at_every_position(position: int, value: int) -> None:
    ids = np.zeros(9, dtype=np.int64)
    ids[position] = value
    with pytest.raises(ValueError, match=r"not in 0\.\.255"):
        experts_from_base64(encoded(ids[: position + 1]).encode(), position + 1)


@pytest.mark.parametrize("text", [b"AAAAAAAAAAAAAAA!", b"!AAAAAAAAAAAAAAA", b"AAAAAAAAAAAAAAAAAAAA!A=="])
def test_text_that_is_not_base64_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="base64"):
        experts_from_base64(text, len(text) * 3 // 16)
