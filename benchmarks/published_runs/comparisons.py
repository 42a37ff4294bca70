"""The cost model against published runs: what it would have said of them, beside what was measured.

Each run is predicted from the same functions and constants as a plan. `given` says what of the run was published and what is
assumed (mean lengths mostly). Several constants were chosen with these runs in view: this is a check of consistency. Misses stay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pipeline.planning.bounds import Bounds
from pipeline.planning.constants import DEVICES, Device, Pace, gpu_rates
from pipeline.planning.deployment import Servers
from pipeline.planning.model_size import QWEN3_30B_A3B, ModelSize
from pipeline.planning.timing import Lengths, decode_step_s, generation_s, slots_of, training_s, transport_s

_SIZE: ModelSize = QWEN3_30B_A3B


@dataclass(frozen=True)
class Comparison:
    """A published number beside the model's interval for it. unit of both; source and given as text."""

    name: str
    published: float
    predicted: Bounds
    unit: str
    source: str
    given: str

    @property
    def ratio(self) -> float:
        """Middle of the prediction over the published number."""
        return self.predicted.mid / self.published

    @property
    def covered(self) -> bool:
        return self.predicted.covers(self.published)


def _both(device: str, compute: Callable[[Pace], float], publication: str = "distributed") -> Bounds:
    rates = gpu_rates(DEVICES[device], publication)
    return Bounds(*sorted(compute(rates.pace(best)) for best in (True, False)))


def stream_tokens_per_s(size: ModelSize, device: Device, servers: Servers, pace: Pace, lengths: Lengths, in_flight: float) -> float:
    """Response tokens per second of all servers when finished responses are replaced at once (fully asynchronous)."""
    active = min(in_flight / servers.count, slots_of(size, device, servers, lengths))
    step = decode_step_s(size, device, servers.tensor_parallel, pace, active, active * lengths.context)
    return servers.count * active / step


