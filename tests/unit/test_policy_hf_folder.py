"""Hugging Face folders: the same logits as transformers, exact round trips, clear errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from pipeline.policy.hf_folder import hf_state, load_hf_state, read_policy, write_policy
from pipeline.policy.packing import pack
from pipeline.policy.qwen3_moe import Policy
from pipeline.policy.tokenizer import build_tokenizer
from pipeline.sections import ModelSettings

SIZES: dict[str, Any] = {
    "path": None,
    "revision": None,
    "vocab_size": 64,
    "hidden_size": 32,
    "num_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts": 8,
    "num_experts_per_token": 3,
    "expert_intermediate_size": 8,
    "dense_layers": (),
    "dense_intermediate_size": 24,
    "rope_theta": 5000.0,
    "rms_norm_eps": 1e-5,
}


def make_policy(seed: int = 0, **changes: Any) -> Policy:
    """A policy with random weights, norm weights included."""
    generator = torch.Generator().manual_seed(seed)
    policy = Policy(ModelSettings(**{**SIZES, **changes}), generator)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if name.endswith("norm"):
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return policy


@pytest.mark.parametrize("dense_layers", [(), (0,), (1,)])
def test_logits_equal_transformers(tmp_path: Path, dense_layers: tuple[int, ...]) -> None:
    policy = make_policy(dense_layers=dense_layers)
    write_policy(tmp_path, policy, build_tokenizer(64))
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager").eval()
    assert reference.config.rope_parameters["rope_theta"] == 5000.0
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 64, size, dtype=np.int32) for size in (1, 9, 20)]
    responses = [rng.integers(0, 64, size, dtype=np.int32) for size in (5, 12, 30)]
    with torch.no_grad():
        logits = torch.split(policy(pack(prompts, responses)) @ policy.head.t(), [6, 21, 50])
        for prompt, response, ours in zip(prompts, responses, logits, strict=True):
            ids = torch.from_numpy(np.concatenate([prompt, response]).astype(np.int64))
            theirs = reference(ids[None]).logits[0]
            assert (ours - theirs).abs().max() < 1e-5
            assert theirs.std() > 0.5  # the comparison means something


@pytest.mark.parametrize("dense_layers", [(), (1,)])
def test_round_trip_through_disk_is_exact(tmp_path: Path, dense_layers: tuple[int, ...]) -> None:
    policy = make_policy(dense_layers=dense_layers)
    write_policy(tmp_path, policy, build_tokenizer(64))
    again, settings, tokenizer = read_policy(tmp_path)
    assert settings == policy.settings
    assert tokenizer.eos_token_ids == (1,) and tokenizer.encode("3x+4=19?") == build_tokenizer(64).encode("3x+4=19?")
    for (name, ours), (_, theirs) in zip(policy.named_parameters(), again.named_parameters(), strict=True):
        assert torch.equal(ours, theirs), name


def test_state_names_cover_every_weight_once() -> None:
    policy = make_policy(dense_layers=(0,))
    state = hf_state(policy)
    assert sum(tensor.numel() for tensor in state.values()) == sum(parameter.numel() for parameter in policy.parameters())
    assert state["model.layers.0.mlp.down_proj.weight"].shape == (32, 24)
    assert state["model.layers.1.mlp.experts.7.gate_proj.weight"].shape == (8, 32)


def test_state_is_a_snapshot() -> None:
    policy = make_policy()
    state = hf_state(policy)
    before = state["lm_head.weight"].clone()
    with torch.no_grad():
        policy.head.add_(1.0)
    assert torch.equal(state["lm_head.weight"], before)
    load_hf_state(policy, state)
    assert torch.equal(policy.head, before)


def test_state_that_does_not_fit_names_every_fault() -> None:
    policy = make_policy()
    state = hf_state(policy)
    state["model.layers.9.mlp.gate.weight"] = state.pop("model.layers.1.mlp.gate.weight")
    state["lm_head.weight"] = torch.zeros(63, 32)
    with pytest.raises(ValueError) as error:
        load_hf_state(policy, state)
    for fault in (
        "missing model.layers.1.mlp.gate.weight",
        "unexpected model.layers.9.mlp.gate.weight",
        r"[63, 32] instead of [64, 32]",
    ):
        assert fault in str(error.value)


def test_truncated_weights_are_a_clear_error(tmp_path: Path) -> None:
    write_policy(tmp_path, make_policy(), build_tokenizer(64))
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="damaged or incomplete"):
        read_policy(tmp_path)
    path.unlink()
    with pytest.raises(ValueError, match="not a complete policy folder"):
        read_policy(tmp_path)


@pytest.mark.parametrize(("key", "value"), [("norm_topk_prob", False), ("tie_word_embeddings", True), ("model_type", "llama")])
def test_model_of_another_kind_is_refused(tmp_path: Path, key: str, value: object) -> None:
    write_policy(tmp_path, make_policy(), build_tokenizer(64))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, key: value}))
    with pytest.raises(ValueError, match=key):
        read_policy(tmp_path)
