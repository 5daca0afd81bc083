"""Cautions: reasons why the numbers of a fit may be unreliable, and the Python warnings that state
them.

Results show the cautions of a fit wherever its numbers appear. `tacit.results.diagnostics` collects
them.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tacit.methods.natural.precision import CAUTIONED_SD_ERROR as MOST_SD_DRAWN
from tacit.methods.natural.precision import MOST_MEAN_ERROR as MOST_MEAN_DRAWN
from tacit.methods.natural.precision import Precision
from tacit.methods.natural.weights import BELIEVED_SHARE

if TYPE_CHECKING:
    from tacit.methods import Clipped
    from tacit.results.verdict import Verdict

LEARNED_LITTLE = 0.05
"""Little was learned about a coordinate if 1 − posterior variance / prior variance is below this.
The posterior interval is then less than 2.6 % shorter than the prior interval.
"""
UNRESOLVED = 0.2
"""Relative residual of the linear-response equations above which standard deviations are too small
by an unknown amount.
"""
MOSTLY_CLIPPED = 0.5
"""A caution is issued if the share of clipped units is larger than this. The norm of the median
contribution is then larger than the clip.
"""
OFTEN_OUTSIDE = 0.01
"""A caution is issued if the share of a column's values outside the bounds is larger than this."""


class NotConvergedWarning(UserWarning):
    """A fit has not converged, so its posterior is not that of the model given the records."""


class LittleLearnedWarning(UserWarning):
    """The posterior of a fit is almost the prior."""


class ClippingWarning(UserWarning):
    """Many contributions were clipped, which biases the posterior."""


class OnePartyWarning(UserWarning):
    """The posterior would be very different without one of the parties."""


class TooNarrowWarning(UserWarning):
    """Intervals of a fit are too narrow, because of the method or the posterior family."""


class MisfitWarning(UserWarning):
    """The records do not look as if they came from the model."""


class NotCheckedWarning(UserWarning):
    """Intervals assume a variance that is not compared with the records."""


class WideIntervalsWarning(UserWarning):
    """Privacy makes intervals far wider than they would be without it."""


class ImpreciseWarning(UserWarning):
    """Means or standard deviations of a fit have a large Monte-Carlo error."""


class MissingIndicatorWarning(UserWarning):
    """Missing values were replaced by a constant and an indicator."""


class Caution(NamedTuple):
    """One reason why the numbers of a fit may be unreliable."""

    kind: str
    text: str


CATEGORIES: dict[str, type[UserWarning]] = {
    "not-converged": NotConvergedWarning,
    "may-not-converge": NotConvergedWarning,
    "little-learned": LittleLearnedWarning,
    "one-value": LittleLearnedWarning,
    "clipping": ClippingWarning,
    "misfit": MisfitWarning,
    "dispersion-not-checked": NotCheckedWarning,
    "missing-indicator": MissingIndicatorWarning,
    "imprecise": ImpreciseWarning,
    "one-party": OnePartyWarning,
    "too-narrow": TooNarrowWarning,
    "wide": WideIntervalsWarning,
}


def convergence_caution(verdict: Verdict) -> list[Caution]:
    """Return a caution unless the fit converged."""
    if verdict.converged:
        return []
    return [Caution("not-converged", f"This fit did not converge: {verdict.why}.")]


def narrow_caution(share: float | None) -> list[Caution]:
    """Return a caution if a mean-field q is far from the exact posterior."""
    if share is None or share >= BELIEVED_SHARE:
        return []
    return [
        Caution(
            "too-narrow",
            "Intervals are too narrow: the mean-field posterior leaves out correlations, and only "
            f"{share:.0%} of its draws are effective (importance weights relative to the exact "
            'posterior); use posterior="full".',
        )
    ]


def independence_caution(advice: str) -> Caution:
    """Return the caution for a mean-field q that is not compared with the exact posterior."""
    return Caution(
        "mean-field",
        "Intervals are too narrow where parameters are correlated: the mean-field posterior leaves "
        f"out correlations; {advice}.",
    )


def precision_caution(precision: Precision, *, sampled: bool = False) -> list[Caution]:
    """Return a caution if a mean or a standard deviation has a large Monte-Carlo error.

    `sampled` is true if the posterior was sampled by Markov chains.
    """
    if precision.mean_error <= MOST_MEAN_DRAWN and precision.sd_error <= MOST_SD_DRAWN:
        return []
    advice = "" if sampled else "method.sampling = true, "
    return [
        Caution(
            "imprecise",
            f"Means have a Monte-Carlo standard error of up to {precision.mean_error:.2g} "
            f"posterior sd, and standard deviations of up to {precision.sd_error:.0%} (at most "
            f"{MOST_MEAN_DRAWN:g} and {MOST_SD_DRAWN:.0%} expected): the posterior has long tails, "
            f"of which the draws contain few; use {advice}informative priors for scales, or "
            "another parametrisation.",
        )
    ]


