"""The tiny tokenizer: lossless on everything the problems can say, readable by transformers."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from transformers import AutoTokenizer

from pipeline.policy.tokenizer import build_tokenizer, read_tokenizer
from pipeline.problems.arithmetic import response_text, sample


def test_every_problem_and_response_survives_the_round_trip() -> None:
    tokenizer, rng = build_tokenizer(64), Random(0)
    longest = 0
    for _ in range(3000):
        worked = sample(rng)
        response = response_text(worked, rng, direct_answer_share=0.2, wrong_step_share=0.3)
        for text in (worked.problem.prompt, response):
            assert tokenizer.decode(tokenizer.encode(text)) == text
        longest = max(longest, len(tokenizer.encode(worked.problem.prompt)) + len(tokenizer.encode(response)) + 1)
    assert longest <= 51  # the context of preset tiny is 64


def test_phrases_are_single_tokens() -> None:
    tokenizer = build_tokenizer(64)
    assert len(tokenizer.encode("Tom has 12 pens, buys 4, gives 3, left?")) == 10
    assert len(tokenizer.encode(r"\boxed{18}")) == 4


def test_special_tokens_are_skipped_but_reserved_ones_are_not() -> None:
    tokenizer = build_tokenizer(64)
    assert tokenizer.decode([*tokenizer.encode(r"\boxed{7}"), *tokenizer.eos_token_ids, tokenizer.pad_token_id]) == r"\boxed{7}"
    assert tokenizer.decode([*tokenizer.encode("1"), 63, *tokenizer.encode("8")]) != "18"


def test_unknown_piece_is_named() -> None:
    with pytest.raises(ValueError, match="' cats' in 'Tom has 3 cats, left"):
        build_tokenizer(64).encode("Tom has 3 cats, left?")


def test_vocabulary_must_hold_the_pieces() -> None:
    with pytest.raises(ValueError, match="vocab_size 20 is too small"):
        build_tokenizer(20)


def test_folder_reads_back_and_into_transformers(tmp_path: Path) -> None:
    tokenizer, rng = build_tokenizer(64), Random(1)
    tokenizer.write(tmp_path)
    ours, theirs = read_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert (ours.eos_token_ids, ours.pad_token_id) == ((1,), 0) == ((theirs.eos_token_id,), theirs.pad_token_id)
    assert len(theirs) == 64
    for _ in range(50):
        worked = sample(rng)
        text = worked.problem.prompt + response_text(worked, rng, 0.0, 0.0)
        ids = tokenizer.encode(text)
        assert ours.encode(text) == ids == theirs(text, add_special_tokens=False)["input_ids"]
        assert theirs.decode([*ids, 1], skip_special_tokens=True) == text


def test_damaged_file_is_a_clear_error(tmp_path: Path) -> None:
    build_tokenizer(64).write(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0", "trunc')
    with pytest.raises(ValueError, match=r"tokenizer\.json is not valid JSON"):
        read_tokenizer(tmp_path)
