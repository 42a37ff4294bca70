"""A method with the settings of its parts: what the loss, the diagnostics, the trainers and the plan ask. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from pipeline.columns import Column
from pipeline.objective.axes import Denominator
from pipeline.objective.methods import Method
from pipeline.objective.part import Part, Statistic, Surrogate

if TYPE_CHECKING:
    from pipeline.sections import ObjectiveSettings

P = TypeVar("P", bound=Part)


@dataclass(frozen=True)
class Recipe:
    """method: a row of METHODS, its denominator as configured.  settings: of the objective.  parts: the method's, in its order."""

    method: Method
    settings: ObjectiveSettings
    parts: tuple[Part, ...]

    @classmethod
    def of(cls, method: Method, settings: ObjectiveSettings) -> Recipe:
        """Raises ValueError where `settings` lack the section of a part."""
        return cls(method, settings, tuple(part(settings.of_part(part)) for part in method.parts))

    def having(self, role: type[P]) -> tuple[P, ...]:
        """The parts that are a `role` (Surrogate, Contraction, Factor, Statistic, Control), in the method's order."""
        return tuple(part for part in self.parts if isinstance(part, role))

    @cached_property
    def surrogate(self) -> Surrogate:
        return self.having(Surrogate)[0]

    @property
    def reads(self) -> frozenset[Denominator]:
        """All log-probs that the method reads besides the trainer's and, for the diagnostics, the rollout's."""
        return self.method.reads

    @property
    def step_statistics(self) -> tuple[Statistic, ...]:
        """The statistics that need the whole step before its first backward pass."""
        return tuple(part for part in self.having(Statistic) if part.step_wide)

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns that the parts add to a row of steps.parquet."""
        return tuple(column for part in self.parts for column in part.columns)
