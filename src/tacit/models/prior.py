"""A prior outside the family, kept as a first factor.

PVI wants q ∝ p(θ) ∏ tₘ in one family. When p is not in it (a half-Cauchy scale, a hierarchy), the
server keeps one more factor t₀ in its place and refines it as it would a party's, with log p(θ)
as the "likelihood": at a fixed point t₀ is the best the family can say about the exact prior from
where q is, and q is a stationary point of VI with that prior, as if all data had been in one
place. No record is involved, so nothing private happens here.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from tacit.arrays import Array
from tacit.expfam import Family, Natural
from tacit.models.base import Model, Records

PRIOR_PARTY = "(prior)"


class PriorAsLikelihood(Model):
    """log p(θ) of another model in the place of a likelihood, with one pretended record."""

    kind: ClassVar[str] = "prior"
    is_prior: ClassVar[bool] = True
    output = "other"

    def __init__(self, model: Model) -> None:
        self.model, self.names = model, model.names

    def log_likelihood(self, theta: Array, records: Records) -> Array:
        return self.model.log_prior(theta)[None]

    def response(self, theta: Array, records: Records) -> Array:
        raise NotImplementedError("a prior predicts no record")

    def prior(self, family: Family) -> Natural:
        return family.zero()

    def start(self, family: Family) -> Natural | None:
        return self.model.start(family)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PriorAsLikelihood) and other.model is self.model

    def __hash__(self) -> int:
        return hash((PriorAsLikelihood, id(self.model)))


def prior_records() -> Records:
    """The one pretended record."""
    return {"prior": np.ones(1)}
