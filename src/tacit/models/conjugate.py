"""Conjugate-exponential models whose expected statistics are released in stages.

If log p(record, latent | θ) = ⟨T(record, latent), T(θ)⟩ + const, inference needs only the sum Σ
E[T(record, latent)] over a party's records, where the expectation is over the latent variables
given q. A model that needs one kind of sum implements `Model.statistics` (topics, belief networks,
Pólya–Gamma regression).

A model that first has to learn scales or a starting point from the same records implements
`ConjugateExponential`, which has a fixed list of stages. In each stage, the parties compute sums of
statistics that depend on public arrays of the request. The server then calls the method `advance`,
which computes the public arrays of the next stage, and in the end q.

`tacit.methods.conjugate` runs the stages. Without privacy the sums are exact. With privacy, each
record's statistics are clipped to norm 1, noise on the lattice is added to the sum, and the release
is charged. A model declares

* `norms`: the norm of all statistics of a record together;
* `acute`: True if no two possible contributions T and T' have a negative inner product. Then
  ‖T − T'‖² ≤ ‖T‖² + ‖T'‖² ≤ 2, and replacing a record moves the sum by at most √2 instead of 2.

The statistics of a record must not depend on other records, not even by rounding. Models therefore
compute them with elementwise NumPy operations, whose results do not depend on the length of an
array.
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
    """One stage of a run: a sum of statistics that every party releases.

    Parameters
    ----------
    name
        Name of the stage in messages.
    share
        Share of the privacy cost of the run that this stage spends. The cost of a stage is
        (sensitivity/noise)², and the costs of all stages add up.
    acute
        True if the inner product of any two records' statistics is at least 0.
    """

    name: str
    share: float
    acute: bool = False


class StageSum(NamedTuple):
    """The sum over all parties after one round, from which `ConjugateExponential.advance` computes
    the next request.

    Parameters
    ----------
    stage, following
        Names of this stage and of the next one. `following` is None after the last stage.
    total
        Sum of `ConjugateExponential.stage_statistics` over all records, with noise in a private
        run.
    noise_sd
        Standard deviation of the noise in each number of `total`; 0 without privacy.
    number
        Number of earlier rounds of the same stage.
    """

    stage: str
    following: str | None
    total: np.ndarray
    noise_sd: float
    number: int


@dataclass(frozen=True, kw_only=True, eq=False)
class RowStatistics(Statistics):
    """Statistics of record i: the outer product of row i of `left` and row i of `right`.

    `sizes` are the norms of these products. Their weighted sum is leftᵀ diag(weights) right,
    flattened.
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
    """Statistics that are all 0. A party returns them if the numbers in a request are so large that
    the computation would overflow.
    """

    records: int
    size: int

    def norms(self) -> np.ndarray:
        return np.zeros(self.records)

    def total(self, weights: Array) -> np.ndarray:
        del weights
        return np.zeros(self.size)


class ConjugateExponential(Model):
    """A model whose expected statistics are released in `stages`, one stage per round. If `repeats`
    is True, all rounds after the last stage repeat it.
    """

    traceable: ClassVar[bool] = False
    repeats: ClassVar[bool] = True
    """True if the last stage is visited in all further rounds."""
    private_rounds: ClassVar[int]
    """Number of rounds of a private run, if none is given."""
    exact_rounds: ClassVar[int] = 200
    """Largest number of rounds without privacy, if none is given."""

    def weight_of(self, natural: Natural) -> float:
        """Return the number of records on which q is based. Needed only if `repeats` is True."""
        del natural
        return 1.0

    @property
    @abc.abstractmethod
    def stages(self) -> tuple[StatisticsStage, ...]:
        """The stages in the order of rounds. Their `share` values add up to 1. Several stages may
        have the same name.
        """

    @abc.abstractmethod
    def stage_size(self, stage: str) -> int:
        """Return the number of values that a party releases in this stage."""

    @abc.abstractmethod
    def public_shapes(self, stage: str) -> dict[str, tuple[int, ...]]:
        """Return the name and shape of each public array in a request of this stage."""

    @abc.abstractmethod
    def first_public(self) -> Arrays:
        """Return the public arrays of the first request. They depend only on public settings."""

    @abc.abstractmethod
    def stage_statistics(self, stage: str, public: Arrays, records: Records) -> Statistics:
        """Return the statistics of the records for this stage, in NumPy. They are scaled such that
        the norm of a record's statistics is typically at most 1.
        """

    @abc.abstractmethod
    def advance(self, known: Arrays, answer: StageSum) -> tuple[Arrays, Natural | None]:
        """Return the server's arrays after a round, and the new q. The second value is None if q
        does not change.

        `known` are the arrays that the previous call returned; in the first call, those of
        `first_public`. `answer` is the sum of the round. The returned arrays must include all
        `public_shapes` of the next stage, because these are sent to the parties. Any other returned
        arrays are stored at the server for the next call.
        """
