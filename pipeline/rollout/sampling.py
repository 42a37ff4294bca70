"""Randomness that belongs to a response and to nothing else.

The uniforms of a response come from a counter-based generator keyed by (seed, purpose) with the counter set to (draw, problem,
sample), so batching, overlap, resumption or another evaluation cannot change what is sampled.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.records import SamplingKey

_PURPOSE = {"train": 1, "evaluation": 2, "scoring": 3, "order": 4}


def keyed_generator(seed: int, purpose: str, *counter: int) -> np.random.Generator:
    """A generator whose stream is a pure function of its arguments (Philox; at most three counter words)."""
    words = np.array([0, *counter, *[0] * (3 - len(counter))], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(counter=words, key=np.array([seed, _PURPOSE[purpose]], dtype=np.uint64)))


def uniforms(keys: Sequence[SamplingKey], num_tokens: int) -> NDArray[np.float32]:
    """float32 [len(keys), num_tokens] in [0, 1): one number per token of each response."""
    rows = np.empty((len(keys), num_tokens), dtype=np.float32)
    for row, key in zip(rows, keys, strict=True):
        keyed_generator(key.seed, key.purpose, key.draw, key.problem, key.sample).random(out=row, dtype=np.float32)
    return rows
