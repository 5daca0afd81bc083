"""Optional abilities of a model, as protocols that methods check for.

A model has an ability if it defines the methods of the protocol; no declaration is needed. A new
likelihood is one file that implements the abilities it supports. `tacit.testing.check_model`
compares each with the log-likelihood.

| ability | used by |
| --- | --- |
| `ConjugateGaussian` | the exact update, reference posteriors |
| `GaussianExpectations` | gradient-vi, DP-SGD: no Monte Carlo noise |
| `GaussianSites` | natural, if a party optimises alone |
| `WhitenedExpectations` | natural: no cubature over draws of θ |
| `InNumPy` | natural: nothing is compiled |
| `GradientNorms` | DP-SGD: clips without forming gradients |
| `BoundedDerivatives` | live servers, to check the replies of parties |
| `Scores` | private scoring |
| `Simulates` | tune, synthetic records |
| `SimulatesOutcomes` | private scores: centres clipped scores without bias |
| `ImpliedVariance` | comparison of residuals with the variance implied by the model |
| `ComparesCounts` | the same for counts of any model, by draws of θ |
| `HasImages` | search for modes that are images of the one that was found |
| `TopicTables` | `Fit.topics` |
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np

from tacit.arrays import Array
from tacit.data.schema.layout import Layout
from tacit.expfam import Family, Gaussian, Natural
from tacit.expfam.gaussian import Free
from tacit.models.base import Records

if TYPE_CHECKING:
    from tacit.models.lda.table import TopicTable
    from tacit.models.outcomes import OutcomeLaw
    from tacit.models.predictive import Mixture
    from tacit.models.scores import ScoreLikelihood


class ConjugateGaussian(abc.ABC):
    """A likelihood whose logarithm is quadratic in θ: log p(x|θ) = b·θ − ½ θᵀPθ + const."""

    @abc.abstractmethod
    def quadratic_form(self, records: Records, weights: Array) -> tuple[Array, Array]:
        """Return (P, b), summed over records with weights."""


@runtime_checkable
class GaussianExpectations(Protocol):
    """Expectations under a Gaussian q without drawing θ; q is in free parameters."""

    def expected_fit(self, family: Gaussian, free: Free, records: Records) -> Array:
        """Return E_q[log p(record | θ)] for each record."""
        ...

    def expected_information(self, family: Gaussian, free: Free, records: Records) -> Array:
        """Return, for each record, the mean over coordinates of −E_q[∂² log p(record | θ)]."""
        ...


@runtime_checkable
class GaussianSites(Protocol):
    """Gaussian approximation of the likelihood at q, for natural-gradient steps."""

    mean_field_step: float
    """Step length for a mean-field q."""
    first_step_whole: bool
    """True if the first step, from the model's start, may have length 1."""

    def start(self, family: Family) -> Natural | None:
        """Return a starting point for use while q is the prior."""
        ...

    def expected_site(
        self, family: Family, usual: dict[str, Array], records: Records, weights: Array
    ) -> tuple[Natural, Array]:
        """Return the site (b, −½P) at the q with these parameters, and −E_q[log p(records | θ)].

        P = Σ w E_q[−∇²ℓ] and b = Σ w E_q[∇ℓ] + P m, P's diagonal for a mean-field q.
        """
        ...

    def data_site(self, family: Family, records: Records, weights: Array) -> Natural:
        """Return the site at predictors based on each record's outcome, independent of q.

        For a mean-field family only the precision.
        """
        ...


class WhitenedDerivatives(NamedTuple):
    """E[log p] of all records and its derivatives in z, where θ = mean + root·z."""

    value: Array
    gradient: Array
    hessian: Array


@runtime_checkable
class WhitenedExpectations(Protocol):
    """Expected log-likelihood and derivatives under a Gaussian in closed form or by quadrature."""

    def whitened_derivatives(
        self, mean: Array, root: Array, spread: Array, records: Records, weights: Array
    ) -> WhitenedDerivatives:
        """Return Σ w E[log p(record | mean + root·z)] for z ~ N(0, spread²·I), and derivatives in
        z.
        """
        ...


class DiagonalDerivatives(NamedTuple):
    """E[log p] of all records and its derivatives in z, where θ = mean + scale·z."""

    value: Array
    gradient: Array
    diagonal: Array
    """Diagonal of the Hessian."""
    products: Array
    """The Hessian times each direction, one per row."""


