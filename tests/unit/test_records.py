"""What crosses the arrows refuses to be inconsistent, and files are written whole or not at all."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from pipeline.artifacts import Cell, Layout, atomic_path, read_json, write_if_changed, write_json
from pipeline.records import Response, RolloutBatch, Sample

GOOD = Response(
    prompt_ids=np.array([1, 2, 3], dtype=np.int32),
    response_ids=np.array([4, 5], dtype=np.int32),
    rollout_logprobs=np.array([-0.1, -0.2], dtype=np.float32),
    policy_version=np.array([8, 8], dtype=np.int32),
    routed_experts=np.zeros((4, 2, 4), dtype=np.uint8),
    finish_reason="stop",
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"response_ids": np.array([], dtype=np.int32)}, "at least one token"),
        ({"rollout_logprobs": np.array([-0.1], dtype=np.float32)}, "2 tokens came with 1 log-probs"),
        ({"policy_version": np.array([8], dtype=np.int32)}, "and 1 policy versions"),
        ({"rollout_logprobs": np.array([-0.1, -0.2])}, "must be float32, got float64"),
        ({"routed_experts": np.zeros((5, 2, 4), dtype=np.uint8)}, r"expected 4 rows .*prompt 3 \+ response 2 - 1.*, got 5"),
    ],
)
def test_inconsistent_responses_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(GOOD, **change)


def test_a_batch_splits_into_whole_groups():
    samples = tuple(Sample(f"p{i // 2}", GOOD, "correct", 1.0, 0.0) for i in range(12))
    batch = RolloutBatch(index=0, samples=samples, group_size=2, generate_s=0.0)
    parts = batch.parts(3)
    assert [len(part) for part in parts] == [4, 4, 4] and tuple(sample for part in parts for sample in part) == samples
    assert all(len({s.problem_id for s in part}) == 2 for part in parts)
    with pytest.raises(ValueError, match="6 groups cannot be split into 4 equal"):
        batch.parts(4)


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "value.json"
    write_json(path, {"old": 1})
    with pytest.raises(RuntimeError), atomic_path(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert read_json(path) == {"old": 1} and list(tmp_path.iterdir()) == [path]


def test_unchanged_content_keeps_its_age(tmp_path):
    path = tmp_path / "settings.json"
    write_if_changed(path, "a")
    before = path.stat().st_mtime_ns
    write_if_changed(path, "a")
    assert path.stat().st_mtime_ns == before
    write_if_changed(path, "b")
    assert path.read_text() == "b"


def test_unreadable_json_names_file_and_remedy(tmp_path):
    with pytest.raises(ValueError, match=r"none.json does not exist; run the rule"):
        read_json(tmp_path / "none.json")
    (tmp_path / "half.json").write_text("{")
    with pytest.raises(ValueError, match=r"half.json is not valid JSON .* delete it"):
        read_json(tmp_path / "half.json")


def test_paths_of_a_cell():
    cell = Cell("sat-gspo-r3", "8-15", 2)
    assert str(Layout("tiny").cell(cell)) == "results/tiny/cells/sat-gspo-r3/lag8-15/seed2"
    assert str(Layout("tiny").cell_state(cell)) == "state/tiny/cells/sat-gspo-r3/lag8-15/seed2"
