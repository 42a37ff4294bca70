"""config.yaml and its resolution: every preset validates, every mistake names key, value and remedy, every setting is read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipeline.artifacts import Cell, Layout
from pipeline.config import CellSettings, Settings, changed_settings, fingerprint, load_settings, read_settings
from pipeline.dag import write_cell_settings, write_stage_settings
from pipeline.objective.methods import METHODS, TABLE_1, Method
from pipeline.objective.parts.cispo import Cispo
from pipeline.objective.parts.dppo import Dppo, DppoSettings
from pipeline.objective.parts.ppo import Ppo, PpoSettings
from pipeline.objective.parts.sat import Sat, SatSettings
from pipeline.objective.parts.tis import Tis, TisSettings
from pipeline.paper.lags import large_lag
from pipeline.section import Section, SettingsError


@pytest.mark.parametrize(("preset", "cells"), [("tiny", 33), ("stress", 30), ("rehearsal", 2), ("full", 33)])
def test_presets_resolve(preset, cells):
    settings = load_settings(overrides={"preset": preset})
    assert len(settings.all_cells()) == cells
    shown = {"grpo-r3", "sat-gspo-r3"} if preset == "rehearsal" else set(TABLE_1)
    assert set(settings.cells.table.methods) == shown and len(TABLE_1) == 13


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({}, "8"),
        ({"preset": "stress"}, "8-15"),
        ({"cells": {"table": {"lags": ["8", "1"]}}}, "8"),
        ({"cells": {"table": {"lags": ["1"]}}}, "8"),
    ],
)
def test_the_large_lag_is_the_largest_of_the_table(overrides, expected):
    assert large_lag(load_settings(overrides=overrides)) == expected


def test_stress_is_tiny_but_for_what_the_search_changed():
    tiny, stress = (load_settings(overrides={"preset": name}).cell(Cell("grpo", "8-15", 0)) for name in ("tiny", "stress"))
    found = changed_settings(tiny.model_dump(mode="json"), stress)
    assert [text for text in found if not text.startswith("preset")] == [
        "model.num_layers 2, now 4", "model.num_experts 16, now 32", "trainer.steps 200, now 400",
    ]  # fmt: skip


def test_full_is_the_papers_run():
    cell = load_settings(overrides={"preset": "full"}).cell(Cell("sat-gspo-r3", "8", 0))
    assert cell.rollout.group_size * cell.rollout.prompts_per_step == 4096
    assert (cell.trainer.steps, cell.trainer.learning_rate, cell.trainer.beta1, cell.trainer.beta2) == (544, 1e-6, 0.9, 0.98)
    limits = cell.objective.section(PpoSettings)
    assert (limits.eps_low, limits.eps_high, cell.objective.section(SatSettings).quantile_alpha) == (0.2, 0.2, 0.9)
    assert (cell.rollout.engine, cell.trainer.engine) == ("sglang", "megatron")


def test_null_on_the_command_line_is_null():
    """Snakemake hands the values of --config over as text."""
    published = {"tokenizer": "null", "chat_template": "false", "max_prompt_tokens": "null"}
    settings = load_settings(overrides={"preset": "full", "published": published, "evaluation": {"temperature": "0.6"}})
    assert settings.published.tokenizer is None and settings.published.max_prompt_tokens is None
    assert not settings.published.chat_template and settings.evaluation.temperature == 0.6


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        ({"objectiv": {}}, ["unknown key 'objectiv'", "did you mean 'objective'"]),
        ({"objective": {"tiss": {}}}, ["'objective.tiss'", "did you mean 'objective.tis'"]),
        ({"objective": {"tis": {"cup": 1}}}, ["'objective.tis.cup'", "did you mean 'objective.tis.cap'"]),
        ({"preset": "tny"}, ["unknown preset 'tny'", "did you mean 'tiny'"]),
        ({"cells": {"table": {"methods": ["grop"]}}}, ["unknown method 'grop'", "did you mean 'grpo'"]),
        ({"cells": {"table": {"lags": ["9"]}}}, ["unknown lag '9'", "known: 0, 1, 8, 8-15"]),
        ({"rollout": {"temperature": 0}}, ["rollout.temperature", "greater than 0", "got 0"]),
        ({"rollout": {"top_p": 0.9}}, ["unknown key 'rollout.top_p'"]),
        ({"objective": {"ratio_denominator": "proximal"}}, ["DPPO", "'proximal'", "use 'rollout'"]),
        ({"objective": {"dppo": {"delta": None}}}, ["objective.dppo.delta", "valid number", "got None"]),
        ({"objective": {"dppo": None}}, ["objective.dppo is missing", "add it with its defaults to config.yaml"]),
        ({"trainer": {"steps": 201}}, ["trainer.steps 201", "optimizer_steps_per_rollout 8"]),
        ({"model": {"num_key_value_heads": 3}}, ["num_attention_heads 4", "num_key_value_heads 3"]),
        ({"seeds": 0}, ["seeds: 0", "at least 1"]),
        ({"seeds": []}, ["seeds", "at least 1 item"]),
        ({"seeds": [-1]}, ["seeds.0", "greater than or equal to 0"]),
        ({"evaluation": {"temperature": 0}}, ["evaluation.temperature", "greater than 0", "got 0"]),
        ({"evaluation": {"interval": 300}}, ["evaluation.interval 300 exceeds trainer.steps 200", "lower it"]),
        ({"objective": {"ppo": {"eps_high": float("inf")}}}, ["objective.ppo.eps_high", "finite number"]),
        ({"lags": {"8": {"broadcast_interval": 2}}}, ["'8' realises lags 1 to 2", "name it '2' or '1-2'"]),
    ],
)
def test_mistakes_are_refused_with_key_value_and_remedy(overrides, parts):
    with pytest.raises(SettingsError) as caught:
        load_settings(overrides=overrides)
    for part in parts:
        assert part in str(caught.value)


def test_the_denominator_setting_replaces_the_rollout_policy_only():
    settings = load_settings(overrides={"objective": {"ratio_denominator": "rollout_weights"}})
    resolved = {name: settings.cell(Cell(name, "8", 0)).resolved_method().denominator for name in METHODS}
    assert {name for name, denominator in resolved.items() if denominator == "proximal"} == {
        name for name, method in METHODS.items() if method.denominator == "proximal"
    }
    assert all(resolved[name] == "rollout_weights" for name, method in METHODS.items() if method.denominator == "rollout")


def test_unknown_cells_are_refused():
    settings = load_settings()
    with pytest.raises(SettingsError, match="did you mean 'sat-grpo'"):
        settings.cell(Cell("sat-grp", "1", 0))
    with pytest.raises(SettingsError, match="unknown lag '7'"):
        settings.cell(Cell("grpo", "7", 0))


def test_contradictory_methods_are_refused():
    with pytest.raises(ValueError, match="would do nothing"):
        Method("SAT", "token", "proximal", (Ppo, Sat)).check(steps_per_rollout=1)
    with pytest.raises(ValueError, match="would correct twice"):
        Method("TIS", "token", "rollout", (Ppo, Tis)).check(steps_per_rollout=1)
    with pytest.raises(ValueError, match="exactly one surrogate among its parts, this one has none"):
        Method("SAT", "token", "rollout", (Sat,))
    with pytest.raises(ValueError, match="exactly one surrogate among its parts, this one has ppo, cispo"):
        Method("both", "token", "rollout", (Ppo, Cispo))
    with pytest.raises(ValueError, match="sat contracts clip limits, and the surrogate cispo has none"):
        Method("SAT on CISPO", "token", "rollout", (Cispo, Sat))


def test_where_the_ratio_is_one_depends_on_the_schedule():
    """With eight optimizer steps a rollout batch the proximal policy is left behind, so that SAT and DPPO have something to do."""
    override = {"objective": {"ratio_denominator": "proximal"}, "cells": {"table": {"lags": ["8-15"]}}}
    settings = load_settings(overrides=override)
    assert settings.cell(Cell("sat-grpo", "8-15", 0)).resolved_method().denominator == "proximal"
    with pytest.raises(SettingsError, match="would do nothing"):
        settings.cell(Cell("dppo", "8", 0))


def test_the_command_line_wins_over_the_preset():
    settings = load_settings(overrides={"trainer": {"steps": 80}, "seeds": [3, 5]})
    assert settings.trainer.steps == 80 and settings.trainer.learning_rate == 6e-4 and settings.seeds == (3, 5)


@pytest.mark.parametrize(
    ("override", "touched"),
    [
        ({"tis": {"cap": 5.0}}, {name for name, method in METHODS.items() if method.has(Tis)}),
        ({"dppo": {"delta": 0.15}}, {"dppo"}),
        ({"sat": {"quantile_alpha": 0.8}}, {name for name in METHODS if name.startswith("sat-")}),
        ({"ppo": {"eps_low": 0.1}}, set(METHODS) - {"cispo", "m2po"}),
        ({"aggregation": "token_mean"}, set(METHODS)),
    ],
)
def test_a_methods_setting_touches_only_its_cells(override, touched):
    before, after = load_settings(), load_settings(overrides={"objective": override})
    changed = {name for name in METHODS if before.cell(Cell(name, "8", 0)) != after.cell(Cell(name, "8", 0))}
    assert changed == touched


def test_settings_files_are_named_by_what_they_compute_and_never_rewritten(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    repository = Path(__file__).parents[2]
    layout = Layout("tiny")

    def written(**objective: object) -> dict[str, str]:
        settings = load_settings(repository / "config.yaml", {"objective": objective})
        write_stage_settings(settings, layout, settings.all_cells())
        return {path.relative_to(layout.state).as_posix(): path.read_text() for path in layout.state.rglob("*-*.json")}

    first, again, more = written(), written(), written(dppo={"delta": 0.15})
    assert first == again and first.items() <= more.items()
    added = {name.rsplit("-", 1)[0] for name in more.keys() - first.keys()}
    assert added == {"settings/run", "settings/present", "settings/cells/dppo/lag1/seed0", "settings/cells/dppo/lag8/seed0"}
    settings = load_settings(repository / "config.yaml", {"objective": {"dppo": {"delta": 0.15}}})
    cell = read_settings(CellSettings, Path(write_cell_settings(settings, layout, Cell("dppo", "8", 0))))
    assert cell.objective.section(DppoSettings).delta == 0.15 and "tis" not in cell.objective.model_dump()
    assert fingerprint(cell) != fingerprint(cell, "other problems")


def test_every_setting_is_read_by_the_code():
    """A setting that no module mentions besides its declaration would be a promise that nothing keeps."""
    sources = [path for path in Path("pipeline").rglob("*.py") if path.name not in ("config.py", "sections.py")] + [
        Path("Snakefile")
    ]
    text = "\n".join(path.read_text() for path in sources)
    allowed = {"ablations", "figure1", "server_python", "trainer_python"}  # read where they are declared
    unread = [name for name in _fields(Settings) if not re.search(rf"\b{name}\b", text) and name not in allowed]
    assert unread == []


def _fields(section: type[Section]) -> set[str]:
    names = set(section.model_fields)
    for field in section.model_fields.values():
        kinds = [field.annotation, *getattr(field.annotation, "__args__", ())]
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, Section):
                names |= _fields(kind)
    return names


def test_unreadable_settings_files_say_what_to_do(tmp_path):
    with pytest.raises(SettingsError, match="does not exist; run the stage through snakemake"):
        read_settings(Settings, tmp_path / "none.json")
    (tmp_path / "half.json").write_text('{"preset": ')
    with pytest.raises(SettingsError, match="damaged"):
        read_settings(Settings, tmp_path / "half.json")


def test_a_variant_is_its_method_with_one_setting_changed():
    settings = load_settings(overrides={"ablations": True})
    plain, changed = (settings.cell(Cell(name, "8", 0)) for name in ("sat-grpo", "sat-grpo+eps_high_0.28"))
    assert changed.objective.section(PpoSettings).eps_high == 0.28
    back = changed.model_copy(
        update={
            "method": "sat-grpo",
            "objective": changed.objective.model_copy(update={"ppo": plain.objective.section(PpoSettings)}),
        }
    )
    assert back == plain and fingerprint(plain) == fingerprint(load_settings().cell(Cell("sat-grpo", "8", 0)))
    assert changed.resolved_method().label == "SAT-GRPO, eps high 0.28"
    weights = settings.cell(Cell("gspo+ratio_denominator_rollout_weights", "8", 0)).resolved_method()
    assert weights.denominator == "rollout_weights"


def test_every_ablation_of_the_paper_s_open_settings_is_there():
    """Each value at tiny scale is a variant or the preset's own setting, which needs no row of its own."""
    settings = load_settings(overrides={"ablations": True})
    variants = [cell for cell in settings.all_cells() if "+" in cell.method]
    assert len(variants) == 22 and not any("temperature_1.0" in cell.method for cell in variants)
    read = [settings.cell(cell) for cell in settings.all_cells()]
    assert {c.objective.section(DppoSettings).delta for c in read if c.resolved_method().has(Dppo)} == {1e-3, 0.15}
    assert {c.objective.section(TisSettings).cap for c in read if c.resolved_method().has(Tis)} == {2.0, 5.0}
    assert {c.rollout.temperature for c in read} == {0.95, 1.0}
    assert {c.objective.section(PpoSettings).eps_high for c in read} == {0.2, 0.28}
    scopes = {c.objective.section(SatSettings).quantile_scope for c in read if c.resolved_method().has(Sat)}
    assert scopes == {"batch", "microbatch"} and {c.lag for c in read} >= {"8", "8-15"}
    allowing = {cell.method.partition("+")[0] for cell in variants if "rollout_weights" in cell.method}
    assert allowing == {name for name in TABLE_1 if "tis" not in name}


