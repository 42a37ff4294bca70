"""Any evaluation protocol from the same per-sample rows: avg@8, 16 samples, the mean of four runs of 16, unbiased pass@k.

In: the rows of one policy version from evals.parquet or scores.parquet. Out: exact fractions. Nothing is estimated from fewer
samples than a protocol names: an absent or repeated sample is an error.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import comb
from typing import Any, Literal

_NAME = re.compile(r"(?:(?P<runs>[1-9]\d*)x)?(?P<metric>avg|pass)@(?P<k>[1-9]\d*)")


@dataclass(frozen=True)
class EvaluationProtocol:
    """avg@k over the first k samples, in `runs` runs of k the mean over the first runs x k; or pass@k, unbiased over all samples.

    EvaluationProtocol("avg", 8) is avg@8; EvaluationProtocol("avg", 16, runs=4) is 4xavg@16, the mean of four runs of 16.
    """

    metric: Literal["avg", "pass"]
    k: int
    runs: int = 1

    @classmethod
    def parse(cls, name: str) -> EvaluationProtocol:
        """ "avg@8", "4xavg@16" or "pass@8". Raises ValueError for anything else."""
        match = _NAME.fullmatch(name)
        if match is None or (match["metric"] == "pass" and match["runs"]):
            raise ValueError(f"unknown protocol {name!r}; write avg@8, 4xavg@16 (the mean of four runs of 16) or pass@8")
        metric: Literal["avg", "pass"] = "avg" if match["metric"] == "avg" else "pass"
        return cls(metric, int(match["k"]), int(match["runs"] or 1))

    def __str__(self) -> str:
        return f"{f'{self.runs}x' if self.runs > 1 else ''}{self.metric}@{self.k}"


def evaluate_protocol(
    rows: Iterable[Mapping[str, Any]],
    protocol: EvaluationProtocol,
    *,
    problems: Collection[str] | None = None,
    verdict: str = "correct",
) -> Fraction:
    """The value of `protocol`, exact, from rows with policy_version, problem_id, sample and the 0/1 column `verdict`.

    avg@k is the mean over P problems of the share of correct responses among samples 0 .. runs k - 1: a multiple of 1/(P runs k).
    pass@k is the mean of 1 - C(n-c, k) / C(n, k) over all n samples (Chen et al. 2021, arXiv 2107.03374, Eq. 1).
    `problems`: ids of the problems that must be there, no more and no fewer; None takes those of the rows.
    Raises ValueError when a sample is missing or there twice, when problems differ from `problems`, and when the rows come from
    several policy versions.
    """
    outcomes = _outcomes(rows, problems, verdict)
    if protocol.metric == "avg":
        taken = {problem: _samples(of, problem, protocol.k * protocol.runs, protocol) for problem, of in outcomes.items()}
        return _mean([Fraction(sum(samples), len(samples)) for samples in taken.values()])
    num_samples = max(protocol.k, *(max(of) + 1 for of in outcomes.values()))
    taken = {problem: _samples(of, problem, num_samples, protocol) for problem, of in outcomes.items()}
    failed = [Fraction(comb(num_samples - sum(s), protocol.k), comb(num_samples, protocol.k)) for s in taken.values()]
    return 1 - _mean(failed)


def _mean(values: Sequence[Fraction]) -> Fraction:
    return sum(values, Fraction(0)) / len(values)


def _outcomes(rows: Iterable[Mapping[str, Any]], problems: Collection[str] | None, verdict: str) -> dict[str, dict[int, bool]]:
    """problem -> sample -> verdict, of one version."""
    outcomes: dict[str, dict[int, bool]] = defaultdict(dict)
    versions = set()
    for row in rows:
        problem, sample = row["problem_id"], row["sample"]
        if sample in outcomes[problem]:
            raise ValueError(f"sample {sample} of problem {problem} is there twice; give the rows of one evaluation")
        outcomes[problem][sample] = bool(row[verdict])
        versions.add(row["policy_version"])
    if len(versions) > 1:
        raise ValueError(f"rows of policy versions {sorted(versions)}; an evaluation is of one version, give the rows of one")
    if not outcomes:
        raise ValueError("no rows; an evaluation has every sample of every problem")
    if problems is not None and outcomes.keys() != set(problems):
        absent, extra = sorted(set(problems) - outcomes.keys()), sorted(outcomes.keys() - set(problems))
        raise ValueError(f"problems without a sample: {absent[:4]}; problems that are not of the set: {extra[:4]}")
    return outcomes


def _samples(of: Mapping[int, bool], problem: str, count: int, protocol: EvaluationProtocol) -> list[bool]:
    missing = [sample for sample in range(count) if sample not in of]
    if missing:
        raise ValueError(
            f"{protocol} needs samples 0..{count - 1} of every problem; "
            f"problem {problem} has {len(of)} and lacks sample {missing[0]}"
        )
    return [of[sample] for sample in range(count)]
