"""The `torch` trainer: one float32 policy and AdamW behind the shared optimizer step (pipeline/trainer/step.py)."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from pipeline.config import CellSettings
from pipeline.objective.part import Buffers, Gradient, OneProcess
from pipeline.policy.hf_folder import hf_state, load_hf_state
from pipeline.policy.qwen3_moe import Policy
from pipeline.published_weights import PublishedWeights
from pipeline.records import RolloutBatch
from pipeline.trainer.microbatches import MicroBatch, micro_batches
from pipeline.trainer.step import StepLoss, StepTotals, Weights, optimizer_step, with_constants
from pipeline.trainer.update import Update

_STATE_FILE = "state.safetensors"
_ADAM_STATE = ("step", "exp_avg", "exp_avg_sq")


class _OwnGradient:
    """The gradient of a policy that one process holds: the parameters' own, by their names."""

    def __init__(self, policy: Policy) -> None:
        self.buffers = {name: parameter.grad for name, parameter in policy.named_parameters() if parameter.grad is not None}

    def dot(self, a: Buffers, b: Buffers) -> float:
        return sum(float(torch.dot(a[name].flatten().double(), b[name].flatten().double())) for name in a)


class TorchTrainer:
    """PolicyTrainer on a CPU. `base`: the base policy's weights under their Hugging Face names, also the reference of the KL."""

    def __init__(self, settings: CellSettings, base: Mapping[str, Tensor], dtype: torch.dtype = torch.float32) -> None:
        self.settings, self.recipe, self.dtype = settings, settings.recipe(), dtype
        self.version, self.processes, self.memory = 0, OneProcess(), dict[str, Buffers]()
        self._policy = self._policy_with(base)
        self._reference = self._policy_with(base).requires_grad_(False)
        self._generating: PublishedWeights | None = None
        self._generating_policy: tuple[int, Policy] | None = None
        options = settings.trainer
        norms = [parameter for parameter in self._policy.parameters() if parameter.dim() == 1]
        matrices = [parameter for parameter in self._policy.parameters() if parameter.dim() > 1]
        self._optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": options.weight_decay}, {"params": norms, "weight_decay": 0.0}],
            lr=options.learning_rate,
            betas=(options.beta1, options.beta2),
            eps=options.adam_eps,
            fused=True,
        )

    def _policy_with(self, weights: Mapping[str, Tensor]) -> Policy:
        policy = Policy(self.settings.model).to(self.dtype)
        load_hf_state(policy, weights)
        return policy

    def train_batch(self, batch: RolloutBatch, num_steps: int, generating: PublishedWeights) -> Iterator[Update]:
        prepare_started = time.perf_counter()
        self._generating = generating
        options = self.settings.trainer
        steps = [
            micro_batches(
                samples,
                options.micro_batch_tokens,
                self.settings.objective.aggregation,
                self.recipe.method.routing_replay,
                self.dtype,
            )
            for samples in batch.parts(num_steps)
        ]
        steps = with_constants(self, self.settings, self.recipe, steps)
        prepare_s = (time.perf_counter() - prepare_started) / num_steps
        for step in steps:
            started = time.perf_counter()
            update = optimizer_step(self, self.recipe, step, len(step))
            self.version += 1  # a skipped step has taken place in the schedule, and versions count scheduled steps
            yield dataclasses.replace(update, train_s=prepare_s + time.perf_counter() - started)

    @torch.no_grad()
    def logprobs(self, micros: Sequence[MicroBatch], weights: Weights, replay: bool) -> list[Tensor]:
        policy = self._policy_of(weights)
        temperature = self.settings.rollout.temperature
        return [
            policy.response_logprobs(micro.packed, temperature, micro.packed.routed_experts if replay else None).logprobs
            for micro in micros
        ]

    def _policy_of(self, weights: Weights) -> Policy:
        if weights == "policy":
            return self._policy
        if weights == "reference":
            return self._reference
        assert self._generating is not None  # set by train_batch
        if self._generating_policy is None or self._generating_policy[0] != self._generating.version:
            policy = self._policy_with(self._generating.weights).requires_grad_(False)
            self._generating_policy = self._generating.version, policy
        return self._generating_policy[1]

    def accumulate(self, micros: Sequence[MicroBatch], loss: StepLoss) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        for micro in micros:
            scores = self._policy.response_logprobs(
                micro.packed,
                self.settings.rollout.temperature,
                micro.packed.routed_experts,
                entropy="differentiable" if self.settings.objective.entropy_coefficient else "detached",
            )
            share = loss(micro, scores.logprobs, scores.entropy)
            if share is None:
                return
            share.backward()

    def contributed(self, values: Tensor) -> Tensor:
        return values

    def totals(self, loss: StepLoss) -> StepTotals:
        return StepTotals(loss.loss, loss.terms, loss.finite)

    def gradient(self) -> Gradient:
        return _OwnGradient(self._policy)

    def clip(self) -> float:
        return float(torch.nn.utils.clip_grad_norm_(self._policy.parameters(), self.settings.trainer.gradient_clip))

    def apply(self, learning_rate_scale: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = self.settings.trainer.learning_rate * learning_rate_scale
        self._optimizer.step()

    def publish(self) -> PublishedWeights:
        return PublishedWeights(self.version, {name: tensor.detach().clone() for name, tensor in hf_state(self._policy).items()})

    def save(self, folder: Path) -> None:
        tensors = {f"policy.{name}": parameter.detach() for name, parameter in self._policy.named_parameters()}
        for name, parameter in self._policy.named_parameters():
            state = self._optimizer.state[parameter]
            tensors |= {f"adam.{key}.{name}": state[key] for key in _ADAM_STATE if state}
        for part, buffers in self.memory.items():
            tensors |= {f"memory.{part}.{name}": buffer for name, buffer in buffers.items()}
        tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
        safetensors.torch.save_file(tensors, folder / _STATE_FILE, {"version": str(self.version)})

    def restore(self, folder: Path) -> None:
        path = folder / _STATE_FILE
        try:
            with safetensors.safe_open(path, framework="pt") as handle:
                version = int(handle.metadata()["version"])
                tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118 - not a dict
        except (OSError, safetensors.SafetensorError, KeyError, TypeError) as error:
            raise ValueError(
                f"checkpoint {path} cannot be read ({error}); delete its folder to resume from the one before"
            ) from error
        with torch.no_grad():
            for name, parameter in self._policy.named_parameters():
                saved = tensors.get(f"policy.{name}")
                if saved is None or saved.shape != parameter.shape:
                    raise ValueError(f"checkpoint {path} has no fitting tensor policy.{name}; it belongs to another model")
                parameter.copy_(saved)
                if f"adam.step.{name}" in tensors:  # before the first step that was not skipped Adam has no state
                    self._optimizer.state[parameter] = {key: tensors[f"adam.{key}.{name}"] for key in _ADAM_STATE}
        self.memory = {}
        for name in tensors:
            if name.startswith("memory."):
                _, part, buffer = name.split(".", 2)
                self.memory[part] = {**self.memory.get(part, {}), buffer: tensors[name]}
        self.version = version

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass
