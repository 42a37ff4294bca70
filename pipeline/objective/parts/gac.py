"""GAC: what a gradient repeats of the one before is taken out of it, where the two point the same way too much (arXiv 2603.01501).

The authors' piecewise rule and thresholds were not to be had: this form, with one threshold, is ours (docs/assumptions.md).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pydantic import Field

from pipeline.columns import Column
from pipeline.objective.part import Buffers, Control, Controlled, Gradient
from pipeline.section import Section

if TYPE_CHECKING:
    from pipeline.objective.terms import StepTerms


class GacSettings(Section):
    kappa: float = Field(ge=0, le=1)
    cosine_low: float = Field(ge=-1, le=1)
    cosine_high: float | None = Field(ge=-1, le=1)


class Gac(Control):
    """g' = g - kappa max(0, (<g, h> - cosine_low |g| |h|) / |h|^2) h, with h the gradient of the step before, as accumulated.

    A step whose cosine exceeds cosine_high is skipped (null: none is), and a skipped step leaves h.
    """

    name = "gac"
    Settings = GacSettings
    settings: GacSettings
    columns = (
        Column("gac_cosine", "1", "cosine of the step's gradient and that of the step before"),
        Column("gac_removed", "1", "share of the earlier gradient that is taken out of this one"),
    )

    def control(self, gradient: Gradient, memory: Buffers, step: StepTerms) -> Controlled:
        before = {name: buffer.detach().float().clone() for name, buffer in gradient.buffers.items()}
        if not memory:
            return Controlled({"gac_cosine": math.nan, "gac_removed": 0.0}, before)
        product, square = gradient.dot(before, memory), gradient.dot(memory, memory)
        norms = math.sqrt(gradient.dot(before, before) * square)
        cosine = product / norms if norms > 0.0 else math.nan
        removed = self.settings.kappa * max(0.0, product - self.settings.cosine_low * norms) / square if norms > 0.0 else 0.0
        if removed > 0.0:
            for name, buffer in gradient.buffers.items():
                buffer.add_(memory[name].to(buffer.dtype), alpha=-removed)
        skip = self.settings.cosine_high is not None and cosine > self.settings.cosine_high
        return Controlled({"gac_cosine": cosine, "gac_removed": removed}, before, skip=skip)
