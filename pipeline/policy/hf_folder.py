"""A policy as a Hugging Face Qwen3Moe folder: config.json, model.safetensors and the tokenizer's files.

`hf_state` and `load_hf_state` are also what weight publication uses: every engine speaks these names.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from pipeline.artifacts import atomic_path, read_json, sha256, write_json
from pipeline.policy.qwen3_moe import Layer, Policy
from pipeline.policy.tokenizer import Tokenizer, read_tokenizer
from pipeline.sections import ModelSettings

# config.json's name of each setting
CONFIG_KEYS = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_attention_heads": "num_attention_heads",
    "num_key_value_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "num_experts": "num_experts",
    "num_experts_per_token": "num_experts_per_tok",
    "expert_intermediate_size": "moe_intermediate_size",
    "dense_layers": "mlp_only_layers",
    "dense_intermediate_size": "intermediate_size",
    "rope_theta": "rope_theta",
    "rms_norm_eps": "rms_norm_eps",
}
# what Policy computes, and the only values it can read
FIXED_CONFIG: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "hidden_act": "silu",
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "attention_bias": False,
    "tie_word_embeddings": False,
}
MANIFEST = "manifest.json"  # the files' hashes, written last: its presence means that the folder is complete
MAX_POSITION_EMBEDDINGS = 32768  # what other engines may allocate for; nothing here depends on it


def hf_state(policy: Policy) -> dict[str, Tensor]:
    """A copy of the weights under their Hugging Face names and shapes."""
    return {name: view.detach().clone(memory_format=torch.contiguous_format) for name, view in _named_views(policy)}


def load_hf_state(policy: Policy, state: Mapping[str, Tensor]) -> None:
    """Copy `state` into the policy, in the policy's dtype. ValueError names what is missing, unexpected or of another shape."""
    views = dict(_named_views(policy))
    problems = [f"missing {name}" for name in views.keys() - state.keys()]
    problems += [f"unexpected {name}" for name in state.keys() - views.keys()]
    problems += [
        f"{name} of shape {list(state[name].shape)} instead of {list(view.shape)}"
        for name, view in views.items()
        if name in state and state[name].shape != view.shape
    ]
    if problems:
        shown = "; ".join(sorted(problems)[:8]) + (f"; and {len(problems) - 8} more" if len(problems) > 8 else "")
        raise ValueError(f"the weights do not fit the policy: {shown}")
    with torch.no_grad():
        for name, view in views.items():
            view.copy_(state[name])


def hf_shapes(settings: ModelSettings) -> dict[str, tuple[int, ...]]:
    """The shape of every weight by its Hugging Face name; nothing is allocated."""
    with torch.device("meta"):
        return {name: tuple(view.shape) for name, view in _named_views(Policy(settings))}


def policy_digest(folder: Path) -> str:
    """One hash that stands for the weights in the folder, from its manifest. ValueError while the folder is incomplete."""
    hashes = read_json(folder / MANIFEST)["sha256"]
    weights = {name: value for name, value in sorted(hashes.items()) if name.endswith(".safetensors")}
    return hashlib.sha256(json.dumps(weights).encode()).hexdigest()


def write_policy(folder: Path, policy: Policy, tokenizer: Tokenizer) -> None:
    """Write the folder, its manifest last."""
    settings = policy.settings.model_dump(mode="json")
    config = {
        "architectures": ["Qwen3MoeForCausalLM"],
        **FIXED_CONFIG,
        **{key: settings[name] for name, key in CONFIG_KEYS.items()},
        "max_position_embeddings": MAX_POSITION_EMBEDDINGS,
        "eos_token_id": list(tokenizer.eos_token_ids),
        "pad_token_id": tokenizer.pad_token_id,
        "torch_dtype": str(policy.head.dtype).removeprefix("torch."),
    }
    write_json(folder / "config.json", config)
    tokenizer.write(folder)
    with atomic_path(folder / "model.safetensors") as temporary:
        temporary.write_bytes(save(hf_state(policy), metadata={"format": "pt"}))
    names = ("config.json", "tokenizer.json", "generation_config.json", "model.safetensors")
    write_json(folder / MANIFEST, {"path": None, "revision": "built", "sha256": {name: sha256(folder / name) for name in names}})


def read_policy(folder: Path) -> tuple[Policy, ModelSettings, Tokenizer]:
    """Read a folder written by `write_policy` (or by transformers, in one file) as a float32 policy."""
    settings = read_model_settings(folder)
    path = folder / "model.safetensors"
    try:
        state = load_file(path)
    except FileNotFoundError as error:
        raise ValueError(f"{path} does not exist; {folder} is not a complete policy folder") from error
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or incomplete ({error}); delete {folder} and make it again") from error
    policy = Policy(settings)
    load_hf_state(policy, state)
    return policy, settings, read_tokenizer(folder)


def read_model_settings(folder: Path) -> ModelSettings:
    """The sizes in config.json; ValueError for a model that Policy does not compute."""
    path = folder / "config.json"
    config = read_json(path)
    config.setdefault("rope_theta", (config.get("rope_parameters") or {}).get("rope_theta"))
    missing = [key for key in CONFIG_KEYS.values() if config.get(key) is None]
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing)}; it does not describe a Qwen3-MoE")
    for key, value in FIXED_CONFIG.items():
        if config.get(key, value) != value:
            raise ValueError(f"{path}: {key} is {config[key]!r}, but the policy computes {value!r} only")
    return ModelSettings(path=None, revision=None, **{name: config[key] for name, key in CONFIG_KEYS.items()})


def _named_views(policy: Policy) -> Iterator[tuple[str, Tensor]]:
    """Every weight as (Hugging Face name, view of the parameter that stores it, in Hugging Face's shape)."""
    yield "model.embed_tokens.weight", policy.embedding
    for index, layer in enumerate(policy.layers):
        assert isinstance(layer, Layer)
        for name, view in _layer_views(layer):
            yield f"model.layers.{index}.{name}.weight", view
    yield "model.norm.weight", policy.norm
    yield "lm_head.weight", policy.head


def _layer_views(layer: Layer) -> Iterator[tuple[str, Tensor]]:
    width, kv_rows = layer.settings.head_dim, layer.settings.num_key_value_heads * layer.settings.head_dim
    query, key, value = layer.qkv.split([layer.settings.num_attention_heads * width, kv_rows, kv_rows])
    yield "input_layernorm", layer.attention_norm
    yield "self_attn.q_proj", query
    yield "self_attn.k_proj", key
    yield "self_attn.v_proj", value
    yield "self_attn.q_norm", layer.query_norm
    yield "self_attn.k_norm", layer.key_norm
    yield "self_attn.o_proj", layer.output
    yield "post_attention_layernorm", layer.feed_forward_norm
    if not layer.dense:
        yield "mlp.gate", layer.router
    for expert, (gate_up, down) in enumerate(zip(layer.gate_up, layer.down, strict=True)):
        prefix = "mlp" if layer.dense else f"mlp.experts.{expert}"
        gate, up = gate_up.chunk(2)
        yield f"{prefix}.gate_proj", gate
        yield f"{prefix}.up_proj", up
        yield f"{prefix}.down_proj", down.t()
