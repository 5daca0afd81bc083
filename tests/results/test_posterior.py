"""What a user sees of a posterior: numbers that no number of threads changes, and ArviZ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from tacit.expfam import FullGaussian, MeanFieldGaussian
from tacit.models import LogisticRegression
from tacit.models.numpyro.model import from_numpyro
from tacit.results.posterior import Posterior
from tacit.support.blas import one_blas_thread


@pytest.fixture
def wide() -> Posterior:
    """Of so many coordinates that LAPACK divides the work between threads."""
    rng = np.random.default_rng(0)
    root = rng.normal(size=(300, 300))
    natural = {"linear": rng.normal(size=300), "quadratic": -0.5 * (root @ root.T + np.eye(300))}
    model = LogisticRegression(tuple(f"x{i}" for i in range(300)), prior_sd=1.0)
    return Posterior(model, FullGaussian(300), natural)


def test_mean_and_sd_do_not_depend_on_the_number_of_blas_threads(wide: Posterior) -> None:
    """A live federation writes its posterior with one thread; `tacit run` must give its bits."""
    with one_blas_thread():
        expected = wide.mean.tobytes(), wide.sd.tobytes()
    with threadpool_limits(limits=2, user_api="blas"):
        assert (wide.mean.tobytes(), wide.sd.tobytes()) == expected


@pytest.mark.filterwarnings("ignore:.*ArviZ is undergoing:FutureWarning")
def test_draws_of_coefficients_are_a_group_that_arviz_summarises() -> None:
    import arviz

    posterior = Posterior(
        LogisticRegression(("intercept", "age"), prior_sd=1.0),
        FullGaussian(2),
        {"linear": np.array([1.0, -2.0]), "quadratic": -0.5 * np.array([[4.0, 1.0], [1.0, 2.0]])},
    )
    tree: Any = posterior.to_arviz(500, seed=3)
    theta = tree.posterior["theta"]
    assert theta.dims == ("chain", "draw", "name")
    assert theta.coords["name"].values.tolist() == ["intercept", "age"]
    np.testing.assert_array_equal(theta.values[0], posterior.sample(500, seed=3))
    shown = arviz.summary(tree)
    assert list(shown.index) == ["theta[intercept]", "theta[age]"]


@pytest.mark.filterwarnings("ignore:.*ArviZ is undergoing:FutureWarning")
def test_a_numpyro_models_sites_are_variables_in_arviz() -> None:
    import numpyro
    import numpyro.distributions as dist

    def program(y: Any) -> None:
        spread = numpyro.sample("spread", dist.HalfNormal(1.0))
        with numpyro.plate("records", len(y)):
            numpyro.sample("y", dist.Normal(0.0, spread), obs=y)

    model = from_numpyro(program, {"y": np.zeros(3)})
    family = MeanFieldGaussian(1)
    natural = family.natural(mean=np.array([-1.0]), sd=np.array([0.2]))
    posterior = Posterior(model, family, natural)
    tree: Any = posterior.to_arviz(50)
    np.testing.assert_array_equal(tree.posterior["spread"].values[0], posterior.draws(50)["spread"])
    assert (tree.posterior["spread"].values > 0).all()
