"""Megatron-core's optimizer with the settings of `trainer`: AdamW, float32 main weights, optionally distributed or on the host.

The step is taken apart into norm, clip and update, because a step whose loss or gradient is not finite must not happen. Weights of
one dimension do not decay, which is megatron-core's rule.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32

from pipeline.sections import MegatronSettings, TrainerSettings


class PolicyOptimizer:
    """The optimizer of a rank's parameters, which hold their initial weights already: main weights are copies of them."""

    def __init__(self, model: DistributedDataParallel, trainer: TrainerSettings, megatron: MegatronSettings) -> None:
        self.gradient_clip = trainer.gradient_clip
        dtype = getattr(torch, megatron.dtype)
        config = OptimizerConfig(
            optimizer="adam",
            lr=trainer.learning_rate,
            min_lr=trainer.learning_rate,
            weight_decay=trainer.weight_decay,
            adam_beta1=trainer.beta1,
            adam_beta2=trainer.beta2,
            adam_eps=trainer.adam_eps,
            clip_grad=trainer.gradient_clip,
            bf16=dtype == torch.bfloat16,
            params_dtype=dtype,
            use_distributed_optimizer=megatron.distributed_optimizer,
            use_precision_aware_optimizer=megatron.optimizer_offload,  # which the offloaded optimizer is built on
            optimizer_cpu_offload=megatron.optimizer_offload,
            optimizer_offload_fraction=1.0 if megatron.optimizer_offload else 0.0,
            overlap_cpu_optimizer_d2h_h2d=megatron.optimizer_offload,
        )
        self._chained = get_megatron_optimizer(config, [model])
        for group in self._chained.param_groups:  # megatron-core leaves this to a scheduler; the rate here is constant
            group["lr"] = trainer.learning_rate
            group["weight_decay"] = trainer.weight_decay * group["wd_mult"]

    def zero_grad(self) -> None:
        self._chained.zero_grad()

    def clip(self) -> float:
        """Clip the gradient and return its norm over all ranks from before."""
        self._chained.prepare_grads()
        norm = float(self._chained.get_grad_norm())
        for part in self.parts:
            parameters = part.get_parameters()
            if parameters:
                decoupled = part.config.use_precision_aware_optimizer_no_fp8_or_ds_fp8
                clip_grad_by_total_norm_fp32(parameters, self.gradient_clip, norm, decoupled)
        return norm

    def apply(self) -> None:
        self._chained.step_with_ready_grads()

    @property
    def parts(self) -> list[Any]:
        """Megatron's optimizers: of the parameters that all ranks share, and of the experts."""
        return [part for part in self._chained.chained_optimizers if not part.is_stub_optimizer]

    @property
    def adams(self) -> list[torch.optim.Optimizer]:
        """What holds the moments and the main weights; an offloaded part has an optimizer of its own for each weight."""
        return [adam for part in self.parts for adam in getattr(part.optimizer, "sub_optimizers", [part.optimizer])]
