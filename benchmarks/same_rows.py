"""Whether two runs trained the same cells: every row of steps.parquet, bit for bit.

    python -m benchmarks.same_rows results/tiny OTHER_CHECKOUT/results/tiny     # status 1 if a cell differs or one side lacks it

Times are left out (columns *_s). A column that one side does not have must be NaN throughout on the other: a cell has the columns
of its method's parts. On one machine two revisions that compute the same must agree; between processors PyTorch rounds differently.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

TIMES = "_s"


def differing(a: pd.DataFrame, b: pd.DataFrame) -> list[str]:
    """The columns in which two tables of steps are not the same bits."""
    names = [name for name in dict.fromkeys([*a.columns, *b.columns]) if not name.endswith(TIMES)]
    return [name for name in names if len(a) != len(b) or not _same(a, b, name)]


def _same(a: pd.DataFrame, b: pd.DataFrame, name: str) -> bool:
    if name not in a or name not in b:
        return bool((a if name in a else b)[name].isna().all())
    if not pd.api.types.is_numeric_dtype(a[name]):
        return list(a[name]) == list(b[name])
    return a[name].to_numpy().tobytes() == b[name].to_numpy().tobytes()


def main(one: Path, other: Path) -> int:
    cells = sorted({path.parent.relative_to(side) for side in (one, other) for path in side.glob("cells/*/*/*/run.json")})
    wrong = 0
    for cell in cells:
        sides = [side / cell / "steps.parquet" for side in (one, other)]
        missing = [str(side) for side in sides if not side.exists()]
        columns = [] if missing else differing(*(pd.read_parquet(side) for side in sides))
        wrong += bool(missing or columns)
        if missing or columns:
            print(f"{cell}: {'not there: ' + missing[0] if missing else 'differs in ' + ', '.join(columns)}")
    print(f"{len(cells) - wrong} of {len(cells)} cells the same, bit for bit")
    return int(wrong > 0 or not cells)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
