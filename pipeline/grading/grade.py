"""The one entrance to grading: a response and the right answer in, a typed outcome out.

grade() never raises on account of a response, never hangs and never executes anything from it. Policy "primemath" (PRIME's
verdicts, as the paper grades) decides the reward, the column `correct` and with it every score; "strict" decides the column
`correct_strict` alone, a second opinion recorded beside the first (docs/grading.md). Both are decided here, in microseconds,
wherever text and exact arithmetic suffice; only formulas go to the worker processes of pipeline.grading.symbolic.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

from pipeline.grading import equivalence, extract, primemath, symbolic
from pipeline.grading.equivalence import Undecided
from pipeline.grading.notation import MAX_LENGTH

if TYPE_CHECKING:
    from pipeline.records import Outcome

Policy = Literal["primemath", "strict"]
POLICIES: tuple[Policy, ...] = ("primemath", "strict")
FILE_CHUNK = 1024  # lines graded together by grade_file
_INTEGER = re.compile(r"[-+]?[0-9]{1,15}")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Grade:
    """The outcome, the answer found in the response (None: none), the rule that decided, and the seconds that it took."""

    outcome: Outcome
    extracted: str | None
    rule: str
    seconds: float


@dataclass(frozen=True)
class _Pending:
    """A pair that this process cannot decide: what to ask a worker."""

    extracted: str
    request: dict[str, Any]


def grade(
    response: str, answer: str, policy: Policy, *, truncated: bool = False, switches: primemath.Switches = primemath.PRIME
) -> Grade:
    """Grade one response; `truncated` says that it was cut off at the length limit. ValueError for an unknown policy only."""
    start = time.perf_counter()
    first = _first_pass(response, answer, policy, truncated, switches)
    result = _ask(first) if isinstance(first, _Pending) else first
    return replace(result, seconds=time.perf_counter() - start)


def grade_many(
    pairs: Iterable[tuple[str, str]],
    policy: Policy,
    *,
    truncated: Iterable[bool] | None = None,
    switches: primemath.Switches = primemath.PRIME,
) -> list[Grade]:
    """Grade (response, answer) pairs, in order; what needs the workers is spread over all of them, equal questions asked once."""
    pairs = list(pairs)
    cut = list(truncated) if truncated is not None else [False] * len(pairs)
    firsts: list[Grade | _Pending] = []
    for (response, answer), is_cut in zip(pairs, cut, strict=True):
        start = time.perf_counter()
        first = _first_pass(response, answer, policy, is_cut, switches)
        firsts.append(first if isinstance(first, _Pending) else replace(first, seconds=time.perf_counter() - start))
    questions = {json.dumps(first.request): first for first in firsts if isinstance(first, _Pending)}
    if not questions:
        return [first for first in firsts if isinstance(first, Grade)]
    with ThreadPoolExecutor(symbolic.pool().size) as threads:
        replies = dict(zip(questions, threads.map(_timed_ask, questions.values()), strict=True))
    return [replies[json.dumps(first.request)] if isinstance(first, _Pending) else first for first in firsts]


def grade_both(response: str, answer: str, *, truncated: bool = False) -> dict[Policy, Grade]:
    """The grades of both policies; a disagreement is logged at level INFO."""
    grades: dict[Policy, Grade] = {policy: grade(response, answer, policy, truncated=truncated) for policy in POLICIES}
    prime, strict = grades["primemath"], grades["strict"]
    if (prime.outcome == "correct") != (strict.outcome == "correct"):
        log.info(
            "policies disagree: primemath %s (%r, %s), strict %s (%r, %s), gold %r",
            prime.outcome, prime.extracted, prime.rule, strict.outcome, strict.extracted, strict.rule, answer,
        )  # fmt: skip
    return grades


def grade_file(path: Path, policy: Policy, out: TextIO = sys.stdout, problems: TextIO = sys.stderr) -> int:
    """Grade a JSONL file of {response, gold} (optionally truncated), one line {outcome, extracted, rule, seconds} each, in order.

    A malformed line is reported on `problems` with its number and takes the outcome "error"; the rest goes on. Returns their count.
    """
    if not path.is_file():
        raise ValueError(f"{path} is not a file; give a JSONL file with one {{response, gold}} object a line")
    _check_policy(policy)
    malformed = 0
    with path.open("rb") as lines:
        numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
        while chunk := list(islice(numbered, FILE_CHUNK)):
            entries = [_read_line(number, line) for number, line in chunk]
            good = [entry for entry in entries if not isinstance(entry, str)]
            cut = [entry[2] for entry in good]
            graded = iter(grade_many([entry[:2] for entry in good], policy, truncated=cut))
            for entry in entries:
                if isinstance(entry, str):
                    malformed += 1
                    print(f"{path}: {entry}", file=problems)
                out.write(json.dumps(asdict(Grade("error", None, entry, 0.0) if isinstance(entry, str) else next(graded))) + "\n")
    return malformed


def _read_line(number: int, line: bytes) -> tuple[str, str, bool] | str:
    """(response, gold, truncated), or what is wrong with the line."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        return f"line {number}: not JSON ({error})"
    if not isinstance(entry, dict):
        return f"line {number}: a JSON object with response and gold expected, got {type(entry).__name__}"
    for key in ("response", "gold"):
        if key not in entry:
            return f"line {number}: no {key!r}; found {sorted(entry)}"
    response, gold = entry["response"], entry["gold"]
    if not isinstance(response, str) or not isinstance(gold, str | int | float) or isinstance(gold, bool):
        return f"line {number}: response must be text and gold text or a number"
    return response, str(gold), bool(entry.get("truncated", False))


