"""Ours against the paper, cell by cell, and the verdict on every claim: diff.md, diff.csv, diff.json.

At preset `full` scores and mismatch are compared as they are. Any other preset trains another model on another task: absolute
values are then not comparable, and only what is free of the scale is compared (`comparison`), and the order of the methods.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.artifacts import read_json, write_json, write_text
from pipeline.config import Settings
from pipeline.objective.methods import TABLE_1
from pipeline.paper.claims import ONE_SEED, SAME_MODEL, ClaimResult, evaluate_claims
from pipeline.paper.comparison import CellDiff, Compared, compare_cell
from pipeline.paper.curve_texts import curve_lines
from pipeline.paper.curves import compare_curves
from pipeline.paper.lags import LAGS, large_lag
from pipeline.paper.ranks import rank_texts
from pipeline.paper.reference import Reference, read_reference
from pipeline.paper.table1 import FORM
from pipeline.paper.verdicts import SIGNS, VERDICTS, WORDS, count
from pipeline.results import variants
from pipeline.results.collect import read_summary
from pipeline.results.contrasts import contrast_lines, contrasts
from pipeline.results.markdown import MISSING
from pipeline.results.runs import Results
from pipeline.results.table import Row, rows_of, small
from pipeline.section import unknown

DIFFERENT_SCALE = (
    "This preset trains another, far smaller model on another task. Absolute scores and mismatches are not comparable with "
    "the paper's; "
    "compared are the sign of the gain over the base policy, the side of GRPO at lag 1 on which a cell's mismatch lies, the "
    "collapse mark "
    "and the order of the methods."
)


def diff_stage(results: Results, cells: Path, markdown: Path, csv: Path, json: Path) -> dict[str, Any]:
    """Compare the run (cells.parquet and the cells) with the paper and judge the claims; returns the content of diff.json."""
    settings, reference = results.settings, read_reference()
    rows = rows_of(results, read_summary(cells), FORM)
    diffs = [compare_cell(row, results, reference) for row in rows if reference.row(row.method, row.lag)]
    claims = evaluate_claims(results, reference)
    ranks = rank_correlations(rows, reference)
    differences = contrasts(results, TABLE_1, LAGS, large_lag(settings))
    curves = compare_curves(results, reference)
    effects = variants.setting_effects(results, differences)
    content: dict[str, Any] = {
        "preset": settings.preset,
        "comparable": settings.preset == SAME_MODEL,
        "seeds": list(settings.seeds),
        "summary": {"cells": count(diff.verdict for diff in diffs), "claims": count(claim.verdict for claim in claims)},
        "seed_notes": seed_notes(diffs, settings),
        "ranks": ranks,
        "cells": [asdict(diff) for diff in diffs],
        "claims": [asdict(claim) for claim in claims],
        "contrasts": [asdict(item) | {"label": item.label} for item in differences],
        "settings": variants.as_json(effects),
        "curves": [asdict(item) for item in curves],
    }
    content = _finite(content)
    write_text(csv, pd.json_normalize(content["cells"], sep="_").to_csv(index=False, float_format="%.6g"))
    page = [render_markdown(diffs, claims, ranks, settings), *contrast_lines(differences)]
    page += [*variants.setting_lines(effects), *curve_lines(curves)]
    write_text(markdown, "\n".join(page) + "\n")
    write_json(json, content)
    return content


def diff_exit_status(path: Path, fail_on: Collection[str]) -> int:
    """1 if a cell or claim of the diff.json at `path` has a verdict in `fail_on`, else 0; raises ValueError for an unknown one."""
    for name in fail_on:
        if name not in VERDICTS:
            raise ValueError(unknown("verdict", name, list(VERDICTS)))
    content = read_json(path)
    return int(any(entry["verdict"] in fail_on for entry in [*content["cells"], *content["claims"]]))


def rank_correlations(rows: Sequence[Row], reference: Reference) -> dict[str, dict[str, float]]:
    """Spearman's correlation over the methods between the paper's and our order, by lag, for score and mismatch; with n."""
    ranks: dict[str, dict[str, float]] = {}
    for lag in LAGS:
        pairs = [(row, paper) for row in rows if row.lag == lag and (paper := reference.row(row.method, lag)) and row.seeds_read]
        for name, ours, theirs in (
            ("score", [row.fresh_best for row, _ in pairs], [paper["aime24"] for _, paper in pairs]),
            ("mismatch", [row.mismatch for row, _ in pairs], [paper["mismatch"] for _, paper in pairs]),
        ):
            known = [(a, b) for a, b in zip(ours, theirs, strict=True) if not np.isnan(a)]
            value = float("nan")
            if len(known) >= 3:
                value = float(pd.DataFrame(known).rank().corr().iloc[0, 1])
            ranks[f"{name}, lag {lag}"] = {"spearman": value, "n": len(known)}
    return ranks


def render_markdown(diffs: Sequence[CellDiff], claims: Sequence[ClaimResult], ranks: dict[str, Any], settings: Settings) -> str:
    """The comparison as a page."""
    same = settings.preset == SAME_MODEL
    parts = [f"# Paper and ours, preset {settings.preset}", ""]
    parts += [] if same else [f"**{DIFFERENT_SCALE}**", ""]
    parts += [f"{text}\n" for text in seed_notes(diffs, settings)]
    names = ("score", "mismatch", "collapse")
    head = ["Method", "Lag", *(f"{name}: {side}" for name in names for side in ("paper", "ours", ""))]
    head = [text.removesuffix(": ") if text.endswith(": ") else text for text in head]
    parts += ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for diff in diffs:
        line = [diff.label, diff.lag]
        for name in names:
            item: Compared = getattr(diff, name)
            line += [*cell_texts(name, item, same), SIGNS[item.verdict]]
        parts.append("| " + " | ".join(line) + " |")
    kinds = {getattr(diff, name).compared: None for diff in diffs for name in names}
    parts += [
        "",
        "Compared: " + "; ".join(kinds) + ".",
        "",
        _legend(),
        "",
        "Order of the methods (Spearman's correlation, paper and ours, over n methods, with the 95 % interval that these leave):",
        "",
    ]
    parts += [f"- {text}" for text in rank_texts(ranks)]
    parts += ["", "## Claims", "", "| | Claim | Source | Verdict | Numbers | In the paper's table |", "|---|---|---|---|---|---|"]
    for claim in claims:
        paper = claim.paper_side or MISSING
        parts.append(
            f"| {SIGNS[claim.verdict]} | {claim.statement} | {claim.source} | {WORDS[claim.verdict]} | {claim.reason} | {paper} |"
        )
    parts += ["", "### What the verdicts rest on", ""]
    for claim in claims:
        parts += [f"- **{claim.id}**: {WORDS[claim.verdict]}"]
        parts += [f"  - {item.name}: {item.text} ({item.finding})" for item in claim.evidence]
    return "\n".join([*parts, ""])


def seed_notes(diffs: Sequence[CellDiff], settings: Settings) -> list[str]:
    """Which cells were compared by one run, or not by all their seeds, and what that means for their verdicts."""
    single = [f"{diff.label} lag {diff.lag}" for diff in diffs if diff.seeds == 1]
    short = [f"{diff.label} lag {diff.lag} ({diff.seeds})" for diff in diffs if 0 < diff.seeds < len(settings.seeds)]
    held_back = (
        "the paper's values are single runs too and are compared as such"
        if settings.preset == SAME_MODEL
        else "what compares our runs with each other is inconclusive there"
    )
    notes = [f"{ONE_SEED.capitalize()}, intervals speak of the problems (or steps) only; {held_back}"] if single else []
    if single and len(single) < sum(diff.seeds > 0 for diff in diffs):
        notes[0] += ": " + ", ".join(single)
    notes += (
        [f"Fewer than {len(settings.seeds)} seeds were read, so that nothing is decided there: {', '.join(short)}"] if short else []
    )
    return [f"{note}." for note in notes]


def cell_texts(name: str, item: Compared, same: bool) -> list[str]:
    """The paper's and our value of a comparison as text, ours with its interval (and the difference where scales agree)."""
    if name == "collapse":
        ours = MISSING if item.ours is None else f"{item.ours:.0%}"
        return ["†" if item.paper else "no", "no" if ours == "0%" else f"† {ours}" if ours != MISSING else ours]
    if name == "mismatch":
        form = small if same else (lambda value: f"×{value:.2f}")
    else:
        form = (lambda value: f"{value:.1f}") if same else (lambda value: f"{value:+.1f}")
    texts = [form(item.paper) if item.paper is not None else MISSING]
    if item.ours is None or np.isnan(item.ours):
        return [*texts, MISSING]
    interval = f" [{form(item.low)}, {form(item.high)}]" if item.low is not None and item.high is not None else ""
    difference = "" if item.difference is None else f", difference {item.difference:+.3g}"
    return [*texts, f"{form(item.ours)}{interval}{difference}"]


def _legend() -> str:
    return "; ".join(f"{SIGNS[verdict]} {WORDS[verdict]}" for verdict in VERDICTS) + "."


def _finite(value: Any) -> Any:
    """The same structure with None in place of NaN and infinities, which JSON has no word for."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else None
    return value
