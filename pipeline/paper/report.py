"""The report: one self-contained HTML page (and a Markdown page) of everything a reader of a reproduction looks for.

In: the summary table, diff.json, the figures, and the cells as collected. Out: report.html, which requests nothing from anywhere -
styles, figures and data stand in it - and report.md. What is missing is listed, never hidden; the page renders from no cells at
all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import jinja2
import pandas as pd
from markupsafe import Markup

from pipeline.artifacts import Layout, read_json, write_text
from pipeline.config import Settings
from pipeline.evaluation.estimators import avg_at_k
from pipeline.objective.methods import method_of
from pipeline.paper import curve_texts
from pipeline.paper.diff import DIFFERENT_SCALE, Compared, cell_texts
from pipeline.paper.figures import FIGURES, captions
from pipeline.paper.presets import other_presets, side_by_side
from pipeline.paper.ranks import rank_texts
from pipeline.paper.reference import Reference, read_reference
from pipeline.paper.table1 import FORM
from pipeline.paper.verdicts import SIGNS, VERDICTS, WORDS
from pipeline.results import contrasts, variants
from pipeline.results.collapse import RULE
from pipeline.results.collect import read_summary
from pipeline.results.cost import PlanFile, cost_rows, cost_totals, planned_and_measured, read_plan
from pipeline.results.decomposition import Level, read_levels, view
from pipeline.results.frames import rows_where
from pipeline.results.markdown import MISSING, table
from pipeline.results.provenance import provenance
from pipeline.results.responses import disagreements, examples
from pipeline.results.runs import Gap, Results
from pipeline.results.style import GRID, INK
from pipeline.results.table import Row, blocks, cells_of, leaders, notes, render_markdown, rows_of

DIFF_KEYS = {"comparable", "seeds", "summary", "ranks", "cells", "claims"}
COLUMN_NAMES = ("Best", "Unbiased", "Last", "Tail", "Fresh last", "Mismatch", "Collapsed")


@dataclass(frozen=True)
class ReportInputs:
    """What the report is made from: the cells, their summary, diff.json and diff.md, the folder of the figures, what a run may have
    left beside (mismatch.json, plan.json, verdicts of other presets, manifests), and everything that is missing or damaged.
    """

    results: Results
    reference: Reference
    cells: pd.DataFrame
    rows: Sequence[Row]
    diff: Mapping[str, Any]
    diff_page: str
    figures: Path
    levels: Sequence[Level]
    plan: PlanFile | None
    presets: Mapping[str, Any] | None
    made: Mapping[str, Any]
    gaps: Sequence[Gap]


def report_stage(results: Results, cells: Path, diff: Path, figures: Path, html: Path, markdown: Path) -> None:
    """Write the report from cells.parquet, diff.json with diff.md beside it, the folder `figures`, and the cells."""
    inputs = read_inputs(results, cells, diff, figures)
    shown = page(inputs)
    write_text(html, _template("report.html.j2", autoescape=True).render(shown))
    write_text(markdown, _template("report.md.j2", autoescape=False).render(shown | page_in_markdown(inputs, markdown.parent)))


def read_inputs(results: Results, cells: Path, diff: Path, figures: Path) -> ReportInputs:
    """Read what the report shows. What other stages write (cells.parquet, diff.json) must be there: ValueError otherwise; a damaged
    file of those that may be absent is a gap.
    """
    table, content, layout = read_summary(cells), read_diff(diff), Layout(results.settings.preset)
    others, preset_gaps = other_presets(results.settings.preset)
    made, made_gaps = provenance(results, layout)
    levels, level_gaps = _or_gap(read_levels, layout.results / "mismatch.json", [])
    plan, plan_gaps = _or_gap(read_plan, layout.results / "plan.json", None)
    return ReportInputs(
        results=results,
        reference=read_reference(),
        cells=table,
        rows=rows_of(results, table, FORM),
        diff=content,
        diff_page=diff.with_suffix(".md").read_text(encoding="utf-8"),
        figures=figures,
        levels=levels,
        plan=plan,
        presets=side_by_side(results.settings.preset, content, others),
        made=made,
        gaps=[*results.gaps, *made_gaps, *level_gaps, *plan_gaps, *preset_gaps],
    )


def read_diff(path: Path) -> dict[str, Any]:
    """diff.json of this run. Raises ValueError, with the remedy, where another version wrote it."""
    content = read_json(path)
    try:
        contrasts.from_json(content["contrasts"])
        curve_texts.from_json(content["curves"])
        variants.from_json(content["settings"])
        absent = DIFF_KEYS - content.keys()
    except (KeyError, TypeError, AttributeError) as error:
        absent = {str(error)}
    if absent:
        remedy = "run `python -m pipeline diff` or snakemake again"
        raise ValueError(f"{path} was written by another version (it lacks {', '.join(sorted(absent))}); {remedy}")
    return content


T = TypeVar("T")


def _or_gap(read: Callable[[Path], T], path: Path, nothing: T) -> tuple[T, list[Gap]]:
    """What `read` finds in `path`, or `nothing` and the gap that says why."""
    try:
        return read(path), []
    except ValueError as error:
        return nothing, [Gap(path.name, "unreadable", str(error))]


def _template(name: str, *, autoescape: bool) -> jinja2.Template:
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    options = {"undefined": jinja2.StrictUndefined, "trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    return jinja2.Environment(loader=loader, autoescape=autoescape, **options).get_template(name)


def page(inputs: ReportInputs) -> dict[str, Any]:
    """Everything the template shows, as text and numbers."""
    settings = inputs.results.settings
    read = rows_where(inputs.cells, inputs.cells["status"] == "complete")
    differences, curves = contrasts.from_json(inputs.diff["contrasts"]), curve_texts.from_json(inputs.diff["curves"])
    effects = variants.from_json(inputs.diff["settings"])
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
        "seed_notes": inputs.diff["seed_notes"],
        "collapse_rule": RULE,
        "blocks": table_blocks(inputs.rows),
        "column_names": COLUMN_NAMES,
        "notes": notes(inputs.rows, inputs.results),
        "diffs": diff_rows(inputs.diff),
        "ranks": rank_texts(inputs.diff["ranks"]),
        "contrasts": {"head": contrasts.HEAD, "rows": contrasts.contrast_rows(differences), "note": contrasts.NOTE},
        "changed": {"head": variants.HEAD, "rows": variants.setting_rows(effects), "note": variants.NOTE},
        "curves": {"head": curve_texts.HEAD, "rows": curve_texts.curve_rows(curves), "note": curve_texts.NOTE},
        "presets": inputs.presets,
        "made": inputs.made,
        "mismatch": view(inputs.levels, inputs.rows, settings.rollout.dtype),
        "plan": planned_and_measured(inputs.plan, read) if inputs.plan else None,
        "figures": figure_views(inputs),
        "costs": cost_rows(read),
        "totals": cost_totals(read),
        "gaps": inputs.gaps,
        "trouble": trouble(read),
        "setting_groups": setting_groups(settings),
        "environment": environment_rows(inputs.results),
        "examples": examples(inputs.results),
        "disagreements": disagreements(inputs.results),
        "paper": inputs.reference.claims["paper"],
    }


def table_blocks(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Table 1 block by block, every cell with its text and whether it leads its column."""
    by_key, lead = {(row.method, row.lag): row for row in rows}, leaders(rows)
    views = []
    for block in blocks(rows, FORM.titles):
        lines = []
        for method in block.methods:
            cells = [
                {"text": text, "leads": lead.get((block.name, lag, index)) == method, "collapsed": text.startswith("†")}
                for lag in block.lags
                for index, text in enumerate(cells_of(by_key.get((method, lag))))
            ]
            lines.append({"label": method_of(method).label, "cells": cells})
        views.append({"title": block.title, "lags": block.lags, "lines": lines})
    return views


