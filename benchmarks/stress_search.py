"""Is there a regime in which plain GRPO and GSPO collapse late and for good at a large lag, but not at lag 1, as in the paper?

A bounded search (at most 60 runs) around preset tiny, on plain GRPO and GSPO and seeds that no table uses. Candidates and rule were
fixed before any of these runs (docs/regime.md):

1. Every candidate is screened at its large lag with the first seed.
2. Where a method collapses (pipeline/results/collapse.py), it is trained at that lag with the second seed as well, and where both
   collapse no sooner than half-way, at lag 1 with both.
3. A method shows the paper's picture where it does so, and at lag 1 neither collapses nor ends (mean of the trailing quarter of the
   evaluations) less than 5 points above the base policy.
4. A candidate is a stress regime if all its methods show it.

    python benchmarks/stress_search.py            # about an hour on 2 cores; finished cells are kept in state/stress_search
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.tuning import SEEDS, TINY, make_base_policy, make_tiny_inputs, tiny, train
from pipeline.artifacts import Cell
from pipeline.evaluation.estimators import tail_mean
from pipeline.results.collapse import Collapse, find_collapse
from pipeline.results.runs import FinishedRun, read_cell

HEALTHY_GAIN = 0.05
MAX_RUNS = 60
ROOT = Path("state/stress_search")
PLAIN, UNCORRECTED = ("grpo", "gspo"), ("grpo-uncorrected", "gspo-uncorrected")
ONE_UNCORRECTED = UNCORRECTED[:1]  # with one optimizer step per rollout batch both have the same gradient
LARGER_LAGS = {
    "16": {"regime": "batchwise", "broadcast_interval": 16, "optimizer_steps_per_rollout": 1},
    "16-31": {"regime": "batchwise", "broadcast_interval": 1, "optimizer_steps_per_rollout": 16},
}
LARGER_MODEL = {"num_layers": 4, "num_experts": 32}


@dataclass(frozen=True)
class Candidate:
    """Preset tiny with another large lag, length, model, ...; lag "1" is its healthy counterpart."""

    lag: str
    methods: tuple[str, ...] = PLAIN
    steps: int = 400
    learning_rate: float = 6e-4
    reference_kl: float = 1e-3
    model: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The folder of its runs."""
        parts = [f"steps_{self.steps}", f"lr_{self.learning_rate:g}", f"kl_{self.reference_kl:g}"]
        return "-".join(parts + [f"{key}_{value}" for key, value in self.model.items()])

    @property
    def changes(self) -> dict[str, Any]:
        return {
            "lags": LARGER_LAGS,
            "trainer": {"steps": self.steps, "learning_rate": self.learning_rate},
            "objective": {"reference_kl_coefficient": self.reference_kl},
            "model": self.model,
        }


CANDIDATES = [
    Candidate("8", steps=600),
    Candidate("16"),
    Candidate("8-15", steps=600),
    Candidate("16-31"),
    Candidate("8", ONE_UNCORRECTED, steps=600),
    Candidate("16", ONE_UNCORRECTED),
    Candidate("8-15", UNCORRECTED),
    Candidate("16-31", UNCORRECTED),
    Candidate("8", learning_rate=8e-4),
    Candidate("8-15", UNCORRECTED, learning_rate=3e-4),
    Candidate("8", reference_kl=0.0),
    Candidate("8", model=LARGER_MODEL),
    Candidate("8-15", UNCORRECTED, model=LARGER_MODEL),
]