@dataclass(frozen=True)
class StepRun:
    """A published run by the time of its steps. train_gpus None: both engines share all GPUs, one after the other."""

    device: str
    gpus: int
    train_gpus: int | None
    tensor_parallel: int
    responses: int
    lengths: Lengths
    passes: float
    streaming: bool = False

    def step(self) -> Bounds:
        """Seconds of one step: generation plus training plus publication, or the slower of the first two where GPUs are apart."""
        return _both(self.device, self._step)

    def _step(self, pace: Pace) -> float:
        generating = self.gpus - (self.train_gpus or 0)
        train = training_s(_SIZE, self.train_gpus or self.gpus, pace, self.lengths, self.responses, self.passes)
        generate = self._generation(pace, Servers(generating // self.tensor_parallel, self.tensor_parallel, 0.85))
        publish = transport_s(_SIZE, pace)
        return (max(generate, train) if self.train_gpus else generate + train) + publish

    def _generation(self, pace: Pace, servers: Servers) -> float:
        device = DEVICES[self.device]
        if not self.streaming:
            return generation_s(_SIZE, device, servers, pace, self.lengths, self.responses, 16)
        rate = stream_tokens_per_s(_SIZE, device, servers, pace, self.lengths, in_flight=2 * self.responses)
        return self.responses * self.lengths.response / rate


_NEMO = Lengths(prompt=100, response=3100, longest=4096, spread=0.3)
_VERL = Lengths(prompt=200, response=2500, longest=8192)
_NEMO_GIVEN = "2,048 samples, mean 3.2k tokens, cap 4,096; assumed: TP2"
_VERL_GIVEN = "8,192 responses, cap 8,192; assumed: mean 2.5k, TP2"

STEP_RUNS = {
    "NeMo-RL, 32 H100, synchronous": (
        StepRun("H100", 32, None, 2, 2048, _NEMO, 5.0), 192.0, "NeMo-RL v0.6", _NEMO_GIVEN + ", reference pass or old log-probs",
    ),
    "NeMo-RL, 32 H100, one step off": (
        StepRun("H100", 32, 16, 2, 2048, _NEMO, 5.0), 152.0, "NeMo-RL v0.6", _NEMO_GIVEN + ", 16 + 16 GPUs",
    ),
    "NeMo-RL, 192 H100, eight steps off": (
        StepRun("H100", 192, 96, 2, 2048, _NEMO, 5.0, True), 34.5, "NeMo-RL v0.6", _NEMO_GIVEN + ", 96 + 96 GPUs",
    ),
    "NeMo-RL, 16 GB200, synchronous": (
        StepRun("GB200", 16, None, 1, 2048, _NEMO, 5.0), 2048 * 3200 / (1910 * 16), "NeMo-RL v0.6", _NEMO_GIVEN[:-1] + "1",
    ),
    "verl, 128 H20, synchronous": (
        StepRun("H20", 128, None, 2, 8192, _VERL, 5.0), 497.9, "verl docs, fully_async.md", _VERL_GIVEN,
    ),
    "verl, 96 + 32 H20, asynchronous": (
        StepRun("H20", 128, 32, 2, 8192, _VERL, 4.0, True), 282.8, "verl docs, fully_async.md", _VERL_GIVEN,
    ),
}  # fmt: skip


def _trainer_tokens_per_s(device: str, gpus: int, context: float) -> Bounds:
    """Tokens per second and GPU of a plain training step (3 passes) on sequences of twice `context` tokens."""
    lengths = Lengths(prompt=0, response=2 * context, longest=2 * context, spread=0.0)
    return _both(device, lambda pace: lengths.response / training_s(_SIZE, gpus, pace, lengths, 1, 3.0) / gpus)


def comparisons() -> list[Comparison]:
    """Every published number of this model that the cost model can be held against."""
    found = [
        Comparison(f"seconds a step: {name}", published, run.step(), "s", source, given)
        for name, (run, published, source, given) in STEP_RUNS.items()
    ]
    for name, hours in (("verl, 128 H20, synchronous", 59.7), ("verl, 96 + 32 H20, asynchronous", 34.7)):
        run, _, source, given = STEP_RUNS[name]
        found.append(Comparison(f"hours of 400 steps: {name}", hours, 400 / 3600 * run.step(), "h", source, given))
    found.append(
        Comparison("verl, 128 H20: generation of a step", 348.0, _both("H20", _verl_generation), "s", "verl docs", _VERL_GIVEN)
    )
    for name, passes, published in (("old log-probs", 1.0, 29.0), ("reference", 1.0, 21.0), ("update", 3.0, 86.0)):
        predicted = _both("H20", lambda pace, passes=passes: training_s(_SIZE, 128, pace, _VERL, 8192, passes))
        found.append(Comparison(f"verl, 128 H20: {name} of a step", published, predicted, "s", "verl docs", _VERL_GIVEN))
    for name, device, context, published in (
        ("prime-rl, 8 H100, sequences of 16k", "H100", 8192, 764.0),
        ("prime-rl, 8 H200, sequences of 65k", "H200", 32768, 1594.0),
        ("Megatron-Bridge, 16 H100, sequences of 4k", "H100", 2048, 5275.0),
        ("Megatron-Bridge, 16 H100 in FP8, sequences of 4k", "H100", 2048, 8980.0),
    ):
        predicted = _trainer_tokens_per_s(device, 8, context)
        found.append(Comparison(f"training: {name}", published, predicted, "tokens/s/GPU", name.split(",")[0], "no recomputation"))
    for name, kind, published in (
        ("verl, H20 16 + 16", "distributed", 15.76), ("verl, checkpoint engine", "distributed", 4.38),
        ("verl, H100, nccl", "distributed", 32.2), ("slime, colocated, before", "tensor", 60.0), ("slime, bucketed", "tensor", 7.0),
        ("AReaL from disk, before", "disk", 60.0), ("AReaL from disk, patched", "disk", 30.0),
    ):  # fmt: skip
        predicted = _both("H100", lambda pace: transport_s(_SIZE, pace), kind)
        found.append(Comparison(f"publication: {name}", published, predicted, "s", name.split(",")[0], kind))
    return found


def _verl_generation(pace: Pace) -> float:
    return generation_s(_SIZE, DEVICES["H20"], Servers(64, 2, 0.85), pace, _VERL, 8192, 16)
