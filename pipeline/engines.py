"""The engines that a cell's settings name. Heavy imports happen here and only for the engine that is asked for."""

from __future__ import annotations

from pathlib import Path

from pipeline.config import CellSettings
from pipeline.policy.tokenizer import Tokenizer
from pipeline.rollout.engine import RolloutEngine
from pipeline.trainer.trainer import PolicyTrainer


def rollout_engine(
    settings: CellSettings, base_policy: Path, tokenizer: Tokenizer, logs: Path, overlap: bool | None = None
) -> RolloutEngine:
    """The engine that generates for a cell. logs: a folder for its processes' output.

    overlap: whether it may generate while the caller works, where that is not what the settings say.
    """
    if settings.rollout.engine == "sglang":
        from pipeline.rollout.sglang.engine import SGLangEngine

        return SGLangEngine(settings, base_policy, tokenizer.eos_token_ids, logs)
    from pipeline.rollout.torch_engine import EngineSpec, InlineTorchEngine, TorchRolloutEngine

    spec = EngineSpec(settings.model, settings.rollout.dtype, tokenizer.eos_token_ids, tokenizer.pad_token_id)
    overlap = settings.rollout.overlap if overlap is None else overlap
    return TorchRolloutEngine(spec) if overlap else InlineTorchEngine(spec)


def policy_trainer(settings: CellSettings, base_policy: Path, logs: Path) -> PolicyTrainer:
    """The trainer of a cell. logs: a folder for its processes' output."""
    if settings.trainer.engine == "megatron":
        from pipeline.trainer.megatron.trainer import MegatronTrainer

        return MegatronTrainer(settings, base_policy, logs)
    from pipeline.policy.hf_folder import hf_state, read_policy
    from pipeline.trainer.torch_trainer import TorchTrainer

    return TorchTrainer(settings, hf_state(read_policy(base_policy)[0]))
