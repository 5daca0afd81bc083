"""A prior outside the posterior family, approximated by an extra factor.

In partitioned variational inference (PVI), the prior p(θ) and all factors tₘ belong to one family.
If p does not belong to it (a half-Cauchy scale, a hierarchy), the server uses a factor t₀ in the
family instead. It refines t₀ like the factor of a party, with log p(θ) as the "likelihood". After
convergence t₀ approximates the exact prior around q, and q is the same as in variational inference
with that prior and pooled data. No record is involved, so this costs no privacy budget.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from tacit.arrays import Array
from tacit.expfam import Family, Natural
from tacit.models.base import Model, Records

PRIOR_PARTY = "(prior)"


class PriorAsLikelihood(Model):
    """A model for the pseudo-party that represents a prior outside the family. The pseudo-party has
    one record, whose log-likelihood is log p(θ), the log-prior of `model`.
    """

    kind: ClassVar[str] = "prior"
    is_prior: ClassVar[bool] = True
    output = "other"

    def __init__(self, model: Model) -> None:
        self.model, self.names = model, model.names

    def log_likelihood(self, theta: Array, records: Records) -> Array:
        return self.model.log_prior(theta)[None]

    def response(self, theta: Array, records: Records) -> Array:
        raise NotImplementedError(
            "the pseudo-party of a prior has no outcome; predict with the model itself"
        )

    def prior(self, family: Family) -> Natural:
        return family.zero()

    def start(self, family: Family) -> Natural | None:
        return self.model.start(family)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PriorAsLikelihood) and other.model is self.model

    def __hash__(self) -> int:
        return hash((PriorAsLikelihood, id(self.model)))


def prior_records() -> Records:
    """Return the only record of the pseudo-party that represents the prior."""
    return {"prior": np.ones(1)}
