"""Scales of an undeclared prior in private scoring: integrated out, and stated."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.methods.scoring import learnt
from tacit.methods.scoring.learnt import SCALES, integrated
from tacit.models.learnt_scale import LearntScalePrior

COLUMN = np.array([-1, 0, 0, 1, 2])


def prior(unit=1.0):
    return LearntScalePrior(np.zeros(5), np.eye(5), COLUMN, unit)


def likelihood(seed, strength):
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((5, 8))
    information = strength * root @ root.T
    return information, information @ np.array([0.5, 0.3, -0.2, 0.4, 0.0])


def test_the_normal_prior_has_the_moments_of_the_mixture(monkeypatch):
    """Against the sum over τ, one posterior at a time; columns' own scales are left at τ."""
    monkeypatch.setattr(learnt, "REFITS", 1)
    information, pull = likelihood(1, 3.0)
    found = integrated(prior(), information, pull)
    constant = found.precision[0, 0]
    weights, means, covariances = [], [], []
    for scale in SCALES:
        own = np.diag(np.where(COLUMN >= 0, scale**-2.0, constant))
        covariance = np.linalg.inv(information + own)
        mean = covariance @ pull
        fit = 0.5 * np.linalg.slogdet(own)[1] + 0.5 * np.linalg.slogdet(covariance)[1]
        weights.append(fit + 0.5 * pull @ mean - 0.5 * scale**2 + np.log(scale))
        means.append(mean)
        covariances.append(covariance)
    share = np.exp(np.array(weights) - np.max(weights))
    share /= np.sum(share)
    mean = share @ np.array(means)
    within = np.einsum("t,tij->ij", share, np.array(covariances))
    between = np.einsum("t,ti,tj->ij", share, np.array(means) - mean, np.array(means) - mean)
    whole = np.linalg.inv(information + found.precision)
    np.testing.assert_allclose(whole @ pull, mean, rtol=1e-8)
    free = COLUMN >= 0
    np.testing.assert_allclose(whole[np.ix_(free, free)], within[np.ix_(free, free)], rtol=1e-8)
    np.testing.assert_allclose(found.between, between, atol=1e-9)


def test_where_next_to_nothing_was_released_intervals_stay_wide():
    """A scale that is estimated and taken for known would be 0 here."""
    information, pull = likelihood(2, 1e-6)
    found = integrated(prior(), information, 0.0 * pull)
    sd = np.sqrt(np.diagonal(np.linalg.inv(information + found.precision) + found.between))
    assert np.all(sd[1:] > 0.5)


def test_columns_have_scales_of_their_own_and_units_do_not_matter():
    rng, size = np.random.default_rng(4), 40
    column = np.array([-1, *[0] * size, *[1] * size])
    truth = np.append(7.0, np.append(0.1 * np.ones(size), 2.0 * np.ones(size)))
    truth *= rng.choice([-1.0, 1.0], len(truth))
    information = 1e6 * np.eye(len(truth))
    each = []
    for unit in (1.0, 50.0):
        flat = LearntScalePrior(np.zeros(len(truth)), np.eye(len(truth)), column, unit)
        found = integrated(flat, information / unit**2, information @ truth / unit)
        each.append(np.sqrt(1.0 / np.diagonal(found.precision)) / unit)
    np.testing.assert_allclose(*each, rtol=1e-6)
    assert np.mean(each[0][1 : 1 + size]) == pytest.approx(0.2, rel=0.3)
    assert np.mean(each[0][1 + size :]) == pytest.approx(2.0, rel=0.2)
    assert each[0][0] > 5.0
