"""Where mismatch comes from: levels measured with precision, routing and lag switched one at a time.

In: results/<preset>/mismatch.json, {"rows": [...]}. A row is one measurement of mean |log pi - log mu|: {"name", "dtype": of the
rollout engine, "replay": whether the trainer replays the experts, "lag": optimizer steps between the two weights, "mismatch", "se",
"n_tokens", "seeds"}.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from pipeline.results.json_files import read_as
from pipeline.results.table import Row

HEAD = ("Measured", "Engine's precision", "Experts replayed", "Lag", "Mismatch", "Standard error", "Tokens", "Seeds")
EXACT, ROUNDED = "float32", "bfloat16"


@dataclass(frozen=True)
class Level:
    """One measurement; see the module's docstring."""

    name: str
    dtype: str
    replay: bool
    lag: int
    mismatch: float
    se: float
    n_tokens: int
    seeds: int

    __pydantic_config__ = ConfigDict(extra="forbid")  # a key unknown here could be one more thing that was switched


class _Rows(BaseModel):
    rows: list[Level]


@dataclass(frozen=True)
class Share:
    """What one cause adds, other things equal: the difference of two levels with its standard error, in nats per token."""

    cause: str
    added: float
    se: float
    of: str


def read_levels(path: Path) -> list[Level]:
    """The measurements in `path`, none where it does not exist. Raises ValueError for rows that are not as described."""
    remedy = "delete it and run snakemake again, which measures anew"
    return list(read_as(_Rows, path, remedy).rows) if path.exists() else []


def shares(levels: Sequence[Level]) -> list[Share]:
    """Precision, routing and lag as differences of measured levels; only where both levels were measured.

    precision: bfloat16 over float32 at equal weights with replay.  routing: without over with replay at equal weights in bfloat16.
    lag: each larger lag over equal weights, in bfloat16 without replay.
    """
    by_key = {(level.dtype, level.replay, level.lag): level for level in levels}
    wanted = [
        ("precision", (ROUNDED, True, 0), (EXACT, True, 0)),
        ("routing", (ROUNDED, False, 0), (ROUNDED, True, 0)),
        *((f"lag {lag}", (ROUNDED, False, lag), (ROUNDED, False, 0)) for lag in sorted({level.lag for level in levels} - {0})),
    ]
    found = []
    for cause, with_it, without in wanted:
        if with_it in by_key and without in by_key:
            a, b = by_key[with_it], by_key[without]
            found.append(Share(cause, a.mismatch - b.mismatch, math.hypot(a.se, b.se), f"{a.name} − {b.name}"))
    return found


def in_training(levels: Sequence[Level], trained: Sequence[Row], dtype: str) -> list[list[str]]:
    """What lag adds in the cells themselves, whose engine computes in `dtype`: mismatch of GRPO without and with R3 over the last
    quarter, by lag, less the level at equal weights; as text, the range over the seeds in brackets. The weights are trained ones,
    so that this is lag together with what training changed.
    """
    equal = {level.replay: level for level in levels if (level.dtype, level.lag) == (dtype, 0)}
    replayed = {"grpo": False, "grpo-r3": True}
    found = []
    for row in trained:
        level = equal.get(replayed[row.method]) if row.method in replayed else None
        if level is None or row.seeds_read == 0:
            continue
        mean, low, high = (value - level.mismatch for value in (row.mismatch, row.mismatch_low, row.mismatch_high))
        over = f", {row.seeds_read} seeds: [{low:+.3g}, {high:+.3g}]" if row.seeds_read > 1 else ", one seed"
        found.append([f"lag {row.lag}, in training", f"{mean:+.3g}{over}", f"{row.label} − {level.name}"])
    return found


def view(levels: Sequence[Level], trained: Sequence[Row] = (), dtype: str = ROUNDED) -> dict[str, Any]:
    """Tables of text for the report, and each level's length as a share of the largest.

    trained: the rows of Table 1.  dtype: the rollout engine's precision in them.
    """
    largest = max((level.mismatch for level in levels), default=0.0)
    rows = [
        [level.name, level.dtype, "yes" if level.replay else "no", str(level.lag), f"{level.mismatch:.3g}", f"{level.se:.1g}",
         f"{level.n_tokens:,}", str(level.seeds)]
        for level in levels
    ]  # fmt: skip
    causes = [[share.cause, f"{share.added:+.3g} ± {share.se:.1g}", share.of] for share in shares(levels)] + in_training(
        levels, trained, dtype
    )
    return {
        "head": HEAD,
        "rows": rows,
        "lengths": [level.mismatch / largest if largest else 0.0 for level in levels],
        "causes": causes,
    }
