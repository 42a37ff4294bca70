"""Which training prompts are evaluation problems, or so close to one that training on them would be training on the test."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.problems.duplicates import answer_key, numbers, skeleton, undrawn
from pipeline.records import Problem

WORDS = 8  # consecutive words that count as a shared passage
TELLING_NUMBERS = 4  # so many equal numbers and an equal answer identify a problem in any language
_WORD = re.compile(r"\w+|[+\-*/^=<>|]")


@dataclass(frozen=True)
class Contamination:
    """Training prompt `index` gives away the evaluation problem `problem`; rule says why, overlap is in [0, 1]."""

    index: int
    problem: str
    rule: str
    overlap: float


def contaminated(
    prompts: Sequence[str], answers: Sequence[str], held_out: Sequence[Problem], threshold: float
) -> list[Contamination]:
    """Training prompts that fall, by the first rule that applies.

    same text: equal letters, digits and operators, or one within the other. shared passages: at least `threshold` of a held-out
    problem's runs of WORDS words occur in the prompt. same numbers and answer: at least TELLING_NUMBERS distinct numbers, all
    equal as a multiset, and the answer: a translation or a rewording.
    """
    skeletons = {problem.id: skeleton(problem.prompt) for problem in held_out}
    passages: dict[tuple[str, ...], set[str]] = defaultdict(set)
    totals: dict[str, int] = {}
    told: dict[tuple[object, str], str] = {}
    for problem in held_out:
        runs = _runs(problem.prompt)
        totals[problem.id] = max(1, len(runs))
        for run in runs:
            passages[run].add(problem.id)
        counted = numbers(problem.prompt)
        if len(set(counted)) >= TELLING_NUMBERS:
            told[tuple(sorted(counted)), answer_key(problem.answer)] = problem.id
    found = []
    for index, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        text = skeleton(prompt)
        same = next((name for name, other in skeletons.items() if other in text or (len(text) > 40 and text in other)), None)
        if same:
            found.append(Contamination(index, same, "same text", 1.0))
            continue
        hits = Counter(name for run in _runs(prompt) & passages.keys() for name in passages[run])
        overlap, name = max(((count / totals[name], name) for name, count in hits.items()), default=(0.0, ""))
        if name and overlap >= threshold:
            found.append(Contamination(index, name, "shared passages", round(overlap, 3)))
        elif translated := told.get((tuple(sorted(numbers(prompt))), answer_key(answer))):
            found.append(Contamination(index, translated, "same numbers and answer", round(overlap, 3)))
    return found


def _runs(prompt: str) -> set[tuple[str, ...]]:
    words = _WORD.findall(undrawn(prompt))
    return {tuple(words[start : start + WORDS]) for start in range(len(words) - WORDS + 1)}
