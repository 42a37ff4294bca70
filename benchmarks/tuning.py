"""Cells that no table shows: settings tried on seeds that the tables never use. Finished stages are kept below a folder."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from pipeline.artifacts import Cell, Layout, write_if_changed
from pipeline.config import Settings, load_settings
from pipeline.section import Section
from pipeline.sections import BasePolicySettings

SEEDS = (100, 101)
TINY = Layout("tiny")


def tiny(changes: Mapping[str, Any]) -> Settings:
    return load_settings(overrides={"preset": "tiny", **changes})


def make_tiny_inputs(cores: int) -> None:
    """The problems and the scored base policy of preset tiny, which all trials share unless they change the model."""
    subprocess.run(["snakemake", "--cores", str(cores), "--quiet=rules", str(TINY.base_policy / "evals.parquet")], check=True)


def make_base_policy(settings: Settings, folder: Path) -> Path:
    """A base policy of another model, scored as that of preset tiny is."""
    section = BasePolicySettings(model=settings.model, warm_start=settings.warm_start)
    _stage(folder / "config.json", "base-policy", section, "--problems", TINY.problems, "--out", folder)
    scored = settings.cell(Cell("grpo", "1", SEEDS[0]))
    options = ("--problems", TINY.problems, "--base-policy", folder, "--out", folder / "evals.parquet")
    _stage(folder / "evals.parquet", "score-base", scored, *options)
    return folder


def train(settings: Settings, cell: Cell, folder: Path, base_policy: Path = TINY.base_policy) -> None:
    """Train `cell` into `folder`: run.json, steps.parquet, evals.parquet."""
    options = ("--problems", TINY.problems, "--base-policy", base_policy, "--state", folder / "state", "--out", folder)
    _stage(folder / "run.json", "train-cell", settings.cell(cell), *options)


def score(folder: Path) -> None:
    """Score the trained cell in `folder` on the scoring problems: scores.parquet."""
    options = ("--problems", TINY.problems, "--base-policy", TINY.base_policy, "--out", folder / "scores.parquet")
    if not (folder / "scores.parquet").exists():
        _run("score-cell", "--run", folder / "run.json", *options)


def _stage(product: Path, stage: str, settings: Section, *options: object) -> None:
    if not product.exists():
        file = product.parent.with_name(f"{product.parent.name}.{stage}.json")
        write_if_changed(file, settings.model_dump_json(indent=1))
        _run(stage, "--settings", file, *options)


def _run(stage: str, *options: object) -> None:
    subprocess.run([sys.executable, "-m", "pipeline", stage, *map(str, options)], check=True, stdout=subprocess.DEVNULL)
