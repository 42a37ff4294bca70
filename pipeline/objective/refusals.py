"""What parts refuse: a method in which they would do nothing, or too much."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.objective.methods import Method
    from pipeline.objective.part import Part


def refuse_ratio_one(part: type[Part], method: Method, steps_per_rollout: int) -> None:
    """Raise ValueError where the denominator is the policy at the start of the update and the update is a single optimizer step."""
    if method.denominator == "proximal" and steps_per_rollout == 1:
        raise ValueError(
            f"{method.label}: ratio_denominator 'proximal' makes every ratio 1 with one optimizer step per rollout, "
            f"so {part.name} would do nothing; use 'rollout' or 'rollout_weights', or a lag with several steps per rollout"
        )


def refuse_second_correction(part: type[Part], method: Method) -> None:
    """Raise ValueError where the ratio already corrects from the rollout, and the part's weight would do it again."""
    if method.denominator != "proximal":
        raise ValueError(
            f"{method.label}: {part.name} already corrects from the rollout to the proximal policy; "
            f"with ratio_denominator {method.denominator!r} it would correct twice; use 'proximal'"
        )
