"""Checks of a model's score likelihood against its log-likelihood, for private scoring.

If the bound of a score is too small, clipping depends on the label and causes bias. A wrong
expectation, slope or variance would give a wrong posterior without any warning.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tacit.models import Model
from tacit.models.capabilities import Scores
from tacit.models.scores import ScoreLikelihood
from tacit.testing.comparisons import CLOSE, expect_at_most, expect_close
from tacit.testing.model_grids import BEYOND, END_POINTS, NEAR, REACH, are_counts
from tacit.testing.model_grids import POINTS as GRID_POINTS
from tacit.testing.models import Subject

POINTS = np.linspace(-2.0, 2.0, 9)
STEP = 1e-4
MASS = 1e-9
"""Expectations are compared only at predictors for which outcomes outside the range of y have a
probability below this.
"""
LEAST_POINTS = 3


class Outcomes(NamedTuple):
    """Values of an outcome y, and the probability of each value (column) at each predictor
    (row).
    """

    y: np.ndarray
    probability: np.ndarray


def extreme_outcomes(model: Model) -> list[float]:
    """Return all labels, or the smallest and largest y. The list is empty if y has no public
    bounds.
    """
    if model.output == "bernoulli":
        return [0.0, 1.0]
    if not isinstance(model, Scores):
        return []
    likelihood = model.score_likelihood()
    if likelihood.levels:
        return [float(level) for level in range(likelihood.levels)]
    return [] if likelihood.largest is None else [likelihood.smallest, likelihood.largest]


def check_scores(subject: Subject) -> None:
    """Check the bound and the moments of the model's score. Check that one record moves a clipped
    sum of scores by at most the clip.
    """
    model = subject.model
    assert isinstance(model, Scores)
    likelihood = model.score_likelihood()
    points = _points(likelihood, subject.rng)
    outcomes = _outcomes(subject, likelihood, points)
    inside = np.abs(outcomes.probability.sum(axis=1) - 1.0) < MASS
    _check_link(likelihood, points[inside], _at(outcomes, inside))
    for reach in likelihood.reaches:
        _check_bound(likelihood, points, outcomes, reach)
        assert inside.sum() >= LEAST_POINTS, (
            f"score_likelihood: the probabilities of all outcomes add up to 1 at {inside.sum()} of "
            f"{len(points)} predictors only: give the check wider bounds of y"
        )
        _check_moments(likelihood, points[inside], _at(outcomes, inside), reach)
        _check_sensitivity(subject, likelihood, outcomes.y, reach)


def _points(likelihood: ScoreLikelihood, rng: np.random.Generator) -> np.ndarray:
    """Return the values of the linear predictor to test, one per row. If y is bounded, the
    corresponding means are within its bounds.
    """
    if likelihood.levels:
        return rng.standard_normal((len(POINTS), likelihood.levels))
    if likelihood.largest is None:
        return POINTS
    # Include small means: for larger ones, y may have mass beyond the largest y.
    share = np.concatenate([np.geomspace(1e-3, 0.05, 6), np.linspace(0.1, 0.95, len(POINTS))])
    means = likelihood.smallest + share * (likelihood.largest - likelihood.smallest)
    return np.array([float(likelihood.link(mean)) for mean in means])


def _check_link(likelihood: ScoreLikelihood, points: np.ndarray, outcomes: Outcomes) -> None:
    """Check that `link` converts the mean of y to the predictor, if y is a bounded number."""
    if likelihood.levels or likelihood.largest is None:
        return
    means = outcomes.probability @ outcomes.y
    found = np.array([float(likelihood.link(mean)) for mean in means])
    expect_close("score_likelihood: link of the mean is not the predictor", found, points, 1e-4)


def _outcomes(subject: Subject, likelihood: ScoreLikelihood, points: np.ndarray) -> Outcomes:
    """Return all possible outcomes, or a fine grid of them, with their probabilities at each
    predictor in `points`.
    """
    model = subject.model
    width = model.x_columns or 1
    step: Any = 1.0
    if likelihood.levels:
        y = np.arange(likelihood.levels, dtype=float)
    elif model.output == "bernoulli":
        y = np.array([0.0, 1.0])
    elif model.output == "gaussian":
        low, high = _span(model, width, points, likelihood)
        y, step = np.linspace(low, high, 20001, retstep=True)
    elif are_counts(subject.records["y"]):
        assert likelihood.largest is not None, (
            "score_likelihood: `largest` is None; a model of counts must declare its largest y"
        )
        y = np.arange(likelihood.smallest, likelihood.largest + 1.0)
    else:
        y, step = _number_grid(subject, likelihood)
    logs = np.stack([_log_density(model, width, eta, y) for eta in points])
    with np.errstate(invalid="ignore"):
        return Outcomes(y, np.nan_to_num(step * np.exp(logs), nan=0.0))


def _number_grid(subject: Subject, likelihood: ScoreLikelihood) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers y, and the weight of each in an integral over y.

    If y is bounded or positive, y = a + exp(u) with equal steps of u, where a is the smallest y.
    Otherwise y = s·sinh(t) with equal steps of t, where s is the standard deviation of the records'
    outcomes.
    """
    known = subject.records["y"]
    low, high = likelihood.smallest, likelihood.largest
    if high is None and np.min(known) < 0:
        t, step = np.linspace(-REACH, REACH, GRID_POINTS, retstep=True)
        scale = float(np.std(known))
        return scale * np.sinh(t), step * scale * np.cosh(t)
    if high is None:
        low, end = 0.0, np.log(float(np.max(known))) + BEYOND
    else:
        end = np.log(high - low)
    u, step = np.linspace(end - NEAR, end, END_POINTS, retstep=True)
    return low + np.exp(u), step * np.exp(u)


