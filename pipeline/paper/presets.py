"""Verdicts of several presets side by side, from the diff.json that each has left under results/."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel

from pipeline.artifacts import Layout
from pipeline.config import Settings
from pipeline.paper.verdicts import Verdict
from pipeline.results.json_files import read_as
from pipeline.results.runs import Gap

PRESETS: tuple[str, ...] = get_args(Settings.model_fields["preset"].annotation)


class Claim(BaseModel):
    """A claim of a diff.json and its verdict."""

    id: str
    verdict: Verdict


class Verdicts(BaseModel):
    """What is shown of another preset's diff.json."""

    seeds: list[int]
    claims: list[Claim]


def other_presets(own: str) -> tuple[dict[str, Verdicts], list[Gap]]:
    """The verdicts of every preset but `own` that has left a diff.json; one that cannot be read is a gap."""
    found, gaps = {}, []
    for preset in PRESETS:
        path = Layout(preset).results / "diff.json"
        if preset != own and path.exists():
            try:
                found[preset] = read_as(Verdicts, path, f"run `python -m pipeline assemble --preset {preset}`")
            except ValueError as error:
                gaps.append(Gap(f"preset {preset}", "unreadable", str(error)))
    return found, gaps


def side_by_side(own: str, content: Mapping[str, Any], others: Mapping[str, Verdicts]) -> dict[str, Any] | None:
    """Claims x presets: the verdict of each; `content` is diff.json of preset `own`. None where no other preset has any."""
    if not others:
        return None
    found = {own: Verdicts.model_validate(content), **others}
    presets = [preset for preset in PRESETS if preset in found]
    verdicts = {preset: {claim.id: claim.verdict for claim in found[preset].claims} for preset in presets}
    return {
        "presets": [{"name": preset, "seeds": len(found[preset].seeds)} for preset in presets],
        "rows": [
            {"statement": claim["statement"], "verdicts": [verdicts[preset].get(claim["id"]) for preset in presets]}
            for claim in content["claims"]
        ],
    }
