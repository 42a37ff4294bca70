"""pipeline/results serves any study: it imports nothing of pipeline/paper and writes none of the paper's lags."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from pipeline.paper.lags import LAGS, STRESS

MODULES = sorted((Path(__file__).parents[2] / "pipeline" / "results").glob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_module_of_results_knows_no_paper(path):
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    imported = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    assert not any(name.startswith("pipeline.paper") for name in imported)
    assert not {node.value for node in nodes if isinstance(node, ast.Constant)} & {*LAGS, STRESS}
