"""Statements of a result about its privacy and intervals."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from tacit.methods import Clipped, PrivateMethod, PrivateScoring
from tacit.plan.plan import Plan
from tacit.privacy.guarantee import Guarantee
from tacit.support.type_info import prepare

NOT_PRIVATE = (
    "Not private: parties send exact updates without differential privacy. Records stay at the "
    "parties, but updates and posterior may reveal them."
)


TOO_NARROW = (
    "Intervals are too narrow: they do not include the privacy noise or the effect of clipping."
)


WIDE_ENOUGH = "Intervals include the privacy noise, but not the effect of clipping."


NOT_DECLARED = (
    "Records were given as plain arrays without declared bounds: the guarantee holds for "
    "these arrays and does not cover scaling, encoding or selection based on the data."
)


LEARNT_SCALE = (
    " The prior's scale was estimated from the same releases and is treated as known: where the "
    "signal is weak, intervals are far too narrow."
)


class FitPrivacy(msgspec.Struct, frozen=True, kw_only=True):
    """Privacy guarantee of a fit, as text by `str()`; `guarantee` is None without privacy."""

    guarantee: Guarantee | None
    statement: str
    private: bool
    """True if differential privacy holds; False in a simulation with a known noise seed."""

    def __str__(self) -> str:
        return self.statement

    @property
    def epsilon(self) -> float:
        """ε of this fit alone; infinite without differential privacy."""
        return math.inf if self.guarantee is None else self.guarantee.epsilon

    @classmethod
    def from_block(cls, block: dict[str, Any]) -> FitPrivacy:
        """Make it from the "privacy" block of a result."""
        found = block.get("guarantee")
        guarantee = None if found is None else msgspec.convert(found, prepare(Guarantee))
        return cls(guarantee=guarantee, statement=block["statement"], private=block["private"])


def statement(plan: Plan) -> str:
    """Privacy statement of a plan."""
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
    """Statement about clipping in a simulation."""
    effect = "" if clipped.biases else ", which loses information but does not bias this method"
    return (
        f"{clipped.setting} clipped the contributions of {clipped.share:.1%} of the units"
        f"{effect} (shown "
        "because this is a simulation; with secret noise it would be a further release)."
    )


def clipped_block(clipped: Clipped) -> dict[str, Any]:
    """Block of result.json about clipping in a simulation."""
    return {**clipped._asdict(), "statement": clipping_statement(clipped)}


def interval_note(plan: Plan) -> str | None:
    """Reason why the intervals of a run are too narrow, or None."""
    if plan.guarantee is None:
        return None
    assert isinstance(plan.method, PrivateMethod)
    if not plan.method.knows_noise(plan.family):
        return TOO_NARROW
    return LEARNT_SCALE.strip() if _learns_scale(plan) else None


def intervals_block(plan: Plan) -> dict[str, Any]:
    """Block of result.json about intervals: their level and a warning."""
    return {"level": 0.95, "warning": interval_note(plan)}
