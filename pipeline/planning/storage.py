"""Host memory, checkpoints, disk quota and logs of a cell, and what a stop ahead of a time limit must leave room for."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.planning.constants import GB, Pace
from pipeline.planning.memory import optimizer_bytes
from pipeline.planning.model_size import BF16, FP32, ModelSize
from pipeline.planning.placement import Ranks, Servers

_KEPT_CHECKPOINTS = 2  # pipeline/checkpoint.py keeps the newest and the one before it
_TOKEN_BYTES = 12  # id, rollout log-prob, policy version
_STEP_ROW_BYTES = 300  # a row of steps.parquet, measured in preset tiny: 276
_EVENT_BYTES = 4000  # TensorBoard scalars of one step
_EVALUATION_ROW_BYTES = 4  # a row of evals.parquet, compressed, measured in preset tiny: 2
_SERVER_HOST_BYTES = 2 * GB  # three processes of one SGLang server, measured on CPU
_RANK_HOST_BYTES = 5 * GB  # assumed: one training rank


@dataclass(frozen=True)
class CheckpointSize:
    """One checkpoint and what it takes on disk: while the cell runs (a third is being written) and once it has finished."""

    bytes: float
    retained_bytes: float

    @property
    def running_bytes(self) -> float:
        return (_KEPT_CHECKPOINTS + 1) * self.bytes + 3 * self.retained_bytes

    @property
    def finished_bytes(self) -> float:
        return _KEPT_CHECKPOINTS * self.bytes + 2 * self.retained_bytes

    def write_s(self, pace: Pace) -> float:
        return self.bytes / pace.disk_bandwidth


def checkpoint_size(size: ModelSize, published_versions: int, published_bytes: int = BF16) -> CheckpointSize:
    """Master weights and moments in float32, and the published versions still needed; retained: best and last weights."""
    weights = size.weight_bytes(published_bytes)
    return CheckpointSize(3 * FP32 * size.parameters + published_versions * weights, weights)


def host_bytes(
    size: ModelSize, servers: Servers, ranks: Ranks, tokens_in_flight: float, routing_replay: bool, reference: bool
) -> float:
    """Host memory of a cell: offloaded states, published versions, rollouts in flight, the processes themselves."""
    offloaded = ranks.count * optimizer_bytes(size, ranks) if ranks.optimizer_offload else 0.0
    copies = (2 + reference) * size.weight_bytes()
    rollouts = tokens_in_flight * (_TOKEN_BYTES + size.replay_bytes_per_token * routing_replay)
    return offloaded + copies + rollouts + servers.count * _SERVER_HOST_BYTES + ranks.count * _RANK_HOST_BYTES


def log_bytes(steps: int, evaluation_rows: int) -> float:
    """steps.parquet, evals.parquet and TensorBoard of a cell."""
    return steps * (_STEP_ROW_BYTES + _EVENT_BYTES) + evaluation_rows * _EVALUATION_ROW_BYTES


def rollout_bytes(size: ModelSize, tokens: float, routing_replay: bool) -> float:
    """Full rollouts of `tokens` tokens: ids, log-probs, versions, and expert ids where they are replayed."""
    return tokens * (_TOKEN_BYTES + size.replay_bytes_per_token * routing_replay)


def check_signal_lead(lead_s: float, step_s: float, write_s: float) -> None:
    """Raises ValueError when a signal `lead_s` seconds ahead of a time limit leaves no room for one step and one checkpoint."""
    if lead_s < step_s + write_s:
        raise ValueError(
            f"a signal lead of {lead_s:.0f} s is shorter than one step ({step_s:.0f} s) and one checkpoint write ({write_s:.0f} s); "
            f"ask for the signal at least {step_s + write_s:.0f} s ahead"
        )
