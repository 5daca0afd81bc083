"""Privacy loss distributions: the default accountant, with the smallest ε.

The privacy profile of each release (profiles.py) is evaluated on a grid. The connect-the-dots rule
(Doroshenko et al. 2022) converts it to a distribution of the privacy loss that never underestimates
the exact δ. The FFT of dp_accounting composes these distributions. Gaussian releases without
sampling need no grid: together they are one Gaussian release, whose profile is known in closed
form.

Formal guarantee: ε is an upper bound, also if the released values depend on earlier releases. For
rounding errors, 1e-14 per release is added to δ. (Measured errors are below 4e-15 for the grid and
2e-16 for the FFT.) If δ is below 1e-14 times the number of releases, ε is `math.inf`.
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
    """Return None: this accountant supports every step."""
    return None


def epsilon(steps: Steps, delta: float) -> float:
    """Return ε at δ; it is an upper bound, whichever of two neighbouring data sets was used."""
    steps = _merge_unsampled(steps)
    if _is_gaussian(steps):
        return gaussian.epsilon(steps[0][0].far, delta)
    delta -= _rounding(steps)
    if not (delta > 0 and _is_bounded(steps)):
        return math.inf
    each = [not_negative(float(pmf.get_epsilon_for_delta(delta))) for pmf in _compose(steps)]
    return max(each)


def delta(steps: Steps, epsilon: float) -> float:
    """Return δ at ε; it is an upper bound, whichever of two neighbouring data sets was used."""
    steps = _merge_unsampled(steps)
    if _is_gaussian(steps):
        return gaussian.delta(steps[0][0].far, epsilon)
    if not _is_bounded(steps):
        return 1.0
    each = [float(pmf.get_delta_for_epsilon(epsilon)) for pmf in _compose(steps)]
    return max(not_negative(one, if_nan=1.0) for one in each) + _rounding(steps)


def _merge_unsampled(steps: Steps) -> Steps:
    """Replace all releases without sampling by one Gaussian release.

    The squared distance of this release is the sum of their squared distances.
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
    """Return the distribution of the total privacy loss.

    If a step is `one_way`, the result has two distributions, one for each direction.
    """
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
    # (P, Q) is the step's pair (profiles.py), exchanged if `reverse`, and
    # H_α(P‖Q) = ∫ max(P − αQ, 0). At ε ≥ 0 the profile is H_{e^ε}(P‖Q); at ε < 0 it is
    # 1 − e^ε + e^ε·H_{e^−ε}(Q‖P). A step that is not `one_way` uses (P, Q) in place of (Q, P)
    # (Theorems 2 and 3 of docs/methods/accounting.md). A loss −ε < 0 therefore has e^−ε times the
    # mass of the loss ε for (Q, P), and the loss 0 has the remaining mass.
    from dp_accounting.pld.pld_pmf import DensePLDPmf

    forward, backward = _directions(step, reverse)
    above, infinite = _connect_dots(step, forward, grid)
    below, _ = _connect_dots(step, backward, grid)
    below *= np.exp(-grid * np.arange(1, below.size + 1))
    rest = 1.0 - infinite - above.sum() - below.sum()
    probabilities = np.concatenate([below[::-1], [rest], above])
    return DensePLDPmf(grid, -below.size, probabilities, infinite, pessimistic_estimate=True)


def _connect_dots(step: Step, near: float, grid: float) -> tuple[np.ndarray, float]:
    # Masses p_i of the losses ih (h = `grid`), and the mass of an infinite loss. With δ_i the
    # profile at ε = ih and d_i = δ_i − δ_{i−1}: p_i = (d_{i+1} − d_i)/(e^h − 1) − d_i (Doroshenko
    # et al. 2022, Algorithm 1). dp_accounting multiplies d_i by a rounded e^h instead, which loses
    # up to 5e-13 of δ per step. A tiny negative mass due to rounding stays, because the profile at
    # the grid points is then exact.
    size = math.ceil(profiles.largest_loss(step.rate, step.far, near) / grid)
    deltas = profiles.hockey_stick(np.arange(size + 1) * grid, step.rate, step.far, near)
    falls = np.append(np.diff(deltas), 0.0)
    return np.diff(falls) / math.expm1(grid) - falls[:-1], float(deltas[-1])


def _directions(step: Step, reverse: bool) -> tuple[float, float]:
    # `near` of the step's pair (P, Q) (profiles.py) and of the reversed pair (Q, P).
    if not step.one_way:
        return step.near, step.near
    with_unit, without_unit = step.near, step.far - step.near
    return (without_unit, with_unit) if reverse else (with_unit, without_unit)


@functools.lru_cache(maxsize=256)
def _grid(steps: Steps) -> float:
    # The spacing h is a power of two. Connect-the-dots adds about min(h²/6, h·E|L|) to the variance
    # of a step's loss L, so that h must be small, but the grid must fit in memory.
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
