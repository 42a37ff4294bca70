"""Scratch folders: kept while their owner lives, removed by the next process after it was killed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pipeline.processes.scratch import scratch_folder

REPOSITORY = Path(__file__).parents[2]
OWN = """
import sys, time
from pipeline.processes.scratch import scratch_folder

folder = scratch_folder(sys.argv[1], "published-")
(folder / "weights").write_text("large")
print(folder, flush=True)
time.sleep(60)
"""


def test_a_folder_lives_as_long_as_its_owner_even_when_that_is_killed(tmp_path: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWN, str(tmp_path)], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        theirs = Path(owner.stdout.readline().strip())
        mine = scratch_folder(str(tmp_path), "published-")
        assert (theirs / "weights").exists() and mine != theirs
    finally:
        owner.kill()
        owner.communicate()
    scratch_folder(str(tmp_path), "rollout-")
    assert theirs.exists()  # of another prefix
    again = scratch_folder(str(tmp_path), "published-")
    assert not theirs.exists() and mine.exists() and again.exists()


def test_what_an_interrupted_removal_left_is_removed(tmp_path: Path) -> None:
    left = scratch_folder(str(tmp_path), "rollout-")
    (left / "weights").write_text("large")
    (left / ".lock").unlink()
    scratch_folder(str(tmp_path), "rollout-")
    assert not left.exists()


def test_a_parent_is_made_and_without_one_the_system_s_temporary_folder_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert scratch_folder(None, "rollout-").parent == tmp_path.resolve()
    assert scratch_folder(str(tmp_path / "a" / "b"), "rollout-").parent == tmp_path.resolve() / "a" / "b"
