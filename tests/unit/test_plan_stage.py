"""`pipeline plan` as people run it: what it prints, what it writes, what it refuses."""

from __future__ import annotations

import io
import math
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from pipeline.artifacts import Cell, Layout, read_json, write_json
from pipeline.config import load_settings
from pipeline.planning.bounds import Bounds
from pipeline.planning.estimate import plan_cell, plan_run
from pipeline.planning.host_memory import job_memory_mb
from pipeline.planning.plan import PlanOptions, plan_stage
from pipeline.planning.show import lags_text
from pipeline.planning.workload import passes_of, workload_of
from pipeline.rollout.schedule import Schedule
from pipeline.section import SettingsError

REPOSITORY = Path(__file__).parents[2]


def shown(tmp_path, monkeypatch, preset: str, **options: object) -> str:
    monkeypatch.chdir(tmp_path)
    settings = load_settings(REPOSITORY / "config.yaml", {"preset": preset})
    text = io.StringIO()
    plan_stage(settings, Layout(preset), PlanOptions(**options), Console(file=text, width=220))  # pyright: ignore
    return text.getvalue()


def test_the_full_plan_says_what_a_cell_takes(tmp_path, monkeypatch):
    text = shown(tmp_path, monkeypatch, "full", response_tokens=Bounds.point(4000))
    assert "33 cells on 8 H100" in text
    line = next(line for line in text.splitlines() if "sat-gspo-r3/lag8/seed0" in line)
    assert "0: 1, 1-7: 68, 8: 67" in line and "8.91" in line  # steps at each lag; 2,228,224 responses of 4,000 tokens
    for part in (
        "reference policy",
        "KV cache",
        "logits",
        "fits 80 GB: yes, 141 GB: yes",
        "given on the command line",
        "signal lead",
    ):
        assert part in text


def test_the_plan_file_can_be_compared_with_run_json(tmp_path, monkeypatch):
    shown(tmp_path, monkeypatch, "full")
    plan = read_json(tmp_path / "results" / "full" / "plan.json")
    assert plan["schema"] == 1 and plan["num_devices"] == 8 and len(plan["cells"]) == 33
    settings = load_settings(REPOSITORY / "config.yaml", {"preset": "full"})
    for cell, written in zip(settings.all_cells(), plan["cells"], strict=True):
        assert (written["method"], written["lag"], written["seed"]) == (cell.method, cell.lag, cell.seed)
        assert 0 < written["wall_s"][0] < written["wall_s"][1]
        assert written["gpu_hours"] == pytest.approx([8 / 3600 * second for second in written["wall_s"]])
        assert written["tokens"] == [544 * 4096 * 1000, 544 * 4096 * 8000]
        histogram = {int(lag): count for lag, count in written["lag_histogram"].items()}
        assert histogram == Schedule.of(settings.cell(cell)).lag_histogram() and sum(histogram.values()) == 544
    assert plan["gpu_hours"][0] == pytest.approx(sum(cell["gpu_hours"][0] for cell in plan["cells"]))


def test_a_signal_that_comes_too_late_is_refused_and_a_doubtful_one_is_named(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="a signal lead of 60 s is shorter than one rollout batch"):
        shown(tmp_path, monkeypatch, "full", signal_lead_s=60.0)
    only_lag_1 = {"stress": {"methods": [], "lags": []}}
    settings = load_settings(REPOSITORY / "config.yaml", {"preset": "full", "cells": only_lag_1})
    text = io.StringIO()
    plan_stage(settings, Layout("full"), PlanOptions(signal_lead_s=600.0), Console(file=text, width=220))
    assert "a signal lead of 600 s may be too short" in text.getvalue()


def test_a_job_asks_for_the_memory_of_its_cell():
    """The least where that is enough, the plan's high end above it, at most what a node has."""
    settings = load_settings(REPOSITORY / "config.yaml", {"preset": "full"})
    small, large = Cell("sat-gspo", "1", 0), Cell("sat-gspo-r3", "8-15", 0)
    high = plan_cell(settings, large).host_bytes.high / 2**20
    assert settings.job.memory_mb < high < settings.job.max_memory_mb
    assert (job_memory_mb(settings, small), job_memory_mb(settings, large)) == (settings.job.memory_mb, math.ceil(high))

    def with_job(**job: object) -> int:
        return job_memory_mb(load_settings(REPOSITORY / "config.yaml", {"preset": "full", "job": job}), large)

    assert with_job(max_memory_mb=1_000_000) == 1_000_000 and with_job(max_memory_mb=None) == settings.job.memory_mb
    assert job_memory_mb(load_settings(REPOSITORY / "config.yaml", {"preset": "rehearsal"}), small) == 16000


