"""Posterior predictive distributions of records.

    p(y | x, q) = ∫ p(y | x, θ) q(θ) dθ        (Bishop 2006, eq. 3.57)

There are three ways to compute the integral. If the noise is normal, it has a closed form. For
generalised linear models, it is computed by quadrature over η = x·θ. These two use NumPy, without
compilation. Otherwise it is an average over draws of θ, which is the default of `Model.predict`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tacit.arrays import Array
from tacit.errors import ConfigError, DataError
from tacit.expfam import Family, FullGaussian, Gaussian, MeanFieldGaussian, Natural
from tacit.expfam.gaussian import LOG_2PI

if TYPE_CHECKING:
    from tacit.models.base import Model, Records

CHUNK = 1024
"""Number of records per call of the compiled function. It is constant to avoid recompilation."""

QUADRATURE_SDS = 12.0
"""Quadrature covers this many standard deviations on either side; further away, log p < −70."""


BLOCK = 1 << 16
"""Quadrature points per block: half a megabyte per array, which fits in the cache."""


class Prediction(NamedTuple):
    """Posterior predictive distribution of each record."""

    mean: np.ndarray
    """E[y | x], shape (n,): a probability for a Bernoulli output. For a categorical output, the
    probabilities of its levels, shape (n, K).
    """
    log_density: np.ndarray
    """log p(y | x) at the observed y, shape (n,)."""
    sd: np.ndarray | None
    """Standard deviation of y given x, including noise; None unless the output is Gaussian."""


class Mixture(NamedTuple):
    """A mixture of normal distributions for each of n records. The weights are the same for all
    records.
    """

    means: np.ndarray
    """Shape (n, components)."""
    sds: np.ndarray
    weights: np.ndarray

    def prediction(self, y: np.ndarray) -> Prediction:
        """Return mean, standard deviation and the log density at `y` of each record's mixture."""
        mean = self.means @ self.weights
        variance = (np.square(self.sds) + np.square(self.means - mean[:, None])) @ self.weights
        logs = -0.5 * np.square((y[:, None] - self.means) / self.sds) - np.log(self.sds)
        return Prediction(mean, _log_average(logs, self.weights) - 0.5 * LOG_2PI, np.sqrt(variance))

    def quantile(self, level: float) -> np.ndarray:
        """Return the quantile of each record's mixture at probability `level`."""
        from scipy.special import ndtr, ndtri

        each = self.means + ndtri(level) * self.sds
        low, high = each.min(axis=1), each.max(axis=1)
        for _ in range(60):
            middle = 0.5 * (low + high)
            below = ndtr((middle[:, None] - self.means) / self.sds) @ self.weights < level
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return 0.5 * (low + high)


