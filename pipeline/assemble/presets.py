"""Verdicts of several presets side by side, from the diff.json that each has left under results/."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

from pipeline.artifacts import Layout, read_json
from pipeline.config import Settings

PRESETS: tuple[str, ...] = get_args(Settings.model_fields["preset"].annotation)


def side_by_side(own: str, content: dict[str, Any]) -> dict[str, Any] | None:
    """Claims x presets: the verdict of each; `content` is diff.json of preset `own`. None where no other preset has any."""
    found = {own: content}
    for preset in PRESETS:
        path: Path = Layout(preset).results / "diff.json"
        if preset != own and path.exists():
            found[preset] = read_json(path)
    if len(found) == 1:
        return None
    presets = [preset for preset in PRESETS if preset in found]
    verdicts = {preset: {claim["id"]: claim["verdict"] for claim in found[preset]["claims"]} for preset in presets}
    return {
        "presets": [{"name": preset, "seeds": len(found[preset]["seeds"])} for preset in presets],
        "rows": [
            {"statement": claim["statement"], "verdicts": [verdicts[preset].get(claim["id"]) for preset in presets]}
            for claim in content["claims"]
        ],
    }
