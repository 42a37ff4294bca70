"""Exact selection among many values, in one process or over several: SAT's quantile, and thresholds of that kind."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from pipeline.objective.part import Processes

SMALL = 1 << 16  # below this a plain selection is faster than one that samples first
SAMPLE = 1 << 14


def quantile(values: Tensor, alpha: float, processes: Processes) -> Tensor:
    """`staleness_quantile` of the values of all processes together, exact, without gathering them."""
    return staleness_quantile(values, alpha) if processes.alone else distributed_staleness_quantile(values, alpha, processes)


def order_statistic_rank(alpha: float, count: int) -> int:
    """ceil(alpha * count), the rank (from 1) of the inverse-CDF quantile. alpha is the decimal number as written: 0.9 is 9/10."""
    if not 0.0 < alpha <= 1.0:
        raise ValueError(f"quantile_alpha must lie in (0, 1], got {alpha}")
    if count == 0:
        raise ValueError("a quantile needs at least one active token; skip an optimizer step without any")
    return math.ceil(Fraction(str(alpha)) * count)


def staleness_quantile(values: Tensor, alpha: float) -> Tensor:
    """The ceil(alpha N)-th smallest of `values`: one of them, never interpolated, exact for every N (Eq. 14).

    values: float32 or float64 [N], |log ratio| of the active tokens. Returns a scalar without gradient, of their dtype and device.
    Raises ValueError for N = 0 and for NaN. (torch.quantile interpolates and refuses more than 2^24 elements.)
    """
    values = values.detach().flatten()
    rank = order_statistic_rank(alpha, len(values))
    if torch.isnan(values.sum()) and torch.isnan(values).any():
        raise ValueError(f"{int(torch.isnan(values).sum())} of {len(values)} staleness values are NaN; check the log-probs")
    if values.device.type != "cpu":
        return values.kthvalue(rank).values
    return values.new_tensor(_select(values.numpy(), rank))


def _select(values: np.ndarray, rank: int) -> float:
    """The rank-th smallest of `values`, which hold no NaN.

    A regular sample brackets the answer, one pass counts what lies below and copies what lies inside (about 2 %), and only that is
    partitioned: several times faster than partitioning everything. Should the bracket miss, everything is.
    """
    count = len(values)
    if count >= SMALL:
        sample = np.sort(values[:: count // SAMPLE])
        share = rank / count
        margin = 1.0 + 4.0 * math.sqrt(len(sample) * share * (1.0 - share))  # four standard deviations of the rank in the sample
        low = sample[max(0, int(share * len(sample) - margin))]
        high = sample[min(len(sample) - 1, int(share * len(sample) + margin))]
        below = int(np.count_nonzero(values < low))
        inside = values[np.flatnonzero((values >= low) & (values <= high))]  # faster than indexing with the mask itself
        if below < rank <= below + len(inside):
            values, rank = inside, rank - below
    return float(np.partition(values, rank - 1)[rank - 1])


def distributed_staleness_quantile(values: Tensor, alpha: float, processes: Processes) -> Tensor:
    """`staleness_quantile` of the values of all processes together, exact, without gathering them.

    values: float32 or float64 [N_process], >= 0, empty in some processes if need be; every process calls, with the same dtype and
    alpha, and gets the same scalar. Raises ValueError in all processes if there is no value at all, or one that is negative or NaN.
    """
    values = values.detach().flatten()
    count, invalid = processes.sum(torch.tensor([len(values), int((~(values >= 0.0)).sum())])).tolist()
    if invalid:
        raise ValueError(f"{invalid} staleness values are negative or NaN; pass |log ratio|, check the log-probs")
    rank = order_statistic_rank(alpha, count)
    return smallest_where(values, lambda below, _: below >= rank, processes)


def smallest_where(
    values: Tensor, reached: Callable[[Tensor, Tensor], Tensor], processes: Processes, weights: Tensor | None = None
) -> Tensor:
    """The smallest of all processes' values v with reached(count, total), of the values up to v: their number, sum of weights.

    values: float32 or float64 [N_process], >= 0.  weights [N_process]: 1 throughout if None.  reached: monotone, on float64
    vectors. Infinity where no value reaches it. Non-negative floats are ordered as their bit patterns are, so the answer is found
    16 bits at a time from histograms: two sums over the processes for float32, four for float64.
    """
    bits = values.abs().view(torch.int32 if values.dtype == torch.float32 else torch.int64)
    weights = torch.ones_like(values, dtype=torch.float64) if weights is None else weights.double()
    before, prefix = values.new_zeros(2, 1, dtype=torch.float64), 0
    for shift in range(torch.finfo(values.dtype).bits - 16, -1, -16):
        digits = (bits >> shift) - (prefix << 16)
        counts = torch.bincount(digits, minlength=1 << 16).double()
        totals = torch.bincount(digits, weights, minlength=1 << 16)
        cumulative = before + processes.sum(torch.stack([counts, totals])).cumsum(1)
        found = reached(*cumulative)
        if not found.any():
            return values.new_tensor(math.inf)
        digit = int(found.int().argmax())
        before = cumulative[:, digit - 1 : digit] if digit else before
        prefix = (prefix << 16) + digit
        bits, weights = bits[digits == digit], weights[digits == digit]
    return torch.tensor(prefix, dtype=bits.dtype, device=values.device).view(values.dtype)
