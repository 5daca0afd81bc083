"""Conjugate-exponential models whose expected statistics are released in stages.

If log p(record, latent | θ) = ⟨T(record, latent), T(θ)⟩ + const, inference needs only the sum Σ
E[T(record, latent)] over a party's records, where the expectation is over the latent variables
given q. A model that needs one kind of sum implements `Model.statistics` (topics, belief networks,
Pólya–Gamma regression). A model that first has to learn scales or a starting point from the same
records implements `ConjugateExponential`: a fixed list of stages and the server's half. Each stage
sums statistics of the records, which depend on public arrays. The server's half converts a sum to
the next public arrays and finally to q.

`tacit.methods.conjugate` runs the two halves: exactly (no clip, no noise), or privately, where in
every stage contributions are clipped to norm 1, noise on the lattice is added, and the release is
charged. A model declares

* `norms`: the norm of a record's statistics over everything that is summed;
* `acute`: True if no two possible contributions of the stage have a negative inner product. Then
  ‖T − T'‖² ≤ ‖T‖² + ‖T'‖² ≤ 2, and replacing a record moves the sum by √2 instead of 2.

Values of a record must not depend on other records, to the last bit: models compute them with
elementwise NumPy operations, whose results do not depend on the length of an array.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from tacit.arrays import Array, Arrays
from tacit.expfam import Natural
from tacit.models.base import Model, Records
from tacit.models.statistics import Statistics


class StatisticsStage(NamedTuple):
    """One released sum of statistics.

    Parameters
    ----------
    name
        Name of the stage in messages.
    share
        Share of the stage in the budget Σ (sensitivity/noise)².
    acute
        True if no two contributions have a negative inner product.
    """

    name: str
    share: float
    acute: bool = False


class StageSum(NamedTuple):
    """The sum of one round, an input of the server's half.

    Parameters
    ----------
    stage, following
        Names of this stage and of the next one; None if there is none.
    total
        The sum over all records, in units of the largest contribution.
    noise_sd
        Standard deviation of the noise in each number of `total`; 0 without privacy.
    number
        Number of the visit to this stage: 0 for the first.
    """

    stage: str
    following: str | None
    total: np.ndarray
    noise_sd: float
    number: int


@dataclass(frozen=True, kw_only=True, eq=False)
class RowStatistics(Statistics):
    """Statistics of some records; each is the outer product of two rows, left ⊗ right.

    `sizes` are the norms of left ⊗ right; the sum is leftᵀ diag(w) right, flattened.
    """

    left: np.ndarray
    right: np.ndarray
    sizes: np.ndarray

    def norms(self) -> np.ndarray:
        return self.sizes

    def total(self, weights: Array) -> np.ndarray:
        weights = np.asarray(weights, np.float64)
        kept = weights > 0
        left = np.where(kept[:, None], self.left, 0.0) * np.where(kept, weights, 0.0)[:, None]
        return (left.T @ np.where(kept[:, None], self.right, 0.0)).reshape(-1)


@dataclass(frozen=True, kw_only=True, eq=False)
class NoStatistics(Statistics):
    """Statistics that are all zero: the answer to a request whose numbers would overflow."""

    records: int
    size: int

    def norms(self) -> np.ndarray:
        return np.zeros(self.records)

    def total(self, weights: Array) -> np.ndarray:
        del weights
        return np.zeros(self.size)


class ConjugateExponential(Model):
    """A model whose expected statistics are released in stages.

    The last of `stages` is repeated for all further rounds if `repeats`.
    """

    traceable: ClassVar[bool] = False
    repeats: ClassVar[bool] = True
    """True if the last stage is visited in all further rounds."""
    private_rounds: ClassVar[int]
    """Number of rounds of a private run, if none is given."""
    exact_rounds: ClassVar[int] = 200
    """Largest number of rounds without privacy, if none is given."""

    def weight_of(self, natural: Natural) -> float:
        """Return the number of records that q has learned from, if the last stage is repeated."""
        del natural
        return 1.0

    @property
    @abc.abstractmethod
    def stages(self) -> tuple[StatisticsStage, ...]:
        """Return all stages in order; their shares add up to 1. A name may occur several times."""

    @abc.abstractmethod
    def stage_size(self, stage: str) -> int:
        """Return the number of values in a reply to this stage."""

    @abc.abstractmethod
    def public_shapes(self, stage: str) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of the public arrays in a request of this stage."""

    @abc.abstractmethod
    def first_public(self) -> Arrays:
        """Return the public arrays of the first request, from public facts alone."""

    @abc.abstractmethod
    def stage_statistics(self, stage: str, public: Arrays, records: Records) -> Statistics:
        """Return the records' statistics for this stage, in NumPy, scaled so that a typical norm is
        ≤ 1.
        """

    @abc.abstractmethod
    def advance(self, known: Arrays, answer: StageSum) -> tuple[Arrays, Natural | None]:
        """Return the server's arrays after a round, and q if the round changes it.

        `known` contains everything that was published or kept. The returned arrays must include the
        `public_shapes` of the following stage; the others are kept.
        """
