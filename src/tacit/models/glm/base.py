"""Base classes of generalised linear models, with predictors η = x·θ.

A model with one predictor per record is a subclass of `GeneralisedLinear` that defines two
functions of η: `pointwise`, the log-likelihood, and `inverse_link`, the mean of the outcome.
Quadrature over η then provides all abilities of `tacit.models.capabilities` except scores,
derivative bounds and simulation, which a model may add.
"""

from __future__ import annotations

import abc
from typing import Any, ClassVar

import numpy as np

from tacit.arrays import Array, computed_once, kept_rows, namespace, unit_rows
from tacit.data.schema.layout import Layout
from tacit.expfam import Family, FullGaussian, Gaussian, Natural
from tacit.expfam.gaussian import Free
from tacit.expfam.quadrature import hermite
from tacit.models.base import (
    GaussianPriorModel,
    Model,
    ModelSchema,
    Records,
    checked_layout,
    checked_names,
    gaussian_natural,
)
from tacit.models.capabilities import ClippingParts, DiagonalDerivatives, WhitenedDerivatives
from tacit.models.predictive import Prediction, quadrature_predictive
from tacit.models.settings import ModelSettings, RegressionSettings

TINY_VARIANCE = 1e-12
"""Keeps the square root of a variance differentiable for a record that is all zeros."""


