"""The table of methods x lags, block by block, from whatever cells exist; as Markdown, CSV and LaTeX.

Accuracies are means over the seeds in %; the interval belongs to the fresh accuracy of the last checkpoint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from pipeline.evaluation.estimators import avg_at_k, binomial_interval
from pipeline.objective.methods import method_of
from pipeline.results.frames import column, mean_of, rows_where
from pipeline.results.markdown import MISSING
from pipeline.results.markdown import table as markdown_table
from pipeline.results.runs import Results

COLUMNS = ("best", "unbiased best", "last", "tail mean", "fresh last", "mismatch", "collapsed")


@dataclass(frozen=True)
class Row:
    """One method at one lag: means over the seeds that were read; accuracies in [0, 1]; NaN where nothing was measured."""

    method: str
    label: str
    lag: str
    block: str
    seeds_read: int
    seeds_expected: int
    best: float
    best_step: str
    unbiased_best: float
    best_inflation: float
    last: float
    tail_mean: float
    fresh_best: float
    fresh_best_low: float
    fresh_best_high: float
    fresh_last: float
    fresh_last_low: float
    fresh_last_high: float
    interval_over: str
    gain_last: float
    mismatch: float
    mismatch_low: float
    mismatch_high: float
    collapsed: int
    onset_step: str
    nonfinite_steps: int


@dataclass(frozen=True)
class Block:
    """A group of rows that share their lag columns."""

    name: str
    title: str
    lags: tuple[str, ...]
    methods: tuple[str, ...]


@dataclass(frozen=True)
class TableForm:
    """How a study lays out its table: its name, the titles of its blocks in their order, and the block of a method at a lag."""

    name: str
    titles: Mapping[str, str]
    block_of: Callable[[str, str], str]


def blocks(rows: Sequence[Row], titles: Mapping[str, str]) -> list[Block]:
    """The blocks that the rows fill, in the order of `titles`, each with its lags and methods in order."""
    found = []
    for name, title in titles.items():
        mine = [row for row in rows if row.block == name]
        if mine:
            lags = tuple(dict.fromkeys(row.lag for row in mine))
            found.append(Block(name, title, lags, tuple(dict.fromkeys(row.method for row in mine))))
    return found


def rows_of(results: Results, cells: pd.DataFrame, form: TableForm) -> list[Row]:
    """One row for every (method, lag) of the settings, from their cells in the summary table."""
    rows = []
    for method, lag in results.rows():
        own = rows_where(cells, (cells["method"] == method) & (cells["lag"] == lag))
        rows.append(_row(results, own, method, lag, form.block_of(method, lag)))
    return rows


def _row(results: Results, cells: pd.DataFrame, method: str, lag: str, block: str) -> Row:
    read = rows_where(cells, cells["status"] == "complete")
    fresh = {name: results.accuracy_interval(method, lag, name) for name in ("best", "last")}
    onsets = column(rows_where(read, column(read, "collapsed").fillna(False).astype(bool)), "onset_step")
    mismatches = column(read, "mismatch").dropna()
    return Row(
        method=method,
        label=method_of(method).label,
        lag=lag,
        block=block,
        seeds_read=len(read),
        seeds_expected=len(cells),
        best=mean_of(read, "best"),
        best_step=_join(column(read, "best_step")),
        unbiased_best=mean_of(read, "unbiased_best"),
        best_inflation=mean_of(read, "best_inflation"),
        last=mean_of(read, "last"),
        tail_mean=mean_of(read, "tail_mean"),
        fresh_best=fresh["best"].estimate,
        fresh_best_low=fresh["best"].low,
        fresh_best_high=fresh["best"].high,
        fresh_last=fresh["last"].estimate,
        fresh_last_low=fresh["last"].low,
        fresh_last_high=fresh["last"].high,
        interval_over=" and ".join(fresh["last"].over),
        gain_last=mean_of(read, "gain_last"),
        mismatch=float(mismatches.mean()),
        mismatch_low=float(mismatches.min()) if len(mismatches) else np.nan,
        mismatch_high=float(mismatches.max()) if len(mismatches) else np.nan,
        collapsed=len(onsets),
        onset_step=_join(onsets),
        nonfinite_steps=int(column(read, "nonfinite_steps").fillna(0).sum()),
    )


def _join(values: pd.Series) -> str:
    return " ".join(str(int(value)) for value in values.dropna())


def percent(value: float, digits: int = 1) -> str:
    return MISSING if np.isnan(value) else f"{100 * value:.{digits}f}"


def small(value: float) -> str:
    """A mismatch with three significant digits."""
    return MISSING if np.isnan(value) else (f"{value:.4f}" if value < 0.1 else f"{value:.3f}")


def bracket(low: float, high: float) -> str:
    return "" if np.isnan(low) else f"[{100 * low:.1f}, {100 * high:.1f}]"


def fresh_last(row: Row) -> str:
    """The fresh accuracy of the last weights in %, with its interval where it has one."""
    return f"{percent(row.fresh_last)} {bracket(row.fresh_last_low, row.fresh_last_high)}".strip()


def collapse_mark(row: Row) -> str:
    """ "0/3", or "† 2/3" where runs collapsed; "–" without runs."""
    if row.seeds_read == 0:
        return MISSING
    return f"{'† ' if row.collapsed else ''}{row.collapsed}/{row.seeds_read}"


def headings(lags: Sequence[str]) -> list[str]:
    return [f"{name} ({lag})" for lag in lags for name in COLUMNS]


def cells_of(row: Row | None) -> list[str]:
    """The table cells of a method at a lag, one for each of COLUMNS."""
    if row is None:
        return [MISSING] * len(COLUMNS)
    unbiased = MISSING if np.isnan(row.unbiased_best) else f"{percent(row.unbiased_best)} ({-100 * row.best_inflation:+.1f})"
    scores = [percent(row.best), unbiased, percent(row.last), percent(row.tail_mean), fresh_last(row)]
    return [*scores, small(row.mismatch), collapse_mark(row)]


def leaders(rows: Sequence[Row]) -> dict[tuple[str, str, int], str]:
    """For each block, lag and accuracy column (0..4): the method with the highest value; none in a block of one."""
    best: dict[tuple[str, str, int], tuple[float, str]] = {}
    counts = Counter(block for block, _ in {(row.block, row.method) for row in rows})
    for row in rows:
        for index, value in enumerate((row.best, row.unbiased_best, row.last, row.tail_mean, row.fresh_last)):
            key = (row.block, row.lag, index)
            if not np.isnan(value) and counts[row.block] > 1 and value > best.get(key, (-1.0, ""))[0]:
                best[key] = (value, row.method)
    return {key: method for key, (_, method) in best.items()}


def notes(rows: Sequence[Row], results: Results) -> list[str]:
    """What a reader must know to read the numbers."""
    problems, scoring = results.settings.problems, results.settings.evaluation
    count, samples = problems.scoring_count, scoring.scoring_samples
    if problems.kind == "dapo_dolci":  # AIME24 has no further problems
        scored, base_scored = f"the same {count} problems x {samples} fresh samples", "on the same with fresh samples"
    else:
        scored, base_scored = f"{count} other problems x {samples} samples", "on the fresh problems"
    single = [row for row in rows if row.seeds_read == 1]
    over = "seeds and problems"
    if len(single) == sum(row.seeds_read > 0 for row in rows):
        over = "problems only: one seed says nothing about the spread between seeds"
    elif single:
        over += "; problems only, one seed says nothing about the spread between seeds, for "
        over += ", ".join(f"{row.label} lag {row.lag}" for row in single)
    most = max((row.seeds_read for row in rows), default=0)
    chance = f" 0 of {most} is compatible with a chance of up to {binomial_interval(0, most).high:.0%} (95 %)." if most else ""
    lines = [
        "Accuracy in %, mean over the seeds read. best, last, tail mean (trailing 25 %): held-out curve, "
        f"{problems.evaluation_count} "
        f"problems x {scoring.num_samples} samples; best is the highest evaluation of distinct weights, as in the paper, and "
        "inflated by being a maximum. unbiased best: the checkpoint chosen on one half of the samples and scored on the other, "
        "mean over random splits; in brackets by how much that lies below best, which is the inflation of best to be expected in "
        f"this cell. fresh last: {scored} of the last checkpoint, with the 95 % interval over {over}.",
        "mismatch: mean of |log pi - log mu| over the last quarter of the steps, first step of each rollout batch. † "
        f"collapsed / seeds read.{chance}",
    ]
    if results.base:
        named = {"evaluation": "on the evaluation problems", "scoring": base_scored}
        lines.append(
            "Base policy: " + ", ".join(f"{percent(avg_at_k(results.base[key]))} {text}" for key, text in named.items()) + "."
        )
    short = [row for row in rows if row.seeds_read < row.seeds_expected]
    if short:
        names = ", ".join(f"{row.label} lag {row.lag} ({row.seeds_read} of {row.seeds_expected} seeds)" for row in short)
        lines.append(f"Not complete: {names}.")
    return lines


def render_markdown(rows: Sequence[Row], results: Results, form: TableForm) -> str:
    """The table as a page: every block, the leaders of its columns in bold, and the notes."""
    parts = [f"# {form.name}, preset {results.settings.preset}", ""]
    lead = leaders(rows)
    by_key = {(row.method, row.lag): row for row in rows}
    for block in blocks(rows, form.titles):
        lines = []
        for method in block.methods:
            line = [method_of(method).label]
            for lag in block.lags:
                cells = cells_of(by_key.get((method, lag)))
                line += [f"**{text}**" if lead.get((block.name, lag, i)) == method else text for i, text in enumerate(cells)]
            lines.append(line)
        parts += [f"## {block.title}", "", *markdown_table(["Method", *headings(block.lags)], lines), ""]
    return "\n".join([*parts, *(f"{line}\n" for line in notes(rows, results))])


def render_latex(rows: Sequence[Row], results: Results, form: TableForm) -> str:
    """One booktabs tabular per block."""
    by_key = {(row.method, row.lag): row for row in rows}
    lead = leaders(rows)
    parts = [f"% {form.name}, preset {results.settings.preset}; needs booktabs"]
    for block in blocks(rows, form.titles):
        groups = " & ".join(f"\\multicolumn{{{len(COLUMNS)}}}{{c}}{{Lag {lag}}}" for lag in block.lags)
        head = " & ".join("Best & Unbiased best & Last & Tail & Fresh last & $d_\\pi$ & Coll." for _ in block.lags)
        parts += [f"% {block.title}", f"\\begin{{tabular}}{{l{'rlrrlrr' * len(block.lags)}}}", "\\toprule"]
        parts += [f" & {groups} \\\\", f"Method & {head} \\\\", "\\midrule"]
        for method in block.methods:
            line = [method_of(method).label]
            for lag in block.lags:
                cells = [_latex(text) for text in cells_of(by_key.get((method, lag)))]
                line += [
                    f"\\textbf{{{text}}}" if lead.get((block.name, lag, i)) == method else text for i, text in enumerate(cells)
                ]
            parts.append(" & ".join(line) + " \\\\")
        parts += ["\\bottomrule", "\\end{tabular}", ""]
    return "\n".join([*parts, *("% " + line for line in notes(rows, results)), ""])


def _latex(text: str) -> str:
    return text.replace("–", "--").replace("† ", "$\\dagger$\\,")
