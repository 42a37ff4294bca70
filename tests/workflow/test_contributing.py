"""CONTRIBUTING.md's three steps to a new method, done in a copy of the repository: its cells train, and everything shows them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

from tests.workflow.conftest import REPOSITORY, Workflow

PAGE = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
PART, IMPORT, LINE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(SETTINGS,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
GROUP = re.search(r"--config cells='(.*?)'\n", PAGE)
NAME = "dual-grpo"


def insert(path: Path, before: str, text: str) -> None:
    whole = path.read_text(encoding="utf-8")
    assert whole.count(before) == 1
    path.write_text(whole.replace(before, text + before), encoding="utf-8")


def three_steps(folder: Path) -> None:
    (folder / "pipeline/objective/parts/dual.py").write_text(PART, encoding="utf-8")
    methods = folder / "pipeline/objective/methods.py"
    insert(methods, "from pipeline.objective.parts.gac import Gac\n", IMPORT)
    insert(methods, "    # Methods of others.\n", LINE)
    insert(folder / "config.yaml", "  # a section for each part that methods are made of;", SETTINGS)


class Contributed(Workflow):
    """A workflow with the options that run the method's cells, and what they planned first."""

    config: tuple[str, ...]
    first_plan: dict[str, int]


@pytest.fixture(scope="module")
def contributed(finished, tmp_path_factory) -> Contributed:
    """A finished workflow whose copy of the repository has the method, and what its command then planned and did."""
    workflow = Contributed(tmp_path_factory.mktemp("contributed"), {})
    shutil.rmtree(workflow.folder)
    shutil.copytree(finished.folder, workflow.folder, symlinks=True, ignore=shutil.ignore_patterns(".snakemake"))
    (workflow.folder / "pipeline").unlink()
    shutil.copytree(REPOSITORY / "pipeline", workflow.folder / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    three_steps(workflow.folder)
    group = yaml.safe_load(GROUP[1])
    assert group["uncorrected"]["methods"] == ["grpo-uncorrected", NAME]
    group["uncorrected"] |= {"methods": [NAME], "lags": ["1"]}  # one cell is enough here
    workflow.config = ("--config", f"cells={json.dumps(group)}")
    workflow.first_plan = workflow.planned(*workflow.config)
    workflow.snakemake(*workflow.config)
    return workflow


def test_only_the_cells_of_the_method_are_trained(contributed):
    assert contributed.first_plan["train_cell"] == contributed.first_plan["score_cell"] == 1
    assert not contributed.first_plan.keys() & {"prepare", "base_policy", "score_base", "mismatch"}
    assert contributed.planned(*contributed.config) == {}


def test_the_cell_has_the_part_s_settings_and_column(contributed):
    folder = contributed.folder / f"results/tiny/cells/{NAME}/lag1/seed0"
    objective = json.loads((folder / "run.json").read_text())["settings"]["objective"]
    assert objective["dual"] == {"eps_low": 0.2, "eps_high": 0.2, "bound": 3.0} and not objective.keys() & {"ppo", "sat", "tis"}
    assert pd.read_parquet(folder / "steps.parquet")["dual_bound_share"].between(0.0, 1.0).all()
    grpo = json.loads((contributed.folder / "results/tiny/cells/grpo/lag1/seed0/run.json").read_text())
    assert "dual" not in grpo["settings"]["objective"]


def test_table_figures_and_report_show_it(contributed):
    results = contributed.folder / "results/tiny"
    assert "| Dual-clip GRPO |" in (results / "table1.md").read_text().split("## Further methods")[1]
    figures = {path.stem: path.read_text() for path in (results / "figures").glob("*.csv")}
    assert {"figure2", "figure3", "figure4", "figure5"} <= figures.keys()
    assert NAME in figures["figure4"]
    assert "Dual-clip GRPO" in (results / "report.html").read_text(encoding="utf-8")


def test_the_part_passes_what_every_method_is_held_to(contributed):
    """In the copy: the paper's row is what it was where the bound cannot bind, and its gradient stops where it does."""
    program = """
import torch, math
from pipeline.config import load_settings
from pipeline.objective.loss import objective
from pipeline.objective.methods import METHODS
from pipeline.objective.recipe import Recipe
from pipeline.objective.terms import Tokens
settings = load_settings().objective
def gradient(name, d, advantage):
    rollout = torch.full((1,), math.log(0.1), dtype=torch.float64)
    ones = torch.ones(1, dtype=torch.float64)
    trainer = (rollout + d).requires_grad_()
    tokens = Tokens(rollout, advantage * ones, torch.tensor([0]), 1, ones)
    objective(Recipe.of(METHODS[name], settings), trainer, None, tokens)[0].backward()
    return float(trainer.grad)
for d, advantage in ((0.1, 1.0), (-0.1, -1.0), (0.9, -1.0), (0.5, 1.0)):
    assert gradient("dual-grpo", d, advantage) == gradient("grpo", d, advantage)
assert gradient("dual-grpo", math.log(3.5), -1.0) == 0.0 and abs(gradient("grpo", math.log(3.5), -1.0) - 3.5) < 1e-12
"""
    environment = os.environ | {"PYTHONPATH": str(contributed.folder)}
    subprocess.run([sys.executable, "-c", program], cwd=contributed.folder, env=environment, check=True)
