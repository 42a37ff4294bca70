"""The objective's columns of a row of steps.parquet that every method has. Parts declare their own. Imports no torch."""

from __future__ import annotations

from pipeline.columns import Column
from pipeline.objective.methods import all_parts

COMMON = (
    Column("policy_loss", "1", "the loss without reference KL and entropy bonus, summed with the loss's weights"),
    Column("reference_kl", "nats", "k3 estimate of the KL to the base policy, summed with the loss's weights, no coefficient"),
    Column("entropy", "nats", "entropy of the policy, summed with the loss's weights, without its coefficient"),
    Column("mismatch", "nats", "mean |d| with d = log pi - log mu of a token, before the update (Eq. 52)"),
    Column("mismatch_response_mean", "nats", "mean over responses of their mean |d|"),
    Column("k1", "nats", "mean of -d, an estimate of KL(mu || pi)"),
    Column("k3", "nats", "mean of e^d - 1 - d, an estimate of KL(mu || pi)"),
    Column("ess", "share", "effective sample size (sum w)^2 / (N sum w^2) of the tokens' weights w = e^d"),
    Column("abs_d_p50", "nats", "median of |d|, inverse-CDF as the other quantiles"),
    Column("abs_d_p90", "nats", "90 % quantile of |d|"),
    Column("abs_d_p99", "nats", "99 % quantile of |d|"),
    Column("abs_d_max", "nats", "largest |d|"),
    Column("ratio_mean", "1", "mean of the method's ratio r"),
    Column("ratio_max", "1", "largest r"),
    Column("clip_share_low", "share", "tokens with A < 0 where the surrogate's limit binds"),
    Column("clip_share_high", "share", "tokens with A > 0 where the surrogate's limit binds"),
)


def objective_columns() -> tuple[Column, ...]:
    """Every column that some method's objective can have: the common ones and those of all parts."""
    return (*COMMON, *(column for part in all_parts() for column in part.columns))
