"""Grids of outcomes with their probabilities, computed from the log-likelihood of a record.

A count has a grid of 0, 1, 2, … and a label one of all labels. A number y has a grid for the
trapezoidal rule after a substitution that depends on the support of y:

* all numbers: y = c + s·sinh(t), where c is the mean and s the width of the density;
* y > a: y = a + exp(u), and likewise y < b. The range of u also covers densities that are infinite
  at the end;
* a < y < b: y = a + (b − a)/(1 + exp(−u)).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tacit.errors import ConfigError, TacitError

if TYPE_CHECKING:
    from tacit.testing.models import Subject

MOST_COUNT = 2**17
"""Counts up to this one are summed."""
POINTS, REACH = 20_001, 12.0
"""Number of points, and range of t, of the grid y = c + s·sinh(t)."""
END_POINTS, NEAR, BEYOND = 40_001, 200.0, 28.0
"""Number of points of the other grids, and range of u relative to the logarithm of the distance
between the mean and the end: −NEAR to BEYOND.
"""
LARGEST_LOGIT = 36.0
"""With a larger u, a + (b − a)/(1 + exp(−u)) is b in float64."""
FAR_END = 50.0
"""An end of the support that is further than this many widths from the mean is ignored: a grid in
exp(u) would be too coarse at the mean.
"""
HEAVY = 1e-4
"""Largest contribution of an end of a grid, as a share of the probability."""
TOLERANCE = 2e-3
"""Tolerance of the sum over a grid of numbers."""
TINY = 1e-200


class Support(NamedTuple):
    """The numbers between `low` and `high`, which may be infinite."""

    low: float = -np.inf
    high: float = np.inf

    def __str__(self) -> str:
        low = "" if np.isinf(self.low) else f"{self.low:.6g} < "
        return f"{low}y" if np.isinf(self.high) else f"{low}y < {self.high:.6g}"


class Grid(NamedTuple):
    """Values of y with the probability of each, and the tolerance of their sum."""

    y: np.ndarray
    probability: np.ndarray
    tolerance: float
    discrete: bool = False
    """True if y is a count or a label."""
    where: str = "y"
    """The values of y that the grid covers."""

    @property
    def mass(self) -> float:
        """Sum of the probabilities."""
        return float(np.sum(self.probability))

    @property
    def adds_up(self) -> bool:
        """True if the probabilities add up to 1."""
        return abs(self.mass - 1.0) <= self.tolerance

    @property
    def mean(self) -> float:
        """Mean of y."""
        return float(self.y @ self.probability)

    @property
    def variance(self) -> float:
        """Variance of y."""
        return float((self.y - self.mean) ** 2 @ self.probability)

    def distribution(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return P(Y < y) and P(Y ≤ y) for each y."""
        total = np.concatenate([[0.0], np.cumsum(self.probability)])
        if self.discrete:
            below, within = (np.searchsorted(self.y, y, side) for side in ("left", "right"))
            return total[below], total[within]
        # A point of the trapezoidal rule has half of its probability on either side.
        end = np.interp(y, self.y, total[1:] - 0.5 * self.probability, left=0.0, right=total[-1])
        return end, end

    def quantile(self, level: np.ndarray) -> np.ndarray:
        """Return the point of the grid at which the distribution function first exceeds each
        level.
        """
        place = np.searchsorted(np.cumsum(self.probability), level, "right")
        return self.y[np.minimum(place, len(self.y) - 1)]


def has_outcome(subject: Subject) -> bool:
    """True if each record has one outcome y."""
    return "y" in subject.records and np.ndim(subject.records["y"]) == 1


def are_counts(y: np.ndarray) -> bool:
    """True if all outcomes are whole numbers that are not negative."""
    return bool(np.all((y >= 0) & (y == np.floor(y))))


def one_response(subject: Subject, theta: np.ndarray, record: Any) -> float | None:
    """Return `response` of a single record, or None if the model has no single mean per record."""
    try:
        found = np.asarray(subject.model.response(theta, record), np.float64)
    except ConfigError:  # a model without one mean per record says so
        return None
    return float(found[0]) if found.shape == (1,) else None


