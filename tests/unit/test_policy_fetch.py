"""The published base policy from a local folder in the hub's layout: brought in when whole, refused by name when not."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path

import huggingface_hub
import pytest
import torch
from safetensors.torch import save_file

from pipeline.artifacts import read_json, sha256
from pipeline.config import load_settings
from pipeline.policy import fetch
from pipeline.policy.hf_folder import hf_shapes, hf_state, policy_digest, read_policy, write_policy
from pipeline.policy.qwen3_moe import Policy
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


def test_shards_are_brought_in_and_their_hashes_recorded(model, tmp_path):
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


@pytest.mark.parametrize("same_file_system", [True, False])
def test_the_folder_holds_files_of_its_own_and_can_be_moved(model, tmp_path, monkeypatch, same_file_system):
    if not same_file_system:
        monkeypatch.setattr(fetch.os, "link", _refuse)
    fetch.fetch_policy(model, tmp_path / "out")
    digest = policy_digest(tmp_path / "out")
    assert not any(path.is_symlink() for path in (tmp_path / "out").iterdir())
    shard = Path(str(model.path)) / "model-00001-of-00002.safetensors"
    assert (shard.stat().st_nlink == 2) == same_file_system
    fetch.fetch_policy(model, tmp_path / "out")  # again over what is there, and nothing else is left
    shutil.rmtree(str(model.path))
    moved = shutil.copytree(tmp_path / "out", tmp_path / "elsewhere")
    assert policy_digest(moved) == digest and {path.name for path in moved.iterdir()} == {
        path.name for path in (tmp_path / "out").iterdir()
    }
    fetch.check_tensors(moved, sorted(moved.glob("*.safetensors")), model)
    assert not list((tmp_path / "out").glob(".*"))


def test_a_branch_stays_at_the_commit_it_had_first(model, tmp_path, monkeypatch):
    """The hub's branch moves between two runs of the rule; Snakemake has removed the outputs, the manifest among them."""
    asked, commits = [], {"main": "a" * 40}
    for commit in ("a" * 40, "b" * 40):
        shutil.copytree(str(model.path), tmp_path / "hub" / commit)

    def download(name: str, *, revision: str, **_: object) -> str:
        asked.append(revision)
        return str(tmp_path / "hub" / commits.get(revision, revision))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr(fetch, "_published_hashes", lambda *_: {})
    published, out = model.model_copy(update={"path": "owner/name", "revision": "main"}), tmp_path / "out"
    fetch.fetch_policy(published, out)
    (out / "manifest.json").unlink()
    commits["main"] = "b" * 40
    fetch.fetch_policy(published, out)
    assert asked == ["main", "a" * 40] and read_json(out / "manifest.json")["revision"] == "a" * 40
    fetch.fetch_policy(published.model_copy(update={"revision": "b" * 40}), out)  # a commit is taken at its word
    assert read_json(out / "manifest.json")["revision"] == "b" * 40
    assert read_json(out / "revisions.json") == {"owner/name@main": "a" * 40}


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


def _refuse(*_: object) -> None:
    raise OSError(errno.EXDEV, "another file system")


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _edit(folder: Path, **values: object) -> None:
    config = read_json(folder / "config.json") | values
    (folder / "config.json").write_text(json.dumps(config))