def test_ablations_can_be_named_one_by_one():
    cells = load_settings(overrides={"ablations": ["tis_cap_5", "figure1"]}).all_cells()
    assert len(cells) == 33 + 9 + 2 and sum("+tis_cap_5" in cell.method for cell in cells) == 2


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"ablations": ["tis_cap"]}, "unknown group of extra rows 'tis_cap'; did you mean 'tis_cap_5'"),
        ({"variants": {"tis_cap_5": {"methods": ["grpo"]}}}, "variants.tis_cap_5 changes nothing that grpo reads"),
        ({"variants": {"tis_cap_5": {"lags": ["7"]}}}, "variants.tis_cap_5: unknown lag '7'"),
        ({"variants": {"eps_high_0.28": {"settings": {"objective": {"ppo": {"eps_hi": 1}}}}}}, "did you mean 'ppo.eps_high'"),
        ({"variants": {"ratio_denominator_proximal": {"methods": ["sat-grpo"]}}}, "makes every ratio 1"),
    ],
)
def test_impossible_variants_are_refused(overrides, message):
    with pytest.raises(SettingsError, match=re.escape(message)):
        load_settings(overrides={"ablations": True} | overrides)


def test_an_unknown_variant_is_refused():
    with pytest.raises(SettingsError, match=r"unknown variant 'eps_high'; did you mean 'eps_high_0.28'"):
        load_settings().cell(Cell("grpo+eps_high", "8", 0))
