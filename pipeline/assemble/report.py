"""The report: one self-contained HTML page (and a Markdown page) of everything a reader of a reproduction looks for.

In: the summary table, diff.json, the figures, and the cells. Out: report.html, which requests nothing from anywhere - styles,
figures and data stand in it - and report.md. What is missing is listed, never hidden; the page renders from no cells at all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup

from pipeline.artifacts import read_json, write_text
from pipeline.assemble.collapse import RULE
from pipeline.assemble.collect import read_summary
from pipeline.assemble.diff import DIFFERENT_SCALE, Comparison, cell_texts
from pipeline.assemble.figures import FIGURES, captions
from pipeline.assemble.reference import Reference, read_reference
from pipeline.assemble.runs import Results
from pipeline.assemble.style import GRID, INK
from pipeline.assemble.table1 import MISSING, Row, blocks, cells_of, leaders, notes, render_markdown, rows_of
from pipeline.assemble.verdicts import SIGNS, VERDICTS, WORDS
from pipeline.config import Settings
from pipeline.evaluation.estimators import avg_at_k
from pipeline.objective.methods import METHODS

COLUMN_NAMES = ("Best", "Unbiased", "Last", "Tail", "Fresh last", "Mismatch", "Collapsed")
OUTCOME_ORDER = ("correct", "incorrect", "no_answer", "timeout", "error")
NUM_EXAMPLES = 8


@dataclass(frozen=True)
class ReportInputs:
    """What the report is made from: the cells, their summary, diff.json, and the folder of the figures."""

    results: Results
    reference: Reference
    cells: pd.DataFrame
    rows: Sequence[Row]
    diff: Mapping[str, Any]
    figures: Path


def report_stage(results: Results, cells: Path, diff: Path, figures: Path, html: Path, markdown: Path) -> None:
    """Write the report from cells.parquet, diff.json, the folder `figures`, and the cells on disk."""
    table = read_summary(cells)
    inputs = ReportInputs(results, read_reference(), table, rows_of(results, table), read_json(diff), figures)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    write_text(html, environment.get_template("report.html.j2").render(page(inputs)))
    write_text(markdown, report_markdown(inputs, markdown.parent))


def page(inputs: ReportInputs) -> dict[str, Any]:
    """Everything the template shows, as text and numbers."""
    settings = inputs.results.settings
    read = inputs.cells[inputs.cells["status"] == "complete"]
    return {
        "settings": settings,
        "comparable": inputs.diff["comparable"],
        "different_scale": DIFFERENT_SCALE,
        "num_read": len(read),
        "num_cells": len(inputs.cells),
        "base": {name: f"{100 * avg_at_k(outcomes):.1f} %" for name, outcomes in inputs.results.base.items()},
        "verdicts": [{"name": name, "word": WORDS[name], "sign": SIGNS[name]} for name in VERDICTS],
        "signs": SIGNS,
        "words": WORDS,
        "summary": inputs.diff["summary"],
        "claims": inputs.diff["claims"],
        "collapse_rule": RULE,
        "blocks": table_blocks(inputs.rows),
        "column_names": COLUMN_NAMES,
        "notes": notes(inputs.rows, inputs.results),
        "diffs": diff_rows(inputs.diff),
        "ranks": inputs.diff["ranks"],
        "figures": figure_views(inputs),
        "costs": cost_rows(read),
        "totals": cost_totals(read),
        "gaps": inputs.results.gaps,
        "trouble": trouble(read),
        "setting_groups": setting_groups(settings),
        "environment": environment_rows(inputs.results),
        "examples": examples(inputs.results),
        "paper": inputs.reference.claims["paper"],
    }


def table_blocks(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Table 1 block by block, every cell with its text and whether it leads its column."""
    by_key, lead = {(row.method, row.lag): row for row in rows}, leaders(rows)
    views = []
    for block in blocks(rows):
        lines = []
        for method in block.methods:
            cells = [
                {"text": text, "leads": lead.get((block.name, lag, index)) == method, "collapsed": text.startswith("†")}
                for lag in block.lags
                for index, text in enumerate(cells_of(by_key.get((method, lag))))
            ]
            lines.append({"label": METHODS[method].label, "cells": cells})
        views.append({"title": block.title, "lags": block.lags, "lines": lines})
    return views


