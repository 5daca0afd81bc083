"""What a result says of its privacy and of its intervals."""

from __future__ import annotations

import msgspec

from tacit.methods import Clipped, PrivateMethod, PrivateScoring
from tacit.plan.plan import Plan

NOT_PRIVATE = (
    "Not private: parties send exact updates. Records stay where they are, but the updates and the "
    "posterior may reveal them; no differential privacy is applied."
)


TOO_NARROW = (
    "Intervals do not contain the noise that was added for privacy, nor what clipping does: they "
    "are too narrow."
)


WIDE_ENOUGH = "Intervals contain the noise that was added for privacy, but not what clipping does."


NOT_DECLARED = (
    "Records were given as plain arrays without declared bounds: the guarantee holds for the "
    "arrays as they are, and covers no scaling, encoding or selection that looked at the data."
)


LEARNT_SCALE = (
    " The prior's scale was learnt from the same releases and is taken for known: where little was "
    "heard, intervals are far too narrow."
)


def statement(plan: Plan) -> str:
    """What a plan protects, in words."""
    guarantee = plan.guarantee
    if guarantee is None:
        return NOT_PRIVATE
    assert isinstance(plan.method, PrivateMethod)
    intervals = WIDE_ENOUGH if plan.method.knows_noise(plan.family) else TOO_NARROW
    if _learns_scale(plan):
        intervals += LEARNT_SCALE
    if guarantee.caveat is not None:
        plain = msgspec.structs.replace(guarantee, caveat=None)
        return f"{guarantee.caveat}. With secret noise it would be {plain}. {intervals}"
    return f"Differential privacy: {guarantee}. {intervals}"


def _learns_scale(plan: Plan) -> bool:
    return isinstance(plan.method, PrivateScoring) and bool(plan.method.empirical_bayes)


def clipping_statement(clipped: Clipped) -> str:
    """What a simulation says about its clip."""
    effect = "" if clipped.biases else ", which loses information but does not bias this method"
    return (
        f"{clipped.setting} shortened the contributions of {clipped.share:.1%} of the units"
        f"{effect} (shown "
        "because this is a simulation; with secret noise it would be a further release)."
    )


def interval_note(plan: Plan) -> str | None:
    """Why the intervals of a run are known to be too narrow; None: they are not known to be."""
    if plan.guarantee is None:
        return None
    assert isinstance(plan.method, PrivateMethod)
    if not plan.method.knows_noise(plan.family):
        return TOO_NARROW
    return LEARNT_SCALE.strip() if _learns_scale(plan) else None
