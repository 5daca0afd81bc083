"""Test whether a sample is from N(0, sd² I), with a known false-alarm rate.

Privacy depends only on the distribution of the noise. There are separate tests of its location,
width, shape and tails (truncated noise has no guarantee), and of the independence of coordinates
and draws.
"""

from __future__ import annotations

import numpy as np
from scipy import stats

FALSE_ALARM = 1e-6
"""False-alarm rate of one check, over all of its coordinates."""
TAILS = (3.0, 4.0)


def gaussian_faults(noise: np.ndarray, sd: float) -> list[str]:
    """Return reasons why the rows of `noise` are not independent draws of N(0, sd² I).

    For correct noise the list is empty, except with a probability of about 10⁻⁶. With 8,000 draws
    of 32 coordinates, a standard deviation that is wrong by 10 % is missed with probability 10⁻¹¹.

    Parameters
    ----------
    noise
        Draws of the noise, shape (draws, coordinates).
    sd
        Claimed standard deviation.
    """
    if noise.size == 0:
        return ["law: there are no draws"]
    if not np.all(np.isfinite(noise)):
        return ["law: the noise is not finite"]
    scaled = noise / sd
    return [*moment_faults(noise, sd), *_shape(scaled), *_tails(scaled), *_independence(noise)]


def moment_faults(noise: np.ndarray, sd: float) -> list[str]:
    """Return reasons why the columns of `noise` do not have mean 0 and variance sd².

    With 2,000 draws, a standard deviation that is wrong by a factor of 0.8 or 1.25 in one of a
    million coordinates is missed with probability below 10⁻¹¹.
    """
    if noise.size == 0 or not np.all(np.isfinite(noise)):
        return ["law: the noise is empty or not finite"]
    scaled, draws = noise / sd, len(noise)
    means = scaled.mean(axis=0)
    squares = np.sum(scaled**2, axis=0)
    at_mean, at_square = np.argmax(np.abs(means)), np.argmax(np.abs(squares - draws))
    return [
        *_fault(
            2 * stats.norm.sf(np.sqrt(draws) * np.abs(means)),
            f"mean of the noise: {sd * means[at_mean]:.6g} at coordinate {at_mean}, expected 0",
        ),
        *_fault(
            2 * np.minimum(stats.chi2.cdf(squares, draws), stats.chi2.sf(squares, draws)),
            f"variance of the noise: sd {sd * np.sqrt(squares[at_square] / draws):.6g} at "
            f"coordinate {at_square}, expected {sd:.6g}",
        ),
    ]


def _shape(scaled: np.ndarray) -> list[str]:
    found = [stats.kstest(column, "norm", method="asymp") for column in scaled.T]
    worst = max(float(one.statistic) for one in found)
    return _fault(
        np.array([one.pvalue for one in found]),
        f"shape of the noise: its distribution function is {worst:.4f} from a normal one",
    )


def _tails(scaled: np.ndarray) -> list[str]:
    # A Kolmogorov-Smirnov test misses truncation at four standard deviations.
    counts = [int(np.sum(np.abs(scaled) > at)) for at in TAILS]
    chances = [2 * float(stats.norm.sf(at)) for at in TAILS]
    p_values = [
        stats.binomtest(count, scaled.size, chance).pvalue
        for count, chance in zip(counts, chances, strict=True)
    ]
    wanted = ", ".join(f"{chance * scaled.size:.1f}" for chance in chances)
    return _fault(
        np.array(p_values),
        f"tails of the noise: {counts} of {scaled.size} beyond {TAILS} sd, expected {wanted}",
    )


def _independence(noise: np.ndarray) -> list[str]:
    """Return reasons why draws are not independent: correlations between coordinates, between their
    absolute values or between consecutive draws, or more repeated draws than expected by chance.
    """
    draws, width = noise.shape
    spread = noise.std(axis=0)
    values = (noise - noise.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    # 1 for a large value, −1 for a small one: uncorrelated coordinates may have dependent sizes.
    sizes = np.where(np.abs(values) > stats.norm.ppf(0.75), 1.0, -1.0)
    above = np.triu_indices(width, 1)
    faults = []
    for what, first, second, places in (
        ("coordinates", values, values, above),
        ("sizes of coordinates", sizes, sizes, above),
        ("consecutive draws", values[1:], values[:-1], np.indices((width, width)).reshape(2, -1)),
    ):
        related = np.einsum("ni,nj->ij", first, second)[tuple(places)] / np.sqrt(draws)
        if related.size:
            worst = float(np.max(np.abs(related))) / np.sqrt(draws)
            faults += _fault(
                2 * stats.norm.sf(np.abs(related)),
                f"independence: {what} have a correlation of {worst:.3f}, expected 0",
            )
    repeated = draws - len({row.tobytes() for row in noise})
    if repeated > _most_repeated(draws, width):
        faults.append("independence: two keys gave the same noise")
    return faults


def _most_repeated(draws: int, width: int) -> int:
    """Return a number of repeated draws that is exceeded by chance with probability below 10⁻⁶.

    This holds for discrete Gaussian noise whose standard deviation is at least 2²⁰ lattice steps.
    Two draws of a coordinate are then equal with a probability of about 1/(2√π·2²⁰).
    """
    pairs = 0.5 * draws * (draws - 1)
    return int(stats.poisson.isf(1e-6, pairs * (0.5 / (np.sqrt(np.pi) * 2.0**20)) ** width))


def _fault(p_values: np.ndarray, said: str) -> list[str]:
    smallest = float(np.min(p_values)) * p_values.size
    return [f"{said} (p = {smallest:.1g})"] if smallest < FALSE_ALARM else []