def test_too_little_memory_is_refused_and_a_doubtful_one_is_named(tmp_path, monkeypatch):
    def planned(**job: int) -> str:
        settings, text = load_settings(REPOSITORY / "config.yaml", {"preset": "full", "job": job}), io.StringIO()
        plan_stage(settings, Layout("full"), PlanOptions(), Console(file=text, width=220))
        return text.getvalue()

    monkeypatch.chdir(tmp_path)
    assert "may be too little" not in planned()
    text = planned(max_memory_mb=1_000_000)
    assert text.count("may be too little: sat-g") == 2 and "sat-gspo-r3/lag8-15/seed0" in text and "asks for 1,000,000" in text
    with pytest.raises(ValueError, match=r"(?s)raise job.memory_mb.*sat-gspo-r3/lag8-15/seed0: .* the job asks for 700,000"):
        planned(memory_mb=700_000, max_memory_mb=700_000)
    with pytest.raises(SettingsError, match="max_memory_mb 800000 is less than memory_mb 900000"):
        planned(max_memory_mb=800_000)


def test_presets_on_cpus_are_planned_without_gpu_tables(tmp_path, monkeypatch):
    for preset in ("tiny", "rehearsal"):
        text = shown(tmp_path, monkeypatch, preset)
        assert "cells on CPU" in text and "GPU:" not in text
        assert all(cell["gpu_hours"] == [0.0, 0.0] for cell in read_json(tmp_path / "results" / preset / "plan.json")["cells"])


def test_only_cells_of_the_present_settings_calibrate(tmp_path, monkeypatch):
    settings = load_settings(REPOSITORY / "config.yaml", {})
    cell = Cell("grpo", "1", 0)
    run = {"method": "grpo", "lag": "1", "seed": 0, "wall_s": {"total": 40.0, "train": 30.0, "publish": 3.0}}
    path = tmp_path / Layout("tiny").cell(cell) / "run.json"
    write_json(path, run | {"settings": settings.cell(cell).model_dump(mode="json")})
    assert "measured: wall_s of 1 runs" in shown(tmp_path, monkeypatch, "tiny", measured=True)
    changed = settings.cell(cell).model_copy(update={"seed": 1})
    write_json(path, run | {"settings": changed.model_dump(mode="json")})
    with pytest.raises(ValueError, match="no finished cell of preset tiny"):
        shown(tmp_path, monkeypatch, "tiny", measured=True)


def test_passes_follow_from_method_and_settings():
    settings = load_settings(overrides={"preset": "full"})

    def passes(method: str, lag: str = "1", several: bool = True):
        return passes_of(settings.cell(Cell(method, lag, 0)), recompute=True, several_micro_batches=several)

    assert passes("grpo").total == 3 + 1 + 1  # update, recomputation, reference
    assert passes("sat-grpo").statistics == 1 and passes("sat-grpo", several=False).statistics == 0
    assert passes("grpo-uncorrected").proximal == 0 and passes("grpo-uncorrected", "8-15").proximal == 1
    no_reference = load_settings(overrides={"preset": "full", "objective": {"reference_kl_coefficient": 0.0}})
    assert passes_of(no_reference.cell(Cell("grpo", "1", 0)), False, True).total == 3


def test_the_workload_counts_generated_evaluations_and_publications():
    settings = load_settings(overrides={"preset": "full"})
    work = {lag: workload_of(settings.cell(Cell("grpo", lag, 0)), 30, 30, True) for lag in ("1", "8", "8-15")}
    assert [work[lag].publications for lag in work] == [544, 68, 68]
    assert [work[lag].evaluated_versions for lag in work] == [108, 68, 68]
    assert [work[lag].batches for lag in work] == [544, 544, 68]
    assert {work[lag].responses for lag in work} == {2_228_224}
    with pytest.raises(ValueError, match=r"a mean of 40000 response tokens exceeds rollout\.max_response_tokens 32768"):
        workload_of(settings.cell(Cell("grpo", "1", 0)), 30, 30, True, Bounds.point(40000))


def test_synchronous_cells_add_what_asynchronous_cells_overlap():
    overrides = {"preset": "full", "cells": {"table": {"methods": ["grpo"], "lags": ["0", "1"]}}}
    cells = {cell.cell.lag: cell for cell in plan_run(load_settings(overrides=overrides)).cells if cell.cell.method == "grpo"}
    for end in ("low", "high"):
        synchronous, batchwise = getattr(cells["0"], end), getattr(cells["1"], end)
        assert (synchronous.generate, synchronous.train) == (batchwise.generate, batchwise.train)
        assert synchronous.total > batchwise.total


def test_neighbouring_lags_of_equal_counts_are_shown_together():
    assert lags_text({0: 1, 1: 543}) == "0: 1, 1: 543"
    assert lags_text({0: 1, **dict.fromkeys(range(1, 8), 68), 8: 67}) == "0: 1, 1-7: 68, 8: 67"


def test_planning_needs_no_torch():
    code = "import sys, pipeline.planning.plan, pipeline.cell.status; print(sorted({'torch', 'pandas'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
