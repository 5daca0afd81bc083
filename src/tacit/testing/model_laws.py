"""Checks of the distribution of an outcome that is a count or a number.

exp(log p) must add up to 1 over all y, and its mean must be `response`. Simulated outcomes must
have this mean, and scores with the variance that the likelihood implies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.models.capabilities import Simulates
from tacit.models.glm.base import LinearPredictor
from tacit.testing.comparisons import expect_close
from tacit.testing.families import STANDARD_ERRORS
from tacit.testing.model_draws import expect_drawn_from
from tacit.testing.model_grids import grid_of, has_outcome, one_response

if TYPE_CHECKING:
    from tacit.testing.models import Subject

SIMULATED = 20_000
"""Number of simulated outcomes per record."""
STEP = 1e-5
"""Step of first differences in θ."""
SECOND_STEP = 1e-3
"""Step of second differences in θ."""
FAR = 50.0
"""Absolute value of the predictors at which the log-likelihood must be finite."""


def check_density(subject: Subject) -> bool:
    """Check that exp(log p) adds up to 1 over all counts or numbers y, and that `response` is the
    mean. Return False if y is not a count or a number, or if its tails are too heavy, which causes
    a warning.
    """
    model, checked = subject.model, False
    if model.output not in ("gaussian", "other") or not has_outcome(subject):
        return False
    for theta, row in zip(subject.thetas, range(subject.count), strict=False):
        grid = grid_of(subject, theta, row)
        if grid is None:
            continue
        expect_close(
            f"density: exp(log-likelihood) of record {row} does not add up to 1 over {grid.where}",
            grid.mass, 1.0, grid.tolerance,
        )  # fmt: skip
        record = {name: value[row : row + 1] for name, value in subject.records.items()}
        mean = one_response(subject, theta, record)
        if mean is not None:
            spread = np.sqrt(grid.variance) / max(1.0, abs(grid.mean))
            allowed = grid.tolerance * max(1.0, float(spread))
            expect_close(f"response: not the mean of y of record {row}", mean, grid.mean, allowed)
        checked = True
    return checked


def check_far_predictors(subject: Subject) -> None:
    """Check that the log-likelihood, its gradient and the response are finite for predictors of
    ±50.
    """
    model = subject.model
    if not isinstance(model, LinearPredictor) or not has_outcome(subject):
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
        expect_mean(f"{law} mean score", score, 0.0, slack)
        bend = along(SECOND_STEP) - 2 * along(0.0) + along(-SECOND_STEP)
        excess = np.square(score) + bend / SECOND_STEP**2
        size = 1e-4 * (1.0 + float(np.mean(np.square(score))))
        expect_mean(f"{law} variance of the score minus −E[ℓ'']", excess, 0.0, size)
        record = {name: value[:1] for name, value in copies.items()}
        mean = one_response(subject, theta, record)
        if mean is not None:
            slack = 1e-6 * (1.0 + abs(mean))
            expect_mean(f"simulate: mean outcome of record {row}", copies["y"], mean, slack)
        grid = grid_of(subject, theta, row)
        if grid is not None and grid.adds_up:
            what = f"simulate: outcomes of record {row}"
            expect_drawn_from(what, copies["y"], grid, subject.rng)


def expect_mean(what: str, draws: np.ndarray, expected: float, slack: float) -> None:
    """Assert that the mean of the draws is within five standard errors of its expected value."""
    found = float(np.mean(draws))
    allowed = STANDARD_ERRORS * float(np.std(draws)) / np.sqrt(len(draws)) + slack
    assert abs(found - expected) <= allowed, (
        f"{what}: found {found:.3g}, expected {expected:.3g} ± {allowed:.2g}"
    )
