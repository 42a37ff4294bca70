"""The paper's claims and the verdict of this run on each: results/reference/claims.yaml holds the rules, cells hold the evidence.

verdict: reproduced | not-reproduced | inconclusive | not-testable. A difference counts only when its interval excludes the
threshold.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pipeline.paper.evidence import STATISTICS, Context, Evidence
from pipeline.paper.reference import Reference
from pipeline.paper.undecided import summary
from pipeline.paper.verdicts import Verdict
from pipeline.results.runs import Results
from pipeline.section import unknown

SAME_MODEL = "full"  # the preset that trains the paper's own model
ONE_SEED = "one seed: run-to-run spread is unknown"
KEYS = {"id", "statement", "source", "origin", "testable_in", "require", "rule"}


@dataclass(frozen=True)
class ClaimResult:
    """A claim with its verdict, the reason in one line, and the comparisons behind it.

    power: of an inconclusive claim, the median chance that its undecided comparisons had of deciding for it if the paper's
    difference were the truth; None where the paper's numbers show none or the claim was decided.

    paper_side: how many of the comparisons lie on the claimed side in the paper's own Table 1, e.g. "11 of 13"; "" where it shows
    none.
    """

    id: str
    statement: str
    source: str
    origin: str
    verdict: Verdict
    reason: str
    power: float | None
    paper_side: str
    evidence: tuple[Evidence, ...]


def evaluate_claims(results: Results, reference: Reference) -> list[ClaimResult]:
    """The claims that the preset can test, in the order of claims.yaml, then the other claims of the paper."""
    context = Context(results, reference, float(reference.claims["interval"]["level"]))
    claims, preset = reference.claims["claims"], results.settings.preset
    testable = [claim for claim in claims if preset in claim["testable_in"]]
    others = [claim for claim in claims if preset not in claim["testable_in"] and claim["origin"] == "paper"]
    return [evaluate(claim, context) for claim in (*testable, *others)]


def evaluate(claim: Mapping[str, Any], context: Context) -> ClaimResult:
    """One claim. Raises ValueError for a claim that is not written as claims.yaml says."""
    if set(claim) != KEYS:
        raise ValueError(f"claim {claim.get('id')!r} has the keys {sorted(claim)}, expected {sorted(KEYS)}")
    rule = claim["rule"]
    if rule["statistic"] not in STATISTICS:
        raise ValueError(f"claim {claim['id']!r}: {unknown('statistic', rule['statistic'], STATISTICS)}")
    preset = context.results.settings.preset
    if preset not in claim["testable_in"]:
        evidence: list[Evidence] = []
        verdict, reason = "not-testable", f"not testable in preset {preset}"
    else:
        evidence = STATISTICS[rule["statistic"]](rule, context)
        verdict, reason = judge(evidence, float(claim["require"]), pooled=bool(rule.get("pool")))
    if any(item.finding == "one-seed" for item in evidence) and preset == SAME_MODEL:
        reason += " (the paper's values are single runs too; those are the target of the comparison cell by cell)"
    power, resolved = None, ""
    if verdict == "inconclusive":
        power, resolved = summary(evidence[-1:] if rule.get("pool") else evidence, rule)
    assert verdict in get_args(Verdict)
    return ClaimResult(
        id=claim["id"],
        statement=claim["statement"],
        source=claim["source"],
        origin=claim["origin"],
        verdict=verdict,
        reason=f"{reason}; {resolved}" if resolved else reason,
        power=power,
        paper_side=_paper_side(evidence, rule),
        evidence=tuple(evidence),
    )


def judge(evidence: Sequence[Evidence], require: float, *, pooled: bool = False) -> tuple[Verdict, str]:
    """The verdict that the findings add up to. A missing comparison counts as undecided, so that no verdict rests on a part by
    luck.
    """
    counts = Counter(item.finding for item in evidence)
    if counts["missing"] + counts["void"] == len(evidence):
        details = ", ".join(dict.fromkeys(item.text for item in evidence))
        return "not-testable", details or "nothing to compare"
    if pooled:
        last = evidence[-1]
        named: dict[str, Verdict] = {"supports": "reproduced", "contradicts": "not-reproduced"}
        held = f"; {ONE_SEED}" if last.finding == "one-seed" else ""
        return named.get(last.finding, "inconclusive"), f"{last.name}: {last.text}{held}"
    total = len(evidence) - counts["void"]
    needed = math.ceil(require * total - 1e-9)
    others = {
        "contradicts": "contradict",
        "undecided": "undecided",
        "missing": "missing",
        "void": "without an object",
        "one-seed": f"with {ONE_SEED}",
    }
    reason = f"{counts['supports']} of {total} support" + "".join(
        f", {counts[name]} {word}" for name, word in others.items() if counts[name]
    )
    if counts["supports"] >= needed:
        return "reproduced", reason
    if counts["contradicts"] > total - needed:
        return "not-reproduced", reason
    return "inconclusive", reason


def _paper_side(evidence: Sequence[Evidence], rule: Mapping[str, Any]) -> str:
    values = [item.paper for item in evidence if item.paper is not None and not item.pooled]
    if not values:
        return ""
    if rule["statistic"] == "collapse":
        agree = sum(bool(value) == rule["expect"] for value in values)
    else:
        sign = 1 if rule["direction"] == "above" else -1
        agree = sum(sign * (value - rule["threshold"]) > 0 for value in values)
    return f"{agree} of {len(values)}"
