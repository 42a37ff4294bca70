"""How a run was made: the command that makes it again, the code's revisions, hashes of its inputs, and the rules in their order."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from pipeline.artifacts import Layout
from pipeline.config import Settings, load_settings
from pipeline.results.json_files import read_as
from pipeline.results.runs import Gap, Results

# the rules of the Snakefile from left to right; those of a column wait for the column before, not for each other
RULES = (
    ("prepare",),
    ("base_policy",),
    ("score_base", "train_cell", "mismatch"),
    ("score_cell",),
    ("collect",),
    ("table1", "figures", "diff"),
    ("report",),
)


class _File(BaseModel):
    sha256: str


class _Problems(BaseModel):
    files: dict[str, _File]


class _Policy(BaseModel):
    sha256: dict[str, str]


def provenance(results: Results, layout: Layout) -> tuple[dict[str, Any], list[Gap]]:
    """The block "how this was made" as texts, and what of it could not be read."""
    hashes, gaps = _hashes(layout)
    revisions = Counter(str(run.run.git_revision or "not recorded") for run in results.runs.values())
    jobs = dict.fromkeys(("train_cell", "score_cell"), len(results.settings.all_cells()))
    columns = [[name if name not in jobs else f"{name} × {jobs[name]}" for name in column] for column in RULES]
    return {
        "command": command(results.settings),
        "page_command": f"python -m pipeline assemble --preset {results.settings.preset}",
        "revisions": [f"{revision} ({count} run{'s' if count > 1 else ''})" for revision, count in revisions.most_common()],
        "hashes": hashes,
        "rules": columns,
    }, gaps


def command(settings: Settings, config: Path = Path("config.yaml")) -> str | None:
    """The command line that resolves to `settings`: what they change in `config`, as --config takes it; None where none does."""
    if not config.exists():
        return None
    present = load_settings(config, {"preset": settings.preset})
    changes = {"preset": settings.preset} | _changes(present.model_dump(mode="json"), settings.model_dump(mode="json"))
    if "seeds" in changes and changes["seeds"] == list(range(len(changes["seeds"]))):
        changes["seeds"] = len(changes["seeds"])
    if load_settings(config, changes) != settings:
        return None
    return " ".join(["snakemake --cores all --config", *(shlex.quote(f"{key}={_yaml(value)}") for key, value in changes.items())])


def _changes(present: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """What of `wanted` differs from `present`, in the same nesting."""
    found = {}
    for key, value in wanted.items():
        if key in present and isinstance(value, Mapping) and isinstance(present[key], Mapping):
            if inner := _changes(present[key], value):
                found[key] = inner
        elif key not in present or present[key] != value:
            found[key] = value
    return found


def _yaml(value: Any) -> str:
    """In one line, as YAML reads it back."""
    text = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), sort_keys=False)
    return text.removesuffix("...\n").strip()


def _hashes(layout: Layout) -> tuple[list[tuple[str, str]], list[Gap]]:
    """sha256 of the problem sets and of the base policy's files, as their manifests hold them."""
    hashes, gaps = [], []
    for folder, form in ((layout.problems, _Problems), (layout.base_policy, _Policy)):
        path = folder / "manifest.json"
        try:
            manifest = read_as(form, path, "run snakemake again, which writes it")
        except ValueError as error:
            gaps.append(Gap(folder.name, "unreadable" if path.exists() else "missing", str(error)))
            continue
        files = manifest.files.items() if isinstance(manifest, _Problems) else manifest.sha256.items()
        hashes += [(f"{folder.name}/{name}", value.sha256 if isinstance(value, _File) else value) for name, value in files]
    return hashes, gaps