def grid_of(subject: Subject, theta: np.ndarray, row: int) -> Grid | None:
    """Return a grid of the outcome of record `row`, given θ. Return None, with a warning, if the
    tails are too heavy for a sum.

    If y is a number, the support is the first of `_supports` for which the probabilities add up to
    1, or otherwise the first one.
    """
    model = subject.model
    record = {name: value[row : row + 1] for name, value in subject.records.items()}

    def logs(y: np.ndarray) -> np.ndarray:
        rows = {name: np.repeat(value, len(y), axis=0) for name, value in record.items()}
        with np.errstate(all="ignore"):
            return subject.log_likelihood(theta, rows | {"y": y})

    def accepts(y: float) -> bool:
        try:
            model.check_records("a", record | {"y": np.array([y])})
        except TacitError:
            return False
        return True

    if model.output in ("bernoulli", "categorical"):
        response = np.asarray(model.response(theta, record))
        y = np.arange(response.shape[1] if response.ndim == 2 else 2, dtype=np.float64)
        return Grid(y, _density(logs, y), 1e-6, discrete=True)
    if model.output == "other" and are_counts(subject.records["y"]):
        grid = _counts(logs)
    else:
        mean = one_response(subject, theta, record)
        centre = float(record["y"][0]) if mean is None else mean
        grid = _numbers(logs, accepts, centre, subject.records["y"])
    if grid is None:
        warnings.warn(
            "density: not checked for some records: the tails of y are too heavy for a sum",
            stacklevel=2,
        )
    return grid


def _density(logs: Callable[[np.ndarray], np.ndarray], y: np.ndarray) -> np.ndarray:
    """Return p(y | θ) for each outcome in `y`; 0 if the log-likelihood is NaN."""
    with np.errstate(all="ignore"):
        return np.nan_to_num(np.exp(logs(y)), nan=0.0, posinf=np.inf)


def _counts(logs: Callable[[np.ndarray], np.ndarray]) -> Grid | None:
    most = 512
    while most <= MOST_COUNT:
        y = np.arange(most, dtype=np.float64)
        probability = _density(logs, y)
        if probability[-1] * most**2 < 1e-9:
            return Grid(y, probability, 1e-6, discrete=True)
        most *= 4
    return None


def _numbers(
    logs: Callable[[np.ndarray], np.ndarray],
    accepts: Callable[[float], bool],
    centre: float,
    known: np.ndarray,
) -> Grid | None:
    """Return a grid of a number y. `known` are the outcomes of all records."""
    width, scale = _widths(logs, centre, known)
    found: list[Grid | None] = []
    for support in _supports(logs, accepts, centre, scale, known):
        grid = _grid_on(logs, support, centre, width, scale)
        if grid is not None and grid.adds_up:
            return grid
        found.append(grid)
    if found[0] is None:  # the other supports are parts of the first one
        return None
    finite = [grid for grid in found if grid is not None and np.isfinite(grid.mass)]
    return finite[0] if finite else found[0]


def _widths(
    logs: Callable[[np.ndarray], np.ndarray], centre: float, known: np.ndarray
) -> tuple[float, float]:
    """Return the width of the density at its centre, or infinity if log p is not concave there, and
    a scale for grids.
    """
    h = 1e-3 * max(1.0, abs(centre))
    near = logs(centre + h * np.array([-1.0, 0.0, 1.0]))
    bend = -(near[0] - 2 * near[1] + near[2])
    rounding = 64 * np.finfo(np.float64).eps * max(1.0, float(np.max(np.abs(near))))
    width = float(h / np.sqrt(bend)) if bend > rounding else np.inf
    spread = float(np.std(known)) or 1.0
    return width, width if width < 1e3 * max(spread, abs(centre)) else spread


