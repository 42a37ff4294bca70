"""What a method is made of. A part is one thing that a loss does to a token or that a method asks of an optimizer step.

A method lists part classes (methods.py); a cell has them with its settings (recipe.py); the loss body, the diagnostics, the
trainers, the configuration and the plan ask the parts and know none by name. A part is one or several of

    Surrogate     the gain of a token from its ratio and its advantage: every method has exactly one
    Contraction   a factor on the distance of the surrogate's clip limits from 1
    Factor        a mask or a weight: a constant that multiplies the token's surrogate
    Statistic     a number of the whole optimizer step that the others read: what each token contributes, and how it is reduced
    Control       what is done to the gradient or to the size of the step, with a memory that checkpoints keep

and brings its own settings (`Settings`, with its defaults in config.yaml under `objective.<name>`) and columns of steps.parquet.
Modules of parts import torch inside functions only where a tensor's own methods do not suffice: the DAG and the tables read METHODS
without it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from pipeline.columns import Column
from pipeline.objective.axes import Denominator
from pipeline.section import Section

if TYPE_CHECKING:
    from torch import Tensor

    from pipeline.objective.terms import Scores, StepTerms

Buffers = Mapping[str, "Tensor"]


class Part(ABC):
    """name: its section of the settings, its columns' prefix, its place in checkpoints.  reads: log-probs that it needs besides
    the trainer's and the rollout's.  corrects: whether it makes up for the distance from the policy that sampled."""

    name: ClassVar[str]
    Settings: ClassVar[type[Section] | None] = None
    reads: ClassVar[frozenset[Denominator]] = frozenset()
    corrects: ClassVar[bool] = False
    columns: ClassVar[tuple[Column, ...]] = ()

    def __init__(self, settings: Any = None) -> None:
        self.settings = settings

    @classmethod
    def check(cls, label: str, denominator: Denominator, steps_per_rollout: int) -> None:
        """Raise ValueError, with the remedy, where this part cannot work in a method so labelled, or under such a schedule."""
        return

    def measure(self, step: StepTerms, surrogate: Surrogate) -> dict[str, float]:
        """The values of `columns` for an optimizer step that has tokens. surrogate: the method's."""
        return {}


@dataclass(frozen=True)
class Gain:
    """value [N]: what is maximised, with gradient.  clipped: bool [N], where a limit of the ratio binds, without gradient."""

    value: Tensor
    clipped: Tensor


class Surrogate(Part):
    """limited: whether it has clip limits around a ratio of 1, which a Contraction can draw in."""

    limited: ClassVar[bool] = False

    @abstractmethod
    def surrogate(self, scores: Scores, contraction: Tensor | None) -> Gain:
        """The gain of each token before masks and weights. contraction [N]: of the limit that can bind; None: 1 throughout."""


class Contraction(Part):
    @abstractmethod
    def contraction(self, scores: Scores) -> Tensor:
        """A factor [N] in [0, 1] on the distance from 1 of the limit that can bind at each token; a constant for the gradient."""


@dataclass(frozen=True)
class Multiplier:
    """value [N]: a weight, or a bool mask of what stays; no gradient.  terms: further vectors [N] that `measure` wants back."""

    value: Tensor
    terms: Mapping[str, Tensor] = field(default_factory=dict)


class Factor(Part):
    @abstractmethod
    def factor(self, scores: Scores) -> Multiplier:
        """What multiplies each token's surrogate. A token of factor 0 stays in the loss's denominator."""


class Processes(Protocol):
    """The processes that share an optimizer step. Every one of them calls, with tensors of one shape and dtype."""

    @property
    def alone(self) -> bool: ...

    def sum(self, values: Tensor) -> Tensor:
        """The element-wise sum over the processes."""
        ...


class OneProcess:
    """Processes of a trainer that works alone."""

    alone = True

    def sum(self, values: Tensor) -> Tensor:
        return values


class Statistic(Part):
    """Reduced over the micro-batches and processes of the whole step, before its first backward pass."""

    @property
    def step_wide(self) -> bool:
        """Whether the statistic is that of the whole step; otherwise each micro-batch takes its own."""
        return True

    @abstractmethod
    def contributions(self, scores: Scores) -> Tensor:
        """What a micro-batch adds to the step's values [M], M as the part likes; without gradient."""

    @abstractmethod
    def reduce(self, values: Tensor, processes: Processes) -> Tensor:
        """The statistic of all values of all processes, the same on each. values [M]: this process's, none of them NaN.

        Micro-batches, their order and the number of processes must not change the result: select, or sum in float64.
        """


class Gradient(Protocol):
    """The gradient of the whole step before it is clipped. Each process holds its own part of it.

    buffers: by name, live: what is written into them is what the optimizer reads.
    """

    @property
    def buffers(self) -> Buffers: ...

    def dot(self, a: Buffers, b: Buffers) -> float:
        """The scalar product of two sets of such buffers over all processes, each parameter counted once."""
        ...


@dataclass(frozen=True)
class Controlled:
    """What a Control did. values: its columns.  memory: what it wants to see at the next step, kept in checkpoints.

    learning_rate_scale: factor on this step's learning rate.  skip: whether the step must not be taken.
    """

    values: Mapping[str, float]
    memory: Buffers
    learning_rate_scale: float = 1.0
    skip: bool = False


class Control(Part):
    @abstractmethod
    def control(self, gradient: Gradient, memory: Buffers, step: StepTerms) -> Controlled:
        """Look at the gradient, and change it in place, after accumulation and before the norm is clipped.

        memory: what this part returned at the last step that was taken; empty before the first. step: empty where another
        process writes the row.
        """
