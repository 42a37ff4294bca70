"""In which dtypes the rule mismatch generates."""

from __future__ import annotations

import pytest

from pipeline.config import load_settings
from pipeline.evaluation.mismatch import levels


@pytest.mark.parametrize(("preset", "expected"), [("tiny", 2), ("rehearsal", 2), ("full", 1)])
def test_float32_is_measured_on_a_cpu_only(preset: str, expected: int) -> None:
    """SGLang on a GPU may choose an attention that takes 16 and 8 bits alone."""
    assert levels(load_settings(overrides={"preset": preset})) == ("float32", "bfloat16")[-expected:]


def test_the_torch_engine_generates_on_a_cpu_whatever_the_cluster_has() -> None:
    settings = load_settings(overrides={"preset": "full", "rollout": {"engine": "torch"}})
    assert levels(settings) == ("float32", "bfloat16")
