"""Chat templates and stop tokens of a policy folder, beside transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers
from transformers import AutoTokenizer

from benchmarks.published_files import make_problems, write_dapo, write_dolci
from pipeline.config import load_settings
from pipeline.policy.tokenizer import read_tokenizer
from pipeline.problems.chat import read_chat_template, read_stop_tokens
from pipeline.problems.prepare import prepare, read_problems
from pipeline.section import SettingsError

TEMPLATE = (
    "{%- for message in messages %}\n{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}\n"
    "{%- endfor %}\n{%- if add_generation_prompt %}\n{{- '<|im_start|>assistant\\n' }}\n{%- endif %}"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A byte-level tokenizer with the special tokens of Qwen3-Base, whose configs name <|endoftext|> alone."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    folder = tmp_path / "policy"
    folder.mkdir()
    backend.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"eos_token_id": 256}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 256, "pad_token_id": 256}))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_every_end_stops_and_the_contradiction_is_listed(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    stop = read_stop_tokens(folder, tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")))
    assert stop.ids == (256, 258)
    assert stop.conflicts == ("generation_config.json: [256]", "config.json: [256]", "tokenizer_config.json: [256]")
    assert read_tokenizer(folder).eos_token_ids == (256, 258)
    assert "all of (256, 258) do" in caplog.text


def test_agreeing_files_have_no_conflict(folder: Path) -> None:
    for name in ("config.json", "generation_config.json"):
        (folder / name).write_text(json.dumps({"eos_token_id": [256, 258]}))
    (folder / "tokenizer_config.json").unlink()
    stop = read_stop_tokens(folder, tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")))
    assert stop.ids == (256, 258) and stop.conflicts == ()


def test_a_folder_without_an_end_is_refused(folder: Path) -> None:
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        (folder / name).write_text("{}")
    bare = tokenizers.Tokenizer(models.BPE({"a": 0}, []))
    with pytest.raises(ValueError, match="names no token that ends a response"):
        read_stop_tokens(folder, bare)
    (folder / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    with pytest.raises(ValueError, match=r"'</s>' is not in tokenizer\.json"):
        read_stop_tokens(folder, bare)


def test_the_chat_template_renders_as_transformers_does(folder: Path) -> None:
    render, theirs = read_chat_template(folder), AutoTokenizer.from_pretrained(folder)
    ours = read_tokenizer(folder)
    for message in ("Find $x$.", "设 {{ x }}\n\n<b>", "  blanks  "):
        messages = [{"role": "user", "content": message}]
        text = render(message)
        assert text == theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        encoded = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text) == encoded and encoded[0] == 257 and 258 in encoded


def test_a_missing_or_broken_chat_template_is_named(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(ValueError, match="not valid Jinja"):
        read_chat_template(folder)
    (folder / "chat_template.jinja").write_text("{{ raise_exception('no user') }}")
    with pytest.raises(ValueError, match="refuses the message 'hello': no user"):
        read_chat_template(folder)("hello")
    (folder / "chat_template.jinja").unlink()
    (folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"no chat template.*; set published\.chat_template to false"):
        read_chat_template(folder)


def test_prepared_prompts_carry_the_chat_template_and_long_ones_are_counted(folder: Path, tmp_path: Path) -> None:
    problems = make_problems(40, seed=5)
    write_dapo(tmp_path / "dapo/data/x.parquet", problems, repeats=2)
    write_dolci(tmp_path / "dolci/data/x.parquet", make_problems(10, seed=6))
    local = {name: {"path": str(tmp_path / name), "revision": None} for name in ("dapo", "dolci")}
    published = {**local, "tokenizer": {"path": str(folder), "revision": None}, "max_prompt_tokens": 480}
    overrides = {"preset": "full", "published": published, "model": {"path": str(folder)}}
    prepare(load_settings(overrides=overrides).problem_stage(), tmp_path / "out")
    read, tokenizer = read_problems(tmp_path / "out/train.parquet"), read_tokenizer(folder)
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    long = sum(manifest["counts"][name]["drops"].get("longer than 480 tokens", 0) for name in ("dapo", "dolci"))
    assert 0 < long < 50 and len(read) == 50 - long
    assert max(len(tokenizer.encode(problem.prompt)) for problem in read) <= 480
    assert all(p.prompt.startswith("<|im_start|>user\nSolve") and p.prompt.endswith("<|im_start|>assistant\n") for p in read)
    assert manifest["policy"]["stop_token_ids"] == [256, 258]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ({"max_prompt_tokens": 4096}, "max_prompt_tokens 4096 exceeds the 4095"),
        ({"tokenizer": None}, "tokenizer is null, but chat_template"),
        ({"tokenizer": {"path": "other/model"}}, "'other/model' is not model.path"),
    ],
)
def test_contradictory_settings_are_refused(override: dict, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load_settings(overrides={"preset": "full", "published": override})
