"""Reference posteriors: exact, or sampled by NUTS."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tacit.arrays import Array, solve_lower
from tacit.errors import ConfigError
from tacit.expfam import Family, FullGaussian, MeanFieldGaussian, Natural
from tacit.models import ConjugateGaussian, Model, Records
from tacit.models.capabilities import LearnsScale
from tacit.models.learnt_scale import learnt_scale_prior
from tacit.models.predictive import count_records

NUTS_LIMIT = 200
"""Largest dimension for which one NUTS chain is a reliable reference."""


def exact_posterior(
    model: Model, parties_records: Iterable[Records]
) -> tuple[np.ndarray, np.ndarray]:
    """Compute mean μ and covariance Λ⁻¹ of the posterior given all records, for a conjugate model.

        Λ = Λ₀ + Σₘ Pₘ,  Λμ = Λ₀μ₀ + Σₘ bₘ        (Bishop 2006, eqs 3.50 and 3.51)

    Λ₀ and μ₀ are the prior's precision and mean; Pₘ and bₘ are the precision and the linear term of
    the likelihood of party m. They are computed in float64 with NumPy, independently of the
    federated code.
    """
    precision, linear = _exact_natural(model, parties_records)
    factor = np.linalg.cholesky(precision)
    inverse_factor = solve_lower(factor, np.eye(model.dimension))
    covariance = inverse_factor.T @ inverse_factor
    return covariance @ linear, covariance


def mean_field_optimum(
    model: Model, parties_records: Iterable[Records]
) -> tuple[np.ndarray, np.ndarray]:
    """Compute mean and sd of the independent normals q that are nearest to the exact posterior p in
    KL(q ‖ p).

    q has the exact mean and the diagonal of the exact *precision* (Bishop 2006, eqs 10.12 to
    10.15), so its sd is never larger than the exact marginal sd.
    """
    precision, linear = _exact_natural(model, parties_records)
    return np.linalg.solve(precision, linear), 1.0 / np.sqrt(np.diagonal(precision))


def kl_gaussian(
    mean0: np.ndarray, covariance0: np.ndarray, mean1: np.ndarray, covariance1: np.ndarray
) -> float:
    """Compute KL(N(μ₀, Σ₀) ‖ N(μ₁, Σ₁)) in nats, for normals in d dimensions.

        KL = ½ [tr(Σ₁⁻¹Σ₀) + (μ₁−μ₀)ᵀΣ₁⁻¹(μ₁−μ₀) − d + log det Σ₁ − log det Σ₀]

    >>> kl_gaussian(np.zeros(1), np.eye(1), np.ones(1), np.eye(1))
    0.5
    """
    factor0, factor1 = np.linalg.cholesky(covariance0), np.linalg.cholesky(covariance1)
    trace = np.sum(solve_lower(factor1, factor0) ** 2)
    distance = np.sum(solve_lower(factor1, mean1 - mean0) ** 2)
    log_ratio = 2.0 * np.sum(np.log(np.diagonal(factor1) / np.diagonal(factor0)))
    return float(0.5 * (trace + distance - len(mean0) + log_ratio))


def kl_to(family: Family, natural: Natural, mean: np.ndarray, covariance: np.ndarray) -> float:
    """Compute KL(q ‖ N(mean, covariance)) in nats, for q in a Gaussian family."""
    if not isinstance(family, MeanFieldGaussian | FullGaussian):
        raise ConfigError(
            f"KL to a normal needs posterior 'mean-field' or 'full', not {family.kind!r}"
        )
    location = family.usual(natural)["mean"]
    return kl_gaussian(location, family.covariance(natural), mean, covariance)


def check_nuts(model: Model) -> None:
    """Refuse a model with too many parameters for the NUTS reference."""
    if model.dimension > NUTS_LIMIT:
        raise ConfigError(
            f"the NUTS reference is for at most {NUTS_LIMIT} dimensions, this model has "
            f"{model.dimension}; compare predictive metrics instead"
        )


def nuts_reference(
    model: Model,
    records: Records,
    *,
    seed: int = 0,
    warmup: int = 500,
    samples: int = 2000,
    learnt_scales: bool = True,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute mean, covariance and draws (samples, d) of p(θ | records) by NUTS on the pooled
    records.

    NUTS runs one chain with a dense mass matrix (Hoffman and Gelman 2014; NumPyro). It needs all
    records in one process, so it can only be used in simulations. Check
    `numpyro.diagnostics.split_gelman_rubin(draws[None])` before you trust the draws from a
    posterior with several modes. If the model declares no prior_sd, the scales of its prior are
    learned; with `learnt_scales` = False its prior is N(0, 1), as in methods that do not learn
    scales.
    """
    check_nuts(model)
    import jax
    import jax.numpy as jnp
    from numpyro.infer import MCMC, NUTS

    family = FullGaussian(model.dimension)
    prior = model.prior(family)
    data = {name: jnp.asarray(array) for name, array in records.items()}
    learnt = None
    if learnt_scales and isinstance(model, LearnsScale) and model.scale_unit is not None:
        x = np.asarray(records["x"], np.float64)
        learnt = learnt_scale_prior(
            model.prior_mean, model.layout, x.T @ x, model.scale_unit, model.prior_sd
        )

    def potential(theta: Array) -> Array:
        if learnt is not None:
            log_prior = learnt.log_density(theta[None])[0]
        elif model.has_site_prior:
            log_prior = model.log_prior(theta)
        else:
            log_prior = prior["linear"] @ theta + theta @ prior["quadratic"] @ theta
        return -log_prior - jnp.sum(model.log_likelihood(theta, data))

    chain = MCMC(
        NUTS(potential_fn=potential, dense_mass=True),
        num_warmup=warmup,
        num_samples=samples,
        num_chains=1,
        progress_bar=False,
    )
    start = family.usual(model.start(family) or prior)["mean"]
    chain.run(jax.random.key(seed), init_params=jnp.asarray(start))
    draws = np.asarray(chain.get_samples(), np.float64)
    return draws.mean(axis=0), np.cov(draws, rowvar=False, ddof=1).reshape(2 * start.shape), draws


def _exact_natural(
    model: Model, parties_records: Iterable[Records]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the precision Λ of the exact posterior, and Λ times its mean."""
    if not isinstance(model, ConjugateGaussian):
        raise ConfigError(
            f"model {model.kind!r} has no exact posterior; use nuts_reference, or a conjugate "
            "model such as 'linear' or 'normal-mean'"
        )
    if isinstance(model, LearnsScale) and model.scale_unit is not None:
        raise ConfigError(
            f"model {model.kind!r} without prior_sd has learned scales, whose posterior is not "
            "normal; declare prior_sd, or use nuts_reference"
        )
    prior = model.prior(FullGaussian(model.dimension))
    precision, linear = -2.0 * prior["quadratic"], prior["linear"]
    for records in parties_records:
        plain = {name: np.asarray(array, np.float64) for name, array in records.items()}
        added, shift = model.quadratic_form(plain, np.ones(count_records(plain)))
        precision, linear = precision + added, linear + shift
    return precision, linear