def _span(
    model: Model, width: int, points: np.ndarray, likelihood: ScoreLikelihood
) -> tuple[float, float]:
    """Return the range of y. For an unbounded y, it is the range of the predictors, extended by 12
    standard deviations of y on both sides.
    """
    if likelihood.largest is not None:
        return likelihood.smallest, likelihood.largest
    at, h = float(points[0]), 1e-3
    logs = [_log_density(model, width, at + k * h, np.array([at]))[0] for k in (-1, 0, 1)]
    sd = 1.0 / np.sqrt(-(logs[0] - 2 * logs[1] + logs[2]) / h**2)
    return float(np.min(points) - 12 * sd), float(np.max(points) + 12 * sd)


def _log_density(model: Model, width: int, eta: Any, y: np.ndarray) -> np.ndarray:
    # For a record whose first column is 1 and whose other columns are 0.
    eta = np.atleast_1d(eta)
    theta = np.zeros((len(eta), width))
    theta[:, 0] = eta
    x = np.zeros((len(y), width))
    x[:, 0] = 1.0
    return np.asarray(model.log_likelihood(theta.reshape(-1), {"x": x, "y": y}), np.float64)


def _at(outcomes: Outcomes, rows: np.ndarray) -> Outcomes:
    return Outcomes(outcomes.y, outcomes.probability[rows])


def _residuals(
    likelihood: ScoreLikelihood, points: np.ndarray, y: np.ndarray, reach: float
) -> np.ndarray:
    """Return the score of every outcome at every predictor. The shape is (predictors, outcomes, K),
    where K is the number of levels of y, or 1 if y is a number.
    """
    at = np.float64(reach)
    rows = [np.broadcast_to(eta, (len(y), *np.shape(eta))) for eta in points]
    each = [likelihood.residual(y, eta, at) for eta in rows]
    found = np.stack([np.asarray(one) for one in each])
    return found if likelihood.levels else found[:, :, None]


