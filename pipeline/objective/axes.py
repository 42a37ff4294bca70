"""The two axes of a method's ratio. Imports no torch."""

from __future__ import annotations

from typing import Literal

Granularity = Literal["token", "sequence"]  # a ratio of its own for each token, or the response's length-normalised one
Denominator = Literal["rollout", "proximal", "rollout_weights"]  # whose log-probs the ratio divides by