@runtime_checkable
class DiagonalExpectations(Protocol):
    """Expectations under independent normals, without matrices over all parameters.

    In closed form or by quadrature, in the library of the arguments.
    """

    has_site_prior: bool

    def diagonal_derivatives(
        self,
        mean: Array,
        scale: Array,
        directions: Array,
        spread: Array,
        records: Records,
        weights: Array,
    ) -> DiagonalDerivatives:
        """Return Σ w E[log p(record | mean + scale·z)] for z ~ N(0, spread²·I), and derivatives in
        z.
        """
        ...


@runtime_checkable
class InNumPy(WhitenedExpectations, Protocol):
    """`whitened_derivatives` computes with NumPy arrays too, and so does `log_likelihoods`."""

    def log_likelihoods(self, thetas: Array, records: Records, weights: Array) -> Array:
        """Return Σ w log p(record | θ) for each row of `thetas`."""
        ...


class ClippingParts(NamedTuple):
    """Norms and weighted sums of the gradients of records, computed without forming the
    gradients.
    """

    norms: Array
    """Norm of each record's gradient (label-agnostic: the largest over the labels), float64."""
    weighted_sum: Callable[[Array], Free]
    """Σ wᵢ·gradientᵢ for (n,) weights. Ignores records of weight 0."""
    unit_sums: Callable[[Array], Free] | None = None
    """Gradient of each unit for (units, records) weights, if units have several records."""


@runtime_checkable
class GradientNorms(Protocol):
    """Closed-form norms of the gradients of E_q[log p] for a mean-field Gaussian q."""

    sums_units: bool
    """True if the parts have `unit_sums`."""

    def gradient_norms(
        self, family: Gaussian, free: Free, records: Records, maps: Free, *, label_agnostic: bool
    ) -> ClippingParts:
        """Return the parts of the gradient in (location, scale) and the information, times
        `maps`.
        """
        ...


class DataStart(NamedTuple):
    """Bounds that hold at the predictor η₀ based on a record's outcome
    (`GaussianSites.data_site`).
    """

    predictor: float
    """Upper bound on |η₀|."""
    slope: float
    """Upper bound on |ℓ'(η₀)|."""
    least_curvature: float | None
    """Lower bound on the curvature −ℓ''(η₀); None if the curvature vanishes in some direction."""
    pull: float
    """Upper bound on |ℓ''(η₀) η₀|."""


class DerivativeBounds(NamedTuple):
    """Bounds on ℓ = log p(y | η), η = x·θ, for every outcome y that the model accepts.

    |ℓ'| ≤ slope + slope_per_reach·|η| and 0 ≤ −ℓ'' ≤ curvature for each predictor.
    """

    slope: float
    curvature: float
    range_at_zero: float
    """Upper bound on max ℓ − ℓ(0); not used for a quadratic ℓ."""
    data_start: DataStart
    slope_per_reach: float = 0.0
    """Nonzero if ℓ is quadratic; slope/slope_per_reach is then the largest |y|."""
    nonnegative_loss: bool = False
    """True if ℓ ≤ 0, as for finitely many outcomes."""
    loss_at_zero: float | None = None
    """−ℓ(η) ≤ loss_at_zero + slope·|η|; None: no such bound."""


def quadratic_bounds(largest: float, noise_sd: float) -> DerivativeBounds:
    """Return the bounds for y ~ N(η, σ²), |y| ≤ largest: ℓ' = (y − η)/σ², −ℓ'' = 1/σ², η₀ = 0."""
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
        """Return bounds on the derivatives that hold for every record; None if there are none."""
        ...


@runtime_checkable
class LearnsScale(Protocol):
    """A regression whose prior scales may be learned (`tacit.models.learnt_scale`)."""

    layout: Layout
    prior_mean: np.ndarray
    prior_sd: np.ndarray

    @property
    def scale_unit(self) -> float | None:
        """Size of a large difference in the predictor; None if the prior is declared."""
        ...


@runtime_checkable
class Coefficients(Protocol):
    """A regression whose first parameters are coefficients of the columns of `layout`.

    With `levels` there is one set per level; parameters after them belong to no column.
    """

    layout: Layout
    levels: tuple[str, ...]
    names: tuple[str, ...]
    ratio: ClassVar[str | None]
    """Name of exp(coefficient), if it has one: "odds ratio", "rate ratio"."""


@runtime_checkable
class NumPyResponses(Protocol):
    """A model that computes E[y | x, θ] for many θ at once, in NumPy."""

    def responses(self, thetas: np.ndarray, records: Records) -> np.ndarray:
        """Return E[y | x, θ] with one row per draw of θ."""
        ...


