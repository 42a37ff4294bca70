"""Megatron-core's optimizer with the settings of `trainer`: AdamW, float32 main weights, optionally distributed or on the host.

The step is taken apart into norm, clip and update, because a step whose loss or gradient is not finite must not happen. Weights of
one dimension do not decay, which is megatron-core's rule.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32
from torch import Tensor

from pipeline.objective.part import Buffers, Gradient
from pipeline.sections import MegatronSettings, TrainerSettings


class _ShardedGradient:
    """This rank's part of the gradient, by the optimizer's numbering of parameters, which the model and the layout fix."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self.buffers: dict[str, Tensor] = {}
        self._counted: list[tuple[list[str], dist.ProcessGroup | None]] = []
        for number, part in enumerate(parts):
            attribute = "decoupled_grad" if part.config.use_precision_aware_optimizer_no_fp8_or_ds_fp8 else "grad"
            gradients = [getattr(parameter, attribute, None) for parameter in part.get_parameters()]
            own = {f"{number}.{index}": gradient for index, gradient in enumerate(gradients) if gradient is not None}
            once = {id(gradient) for gradient in part.get_main_grads_for_grad_norm()}  # not what other ranks hold as well
            self._counted.append(([name for name, entry in own.items() if id(entry) in once], part.get_grad_stats_parallel_group()))
            self.buffers |= own

    def dot(self, a: Buffers, b: Buffers) -> float:
        total = 0.0
        for names, group in self._counted:
            own = [torch.dot(a[name].flatten().double(), b[name].flatten().double()) for name in names]
            product = torch.stack(own).sum() if own else torch.zeros((), dtype=torch.float64, device=self._device)
            dist.all_reduce(product, group=group)
            total += float(product)
        return total

    @property
    def _device(self) -> torch.device:
        return next(iter(self.buffers.values())).device


class PolicyOptimizer:
    """The optimizer of a rank's parameters, which hold their initial weights already: main weights are copies of them."""

    def __init__(self, model: DistributedDataParallel, trainer: TrainerSettings, megatron: MegatronSettings) -> None:
        self.gradient_clip, self.learning_rate = trainer.gradient_clip, trainer.learning_rate
        self._ready = False  # whether the accumulated gradient is where the optimizer reads it
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
            group["lr"] = self.learning_rate
            group["weight_decay"] = trainer.weight_decay * group["wd_mult"]

    def zero_grad(self) -> None:
        self._chained.zero_grad()
        self._ready = False

    def gradient(self) -> Gradient:
        self._prepare()
        return _ShardedGradient(self._chained.chained_optimizers)

    def _prepare(self) -> None:
        """Once a step: a second copy would undo what has been written into the first."""
        if not self._ready:
            self._chained.prepare_grads()
            self._ready = True

    def clip(self) -> float:
        """Clip the gradient and return its norm over all ranks from before."""
        self._prepare()
        norm = float(self._chained.get_grad_norm())
        for part in self.parts:
            parameters = part.get_parameters()
            if parameters:
                decoupled = part.config.use_precision_aware_optimizer_no_fp8_or_ds_fp8
                clip_grad_by_total_norm_fp32(parameters, self.gradient_clip, norm, decoupled)
        return norm

    def apply(self, learning_rate_scale: float) -> None:
        for group in self._chained.param_groups:
            group["lr"] = self.learning_rate * learning_rate_scale
        self._chained.step_with_ready_grads()

    @property
    def parts(self) -> list[Any]:
        """Megatron's optimizers: of the parameters that all ranks share, and of the experts."""
        return [part for part in self._chained.chained_optimizers if not part.is_stub_optimizer]

    @property
    def adams(self) -> list[torch.optim.Optimizer]:
        """What holds the moments and the main weights; an offloaded part has an optimizer of its own for each weight."""
        return [adam for part in self.parts for adam in getattr(part.optimizer, "sub_optimizers", [part.optimizer])]
