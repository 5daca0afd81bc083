"""Audit with canaries: change some records of one run, and guess from its posterior which ones."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.data.records import len_records
from tacit.engines.execute import carry_out
from tacit.models import Records
from tacit.plan.plan import Plan
from tacit.privacy.audit.one_run import CONFIDENCE, canaries_epsilon

if TYPE_CHECKING:
    from tacit.auditing.audit import Finding

MOST_CANARIES = 512


def canaries_in_one_run(plan: Plan, party: str, seed: int) -> Finding:
    """Run the plan once with the labels of half of the canaries flipped, then guess which half.

    The canaries are records of the party (all records of a person if the unit is a person). Their
    scores are the log-likelihood ratios of the two labels under the posterior mean.
    """
    from tacit.auditing.audit import Finding

    assert plan.privacy is not None
    settled = plan.settled[party]
    terms: dict[str, Any] = {
        "kind": "canaries",
        "what": "posterior of one run",
        "claim": settled.guarantee.epsilon,
        "confidence": CONFIDENCE,
    }
    records = plan.parties[party]
    other = exchanged(records)
    if plan.privacy.unit == "party" or plan.privacy.adjacency != "replace-one" or other is None:
        why = "need a label, replace-one adjacency, and a record or person as unit"
        return Finding(**terms, bound=None, note=f"canaries {why}")
    codes = np.arange(len_records(records))
    if plan.privacy.unit == "person":
        codes = np.unique(np.asarray(records["person"]), return_inverse=True)[1]
    rng = np.random.default_rng([seed, 5])
    count = min(MOST_CANARIES, int(codes.max()) + 1)
    coins = np.zeros(int(codes.max()) + 1, bool)
    coins[:count] = rng.random(count) < 0.5
    changed = coins[codes]
    mixed = {
        name: np.where(changed.reshape(-1, *[1] * (np.ndim(value) - 1)), other[name], value)
        for name, value in records.items()
    }
    parties = {**plan.parties, party: mixed}
    outcome = carry_out(replace(plan, parties=parties, report_steps=False))
    theta = np.asarray(outcome.posterior.mean)
    ratio = _log_likelihood(plan, theta, other) - _log_likelihood(plan, theta, records)
    scores = np.bincount(codes, ratio, minlength=len(coins))[:count]
    gaussian = all(event.sampling is None for event in settled.all_events)
    delta = settled.guarantee.delta
    bound = canaries_epsilon(scores, coins[:count], delta, gaussian=gaussian)
    return Finding(**terms, bound=bound, note=f"{count} canaries, confidence {CONFIDENCE:.0%}")


def exchanged(records: Records) -> Records | None:
    """Replace each label y by max(y) + min(y) − y, which swaps the labels 0 and 1.

    Returns the changed records, or None if the records have no labels.
    """
    if "y" not in records:
        return None
    y = np.asarray(records["y"])
    return {**records, "y": y.max() + y.min() - y}


def _log_likelihood(plan: Plan, theta: np.ndarray, records: Records) -> np.ndarray:
    plain = {name: value for name, value in records.items() if name != "person"}
    return np.asarray(plan.model.log_likelihood(theta, plain))
