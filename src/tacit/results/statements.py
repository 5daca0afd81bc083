"""Statements of a result about its privacy and intervals."""

from __future__ import annotations

import msgspec

from tacit.methods import Clipped, PrivateMethod, PrivateScoring
from tacit.plan.plan import Plan

NOT_PRIVATE = (
    "Not private: parties send exact updates without differential privacy. Records stay at the "
    "parties, but updates and posterior may reveal them."
)


TOO_NARROW = (
    "Intervals are too narrow: they do not include the privacy noise or the effect of clipping."
)


WIDE_ENOUGH = "Intervals include the privacy noise, but not the effect of clipping."


NOT_BIASED = "Intervals include the privacy noise; clipping does not bias them."


NOT_DECLARED = (
    "Records were given as plain arrays without declared bounds: the guarantee holds for "
    "these arrays and does not cover scaling, encoding or selection based on the data."
)


LEARNT_SCALE = (
    " The prior's scale was estimated from the same releases and is treated as known: where the "
    "signal is weak, intervals are far too narrow."
)


def statement(plan: Plan) -> str:
    """Privacy statement of a plan."""
    guarantee = plan.guarantee
    if guarantee is None:
        return NOT_PRIVATE
    assert isinstance(plan.method, PrivateMethod)
    intervals = _about_intervals(plan, plan.method)
    if _learns_scale(plan):
        intervals += LEARNT_SCALE
    if guarantee.caveat is not None:
        plain = msgspec.structs.replace(guarantee, caveat=None)
        return f"{guarantee.caveat}. With secret noise it would be {plain}. {intervals}"
    return f"Differential privacy: {guarantee}. {intervals}"


def _about_intervals(plan: Plan, method: PrivateMethod) -> str:
    if not method.knows_noise(plan.family):
        return TOO_NARROW
    stages = {method.stage_at(visit).name for visit in range(plan.schedule.rounds)}
    biased = any(method.clipping_biases(plan.model, stage) for stage in stages)
    return WIDE_ENOUGH if biased else NOT_BIASED


def _learns_scale(plan: Plan) -> bool:
    return isinstance(plan.method, PrivateScoring) and bool(plan.method.empirical_bayes)


def clipping_statement(clipped: Clipped) -> str:
    """Statement about clipping in a simulation."""
    effect = "" if clipped.biases else ", which loses information but does not bias this method"
    return (
        f"{clipped.setting} clipped the contributions of {clipped.share:.1%} of the units"
        f"{effect} (shown "
        "because this is a simulation; with secret noise it would be a further release)."
    )


def interval_note(plan: Plan) -> str | None:
    """Reason why the intervals of a run are too narrow, or None."""
    if plan.guarantee is None:
        return None
    assert isinstance(plan.method, PrivateMethod)
    if not plan.method.knows_noise(plan.family):
        return TOO_NARROW
    return LEARNT_SCALE.strip() if _learns_scale(plan) else None
