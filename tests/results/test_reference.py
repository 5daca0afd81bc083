"""References against brute force, Monte Carlo and each other."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm

from tacit.errors import ConfigError
from tacit.expfam import Dirichlet, FullGaussian, MeanFieldGaussian
from tacit.models import LinearRegression, LogisticRegression, NormalMean
from tacit.results import (
    exact_posterior,
    kl_gaussian,
    kl_to,
    mean_field_optimum,
    nuts_reference,
)


def regression(seed, parties=3, count=20, dimension=3):
    rng = np.random.default_rng(seed)
    mixing = rng.normal(size=(dimension, dimension))
    model = LinearRegression(tuple("abc")[:dimension], noise_sd=0.8, prior_mean=0.5, prior_sd=2.0)
    theta = rng.normal(size=dimension)
    shares = []
    for _ in range(parties):
        x = rng.normal(size=(count, dimension)) @ mixing
        shares.append({"x": x, "y": x @ theta + 0.8 * rng.normal(size=count)})
    return model, shares


def pooled(shares):
    return {name: np.concatenate([share[name] for share in shares]) for name in shares[0]}


def test_exact_posterior_equals_conditioning_the_joint_normal():
    """Brute force: condition the joint of (θ, y) on y, which inverts an n×n matrix instead."""
    model, shares = regression(0)
    mean, covariance = exact_posterior(model, shares)
    x, y = pooled(shares)["x"], pooled(shares)["y"]
    gain = 4.0 * x.T @ np.linalg.inv(4.0 * x @ x.T + 0.64 * np.eye(len(y)))
    np.testing.assert_allclose(mean, 0.5 + gain @ (y - x @ np.full(3, 0.5)), rtol=1e-9)
    np.testing.assert_allclose(covariance, 4.0 * (np.eye(3) - gain @ x), atol=1e-10)


def test_exact_posterior_of_a_mean_equals_a_grid():
    rng = np.random.default_rng(1)
    model = NormalMean(noise_sd=2.0, prior_mean=1.0, prior_sd=3.0)
    shares = [{"y": rng.normal(size=n)} for n in (4, 0, 7)]
    mean, covariance = exact_posterior(model, shares)
    grid = np.linspace(-8, 8, 20_001)
    log_p = norm.logpdf(grid, 1.0, 3.0) + sum(
        norm.logpdf(share["y"][:, None], grid, 2.0).sum(0) for share in shares
    )
    weight = np.exp(log_p - log_p.max())
    weight /= weight.sum()
    assert mean[0] == pytest.approx(weight @ grid)
    assert covariance[0, 0] == pytest.approx(weight @ (grid - mean[0]) ** 2)


def test_ten_thousand_records_give_the_posterior_variance_of_theory():
    model = NormalMean(noise_sd=1.0, prior_sd=1.0)
    _, covariance = exact_posterior(model, [{"y": np.zeros(5_000)}] * 2)
    assert covariance[0, 0] == pytest.approx(1 / 10_001)


def test_mean_field_optimum_has_the_least_kl():
    model, shares = regression(2)
    exact = exact_posterior(model, shares)
    mean, sd = mean_field_optimum(model, shares)
    family, rng = MeanFieldGaussian(3), np.random.default_rng(0)
    best = kl_to(family, family.natural(mean=mean, sd=sd), *exact)
    assert np.all(sd <= np.sqrt(np.diagonal(exact[1])) + 1e-12)
    for _ in range(50):
        other = family.natural(
            mean=mean + 0.01 * sd * rng.normal(size=3), sd=sd * np.exp(0.01 * rng.normal(size=3))
        )
        assert kl_to(family, other, *exact) > best


def test_kl_equals_monte_carlo():
    rng = np.random.default_rng(3)
    factors = rng.normal(size=(2, 3, 3))
    means = rng.normal(size=(2, 3))
    covariances = factors @ factors.transpose(0, 2, 1) + np.eye(3)
    theta = rng.multivariate_normal(means[0], covariances[0], 100_000)
    gap = multivariate_normal(means[0], covariances[0]).logpdf(theta) - multivariate_normal(
        means[1], covariances[1]
    ).logpdf(theta)
    got = kl_gaussian(means[0], covariances[0], means[1], covariances[1])
    assert got == pytest.approx(gap.mean(), abs=5 * gap.std() / np.sqrt(len(gap)))
    family = FullGaussian(3)
    q = family.natural(mean=means[0], covariance=covariances[0])
    assert kl_to(family, q, means[1], covariances[1]) == pytest.approx(got)
    assert kl_to(family, q, means[0], covariances[0]) == pytest.approx(0.0, abs=1e-12)


def test_nuts_recovers_a_conjugate_posterior():
    model, shares = regression(4, parties=2, dimension=2)
    mean, covariance = exact_posterior(model, shares)
    got_mean, got_covariance, draws = nuts_reference(
        model, pooled(shares), seed=1, warmup=300, samples=2000
    )
    assert draws.shape == (2000, 2)
    # The KL between fitted and true normals, times 2n, is near χ² of 5 for n independent draws;
    # n = 400 effective draws and the 0.9999 quantile, 25.7, leave room for autocorrelation.
    assert kl_gaussian(got_mean, got_covariance, mean, covariance) < 25.7 / (2 * 400)
    assert kl_gaussian(got_mean, 1.5 * got_covariance, mean, covariance) > 25.7 / (2 * 400)


class WiderPrior(NormalMean):
    """A model whose true prior, N(0, 5²), is not the stand-in that `prior` answers."""

    has_site_prior = True

    def log_prior(self, theta):
        return -0.5 * theta[0] ** 2 / 25.0


def test_nuts_uses_a_site_prior():
    records = {"y": np.full(2, 4.0)}
    mean, covariance, _ = nuts_reference(WiderPrior(), records, seed=0, warmup=300, samples=1500)
    assert covariance.shape == (1, 1)
    assert mean[0] == pytest.approx(8.0 / 2.04, abs=0.12)
    assert exact_posterior(NormalMean(), [records])[0][0] == pytest.approx(8 / 3)


def test_what_is_refused():
    wide = LogisticRegression(tuple(f"x{i}" for i in range(201)), prior_sd=1.0)
    with pytest.raises(ConfigError, match="at most 200 dimensions"):
        nuts_reference(wide, {})
    with pytest.raises(ConfigError, match="no exact posterior"):
        exact_posterior(wide, [])
    family = Dirichlet(2)
    with pytest.raises(ConfigError, match="not 'dirichlet'"):
        kl_to(family, family.zero(), np.zeros(2), np.eye(2))
