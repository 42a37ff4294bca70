"""In which dtypes the rule mismatch generates."""

from __future__ import annotations

import pytest

from pipeline.artifacts import Cell
from pipeline.config import CellSettings, load_settings
from pipeline.evaluation.mismatch import levels


def cell(overrides: dict) -> CellSettings:
    return load_settings(overrides=overrides).cell(Cell("grpo-r3", "0", 0))


@pytest.mark.parametrize(("preset", "expected"), [("tiny", 2), ("rehearsal", 2), ("full", 1)])
def test_float32_is_measured_on_a_cpu_only(preset: str, expected: int) -> None:
    """SGLang on a GPU may choose an attention that takes 16 and 8 bits alone."""
    assert levels(cell({"preset": preset})) == ("float32", "bfloat16")[-expected:]


def test_the_torch_engine_generates_on_a_cpu_whatever_the_cluster_has() -> None:
    assert levels(cell({"preset": "full", "rollout": {"engine": "torch"}})) == ("float32", "bfloat16")
