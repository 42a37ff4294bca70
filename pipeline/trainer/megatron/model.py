"""The policy as a Megatron-core GPTModel: Qwen3-MoE from ModelSettings, in this rank's part of the layout.

PolicyModel ends with the final hidden states; scores.py turns them into log-probs, so that logits never exist whole. `local` layers
are plain PyTorch with an attention of this module for packed sequences; `transformer_engine` layers bring their own.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.module import Float16Module, MegatronModule
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch.nn import functional

from pipeline.policy.hf_folder import MAX_POSITION_EMBEDDINGS
from pipeline.sections import MegatronSettings, ModelSettings
from pipeline.trainer.megatron.layout import Groups
from pipeline.trainer.megatron.names import ParameterSource


class PolicyModel(GPTModel):
    """A GPTModel whose last stage returns the normalised hidden states [tokens, 1, hidden], cut over tensor ranks."""

    def _postprocess(self, hidden_states: Tensor, **_: Any) -> Tensor:
        return hidden_states


class PackedAttention(MegatronModule):
    """Causal attention within each sequence of a packed batch: query [tokens, heads, width], key and value with fewer heads."""

    def __init__(self, config: TransformerConfig, *_: Any, softmax_scale: float | None = None, **__: Any) -> None:
        super().__init__(config)
        self.scale = softmax_scale

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        packed_seq_params: PackedSeqParams,
        **_: Any,
    ) -> Tensor:
        lengths = packed_seq_params.cu_seqlens_q.diff().tolist()
        parts = zip(*(states.split(lengths) for states in (query, key, value)), strict=True)
        mixed = [
            functional.scaled_dot_product_attention(
                *(states.transpose(0, 1)[None] for states in part), is_causal=True, scale=self.scale, enable_gqa=True
            )[0].transpose(0, 1)
            for part in parts
        ]
        return torch.cat(mixed).flatten(1)


def transformer_config(
    model: ModelSettings, megatron: MegatronSettings, device: torch.device, routing_replay: bool
) -> TransformerConfig:
    """Losses and gradients are sums: calculate_per_token_loss keeps Megatron from dividing by micro-batches or data ranks."""
    dtype, engine = getattr(torch, megatron.dtype), megatron.layer_spec == "transformer_engine"
    recompute = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    return TransformerConfig(
        **_sizes(model),
        **(recompute if megatron.recompute else {}),
        tensor_model_parallel_size=megatron.tensor_parallel,
        sequence_parallel=megatron.tensor_parallel > 1,
        pipeline_model_parallel_size=megatron.pipeline_parallel,
        expert_model_parallel_size=megatron.expert_parallel,
        expert_tensor_parallel_size=megatron.expert_tensor_parallel,
        variable_seq_lengths=True,
        calculate_per_token_loss=True,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        attention_softmax_in_fp32=True,
        moe_router_dtype="fp32",
        moe_router_load_balancing_type="none",
        moe_aux_loss_coeff=0.0,
        moe_token_dispatcher_type="alltoall",
        moe_enable_routing_replay=routing_replay,
        moe_grouped_gemm=engine,
        moe_permute_fusion=engine,
        apply_rope_fusion=engine,
        bias_activation_fusion=engine,
        use_cpu_initialization=device.type == "cpu",
        perform_initialization=False,
        gradient_accumulation_fusion=False,
        persist_layer_norm=engine,
        masked_softmax_fusion=False,
        bias_dropout_fusion=False,
    )


def _sizes(model: ModelSettings) -> dict[str, Any]:
    return {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "num_query_groups": model.num_key_value_heads,
        "kv_channels": model.head_dim,
        "ffn_hidden_size": model.dense_intermediate_size,
        "moe_ffn_hidden_size": model.expert_intermediate_size,
        "num_moe_experts": model.num_experts,
        "moe_router_topk": model.num_experts_per_token,
        "moe_layer_freq": [int(layer not in model.dense_layers) for layer in range(model.num_layers)],
        "normalization": "RMSNorm",
        "layernorm_epsilon": model.rms_norm_eps,
        "qk_layernorm": True,
        "gated_linear_unit": True,
        "activation_func": functional.silu,
        "add_bias_linear": False,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
    }


def build(model: ModelSettings, megatron: MegatronSettings, groups: Groups, routing_replay: bool) -> DistributedDataParallel:
    """This rank's part of the policy with arbitrary weights; gradients add up in float32 over micro-batches and data ranks."""
    # megatron-core forgets to define it where TransformerEngine is missing
    vars(moe_utils).setdefault("te_general_gemm", None)
    # nothing here draws random numbers; an inference tracker keeps megatron-core from forking generators around every layer
    model_parallel_cuda_manual_seed(0, inference_rng_tracker=True)
    config = transformer_config(model, megatron, groups.device, routing_replay)
    engine = megatron.layer_spec == "transformer_engine"
    spec = get_gpt_decoder_block_spec(config, use_transformer_engine=engine, normalization="RMSNorm")
    if not engine:
        for layer in spec.layer_specs:
            layer.submodules.self_attention.submodules.core_attention = PackedAttention
    policy = PolicyModel(
        config=config,
        transformer_layer_spec=spec,
        vocab_size=model.vocab_size,
        max_sequence_length=MAX_POSITION_EMBEDDINGS,
        pre_process=groups.layout.first_stage,
        post_process=groups.layout.last_stage,
        share_embeddings_and_output_weights=False,
        position_embedding_type="rope",
        rotary_base=model.rope_theta,
    ).to(groups.device)
    options = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True, use_distributed_optimizer=megatron.distributed_optimizer, overlap_grad_reduce=False
    )
    module = Float16Module(config, policy) if config.bf16 else policy
    return DistributedDataParallel(config, options, module)


def mark_cut(parameters: Mapping[str, torch.nn.Parameter], sources: Mapping[str, ParameterSource]) -> None:
    """Tell megatron-core which parameters differ between tensor ranks: it leaves copies out of the gradient norm.

    Its own marks are set with initial values, which are not made here, and are missing where experts are not cut themselves.
    """
    for name, source in sources.items():
        parameters[name].tensor_model_parallel = source.expert or source.cut != "whole"  # pyright: ignore


def parameters(model: DistributedDataParallel) -> Mapping[str, torch.nn.Parameter]:
    """The trained parameters by the names of names.py."""
    prefix = "module." if isinstance(model.module, Float16Module) else ""
    return {name.removeprefix(prefix): parameter for name, parameter in model.module.named_parameters()}
