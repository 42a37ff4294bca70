"""When two prompts are the same problem.

Exact: the same text after NFKC, case folding and white space runs made one blank. Near: the same after everything but letters,
digits and operators is dropped (LaTeX spacing and punctuation differ between copies of a problem); or, if the numbers in both are
the same in the same order, a Jaccard similarity of at least a threshold between their sets of five consecutive characters of that
form. The numbers decide because competition problems are often one text with other numbers. Near duplicates need the same answer
too; where the answers differ, both stay and the pair is reported.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

SHINGLE = 5
_DRAWING = re.compile(r"\[asy\].*?\[/asy\]", re.DOTALL)
_SPACE = re.compile(r"\s+")
_SKELETON = re.compile(r"\\(?:left|right|displaystyle|q?quad)\b|[^\w+\-*/^=<>!|]|_")
_NUMBER = re.compile(r"\d+")


def exact_key(prompt: str) -> str:
    """The prompt as far as an exact duplicate has to agree."""
    return _SPACE.sub(" ", unicodedata.normalize("NFKC", prompt).casefold()).strip()


def undrawn(prompt: str) -> str:
    """The exact key without the code of drawings, which some copies of a problem leave out."""
    return _DRAWING.sub("", exact_key(prompt))


def skeleton(prompt: str) -> str:
    """Letters, digits and operators of the prompt, in lower case; drawings left out."""
    return _SKELETON.sub("", undrawn(prompt))


def numbers(prompt: str) -> tuple[str, ...]:
    """The digit runs of the prompt outside drawings, in order, without leading zeros."""
    return tuple(run.lstrip("0") or "0" for run in _NUMBER.findall(undrawn(prompt)))


def answer_key(answer: str) -> str:
    """The answer as far as two answers have to agree: no white space, no $, no leading zeros or plus of an integer."""
    bare = _SPACE.sub("", answer.replace("$", ""))
    return str(int(bare)) if re.fullmatch(r"[+-]?\d{1,4000}", bare) else bare


def shingles(text: str) -> frozenset[str]:
    """All runs of SHINGLE consecutive characters; the text itself if it is shorter."""
    return frozenset(text[start : start + SHINGLE] for start in range(max(1, len(text) - SHINGLE + 1)))


def jaccard(left: frozenset[str], right: frozenset[str]) -> float:
    """Shared over all elements of two sets, in [0, 1]."""
    shared = len(left & right)
    return shared / (len(left) + len(right) - shared)


@dataclass(frozen=True)
class Match:
    """Prompt `index` repeats the earlier prompt `of`. rule: "same skeleton" or "similar". conflict: their answers differ."""

    index: int
    of: int
    rule: str
    similarity: float
    conflict: bool


def near_duplicates(prompts: Sequence[str], answers: Sequence[str], threshold: float) -> list[Match]:
    """Matches among distinct prompts, each with an earlier prompt that is not itself dropped; earlier prompts win.

    Only prompts with the same numbers are compared (the same skeleton implies them); of those, every similar pair is found.
    """
    skeletons, keys = [skeleton(prompt) for prompt in prompts], [answer_key(answer) for answer in answers]
    blocks: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for index, prompt in enumerate(prompts):
        blocks[numbers(prompt)].append(index)
    matches = [match for block in blocks.values() if len(block) > 1 for match in _within(block, skeletons, keys, threshold)]
    return sorted(matches, key=lambda match: match.index)


def _within(block: Sequence[int], skeletons: Sequence[str], keys: Sequence[str], threshold: float) -> Iterator[Match]:
    """The matches of a block.

    A set of n shingles shares at least threshold * n of them with a similar one, so the two have one of their
    n - ceil(threshold * n) + 1 rarest in common: only prompts that do are compared (prefix filtering).
    """
    pieces = {index: shingles(skeletons[index]) for index in block}
    frequency = Counter(piece for index in block for piece in pieces[index])
    holders: dict[str, list[int]] = defaultdict(list)  # rare shingle -> prompts kept so far
    for index in block:
        size = len(pieces[index])
        rarest = sorted(pieces[index], key=lambda piece: (frequency[piece], piece))[: size - ceil(threshold * size) + 1]
        conflict = None
        for other in sorted({other for piece in rarest for other in holders[piece]}):
            similarity = jaccard(pieces[index], pieces[other])
            if similarity < threshold:
                continue
            rule = "same skeleton" if skeletons[index] == skeletons[other] else "similar"
            match = Match(index, other, rule, similarity, conflict=keys[index] != keys[other])
            if not match.conflict:
                yield match
                break
            conflict = conflict or match
        else:
            for piece in rarest:
                holders[piece].append(index)
            if conflict:
                yield conflict
