"""Sizes of a policy from its shape: parameters, bytes, floating-point operations and key-value cache, per token and in total."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from pipeline.sections import ModelSettings

BF16, FP32 = 2, 4


@dataclass(frozen=True)
class ModelSize:
    """The shape of a decoder whose feed-forward blocks are experts, apart from `dense_layers` of them.

    A dense model has dense_layers == num_layers. Embedding and output matrix are separate (untied).
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    num_experts: int
    num_experts_per_token: int
    expert_intermediate_size: int
    dense_layers: int
    dense_intermediate_size: int

    @classmethod
    def of(cls, model: ModelSettings) -> ModelSize:
        names = cls.__dataclass_fields__.keys() - {"dense_layers"}
        return cls(dense_layers=len(model.dense_layers), **{name: getattr(model, name) for name in names})

    @property
    def moe_layers(self) -> int:
        return self.num_layers - self.dense_layers

    @cached_property
    def expert_parameters(self) -> int:
        """All experts of all layers: what expert parallelism spreads."""
        return self.moe_layers * self.num_experts * 3 * self.hidden_size * self.expert_intermediate_size

    @cached_property
    def other_parameters(self) -> float:
        """Everything but the experts: what tensor parallelism spreads (norms and routers are counted in, though replicated)."""
        return self.num_layers * self._block + 2 * self.vocab_size * self.hidden_size + self.hidden_size

    @property
    def _block(self) -> float:
        heads = self.num_attention_heads + 2 * self.num_key_value_heads
        attention = self.hidden_size * self.head_dim * (heads + self.num_attention_heads)
        norms = 2 * self.hidden_size + 2 * self.head_dim
        router = self.hidden_size * self.num_experts * self.moe_layers / self.num_layers
        dense = 3 * self.hidden_size * self.dense_intermediate_size * self.dense_layers / self.num_layers
        return attention + norms + router + dense

    @property
    def parameters(self) -> float:
        return self.expert_parameters + self.other_parameters

    @cached_property
    def active_parameters(self) -> float:
        """Parameters that a token is multiplied with: its chosen experts, and the output matrix but not the embedding."""
        experts = self.expert_parameters * self.num_experts_per_token / max(self.num_experts, 1)
        return experts + self.other_parameters - self.vocab_size * self.hidden_size

    def forward_flops(self, context: float) -> float:
        """Floating-point operations of one token's forward pass when it attends to `context` tokens."""
        attention = 4 * context * self.num_layers * self.num_attention_heads * self.head_dim
        return 2 * self.active_parameters + attention

    def weight_bytes(self, bytes_per_value: int = BF16) -> float:
        return self.parameters * bytes_per_value

    def read_bytes(self, tokens: float, bytes_per_value: int = BF16) -> float:
        """Bytes of the weights that one decode step over `tokens` sequences reads: experts that no token chose are left out."""
        share = 1.0 - (1.0 - self.num_experts_per_token / self.num_experts) ** tokens if self.moe_layers else 0.0
        return (share * self.expert_parameters + self.other_parameters - self.vocab_size * self.hidden_size) * bytes_per_value

    def cache_bytes_per_token(self, tensor_parallel: int = 1, bytes_per_value: int = BF16) -> float:
        """Key-value cache of one token on one GPU; beyond as many GPUs as key-value heads the heads are copied, not split."""
        heads = max(self.num_key_value_heads / tensor_parallel, 1)
        return self.num_layers * 2 * heads * self.head_dim * bytes_per_value

    @property
    def replay_bytes_per_token(self) -> int:
        """Expert ids of one token in all layers, one byte each (R3)."""
        return self.num_layers * self.num_experts_per_token


QWEN3_30B_A3B = ModelSize(151936, 2048, 48, 32, 4, 128, 128, 8, 768, 0, 6144)
QWEN25_7B = ModelSize(152064, 3584, 28, 28, 4, 128, 1, 1, 1, 28, 18944)
