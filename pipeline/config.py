"""The settings: config.yaml plus a preset plus the command line, resolved once into frozen, typed sections.

No section has a default of its own: a setting's default stands in config.yaml and nowhere else. A wrong key, type or combination
raises SettingsError with the key, the value and what to do. Resolved settings are written to JSON files, one per stage and one per
cell, that the rules of the DAG take as inputs: changing a setting reruns the stages that read it and no others.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import yaml
from pydantic import BaseModel, Field, ValidationError, model_validator

from pipeline.artifacts import Cell
from pipeline.identity import computing, differences
from pipeline.objective.methods import METHODS, VARIANT, Method, method_of
from pipeline.objective.recipe import Recipe
from pipeline.section import Section, SettingsError, unknown
from pipeline.sections import (
    CellGroup,
    CellGroups,
    ClusterSettings,
    EvaluationSettings,
    JobSettings,
    LagSettings,
    MegatronSettings,
    ModelSettings,
    ObjectiveSettings,
    ProblemSettings,
    PublishedProblemSettings,
    PublishedSettings,
    RolloutSettings,
    ServerSettings,
    TrainerSettings,
    VariantSettings,
    WarmStartSettings,
)

Preset = Literal["tiny", "stress", "rehearsal", "full"]
EXTRA_GROUPS = ("ablations", "figure1")  # groups of cells that are run only where `ablations` asks for them


class Settings(Section):
    """Everything a run is told. `cell(...)` narrows it to what one cell reads."""

    preset: Preset
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field(min_length=1)
    ablations: bool | tuple[str, ...]
    retrain: bool
    problems: ProblemSettings
    published: PublishedSettings
    model: ModelSettings
    warm_start: WarmStartSettings
    rollout: RolloutSettings
    lags: dict[str, LagSettings]
    objective: ObjectiveSettings
    trainer: TrainerSettings
    evaluation: EvaluationSettings
    servers: ServerSettings
    megatron: MegatronSettings
    cluster: ClusterSettings
    job: JobSettings
    cells: CellGroups
    variants: dict[Annotated[str, Field(pattern="^[a-z0-9_.-]+$")], VariantSettings]

    @model_validator(mode="after")
    def _cells_are_possible(self) -> Settings:
        groups = {f"cells.{name}": group for name, group in self.cells} | {f"variants.{n}": v for n, v in self.variants.items()}
        for name, group in groups.items():
            for lag in group.lags:
                if lag not in self.lags:
                    raise ValueError(f"{name}: " + unknown("lag", lag, self.lags))
        extra = [*EXTRA_GROUPS, *self.variants]
        for name in () if isinstance(self.ablations, bool) else self.ablations:
            if name not in extra:
                raise ValueError("ablations: " + unknown("group of extra rows", name, extra))
        for name, lag in self.lags.items():
            low, high = lag.range()
            if name not in (str(high), f"{low}-{high}"):
                raise ValueError(f"lags: {name!r} realises lags {low} to {high}; name it '{high}' or '{low}-{high}'")
        for cell in self.all_cells():
            self.cell(cell)
        return self

    @model_validator(mode="after")
    def _prompts_fit_the_policy(self) -> Settings:
        published = self.published
        if self.problems.kind != "dapo_dolci" or published.tokenizer is None:
            return self
        if published.tokenizer.path != self.model.path:
            raise ValueError(
                f"published.tokenizer.path {published.tokenizer.path!r} is not model.path {self.model.path!r}; make them equal"
            )
        room = self.rollout.context_length - self.rollout.max_response_tokens - 1
        if (published.max_prompt_tokens or 0) > room:
            raise ValueError(
                f"published.max_prompt_tokens {published.max_prompt_tokens} exceeds the {room} that rollout.context_length leaves "
                "beside rollout.max_response_tokens and one token; lower it or raise rollout.context_length"
            )
        return self

    @property
    def scores_aime24_too(self) -> bool:
        """Whether lm-eval scores a cell on AIME 2024 besides its own scoring problems, which are others."""
        return self.rollout.engine == "sglang" and self.problems.kind != "dapo_dolci"

    def problem_stage(self) -> ProblemSettings:
        """What the stage prepare reads: `published` only where the kind of problems does."""
        if self.problems.kind != "dapo_dolci":
            return self.problems
        return PublishedProblemSettings(**self.problems.model_dump(), published=self.published)

    def all_cells(self) -> list[Cell]:
        """The cells of this run, table rows first, without repeats."""
        groups: list[tuple[CellGroup, str]] = [
            (group, "") for group in (self.cells.table, self.cells.uncorrected, self.cells.stress)
        ]
        groups += [(getattr(self.cells, name), "") for name in EXTRA_GROUPS if self._wanted(name)]
        groups += [(v, VARIANT + name) for name, v in self.variants.items() if self._wanted(name) and self._differs(v)]
        return list(
            dict.fromkeys(
                Cell(method + suffix, lag, seed)
                for seed in self.seeds
                for group, suffix in groups
                for lag in group.lags
                for method in group.methods
            )
        )

    def _wanted(self, extra: str) -> bool:
        return self.ablations if isinstance(self.ablations, bool) else extra in self.ablations

    def _differs(self, variant: VariantSettings) -> bool:
        """Whether a variant asks for anything but this run's own settings; where it does not, its rows are the table's."""
        return any(
            _merge(section, changes) != section
            for name, changes in variant.settings.items()
            for section in [getattr(self, name).model_dump()]
        )

    def cell(self, cell: Cell) -> CellSettings:
        """What one cell reads. Raises SettingsError for an unknown method, variant or lag and for an impossible combination."""
        base, _, variant = cell.method.partition(VARIANT)
        if base not in METHODS:
            raise SettingsError(unknown("method", base, METHODS))
        if variant and variant not in self.variants:
            raise SettingsError(unknown("variant", variant, list(self.variants)))
        if cell.lag not in self.lags:
            raise SettingsError(unknown("lag", cell.lag, self.lags))
        plain = self._cell(cell)
        if not variant:
            return plain
        changed = self._with(self.variants[variant])._cell(cell)
        # the denominator shows in the resolved method
        loss = changed.objective.model_copy(update={"ratio_denominator": plain.objective.ratio_denominator})
        if changed.resolved_method() == plain.resolved_method() and changed.model_copy(update={"objective": loss}) == plain:
            raise SettingsError(f"variants.{variant} changes nothing that {base} reads; take {base} out of its methods")
        return changed

    def _with(self, variant: VariantSettings) -> Settings:
        """These settings with a variant's in place of their own."""
        sections = {
            name: _validated(type(section), _merge(section.model_dump(), over), f"variants: {name}")
            for name, over in variant.settings.items()
            for section in [getattr(self, name)]
        }
        return self.model_copy(update=sections)

    def _cell(self, cell: Cell) -> CellSettings:
        values = {
            "method": cell.method,
            "lag": cell.lag,
            "seed": cell.seed,
            "schedule": self.lags[cell.lag],
            "objective": self.objective.for_parts(method_of(cell.method).parts),
            "servers": self.servers if self.rollout.engine == "sglang" else None,
            "megatron": self.megatron if self.trainer.engine == "megatron" else None,
            "cluster": self.cluster if self.rollout.engine == "sglang" or self.trainer.engine == "megatron" else None,
        }
        same = {name: getattr(self, name) for name in ("preset", "model", "rollout", "trainer", "evaluation")}
        return _validated(CellSettings, values | same, f"cell {cell.method} at lag {cell.lag}")


