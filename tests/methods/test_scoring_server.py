"""Private scoring's steps: neither noise nor a wide q makes them swing or stand still."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from tacit.data.schema.layout import INTERCEPT, Feature
from tacit.methods.scoring import server as scoring_server
from tacit.methods.scoring import synthetic
from tacit.methods.scoring.marginals import marginals
from tacit.methods.scoring.party import counted, counts_sum, moment_sum
from tacit.methods.scoring.server import (
    History,
    Prior,
    Public,
    _steeper,
    solve,
)
from tacit.methods.scoring.synthetic import Synthetic, correlated, least_known
from tacit.models.glm.logistic import BernoulliLikelihood
from tacit.models.scores import NODE_WEIGHTS, NODES

SIZE = 40


def test_a_move_that_follows_the_noise_is_not_taken_for_a_steep_score():
    """Every move is along the noise of the score before it, as steps of a server are."""
    rng, found = np.random.default_rng(1), []
    for _ in range(200):
        noise = 10.0 * rng.standard_normal((2, SIZE))
        points = np.stack([np.zeros(SIZE), 0.01 * noise[0]])
        history = History(points, noise - points, np.full(2, 10.0))
        found.append(_steeper(points, history, np.eye(SIZE)))
    assert np.mean(np.array(found) == 1.0) > 0.97


def test_a_curvature_of_a_quarter_is_noticed():
    rng = np.random.default_rng(2)
    points = np.stack([np.zeros(SIZE), rng.standard_normal(SIZE)])
    history = History(points, -4.0 * points, np.full(2, 1e-3))
    assert _steeper(points, history, np.eye(SIZE)) == pytest.approx(4.0, rel=0.01)


def rare(noise_sd, rounds):
    """Rounds over records of which 2 % are positive, with exact scores that are said to be noisy.

    The shares of positives that q expects, round by round.
    """
    rng = np.random.default_rng(3)
    z = np.column_stack([0.4 * np.ones(600), 0.4 * rng.standard_normal((600, SIZE - 1))])
    truth = np.append(-12.0, 0.8 * rng.standard_normal(SIZE - 1))
    truth[0] += (np.log(0.02) - np.log(np.mean(expit(z @ truth)))) / 0.4
    same, records, likelihood = np.eye(SIZE), 30_000.0, BernoulliLikelihood()
    public = Public(likelihood, 1.0, Synthetic(z, np.zeros((SIZE, SIZE))), records, *[same] * 4)
    prior = Prior(np.zeros(SIZE), np.full(SIZE, 3.0))
    point, width = np.append(np.log(0.02 / 0.98) / 0.4, np.zeros(SIZE - 1)), np.zeros(600)
    points, scores, expected = [], [], []
    for _ in range(rounds):
        p = expit(z @ point)
        weight = 1.0 / np.maximum(np.maximum(p, 1.0 - p) * np.linalg.norm(z, axis=1), 1.0)
        points.append(point)
        scores.append(records / 600 * (weight * (expit(z @ truth) - p)) @ z)
        history = History(np.stack(points), np.stack(scores), np.full(len(points), noise_sd))
        point, _, width = solve(public, history, prior, width)
        around = (z @ point)[:, None] + np.sqrt(width)[:, None] * NODES
        expected.append(np.mean(expit(around) @ NODE_WEIGHTS))
    return np.array(expected) / np.mean(expit(z @ truth))


def test_a_wide_q_does_not_swing(monkeypatch):
    late = rare(100.0, 12)[-4:]
    assert np.ptp(late) < 0.2
    assert np.all(np.abs(late - 1.0) < 0.3)
    # One pass a round does swing here: the test can fail.
    monkeypatch.setattr(scoring_server, "PASSES", 1)
    assert np.ptp(rare(100.0, 12)[-4:]) > 2.0


def released(x, layout, scale):
    """Exact counts and second moment of u = z/|z|, as parties would release them."""
    what, mask = counted(layout, None), np.ones(len(x))
    counts = counts_sum(what, {"x": x}, mask, np.sqrt(1.0 * what.columns)).value
    found = marginals(layout, what, np.asarray(counts), 1.0, len(x))
    moment = moment_sum(x, found.centre, scale, mask, np.ones(())).value
    return what, found, np.asarray(moment)


def test_synthetic_rows_have_the_variances_and_correlations_of_z(monkeypatch):
    """Correlations of u are smaller, the more so for the longest columns; hat counts spread."""
    rng, size, records = np.random.default_rng(5), 8, 30_000
    x = 0.5 * rng.multivariate_normal(np.zeros(size), 0.4 * np.eye(size) + 0.6, size=records)
    x = np.column_stack([np.ones(records), np.clip(x, -3.0, 3.0)])
    layout = (INTERCEPT, *(Feature("numeric", f"v{i}", -3.0, 3.0) for i in range(size)))
    scale = np.append(0.3, np.where(np.arange(size) < 4, 0.8, 0.25))
    what, found, moment = released(x, layout, scale)
    np.testing.assert_allclose(found.variance[1:], np.var(x[:, 1:], axis=0), rtol=0.02)
    pairs = np.triu_indices(size, 1)
    truth = np.asarray(np.corrcoef(x[:, 1:].T))[pairs]

    def error():
        rows = correlated(layout, what, found, scale, moment, 1.0).z[:, 1:]
        np.testing.assert_allclose(np.mean(rows**2, axis=0) / scale[1:] ** 2, 0.25, rtol=0.05)
        return np.max(np.abs(np.asarray(np.corrcoef(rows.T))[pairs] - truth))

    assert error() < 0.05
    monkeypatch.setattr(synthetic, "MATCHES", 1)
    assert error() > 0.15


@pytest.mark.parametrize("seed", range(4))
def test_doubt_does_not_grow_as_correlations_vanish(seed):
    """The ratio of correlations of z to those of u is a slope: 1 + 2/p for p normal columns.

    As a quotient of correlations it would be infinite for a released correlation of 0.
    """
    rng = np.random.default_rng(seed)
    z = np.column_stack([np.zeros(4_000), rng.normal(size=(4_000, 4))])
    free, among = np.arange(5) > 0, ~np.eye(5, dtype=bool)
    among[0] = among[:, 0] = False
    unit = synthetic._unit(z)
    spread = np.sqrt(np.mean(unit * unit, axis=0))
    outer = np.outer(spread, spread) + (spread[:, None] * spread == 0)
    for size in (0.0, 1e-9, 0.05):
        wanted = np.where(among, size, 0.0)
        _, gain = synthetic._matched(
            z, free, among, wanted, outer, np.std(z, axis=0) + (~free), 0.2
        )
        assert gain == pytest.approx(1.5, abs=0.1)


def two_columns(correlation, records=30_000):
    rng = np.random.default_rng(7)
    first = rng.normal(size=records)
    other = correlation * first + np.sqrt(1.0 - correlation**2) * rng.normal(size=records)
    x = np.column_stack([np.ones(records), np.clip(np.stack([first, other], 1) / 4.0, -1.0, 1.0)])
    layout = (INTERCEPT, *(Feature("numeric", name, -1.0, 1.0) for name in "ab"))
    return (layout, *released(x, layout, np.array([0.5, 1.5, 1.5])))


@pytest.mark.parametrize("correlation", [-0.96, 0.5, 0.9, 0.96, 0.99])
def test_strong_correlations_are_followed(correlation):
    """1 − |ρ|, on which the difference of two coefficients depends, is not rounded up."""
    layout, what, found, moment = two_columns(correlation)
    drawn = correlated(layout, what, found, np.array([0.5, 1.5, 1.5]), moment, 1.0)
    apart = 1.0 - abs(np.corrcoef(drawn.z[:, 1:].T)[0, 1])
    assert apart == pytest.approx(1.0 - abs(correlation), rel=0.25)
    worst = least_known(layout, drawn)
    assert worst is not None
    assert worst.error < 1.0 / 3.0


def test_a_correlation_that_noise_hides_is_noticed():
    layout, what, found, moment = two_columns(0.99)
    scale = np.array([0.5, 1.5, 1.5])
    drawn = correlated(layout, what, found, scale, moment, 400.0)
    worst = least_known(layout, drawn)
    assert worst is not None
    assert worst.error > 1.0 / 3.0
    assert set(worst.columns) == {1, 2}
    assert least_known(layout[:2], Synthetic(drawn.z[:, :2], drawn.doubt[:2, :2])) is None
