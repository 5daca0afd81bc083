"""Optional abilities of a model, as protocols that methods check for.

A model has an ability if it defines the methods of the protocol; no declaration is needed. A new
likelihood is one file with the methods of those abilities that it supports.
`tacit.testing.check_model` compares these methods with the log-likelihood.

| ability | used by |
| --- | --- |
| `ConjugateGaussian` | the exact update, reference posteriors |
| `GaussianExpectations` | gradient-vi, DP-SGD: no Monte Carlo noise |
| `GaussianSites` | natural, if parties optimise separately |
| `WhitenedExpectations` | natural: expectations by quadrature instead of cubature over θ |
| `InNumPy` | natural: computes without compiling |
| `GradientNorms` | DP-SGD: clips without forming gradients |
| `BoundedDerivatives` | live servers, to check the replies of parties |
| `Scores` | private scoring |
| `Simulates` | tune, synthetic records |
| `SimulatesOutcomes` | private scores: centres clipped scores without bias |
| `ImpliedVariance` | comparison of residuals with the variance implied by the model |
| `ComparesCounts` | the same comparison for models of counts, at draws of θ |
| `HasImages` | search for further modes, to which a symmetry of the model maps a known mode |
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
    """A model whose log-likelihood is quadratic in θ: log p(records | θ) = b·θ − ½ θᵀPθ + constant.
    The matrix P and the vector b depend on the records.
    """

    @abc.abstractmethod
    def quadratic_form(self, records: Records, weights: Array) -> tuple[Array, Array]:
        """Return P and b of the weighted log-likelihood Σᵢ weightᵢ log p(recordᵢ | θ) = b·θ − ½
        θᵀPθ + constant.
        """


@runtime_checkable
class GaussianExpectations(Protocol):
    """A model that computes expectations under a Gaussian q without draws of θ. The argument `free`
    contains the unconstrained parameters of q.
    """

    def expected_fit(self, family: Gaussian, free: Free, records: Records) -> Array:
        """Return E_q[log p(record | θ)] for each record."""
        ...

    def expected_information(self, family: Gaussian, free: Free, records: Records) -> Array:
        """Return, for each record, the mean of −E_q[∂² log p(record | θ)/∂θ_j²] over all
        coordinates j.
        """
        ...


@runtime_checkable
class GaussianSites(Protocol):
    """A model that provides a Gaussian approximation of its likelihood at q, called a site, for
    natural-gradient steps.
    """

    mean_field_step: float
    """Step length for a mean-field q."""
    first_step_whole: bool
    """True if the first step, from the model's start, may have length 1."""

    def start(self, family: Family) -> Natural | None:
        """Return the natural parameters from which the first step starts if q is still the prior.
        If the result is None, the step starts from q.
        """
        ...

    def expected_site(
        self, family: Family, usual: dict[str, Array], records: Records, weights: Array
    ) -> tuple[Natural, Array]:
        """Return the site (b, −½P) at q, and the loss −Σ w E_q[log p(record | θ)] with the weights
        w.

        P = −Σ w E_q[∇² log p(record | θ)], and b = Σ w E_q[∇ log p(record | θ)] + P m, where m is
        the mean of q. For a mean-field q, P is replaced by its diagonal. `usual` contains the
        moments of q.
        """
        ...

    def data_site(self, family: Family, records: Records, weights: Array) -> Natural:
        """Return the site of the likelihood at predictors that are computed from the outcomes, not
        from q.

        For a mean-field family only the precision is computed, and the linear term of the site is
        0.
        """
        ...


class WhitenedDerivatives(NamedTuple):
    """Value, gradient and Hessian of an expected log-density as a function of z, where θ = mean +
    root·z.
    """

    value: Array
    gradient: Array
    hessian: Array


@runtime_checkable
class WhitenedExpectations(Protocol):
    """A model that computes the expected log-likelihood and its derivatives under a Gaussian
    without draws of θ.
    """

    def whitened_derivatives(
        self, mean: Array, root: Array, spread: Array, records: Records, weights: Array
    ) -> WhitenedDerivatives:
        """Return value, gradient and Hessian at z = 0 of the function

            f(z) = Σᵢ weightᵢ E[log p(recordᵢ | mean + root·(z + u))].

        The expectation is over u ~ N(0, spread²·I).
        """
        ...


class DiagonalDerivatives(NamedTuple):
    """Value and derivatives of an expected log-likelihood as a function of z, where θ = mean +
    scale·z elementwise.
    """

    value: Array
    gradient: Array
    diagonal: Array
    """Diagonal of the Hessian."""
    products: Array
    """Products of the Hessian with the directions, one product per row."""


