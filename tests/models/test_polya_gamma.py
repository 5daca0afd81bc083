"""The augmentation's weight and bound, against series and quadrature."""

import numpy as np
import pytest

from tacit.expfam import FullGaussian, MeanFieldGaussian
from tacit.expfam.quadrature import hermite
from tacit.models import LogisticRegression
from tacit.models.polya_gamma import expected_weight, log_scale


@pytest.mark.parametrize("c", [0.0, 1e-9, 9.99e-4, 1.01e-3, 0.3, 2.0, 40.0, 1e4])
def test_the_weight_is_that_of_its_series(c):
    """ω ~ PG(1, c) is Σ_k g_k/(2π²((k − ½)² + c²/4π²)) with g_k ~ Exp(1): its mean term by term."""
    k = np.arange(1, 2_000_001) - 0.5
    series = np.sum(1.0 / (2.0 * np.pi**2 * (k**2 + c**2 / (4.0 * np.pi**2))))
    rest = 1.0 / (2.0 * np.pi**2 * k[-1])
    assert float(expected_weight(np.float64(c))) == pytest.approx(series + rest, rel=1e-6)


def test_the_bound_is_below_the_expectation_and_touches_it():
    nodes, weights = hermite(64)
    for mean, sd in ((0.0, 0.1), (1.0, 0.5), (-3.0, 2.0), (6.0, 0.01)):
        eta = mean + sd * nodes
        exact = weights @ (eta - np.logaddexp(eta, 0.0))
        bound = 0.5 * mean + log_scale(np.sqrt(mean**2 + sd**2))
        assert bound <= exact + 1e-12
        assert exact - bound < 0.05 * sd**2 + 1e-9


def test_the_unit_of_a_logistic_regression_is_a_usual_norm():
    """Columns of variance 1: a contribution has about a norm of 1."""
    names = ("intercept", "a", "b", "c")
    model = LogisticRegression(names, prior_sd=1.0)
    rng = np.random.default_rng(0)
    records = {"x": np.column_stack([np.ones(200), rng.normal(size=(200, 3))]), "y": np.ones(200)}
    for family in (FullGaussian(4), MeanFieldGaussian(4)):
        found = model.statistics(family, model.prior(family), records, np.ones(200))
        assert found is not None
        assert 0.5 < np.median(found.norms()) < 2.0