def _supports(
    logs: Callable[[np.ndarray], np.ndarray],
    accepts: Callable[[float], bool],
    centre: float,
    scale: float,
    known: np.ndarray,
) -> Iterator[Support]:
    """Yield the possible supports of y.

    They are the numbers around `centre` with a finite log-likelihood, those of them that
    `check_records` accepts, and the positive numbers if all known outcomes are positive.
    """

    def finite(y: np.ndarray) -> np.ndarray:
        return np.isfinite(logs(y))

    def accepted(y: np.ndarray) -> np.ndarray:
        return np.array([accepts(float(one)) for one in y])

    steps = scale * np.sinh(np.linspace(0.0, REACH, 1001)[1:])
    own = Support(_end(finite, centre, -steps), _end(finite, centre, steps))
    yield own
    steps = scale * np.sinh(np.linspace(0.0, REACH, 41)[1:])
    low, high = _end(accepted, centre, -steps, 9), _end(accepted, centre, steps, 9)
    narrow = Support(max(own.low, low), min(own.high, high))
    yield from dict.fromkeys(
        one
        for one in (Support(narrow.low, own.high), narrow)
        if one != own
    )  # fmt: skip
    if np.all(known >= 0) and own.low < 0 < own.high and narrow.low != 0:
        yield Support(0.0, own.high)


def _end(
    inside: Callable[[np.ndarray], np.ndarray],
    centre: float,
    steps: np.ndarray,
    parts: int = 1001,
) -> float:
    """Return the end of the interval around `centre` in the direction of `steps` in which `inside`
    is true. It is infinite if all steps are inside.
    """
    sign = np.sign(steps[0])
    outside = np.flatnonzero(~inside(centre + steps))
    if len(outside) == 0:
        return float(sign * np.inf)
    near = centre if outside[0] == 0 else float(centre + steps[outside[0] - 1])
    far = float(centre + steps[outside[0]])
    if near * far <= 0 and list(inside(np.array([-sign, sign]) * TINY)) == [True, False]:
        return 0.0
    while abs(far - near) > 1e-15 * max(abs(far), abs(near), TINY):
        points = np.linspace(near, far, parts)
        first = int(np.flatnonzero(~inside(points[1:]))[0]) + 1
        if (points[first - 1], points[first]) == (near, far):
            break
        near, far = float(points[first - 1]), float(points[first])
    return near


def _grid_on(
    logs: Callable[[np.ndarray], np.ndarray],
    support: Support,
    centre: float,
    width: float,
    scale: float,
) -> Grid | None:
    """Return the grid on a support, or None if the tails are too heavy. Probabilities are infinite
    where log p overflows.
    """
    low, high = (
        end if abs(end - centre) <= FAR_END * width else np.copysign(np.inf, end - centre)
        for end in support
    )
    if not low < centre < high:
        return None
    if np.isfinite(low) and np.isfinite(high):
        u, step = np.linspace(-NEAR, LARGEST_LOGIT, END_POINTS, retstep=True)
        share = 1.0 / (1.0 + np.exp(-u))
        y, slope = low + (high - low) * share, (high - low) * share * (1.0 - share)
        reach = 0.0  # there are no tails
    elif np.isfinite(low) or np.isfinite(high):
        sign = 1.0 if np.isfinite(low) else -1.0
        end = low if sign > 0 else high
        u, step = np.linspace(-NEAR, BEYOND, END_POINTS, retstep=True)
        slope = abs(centre - end) * np.exp(u)
        y, reach = end + sign * slope, BEYOND
    else:
        t, step = np.linspace(-REACH, REACH, POINTS, retstep=True)
        y, slope = centre + scale * np.sinh(t), scale * np.cosh(t)
        reach = REACH
    slope = np.where((y > support.low) & (y < support.high), slope, 0.0)
    with np.errstate(all="ignore"):
        each = np.nan_to_num(slope * _density(logs, y), nan=0.0, posinf=np.inf)
    if np.all(np.isfinite(each)) and max(each[0], each[-1]) * reach > HEAVY:
        return None
    order = np.argsort(y, kind="stable")
    return Grid(y[order], step * each[order], TOLERANCE, where=str(Support(low, high)))