def unresolved_caution(residual: float) -> list[Caution]:
    """Return a caution if linear response did not determine the standard deviations of many
    parameters.
    """
    if residual <= UNRESOLVED:
        return []
    return [
        Caution(
            "too-narrow",
            "Intervals are too narrow: standard deviations account for correlations by solving "
            f"linear systems, and these were not solved (residual {residual:.2g}, "
            f"at most {UNRESOLVED:g}); use narrower priors, or leave out columns that are nearly "
            "multiples of others.",
        )
    ]


def misfit_caution(verdict: Verdict) -> list[Caution]:
    """Return a caution if the records show that the model does not fit."""
    if verdict.misfit is None:
        return []
    return [
        Caution(
            "misfit",
            f"The model does not fit the records: {verdict.misfit}; coefficients and intervals "
            "assume that it does.",
        )
    ]


def learning_caution(
    learned: np.ndarray | None, names: Sequence[str] = (), *, private: bool = True
) -> list[Caution]:
    """Return a caution about coordinates that are almost as uncertain as under the prior."""
    if learned is None or not np.size(learned):
        return []
    if np.max(learned) >= LEARNED_LITTLE:
        return _unlearned(learned, names)
    return [
        Caution(
            "little-learned",
            "Little was learned: the variance of even the best-known coefficient is "
            f"{1.0 - float(np.max(learned)):.1%} of its prior variance, so this is almost the "
            f"prior; use {'a larger epsilon, ' if private else ''}more records or fewer columns.",
        )
    ]


def clipping_caution(clipped: Clipped | None) -> list[Caution]:
    """Return a caution if more than half of the contributions are known to be clipped."""
    if clipped is None or not clipped.biases or clipped.share <= MOSTLY_CLIPPED:
        return []
    return [
        Caution(
            "clipping",
            f"The clip shortened the contributions of {clipped.share:.0%} of the units. This "
            "biases the posterior by an amount that no interval includes; raise "
            f"{clipped.setting} until fewer than half are shortened, and compare the posteriors "
            "of two clips.",
        )
    ]


def unknown_clipping_caution(clip: float) -> list[Caution]:
    """Return a caution for a run with secret noise, where the share of clipped contributions is
    unknown.
    """
    return [
        Caution(
            "clipping",
            f"Contributions were clipped to a norm of {clip:g}, the default, whatever the scale "
            "of this model's gradients: the bias is unknown and no interval includes it; choose "
            "method.clip on synthetic records, with privacy.insecure_noise_seed set, so that "
            "the share of shortened contributions is shown.",
        )
    ]


def _unlearned(learned: np.ndarray, names: Sequence[str]) -> list[Caution]:
    """Return a caution that names coordinates about which little was learned."""
    few = [name for name, share in zip(names, learned, strict=False) if share < LEARNED_LITTLE]
    if not few:
        return []
    named = ", ".join(few[:5]) + (f" and {len(few) - 5} more" if len(few) > 5 else "")
    text = f"Little was learned about {named}: intervals are almost as wide as under the prior."
    return [Caution("little-learned-coefficients", text)]


def missing_caution(columns: Sequence[str]) -> list[Caution]:
    """Return a caution if missing values were replaced by a constant and an indicator
    (`missing = "indicator"`).

    The constant biases the coefficients even if values are missing at random given the other
    columns. More records do not reduce this bias.
    """
    if not columns:
        return []
    named = ", ".join(columns[:5]) + (f" and {len(columns) - 5} more" if len(columns) > 5 else "")
    return [
        Caution(
            "missing-indicator",
            f"Missing values of {named} were replaced by a constant and an indicator: coefficients "
            "and intervals are biased even if values are missing at random; use missing = "
            '"drop", or impute before the fit.',
        )
    ]


def outside_cautions(
    known: Mapping[str, tuple[float, tuple[float | None, float | None]]],
) -> list[Caution]:
    """Return a caution for each column of which many values were clipped to the bounds.

    The shares are exact. `OutsideBoundsWarning`, which is issued when records are read, has the
    numbers too.

    Parameters
    ----------
    known
        Share of the values outside the bounds, and the bounds, by column.
    """
    return [
        Caution(
            "outside-bounds",
            f"{share:.0%} of the values of {name} are outside the declared bounds [{low:g}, "
            f"{high:g}] and were replaced by the nearest bound, which biases coefficients by an "
            "amount that no interval includes; correct the values, or widen the bounds.",
        )
        for name, (share, (low, high)) in known.items()
        if share > OFTEN_OUTSIDE
    ]


def warn(cautions: Sequence[Caution], stacklevel: int = 3) -> None:
    """Issue the cautions as Python warnings."""
    for one in cautions:
        if one.kind not in CATEGORIES:  # only shown with the result
            continue
        warnings.warn(one.text, CATEGORIES[one.kind], stacklevel=stacklevel)
