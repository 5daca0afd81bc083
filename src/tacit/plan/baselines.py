"""Baselines of TMLR §5, as plans.

A Bayesian committee machine is one synchronous round without damping: each party fits alone, and
the posteriors are multiplied. q = ∏ qₘ / p^(M−1) if each party used the whole prior, and q = ∏ qₘ
if each party used p^(1/M). Central DP-VI is a federation of one party that holds all the records.
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
    """Return the parties, method, schedule and trust text of a baseline; unchanged for "none"."""
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
    """Return the method and schedule of a committee machine of `parties` parties."""
    method = method or DPSGD()
    if not isinstance(method, DPSGD):
        raise ConfigError(
            f"baseline = {baseline!r} with method.kind = {method.kind!r}; a committee needs "
            "'dp-sgd': set it or leave the method out"
        )
    share = 1.0 / parties if baseline == "committee-split-prior" else 1.0
    meeting = Synchronous(rounds=1, damping=1.0)
    return replace(method, _prior_share=share, average_last=0.0), meeting
