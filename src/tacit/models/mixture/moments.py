"""Computations of the server for a mixture: convert noisy sums of second moments to valid moments.

`tacit.models.mixture.rows` defines the summed numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tacit.models.mixture.rows import Units

LEAST_EIGENVALUE = 0.05
"""Smallest variance of a component in any direction, relative to the pooled variance; applied only
if there is noise.
"""


class Moments(NamedTuple):
    """Counts (K,), sums (K, d) and second moments (K, d, d) of K components in d columns, with the
    standard deviations of the noise in them.
    """

    count: np.ndarray
    linear: np.ndarray
    quadratic: np.ndarray
    count_sd: float = 0.0
    linear_sd: float = 0.0
    quadratic_sd: float = 0.0
    """Sd of the noise on the diagonal; off the diagonal it is 1/√2 of this."""

    def with_noise(self, other: Moments, ratio: float) -> Moments:
        """Return the same moments, with noise whose standard deviations are `ratio` times those of
        `other`.
        """
        return self._replace(
            count_sd=ratio * other.count_sd,
            linear_sd=ratio * other.linear_sd,
            quadratic_sd=ratio * other.quadratic_sd,
        )

    @property
    def noisy(self) -> bool:
        return self.count_sd > 0.0


def read_moments(
    total: np.ndarray, columns: int, units: Units, noise_sd: float, *, diagonal: bool = False
) -> Moments:
    """Return the moments of each component, given the released sum `total`.

    The sum is over packed rows, as made by `outer_rows` or, if `diagonal`, by `diagonal_rows`.
    """
    d = columns
    if diagonal:
        total = total.reshape(-1, 1 + 2 * d)
        root = np.sqrt(d)
        second = np.zeros((len(total), d, d))
        second[:, np.arange(d), np.arange(d)] = total[:, 1 + d :] * (root / units.quadratic)
        scales = units.count, units.linear / root, units.quadratic / root
    else:
        rows, places = np.triu_indices(d)
        total = total.reshape(-1, 1 + d + len(rows))
        upper = total[:, 1 + d :] / np.where(rows == places, 1.0, np.sqrt(2.0)) / units.quadratic
        second = np.zeros((len(total), d, d))
        second[:, rows, places] = upper
        second[:, places, rows] = upper
        scales = units.count, units.linear, units.quadratic
    return Moments(
        total[:, 0] / scales[0],
        total[:, 1 : 1 + d] / scales[1],
        second,
        *(noise_sd / scale for scale in scales),
    )


class Repaired(NamedTuple):
    """Counts, means and covariances of components. All covariances are positive definite."""

    count: np.ndarray
    mean: np.ndarray
    covariance: np.ndarray


def moved(found: Moments, factor: np.ndarray, shift: np.ndarray) -> Moments:
    """Return the moments of factorₖ·u + shiftₖ for each component k, given the moments of u.

    Standard deviations of the noise are not converted; in the result they are 0.
    """
    turned = np.einsum("kij,kj->ki", factor, found.linear)
    mixed = turned[:, :, None] * shift[:, None, :]
    return Moments(
        found.count,
        turned + shift * found.count[:, None],
        factor @ found.quadratic @ np.swapaxes(factor, 1, 2)
        + mixed
        + np.swapaxes(mixed, 1, 2)
        + found.count[:, None, None] * shift[:, :, None] * shift[:, None, :],
    )


def averaged(before: Moments, found: Moments, step: float) -> Moments:
    """Return the weighted average (1 − step)·before + step·found. The noise in the two moments is
    independent, so their variances add up.
    """

    def both(old: float, new: float) -> float:
        return float(np.hypot((1.0 - step) * old, step * new))

    return Moments(
        (1.0 - step) * before.count + step * found.count,
        (1.0 - step) * before.linear + step * found.linear,
        (1.0 - step) * before.quadratic + step * found.quadratic,
        both(before.count_sd, found.count_sd),
        both(before.linear_sd, found.linear_sd),
        both(before.quadratic_sd, found.quadratic_sd),
    )


def repaired(found: Moments, centre: np.ndarray, root: np.ndarray) -> Repaired:
    """Return valid counts, means and covariances of y = centreₖ + rootₖ·u, from noisy moments of u
    for each component k.

    A count is at least the standard deviation of its noise. A covariance is shrunk towards the
    pooled covariance of all components (James and Stein 1961). The weight of the pooled covariance
    is that share of the squared distance between the two matrices that noise explains. Means are
    not shrunk, because components that move towards each other would share their records. Without
    noise, covariances are not changed.
    """
    count = np.maximum(found.count, max(found.count_sd, 1e-10))
    mean = found.linear / count[:, None]
    own = found.quadratic / count[:, None, None] - mean[:, :, None] * mean[:, None, :]
    covariance = root @ own @ np.swapaxes(root, 1, 2)
    if found.noisy:
        covariance = _shrunk(own, covariance, root, found.quadratic_sd / count, count)
    return Repaired(count, centre + np.einsum("kij,kj->ki", root, mean), covariance)


def _shrunk(
    own: np.ndarray,
    covariance: np.ndarray,
    root: np.ndarray,
    noise_sd: np.ndarray,
    count: np.ndarray,
) -> np.ndarray:
    # `own` are the covariances of u, with noise of sd `noise_sd` on the diagonal and 1/√2 of it off
    # the diagonal. The distance to the pooled covariance is measured in the coordinates of u, in
    # which the noise is the same in all directions.
    d, share = own.shape[1], count / np.sum(count)
    size = np.trace(root @ np.swapaxes(root, 1, 2), axis1=1, axis2=2) / d
    pooled_noise = float(np.sqrt(np.sum(np.square(share * noise_sd * size))))
    pooled = positive_root(np.einsum("k,kij->ij", share, covariance), pooled_noise)
    unpooled = np.linalg.inv(pooled)
    result = np.empty_like(covariance)
    for place, matrix in enumerate(own):
        target = np.linalg.solve(root[place], pooled)
        target = target @ target.T
        away = float(np.sum(np.square(matrix - target)))
        noise = 0.5 * d * (d + 1) * noise_sd[place] ** 2
        kept = max(0.0, 1.0 - noise / max(away, 1e-300))
        half = unpooled @ root[place]
        relative = half @ (target + kept * (matrix - target)) @ half.T
        sizes, axes = np.linalg.eigh(0.5 * (relative + relative.T))
        whole = (axes * np.maximum(sizes, LEAST_EIGENVALUE)) @ axes.T
        result[place] = pooled @ whole @ pooled.T
    return 0.5 * (result + np.swapaxes(result, 1, 2))


def positive_root(matrix: np.ndarray, noise_sd: float) -> np.ndarray:
    """Return the symmetric square root of a noisy covariance matrix. Eigenvalues below `noise_sd`
    are first increased to `noise_sd`.
    """
    sizes, axes = np.linalg.eigh(0.5 * (matrix + matrix.T))
    least = max(noise_sd, 1e-6 * float(np.max(np.abs(sizes))), 1e-12)
    return (axes * np.sqrt(np.maximum(sizes, least))) @ axes.T