def count_records(records: Records) -> int:
    """Return the number of records: the common length of all arrays."""
    lengths = {name: len(array) for name, array in records.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(
            f"the arrays of the records have different lengths {lengths}; give one entry per record"
        )
    return next(iter(lengths.values()), 0)


def gaussian_average(
    mean: np.ndarray,
    sd: np.ndarray,
    y: np.ndarray,
    log_density: Callable[[Array, Array], Array],
    response: Callable[[Array], Array],
) -> tuple[np.ndarray, np.ndarray]:
    """Compute E[response(η)] and log E[exp(log_density(η, y))] for each record, where η ~ N(mean,
    sd²).

    The integrals are computed by the trapezoidal rule, with a spacing of at most half a standard
    deviation and at most ⅔ in η. For the sigmoid, the error is below 1e−10 for sd ≤ 40.
    Gauss–Hermite quadrature with 32 nodes would have an error of 1e−2 already for sd = 10. A record
    with a mean or sd that is not finite gives NaN.
    """
    # For an integrand that is analytic for |Im η| < a, the error decreases like exp(−2πa/h), where
    # h is the spacing (Trefethen and Weideman 2014, theorem 5.1). For the sigmoid a = π.
    level = np.ceil(np.log2(np.fmin(np.fmax(1.5 * sd, 2.0), 64.0))).astype(int)
    expected, log_total = np.empty(len(mean)), np.empty(len(mean))
    for group in np.unique(level):
        nodes = np.arange(-QUADRATURE_SDS, QUADRATURE_SDS + 1e-9, 2.0 ** -float(group))
        weights = np.exp(-0.5 * nodes**2)
        weights /= weights.sum()
        members = np.flatnonzero(level == group)
        for rows in np.array_split(members, 1 + len(members) * len(nodes) // BLOCK):
            eta = mean[rows, None] + nodes * sd[rows, None]
            expected[rows] = response(eta) @ weights
            log_total[rows] = _log_average(log_density(eta, y[rows, None]), weights)
    return expected, log_total


def _log_average(logs: np.ndarray, weights: np.ndarray) -> np.ndarray:
    largest = np.max(logs, axis=1, keepdims=True)
    largest = np.where(np.isfinite(largest), largest, 0.0)
    with np.errstate(divide="ignore"):  # a density of 0 has the logarithm -inf
        return np.log(np.exp(logs - largest) @ weights) + largest[:, 0]


def draw_parameters(family: Family, natural: Natural, draws: int, seed: int) -> np.ndarray:
    """Return draws of θ from q, one per row."""
    if isinstance(family, MeanFieldGaussian | FullGaussian):
        noise = np.random.default_rng(seed).standard_normal((draws, family.dimension))
        return np.asarray(family.free_draw(family.free(natural), noise))
    import jax

    return np.asarray(family.sample(jax.random.key(seed), natural, (draws,)))


def quadrature_predictive(
    model: Model,
    family: Family,
    natural: Natural,
    records: Records,
    log_density: Callable[[Array, Array], Array],
    response: Callable[[Array], Array],
) -> Prediction:
    """Compute the predictive distribution of a model in which y depends on θ only through η = x·θ.

    `log_density` is log p(y | η) and `response` is E[y | η]. One integral over η is computed for
    each record.
    """
    mean, variance = project(model, family, natural, records["x"])
    y = np.asarray(records["y"])
    with np.errstate(invalid="ignore"):  # non-finite values are kept
        expected, found = gaussian_average(mean, np.sqrt(variance), y, log_density, response)
    return Prediction(expected, found, None)


def normal_predictive(
    model: Model, family: Family, natural: Natural, x: Array, y: Array, noise_sd: float
) -> Prediction:
    """Compute the predictive distribution N(x·m, xᵀVx + noise_sd²), where m and V are mean and
    covariance of q (Bishop 2006, eq. 3.58).
    """
    y = np.asarray(y, np.float64)
    mean, variance = project(model, family, natural, x)
    total = variance + noise_sd**2
    log_density = -0.5 * ((y - mean) ** 2 / total + np.log(total) + LOG_2PI)
    return Prediction(mean, log_density, np.sqrt(total))


def project(
    model: Model, family: Family, natural: Natural, x: Array
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and variance of x·θ under q, for each row of x."""
    gaussian = require_gaussian(model, family)
    return gaussian.free_project(gaussian.free(natural), np.asarray(x, np.float64))


def require_gaussian(model: Model, family: Family) -> Gaussian:
    """Return the family if it is Gaussian. Otherwise raise a ConfigError."""
    if not isinstance(family, MeanFieldGaussian | FullGaussian):
        raise ConfigError(
            f"model {model.kind!r} needs a Gaussian posterior, not {family.kind!r}; "
            "set posterior to 'mean-field' or 'full'"
        )
    return family


def average_over_draws(
    model: Model, family: Family, natural: Natural, records: Records, draws: int, seed: int
) -> Prediction:
    """Compute the predictive mean and density of each record as averages of E[y | x, θ] and p(y |
    x, θ) over `draws` draws of θ from q.
    """
    if draws < 1:
        raise ConfigError(f"draws = {draws}; predicting needs at least 1 draw of θ")
    kernel, theta = _kernel(model.compiled_as), draw_parameters(family, natural, draws, seed)
    count = count_records(records)
    log_density, mean, variance = (np.empty(count) for _ in range(3))
    for start in range(0, count, CHUNK):
        rows = np.arange(start, start + CHUNK)
        # Pad with the last record, which the model accepts, unlike zeros.
        chunk = {name: _plain(a)[np.minimum(rows, count - 1)] for name, a in records.items()}
        kept = slice(start, min(start + CHUNK, count))
        for target, value in zip((log_density, mean, variance), kernel(theta, chunk), strict=True):
            target[kept] = np.asarray(value)[: kept.stop - start]
    noise_sd = getattr(model, "noise_sd", None) if model.output == "gaussian" else None
    sd = None if noise_sd is None else np.sqrt(variance + noise_sd**2)
    return Prediction(mean, log_density, sd)


def _plain(array: Array) -> np.ndarray:
    """Convert floats to float64, so that float32 records do not need a second compilation."""
    array = np.asarray(array)
    return array.astype(np.float64) if np.issubdtype(array.dtype, np.floating) else array


@functools.lru_cache(maxsize=8)
def _kernel(model: Model) -> Callable[[Array, Records], tuple[Array, Array, Array]]:
    """Return a compiled function of draws of θ and records. It computes the predictive log density
    of each record, and the mean and variance of E[y | x, θ] over draws.
    """
    import jax

    def average(theta: Array, records: Records) -> tuple[Array, Array, Array]:
        def one(draw: Array) -> tuple[Array, Array]:
            return model.log_likelihood(draw, records), model.response(draw, records)

        logs, responses = jax.lax.map(one, theta)
        log_density = jax.nn.logsumexp(logs, axis=0) - math.log(theta.shape[0])
        return log_density, responses.mean(axis=0), responses.var(axis=0)

    return jax.jit(average)
