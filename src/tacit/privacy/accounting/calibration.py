"""Calibration: find the smallest noise for which ε is at most a target."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tacit.errors import ConfigError
from tacit.privacy.accounting.composition import Accountant, Composition
from tacit.privacy.events import Adjacency, GaussianEvent

_LEAST_NOISE = 1e-6
_MOST_NOISE = 1e9
_TOLERANCE = 1e-4


def calibrate(
    target_epsilon: float,
    delta: float,
    adjacency: Adjacency,
    make_events: Callable[[float], Sequence[GaussianEvent]],
    *,
    accountant: Accountant = "pld",
) -> float:
    """Find the smallest noise z for which the ε of make_events(z) is at most `target_epsilon`.

    `make_events` is a function of z, which may be a noise multiplier or a standard deviation; ε
    must decrease with z. Formal guarantee: ε is computed for the returned z and is at most the
    target. The returned z exceeds the smallest possible z by a factor of at most 1 + 1e-4.

    >>> def rounds(z):
    ...     return [GaussianEvent(clip=1.0, noise_sd=z, count=10)]
    >>> round(calibrate(1.0, 1e-5, "add-or-remove-one", rounds), 1)
    11.8
    """
    if not (target_epsilon > 0 and math.isfinite(target_epsilon)):
        raise ConfigError(f"target_epsilon = {target_epsilon}; it must be a finite number > 0")

    def excess(log_noise: float) -> float:
        empty = Composition(adjacency=adjacency, accountant=accountant)
        spent = empty.add(*make_events(math.exp(log_noise))).epsilon(delta)
        if spent > target_epsilon:
            return min(math.log(spent) - math.log(target_epsilon), 700.0)
        return min(0.0, max(math.log(max(spent, 1e-300)) - math.log(target_epsilon), -700.0))

    low, high = _bracket(excess, target_epsilon)
    return math.exp(_shrink(excess, low, high))


_Point = tuple[float, float]


def _bracket(excess: Callable[[float], float], target: float) -> tuple[_Point, _Point]:
    """Find two noise levels, a factor of 4 apart. At the lower one, ε is above the target, and at
    the higher one it is not.
    """
    point = _at(excess, 0.0)
    step = math.log(4.0) if point[1] > 0 else -math.log(4.0)
    while True:
        following = _at(excess, point[0] + step)
        if (following[1] > 0) != (point[1] > 0):
            return (point, following) if step > 0 else (following, point)
        if following[0] < math.log(_LEAST_NOISE):
            return following, following
        if following[0] > math.log(_MOST_NOISE):
            raise ConfigError(
                f"no noise up to {_MOST_NOISE:g} meets target_epsilon = {target}; "
                "raise target_epsilon or delta, or make fewer releases"
            )
        point = following


def _at(excess: Callable[[float], float], log_noise: float) -> _Point:
    return log_noise, excess(log_noise)


def _shrink(excess: Callable[[float], float], low: _Point, high: _Point) -> float:
    # ln ε is nearly linear in the logarithm of the noise, so that secant steps converge fast. Each
    # step aims slightly past the root, so that both ends of the bracket approach it.
    aim = 0.4 * _TOLERANCE
    while (width := high[0] - low[0]) > _TOLERANCE:
        for _ in range(2):
            secant = low[0] + (high[0] - low[0]) * low[1] / (low[1] - high[1])
            inside = min(max(secant + aim, low[0]), high[0])
            point = _at(excess, inside)
            aim = -0.4 * _TOLERANCE if point[1] <= 0 else 0.4 * _TOLERANCE
            low, high = (point, high) if point[1] > 0 else (low, point)
        if high[0] - low[0] > max(width / 2, _TOLERANCE):
            point = _at(excess, (low[0] + high[0]) / 2)
            low, high = (point, high) if point[1] > 0 else (low, point)
    return high[0]
