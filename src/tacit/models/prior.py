"""A prior outside the posterior family, approximated by an extra factor.

PVI needs q ∝ p(θ) ∏ tₘ in one family. If p is not in it (a half-Cauchy scale, a hierarchy), the
server keeps a factor t₀ instead and refines it like a party's, with log p(θ) as the "likelihood".
At a fixed point t₀ approximates the exact prior around q, and q is a stationary point of VI with
that prior, as with pooled data. No record is involved, so this costs no privacy.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from tacit.arrays import Array
from tacit.expfam import Family, Natural
from tacit.models.base import Model, Records

PRIOR_PARTY = "(prior)"


class PriorAsLikelihood(Model):
    """A model whose log-likelihood of one artificial record is log p(θ) of another model."""

    kind: ClassVar[str] = "prior"
    is_prior: ClassVar[bool] = True
    output = "other"

    def __init__(self, model: Model) -> None:
        self.model, self.names = model, model.names

    def log_likelihood(self, theta: Array, records: Records) -> Array:
        return self.model.log_prior(theta)[None]

    def response(self, theta: Array, records: Records) -> Array:
        raise NotImplementedError("a prior has no records to predict")

    def prior(self, family: Family) -> Natural:
        return family.zero()

    def start(self, family: Family) -> Natural | None:
        return self.model.start(family)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PriorAsLikelihood) and other.model is self.model

    def __hash__(self) -> int:
        return hash((PriorAsLikelihood, id(self.model)))


def prior_records() -> Records:
    """Return the artificial record of the prior pseudo-party."""
    return {"prior": np.ones(1)}