class CellSettings(Section):
    """The resolved settings of one cell: the content of its settings file and of `settings` in its run.json."""

    preset: str
    method: str
    lag: str
    seed: int
    schedule: LagSettings
    model: ModelSettings
    rollout: RolloutSettings
    objective: ObjectiveSettings
    trainer: TrainerSettings
    evaluation: EvaluationSettings
    servers: ServerSettings | None  # None where no engine of the cell reads it, as are the next two
    megatron: MegatronSettings | None
    cluster: ClusterSettings | None

    @model_validator(mode="after")
    def _consistent(self) -> CellSettings:
        self.recipe().method.check(self.schedule.optimizer_steps_per_rollout)
        if self.evaluation.interval > self.trainer.steps:
            raise ValueError(
                f"evaluation.interval {self.evaluation.interval} exceeds trainer.steps {self.trainer.steps}: "
                "the cell would never be evaluated; lower it"
            )
        steps_per_rollout = self.schedule.optimizer_steps_per_rollout
        if self.trainer.steps % steps_per_rollout:
            raise ValueError(
                f"trainer.steps {self.trainer.steps} is not a multiple of lag {self.lag}'s "
                f"optimizer_steps_per_rollout {steps_per_rollout}"
            )
        return self

    def resolved_method(self) -> Method:
        """The method with `objective.ratio_denominator` in place of the rollout log-probs.

        Methods that are written with the proximal policy (TIS, the uncorrected baselines) stay what they are.
        """
        method = method_of(self.method)
        if self.objective.ratio_denominator is None or method.denominator == "proximal":
            return method
        return dataclasses.replace(method, denominator=self.objective.ratio_denominator)

    def recipe(self) -> Recipe:
        """The resolved method with its settings: what the loss, the trainers and the plan ask."""
        return Recipe.of(self.resolved_method(), self.objective)


S = TypeVar("S", bound=Section)


