"""What parts refuse: a method in which they would do nothing, or too much."""

from __future__ import annotations

from pipeline.objective.axes import Denominator


def refuse_ratio_one(part: str, label: str, denominator: Denominator, steps_per_rollout: int) -> None:
    """Raise ValueError where the denominator is the policy at the start of the update and the update is a single optimizer step."""
    if denominator == "proximal" and steps_per_rollout == 1:
        raise ValueError(
            f"{label}: ratio_denominator 'proximal' makes every ratio 1 with one optimizer step per rollout, "
            f"so {part} would do nothing; use 'rollout' or 'rollout_weights', or a lag with several steps per rollout"
        )


def refuse_second_correction(part: str, label: str, denominator: Denominator) -> None:
    """Raise ValueError where the ratio already corrects from the rollout, and the part's weight would do it again."""
    if denominator != "proximal":
        raise ValueError(
            f"{label}: {part} already corrects from the rollout to the proximal policy; "
            f"with ratio_denominator {denominator!r} it would correct twice; use 'proximal'"
        )