@runtime_checkable
class DiagonalExpectations(Protocol):
    """A model that computes the expected log-likelihood and its derivatives under a normal
    distribution, without a matrix of all pairs of parameters.

    The computation uses NumPy or JAX, depending on the type of the arguments.
    """

    has_site_prior: bool

    def diagonal_derivatives(
        self,
        mean: Array,
        scale: Array,
        root: Array,
        directions: Array,
        spread: Array,
        records: Records,
        weights: Array,
    ) -> DiagonalDerivatives:
        """Return the value and derivatives at z = 0 of the function

            f(z) = Σᵢ weightᵢ E[log p(recordᵢ | mean + scale·(z + u))].

        The expectation is over u ~ N(0, spread²·I) if `root` is 0, and otherwise over u ~ N(0,
        spread²·rootᵀroot). The Hessian itself is not formed; its products with the rows of
        `directions` are returned.
        """
        ...


@runtime_checkable
class InNumPy(WhitenedExpectations, Protocol):
    """A model whose `whitened_derivatives` and `log_likelihoods` also accept NumPy arrays."""

    def log_likelihoods(self, thetas: Array, records: Records, weights: Array) -> Array:
        """Return Σᵢ weightᵢ log p(recordᵢ | θ) for each row θ of `thetas`."""
        ...


class ClippingParts(NamedTuple):
    """Norms and weighted sums of the gradients of records, without the gradients themselves."""

    norms: Array
    """Norm of each record's gradient in float64; for label-agnostic clipping, its maximum over
    labels.
    """
    weighted_sum: Callable[[Array], Free]
    """Function of weights w of shape (n,) that returns Σ wᵢ·gradientᵢ. It ignores records of weight
    0.
    """
    unit_sums: Callable[[Array], Free] | None = None
    """Function of weights of shape (units, records per unit) that returns one weighted sum of
    gradients per unit. None if the model does not compute these sums.
    """


@runtime_checkable
class GradientNorms(Protocol):
    """A model that computes the norm of each record's gradient of E_q[log p(record | θ)] in closed
    form, for a mean-field Gaussian q.
    """

    sums_units: bool
    """True if `gradient_norms` returns `unit_sums`."""

    def gradient_norms(
        self, family: Gaussian, free: Free, records: Records, maps: Free, *, label_agnostic: bool
    ) -> ClippingParts:
        """Return norms and weighted sums of the gradients of E_q[log p(record | θ)].

        The gradient of a record consists of the parts "location" and "scale", which are its
        derivatives in these free parameters of q, and the part "information", which is
        `expected_information` of the record. Each part is multiplied by its entry in `maps`. The
        parts "scale" and "information" are left out if they have no entry.
        """
        ...


class DataStart(NamedTuple):
    """Bounds on ℓ(η) = log p(y | η) and its derivatives at the predictor η₀, which is computed from
    the outcome y (`GaussianSites.data_site`).
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
    """Bounds on the derivatives of ℓ(η) = log p(y | η), where η = x·θ, for every outcome y that the
    model accepts.

    |ℓ'| ≤ slope + slope_per_reach·|η| and 0 ≤ −ℓ'' ≤ curvature for every η.
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
    """A number with −ℓ(η) ≤ loss_at_zero + slope·|η|; None if there is no such bound."""


def quadratic_bounds(largest: float, noise_sd: float) -> DerivativeBounds:
    """Return the bounds for y ~ N(η, noise_sd²) with |y| ≤ largest.

    The log-likelihood ℓ(η) has the derivatives ℓ' = (y − η)/noise_sd² and ℓ'' = −1/noise_sd². The
    starting predictor is η₀ = 0.
    """
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
    """A model whose log-likelihood is a function of η = x·θ with bounded first and second
    derivatives.
    """

    def derivative_bounds(self) -> DerivativeBounds | None:
        """Return bounds that hold for every record; None if this instance has no such bounds."""
        ...


@runtime_checkable
class LearnsScale(Protocol):
    """A regression whose prior scales can be learned from the records
    (`tacit.models.learnt_scale`).
    """

    layout: Layout
    prior_mean: np.ndarray
    prior_sd: np.ndarray

    @property
    def scale_unit(self) -> float | None:
        """Typical size of the linear predictor, on which the prior of the learned scales depends.
        None if the scale of the prior is declared instead of learned.
        """
        ...


@runtime_checkable
class Coefficients(Protocol):
    """A regression whose θ starts with coefficients: one for each entry of `layout`. If `levels` is
    not empty, θ starts with such a block of coefficients for each level.

    Parameters after the coefficients belong to no column.
    """

    layout: Layout
    levels: tuple[str, ...]
    names: tuple[str, ...]
    ratio: ClassVar[str | None]
    """Name of exp(coefficient), if it has one: "odds ratio", "rate ratio"."""


@runtime_checkable
class NumPyResponses(Protocol):
    """A model that computes E[y | x, θ] in NumPy, for many θ at once."""

    def responses(self, thetas: np.ndarray, records: Records) -> np.ndarray:
        """Return E[y | x, θ] of each record, with one row per row of `thetas`."""
        ...


@runtime_checkable
class MixturePredictive(Protocol):
    """A model whose predictive distribution is a mixture of normals."""

    def mixture(self, family: Family, natural: Natural, x: Array) -> Mixture:
        """Return the predictive mixture of each row of `x`."""
        ...