@runtime_checkable
class MixturePredictive(Protocol):
    """A predictive distribution that is a mixture of normals."""

    def mixture(self, family: Family, natural: Natural, x: Array) -> Mixture:
        """Return the components of each record's predictive mixture."""
        ...


@runtime_checkable
class Scores(Protocol):
    """A bounded score ψ(y, η)·z with its moments under the model."""

    layout: Layout
    names: tuple[str, ...]
    prior_mean: np.ndarray
    prior_sd: np.ndarray

    def score_likelihood(self) -> ScoreLikelihood:
        """Return the score ψ with its bound, expectation, slope and variance."""
        ...


@runtime_checkable
class Simulates(Protocol):
    """A model that simulates outcomes of records."""

    def simulate(
        self,
        theta: np.ndarray,
        records: Records,
        rng: np.random.Generator,
        bounds: tuple[float, float] | None = None,
    ) -> np.ndarray:
        """Simulate y for each record given θ; unusually variable predictors are shrunk.

        `bounds` are the declared bounds of a numeric target, if any.
        """
        ...


@runtime_checkable
class SimulatesOutcomes(Protocol):
    """The distribution of one record's outcome given its covariates and θ: draws, scores and
    ranks.
    """

    def outcome_law(self) -> OutcomeLaw:
        """Return the distribution; raise a ConfigError with the reason if this instance has
        none.
        """
        ...


class DispersionSums(NamedTuple):
    """Sums over records that compare squared residuals with the model's variances.

    For terms kᵢ that compare a squared residual with the variance, E[kᵢ] = 0 under the model.
    """

    excess: Array
    """Σ w k, with k at the mean of q, corrected for the uncertainty of θ."""
    variance: Array
    """Σ w E[k²]."""
    third: Array
    """Σ w E[k³]."""
    scale: Array
    """Σ w Var[y]; 1 + excess/scale is the ratio of observed to implied variance."""


@runtime_checkable
class ImpliedVariance(Protocol):
    """A regression whose outcome has no free variance: the mean or a declaration determines it."""

    def dispersion_sums(
        self, eta: np.ndarray, variance: np.ndarray, y: np.ndarray, weights: np.ndarray
    ) -> DispersionSums:
        """Return the sums for predictors η ~ N(eta, variance) under q, in NumPy."""
        ...

    def dispersion_words(self, ratio: float) -> str:
        """Explain a ratio of observed to implied variance, with advice."""
        ...

    unchecked_kind: ClassVar[str]
    """Kind of the caution that is given if the comparison is not made."""

    def unchecked_dispersion(self, *, private: bool) -> str:
        """Return the text of the caution that the comparison was not made, with advice."""
        ...


@runtime_checkable
class ComparesCounts(Protocol):
    """A model whose observations may be counts without a free variance; checked with draws of θ."""

    unchecked_kind: ClassVar[str]

    @property
    def observes_counts(self) -> bool:
        """True if all observations are counts without a free variance."""
        ...

    def count_sums(self, thetas: Array, records: Records) -> DispersionSums:
        """Return the sums, averaged over draws of θ from the posterior."""
        ...

    def dispersion_words(self, ratio: float) -> str:
        """See `ImpliedVariance.dispersion_words`."""
        ...

    def unchecked_dispersion(self, *, private: bool) -> str:
        """See `ImpliedVariance.unchecked_dispersion`."""
        ...


@runtime_checkable
class HasImages(Protocol):
    """A model whose posterior may have several modes that a symmetry maps to each other
    ("images").
    """

    names: tuple[str, ...]

    @property
    def site_places(self) -> dict[str, tuple[slice, tuple[int, ...]]]:
        """Position in θ and shape of each latent site, by name."""
        ...

    def log_joints(self, thetas: Array, records: Records) -> Array:
        """Return log p(records, θ) for each row of `thetas`."""
        ...


@runtime_checkable
class TopicTables(Protocol):
    """A model of topics, which can list the most probable words of each topic."""

    def topic_table(self, natural: Natural, vocabulary: Sequence[str], top: int) -> TopicTable:
        """Return the most probable words of each topic."""
        ...


def abilities(model: Any) -> tuple[str, ...]:
    """Return the names of the abilities (protocols of this module) that a model has."""
    every = (
        ConjugateGaussian,
        GaussianExpectations,
        GaussianSites,
        WhitenedExpectations,
        DiagonalExpectations,
        InNumPy,
        GradientNorms,
        BoundedDerivatives,
        Scores,
        Simulates,
        SimulatesOutcomes,
        ImpliedVariance,
        TopicTables,
    )
    return tuple(one.__name__ for one in every if isinstance(model, one))
