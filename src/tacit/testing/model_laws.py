"""Checks of the distribution of an outcome that is a count or a number.

exp(log p) must add up to 1 over all y, and its mean must be `response`. Simulated outcomes must
have this mean, and scores with the variance that the likelihood implies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tacit.errors import ConfigError
from tacit.models.capabilities import Simulates
from tacit.models.glm.base import LinearPredictor
from tacit.testing.comparisons import expect_close
from tacit.testing.families import STANDARD_ERRORS

if TYPE_CHECKING:
    from tacit.testing.models import Subject

SIMULATED = 20_000
"""Number of simulated outcomes per record."""
STEP = 1e-5
"""Step of first differences in θ."""
SECOND_STEP = 1e-3
"""Step of second differences in θ."""
MOST_COUNT = 2**17
"""Counts up to this one are summed."""
POINTS, REACH = 20_001, 12.0
"""Number of points, and range of t, of the grid y = c + s·sinh(t) for a number y."""
FAR = 50.0
"""Absolute value of the predictors at which the log-likelihood must be finite."""


class Grid(NamedTuple):
    """Values of y with the probability of each, and the tolerance of their sum."""

    y: np.ndarray
    probability: np.ndarray
    tolerance: float


def check_density(subject: Subject) -> bool:
    """Check that exp(log p) adds up to 1 over all counts or numbers y, and that `response` is the
    mean. Return False if y is not a count or a number, or if its tails are too heavy.
    """
    model, checked = subject.model, False
    if model.output not in ("gaussian", "other") or not _has_outcome(subject):
        return False
    for theta, row in zip(subject.thetas, range(subject.count), strict=False):
        record = {name: value[row : row + 1] for name, value in subject.records.items()}
        mean = _response(subject, theta, record)
        counts = model.output == "other" and _are_counts(subject.records["y"])
        grid = _counts(subject, theta, record) if counts else _numbers(subject, theta, record, mean)
        if grid is None:
            continue
        mass = float(np.sum(grid.probability))
        expect_close(
            f"density: exp(log-likelihood) of record {row} does not add up to 1 over y",
            mass, 1.0, grid.tolerance,
        )  # fmt: skip
        if mean is not None:
            average = float(grid.y @ grid.probability)
            spread = float(np.sqrt((grid.y - average) ** 2 @ grid.probability))
            allowed = grid.tolerance * max(1.0, spread / max(1.0, abs(average)))
            expect_close(f"response: not the mean of y of record {row}", mean, average, allowed)
        checked = True
    return checked


def _has_outcome(subject: Subject) -> bool:
    return "y" in subject.records and np.ndim(subject.records["y"]) == 1


def _response(subject: Subject, theta: np.ndarray, record: Any) -> float | None:
    try:
        found = np.asarray(subject.model.response(theta, record), np.float64)
    except ConfigError:  # a model without one mean per record says so
        return None
    return float(found[0]) if found.shape == (1,) else None


def _are_counts(y: np.ndarray) -> bool:
    return bool(np.all((y >= 0) & (y == np.floor(y))))


def _density(subject: Subject, theta: np.ndarray, record: Any, y: np.ndarray) -> np.ndarray:
    """Return p(y | θ) of the record for each outcome in `y`; 0 if the log-likelihood is NaN."""
    rows = {name: np.repeat(value, len(y), axis=0) for name, value in record.items()}
    with np.errstate(all="ignore"):
        logs = subject.log_likelihood(theta, rows | {"y": y})
        return np.nan_to_num(np.exp(logs), nan=0.0, posinf=np.inf)


def _counts(subject: Subject, theta: np.ndarray, record: Any) -> Grid | None:
    most = 512
    while most <= MOST_COUNT:
        y = np.arange(most, dtype=np.float64)
        probability = _density(subject, theta, record, y)
        if probability[-1] * most**2 < 1e-9:
            return Grid(y, probability, 1e-6)
        most *= 4
    return None


def _numbers(subject: Subject, theta: np.ndarray, record: Any, mean: float | None) -> Grid | None:
    centre = float(record["y"][0]) if mean is None else mean
    h = 1e-3 * max(1.0, abs(centre))
    near = np.log(_density(subject, theta, record, centre + h * np.array([-1.0, 0.0, 1.0])))
    bend = -(near[0] - 2 * near[1] + near[2]) / h**2
    scale = 1.0 / np.sqrt(bend) if bend > 0 else float(np.std(subject.records["y"])) or 1.0
    t, step = np.linspace(-REACH, REACH, POINTS, retstep=True)
    y = centre + scale * np.sinh(t)
    probability = step * scale * np.cosh(t) * _density(subject, theta, record, y)
    heavy = max(probability[0], probability[-1]) * REACH / step > 1e-4
    return None if heavy else Grid(y, probability, 2e-3)


def check_far_predictors(subject: Subject) -> None:
    """Check that the log-likelihood, its gradient and the response are finite for predictors of
    ±50.
    """
    model = subject.model
    if not isinstance(model, LinearPredictor) or not _has_outcome(subject):
        return
    records = {name: np.concatenate([value, value]) for name, value in subject.records.items()}
    records["x"] = np.zeros_like(records["x"])
    records["x"][:, 0] = np.repeat([FAR, -FAR], subject.count)
    theta = np.zeros(model.dimension)
    theta[0] = 1.0
    found: dict[str, Any] = {
        "log-likelihood": subject.log_likelihood(theta, records),
        "response": model.response(theta, records),
    }
    if model.traceable:
        import jax

        slope = jax.jit(jax.jacrev(lambda at: model.log_likelihood(at, records)))
        found["gradient of the log-likelihood"] = slope(theta)
    for what, value in found.items():
        assert np.all(np.isfinite(np.asarray(value))), (
            f"{what}: not finite for predictors of ±{FAR:g}"
        )


def check_simulated_law(subject: Subject) -> None:
    """Check simulated outcomes of many copies of single records: their mean is `response`, their
    scores are 0 on average, and the variance of the scores is −E[ℓ''].
    """
    # The predictors of equal records have no variance, so that `simulate` does not scale them down.
    model, rng = subject.model, subject.rng
    assert isinstance(model, Simulates)
    for theta, row in zip(subject.thetas, range(subject.count), strict=False):
        copies = {
            name: np.repeat(value[row : row + 1], SIMULATED, axis=0)
            for name, value in subject.records.items()
        }
        copies["y"] = np.zeros(SIMULATED)
        copies["y"] = np.asarray(model.simulate(theta, copies, rng), np.float64)
        direction = rng.standard_normal(model.dimension) / np.sqrt(model.dimension)

        def along(
            h: float, theta: Any = theta, copies: Any = copies, direction: Any = direction
        ) -> np.ndarray:
            return subject.log_likelihood(theta + h * direction, copies)

        score = (along(STEP) - along(-STEP)) / (2 * STEP)
        slack = 1e-6 * (1.0 + float(np.max(np.abs(score))))
        law = f"simulate: outcomes of record {row} do not follow the likelihood:"
        _expect_mean(f"{law} mean score", score, 0.0, slack)
        bend = along(SECOND_STEP) - 2 * along(0.0) + along(-SECOND_STEP)
        excess = np.square(score) + bend / SECOND_STEP**2
        size = 1e-4 * (1.0 + float(np.mean(np.square(score))))
        _expect_mean(f"{law} variance of the score minus −E[ℓ'']", excess, 0.0, size)
        record = {name: value[:1] for name, value in copies.items()}
        mean = _response(subject, theta, record)
        if mean is not None:
            slack = 1e-6 * (1.0 + abs(mean))
            _expect_mean(f"simulate: mean outcome of record {row}", copies["y"], mean, slack)


def _expect_mean(what: str, draws: np.ndarray, expected: float, slack: float) -> None:
    """Assert that the mean of the draws is within five standard errors of its expected value."""
    found = float(np.mean(draws))
    allowed = STANDARD_ERRORS * float(np.std(draws)) / np.sqrt(len(draws)) + slack
    assert abs(found - expected) <= allowed, (
        f"{what}: found {found:.3g}, expected {expected:.3g} ± {allowed:.2g}"
    )
