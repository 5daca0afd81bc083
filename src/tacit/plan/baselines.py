"""Baselines of TMLR §5, as plans.

A Bayesian committee machine is one synchronous round without damping: each party m computes a
posterior qₘ alone, and the posteriors are multiplied. Let p be the prior and M the number of
parties. If each party used the whole prior, q = ∏ qₘ / p^(M−1). If each party used p^(1/M), q = ∏
qₘ. Central DP-VI is a federation of one party that has all records.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from tacit.data.records import pooled
from tacit.errors import ConfigError
from tacit.methods import DPSGD, LocalMethod
from tacit.models import Records
from tacit.privacy.guarantee import TRUST
from tacit.server.schedule import Schedule, Synchronous

Baseline = Literal["none", "committee-same-prior", "committee-split-prior", "central"]
POOLED_PARTY = "everyone"


def as_baseline(
    baseline: Baseline,
    parties: dict[str, Records],
    method: LocalMethod | None,
    schedule: Schedule,
    *,
    private: bool,
) -> tuple[dict[str, Records], LocalMethod | None, Schedule, str | None]:
    """Return the parties, method, schedule and trust assumption with which a baseline runs.

    For the baseline "none", parties, method and schedule are unchanged. The trust assumption is a
    text; None means that of `privacy.aggregation`.
    """
    if baseline == "none":
        return parties, method, schedule, None
    if baseline == "central":
        return (
            {POOLED_PARTY: pooled(parties)},
            method,
            schedule,
            TRUST["central"] if private else None,
        )
    return parties, *committee(baseline, method, len(parties)), None


def committee(
    baseline: Baseline, method: LocalMethod | None, parties: int
) -> tuple[LocalMethod, Schedule]:
    """Return the method and schedule of a committee.

    Each party computes a posterior alone in one round, and the posteriors are combined.
    """
    method = method or DPSGD()
    if not isinstance(method, DPSGD):
        raise ConfigError(
            f"baseline = {baseline!r} needs method.kind = 'dp-sgd', not {method.kind!r}; set "
            "method.kind = 'dp-sgd', or leave the method out"
        )
    share = 1.0 / parties if baseline == "committee-split-prior" else 1.0
    meeting = Synchronous(rounds=1, damping=1.0)
    return replace(method, _prior_share=share, average_last=0.0), meeting