@dataclass(frozen=True)
class Trial:
    """One run of a candidate."""

    candidate: Candidate
    cell: Cell

    @property
    def folder(self) -> Path:
        return ROOT / self.candidate.name / str(self.cell)

    @property
    def base_policy(self) -> Path:
        return ROOT / "base_policy" if self.candidate.model else TINY.base_policy

    def run(self) -> None:
        train(tiny(self.candidate.changes), self.cell, self.folder, self.base_policy)
        print(f"{self.candidate.name}/{self.cell}: {self.row}", file=sys.stderr, flush=True)

    @cached_property
    def result(self) -> FinishedRun:
        """What the finished run left."""
        return read_cell(self.folder, self.cell, tiny(self.candidate.changes))[0]

    @cached_property
    def base(self) -> float:
        rows = pd.read_parquet(self.base_policy / "evals.parquet")
        return float(rows[rows.checkpoint == "evaluation"].correct.mean())

    @cached_property
    def collapse(self) -> Collapse:
        run = self.result
        return find_collapse(run.accuracy_by_step, run.steps, run.nonfinite_steps, self.base)

    @property
    def tail(self) -> float:
        """Mean held-out accuracy of the trailing quarter of the evaluations."""
        curve = self.result.accuracy_by_step
        return tail_mean(curve["step"], curve["accuracy"], self.candidate.steps)

    @property
    def late_collapse(self) -> bool:
        onset = self.collapse.onset_step
        return onset is not None and onset >= self.candidate.steps / 2

    @property
    def healthy(self) -> bool:
        return not self.collapse.collapsed and self.tail >= self.base + HEALTHY_GAIN

    @property
    def row(self) -> str:
        """Best and tail accuracy in %, and where the run collapsed."""
        curve, onset = self.result.accuracy_by_step, self.collapse.onset_step
        return f"{100 * curve.accuracy.max():.0f} -> {100 * self.tail:.0f}" + ("" if onset is None else f" † {onset}")


@dataclass(frozen=True)
class Pair:
    """A candidate with one of its methods: its trials at the large lag and at lag 1, by seed."""

    candidate: Candidate
    method: str
    large: tuple[Trial, ...]
    lag_1: tuple[Trial, ...]

    @classmethod
    def of(cls, candidate: Candidate, method: str) -> Pair:
        large, lag_1 = (tuple(Trial(candidate, Cell(method, lag, seed)) for seed in SEEDS) for lag in (candidate.lag, "1"))
        return cls(candidate, method, large, lag_1)

    @property
    def collapses_late(self) -> bool:
        """With both seeds; asked where both were trained."""
        return all(trial.late_collapse for trial in self.large)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2, help="cells at once")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    make_tiny_inputs(options.jobs)
    make_base_policy(tiny({"model": LARGER_MODEL}), ROOT / "base_policy")
    pairs = [Pair.of(candidate, method) for candidate in CANDIDATES for method in candidate.methods]
    done: set[Path] = set()
    with ThreadPoolExecutor(options.jobs) as pool:

        def run(trials: Iterable[Trial], most: int | None = None) -> None:
            """Train `most` of them at most, each once: candidates may share their lag 1."""
            todo = dict(islice({trial.folder: trial for trial in trials}.items(), most))
            list(pool.map(Trial.run, todo.values()))
            done.update(todo)

        run(pair.large[0] for pair in pairs)
        fallen = [pair for pair in pairs if pair.large[0].collapse.collapsed]
        run(pair.large[1] for pair in fallen)
        run((trial for pair in fallen if pair.collapses_late for trial in pair.lag_1), most=MAX_RUNS - len(done))
    print_findings(pairs, done)


def print_findings(pairs: Sequence[Pair], done: Collection[Path]) -> None:
    """A row for every pair, then the candidates all of whose methods show the picture."""
    rows, shown = [], dict[str, bool]()
    for pair in pairs:
        trials = (*pair.large, *pair.lag_1)
        complete = all(trial.folder in done for trial in trials)
        picture = complete and pair.collapses_late and all(trial.healthy for trial in pair.lag_1)
        title = f"{pair.candidate.name}, lag {pair.candidate.lag}"
        shown[title] = shown.get(title, True) and picture
        cells = [trial.row if trial.folder in done else "" for trial in trials]
        rows.append([f"{title}, {pair.method}", *cells, "yes" if picture else "no"])
    columns = ["preset tiny with", *(f"large lag, seed {seed}" for seed in SEEDS), *(f"lag 1, seed {seed}" for seed in SEEDS)]
    print(f"{len(done)} runs; held-out accuracy in %: best -> mean of the trailing quarter, † collapsed at step\n")
    print(pd.DataFrame(rows, columns=[*columns, "the paper's picture"]).to_markdown(index=False), "\n")
    print("stress regimes: " + ("; ".join(title for title, picture in shown.items() if picture) or "none"))


if __name__ == "__main__":
    main()