@runtime_checkable
class Scores(Protocol):
    """A model whose score in θ is ψ(y, η)·z, where z are the features of a record, η = z·θ, and ψ
    is bounded.
    """

    layout: Layout
    names: tuple[str, ...]
    prior_mean: np.ndarray
    prior_sd: np.ndarray

    def score_likelihood(self) -> ScoreLikelihood:
        """Return ψ together with its bound, expectation, slope and variance."""
        ...


@runtime_checkable
class Simulates(Protocol):
    """A model that can simulate the outcomes of records."""

    def simulate(
        self,
        theta: np.ndarray,
        records: Records,
        rng: np.random.Generator,
        bounds: tuple[float, float] | None = None,
    ) -> np.ndarray:
        """Simulate y of each record given θ.

        Linear predictors that vary too much over the records are first multiplied by a number below
        1. `bounds` are the declared bounds of a numeric outcome, if any.
        """
        ...


@runtime_checkable
class SimulatesOutcomes(Protocol):
    """A model that provides the distribution of a record's outcome given its covariates and θ."""

    def outcome_law(self) -> OutcomeLaw:
        """Return the distribution of the outcome. Raise a ConfigError with the reason if this
        instance has none.
        """
        ...


class DispersionSums(NamedTuple):
    """Sums over records that compare squared residuals with the variances that the model implies.

    Each record has a term k, for example squared residual minus variance, with E[k] = 0 if the
    model is right. `w` are the weights of the records.
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
    """A regression without a learned variance: the mean of y, or a declared setting, determines the
    variance of y.
    """

    def dispersion_sums(
        self, eta: np.ndarray, variance: np.ndarray, y: np.ndarray, weights: np.ndarray
    ) -> DispersionSums:
        """Return the sums, computed in NumPy. Under q, the linear predictors of the records are
        distributed as N(`eta`, `variance`).
        """
        ...

    def dispersion_words(self, ratio: float) -> str:
        """Return advice for the user, given `ratio`, the observed variance divided by the implied
        variance.
        """
        ...

    unchecked_kind: ClassVar[str]
    """Kind of the caution that residuals were not compared with the implied variance."""

    def unchecked_dispersion(self, *, private: bool) -> str:
        """Return a caution for the user that residuals were not compared with the implied variance,
        with advice.
        """
        ...


@runtime_checkable
class ComparesCounts(Protocol):
    """A model whose observations may be counts without a learned variance, e.g. Poisson counts.

    Squared residuals are compared with the implied variance at draws of θ from the posterior.
    """

    unchecked_kind: ClassVar[str]

    @property
    def observes_counts(self) -> bool:
        """True if all observations of this instance are counts without a learned variance."""
        ...

    def count_sums(self, thetas: Array, records: Records) -> DispersionSums:
        """Return the sums of `DispersionSums`, averaged over the rows of `thetas`, which are draws
        from the posterior.
        """
        ...

    def dispersion_words(self, ratio: float) -> str:
        """Return advice for the user, given `ratio`, the observed variance divided by the implied
        variance.
        """
        ...

    def unchecked_dispersion(self, *, private: bool) -> str:
        """Return a caution for the user that residuals were not compared with the implied variance,
        with advice.
        """
        ...


@runtime_checkable
class HasImages(Protocol):
    """A model with a symmetry, such as exchangeable components, that maps a mode of the posterior
    to other modes, called its images.
    """

    names: tuple[str, ...]

    @property
    def site_places(self) -> dict[str, tuple[slice, tuple[int, ...]]]:
        """Dict from the name of each latent variable to its slice of θ and its shape."""
        ...

    def log_joints(self, thetas: Array, records: Records) -> Array:
        """Return log p(records, θ) for each row of `thetas`."""
        ...


@runtime_checkable
class HasEffects(Protocol):
    """A model with effects, i.e. parameters whose prior has a location and a scale that depend on
    other parameters. Coordinates ψ have chosen effects in standardised form (see
    `tacit.models.numpyro.effects`).
    """

    def standardised(self, thetas: Array, chosen: Array) -> tuple[Array, Array]:
        """Return ψ for each row of `thetas`, and the scales of the effects; NaN for other
        coordinates.
        """
        ...

    def unstandardised(self, psis: Array, chosen: Array) -> tuple[Array, Array]:
        """Return θ and log|dθ/dψ| for each row of `psis`."""
        ...

    def standardised_slopes(self, psis: Array, slopes: Array, chosen: Array) -> Array:
        """Return gradients in ψ of log p(θ(ψ)) + log|dθ/dψ|, given gradients of log p in θ."""
        ...


@runtime_checkable
class TopicTables(Protocol):
    """A model of topics, which can list the most probable words of each topic."""

    def topic_table(self, natural: Natural, vocabulary: Sequence[str], top: int) -> TopicTable:
        """Return the most probable words of each topic."""
        ...


def abilities(model: Any) -> tuple[str, ...]:
    """Return the class names of the model's abilities that `tacit.testing.check_model` checks."""
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
        HasEffects,
        TopicTables,
    )
    return tuple(one.__name__ for one in every if isinstance(model, one))
