"""Statements of a result about its privacy and intervals."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from tacit.methods import Clipped, PrivateMethod
from tacit.methods.natural.wide import WideSolver
from tacit.methods.statistics.method import ExpectedStatistics, PrivateStatistics
from tacit.models.capabilities import LearnsScale
from tacit.plan.plan import Plan

NOT_PRIVATE = (
    "Not private: parties send exact updates without differential privacy. Records stay at the "
    "parties, but updates and posterior may reveal them."
)


TOO_NARROW = (
    "Intervals are too narrow: they do not include the privacy noise or the effect of clipping."
)


WIDE_ENOUGH = "Intervals include the privacy noise, but not the effect of clipping."


NOT_BIASED = (
    "Intervals include the privacy noise; clipping does not bias them if the model is right."
)


def not_declared(columns: Sequence[str], *, user_program: bool) -> str:
    """Return a statement about columns without declared bounds: what the guarantee does not cover,
    and how to declare the columns.
    """
    named = ", ".join(columns[:5]) + (f" and {len(columns) - 5} more" if len(columns) > 5 else "")
    advice = "fit a formula with schema=tacit.Schema(bounds={…}, levels={…})"
    if user_program:
        facts = f"{{{columns[0]!r}: (low, high), …}}"
        advice = f"tacit.from_numpyro(function, example, columns={facts})"
    return (
        f"Records were given as plain arrays without declared bounds ({named}): the guarantee "
        "holds for these arrays and does not cover scaling, encoding or selection based on the "
        f"data. If these steps used public facts only, or none, declare the columns: {advice}."
    )


EARLIER_RECORDS = (
    "This guarantee covers the records of this run; the records of the earlier run are covered by "
    "the guarantee of that run."
)


def statement(plan: Plan) -> str:
    """Return the privacy statement of a plan."""
    guarantee = plan.guarantee
    if guarantee is None:
        return NOT_PRIVATE
    assert isinstance(plan.method, PrivateMethod)
    intervals = _about_intervals(plan, plan.method)
    if plan.earlier is not None:
        intervals = f"{intervals} {EARLIER_RECORDS}"
    if guarantee.caveat is not None:
        plain = msgspec.structs.replace(guarantee, caveat=None)
        return f"{guarantee.caveat}. With secret noise the guarantee would be {plain}. {intervals}"
    return f"Differential privacy: {guarantee}. {intervals}"


def _about_intervals(plan: Plan, method: PrivateMethod) -> str:
    if not method.knows_noise(plan.family):
        return TOO_NARROW
    stages = {method.stage_at(visit).name for visit in range(plan.schedule.rounds)}
    biased = any(method.clipping_biases(plan.model, stage) for stage in stages)
    return WIDE_ENOUGH if biased else NOT_BIASED


def prior_statement(plan: Plan) -> str | None:
    """Describe the prior of a regression; return None for other models."""
    model, method = plan.model, plan.method
    if plan.earlier is not None:
        return "the posterior of an earlier run on other records"
    if not isinstance(model, LearnsScale):
        return None
    further = len(model.prior_mean) % len(model.layout)  # the noise of a linear regression
    width = len(model.prior_mean) - further
    noise = "; the noise sd has a wide prior around half the outcome's scale" if further else ""
    if method.learns_scale(model):
        source = "records" if plan.privacy is None else "releases"
        unit = 1.0 if model.scale_unit is None else model.scale_unit
        kept = (
            ""
            if model.scale_unit is not None
            else " (empirical_bayes: only ratios of prior_sd are used)"
        )
        return (
            f"scales learned from the {source}{kept}: coefficients, per sd of a number or per "
            "level of a category, have Student-t priors around their prior means with a common "
            f"scale; the scale has a half-normal({unit:g}) prior and is integrated out; declare "
            f"prior_sd for a fixed prior{noise}"
        )
    means, sds = np.unique(model.prior_mean[:width]), np.unique(model.prior_sd[:width])
    words = "normal with its own declared mean and sd"
    if len(sds) == 1:
        words = f"normal with sd {sds[0]:g} around its prior mean"
    if len(means) == len(sds) == 1:
        words = f"N({means[0]:g}, {sds[0]:g}²)"
    if model.predicts_in_outcome_unit:
        words += " (in units of the outcome's half-range or declared scale)"
    if model.scale_unit is None:
        return f"{words} for each coefficient, as declared{noise}"
    return (
        f"{words} for each coefficient: method {method.kind!r} does not learn its scale here; "
        f"declare prior_sd to choose it{noise}"
    )


def clipping_statement(clipped: Clipped) -> str:
    """Return a statement about the share of clipped contributions, from a simulation or a released
    count.
    """
    effect = "" if clipped.biases else ", which loses information but does not bias this method"
    if clipped.noise_sd is not None:
        return (
            f"{clipped.setting} clipped the contributions of {clipped.share:.1%} ± "
            f"{clipped.noise_sd:.1%} of the units in the last round{effect} (a noisy count, "
            "released and charged with every sum)."
        )
    return (
        f"{clipped.setting} clipped the contributions of {clipped.share:.1%} of the units"
        f"{effect} (shown "
        "because this is a simulation; with secret noise it would be a further release)."
    )


WITHOUT_CORRELATIONS = (
    "Parameters are independent in this posterior. Intervals of single parameters account for "
    "correlations; intervals of sums, differences and predictions do not."
)
FEW_RECORDS = (
    " With about ten records per parameter or fewer, means may be wrong by {much}, and sds by up "
    "to a third."
)


AUGMENTED = (
    "Intervals are too narrow: method {method!r} treats latent variables that make the model "
    "conjugate as independent of its parameters, which can halve standard deviations; use method "
    "= 'auto' for intervals."
)


def _without_correlations(solver: WideSolver) -> str:
    if not solver.rooted:
        return WITHOUT_CORRELATIONS + FEW_RECORDS.format(much="one sd or more")
    learnt = solver.scale_facts is not None
    return WITHOUT_CORRELATIONS + (FEW_RECORDS.format(much="part of an sd") if learnt else "")


def interval_note(plan: Plan) -> str | None:
    """Return a note on known errors of the intervals of a run; None if no errors are known."""
    own = plan.model.uncalibrated
    private = plan.guarantee is not None
    if plan.model.augmented and isinstance(plan.method, ExpectedStatistics | PrivateStatistics):
        own = AUGMENTED.format(method=plan.method.kind)
    if not private:
        solver = plan.rules.solver
        return _without_correlations(solver) if isinstance(solver, WideSolver) else own
    assert isinstance(plan.method, PrivateMethod)
    if plan.method.knows_noise(plan.family):
        return own if plan.model.augmented else None
    return TOO_NARROW if own is None else f"{own} {TOO_NARROW}"