def diff_rows(diff: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The cell-by-cell comparison as texts."""
    rows = []
    for cell in diff["cells"]:
        parts = []
        for name in ("score", "mismatch", "collapse"):
            paper, ours = cell_texts(name, Comparison(**cell[name]), diff["comparable"])
            parts.append({"paper": paper, "ours": ours, "verdict": cell[name]["verdict"]})
        rows.append({"label": cell["label"], "lag": cell["lag"], "paper_best": f"{cell['paper_best']:.2f}", "parts": parts})
    return rows


def figure_views(inputs: ReportInputs) -> list[dict[str, Any]]:
    """Every figure with title, caption and inline drawing; without one where its file is absent."""
    texts = captions(inputs.results.settings, inputs.reference)
    views = []
    for name, entry in FIGURES.items():
        path = inputs.figures / f"{name}.svg"
        drawing = inline_svg(path.read_text(encoding="utf-8"), name, entry.title) if path.exists() else None
        views.append({"name": name, "title": entry.title, "caption": texts[name], "svg": drawing, "folder": inputs.figures.name})
    return views


def inline_svg(text: str, name: str, title: str) -> Markup:
    """A matplotlib SVG made part of an HTML page: ids of its own, the page's ink and grid colours, as wide as its frame."""
    body = text[text.index("<svg") :]
    head, body = body.split(">", 1)
    view = re.search(r'viewBox="([^"]+)"', head)
    assert view, "matplotlib writes a viewBox"
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'\bid="', f'id="{name}-', body)
    body = re.sub(r'(xlink:href|href)="#', rf'\1="#{name}-', body)
    body = body.replace("url(#", f"url(#{name}-")
    body = body.replace(INK, "currentColor").replace(GRID, "var(--grid)")
    label = Markup.escape(title)
    return Markup(f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="{view[1]}" role="img" aria-label="{label}">{body}')


def cost_rows(read: pd.DataFrame) -> list[dict[str, str]]:
    """Time and memory of every run that was read."""
    return [
        {
            "label": row["label"],
            "lag": row["lag"],
            "seed": str(row["seed"]),
            "wall": _seconds(row["wall_s"]),
            "train": _seconds(row["train_s"]),
            "wait": _seconds(row["wait_s"]),
            "evaluate": _seconds(row["evaluate_s"]),
            "cpu": _seconds(row["cpu_s"]),
            "memory": MISSING if pd.isna(row["peak_memory_bytes"]) else f"{row['peak_memory_bytes'] / 2**30:.2f}",
            "resumed": str(int(row["resumed"])) if row["resumed"] else "",
            "length": f"{row['response_length_mean']:.1f}",
            "truncated": f"{row['truncated_share']:.1%}",
            "lag_mean": f"{row['lag_mean']:.2f}",
        }
        for row in read.to_dict("records")
    ]


def cost_totals(read: pd.DataFrame) -> dict[str, str]:
    memory = read["peak_memory_bytes"].max() if len(read) else pd.NA
    return {
        "wall": _duration(read["wall_s"].sum()),
        "cpu": _duration(read["cpu_s"].sum()),
        "median": _seconds(read["cpu_s"].median()) if len(read) else MISSING,
        "memory": MISSING if pd.isna(memory) else f"{memory / 2**30:.2f} GiB",
    }


def trouble(read: pd.DataFrame) -> list[dict[str, str]]:
    """Runs that collapsed or had non-finite steps, with what was seen."""
    rows = []
    for row in read.to_dict("records"):
        collapsed = not pd.isna(row["collapsed"]) and bool(row["collapsed"])
        if collapsed or row["nonfinite_steps"]:
            text = f"collapsed from step {row['onset_step']} ({row['collapse_cause']})" if collapsed else ""
            bad = f"{row['nonfinite_steps']} step(s) not finite, left out of the means" if row["nonfinite_steps"] else ""
            rows.append(
                {"label": row["label"], "lag": row["lag"], "seed": str(row["seed"]), "text": "; ".join(filter(None, (text, bad)))}
            )
    return rows


def setting_groups(settings: Settings) -> list[dict[str, Any]]:
    """The resolved settings by section, as name and value."""
    groups: dict[str, list[tuple[str, str]]] = {"run": []}
    for name, value in settings.model_dump(mode="json").items():
        if isinstance(value, dict):
            groups[name] = [(key, _setting(item)) for key, item in value.items()]
        else:
            groups["run"].append((name, _setting(value)))
    return [{"name": name, "values": values} for name, values in groups.items()]


def environment_rows(results: Results) -> list[tuple[str, str]]:
    """Hardware, revision and package versions, each value with the number of runs where they differ."""
    values: dict[str, dict[str, int]] = {}
    for run in results.runs.values():
        facts = {"git revision": run.run.get("git_revision") or "not recorded"}
        facts |= {f"hardware: {name}": _setting(value) for name, value in (run.run.get("hardware") or {}).items()}
        facts |= {f"package: {name}": str(value) for name, value in (run.run.get("packages") or {}).items()}
        for name, value in facts.items():
            counts = values.setdefault(name, {})
            counts[value] = counts.get(value, 0) + 1
    return [
        (name, "; ".join(value if len(counts) == 1 else f"{value} ({number} runs)" for value, number in counts.items()))
        for name, counts in values.items()
    ]


def examples(results: Results) -> list[dict[str, Any]]:
    """A few graded responses: from several runs in turn, early and late, one outcome after the other."""
    pool = [
        {
            "cell": f"{METHODS[cell.method].label}, lag {cell.lag}, seed {cell.seed}",
            **example,
            "version": example.get("policy_version"),
        }
        for cell, run in sorted(results.runs.items())
        for example in run.run.get("examples", [])
    ]
    pool.sort(key=lambda item: OUTCOME_ORDER.index(item["outcome"]) if item["outcome"] in OUTCOME_ORDER else len(OUTCOME_ORDER))
    by_outcome = [list(group) for _, group in groupby(pool, key=lambda item: item["outcome"])]
    chosen: list[dict[str, Any]] = []
    for turn in range(NUM_EXAMPLES):
        for group in by_outcome:
            index = turn * max(1, len(group) // 4)
            if len(chosen) < NUM_EXAMPLES and index < len(group):
                chosen.append(group[index])
    return chosen


def report_markdown(inputs: ReportInputs, folder: Path) -> str:
    """The report as Markdown, with the figures linked."""
    settings, diff = inputs.results.settings, inputs.diff
    read = inputs.cells[inputs.cells["status"] == "complete"]
    counts = ", ".join(f"{number} {WORDS[name]}" for name, number in diff["summary"]["claims"].items())
    parts = [f"# Report, preset {settings.preset}", "", f"Claims: {counts}. Runs read: {len(read)} of {len(inputs.cells)}.", ""]
    parts += [] if diff["comparable"] else [f"**{DIFFERENT_SCALE}**", ""]
    parts += ["| | Claim | Verdict | Numbers |", "|---|---|---|---|"]
    parts += [f"| {SIGNS[c['verdict']]} | {c['statement']} | {WORDS[c['verdict']]} | {c['reason']} |" for c in diff["claims"]]
    parts += ["", render_markdown(inputs.rows, inputs.results).replace("\n## ", "\n### ").replace("# Table 1,", "## Table 1,", 1)]
    texts = captions(settings, inputs.reference)
    for name, entry in FIGURES.items():
        path = inputs.figures / f"{name}.png"
        link = path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.as_posix()
        picture = f"![{entry.title}]({link})" if path.exists() else "(not drawn)"
        parts += [f"## {entry.title}", "", picture, "", texts[name], ""]
    parts += ["## Missing and failed", ""]
    parts += [f"- {gap.cell}: {gap.kind}, {gap.reason}" for gap in inputs.results.gaps] or ["- nothing"]
    parts += [f"- {row['label']}, lag {row['lag']}, seed {row['seed']}: {row['text']}" for row in trouble(read)]
    total = cost_totals(read)
    parts += [
        "",
        "## Cost",
        "",
        f"{len(read)} runs: {total['wall']} wall, {total['cpu']} CPU; largest memory {total['memory']}.",
        "",
    ]
    return "\n".join(parts)


def _seconds(value: float) -> str:
    return MISSING if pd.isna(value) else f"{value:.1f}"


def _duration(seconds: float) -> str:
    """A time in the largest fitting unit."""
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def _setting(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_setting(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(_setting, value)) or "none"
    if value is None or isinstance(value, bool):
        return {None: "not set", True: "yes", False: "no"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)
