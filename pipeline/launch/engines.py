"""The engines that a cell's settings name. Heavy imports happen here and only for the engine that is asked for."""

from __future__ import annotations

from pathlib import Path

from pipeline.config import CellSettings
from pipeline.policy.tokenizer import Tokenizer
from pipeline.rollout.engine import RolloutEngine
from pipeline.sections import SettingsError
from pipeline.trainer.trainer import PolicyTrainer


def rollout_engine(settings: CellSettings, tokenizer: Tokenizer) -> RolloutEngine:
    if settings.rollout.engine == "torch":
        from pipeline.rollout.torch_engine import EngineSpec, InlineTorchEngine, TorchRolloutEngine

        spec = EngineSpec(settings.model, settings.rollout.dtype, tokenizer.eos_token_ids, tokenizer.pad_token_id)
        return TorchRolloutEngine(spec) if settings.rollout.overlap else InlineTorchEngine(spec)
    raise SettingsError(_not_yet("rollout.engine", settings.rollout.engine))


def policy_trainer(settings: CellSettings, base_policy: Path) -> PolicyTrainer:
    if settings.trainer.engine == "torch":
        from pipeline.policy.checkpoint import hf_state, read_policy
        from pipeline.trainer.torch_trainer import TorchTrainer

        return TorchTrainer(settings, hf_state(read_policy(base_policy)[0]))
    raise SettingsError(_not_yet("trainer.engine", settings.trainer.engine))


def _not_yet(key: str, engine: str) -> str:
    return f"{key} {engine!r} cannot be run yet; preset tiny runs everything with engine 'torch'"