def fingerprint(section: Section, *content: str) -> str:
    """Twelve hex digits that name what these settings compute (with `content`, hashes of files): no other state is resumed."""
    decisive = json.dumps(computing(section.model_dump(mode="json")))
    return hashlib.sha256("\n".join([decisive, *content]).encode()).hexdigest()[:12]


def changed_settings(then: Mapping[str, Any], now: Section) -> list[str]:
    """The computing settings in which `now` differs from a dump of settings, as "trainer.steps 150, now 200"."""
    return differences(computing(then), computing(now.model_dump(mode="json")))


def load_settings(path: Path = Path("config.yaml"), overrides: Mapping[str, Any] | None = None) -> Settings:
    """Resolve config.yaml, the chosen preset and the command line's overrides (strongest last) into Settings."""
    try:
        base = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SettingsError(f"{path} does not exist; run from the repository root") from error
    except yaml.YAMLError as error:
        raise SettingsError(f"{path} is not valid YAML: {error}") from error
    overrides = {key: _with_nulls(value) for key, value in (overrides or {}).items()}
    presets = base.pop("presets")
    preset = overrides.get("preset", base["preset"])
    if preset not in presets:
        raise SettingsError(unknown("preset", preset, presets))
    merged = _merge(_merge(base, presets[preset] or {}), overrides)
    seeds = merged["seeds"]
    if isinstance(seeds, int):
        if seeds < 1:
            raise SettingsError(f"seeds: {seeds} - give the number of seeds (at least 1) or a list of seeds")
        merged["seeds"] = list(range(seeds))
    return _validated(Settings, merged, str(path))


def read_settings(kind: type[S], path: Path) -> S:
    """Read the settings file of a stage."""
    return _validated(kind, _read(path), str(path))


def read_cell_settings(path: Path, present: Path | None) -> CellSettings:
    """Read the settings file of a cell; operational ones from the run at `present`, if one is given."""
    return operated(_read(path), present, str(path))


def operated(cell: Mapping[str, Any], present: Path | None, source: str) -> CellSettings:
    """A cell's settings from their dump, with the operational ones of the run at `present`, which has to compute the same cell."""
    if present is None:
        return _validated(CellSettings, cell, source)
    now = read_settings(Settings, present).cell(Cell(cell.get("method", ""), cell.get("lag", ""), cell.get("seed", 0)))
    if changed := changed_settings(cell, now):
        raise SettingsError(f"{source}: the run of {present} computes another cell: {'; '.join(changed[:3])}; run snakemake again")
    return now


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SettingsError(f"settings file {path} does not exist; run the stage through snakemake, which writes it") from error
    except json.JSONDecodeError as error:
        raise SettingsError(f"settings file {path} is damaged ({error}); delete it, snakemake writes it anew") from error


def read_problem_settings(path: Path) -> ProblemSettings:
    """Read the settings file of the stage prepare, whose shape follows its kind of problems."""
    published = path.exists() and '"published"' in path.read_text(encoding="utf-8")
    return read_settings(PublishedProblemSettings if published else ProblemSettings, path)


def _with_nulls(override: Any) -> Any:
    """An override whose "null" is None: Snakemake reads --config as text where YAML would see a null."""
    if isinstance(override, Mapping):
        return {key: _with_nulls(value) for key, value in override.items()}
    return None if override == "null" else override


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _validated(kind: type[S], values: Mapping[str, Any], source: str) -> S:
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise SettingsError("\n".join(_explain(kind, item, source) for item in error.errors())) from None


def _explain(kind: type[BaseModel], item: Any, source: str) -> str:
    key = ".".join(map(str, item["loc"])) or "settings"
    if item["type"] == "extra_forbidden":
        return f"{source}: {unknown('key', key, _keys_beside(kind, item['loc']))}"
    if item["type"] == "missing":
        return f"{source}: {key} is missing; add it, or let `snakemake -n` write a file of resolved settings again"
    message = item["msg"].removeprefix("Value error, ")
    if item["type"] == "value_error":
        return f"{source}: {key}: {message}" if item["loc"] else f"{source}: {message}"
    return f"{source}: {key}: {message}; got {item['input']!r}"


def _keys_beside(kind: type[BaseModel], location: tuple[Any, ...]) -> list[str]:
    """The keys allowed where `location` points, with their path in front."""
    here: Any = kind
    for name in location[:-1]:
        field = here.model_fields.get(name) if hasattr(here, "model_fields") else None
        kinds = get_args(field.annotation) or (field.annotation,) if field else (here,)
        here = next((kind for kind in kinds if hasattr(kind, "model_fields")), kinds[0])  # a part's section may be None
    prefix = ".".join(map(str, location[:-1]))
    return [f"{prefix}.{name}" if prefix else name for name in here.model_fields] if hasattr(here, "model_fields") else []
