"""Where the surrogate is clipped: PPO's fixed limits, DPPO's mask, SAT's limits that contract with staleness (Eqs. 13-20)."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

SMALL = 1 << 16  # below this a plain selection is faster than one that samples first
SAMPLE = 1 << 14


def clip_cap(advantages: Tensor, eps_low: float, eps_high: float, contraction: Tensor | None = None) -> Tensor:
    """The value [N] at which PPO's clip caps the surrogate: min(r A, clip(r, 1 - eps_low, 1 + eps_high) A) = min(r A, cap).

    Only one limit can bind for a given sign of A, the upper for A > 0 and the lower for A < 0, so cap = limit * A = A + |A| eps.
    SAT (Eq. 20) multiplies that side's eps by its contraction c [N]; c = 1 gives PPO's cap bit for bit.
    """
    distance = torch.maximum(advantages * -eps_low, advantages * eps_high)
    return advantages + distance if contraction is None else torch.addcmul(advantages, distance, contraction)


@torch.no_grad()
def sat_contraction(drift: Tensor, quantile: Tensor) -> Tensor:
    """How far SAT contracts a clip limit for each token: c [N] in (0, 1], a constant for the gradient (Eqs. 13-19).

    drift: the log-ratio d [N] at the method's granularity, signed towards the limit in question: d gives c+ of the upper limit,
    -d gives c- of the lower one, d sign(A) the c of the one limit that can bind. The side is the sign of d's, never A's.
    quantile: q >= 0, a scalar. c = psi(drift; q) = 1 / (1 + (drift/q)^2) < 1/2 where drift > q > 0, otherwise exactly 1.
    """
    q = float(quantile)
    if not q >= 0.0:
        raise ValueError(f"the staleness quantile must be >= 0, got {q}; it is a quantile of |log ratio|")
    if q == 0.0:
        return torch.ones_like(drift)
    # in place after the first operation: such passes are bound by memory
    return functional.threshold(drift, q, 0.0).div_(q).square_().add_(1.0).reciprocal_()


@torch.no_grad()
def dppo_masked(trainer_logprobs: Tensor, rollout_logprobs: Tensor, advantages: Tensor, delta: float) -> Tensor:
    """Which tokens DPPO drops: those that move outward with |pi - mu| > delta (arXiv 2602.04879; delta 1e-3 in 2607.18722).

    All [N]; returns bool [N] without gradient. Outward: A > 0 and pi > mu, or A < 0 and pi < mu. |pi - mu| = mu |r - 1| is the
    sampled token's part of the total variation; equality with delta keeps. Dropped tokens stay in the loss's denominator.
    """
    change = trainer_logprobs.exp() - rollout_logprobs.exp()
    return change * advantages.sign() > delta


def order_statistic_rank(alpha: float, count: int) -> int:
    """ceil(alpha * count), the rank (from 1) of the inverse-CDF quantile. alpha is the decimal number as written: 0.9 is 9/10."""
    if not 0.0 < alpha <= 1.0:
        raise ValueError(f"quantile_alpha must lie in (0, 1], got {alpha}")
    if count == 0:
        raise ValueError("a quantile needs at least one active token; skip an optimizer step without any")
    return math.ceil(Fraction(str(alpha)) * count)


def staleness_quantile(values: Tensor, alpha: float) -> Tensor:
    """The ceil(alpha N)-th smallest of `values`: one of them, never interpolated, exact for every N (Eq. 16).

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


def distributed_staleness_quantile(values: Tensor, alpha: float, group: dist.ProcessGroup | None = None) -> Tensor:
    """`staleness_quantile` of the values of all ranks of `group` together, exact, without gathering them.

    values: float32 or float64 [N_rank], >= 0, empty on some ranks if need be; every rank calls, with the same dtype and
    alpha, and gets the same scalar. Non-negative floats are ordered as their bit patterns are, so the answer is found 16 bits at a
    time from histograms: two all-reduces of 65,537 counts for float32, four for float64. Raises ValueError on all ranks if there
    is no value at all, or one that is negative or NaN.
    """
    values = values.detach().flatten()
    bits = values.abs().view(torch.int32 if values.dtype == torch.float32 else torch.int64)
    invalid = (~(values >= 0.0)).sum().reshape(1)
    rank, prefix = 0, 0  # rank 0: not known before the first all-reduce has counted the values
    for shift in range(torch.finfo(values.dtype).bits - 16, -1, -16):
        digits = (bits >> shift) - (prefix << 16)
        counts = torch.cat([torch.bincount(digits, minlength=1 << 16), invalid])
        dist.all_reduce(counts, group=group)
        cumulative = counts[:-1].cumsum(0)
        if rank == 0:
            if int(counts[-1]):
                raise ValueError(f"{int(counts[-1])} staleness values are negative or NaN; pass |log ratio|, check the log-probs")
            rank = order_statistic_rank(alpha, int(cumulative[-1]))
        digit = int(torch.searchsorted(cumulative, rank))
        rank -= int(cumulative[digit - 1]) if digit else 0
        prefix = (prefix << 16) + digit
        bits = bits[digits == digit]
    return torch.tensor(prefix, dtype=bits.dtype, device=values.device).view(values.dtype)
