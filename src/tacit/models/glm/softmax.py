"""Bayesian softmax regression: y is one of K levels."""

from __future__ import annotations

import functools
import math
from typing import ClassVar, NamedTuple

import numpy as np

from tacit.arrays import Array, namespace
from tacit.data.schema.layout import Layout
from tacit.errors import ConfigError, DataError
from tacit.expfam import Family, FullGaussian, Gaussian, Natural
from tacit.expfam.gaussian import Free
from tacit.expfam.quadrature import normal_points
from tacit.models.base import ModelSchema, Output, Records, checked_layout, checked_names
from tacit.models.capabilities import (
    ClippingParts,
    DataStart,
    DerivativeBounds,
    WhitenedDerivatives,
)
from tacit.models.glm.base import TINY_VARIANCE, LinearPredictor
from tacit.models.glm.logistic import LogisticRegression
from tacit.models.glm.outcomes import CategoricalLaw, category_log_prob
from tacit.models.predictive import BLOCK, Prediction, gaussian_average, require_gaussian
from tacit.models.scores import ScoreLikelihood
from tacit.models.settings import SoftmaxSettings
from tacit.models.simulate import LOGIT_SD, at_most

ROUNDING = 100.0
"""Variances below this multiple of the rounding error of the covariance's trace count as 0."""
MAX_LEVELS = 20
"""Largest number K of levels: the size of the compiled program grows like K³."""
POINTS = 1024
"""Points of the quadrature rule for predictions, for K > 2 levels."""
NODE_BLOCK = 65_536
"""Largest size of temporary arrays over several nodes in NumPy, so that they stay in the cache."""
MAX_COMMON_LOG_RATIO = 0.1
"""Largest accepted |log(variance / prior variance)| in `posterior_fault`; 0.1 is about 5 % of a
standard deviation.
"""


class Expected(NamedTuple):
    """Expectations under q for each of n records with K levels.

    `value` (n,) is E[log p(y | η)], `probability` (n, K) is E[p], and `curvature` (n, K, K) is
    E[diag p − ppᵀ], where p are the probabilities of the levels.
    """

    value: Array
    probability: Array
    curvature: Array


