"""The rows of Table 1, the uncorrected baselines and further methods, as data: a method is a list of parts.

A method names the granularity of its ratio, the log-probs in the ratio's denominator, its parts, and whether the trainer replays
the rollout engine's experts (R3). Nothing here imports torch, so that the configuration, the DAG and the tables can read it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeline.objective.axes import Denominator, Granularity
from pipeline.objective.part import Contraction, Part, Surrogate
from pipeline.objective.parts.cispo import Cispo
from pipeline.objective.parts.dppo import Dppo
from pipeline.objective.parts.gac import Gac
from pipeline.objective.parts.icepop import IcePop
from pipeline.objective.parts.m2po import M2po
from pipeline.objective.parts.ppo import Ppo
from pipeline.objective.parts.sat import Sat
from pipeline.objective.parts.tis import Tis


@dataclass(frozen=True)
class Method:
    """One row of the table.

    label: the name the paper prints.  granularity: GRPO's token ratio or GSPO's length-normalised sequence ratio.
    denominator: what the ratio divides by ("The denominator" in docs/assumptions.md): the rollout engine's own log-probs, the
    trainer's at the start of the update, or the trainer's at the weights that generated the response.
    parts: exactly one Surrogate, and what goes with it; factors are applied in this order.
    routing_replay: R3, the trainer's router uses the experts recorded by the rollout engine.
    """

    label: str
    granularity: Granularity
    denominator: Denominator
    parts: tuple[type[Part], ...]
    routing_replay: bool = False

    def __post_init__(self) -> None:
        surrogates = [part for part in self.parts if issubclass(part, Surrogate)]
        if len(surrogates) != 1:
            names = ", ".join(part.name for part in surrogates) or "none"
            raise ValueError(f"{self.label}: a method has exactly one surrogate among its parts, this one has {names}")
        contractions = [part.name for part in self.parts if issubclass(part, Contraction)]
        if contractions and not surrogates[0].limited:
            raise ValueError(
                f"{self.label}: {contractions[0]} contracts clip limits, and the surrogate {surrogates[0].name} has none; use ppo"
            )

    @property
    def reads(self) -> frozenset[Denominator]:
        """The denominator's log-probs and those of the parts."""
        return frozenset[Denominator]({self.denominator}).union(*(part.reads for part in self.parts))

    @property
    def uncorrected(self) -> bool:
        """Whether nothing corrects from the policy that sampled: neither the ratio nor a part reads the rollout's log-probs."""
        return self.denominator == "proximal" and not any(part.corrects for part in self.parts)

    def has(self, part: type[Part]) -> bool:
        return part in self.parts

    def without(self, part: type[Part]) -> Method:
        """The same method without one of its parts."""
        return replace(self, parts=tuple(kept for kept in self.parts if kept is not part))

    def check(self, steps_per_rollout: int) -> None:
        """Raise ValueError, with the remedy, where a part cannot work in this method with so many steps a rollout."""
        for part in self.parts:
            part.check(self.label, self.denominator, steps_per_rollout)


METHODS: dict[str, Method] = {
    "grpo": Method("GRPO", "token", "rollout", (Ppo,)),
    "gspo": Method("GSPO", "sequence", "rollout", (Ppo,)),
    "grpo-r3": Method("GRPO w/ R3", "token", "rollout", (Ppo,), routing_replay=True),
    "gspo-r3": Method("GSPO w/ R3", "sequence", "rollout", (Ppo,), routing_replay=True),
    "grpo-tis": Method("GRPO w/ TIS", "token", "proximal", (Ppo, Tis)),
    "gspo-tis": Method("GSPO w/ TIS", "sequence", "proximal", (Ppo, Tis)),
    "grpo-tis-r3": Method("GRPO w/ TIS w/ R3", "token", "proximal", (Ppo, Tis), routing_replay=True),
    "gspo-tis-r3": Method("GSPO w/ TIS w/ R3", "sequence", "proximal", (Ppo, Tis), routing_replay=True),
    "dppo": Method("DPPO", "token", "rollout", (Ppo, Dppo)),
    "sat-grpo": Method("SAT-GRPO", "token", "rollout", (Ppo, Sat)),
    "sat-gspo": Method("SAT-GSPO", "sequence", "rollout", (Ppo, Sat)),
    "sat-grpo-r3": Method("SAT-GRPO w/ R3", "token", "rollout", (Ppo, Sat), routing_replay=True),
    "sat-gspo-r3": Method("SAT-GSPO w/ R3", "sequence", "rollout", (Ppo, Sat), routing_replay=True),
    # The baselines as the paper's Table 9 configures them: no correction for staleness at all.
    "grpo-uncorrected": Method("GRPO uncorrected", "token", "proximal", (Ppo,)),
    "gspo-uncorrected": Method("GSPO uncorrected", "sequence", "proximal", (Ppo,)),
    "grpo-r3-uncorrected": Method("GRPO w/ R3 uncorrected", "token", "proximal", (Ppo,), routing_replay=True),
    # Methods of others.
    "cispo": Method("CISPO", "token", "rollout", (Cispo,)),
    "icepop": Method("IcePop", "token", "proximal", (Ppo, IcePop)),
    "m2po": Method("M2PO", "token", "rollout", (M2po,)),
    "gac": Method("GAC", "token", "rollout", (Ppo, Gac)),
}

TABLE_1: tuple[str, ...] = tuple(METHODS)[: list(METHODS).index("grpo-uncorrected")]  # the paper's rows, in its order
VARIANT = "+"  # a row "method+variant" is the method with the settings that config.yaml lists under that variant


def all_parts() -> tuple[type[Part], ...]:
    """Every part that a method of METHODS has, in the order of their first mention."""
    return tuple(dict.fromkeys(part for method in METHODS.values() for part in method.parts))


def method_of(name: str) -> Method:
    """The method of a row: METHODS[name], or for "method+variant" that method with the variant in its label.

    Raises ValueError for a method that METHODS does not have.
    """
    base, _, variant = name.partition(VARIANT)
    if base not in METHODS:
        raise ValueError(f"unknown method {base!r}; known: {', '.join(METHODS)}")
    method = METHODS[base]
    return replace(method, label=f"{method.label}, {variant.replace('_', ' ')}") if variant else method
