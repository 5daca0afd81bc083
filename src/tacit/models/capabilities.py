"""Optional abilities of a model, each a protocol: a method asks for the ability, not for a class.

A model has an ability if it has its methods; nothing is declared. A new likelihood is one file that
implements those it can. `tacit.testing.check_model` holds every one that it finds against the
log-likelihood.

| ability | what uses it |
| --- | --- |
| `ConjugateGaussian` | the exact update, reference posteriors |
| `GaussianExpectations` | gradient-vi, DP-SGD: no Monte Carlo noise |
| `GaussianSites` | natural-vi |
| `GradientNorms` | DP-SGD: clips without writing gradients down |
| `BoundedDerivatives` | a server that checks replies of parties that it does not control |
| `Scores` | private scoring |
| `Simulates` | tune, made-up records |
| `SimulatesOutcomes` | private scores: centres clipped scores without bias |
| `TopicTables` | `Fit.topics` |
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from tacit.arrays import Array
from tacit.data.schema.layout import Layout
from tacit.expfam import Family, Gaussian, Natural
from tacit.expfam.gaussian import Free
from tacit.models.base import Records

if TYPE_CHECKING:
    from tacit.models.lda.table import TopicTable
    from tacit.models.outcomes import OutcomeLaw
    from tacit.models.scores import ScoreLikelihood


class ConjugateGaussian(abc.ABC):
    """A likelihood whose logarithm is quadratic in θ: log p(x|θ) = b·θ − ½ θᵀPθ + const."""

    @abc.abstractmethod
    def quadratic_form(self, records: Records, weights: Array) -> tuple[Array, Array]:
        """(P, b), summed over records with weights."""


@runtime_checkable
class GaussianExpectations(Protocol):
    """Expectations under a Gaussian q without drawing θ; q is in free parameters."""

    def expected_fit(self, family: Gaussian, free: Free, records: Records) -> Array:
        """E_q[log p(record | θ)] for each record."""
        ...

    def expected_information(self, family: Gaussian, free: Free, records: Records) -> Array:
        """The mean over coordinates of −E_q[∂² log p(record | θ)] for each record."""
        ...


@runtime_checkable
class GaussianSites(Protocol):
    """The likelihood seen from q as a Gaussian factor: what a natural-gradient step needs."""

    mean_field_step: float
    """The length of a step where q is mean-field."""
    first_step_whole: bool
    """Whether the first step of all, from the model's start, may have length 1."""

    def start(self, family: Family) -> Natural | None:
        """Where local work starts while q is the prior."""
        ...

    def expected_site(
        self, family: Family, usual: dict[str, Array], records: Records, weights: Array
    ) -> tuple[Natural, Array]:
        """(b, −½P) at the q of those usual parameters, and −E_q[log p(records | θ)].

        P = Σ w E_q[−∇²ℓ] and b = Σ w E_q[∇ℓ] + P m, P's diagonal for a mean-field q.
        """
        ...

    def data_site(self, family: Family, records: Records, weights: Array) -> Natural:
        """The same at predictors that each record's own outcome suggests; it depends on no q.

        Of a mean-field family the precision alone.
        """
        ...


class ClippingParts(NamedTuple):
    """Gradients of some records, not written down: their norms and how to add them up."""

    norms: Array
    """Of each record's gradient (label-agnostic: the largest over the labels), float64."""
    weighted_sum: Callable[[Array], Free]
    """Σ wᵢ·gradientᵢ of (n,) weights. Looks at no record of weight 0."""
    unit_sums: Callable[[Array], Free] | None = None
    """The gradient of each unit of (units, records) weights, where units have several records."""


@runtime_checkable
class GradientNorms(Protocol):
    """Norms of the gradients of E_q[log p] in closed form, q a mean-field Gaussian."""

    sums_units: bool
    """Whether the parts have `unit_sums`."""

    def gradient_norms(
        self, family: Gaussian, free: Free, records: Records, maps: Free, *, label_agnostic: bool
    ) -> ClippingParts:
        """Of the gradient in (location, scale) and the information, each times its `maps`."""
        ...


