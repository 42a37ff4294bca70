"""Any evaluation protocol from the same per-sample rows: avg@8, the mean of four runs of 16, unbiased pass@k, maj@k.

In: the rows of one policy version from evals.parquet or scores.parquet. Out: exact fractions. Nothing is estimated from fewer
samples than a protocol names: an absent or repeated sample is an error.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import comb
from typing import Any, Literal

_NAME = re.compile(r"(?:(?P<runs>[1-9]\d*)x)?(?P<metric>avg|pass|maj)@(?P<k>[1-9]\d*)")

_METRICS: dict[str, Literal["avg", "pass", "maj"]] = {"avg": "avg", "pass": "pass", "maj": "maj"}


@dataclass(frozen=True)
class Vote:
    """The verdict on one response and the answer it votes for, as `answer_key` writes it; None: it gave none and has no vote."""

    correct: bool
    answer: str | None


@dataclass(frozen=True)
class EvaluationProtocol:
    """avg@k over the first k samples, in `runs` runs of k the mean over the first runs x k; pass@k, unbiased over all samples; or
    maj@k, the majority of the first k samples.

    EvaluationProtocol("avg", 8) is avg@8; EvaluationProtocol("avg", 16, runs=4) is 4xavg@16, the mean of four runs of 16.
    """

    metric: Literal["avg", "pass", "maj"]
    k: int
    runs: int = 1

    @classmethod
    def parse(cls, name: str) -> EvaluationProtocol:
        """ "avg@8", "4xavg@16", "pass@8" or "maj@8". Raises ValueError for anything else."""
        match = _NAME.fullmatch(name)
        if match is None or (match["metric"] != "avg" and match["runs"]):
            raise ValueError(f"unknown protocol {name!r}; write avg@8, 4xavg@16 (the mean of four runs of 16), pass@8 or maj@8")
        return cls(_METRICS[match["metric"]], int(match["k"]), int(match["runs"] or 1))

    def __str__(self) -> str:
        return f"{f'{self.runs}x' if self.runs > 1 else ''}{self.metric}@{self.k}"


def evaluate_protocol(
    rows: Iterable[Mapping[str, Any]],
    protocol: EvaluationProtocol,
    *,
    problems: Collection[str] | None = None,
    verdict: str = "correct",
) -> Fraction:
    """The value of `protocol`, exact, from rows with policy_version, problem_id, sample, 0/1 in `verdict` and, for maj@k, answer.

    avg@k is the mean over P problems of the share of correct responses among samples 0 .. runs k - 1: a multiple of 1/(P runs k).
    pass@k is the mean of 1 - C(n-c, k) / C(n, k) over all n samples (Chen et al. 2021, arXiv 2107.03374, Eq. 1).
    maj@k is the mean over problems of the chance that the most frequent answer of samples 0 .. k - 1 is correct; of answers equally
    frequent each is taken with the same chance (the expected value of a fair draw). Samples without an answer do not vote; without
    any vote the problem counts 0.
    `problems`: ids of the problems that must be there, no more and no fewer; None takes those of the rows.
    Raises ValueError when a sample is missing or there twice, when a verdict is neither 0 nor 1, pass@k asks for more samples than
    there are or maj@k finds no column answer, when problems differ from `problems`, and when the rows are of several versions.
    """
    outcomes = _outcomes(rows, problems, verdict, needs_answer=protocol.metric == "maj")
    if protocol.metric == "avg":
        taken = {problem: _samples(of, problem, protocol.k * protocol.runs, protocol) for problem, of in outcomes.items()}
        return _mean([_share(samples) for samples in taken.values()])
    if protocol.metric == "maj":
        return _mean([_majority(_samples(of, problem, protocol.k, protocol)) for problem, of in outcomes.items()])
    num_samples = max(max(of) + 1 for of in outcomes.values())
    if protocol.k > num_samples:
        raise ValueError(
            f"{protocol} needs samples 0..{protocol.k - 1} of every problem; these have {num_samples}: take k up to that"
        )
    taken = {problem: _samples(of, problem, num_samples, protocol) for problem, of in outcomes.items()}
    failed = [num_samples - sum(vote.correct for vote in votes) for votes in taken.values()]
    return 1 - _mean([Fraction(comb(wrong, protocol.k), comb(num_samples, protocol.k)) for wrong in failed])


def _share(votes: Sequence[Vote]) -> Fraction:
    return Fraction(sum(vote.correct for vote in votes), len(votes))


def _majority(votes: Sequence[Vote]) -> Fraction:
    """The chance that the majority of one problem's votes is correct."""
    counts = Counter(vote.answer for vote in votes if vote.answer is not None)
    most = max(counts.values(), default=0)
    winners = [answer for answer, count in counts.items() if count == most]
    return _mean([_share([vote for vote in votes if vote.answer == answer]) for answer in winners]) if winners else Fraction(0)


def _mean(values: Sequence[Fraction]) -> Fraction:
    return sum(values, Fraction(0)) / len(values)


def _outcomes(
    rows: Iterable[Mapping[str, Any]], problems: Collection[str] | None, verdict: str, needs_answer: bool
) -> dict[str, dict[int, Vote]]:
    """problem -> sample -> verdict and answer, of one version."""
    outcomes: dict[str, dict[int, Vote]] = defaultdict(dict)
    versions = set()
    for row in rows:
        problem, sample = row["problem_id"], row["sample"]
        if sample in outcomes[problem]:
            raise ValueError(f"sample {sample} of problem {problem} is there twice; give the rows of one evaluation")
        if row[verdict] not in (0, 1):
            raise ValueError(f"{verdict} is {row[verdict]!r} for sample {sample} of problem {problem}; a verdict is true or false")
        outcomes[problem][sample] = Vote(bool(row[verdict]), row.get("answer"))
        if needs_answer and "answer" not in row:
            raise ValueError(
                f"maj@k counts answers, and the rows say none (columns {', '.join(row)}); evaluate again to record them"
            )
        versions.add(row["policy_version"])
    if len(versions) > 1:
        raise ValueError(f"rows of policy versions {sorted(versions)}; an evaluation is of one version, give the rows of one")
    if not outcomes:
        raise ValueError("no rows; an evaluation has every sample of every problem")
    if problems is not None and outcomes.keys() != set(problems):
        absent, extra = sorted(set(problems) - outcomes.keys()), sorted(outcomes.keys() - set(problems))
        raise ValueError(f"problems without a sample: {absent[:4]}; problems that are not of the set: {extra[:4]}")
    return outcomes


def _samples(of: Mapping[int, Vote], problem: str, count: int, protocol: EvaluationProtocol) -> list[Vote]:
    missing = next((sample for sample in range(count) if sample not in of), None)
    if missing is not None:
        raise ValueError(
            f"{protocol} needs samples 0..{count - 1} of every problem; problem {problem} has {len(of)} and lacks sample {missing}"
        )
    return [of[sample] for sample in range(count)]
