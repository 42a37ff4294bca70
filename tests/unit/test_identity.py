"""Which settings make another cell: every setting is classified, and an operational one reaches a cell without changing it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.artifacts import Cell, Layout
from pipeline.config import (
    CellSettings,
    changed_settings,
    fingerprint,
    load_settings,
    operated,
    read_cell_settings,
    read_settings,
)
from pipeline.dag import write_cell_settings, write_stage_settings
from pipeline.identity import OPERATIONAL, computing, differences
from pipeline.section import Section, SettingsError

REPOSITORY = Path(__file__).parents[2]
CELL = Cell("sat-gspo-r3", "8", 0)
WHOLLY = {"problems", "published", "model", "warm_start", "lags", "objective", "evaluation", "cells", "variants"}  # sections
COMPUTING = {
    *("preset", "seeds", "ablations", "rollout.engine", "rollout.dtype", "rollout.temperature"),
    *("rollout.group_size", "rollout.prompts_per_step", "rollout.max_response_tokens", "rollout.context_length"),
    "rollout.generate_ahead",  # the rows of a matrix product decide how it is rounded
    *("trainer.engine", "trainer.steps", "trainer.learning_rate", "trainer.beta1", "trainer.beta2", "trainer.adam_eps"),
    *("trainer.weight_decay", "trainer.gradient_clip", "trainer.micro_batch_tokens"),
    "trainer.threads",  # of PyTorch's engines, which add up in another order
    *("servers.tensor_parallel", "servers.attention_backend"),  # what mismatch is made of
    *("megatron.num_ranks", "megatron.tensor_parallel", "megatron.pipeline_parallel", "megatron.expert_parallel"),
    *("megatron.expert_tensor_parallel", "megatron.dtype", "megatron.layer_spec", "megatron.distributed_optimizer"),
    *("megatron.optimizer_offload", "megatron.recompute", "megatron.logprob_chunk_tokens", "cluster.device"),
}
OTHER = {"publication": "disk", "max_total_tokens": 65536, "max_running_requests": 64}


def settings_paths() -> set[str]:
    """Every setting but those of wholly computing sections, as "servers.publication"; section job counts as one."""
    paths = set()
    for name, value in load_settings(REPOSITORY / "config.yaml", {"preset": "full"}):
        whole = name in WHOLLY or not isinstance(value, Section) or name in OPERATIONAL
        paths |= {name} if whole else {f"{name}.{key}" for key in type(value).model_fields}
    return paths


def with_setting(settings: CellSettings, path: str) -> CellSettings:
    """The settings with another value at `path`."""
    section, key = path.split(".")
    old = getattr(getattr(settings, section), key)
    new: Any = f"not {old}"
    if isinstance(old, bool | int | float | tuple):
        new = not old if isinstance(old, bool) else (*old, "more") if isinstance(old, tuple) else old + 1
    changed = getattr(settings, section).model_copy(update={key: OTHER.get(key, new)})
    return settings.model_copy(update={section: changed})


def test_every_setting_is_classified() -> None:
    assert settings_paths() == WHOLLY | COMPUTING | OPERATIONAL and not COMPUTING & OPERATIONAL


def test_the_identity_of_a_cell_is_what_it_computes() -> None:
    full = load_settings(REPOSITORY / "config.yaml", {"preset": "full"}).cell(CELL)
    for path in sorted(path for path in COMPUTING | OPERATIONAL if "." in path):
        changed = with_setting(full, path)
        assert changed != full
        assert (fingerprint(changed) == fingerprint(full)) == (path in OPERATIONAL), path
        assert (changed_settings(full.model_dump(mode="json"), changed) == []) == (path in OPERATIONAL), path


def test_a_dump_keeps_what_is_not_operational_and_names_what_differs() -> None:
    dump = {"trainer": {"steps": 150, "checkpoint_interval": 8}, "servers": None, "unknown": 1}
    assert computing(dump) == {"trainer": {"steps": 150}, "servers": None, "unknown": 1}
    changed = ["trainer.steps 150, now 200", "unknown 1, now None"]
    assert differences(dump, {"trainer": {"steps": 200, "checkpoint_interval": 8}, "servers": None}) == changed


def test_an_operational_setting_reaches_a_cell_whose_settings_file_stays(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    layout = Layout("full")

    def written(**overrides: dict[str, Any]) -> tuple[Path, Path]:
        settings = load_settings(REPOSITORY / "config.yaml", {"preset": "full", **overrides})
        stage = write_stage_settings(settings, layout, [])
        return Path(write_cell_settings(settings, layout, CELL)), Path(stage["present"])

    longer = {"servers": {"stall_timeout_s": 5000}, "trainer": {"checkpoint_interval": 4}, "job": {"cpus": 32}}
    (file, first), (same, present), (other, third) = (
        written(),
        written(**longer),
        written(objective={"sat": {"quantile_alpha": 0.8}}),
    )
    before = file.stat().st_mtime_ns
    assert file == same != other and first != present and file.stat().st_mtime_ns == before
    cell = read_cell_settings(file, present)
    assert cell.servers is not None and (cell.servers.stall_timeout_s, cell.trainer.checkpoint_interval) == (5000, 4)
    assert read_cell_settings(file, first) == read_cell_settings(file, None) == read_settings(CellSettings, file)
    with pytest.raises(
        SettingsError, match=r"computes another cell: objective.sat.quantile_alpha 0.9, now 0.8; run snakemake again"
    ):
        read_cell_settings(file, third)


def test_settings_from_before_an_operational_setting_existed_are_read(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load_settings(REPOSITORY / "config.yaml", {"preset": "full"})
    stage = write_stage_settings(settings, Layout("full"), [])
    old = json.loads(settings.cell(CELL).model_dump_json())
    del old["servers"]["stall_timeout_s"]
    assert operated(old, Path(stage["present"]), "run.json") == settings.cell(CELL)
    with pytest.raises(SettingsError, match=r"run.json: servers.stall_timeout_s is missing"):
        operated(old, None, "run.json")
