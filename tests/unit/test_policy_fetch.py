"""The published base policy from a local folder in the hub's layout: linked when whole, refused by name when not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from pipeline.artifacts import read_json, sha256
from pipeline.config import load_settings
from pipeline.policy import fetch
from pipeline.policy.checkpoint import hf_shapes, hf_state, policy_digest, read_policy, write_policy
from pipeline.policy.model import Policy
from pipeline.policy.tokenizer import build_tokenizer
from pipeline.sections import ModelSettings


@pytest.fixture
def model(tmp_path: Path) -> ModelSettings:
    """A tiny policy in two shards with an index, as large ones are published."""
    folder = tmp_path / "published"
    settings = load_settings(overrides={"preset": "tiny"}).model
    policy = Policy(settings, torch.Generator().manual_seed(0))
    write_policy(folder, policy, build_tokenizer(settings.vocab_size))
    state = hf_state(policy)
    names = sorted(state)
    shards = {"model-00001-of-00002.safetensors": names[:40], "model-00002-of-00002.safetensors": names[40:]}
    for file, part in shards.items():
        save_file({name: state[name] for name in part}, folder / file, {"format": "pt"})
    index = {"weight_map": {name: file for file, part in shards.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model.safetensors").unlink()
    (folder / "manifest.json").unlink()
    return settings.model_copy(update={"path": str(folder)})


def test_shards_are_linked_and_their_hashes_recorded(model, tmp_path):
    out = tmp_path / "out"
    fetch.fetch_policy(model, out)
    manifest = read_json(out / "manifest.json")
    assert manifest["revision"] == "local" and manifest["verified_against_hub"] == []
    for name, value in manifest["sha256"].items():
        assert sha256(out / name) == value
    assert {path.name for path in out.glob("*.safetensors")} == {
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    }
    digest = policy_digest(out)
    shard = Path(str(model.path)) / "model-00001-of-00002.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(bytes(content))
    fetch.fetch_policy(model, out)
    assert policy_digest(out) != digest


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.joinpath("model-00002-of-00002.safetensors").unlink(), "lacks the shards model-00002-of-00002"),
        (
            lambda f: f.joinpath("model-00001-of-00002.safetensors").write_bytes(b"\x08"),
            "model-00001-of-00002.safetensors is damaged",
        ),
        (lambda f: _truncate(f / "model-00002-of-00002.safetensors"), "model-00002-of-00002.safetensors is damaged"),
        (lambda f: save_file({"lm_head.weight": torch.zeros(2, 2)}, f / "model-extra.safetensors"), "holds lm_head.weight, which"),
        (lambda f: _edit(f, hidden_size=32), "hidden_size is 32 in config.json and model.hidden_size is 64"),
        (lambda f: _edit(f, tie_word_embeddings=True), "tie_word_embeddings is True"),
    ],
)
def test_what_is_not_the_described_policy_is_refused_by_name(model, tmp_path, change, message):
    change(Path(str(model.path)))
    with pytest.raises(ValueError, match=message):
        fetch.fetch_policy(model, tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_shard_that_is_not_what_the_hub_publishes_is_refused(model, tmp_path, monkeypatch):
    monkeypatch.setattr(fetch, "_published_hashes", lambda *_: {"model-00001-of-00002.safetensors": "0" * 64})
    with pytest.raises(ValueError, match=r"model-00001-of-00002\.safetensors differ from what the hub publishes"):
        fetch.fetch_policy(model, tmp_path / "out")


def test_missing_tensors_are_named(model, tmp_path):
    shapes = hf_shapes(model)
    with pytest.raises(ValueError, match=r"missing lm_head.weight; missing model.embed_tokens.weight"):
        fetch.check_tensors(tmp_path, [], model)
    assert shapes["model.layers.1.mlp.experts.15.down_proj.weight"] == (64, 16)


def test_the_papers_policy_has_its_published_size():
    shapes = hf_shapes(load_settings(overrides={"preset": "full"}).model)
    assert len(shapes) == 18_867
    assert sum(torch.Size(shape).numel() for shape in shapes.values()) == 30_532_122_624


def test_an_incomplete_folder_has_no_digest(tmp_path):
    with pytest.raises(ValueError, match=r"manifest.json does not exist"):
        policy_digest(tmp_path)
    settings = load_settings(overrides={"preset": "tiny"}).model
    write_policy(tmp_path, Policy(settings, torch.Generator().manual_seed(0)), build_tokenizer(settings.vocab_size))
    assert len(policy_digest(tmp_path)) == 64 and read_policy(tmp_path)[1].hidden_size == settings.hidden_size


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _edit(folder: Path, **values: object) -> None:
    config = read_json(folder / "config.json") | values
    (folder / "config.json").write_text(json.dumps(config))