class DataStart(NamedTuple):
    """Bounds at the predictor η₀ that a record's outcome suggests (`GaussianSites.data_site`)."""

    predictor: float
    """|η₀| at most."""
    slope: float
    """|ℓ'(η₀)| at most."""
    least_curvature: float | None
    """−ℓ''(η₀) at least; None: it vanishes in some direction."""
    pull: float
    """|ℓ''(η₀) η₀| at most."""


class DerivativeBounds(NamedTuple):
    """Bounds on log p(y | η) for every outcome that the model accepts, η = x·θ.

    |ℓ'| ≤ slope + slope_per_reach·|η| and 0 ≤ −ℓ'' ≤ curvature for each predictor.
    """

    slope: float
    curvature: float
    range_at_zero: float
    """max ℓ − ℓ(0) at most; of a quadratic ℓ it is not used."""
    data_start: DataStart
    slope_per_reach: float = 0.0
    """Not 0 where ℓ is quadratic: then slope/slope_per_reach is the largest |y|."""
    nonnegative_loss: bool = False
    """Whether ℓ ≤ 0: a probability of finitely many outcomes."""
    loss_at_zero: float | None = None
    """−ℓ(η) ≤ loss_at_zero + slope·|η|; None: no such bound."""


def quadratic_bounds(largest: float, noise_sd: float) -> DerivativeBounds:
    """Of y ~ N(η, noise_sd²) with |y| ≤ largest: ℓ' = (y − η)/σ² and −ℓ'' = 1/σ²; η₀ is 0."""
    scale = noise_sd**-2.0
    return DerivativeBounds(
        slope=largest * scale,
        curvature=scale,
        range_at_zero=0.5 * scale * largest**2,
        data_start=DataStart(0.0, largest * scale, scale, 0.0),
        slope_per_reach=scale,
    )


@runtime_checkable
class BoundedDerivatives(Protocol):
    """A log-likelihood of η = x·θ with bounded slope and curvature."""

    def derivative_bounds(self) -> DerivativeBounds | None:
        """What every honest reply satisfies; None: this instance has no bounds."""
        ...


@runtime_checkable
class Scores(Protocol):
    """A bounded score ψ(y, η)·z with its moments under the model."""

    layout: Layout
    names: tuple[str, ...]
    prior_mean: np.ndarray
    prior_sd: np.ndarray

    def score_likelihood(self) -> ScoreLikelihood:
        """ψ, its bound, expectation, slope and variance."""
        ...


@runtime_checkable
class Simulates(Protocol):
    """Draws outcomes for records that have none."""

    def simulate(
        self,
        theta: np.ndarray,
        records: Records,
        rng: np.random.Generator,
        bounds: tuple[float, float] | None = None,
    ) -> np.ndarray:
        """y for each record given θ; predictors that vary by more than is usual are shrunk.

        `bounds` are those of a numeric target, where it has any.
        """
        ...


@runtime_checkable
class SimulatesOutcomes(Protocol):
    """The law of one record's outcome given its covariates and θ: draws, scores and ranks."""

    def outcome_law(self) -> OutcomeLaw:
        """The law; a ConfigError says why this instance has none."""
        ...


@runtime_checkable
class TopicTables(Protocol):
    """Topics over a vocabulary."""

    def topic_table(self, natural: Natural, vocabulary: Sequence[str], top: int) -> TopicTable:
        """The most probable words of each topic."""
        ...


def abilities(model: Any) -> tuple[str, ...]:
    """The names of the abilities that a model has."""
    every = (
        ConjugateGaussian,
        GaussianExpectations,
        GaussianSites,
        GradientNorms,
        BoundedDerivatives,
        Scores,
        Simulates,
        SimulatesOutcomes,
        TopicTables,
    )
    return tuple(one.__name__ for one in every if isinstance(model, one))
