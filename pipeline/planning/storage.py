"""Host memory, checkpoints, disk quota and logs of a cell, and what a stop ahead of a time limit must leave room for."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.planning.constants import Pace
from pipeline.planning.deployment import Ranks, Servers
from pipeline.planning.memory import PINNED_ROUNDING, offloaded_bytes, parameters_per_rank
from pipeline.planning.model_size import FP32, ModelSize

_KEPT_CHECKPOINTS = 2  # pipeline/cell/checkpoint.py keeps the newest and the one before it
_TOKEN_BYTES = 12  # id, rollout log-prob, policy version
_STEP_ROW_BYTES = 300  # a row of steps.parquet, measured in preset tiny: 276
_EVENT_BYTES = 4000  # TensorBoard scalars of one step
_EVALUATION_ROW_BYTES = 4  # a row of evals.parquet, compressed, measured in preset tiny: 2


@dataclass(frozen=True)
class CheckpointSize:
    """One checkpoint and what it takes on disk: while the cell runs (a third is being written) and once it has finished.

    bytes: the whole of it.  weights_bytes: of one version of the weights, as the best and the last are retained beside it.
    """

    bytes: float
    weights_bytes: float

    @property
    def running_bytes(self) -> float:
        return (_KEPT_CHECKPOINTS + 1) * self.bytes + 3 * self.weights_bytes

    @property
    def finished_bytes(self) -> float:
        return 2 * self.weights_bytes

    def write_s(self, pace: Pace) -> float:
        """Every file is written, then read back for its hash."""
        return self.bytes / pace.disk_bandwidth + self.bytes / pace.hash_bandwidth


def checkpoint_size(size: ModelSize, ranks: Ranks, published_versions: int) -> CheckpointSize:
    """Weights, two float32 moments, float32 main weights where the weights are not, and the published versions still needed."""
    state = ranks.weight_bytes + 2 * FP32 + (FP32 if ranks.weight_bytes < FP32 else 0)
    weights = size.weight_bytes(ranks.weight_bytes)
    return CheckpointSize(state * size.parameters + published_versions * weights, weights)


def scratch_bytes(checkpoint: CheckpointSize, published_versions: int) -> float:
    """Node-local folders of the published versions: those needed and the one that is being written."""
    return (published_versions + 1) * checkpoint.weights_bytes


def host_bytes(
    size: ModelSize, servers: Servers, ranks: Ranks, pace: Pace, frozen_policies: int, batch_bytes: float, rollouts_bytes: float
) -> float:
    """Host memory of a cell: offloaded states, rollouts, the processes, and the frozen policies with the place where the trained
    weights wait while one of them has theirs. Scratch folders are apart, also where they are in memory.

    batch_bytes: the batch that is trained on, of which each rank holds its data rank's share.  rollouts_bytes: the controller's.
    """
    offloaded = ranks.count * offloaded_bytes(size, ranks) if ranks.optimizer_offload else 0.0
    waiting = frozen_policies + 1 if frozen_policies else 0
    exchanged = PINNED_ROUNDING * waiting * ranks.count * sum(parameters_per_rank(size, ranks)) * ranks.weight_bytes
    processes = servers.count * pace.server_host_bytes + ranks.count * pace.rank_host_bytes
    shares = ranks.count / ranks.data_parallel * batch_bytes
    return offloaded + exchanged + shares + rollouts_bytes + processes


def log_bytes(steps: int, evaluation_rows: int) -> float:
    """steps.parquet, evals.parquet and TensorBoard of a cell."""
    return steps * (_STEP_ROW_BYTES + _EVENT_BYTES) + evaluation_rows * _EVALUATION_ROW_BYTES


def rollout_bytes(size: ModelSize, tokens: float, routing_replay: bool) -> float:
    """Full rollouts of `tokens` tokens: ids, log-probs, versions, and expert ids where they are replayed."""
    return tokens * (_TOKEN_BYTES + size.replay_bytes_per_token * routing_replay)


def check_signal_lead(lead_s: float, batch_s: float, write_s: float) -> None:
    """Raises ValueError when a signal `lead_s` seconds ahead of a time limit leaves no room for a batch and a checkpoint."""
    if lead_s < batch_s + write_s:
        raise ValueError(
            f"a signal lead of {lead_s:.0f} s is shorter than one rollout batch ({batch_s:.0f} s) and one "
            f"checkpoint write ({write_s:.0f} s); ask for the signal at least {batch_s + write_s:.0f} s ahead"
        )