def _check_policy(policy: str) -> None:
    if policy not in POLICIES:
        raise ValueError(f"unknown grading policy {policy!r}; use one of {', '.join(POLICIES)}")


def _first_pass(response: str, answer: str, policy: Policy, truncated: bool, switches: primemath.Switches) -> Grade | _Pending:
    """The grade where this process can tell, or the question for a worker."""
    _check_policy(policy)
    try:
        if policy == "strict":
            return _strict(response, answer, truncated)
        return _primemath(response, answer, truncated, switches)
    except Exception as error:  # responses are untrusted text: whatever they provoke must become an outcome, not end a training run
        return Grade("error", None, f"error:{type(error).__name__}", 0.0)


def _strict(response: str, answer: str, truncated: bool) -> Grade | _Pending:
    found = extract.extract_answer(response, truncated=truncated)
    if found.text is None:
        return Grade("no_answer", None, found.rule, 0.0)
    text, answer = found.text, _gold(answer)
    if text == answer:
        return Grade("correct", text, "string", 0.0)
    if _INTEGER.fullmatch(text) and _INTEGER.fullmatch(answer):
        return Grade(_outcome(int(text) == int(answer)), text, "integer", 0.0)
    if len(text) > MAX_LENGTH or len(answer) > MAX_LENGTH:
        return Grade("incorrect", text[:MAX_LENGTH], "too_long", 0.0)
    try:
        return Grade(_outcome(equivalence.equivalent(answer, text)), text, "exact", 0.0)
    except Undecided:
        return _Pending(text, {"policy": "strict", "gold": answer, "answer": text})


def _primemath(response: str, answer: str, truncated: bool, switches: primemath.Switches) -> Grade | _Pending:
    if truncated or not switches.answer_phrases:
        found = extract.extract_answer(response, truncated=truncated)
        matched = found.text is not None
    else:
        found, matched = primemath.extract_answer(response)
    text, answer = found.text, _gold(answer)
    if text is None:
        return Grade("no_answer", None, found.rule, 0.0)
    try:
        verdict = primemath.matches(answer, text[: 2 * MAX_LENGTH], switches, _undecided_formula)
    except Undecided:
        return _Pending(text, {"policy": "primemath", "gold": answer, "answer": text, "switches": asdict(switches)})
    if not verdict and not matched and found.rule == "whole_response":
        return Grade("no_answer", None, found.rule, 0.0)
    return Grade(_outcome(verdict), text[:MAX_LENGTH], "prime", 0.0)


def _gold(answer: str) -> str:
    """The gold answer as given, or the content of its box where a data set gives a whole solution's last line."""
    return (extract.extract_answer(answer).text or answer).strip() if "\\boxed" in answer else answer.strip()


def _undecided_formula(gold: str, answer: str) -> bool:
    raise Undecided(f"{gold} / {answer}")


def _ask(pending: _Pending) -> Grade:
    try:
        reply = symbolic.pool().ask(pending.request)
    except OSError as error:  # no process or no memory left on this machine: the training run goes on
        return Grade("error", pending.extracted, f"error:{type(error).__name__}", 0.0)
    if reply.verdict is None:
        return Grade("timeout" if reply.rule == "timeout" else "error", pending.extracted, reply.rule, 0.0)
    return Grade(_outcome(reply.verdict), pending.extracted, reply.rule, 0.0)


def _timed_ask(pending: _Pending) -> Grade:
    start = time.perf_counter()
    return replace(_ask(pending), seconds=time.perf_counter() - start)


def _outcome(verdict: bool) -> Outcome:
    return "correct" if verdict else "incorrect"