def _check_bound(
    likelihood: ScoreLikelihood, points: np.ndarray, outcomes: Outcomes, reach: float
) -> None:
    y = outcomes.y
    if not likelihood.levels and likelihood.largest is None:
        ends = [-1e9 if np.min(y) < 0 else 0.0, 1e9]
        y = np.concatenate([y[:: len(y) // 16], ends])
    lengths = np.linalg.norm(_residuals(likelihood, points, y, reach), axis=2)
    bound = np.asarray(likelihood.bound(points, np.float64(reach)))
    expect_at_most("score_likelihood: bound", lengths, bound[:, None])


def _check_moments(
    likelihood: ScoreLikelihood, points: np.ndarray, outcomes: Outcomes, reach: float
) -> None:
    """Check the expectation, slope and variance of the score. The slope is the derivative of the
    expectation with respect to the true predictor.
    """
    at = np.float64(reach)
    psi, p = _residuals(likelihood, points, outcomes.y, reach), outcomes.probability
    zero = np.asarray(likelihood.expected(points, points, at))
    expect_close("score_likelihood: expected(η, η) is not 0", zero, 0.0)
    middle = len(points) // 2
    here = _residuals(likelihood, points[middle][None], outcomes.y, reach)[0]
    found = np.stack([
        np.asarray(likelihood.expected(truth[None], points[middle][None], at))[0]
        for truth in points
    ])  # fmt: skip
    expected = np.einsum("my,yk->mk", p, here)
    expect_close("score_likelihood: expected", found.reshape(expected.shape), expected, CLOSE)
    slope = np.asarray(likelihood.slope(points, at))
    differences = _slopes_by_difference(likelihood, points, at)
    expect_close("score_likelihood: slope", slope.reshape(differences.shape), differences, CLOSE)
    mean = np.einsum("my,myk->mk", p, psi)
    second = np.einsum("my,myk,myl->mkl", p, psi, psi)
    spread = second - mean[:, :, None] * mean[:, None, :]
    variance = np.asarray(likelihood.variance(points, at))
    expect_close("score_likelihood: variance", variance.reshape(spread.shape), spread, CLOSE)


def _slopes_by_difference(
    likelihood: ScoreLikelihood, points: np.ndarray, reach: np.float64
) -> np.ndarray:
    # The derivative of `likelihood.expected` in its argument `truth`, at truth = eta for each of
    # the m `points`. The result has shape (m, K, K), where K is the number of predictors of a
    # record.
    outputs = likelihood.outputs
    columns = []
    for output in range(outputs):
        move = STEP * (np.eye(outputs)[output] if likelihood.levels else 1.0)
        ahead, behind = (
            np.asarray(likelihood.expected(points + sign * move, points, reach))
            for sign in (1.0, -1.0)
        )
        columns.append(((ahead - behind) / (2 * STEP)).reshape(len(points), outputs))
    return np.stack(columns, axis=2)


def _check_sensitivity(
    subject: Subject, likelihood: ScoreLikelihood, y: np.ndarray, reach: float
) -> None:
    """Check that one record moves the clipped sum of scores by at most the clip."""
    import jax.numpy as jnp

    from tacit.methods.scoring.party import score_sum

    model, clip = subject.model, 0.5
    width = model.x_columns or 1
    x = (
        subject.rng.standard_normal((6, width))
        * np.array([1e-6, 1.0, 1.0, 10.0, 1e3, 1e8])[:, None]
    )
    ends = jnp.asarray(np.resize(y[[0, -1]], 6))
    for row in range(6):
        one = jnp.zeros(6).at[row].set(1.0)
        bounded = score_sum(
            likelihood,
            {"x": jnp.asarray(x), "y": ends},
            one,
            jnp.asarray(clip),
            centre=jnp.zeros(width),
            scale=jnp.ones(width),
            bend=jnp.zeros((1, width)),
            point=jnp.asarray(subject.thetas[0]),
            reach=jnp.asarray(reach),
        )
        moved = float(np.linalg.norm(np.asarray(bounded.value)))
        expect_at_most("score_likelihood: one record moves the sum", moved, clip)
