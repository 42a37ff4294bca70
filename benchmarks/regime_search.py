"""How the tiny preset's learning rate was chosen: by plain GRPO and GSPO alone, on seeds that the table never uses.

The rule was fixed before any of these runs (docs/regime.md): among the candidates whose lag-1 cells are all healthy - fresh
accuracy of the last weights at least 5 points above the base policy - take the one where lag 8 costs most accuracy, averaged
over methods and seeds; a tie goes to the smaller learning rate.

    python benchmarks/regime_search.py            # about 15 minutes on 2 cores; finished cells are kept in state/regime
"""

from __future__ import annotations

import argparse
import itertools
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.tuning import SEEDS, TINY, make_tiny_inputs, score, tiny, train
from pipeline.artifacts import Cell

METHODS, LAGS = ("grpo", "gspo"), ("1", "8")
HEALTHY_GAIN = 0.05
ROOT = Path("state/regime")


def train_and_score(learning_rate: float, cell: Cell) -> float:
    """Fresh accuracy of the cell's last weights on the scoring problems."""
    folder = ROOT / f"{learning_rate:g}" / str(cell)
    train(tiny({"trainer": {"learning_rate": learning_rate}}), cell, folder)
    score(folder)
    scores = pd.read_parquet(folder / "scores.parquet")
    return float(scores[scores.checkpoint == "last"].correct.mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learning-rates", type=float, nargs="+", default=[1e-4, 3e-4, 6e-4, 1e-3])
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS, help="seeds that the table never uses")
    parser.add_argument("--jobs", type=int, default=2, help="cells at once")
    options = parser.parse_args()
    make_tiny_inputs(options.jobs)
    base_rows = pd.read_parquet(TINY.base_policy / "evals.parquet")
    base = float(base_rows[base_rows.checkpoint == "scoring"].correct.mean())
    grid = list(itertools.product(options.learning_rates, METHODS, LAGS, options.seeds))
    with ThreadPoolExecutor(options.jobs) as pool:
        scores = list(pool.map(lambda point: train_and_score(point[0], Cell(*point[1:])), grid))
    frame = pd.DataFrame(grid, columns=["learning_rate", "method", "lag", "seed"]).assign(accuracy=scores)
    wide = frame.pivot_table(index="learning_rate", columns=["method", "lag", "seed"], values="accuracy")
    print(f"base policy {base:.3f}; fresh accuracy of the last weights, 120 problems x 8 samples\n")
    print(wide.round(3).to_string(), "\n")
    lag_1, lag_8 = wide.xs("1", axis=1, level="lag"), wide.xs("8", axis=1, level="lag")
    summary = pd.DataFrame({"healthy": (lag_1 >= base + HEALTHY_GAIN).all(axis=1), "lag 1 - lag 8": (lag_1 - lag_8).mean(axis=1)})
    print(summary.round(4).to_string(), "\n")
    healthy = summary[summary.healthy].sort_values("lag 1 - lag 8", ascending=False, kind="stable")
    print(f"chosen learning rate: {healthy.index[0]:g}" if len(healthy) else "no candidate is healthy at lag 1")


if __name__ == "__main__":
    main()