class SoftmaxRegression(LinearPredictor):
    """Softmax regression: p(y = k | x) ∝ exp(x·θₖ) for an outcome y with K levels, k = 0 … K − 1.

    Every level k has a vector of coefficients θₖ. θ contains all of these vectors, and the prior of
    each coordinate of θ is N(prior_mean, prior_sd²). There is no reference level, and the order of
    the levels does not matter. Adding the same vector to all θₖ changes no probability, so the
    likelihood does not identify θ. The posterior is nevertheless proper, because the prior is. With
    K = 2 the model is logistic regression with a prior sd of √2·prior_sd.

    Expectations over a normal distribution of θ are computed by quadrature (`normal_points`). The
    probabilities of a record depend only on the K − 1 contrasts ξ = Qᵀη. Here η is the vector of
    the predictors x·θₖ of all levels, and the columns of Q are an orthonormal basis of the vectors
    that are orthogonal to (1, …, 1). The quadrature is therefore over ξ.

    Parameters
    ----------
    columns
        Names of the columns of x, including the intercept.
    levels
        Names of the outcome's levels, in the order of y.
    prior_mean
        Prior mean of the coefficients: one number, or one per coefficient.
    prior_sd
        Prior standard deviation of the coefficients: one number, or one per coefficient. If it is
        not given, it is learned if the method supports this (`tacit.models.learnt_scale`), and 1
        otherwise.
    layout
        Description of each column of x, as declared in the public schema. By default the columns
        have no declared bounds.
    """

    kind: ClassVar[str] = "softmax"
    ratio: ClassVar[str | None] = "odds ratio"
    Settings = SoftmaxSettings
    serves: ClassVar[tuple[Output, ...]] = ("categorical",)
    output: Output = "categorical"
    mean_field_step = 0.05
    first_step_whole = False
    sums_units = True
    # A narrow start has the largest curvature, so that the first step is too short rather than too
    # long: with several levels, full steps may not recover from a long one.
    start_width: ClassVar[float] = 0.5

    def __init__(
        self,
        columns: tuple[str, ...],
        *,
        levels: tuple[str, ...] = (),
        prior_mean: Array | float = 0.0,
        prior_sd: Array | float | None = None,
        layout: Layout | None = None,
    ) -> None:
        self.columns = columns = checked_names(columns, "columns")
        self.levels = checked_names(levels, "levels") if levels else ()
        if not self.levels:
            raise ConfigError(
                "model 'softmax' has no levels; declare the levels of the outcome in [columns], or "
                "write SoftmaxRegression(columns, levels=('a', 'b', 'c'))"
            )
        if len(self.levels) < 2:
            raise ConfigError(
                f"model 'softmax' has the levels {list(self.levels)}, but needs at least two; "
                "declare all levels of the outcome in [columns]"
            )
        if len(self.levels) > MAX_LEVELS:
            raise ConfigError(
                f"model 'softmax' has {len(self.levels)} levels, but supports at most "
                f"{MAX_LEVELS}; merge rare levels"
            )
        names = tuple(f"{level}: {column}" for level in self.levels for column in columns)
        super().__init__(names, prior_mean, prior_sd, checked_layout(columns, layout))

    @classmethod
    def build(cls, settings: SoftmaxSettings, schema: ModelSchema) -> SoftmaxRegression:
        return cls(
            schema.names,
            levels=schema.levels,
            prior_mean=settings.prior_mean,
            prior_sd=settings.prior_sd,
            layout=schema.layout,
        )

    def check_records(self, party: str, records: Records) -> None:
        y = np.asarray(records["y"], np.float64)
        if not np.all((y >= 0) & (y < len(self.levels)) & (y == np.round(y))):
            raise DataError(
                f"party {party!r}: y holds values other than 0 … {len(self.levels) - 1}, the "
                f"codes of the {len(self.levels)} levels; recode them or declare more levels"
            )

    def rows(self, theta: Array) -> Array:
        """Reshape θ to one row of weights per level. The shape is (…, levels, columns of x)."""
        return theta.reshape(*theta.shape[:-1], len(self.levels), len(self.layout))

    def log_likelihood(self, theta: Array, records: Records) -> Array:
        eta = records["x"] @ self.rows(theta).T
        return namespace(eta).sum(one_hot(self, records["y"]) * _log_softmax(eta), axis=-1)

    def log_likelihoods(self, thetas: Array, records: Records, weights: Array) -> Array:
        xp = namespace(thetas, weights)
        own = one_hot(self, records["y"])
        eta = [records["x"] @ self.rows(thetas)[:, k].T for k in range(len(self.levels))]
        largest = functools.reduce(xp.maximum, eta)
        totals = xp.log(sum(xp.exp(one - largest) for one in eta)) + largest
        chosen = sum(own[:, k, None] * one for k, one in enumerate(eta))
        return weights @ (chosen - xp.sum(own, axis=1)[:, None] * totals)

    def response(self, theta: Array, records: Records) -> Array:
        eta = _log_softmax(records["x"] @ self.rows(theta).T)
        return namespace(eta).exp(eta)

    def softmax(self, xi: Array) -> Array:
        """Convert K − 1 contrasts of the predictors, along the last axis, to the probabilities of
        the K levels.
        """
        logs = _log_softmax(xi @ contrasts(len(self.levels)).T)
        return namespace(logs).exp(logs)

    def project(self, mean: Array, spread: Array, x: Array) -> tuple[Array, Array]:
        """Return mean (n, K − 1) and covariance (n, K − 1, K − 1) of the contrasts of each record's
        predictors.

        `mean` is the mean of θ; `spread` is its covariance matrix, or the vector of its variances.
        Changes of θ that are the same for all levels do not affect the contrasts. Their variance is
        removed before the multiplication by x, because it may be so large that its rounding error,
        in single precision, would exceed the covariance of the contrasts.
        """
        xp, basis = namespace(mean, spread, x), contrasts(len(self.levels))
        location = x @ (self.rows(mean).T @ basis).astype(x.dtype)
        if spread.ndim == 1:
            each = (x * x) @ self.rows(spread).T.astype(x.dtype)
            return location, xp.einsum("...k,kr,ks->...rs", each, *[basis.astype(x.dtype)] * 2)
        width = len(self.layout)
        whole = spread.reshape(len(self.levels), width, len(self.levels), width)
        blocks = xp.einsum("kr,kilj,ls->rsij", basis, whole, basis).astype(x.dtype)
        return location, block_covariances(blocks, x)

    def expected(self, mean: Array, covariance: Array, y: Array) -> Expected:
        """Compute the expectations of all records by quadrature, for contrasts with the
        distribution N(mean, covariance).
        """
        xp = namespace(mean, covariance)
        nodes, weights = normal_points(mean.shape[-1])
        basis = contrasts(len(self.levels)).astype(mean.dtype)
        centre = xp.tensordot(basis, mean, axes=(1, -1))
        steps = xp.tensordot(basis, root_of(covariance), axes=(1, -2))  # (K, …, K − 1)
        steps = xp.moveaxis(steps, -1, 0)
        own = xp.moveaxis(one_hot(self, y).astype(mean.dtype), -1, 0)
        if xp is np and not np.any(covariance):
            nodes, weights = np.zeros((1, mean.shape[-1])), np.ones(1)
        rule = (nodes.astype(mean.dtype), weights.astype(mean.dtype))
        averaged = _averaged if xp is np else _averaged_by_scan
        value, p, second = averaged(centre, steps, own, *rule)
        p, second = xp.moveaxis(p, 0, -1), xp.moveaxis(second, (0, 1), (-2, -1))
        return Expected(value, p, xp.eye(p.shape[-1], dtype=p.dtype) * p[..., None] - second)

    def expected_fit(self, family: Gaussian, free: Free, records: Records) -> Array:
        return self.expected(*self.seen(family, free, records["x"]), records["y"]).value

    def expected_information(self, family: Gaussian, free: Free, records: Records) -> Array:
        x = records["x"]
        found = self.expected(*self.seen(family, free, x), records["y"])
        xp = namespace(x, found.curvature)
        trace = xp.trace(found.curvature, axis1=-2, axis2=-1)
        return trace * xp.sum(x * x, axis=-1) / self.dimension

    def seen(self, family: Gaussian, free: Free, x: Array) -> tuple[Array, Array]:
        """Return mean and covariance of the contrasts like `project`, for the q with these free
        parameters.
        """
        root, basis = family.free_root(free), contrasts(len(self.levels)).astype(x.dtype)
        if root.ndim == 1:
            return self.project(free["location"], root * root, x)
        xp, rows = namespace(root, x), self.rows(root.T).T  # (d, K, d·K): of the columns of x
        reach = xp.einsum("...d,dkm,kr->...rm", x, rows, basis)
        mean = x @ (self.rows(free["location"]).T @ basis)
        return mean, reach @ xp.swapaxes(reach, -1, -2)

    @property
    def labels(self) -> int:
        return len(self.levels)

    def expected_site(
        self, family: Family, usual: dict[str, Array], records: Records, weights: Array
    ) -> tuple[Natural, Array]:
        from tacit.models.glm.softmax_gradients import softmax_site

        return softmax_site(self, family, usual, records, weights)

    def whitened_derivatives(
        self, mean: Array, root: Array, spread: Array, records: Records, weights: Array
    ) -> WhitenedDerivatives:
        from tacit.models.glm.softmax_gradients import softmax_whitened

        return softmax_whitened(self, mean, root, spread, records, weights)

    def data_site(self, family: Family, records: Records, weights: Array) -> Natural:
        from tacit.models.glm.softmax_gradients import softmax_data_site

        return softmax_data_site(self, family, records, weights)

    def gradient_norms(
        self, family: Gaussian, free: Free, records: Records, maps: Free, *, label_agnostic: bool
    ) -> ClippingParts:
        from tacit.models.glm.softmax_gradients import softmax_gradient_norms

        return softmax_gradient_norms(self, family, free, records, maps, label_agnostic)

    def derivative_bounds(self) -> DerivativeBounds:
        """Return bounds on the derivatives of the log-likelihood with respect to the predictors of
        the levels.

        There is no positive lower bound on the curvature, because it is 0 in the direction in which
        all predictors change by the same amount.
        """
        levels = len(self.levels)
        predictor = math.log(2.0 * levels)
        return DerivativeBounds(
            slope=1.0,
            curvature=0.25,
            range_at_zero=math.log(levels),
            data_start=DataStart(predictor, 1.0, None, 0.5 * predictor),
            nonnegative_loss=True,
        )

    def score_likelihood(self) -> ScoreLikelihood:
        from tacit.models.glm.softmax_scores import CategoricalLikelihood

        return CategoricalLikelihood(len(self.levels))

    def outcome_law(self) -> CategoricalLaw:
        return CategoricalLaw(self.layout, category_log_prob, len(self.levels))

    def simulate(
        self,
        theta: np.ndarray,
        records: Records,
        rng: np.random.Generator,
        bounds: tuple[float, float] | None = None,
    ) -> np.ndarray:
        del bounds
        eta = at_most(records["x"] @ self.rows(theta).T, LOGIT_SD)
        return np.argmax(eta + rng.gumbel(size=eta.shape), axis=1).astype(np.float64)

    def predict(
        self, family: Family, natural: Natural, records: Records, *, draws: int, seed: int
    ) -> Prediction:
        """Return the predictive probabilities E_q[softmax η] of each record, by quadrature over
        contrasts.

        With two levels, the one-dimensional rule of `gaussian_average` is used, which is more
        accurate.
        """
        del draws, seed
        gaussian = require_gaussian(self, family)
        free, x = gaussian.free(natural), np.asarray(records["x"], np.float64)
        mean, covariance = self.seen(gaussian, free, x)
        own = one_hot(self, np.asarray(records["y"]))
        levels = len(self.levels)
        if levels == 2:
            yes = LogisticRegression(("logit",))  # of the second level: ξ is (η₀ − η₁)/√2
            sd = np.sqrt(2.0 * covariance[:, 0, 0])
            ask = (-math.sqrt(2.0) * mean[:, 0], sd, own[:, 1], yes.pointwise, yes.inverse_link)
            p, log_density = gaussian_average(*ask)
            return Prediction(np.stack([1.0 - p, p], axis=1), log_density, None)
        nodes, weights = normal_points(levels - 1, POINTS)
        expected = np.empty((len(x), levels))
        for rows in np.array_split(np.arange(len(x)), 1 + len(x) * len(nodes) * levels // BLOCK):
            steps = nodes @ np.swapaxes(root_of(covariance[rows]), 1, 2)
            found = self.softmax(mean[rows, None] + steps)
            expected[rows] = np.einsum("s,nsk->nk", weights, found)
        with np.errstate(divide="ignore"):  # an impossible outcome has log density −∞
            return Prediction(expected, np.log(np.sum(own * expected, axis=1)), None)

    def posterior_fault(self, family: Family, natural: Natural) -> str | None:
        """Return a message if rounding has changed a variance that records cannot change; otherwise
        return None.

        For each column, add the weights of all levels. The likelihood does not depend on this sum,
        so its posterior variance must equal its prior variance.
        """
        if not isinstance(family, FullGaussian):
            return None
        levels, width = len(self.levels), len(self.layout)
        if np.ptp(self.prior_sd.reshape(levels, width), axis=0).any():
            return None  # with unequal priors, the records change this variance too
        covariance = family.covariance(natural)
        blocks = np.asarray(covariance).reshape(levels, width, levels, width)
        found = np.diagonal(blocks.sum(axis=(0, 2)))
        declared = np.sum(self.rows(np.square(self.prior_sd)), axis=0)
        ratio = float(np.max(np.abs(np.log(found / declared))))
        if ratio <= MAX_COMMON_LOG_RATIO:
            return None
        return (
            f"rounding has changed the variance that all levels share by {math.expm1(ratio):.1%}; "
            "scale the columns similarly, or use a narrower prior"
        )


def _averaged(
    centre: np.ndarray, steps: np.ndarray, own: np.ndarray, nodes: np.ndarray, weights: np.ndarray
) -> Expected:
    # E[log p(y)], E[p] and E[ppᵀ] over η = centre + Σ_r node_r·steps_r, where p = softmax η.
    value, first = np.zeros(own.shape[1:], own.dtype), np.zeros_like(own)
    second = np.zeros((len(own), *own.shape), own.dtype)
    count = max(1, NODE_BLOCK // max(1, own.size))
    for start in range(0, len(nodes), count):
        share = weights[start : start + count]
        eta = centre + np.tensordot(nodes[start : start + count], steps, axes=(1, 0))
        eta -= np.max(eta, axis=1, keepdims=True)
        p = np.exp(eta)
        sums = np.sum(p, axis=1)
        value += np.tensordot(share, np.sum(own * eta, axis=1), axes=(0, 0))
        value -= np.sum(own, axis=0) * np.tensordot(share, np.log(sums), axes=(0, 0))
        p /= sums[:, None]
        first += np.tensordot(share, p, axes=(0, 0))
        for k in range(len(own)):
            second[k] += np.tensordot(share, p * p[:, k : k + 1], axes=(0, 0))
    return Expected(value, first, second)


def _averaged_by_scan(
    centre: Array, steps: Array, own: Array, nodes: Array, weights: Array
) -> Expected:
    import jax
    import jax.numpy as jnp

    def add(total: Expected, point: tuple[Array, Array]) -> tuple[Expected, None]:
        node, weight = point
        eta = centre + sum(node[r] * steps[r] for r in range(len(steps)))
        eta = _shifted(eta, axis=0)
        p = jnp.exp(eta)
        sums = jnp.sum(p, axis=0)
        p = p / sums
        value = jnp.sum(own * eta, axis=0) - jnp.sum(own, axis=0) * jnp.log(sums)
        found = Expected(weight * value, weight * p, weight * (p[:, None] * p[None]))
        return Expected(*(a + b for a, b in zip(total, found, strict=True))), None

    nothing = Expected(
        jnp.zeros(own.shape[1:], own.dtype),
        jnp.zeros_like(own),
        jnp.zeros((own.shape[0], *own.shape), own.dtype),
    )
    return jax.lax.scan(add, nothing, (nodes, weights))[0]


def block_covariances(blocks: Array, x: Array) -> Array:
    """Return xᵀ B x for each row x and for each d × d matrix B in `blocks`.

    The rows have shape (n, d), `blocks` has shape (m, m, d, d), and the result has shape (n, m, m).
    """
    xp, size = namespace(blocks, x), blocks.shape[0]
    pairs = [[xp.sum((x @ blocks[r, s]) * x, axis=-1) for s in range(r + 1)] for r in range(size)]
    rows = [
        xp.stack([pairs[max(r, s)][min(r, s)] for s in range(size)], axis=-1) for r in range(size)
    ]
    return xp.stack(rows, axis=-2)


def one_hot(model: SoftmaxRegression, y: Array) -> Array:
    """Return the one-hot encoding of y, with one column per level. A y that is not a level gives a
    row of zeros.
    """
    return (y[..., None] == np.arange(len(model.levels))).astype(np.float64)


def root_of(covariance: Array) -> Array:
    """Return the Cholesky factor of each covariance matrix, even if rounding has made the matrix
    singular.

    Pivots that are below the rounding error are increased to it. A library routine would return
    NaN.
    """
    xp, size = namespace(covariance), covariance.shape[-1]
    least = ROUNDING * float(np.finfo(covariance.dtype).eps)
    least = least * xp.trace(covariance, axis1=-2, axis2=-1) + TINY_VARIANCE
    zero = xp.zeros_like(least)
    rows: list[list[Array]] = []
    for i in range(size):
        row: list[Array] = []
        for j in range(i):
            rest = covariance[..., i, j] - sum(row[k] * rows[j][k] for k in range(j))
            row.append(rest / rows[j][j])
        left = covariance[..., i, i] - sum(value * value for value in row)
        row.append(xp.sqrt(xp.maximum(left, least)))
        rows.append(row)
    filled = [row + [zero] * (size - len(row)) for row in rows]
    return xp.stack([xp.stack(row, axis=-1) for row in filled], axis=-2)


def _log_softmax(eta: Array) -> Array:
    xp, eta = namespace(eta), _shifted(eta, axis=-1)
    return eta - xp.log(xp.sum(xp.exp(eta), axis=-1, keepdims=True))


def _shifted(eta: Array, axis: int) -> Array:
    """Subtract the maximum of η from η. Derivatives treat the maximum as a constant."""
    # No probability depends on the maximum. JAX divides the derivative of a maximum by the number
    # of entries that equal the maximum. If a compiled program computes η twice with different
    # rounding, no entry equals the maximum, and the result is 0/0.
    xp = namespace(eta)
    largest = xp.max(eta, axis=axis, keepdims=True)
    if xp is not np:
        import jax

        largest = jax.lax.stop_gradient(largest)
    return eta - largest


@functools.cache
def contrasts(levels: int) -> np.ndarray:
    """Return a matrix of Helmert contrasts with one row per level. The number of columns is
    `levels` − 1. The columns are orthonormal, and each sums to 0.
    """
    basis = np.zeros((levels, levels - 1))
    for column in range(1, levels):
        basis[:column, column - 1] = 1.0
        basis[column, column - 1] = -column
    return basis / np.linalg.norm(basis, axis=0)
