"""Privacy loss distributions: the tight accountant and the default.

Every step is a privacy profile (profiles.py), discretised by the pessimistic connect-the-dots rule
(Doroshenko et al. 2022) and composed by dp_accounting's FFT. Releases without sampling need no
grid: together they are one Gaussian, in closed form.

Formal guarantee: the grid overstates every profile, so the answer bounds ε from above for every
adaptive choice of the values released. For rounding, 1e-14 per step is added to δ (measured: below
4e-15 for the grid, 2e-16 for the FFT), so below δ = 1e-14 · steps the result is `math.inf`.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import numpy as np

from tacit.privacy.accounting import gaussian, profiles
from tacit.privacy.accounting.composition import Steps
from tacit.privacy.accounting.steps import Step, not_negative

if TYPE_CHECKING:
    from dp_accounting.pld.pld_pmf import PLDPmf

_ROUNDING = 1e-14
_TRUNCATION = 1e-15

# A grid may increase the variance of the composed loss by the first number (a fraction) and must
# resolve its standard deviation into the second number of points, unless the array sizes below are
# too small.
_WIDENING = 1e-4
_POINTS_PER_SD = 500
_LARGEST_STEP = 2**17
_LARGEST_TOTAL = 2**20

# With noise below a thousandth of the distance, or losses so large that no finer grid fits, ε is in
# the thousands and useless.
_LARGEST_DISTANCE = 1e3
_COARSEST_GRID = 1.0


def refusal(step: Step) -> str | None:  # noqa: ARG001
    """Return None: no step is refused, because every step has a profile."""
    return None


def epsilon(steps: Steps, delta: float) -> float:
    """Compute ε at δ of the composed privacy loss, in the worse of the two directions."""
    steps = _merge_unsampled(steps)
    if _is_gaussian(steps):
        return gaussian.epsilon(steps[0][0].far, delta)
    delta -= _rounding(steps)
    if not (delta > 0 and _is_bounded(steps)):
        return math.inf
    each = [not_negative(float(pmf.get_epsilon_for_delta(delta))) for pmf in _compose(steps)]
    return max(each)


def delta(steps: Steps, epsilon: float) -> float:
    """Compute δ at ε of the composed privacy loss, in the worse of the two directions."""
    steps = _merge_unsampled(steps)
    if _is_gaussian(steps):
        return gaussian.delta(steps[0][0].far, epsilon)
    if not _is_bounded(steps):
        return 1.0
    each = [float(pmf.get_delta_for_epsilon(epsilon)) for pmf in _compose(steps)]
    return max(not_negative(one, if_nan=1.0) for one in each) + _rounding(steps)


def _merge_unsampled(steps: Steps) -> Steps:
    """Replace all unsampled releases by one Gaussian release, whose squared distance is their
    sum.
    """
    sampled = tuple(item for item in steps if item[0].scheme != "all")
    distance = math.hypot(*(math.sqrt(n) * s.far for s, n in steps if s.scheme == "all"))
    if distance == 0:
        return sampled
    return ((Step("all", 1.0, distance, distance, False), 1), *sampled)


def _is_gaussian(steps: Steps) -> bool:
    return len(steps) == 1 and steps[0][0].scheme == "all"


def _is_bounded(steps: Steps) -> bool:
    return all(step.far <= _LARGEST_DISTANCE for step, _ in steps) and (
        _grid(steps) <= _COARSEST_GRID
    )


def _rounding(steps: Steps) -> float:
    return _ROUNDING * sum(count for _, count in steps)


def _compose(steps: Steps) -> list[PLDPmf]:
    """Return the composed losses: one if every step is symmetric, else one per direction."""
    grid = _grid(steps)
    directions = (False, True) if any(step.one_way for step, _ in steps) else (False,)
    composed = []
    for reverse in directions:
        powers = [_power(step, count, grid, reverse and step.one_way) for step, count in steps]
        composed.append(functools.reduce(lambda a, b: a.compose(b, _TRUNCATION), powers))
    return composed


@functools.lru_cache(maxsize=64)
def _power(step: Step, count: int, grid: float, reverse: bool) -> PLDPmf:
    pmf = _discretise(step, grid, reverse)
    return pmf if count == 1 else pmf.self_compose(count, _TRUNCATION)


@functools.lru_cache(maxsize=64)
def _discretise(step: Step, grid: float, reverse: bool) -> PLDPmf:
    """Compute the step's privacy loss distribution on multiples of `grid`, rounded pessimistically.

    For ε ≥ 0 the profile is H_{e^ε} of the pair; for ε < 0 it is 1 − e^ε + e^ε·H_{e^−ε} of the
    reversed pair, which for a symmetric step is the pair itself (Theorems 2 and 3 of
    docs/methods/accounting.md). The loss −ε then has e^−ε times the mass that the reversed pair
    gives to ε, and 0 has the rest.
    """
    from dp_accounting.pld.pld_pmf import DensePLDPmf

    forward, backward = _directions(step, reverse)
    above, infinite = _connect_dots(step, forward, grid)
    below, _ = _connect_dots(step, backward, grid)
    below *= np.exp(-grid * np.arange(1, below.size + 1))
    rest = 1.0 - infinite - above.sum() - below.sum()
    probabilities = np.concatenate([below[::-1], [rest], above])
    return DensePLDPmf(grid, -below.size, probabilities, infinite, pessimistic_estimate=True)


def _connect_dots(step: Step, near: float, grid: float) -> tuple[np.ndarray, float]:
    """Compute the masses of the losses h, 2h, …, mh and of ∞ from the profile at 0, h, …, mh (h =
    `grid`).

    p_i = (d_{i+1} − d_i)/(e^h − 1) − d_i with d_i = δ_i − δ_{i−1} (Doroshenko et al. 2022,
    Algorithm 1). dp_accounting's form multiplies d_i by a rounded e^h, which loses up to 5e-13 of δ
    per step. Rounding may leave a tiny negative mass. It is kept, because the profile at the grid
    points is then exact.
    """
    size = math.ceil(profiles.largest_loss(step.rate, step.far, near) / grid)
    deltas = profiles.hockey_stick(np.arange(size + 1) * grid, step.rate, step.far, near)
    falls = np.append(np.diff(deltas), 0.0)
    return np.diff(falls) / math.expm1(grid) - falls[:-1], float(deltas[-1])


def _directions(step: Step, reverse: bool) -> tuple[float, float]:
    """Return the value of `near` for the pair and for its reversal."""
    if not step.one_way:
        return step.near, step.near
    with_unit, without_unit = step.near, step.far - step.near
    return (without_unit, with_unit) if reverse else (with_unit, without_unit)


@functools.lru_cache(maxsize=256)
def _grid(steps: Steps) -> float:
    """Choose the grid spacing: a power of two, fine enough for the composed loss, coarse enough for
    memory.

    Connect-the-dots adds about min(h²/6, h·E|L|) to the variance of a step's loss L.
    """
    moments = [profiles.loss_moments(s.rate, s.far, s.near) for s, _ in steps]
    sizes = [profiles.largest_loss(s.rate, s.far, s.near) for s, _ in steps]
    variance = sum(n * v for (_, n), (_, v) in zip(steps, moments, strict=True))
    mean = sum(n * v / 2 for (_, n), (_, v) in zip(steps, moments, strict=True))
    sd = math.sqrt(variance)

    def widens(grid: float) -> float:
        return sum(
            n * min(grid**2 / 6, grid * size)
            for (_, n), (size, _) in zip(steps, moments, strict=True)
        )

    smallest = max(2 * max(sizes) / _LARGEST_STEP, (mean + 20 * sd) / _LARGEST_TOTAL)
    exponent = math.floor(math.log2(max(sd / _POINTS_PER_SD, smallest)))
    while widens(2.0**exponent) > _WIDENING * variance and 2.0**exponent > smallest:
        exponent -= 1
    return 2.0 ** max(exponent, math.ceil(math.log2(smallest)))