class LinearPredictor(GaussianPriorModel):
    """Base class of likelihoods with one or several linear predictors η = x·θ per record.

    Each predictor has separate weights, one per column of x. θ contains all weights of the first
    predictor, then all weights of the second one, and so on.
    """

    Settings: ClassVar[type[ModelSettings]] = RegressionSettings
    layout: Layout
    """One feature per column of x: its kind, source and declared bounds."""
    levels: tuple[str, ...] = ()
    """Levels of the outcome, with one predictor per level; empty if there is only one predictor."""
    ratio: ClassVar[str | None] = None
    """Name of exp(coefficient), if it has one: "odds ratio", "rate ratio"."""
    predictor_unit: float = 1.0
    """A difference in η that counts as large in any application. It is 1 on a log or logit scale.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        prior_mean: Array | float,
        prior_sd: Array | float | None,
        layout: Layout,
        unit: float = 1.0,
    ) -> None:
        """If `prior_sd` is None, the scale of the prior is learned (`tacit.models.learnt_scale`).
        If the method does not support this, the prior standard deviation is `unit`.
        """
        super().__init__(names, prior_mean, unit if prior_sd is None else prior_sd)
        self.unit = unit
        self.undeclared = ("prior_sd",) if prior_sd is None else ()
        self.layout = layout

    @property
    def scale_unit(self) -> float | None:
        """The change of a linear predictor that the learned prior treats as large; None if
        `prior_sd` was declared.
        """
        return self.predictor_unit if "prior_sd" in self.undeclared else None

    @property
    def x_columns(self) -> int | None:
        return len(self.layout)

    mean_field_step: float = 0.15
    """Length of a natural-gradient step for a mean-field q."""
    first_step_whole: bool = True
    """True if the first step may have length 1."""
    sums_units: bool = False
    """True if gradients of units with several records have a closed form."""
    start_width: ClassVar[float] = 3.0
    """Standard deviation of η under the starting q, for columns of scale 1."""

    def start(self, family: Family) -> Natural:
        """Return a starting point for q, with the mean of the prior and standard deviations that
        are at most those of the prior.

        For columns of scale 1, the predictor η then has a standard deviation of at most
        `start_width`. Under a wider q the expected curvature of the log-likelihood is nearly 0, and
        the first step would be far too long.
        """
        sd = np.minimum(self.prior_sd, self.start_width / np.sqrt(len(self.layout)))
        return gaussian_natural(family, mean=self.prior_mean, sd=sd, model=self.kind)

    @abc.abstractmethod
    def expected_fit(self, family: Gaussian, free: Free, records: Records) -> Array:
        """Compute E_q[log p(record | θ)] for each record by quadrature. q is given by its free
        parameters.
        """

    @abc.abstractmethod
    def expected_information(self, family: Gaussian, free: Free, records: Records) -> Array:
        """Return, for each record, the mean of −E_q[∂² log p(record | θ)/∂θ_j²] over all
        coordinates j.
        """

    @abc.abstractmethod
    def expected_site(
        self, family: Family, usual: dict[str, Array], records: Records, weights: Array
    ) -> tuple[Natural, Array]:
        """Return the Gaussian site of the likelihood at q, and the expected loss
        (`tacit.models.capabilities.GaussianSites`).
        """

    @abc.abstractmethod
    def data_site(self, family: Family, records: Records, weights: Array) -> Natural:
        """Return the Gaussian site at predictors that are computed from the outcomes
        (`tacit.models.capabilities.GaussianSites`).
        """

    @abc.abstractmethod
    def whitened_derivatives(
        self, mean: Array, root: Array, spread: Array, records: Records, weights: Array
    ) -> WhitenedDerivatives:
        """Return value, gradient and Hessian of the expected log-likelihood in whitened coordinates
        (`tacit.models.capabilities.WhitenedExpectations`).
        """

    @abc.abstractmethod
    def gradient_norms(
        self, family: Gaussian, free: Free, records: Records, maps: Free, *, label_agnostic: bool
    ) -> ClippingParts:
        """Return norms and weighted sums of the gradients of all records
        (`tacit.models.capabilities.GradientNorms`).
        """


class GeneralisedLinear(LinearPredictor):
    """A model with one predictor η = x·θ and a likelihood p(y | η) per record.

    For a Gaussian q, E_q[log p(y | η)] is a one-dimensional integral over η. Gauss-Hermite
    quadrature computes it, its gradient and the predictive distribution without Monte Carlo noise.
    """

    quadrature_nodes: int = 16

    def __init__(
        self,
        names: tuple[str, ...],
        prior_mean: Array | float,
        prior_sd: Array | float | None,
        layout: Layout | None = None,
        unit: float = 1.0,
    ) -> None:
        names = checked_names(names)
        super().__init__(names, prior_mean, prior_sd, checked_layout(names, layout), unit)

    @classmethod
    def build(cls, settings: Any, schema: ModelSchema) -> Model:
        return cls(
            schema.names,
            prior_mean=settings.prior_mean,
            prior_sd=settings.prior_sd,
            layout=schema.layout,
        )  # pyright: ignore[reportCallIssue]

    def expected_fit(self, family: Gaussian, free: Free, records: Records) -> Array:
        mean, variance = family.free_project(free, records["x"])
        return self.expected_log_likelihood(mean, variance + TINY_VARIANCE, records["y"])

    def expected_information(self, family: Gaussian, free: Free, records: Records) -> Array:
        x = records["x"]
        mean, variance = family.free_project(free, x)
        _, _, curvature = self.expected_derivatives(mean, variance + TINY_VARIANCE, records["y"])
        xp = namespace(curvature)
        return xp.abs(curvature) * xp.sum(x * x, axis=-1) / x.shape[-1]

    @abc.abstractmethod
    def pointwise(self, eta: Array, y: Array) -> Array:
        """Compute log p(y | η), elementwise."""

    @abc.abstractmethod
    def inverse_link(self, eta: Array) -> Array:
        """Compute E[y | η], elementwise."""

    def data_predictor(self, y: Array) -> Array:
        """Return a predictor η for each outcome y, at which `data_site` computes the site. Where
        possible, E[y | η] is about y; the default is 0.
        """
        return 0.0 * y

    def largest_slope(self, mean: Array, variance: Array) -> Array | None:
        """Return the largest |E[ℓ'(η)]| over the labels y = 0 and y = 1, for ℓ(η) = log p(y | η)
        and η ~ N(mean, variance).

        It is used for label-agnostic clipping. The result is None if the outcome has no labels 0
        and 1.
        """
        return self._over_labels(mean, variance, 1)

    def largest_curvature(self, mean: Array, variance: Array) -> Array | None:
        """Return the largest |E[ℓ''(η)]| over the labels y = 0 and y = 1, for ℓ(η) = log p(y | η)
        and η ~ N(mean, variance).

        The result is None if the outcome has no labels 0 and 1, or if ℓ'' does not depend on the
        label.
        """
        return self._over_labels(mean, variance, 2)

    def _over_labels(self, mean: Array, variance: Array, order: int) -> Array | None:
        if self.output != "bernoulli":
            return None
        xp = namespace(mean, variance)
        each = [
            self.expected_derivatives(mean, variance, xp.full_like(mean, label))[order]
            for label in (0.0, 1.0)
        ]
        return xp.maximum(*(xp.abs(one) for one in each))

    def log_likelihood(self, theta: Array, records: Records) -> Array:
        return self.pointwise(records["x"] @ theta, records["y"])

    def response(self, theta: Array, records: Records) -> Array:
        return self.inverse_link(records["x"] @ theta)

    def responses(self, thetas: np.ndarray, records: Records) -> np.ndarray:
        return np.asarray(self.inverse_link(thetas @ np.asarray(records["x"], np.float64).T))

    def expected_log_likelihood(self, mean: Array, variance: Array, y: Array) -> Array:
        """Compute E[log p(y | η)] for η ~ N(mean, variance), elementwise."""
        nodes, weights = hermite(self.quadrature_nodes)
        sd = namespace(mean, variance).sqrt(variance)
        eta = mean + nodes[:, None].astype(mean.dtype) * sd
        return weights.astype(mean.dtype) @ self.pointwise(eta, y)

    def expected_derivatives(
        self, mean: Array, variance: Array, y: Array
    ) -> tuple[Array, Array, Array]:
        """Compute E[ℓ], E[ℓ'] and −E[ℓ''] for ℓ(η) = log p(y | η) and η ~ N(mean, variance)."""
        import jax
        import jax.numpy as jnp

        nodes, weights = hermite(self.quadrature_nodes)
        eta = mean + nodes[:, None].astype(mean.dtype) * jnp.sqrt(variance)
        weights = weights.astype(mean.dtype)

        def slope(at: Array) -> tuple[Array, Array]:
            value, pull = jax.vjp(lambda eta: self.pointwise(eta, y), at)
            return pull(jnp.ones_like(value))[0], value

        first, second, value = jax.jvp(slope, (eta,), (jnp.ones_like(eta),), has_aux=True)
        return weights @ value, weights @ first, -(weights @ second)

    def predict(
        self, family: Family, natural: Natural, records: Records, *, draws: int, seed: int
    ) -> Prediction:
        del draws, seed
        return quadrature_predictive(
            self, family, natural, records, self.pointwise, self.inverse_link
        )

    def expected_site(
        self, family: Family, usual: dict[str, Array], records: Records, weights: Array
    ) -> tuple[Natural, Array]:
        """Return the site (b, −½P) at q, and the loss −Σ w E_q[log p(y | η)] with the weights w.

        P = Xᵀ diag(w h) X and b = Xᵀ (w (g + h m)), where X is the matrix of features and m are the
        means of the predictors η under q. g and −h are the expected first and second derivatives of
        log p(y | η) in η.
        """
        import jax.numpy as jnp

        x, y = records["x"], records["y"]
        eta = x @ usual["mean"].astype(x.dtype)
        if isinstance(family, FullGaussian) and "root" in usual:
            variance = jnp.sum(jnp.square(x @ usual["root"].T.astype(x.dtype)), axis=-1)
        elif isinstance(family, FullGaussian):
            variance = jnp.sum((x @ usual["covariance"].astype(x.dtype)) * x, axis=-1)
        else:
            variance = (x * x) @ jnp.square(usual["sd"]).astype(x.dtype)
        value, slope, curvature = self.expected_derivatives(eta, variance, y)
        slope, curvature = weights * slope, weights * curvature
        if isinstance(family, FullGaussian):
            site = _full_site(x, eta, slope, curvature)
        else:
            form = curvature @ (x * x)
            site = _as_site(slope @ x + form * usual["mean"].astype(x.dtype), form)
        return site, -jnp.sum(weights * value)

    def whitened_derivatives(
        self, mean: Array, root: Array, spread: Array, records: Records, weights: Array
    ) -> WhitenedDerivatives:
        x, y = records["x"], records["y"]
        xp = namespace(mean, x)
        reach = x @ root.astype(x.dtype)
        variance = xp.square(spread) * xp.sum(xp.square(reach), axis=1)
        eta = x @ mean.astype(x.dtype)
        value, slope, curvature = self.expected_derivatives(eta, variance.astype(x.dtype), y)
        bent = reach * (weights * curvature)[:, None]
        return WhitenedDerivatives(
            xp.sum(weights * value).astype(np.float64),
            (reach.T @ (weights * slope)).astype(np.float64),
            -(bent.T @ reach).astype(np.float64),
        )

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
        x, y = records["x"], records["y"]
        xp = namespace(mean, x)
        reach = x * scale.astype(x.dtype)
        variance = xp.square(spread) * _squared_reach(reach, root)
        eta = x @ mean.astype(x.dtype)
        value, slope, curvature = self.expected_derivatives(eta, variance.astype(x.dtype), y)
        bend = weights * curvature
        along = (reach @ directions.T.astype(x.dtype)) * bend[:, None]
        return DiagonalDerivatives(
            xp.sum(weights * value).astype(np.float64),
            ((weights * slope) @ reach).astype(np.float64),
            -(bend @ xp.square(reach)).astype(np.float64),
            -(along.T @ reach).astype(np.float64),
        )

    def data_site(self, family: Family, records: Records, weights: Array) -> Natural:
        import jax.numpy as jnp

        x, y = records["x"], records["y"]
        eta = self.data_predictor(y).astype(x.dtype)
        _, slope, curvature = self.expected_derivatives(eta, jnp.zeros_like(eta), y)
        slope, curvature = weights * slope, weights * curvature
        if isinstance(family, FullGaussian):
            return _full_site(x, eta, slope, curvature)
        return _as_site(jnp.zeros(x.shape[-1]), curvature @ (x * x))

    def gradient_norms(
        self, family: Gaussian, free: Free, records: Records, maps: Free, *, label_agnostic: bool
    ) -> ClippingParts:
        """Return norms and weighted sums of each record's gradient of E_q[log p(y | η)].

        Let g and −h be the expected first and second derivatives of log p(y | η) in η, and σ² the
        variances of q. The gradient is g·x in the means of q, and −h·x²·σ² in the logarithms of its
        standard deviations.
        """
        import jax.numpy as jnp

        del family
        x, y = records["x"], records["y"]
        variance = jnp.exp(2.0 * free["scale"])
        squares = x * x
        mean, spread = x @ free["location"], squares @ variance + TINY_VARIANCE
        _, slope, curvature = self.expected_derivatives(mean, spread, y)
        bound = self.largest_slope(mean, spread) if label_agnostic else None
        most = jnp.abs(slope) if bound is None else jnp.maximum(bound, jnp.abs(slope))
        bound = self.largest_curvature(mean, spread) if label_agnostic else None
        bent = curvature if bound is None else jnp.maximum(bound, jnp.abs(curvature))
        extent = jnp.sum(squares, axis=1) / x.shape[1]
        parts = (slope, curvature, most, bent, extent)
        slope, curvature, most, bent, extent = computed_once(parts)
        # Norms in float64, like the sums: a float32 square may underflow and drop out of the norm.
        direction, largest = unit_rows(x)
        wide = jnp.square(direction)
        reach = {name: jnp.asarray(value, jnp.float64) for name, value in maps.items()}
        norms = jnp.square(most * largest) * (wide @ jnp.square(reach["location"]))
        if "scale" in maps:
            spreads = jnp.square(wide) @ jnp.square(reach["scale"] * variance.astype(jnp.float64))
            norms = norms + jnp.square(bent * largest * largest) * spreads
        information = jnp.abs(curvature) * extent
        if "information" in maps:
            most = jnp.abs(bent) * extent
            norms = norms + jnp.square(reach["information"] * most.astype(jnp.float64))

        def weighted_sum(weights: Array) -> Free:
            rows = kept_rows(weights, x)
            found = {"location": maps["location"] * (kept_rows(weights, weights * slope) @ rows)}
            if "scale" in maps:
                bend = kept_rows(weights, weights * curvature) @ jnp.square(rows)
                found["scale"] = -maps["scale"] * variance * bend
            if "information" in maps:
                total = jnp.sum(kept_rows(weights, weights * information))
                found["information"] = maps["information"] * total
            return found

        return ClippingParts(jnp.sqrt(norms), weighted_sum)


class ExplicitDerivatives(GeneralisedLinear):
    """A model whose `pointwise` and `expected_derivatives` also accept NumPy arrays."""

    @abc.abstractmethod
    def expected_derivatives(
        self, mean: Array, variance: Array, y: Array
    ) -> tuple[Array, Array, Array]:
        """Compute E[ℓ], E[ℓ'] and −E[ℓ''] for ℓ(η) = log p(y | η) and η ~ N(mean, variance). The
        arguments are NumPy or JAX arrays.
        """

    def rule(self, variance: Array) -> tuple[np.ndarray, np.ndarray]:
        """Return nodes and weights of the quadrature over η. There is a single node if `variance`
        is a NumPy array of zeros.
        """
        if namespace(variance) is np and not np.any(variance):
            return np.zeros(1), np.ones(1)
        return hermite(self.quadrature_nodes)

    def log_likelihoods(self, thetas: Array, records: Records, weights: Array) -> Array:
        each = self.pointwise(records["x"] @ thetas.T, records["y"][:, None])
        return weights @ each


def _squared_reach(reach: Array, root: Array) -> Array:
    # Variance of each row of `reach` times z, where z ~ N(0, I), or N(0, rootᵀroot) if `root` is
    # not 0.
    xp = namespace(reach, root)
    alone = xp.sum(xp.square(reach), axis=1)
    if xp is np and not np.any(root):
        return alone
    together = xp.sum(xp.square(reach @ root.T.astype(reach.dtype)), axis=1)
    return xp.where(xp.any(root != 0), together, alone)


def _full_site(x: Array, eta: Array, slope: Array, curvature: Array) -> Natural:
    form = (x * curvature[:, None]).T @ x
    form = 0.5 * (form + form.T)  # symmetrise: rounding may differ
    return _as_site(x.T @ (slope + curvature * eta), form)


def _as_site(linear: Array, form: Array) -> Natural:
    return {
        "linear": linear.astype(np.float64),
        "quadratic": -0.5 * form.astype(np.float64),
    }
