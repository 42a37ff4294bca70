"""The rows of Table 1 (and the uncorrected baselines) as data.

A method is a point on three axes - ratio granularity x clip rule x correction - plus two switches: which log-probs stand in the
denominator of the ratio, and whether the trainer replays the rollout engine's experts (R3). Nothing here imports torch, so that the
configuration, the DAG and the tables can read it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Granularity = Literal["token", "sequence"]
ClipRule = Literal["fixed", "dppo", "sat"]
Denominator = Literal["rollout", "proximal", "rollout_weights"]


@dataclass(frozen=True)
class Method:
    """One row of the table.

    label: the name the paper prints.  granularity: GRPO's token ratio or GSPO's length-normalised sequence ratio.
    clip_rule: PPO's fixed limits, DPPO's total-variation mask on top of them, or SAT's staleness-adaptive limits.
    denominator: what the ratio divides by (METHODS table of docs/assumptions.md): the rollout engine's own log-probs, the trainer's
    log-probs at the start of the update, or the trainer's log-probs at the weights that generated the response.
    truncated_importance_sampling: multiply the token loss by min(exp(proximal - rollout), cap).
    routing_replay: R3, the trainer's router uses the experts recorded by the rollout engine.
    """

    label: str
    granularity: Granularity
    clip_rule: ClipRule = "fixed"
    denominator: Denominator = "rollout"
    truncated_importance_sampling: bool = False
    routing_replay: bool = False

    def __post_init__(self) -> None:
        if self.clip_rule != "fixed" and self.denominator == "proximal":
            raise ValueError(
                f"{self.label}: ratio_denominator 'proximal' makes every ratio 1 with one optimizer step per rollout, "
                f"so clip rule {self.clip_rule!r} would do nothing; use 'rollout' or 'rollout_weights'"
            )
        if self.truncated_importance_sampling and self.denominator != "proximal":
            raise ValueError(
                f"{self.label}: truncated importance sampling already corrects from the rollout to the proximal policy; "
                f"with ratio_denominator {self.denominator!r} it would correct twice; use 'proximal'"
            )

    @property
    def uncorrected(self) -> bool:
        """Whether nothing corrects from the policy that sampled: neither the ratio nor a weight reads the rollout's log-probs."""
        return self.denominator == "proximal" and not self.truncated_importance_sampling


METHODS: dict[str, Method] = {
    "grpo": Method("GRPO", "token"),
    "gspo": Method("GSPO", "sequence"),
    "grpo-r3": Method("GRPO w/ R3", "token", routing_replay=True),
    "gspo-r3": Method("GSPO w/ R3", "sequence", routing_replay=True),
    "grpo-tis": Method("GRPO w/ TIS", "token", denominator="proximal", truncated_importance_sampling=True),
    "gspo-tis": Method("GSPO w/ TIS", "sequence", denominator="proximal", truncated_importance_sampling=True),
    "grpo-tis-r3": Method(
        "GRPO w/ TIS w/ R3", "token", denominator="proximal", truncated_importance_sampling=True, routing_replay=True
    ),
    "gspo-tis-r3": Method(
        "GSPO w/ TIS w/ R3", "sequence", denominator="proximal", truncated_importance_sampling=True, routing_replay=True
    ),
    "dppo": Method("DPPO", "token", clip_rule="dppo"),
    "sat-grpo": Method("SAT-GRPO", "token", clip_rule="sat"),
    "sat-gspo": Method("SAT-GSPO", "sequence", clip_rule="sat"),
    "sat-grpo-r3": Method("SAT-GRPO w/ R3", "token", clip_rule="sat", routing_replay=True),
    "sat-gspo-r3": Method("SAT-GSPO w/ R3", "sequence", clip_rule="sat", routing_replay=True),
    # The baselines as the paper's Table 9 configures them: no correction for staleness at all.
    "grpo-uncorrected": Method("GRPO uncorrected", "token", denominator="proximal"),
    "gspo-uncorrected": Method("GSPO uncorrected", "sequence", denominator="proximal"),
    "grpo-r3-uncorrected": Method("GRPO w/ R3 uncorrected", "token", denominator="proximal", routing_replay=True),
}

TABLE_1: tuple[str, ...] = tuple(METHODS)[: list(METHODS).index("grpo-uncorrected")]  # the paper's rows, in its order
VARIANT = "+"  # a row "method+variant" is the method with the settings that config.yaml lists under that variant


def method_of(name: str) -> Method:
    """The method of a row: METHODS[name], or for "method+variant" that method with the variant in its label.

    Raises ValueError for a method that METHODS does not have.
    """
    base, _, variant = name.partition(VARIANT)
    if base not in METHODS:
        raise ValueError(f"unknown method {base!r}; known: {', '.join(METHODS)}")
    method = METHODS[base]
    return replace(method, label=f"{method.label}, {variant.replace('_', ' ')}") if variant else method
