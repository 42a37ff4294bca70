"""Published asynchronous speed-ups beside simulated ones.

What a report leaves open - mean lengths above all - is assumed, with the claims in view; so this shows that the simulation can be
consistent with them, not that it foresaw them. Misses stay.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.published_runs.simulation import Regime, Scenario, simulate_cell
from pipeline.planning.constants import DEVICES, gpu_rates
from pipeline.planning.model_size import QWEN3_30B_A3B, QWEN25_7B, ModelSize
from pipeline.planning.timing import Lengths, transport_s


@dataclass(frozen=True)
class PublishedSpeedup:
    """A claim: low to high times faster than synchronous, with the regime it speaks of and the scenario that stands for it."""

    name: str
    low: float
    high: float
    regime: Regime
    scenario: Scenario
    source: str
    given: str


@dataclass(frozen=True)
class SpeedupComparison:
    claim: PublishedSpeedup
    simulated: float

    @property
    def ratio(self) -> float:
        """Simulated over published; the nearer end of a published range."""
        return self.simulated / min(max(self.simulated, self.claim.low), self.claim.high)


def scenario(
    device: str,
    gpus: int,
    responses: int,
    lengths: Lengths,
    size: ModelSize = QWEN3_30B_A3B,
    tensor_parallel: int = 2,
    lag: int = 1,
    passes: tuple[float, float] = (3.0, 4.0),
) -> Scenario:
    """A published system's run at the middle of all rates. passes: of the trainer, asynchronous and synchronous: old log-probs are
    recomputed where training is synchronous, and taken from the servers where it is not.
    """
    pace = gpu_rates(DEVICES[device], "distributed").middle()
    publish_s = transport_s(size, pace)
    return Scenario(size, DEVICES[device], pace, gpus, 0.5, tensor_parallel, responses, 16, lengths, *passes, publish_s, lag)


_SHORT = Lengths(prompt=100, response=3100, longest=4096, spread=0.3)
_MEDIUM = Lengths(prompt=200, response=2500, longest=8192)
_LONG = Lengths(prompt=200, response=2500, longest=28672)
_REASONING = Lengths(prompt=200, response=8000, longest=28672, spread=0.8)

CLAIMS = (
    PublishedSpeedup(
        "verl, Qwen3-30B-A3B, 128 H20, cap 8k", 1.7, 2.0, "streaming", scenario("H20", 128, 8192, _MEDIUM, passes=(4.0, 5.0)),
        "verl docs, fully_async.md", "assumed: mean 2.5k",
    ),
    PublishedSpeedup(
        "NeMo-RL, Qwen3-30B-A3B, 32 H100, cap 4k", 1.26, 1.26, "batchwise", scenario("H100", 32, 2048, _SHORT, passes=(4.0, 5.0)),
        "NeMo-RL v0.6", "2,048 samples, mean 3.2k; assumed: TP2",
    ),
    PublishedSpeedup(
        "verl, Qwen2.5-Math-7B, 128 H20, cap 28k", 2.35, 2.67, "streaming", scenario("H20", 128, 8192, _LONG, QWEN25_7B, 1),
        "verl docs, fully_async.md", "assumed: mean 2.5k",
    ),
    PublishedSpeedup(
        "AReaL, up to", 2.57, 2.77, "streaming", scenario("H100", 128, 8192, _REASONING, QWEN25_7B, 1, lag=4),
        "arXiv 2505.24298", "assumed: 7B, 128 H100, cap 28k, mean 8k, lag 4",
    ),
    PublishedSpeedup(
        "ROLL Flash, RLVR, up to", 2.24, 2.24, "streaming", scenario("H100", 128, 4096, _REASONING, QWEN25_7B, 1, lag=2),
        "arXiv 2510.11345", "assumed: 7B, 128 H100, cap 28k, mean 8k, lag 2",
    ),
    PublishedSpeedup(
        "VCPO, lag 2", 1.96, 2.5, "streaming", scenario("H100", 16, 1024, _REASONING, QWEN25_7B, 1, lag=2),
        "arXiv 2602.17616", "assumed: 7B, 16 H100, cap 28k, mean 8k",
    ),
    PublishedSpeedup(
        "Laminar, 1,024 GPUs, up to", 5.48, 5.48, "streaming", scenario("H100", 1024, 8192, _REASONING, QWEN25_7B, 1, lag=4),
        "arXiv 2510.12633", "assumed: 7B, H100, cap 28k, mean 8k, lag 4",
    ),
)  # fmt: skip


def compare_speedups() -> list[SpeedupComparison]:
    """Simulate every claim."""
    found = []
    for claim in CLAIMS:
        regimes = simulate_cell(claim.scenario, batches=5)
        found.append(SpeedupComparison(claim, regimes["synchronous"].step_s / regimes[claim.regime].step_s))
    return found