def diff_rows(diff: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The cell-by-cell comparison as texts."""
    rows = []
    for cell in diff["cells"]:
        parts = []
        for name in ("score", "mismatch", "collapse"):
            paper, ours = cell_texts(name, Compared(**cell[name]), diff["comparable"])
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
        facts = {"git revision": run.run.git_revision or "not recorded"}
        facts |= {f"hardware: {name}": _setting(value) for name, value in (run.run.hardware or {}).items()}
        facts |= {f"package: {name}": str(value) for name, value in (run.run.packages or {}).items()}
        for name, value in facts.items():
            counts = values.setdefault(name, {})
            counts[value] = counts.get(value, 0) + 1
    return [
        (name, "; ".join(value if len(counts) == 1 else f"{value} ({number} runs)" for value, number in counts.items()))
        for name, counts in values.items()
    ]


def page_in_markdown(inputs: ReportInputs, folder: Path) -> dict[str, Any]:
    """What the Markdown page has as text where the HTML page has a layout: Table 1, the comparison, links to the figures."""
    texts = captions(inputs.results.settings, inputs.reference)
    pictures = []
    for name, entry in FIGURES.items():
        path = inputs.figures / f"{name}.png"
        link = path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.as_posix()
        shown = f"![{entry.title}]({link})" if path.exists() else "(not drawn)"
        pictures.append({"title": entry.title, "picture": shown, "caption": texts[name]})
    rows = inputs.presets["rows"] if inputs.presets else []
    presets_rows = [[row["statement"], *(WORDS.get(verdict, MISSING) for verdict in row["verdicts"])] for row in rows]
    return {
        "table1": render_markdown(inputs.rows, inputs.results, FORM).split("\n", 1)[1].replace("\n## ", "\n### ").strip(),
        "comparison": inputs.diff_page.split("\n", 1)[1].replace("\n### ", "\n#### ").replace("\n## ", "\n### ").strip(),
        "pictures": pictures,
        "presets_rows": presets_rows,
        "table": lambda head, rows: "\n".join(table(head, rows)),
    }


def _setting(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_setting(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(_setting, value)) or "none"
    if value is None or isinstance(value, bool):
        return {None: "not set", True: "yes", False: "no"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)
