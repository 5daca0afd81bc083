"""Comparison of counts with the variance that a Poisson model implies."""

from __future__ import annotations

import math
from typing import ClassVar

from tacit.arrays import Array, namespace
from tacit.models.capabilities import DispersionSums

CHECKED = 'method = "natural" with all parties in every round, which compares them,'


class PoissonVariance:
    """Mixin for models of Poisson counts, with the messages about observed and implied variance."""

    unchecked_kind: ClassVar[str] = "dispersion-not-checked"

    def dispersion_words(self, ratio: float) -> str:
        if ratio > 1:
            return (
                f"counts vary {ratio:.3g} times as much as Poisson counts with these rates "
                f"(overdispersion), so that intervals are about {math.sqrt(ratio):.2g} times too "
                "narrow: use a NumPyro model with NegativeBinomial2, or add columns that explain "
                "the differences"
            )
        return (
            f"counts vary {ratio:.2g} times as much as Poisson counts with these rates, so that "
            "intervals are too wide: use a model of counts with a limit (a NumPyro model with "
            "Binomial)"
        )

    def unchecked_dispersion(self, *, private: bool) -> str:
        return (
            "It is not checked whether counts vary more than Poisson counts do (overdispersion): "
            "if they do, intervals are too narrow by an unknown amount; use "
            + ('method = "dp-scores", whose histogram shows it,' if private else CHECKED)
            + " or a NumPyro model with NegativeBinomial2."
        )


def poisson_sums(rate: Array, y: Array, weights: Array) -> DispersionSums:
    """Return the sums of k = (y − μ)² − y over records, for counts y with Poisson rates μ = `rate`.

    k is the score of the dispersion of a negative binomial at dispersion 0 (Dean 1992). Under the
    Poisson model E[k] = 0, E[k²] = 2μ² and E[k³] = 8μ³ + 4μ², and k is uncorrelated with the score
    of log μ.
    """
    xp = namespace(rate, y, weights)
    square = weights * rate * rate
    return DispersionSums(
        xp.sum(weights * ((y - rate) ** 2 - y)),
        2.0 * xp.sum(square),
        xp.sum((8.0 * rate + 4.0) * square),
        xp.sum(weights * rate),
    )
