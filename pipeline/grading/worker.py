"""One worker: a process whose main thread grades one pair at a time, under memory and CPU limits, and that its parent may kill.

Requests and replies are JSON lines on stdin and stdout:
{"policy", "gold", "answer", "switches"} -> {"verdict", "rule"} or {"error"}.
The lines `loading` and `loaded` enclose the import of sympy and math-verify, at the first idle moment or when a formula needs them.
It ends when stdin closes or its parent is gone.
"""

from __future__ import annotations

import json
import logging
import os
import re
import resource
import select
import sys
from collections.abc import Callable
from typing import Any

from pipeline.grading import equivalence, numeric, primemath
from pipeline.grading.cursor import MAX_DEPTH, NotationError, nesting
from pipeline.grading.notation import canonical

MEMORY_BYTES = 2 << 30
CPU_GRACE_S = 15  # beyond what a parent waits for: ends a computation whose parent is gone
PARENT_CHECK_S = 0.5
_TOO_LARGE = re.compile(r"\d{40,}|\d{4,}\s*[})]*\s*!|[)}]\s*!|\^.*\^.*\^|\d{5,}\}?\s*\\?(?:int|sum|prod)|\^\s*\{?\s*-?\d{4,}")
_NEEDED = re.compile(r"\\(?:int|iint|sum|prod|lim|begin)(?![a-z])")  # what our own reader cannot evaluate in every case
_LIMITS = re.compile(r"\\(?:int|iint|sum|prod|lim|log) ?_")
_DROPPED = re.compile(r"[_'\"`~@?#;]|\\(?:text|pmod|overline|underline|hat|vec|bar|tag|overset|underset)")


class Decider:
    """Answers the questions of the strict comparison; `rule` names what decided last."""

    def __init__(self, load: Callable[[], None]) -> None:
        self.load = load
        self.rule = "structure"

    def __call__(self, question: equivalence.Question, gold: str, answer: str) -> bool:
        self.rule = "numeric"
        try:
            if question == "equal":
                return numeric.equal(gold, answer)
            return numeric.same_equation(gold, answer, positive=question == "positively_proportional")
        except NotationError:
            if not (_NEEDED.search(gold + answer) and _readable(gold) and _readable(answer)):
                self.rule = "unread"
                return False
            self.rule = "math_verify"
            suffix = "=0" if question == "proportional" else "<0" if question == "positively_proportional" else ""
            return self.verified(gold + suffix, answer + suffix)

    def verified(self, gold: str, answer: str) -> bool:
        self.load()
        return verify(gold, answer)


def verify(gold: str, answer: str) -> bool:
    """math-verify's verdict on two formulas that our own reader does not know; its LaTeX grammar only, which executes nothing."""
    import math_verify
    import sympy

    targets = [math_verify.LatexExtractionConfig(boxed_match_priority=-1)]
    parsed = []
    for text in (gold, answer):
        latex = _as_latex(text)
        found = math_verify.parse(f"${latex}$", targets, fallback_mode="no_fallback", parsing_timeout=0)
        if not found:
            return False
        parsed.append(found)
    # Constants are confirmed: math-verify rounds, and equates what it cannot evaluate.
    if not math_verify.verify(*parsed, float_rounding=12, timeout_seconds=None, allow_set_relation_comp=True):
        return False
    one, other = (found[0].doit() if isinstance(found[0], sympy.Expr) else found[0] for found in parsed)
    if not (isinstance(one, sympy.Expr) and isinstance(other, sympy.Expr)) or one.free_symbols or other.free_symbols:
        return True
    difference, size = sympy.N(one - other, 30), max(abs(sympy.N(one, 30)), abs(sympy.N(other, 30)))
    return bool(difference.is_finite and abs(difference) <= size * sympy.Float("1e-15"))


def _readable(text: str) -> bool:
    """Whether sympy may read a formula: one that is small enough, as nothing else bounds its time and memory before the deadline,
    and that holds no sign which math-verify drops, as a prime, a subscript or a word.
    """
    small = not _TOO_LARGE.search(text) and nesting(text) <= MAX_DEPTH and text.count("|") <= 8
    return small and not _DROPPED.search(_LIMITS.sub("", text))


_LATEX = {
    "≤": "\\le ",
    "≥": "\\ge ",
    "≠": "\\ne ",
    "≈": "=",
    "∪": "\\cup ",
    "∩": "\\cap ",
    "∞": "\\infty ",
    "π": "\\pi ",
    "∈": "\\in ",
}
_LATEX |= {
    "⦃": "\\{",
    "⦄": "\\}",
    "°": "^\\circ ",
    "±": "\\pm ",
    "∖": "\\setminus ",
    "∅": "\\emptyset ",
    "ℝ": "\\mathbb{R}",
    "\\cr": "\\\\",
}


def _as_latex(text: str) -> str:
    for sign, latex in _LATEX.items():
        text = text.replace(sign, latex)
    return text


def answer_request(request: dict[str, Any], load: Callable[[], None]) -> dict[str, Any]:
    """The reply to one request; what goes wrong on untrusted text becomes an error reply, never the end of the worker."""
    try:
        if request["policy"] == "strict":
            decide = Decider(load)
            verdict = equivalence.equivalent(request["gold"], request["answer"], decide)
            return {"verdict": verdict, "rule": decide.rule}
        switches = primemath.Switches(**request["switches"])
        verdict = primemath.matches(request["gold"], request["answer"], switches, _prime_formulas(switches))
        return {"verdict": verdict, "rule": "prime_symbolic"}
    except Exception as error:  # the text is untrusted and sympy raises anything: the verdict must still come back
        return {"error": type(error).__name__}


def _prime_formulas(switches: primemath.Switches) -> primemath.SameFormula:
    def same_formula(gold: str, answer: str) -> bool:
        try:
            return numeric.close(canonical(gold), canonical(answer), switches.rel_tol)
        except NotationError:
            return False

    return same_formula


def main() -> None:
    """Serve until the parent closes the pipe or disappears."""
    parent = os.getppid()
    replies = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nothing but replies may reach the pipe
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    logging.disable(logging.CRITICAL)
    os.write(replies, b"ready\n")
    pending = b""

    def load() -> None:
        if "math_verify" not in sys.modules:
            os.write(replies, b"loading\n")
            import math_verify  # noqa: F401

            os.write(replies, b"loaded\n")

    while True:
        while b"\n" not in pending:
            if select.select([0], [], [], PARENT_CHECK_S)[0]:
                chunk = os.read(0, 1 << 16)
                if not chunk:
                    return
                pending += chunk
            elif os.getppid() != parent:
                return
            else:
                load()
        line, _, pending = pending.partition(b"\n")
        used = resource.getrusage(resource.RUSAGE_SELF)
        resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + CPU_GRACE_S, resource.RLIM_INFINITY))
        reply = answer_request(json.loads(line), load)
        os.write(replies, json.dumps(reply).encode() + b"\n")


if __name__ == "__main__":
    sys.setrecursionlimit(5000)
    main()
