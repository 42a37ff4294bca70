"""Accuracy and speed of graders side by side: ours in both policies, math-verify, verl's prime_math, lm-eval's AIME grader.

    python -m benchmarks.graders [--cases tests/unit/grader_cases.jsonl] [--limit-s 10]

The other graders run in a forked process with a time limit per case, in a scratch directory in which an injected "canary" file
would appear. Expected verdicts are those of the cases file; they are adversarial and rank robustness, not rollouts.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from pipeline.grading.grade import grade, grade_many

Grader = Callable[[str, str], bool]
CASES = Path("tests/unit/grader_cases.jsonl")
ORDINARY = 4096  # responses of the throughput measurement; the others grade a sample of them
SAMPLE = 256


@dataclass
class Score:
    """What one grader did: verdicts against the expected ones, seconds per case, limits exceeded, canary files."""

    right: int = 0
    false_positives: int = 0
    false_negatives: int = 0
    hangs: int = 0
    canaries: int = 0
    seconds: list[float] = field(default_factory=list)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--cases", type=Path, default=CASES, help="JSONL of {response, gold, expected}")
    arguments.add_argument("--limit-s", type=float, default=10.0, help="time limit of one case")
    options = arguments.parse_args()
    cases = [json.loads(line) for line in options.cases.read_text(encoding="utf-8").splitlines()]
    graders: dict[str, Grader] = {
        "ours, strict": lambda response, gold: grade(response, gold, "strict").outcome == "correct",
        "ours, primemath": lambda response, gold: grade(response, gold, "primemath").outcome == "correct",
    }
    ours = set(graders)
    logging.disable(logging.CRITICAL)
    for name, (module, build, install) in OTHERS.items():
        try:
            graders[name] = build(importlib.import_module(module))
        except ImportError as error:
            print(f"{name}: not compared ({error}); to compare, install it beside this project: {install}")
    print(f"\n{len(cases)} cases of {options.cases}, limit {options.limit_s:g} s\n")
    print("| grader | right % | false + | false - | hangs | code runs | p50 ms | p95 ms | slowest s | ordinary/s |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name, grader in graders.items():
        score = measure(grader, cases, options.limit_s, isolated=name not in ours)
        rate = our_rate(name.rpartition(" ")[2]) if name in ours else their_rate(grader)
        print(row(name, score, len(cases), rate), flush=True)


def measure(grader: Grader, cases: list[dict], limit_s: float, isolated: bool) -> Score:
    """Run a grader over the cases; ours protects itself, the others are isolated."""
    score = Score()
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        process = Isolated(grader, limit_s) if isolated else None
        try:
            for case in cases:
                start = time.perf_counter()
                if process:
                    verdict, seconds = process.ask(case["response"], case["gold"])
                else:
                    verdict, seconds = grader(case["response"], case["gold"]), time.perf_counter() - start
                score.seconds.append(seconds)
                score.hangs += verdict is None or seconds > limit_s
                score.right += bool(verdict) == case["expected"]
                score.false_positives += bool(verdict) and not case["expected"]
                score.false_negatives += not verdict and case["expected"]
            score.canaries = len(list(Path(scratch).iterdir()))
        finally:
            os.chdir(here)
            if process:
                process.stop()
    return score


class Isolated:
    """A grader in a forked process that stays warm from case to case and is replaced when a case had to be stopped."""

    def __init__(self, grader: Grader, limit_s: float) -> None:
        self.grader, self.limit_s = grader, limit_s
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe()
        self.child = context.Process(target=_serve, args=(self.grader, theirs), daemon=False)
        self.child.start()
        theirs.close()

    def ask(self, response: str, gold: str) -> tuple[bool | None, float]:
        """(verdict, seconds inside the child); the verdict is None when the child had to be killed or died."""
        start = time.perf_counter()
        self.pipe.send((response, gold))
        try:
            if self.pipe.poll(self.limit_s):
                return self.pipe.recv()
        except EOFError:
            pass
        self.stop()
        self.start()
        return None, time.perf_counter() - start

    def stop(self) -> None:
        self.child.kill()
        self.child.join()
        self.pipe.close()


def _serve(grader: Grader, pipe: Connection) -> None:
    while True:
        response, gold = pipe.recv()
        start = time.perf_counter()
        try:
            verdict = bool(grader(response, gold))
        except Exception:  # a grader that raises gives no reward; which exception it was is its own affair
            verdict = False
        pipe.send((verdict, time.perf_counter() - start))


def ordinary_pairs(count: int) -> list[tuple[str, str]]:
    """Responses of about 3 kB with one boxed answer: nine in ten integers, the rest fractions, radicals and tuples."""
    prose = "We add $\\frac{%d}{7}$ and \\(x_{%d}\\), which gives \\[ a^{%d} = b \\]. " * 40
    rare = [(r"\frac{6}{8}", r"\frac34"), (r"\sqrt{8}", r"2\sqrt{2}"), ("(1,2)", "(2,1)")]
    pairs = []
    for index in range(count):
        answer, gold = rare[index // 10 % 3] if index % 10 == 0 else (str(index % 97), str(index % 97 + index % 2))
        pairs.append((prose % ((index,) * 120) + f"So the answer is \\boxed{{{answer}}}.", gold))
    return pairs


def our_rate(policy: str) -> float:
    pairs = ordinary_pairs(ORDINARY)
    start = time.perf_counter()
    grade_many(pairs, "strict" if policy == "strict" else "primemath")
    return ORDINARY / (time.perf_counter() - start)


def their_rate(grader: Grader) -> float:
    start = time.perf_counter()
    for response, gold in ordinary_pairs(SAMPLE):
        grader(response, gold)
    return SAMPLE / (time.perf_counter() - start)


def row(name: str, score: Score, count: int, rate: float) -> str:
    ordered = sorted(score.seconds)
    p50, p95 = statistics.median(ordered) * 1e3, ordered[int(0.95 * count)] * 1e3
    return (
        f"| {name} | {100 * score.right / count:.1f} | {score.false_positives} | {score.false_negatives} | {score.hangs} "
        f"| {score.canaries} | {p50:.2f} | {p95:.1f} | {ordered[-1]:.2f} | {rate:,.0f} |"
    )


def _math_verify(module: Any) -> Grader:
    return lambda response, gold: module.verify(module.parse(f"${gold}$"), module.parse(response))


def _verl(module: Any) -> Grader:
    return lambda response, gold: module.compute_score(response, gold)[0]


def _lm_eval(module: Any) -> Grader:
    return lambda response, gold: module.process_results({"Answer": gold}, [response])["exact_match"] == 1


OTHERS: dict[str, tuple[str, Callable[..., Grader], str]] = {
    "math-verify": ("math_verify", _math_verify, "pip install math-verify==0.9.0 antlr4-python3-runtime==4.11.0"),
    "verl prime_math": ("verl.utils.reward_score.prime_math", _verl, "pip install verl==0.9.1 pylatexenc"),
    "lm-eval aime": ("lm_eval.tasks.aime.utils", _lm_eval, "pip install lm-eval==0.4.13"),
}

if __name__ == "__main__":
    main()
