"""The `torch` trainer: one float32 policy, AdamW, and the shared objective over packed micro-batches.

One optimizer step: (reference and, where the method needs them, proximal or rollout-weights log-probs without gradient) -> for
SAT with several micro-batches the step-wide quantile from a pass without gradient -> forward and backward per micro-batch ->
clip -> Adam.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from pipeline.broadcast.published import PublishedWeights
from pipeline.config import CellSettings
from pipeline.objective.diagnostics import step_diagnostics
from pipeline.objective.loss import TokenTerms, objective, staleness
from pipeline.objective.ratios import NotANumberError
from pipeline.objective.trust_region import staleness_quantile
from pipeline.policy.checkpoint import hf_state, load_hf_state
from pipeline.policy.model import Policy
from pipeline.records import RolloutBatch
from pipeline.trainer.microbatches import MicroBatch, micro_batches

_STATE_FILE = "state.safetensors"
_ADAM_STATE = ("step", "exp_avg", "exp_avg_sq")


class TorchTrainer:
    """PolicyTrainer on a CPU. `base`: the base policy's weights under their Hugging Face names, also the reference of the KL."""

    def __init__(self, settings: CellSettings, base: Mapping[str, Tensor], dtype: torch.dtype = torch.float32) -> None:
        self.settings, self.method, self.dtype = settings, settings.resolved_method(), dtype
        self.version = 0
        self._policy = self._policy_with(base)
        self._reference = self._policy_with(base).requires_grad_(False)
        self._generating: tuple[int, Policy] | None = None
        options = settings.trainer
        self._optimizer = torch.optim.AdamW(
            self._policy.parameters(),
            lr=options.learning_rate,
            betas=(options.beta1, options.beta2),
            eps=options.adam_eps,
            weight_decay=options.weight_decay,
            fused=True,
        )

    def _policy_with(self, weights: Mapping[str, Tensor]) -> Policy:
        policy = Policy(self.settings.model).to(self.dtype)
        load_hf_state(policy, weights)
        return policy

    def train_batch(self, batch: RolloutBatch, num_steps: int, generating: PublishedWeights) -> Iterator[dict[str, Any]]:
        prepare_started = time.perf_counter()
        steps = [
            self._with_constants(
                micro_batches(
                    samples,
                    self.settings.trainer.micro_batch_tokens,
                    self.settings.objective.aggregation,
                    self.method.routing_replay,
                    self.dtype,
                ),
                num_steps,
                generating,
            )
            for samples in batch.parts(num_steps)
        ]
        prepare_s = (time.perf_counter() - prepare_started) / num_steps
        for step in steps:
            started = time.perf_counter()
            row = self._optimizer_step(step)
            row["train_s"] = prepare_s + time.perf_counter() - started
            yield row

    def _with_constants(self, step: list[MicroBatch], num_steps: int, generating: PublishedWeights) -> list[MicroBatch]:
        """Add the log-probs that stay constant over all optimizer steps of the rollout batch."""
        # With one step per rollout the proximal policy is the one being trained: the loss takes its own log-probs, detached.
        proximal = num_steps > 1 and self.method.denominator == "proximal"
        constants: dict[str, Callable[[MicroBatch], Tensor]] = {}
        if self.settings.objective.reference_kl_coefficient:
            constants["reference_logprobs"] = lambda micro: self._logprobs(self._reference, micro, replay=False)
        if proximal:
            constants["proximal_logprobs"] = lambda micro: self._logprobs(self._policy, micro)
        if self.method.denominator == "rollout_weights":
            policy = self._generating_policy(generating)
            constants["rollout_weights_logprobs"] = lambda micro: self._logprobs(policy, micro)
        return [
            dataclasses.replace(
                micro, tokens=dataclasses.replace(micro.tokens, **{name: compute(micro) for name, compute in constants.items()})
            )
            for micro in step
        ]

    def _generating_policy(self, generating: PublishedWeights) -> Policy:
        if self._generating is None or self._generating[0] != generating.version:
            self._generating = generating.version, self._policy_with(generating.weights).requires_grad_(False)
        return self._generating[1]

    @torch.no_grad()
    def _logprobs(self, policy: Policy, micro: MicroBatch, replay: bool = True) -> Tensor:
        experts = micro.packed.routed_experts if replay else None
        return policy.response_logprobs(micro.packed, self.settings.rollout.temperature, experts).logprobs

    def _optimizer_step(self, step: list[MicroBatch]) -> dict[str, Any]:
        """Update the weights, unless a value is not finite anywhere on the way: then the step is skipped and recorded."""
        try:
            return self._update(step)
        except NotANumberError:
            return self._skipped(step, math.nan, [])

    def _update(self, step: list[MicroBatch]) -> dict[str, Any]:
        """Accumulate the gradient over the micro-batches and apply it. Raises NotANumberError where a log-prob is NaN."""
        options = self.settings.objective
        self._optimizer.zero_grad(set_to_none=True)
        quantile = self._step_quantile(step)
        loss, terms = 0.0, []
        for micro in step:
            scores = self._policy.response_logprobs(
                micro.packed,
                self.settings.rollout.temperature,
                micro.packed.routed_experts,
                entropy="differentiable" if options.entropy_coefficient else "detached",
            )
            if not torch.isfinite(scores.logprobs).all():
                return self._skipped(step, math.nan, terms)
            if self._needs_quantile and quantile is None:
                micro_quantile = self._quantile(staleness(self.method, scores.logprobs, micro.tokens))
            else:
                micro_quantile = quantile
            micro_loss, micro_terms = objective(self.method, options, scores.logprobs, scores.entropy, micro.tokens, micro_quantile)
            micro_loss.backward()
            loss += float(micro_loss.detach())
            terms.append(micro_terms)
        grad_norm = float(torch.nn.utils.clip_grad_norm_(self._policy.parameters(), self.settings.trainer.gradient_clip))
        if not math.isfinite(loss) or not math.isfinite(grad_norm):
            return self._skipped(step, loss, terms)
        self._optimizer.step()
        self.version += 1
        return self._row(loss, grad_norm, terms, skipped=False)

    def _skipped(self, step: list[MicroBatch], loss: float, terms: list[TokenTerms]) -> dict[str, Any]:
        """Record a step whose loss or gradient is not finite; the weights stay as they are and the run goes on."""
        self.version += 1  # the step has taken place in the schedule, and versions count scheduled steps
        complete = terms if len(terms) == len(step) else []
        return self._row(loss, math.nan, complete, skipped=True)

    def _row(self, loss: float, grad_norm: float, terms: list[TokenTerms], skipped: bool) -> dict[str, Any]:
        diagnostics = step_diagnostics(terms, self.settings.objective)
        return {"loss": loss, "grad_norm": grad_norm, "skipped": skipped, "finite": not skipped, **diagnostics}

    @property
    def _needs_quantile(self) -> bool:
        return self.method.clip_rule == "sat"

    def _step_quantile(self, step: list[MicroBatch]) -> Tensor | None:
        """q over the whole optimizer step: one more pass where it has several micro-batches, none where it has one."""
        if not self._needs_quantile or len(step) == 1 or self.settings.objective.quantile_scope == "microbatch":
            return None
        values = [staleness(self.method, self._logprobs(self._policy, micro), micro.tokens) for micro in step]
        return self._quantile(torch.cat(values))

    def _quantile(self, values: Tensor) -> Tensor:
        assert self.settings.objective.quantile_alpha is not None  # CellSettings refuses a SAT cell without it
        return staleness_quantile(values, self.settings.objective.quantile_alpha)

    def publish(self) -> PublishedWeights:
        return PublishedWeights(self.version, {name: tensor.detach().clone() for name, tensor in hf_state(self._policy).items()})

    def save(self, folder: Path) -> None:
        tensors = {f"policy.{name}": parameter.detach() for name, parameter in self._policy.named_parameters()}
        for name, parameter in self._policy.named_parameters():
            state = self._optimizer.state[parameter]
            tensors |= {f"adam.{key}.{name}": state[key] for key in _ADAM_STATE if state}
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
        self.version = version

    def close(self) -> None:
        pass
