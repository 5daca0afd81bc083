"""The models of the posteriordb study as NumPyro functions, one per Stan file.

They are written as a user would write them: latent sites with their priors, then one plate over
records. A parameter for which the Stan file has no prior is flat on its support. Constants such as
a number of groups are arguments; transformed data are columns (tacit_studies.posteriordb_data).
"""
# ruff: noqa: D103 - the name of each model is that of its Stan file
# pyright: reportIndexIssue=false, reportAssignmentType=false

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints

Array = Any


def flat(name: str, *shape: int) -> Array:
    """A parameter with a flat prior on the real line."""
    return numpyro.sample(name, dist.ImproperUniform(constraints.real, (), shape))


def flat_positive(name: str) -> Array:
    """A parameter with a flat prior on the positive half-line."""
    return numpyro.sample(name, dist.ImproperUniform(constraints.positive, (), ()))


def normals(name: str, count: int, scale: Any = 1.0) -> Array:
    """A vector of independent centred normals."""
    return numpyro.sample(name, dist.Normal(0.0, scale).expand([count]).to_event(1))


def blr(x, y=None):
    beta = normals("beta", x.shape[1], 10.0)
    sigma = numpyro.sample("sigma", dist.HalfNormal(10.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ beta, sigma), obs=y)


def diamonds(x, y=None):
    b = normals("b", x.shape[1])
    intercept = numpyro.sample("Intercept", dist.StudentT(3.0, 8.0, 10.0))
    sigma = numpyro.sample("sigma", dist.FoldedDistribution(dist.StudentT(3.0, 0.0, 10.0)))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(intercept + x @ b, sigma), obs=y)


def log10earn_height(height, log10_earn=None):
    beta, sigma = flat("beta", 2), flat_positive("sigma")
    with numpyro.plate("people", height.shape[0]):
        numpyro.sample("log10_earn", dist.Normal(beta[0] + beta[1] * height, sigma), obs=log10_earn)


def logearn_height(height, log_earn=None):
    beta, sigma = flat("beta", 2), flat_positive("sigma")
    with numpyro.plate("people", height.shape[0]):
        numpyro.sample("log_earn", dist.Normal(beta[0] + beta[1] * height, sigma), obs=log_earn)


def logearn_height_male(height, male, log_earn=None):
    beta, sigma = flat("beta", 3), flat_positive("sigma")
    mean = beta[0] + beta[1] * height + beta[2] * male
    with numpyro.plate("people", height.shape[0]):
        numpyro.sample("log_earn", dist.Normal(mean, sigma), obs=log_earn)


def logearn_interaction(height, male, log_earn=None):
    beta, sigma = flat("beta", 4), flat_positive("sigma")
    mean = beta[0] + beta[1] * height + beta[2] * male + beta[3] * height * male
    with numpyro.plate("people", height.shape[0]):
        numpyro.sample("log_earn", dist.Normal(mean, sigma), obs=log_earn)


def logearn_logheight_male(log_height, male, log_earn=None):
    beta, sigma = flat("beta", 3), flat_positive("sigma")
    mean = beta[0] + beta[1] * log_height + beta[2] * male
    with numpyro.plate("people", log_height.shape[0]):
        numpyro.sample("log_earn", dist.Normal(mean, sigma), obs=log_earn)


def eight_schools_noncentered(school, sigma, schools, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("schools", schools):
        theta_trans = numpyro.sample("theta_trans", dist.Normal(0.0, 1.0))
    theta = numpyro.deterministic("theta", mu + tau * theta_trans)
    with numpyro.plate("records", school.shape[0]):
        numpyro.sample("y", dist.Normal(theta[school], sigma), obs=y)


def kidscore_momhs(mom_hs, kid_score=None):
    beta = flat("beta", 2)
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
    with numpyro.plate("children", mom_hs.shape[0]):
        numpyro.sample("kid_score", dist.Normal(beta[0] + beta[1] * mom_hs, sigma), obs=kid_score)


def kidscore_momiq(mom_iq, kid_score=None):
    beta = flat("beta", 2)
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
    with numpyro.plate("children", mom_iq.shape[0]):
        numpyro.sample("kid_score", dist.Normal(beta[0] + beta[1] * mom_iq, sigma), obs=kid_score)


def kidscore_momhsiq(mom_hs, mom_iq, kid_score=None):
    beta = flat("beta", 3)
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
    mean = beta[0] + beta[1] * mom_hs + beta[2] * mom_iq
    with numpyro.plate("children", mom_hs.shape[0]):
        numpyro.sample("kid_score", dist.Normal(mean, sigma), obs=kid_score)


def kidscore_interaction(mom_hs, mom_iq, kid_score=None):
    """Model of the files kidscore_interaction_c and _z, which centre or standardise the columns."""
    beta, sigma = flat("beta", 4), flat_positive("sigma")
    mean = beta[0] + beta[1] * mom_hs + beta[2] * mom_iq + beta[3] * mom_hs * mom_iq
    with numpyro.plate("children", mom_hs.shape[0]):
        numpyro.sample("kid_score", dist.Normal(mean, sigma), obs=kid_score)


def kidscore_mom_work(work2, work3, work4, kid_score=None):
    beta, sigma = flat("beta", 4), flat_positive("sigma")
    mean = beta[0] + beta[1] * work2 + beta[2] * work3 + beta[3] * work4
    with numpyro.plate("children", work2.shape[0]):
        numpyro.sample("kid_score", dist.Normal(mean, sigma), obs=kid_score)


def kilpisjarvi(x, pmualpha, psalpha, pmubeta, psbeta, y=None):
    alpha = numpyro.sample("alpha", dist.Normal(pmualpha, psalpha))
    beta = numpyro.sample("beta", dist.Normal(pmubeta, psbeta))
    sigma = flat_positive("sigma")
    with numpyro.plate("summers", x.shape[0]):
        numpyro.sample("y", dist.Normal(alpha + beta * x, sigma), obs=y)


class OrderedNormals(dist.Distribution):
    """Independent N(0, scale²) given that they are in increasing order."""

    support = constraints.ordered_vector
    arg_constraints = {"scale": constraints.positive}  # noqa: RUF012 - NumPyro reads it from the class
    pytree_data_fields = ("scale",)

    def __init__(self, count: int, scale: float, *, validate_args: bool | None = None) -> None:
        self.scale = scale
        super().__init__((), (count,), validate_args=validate_args)

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        draws = jax.random.normal(key, (*sample_shape, *self.event_shape))
        return jnp.sort(self.scale * draws, axis=-1)

    def log_prob(self, value: Array) -> Array:
        return dist.Normal(0.0, self.scale).log_prob(value).sum(-1)


def low_dim_gauss_mix(y):
    mu = numpyro.sample("mu", OrderedNormals(2, 2.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0).expand([2]).to_event(1))
    theta = numpyro.sample("theta", dist.Beta(5.0, 5.0))
    weights = dist.CategoricalProbs(jnp.stack([theta, 1.0 - theta]))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.MixtureSameFamily(weights, dist.Normal(mu, sigma)), obs=y)


def logmesquite(diam1, diam2, canopy_height, total_height, density, group, log_weight=None):
    beta, sigma = flat("beta", 7), flat_positive("sigma")
    mean = beta[0] + beta[1] * diam1 + beta[2] * diam2 + beta[3] * canopy_height
    mean = mean + beta[4] * total_height + beta[5] * density + beta[6] * group
    with numpyro.plate("bushes", group.shape[0]):
        numpyro.sample("log_weight", dist.Normal(mean, sigma), obs=log_weight)


def logmesquite_logva(volume, area, group, log_weight=None):
    beta, sigma = flat("beta", 4), flat_positive("sigma")
    mean = beta[0] + beta[1] * volume + beta[2] * area + beta[3] * group
    with numpyro.plate("bushes", group.shape[0]):
        numpyro.sample("log_weight", dist.Normal(mean, sigma), obs=log_weight)


def logmesquite_logvas(volume, area, shape, total_height, density, group, log_weight=None):
    beta, sigma = flat("beta", 7), flat_positive("sigma")
    mean = beta[0] + beta[1] * volume + beta[2] * area + beta[3] * shape
    mean = mean + beta[4] * total_height + beta[5] * density + beta[6] * group
    with numpyro.plate("bushes", group.shape[0]):
        numpyro.sample("log_weight", dist.Normal(mean, sigma), obs=log_weight)


def logmesquite_logvash(volume, area, shape, total_height, group, log_weight=None):
    beta, sigma = flat("beta", 6), flat_positive("sigma")
    mean = beta[0] + beta[1] * volume + beta[2] * area + beta[3] * shape
    mean = mean + beta[4] * total_height + beta[5] * group
    with numpyro.plate("bushes", group.shape[0]):
        numpyro.sample("log_weight", dist.Normal(mean, sigma), obs=log_weight)


def logmesquite_logvolume(volume, log_weight=None):
    beta, sigma = flat("beta", 2), flat_positive("sigma")
    with numpyro.plate("bushes", volume.shape[0]):
        numpyro.sample("log_weight", dist.Normal(beta[0] + beta[1] * volume, sigma), obs=log_weight)


def nes(x, partyid7=None):
    """Columns of x: ideology, race, three age groups, education, gender, income."""
    beta, sigma = flat("beta", 1 + x.shape[1]), flat_positive("sigma")
    mean = beta[0] + (x * beta[1:]).sum(-1)
    with numpyro.plate("voters", x.shape[0]):
        numpyro.sample("partyid7", dist.Normal(mean, sigma), obs=partyid7)


def wells_dist100ars(x, switched=None):
    alpha, beta = flat("alpha"), flat("beta", x.shape[1])
    with numpyro.plate("households", x.shape[0]):
        numpyro.sample("switched", dist.Bernoulli(logits=alpha + x @ beta), obs=switched)


def glmm_poisson(year, row, years, counts=None):
    alpha = numpyro.sample("alpha", dist.Uniform(-20.0, 20.0))
    beta1, beta2, beta3 = (
        numpyro.sample(f"beta{power}", dist.Uniform(-10.0, 10.0)) for power in (1, 2, 3)
    )
    sigma = numpyro.sample("sigma", dist.Uniform(0.0, 5.0))
    with numpyro.plate("years", years):
        eps = numpyro.sample("eps", dist.Normal(0.0, sigma))
    log_rate = alpha + beta1 * year + beta2 * year**2 + beta3 * year**3 + eps[row]
    with numpyro.plate("records", year.shape[0]):
        numpyro.sample("counts", dist.Poisson(jnp.exp(log_rate)), obs=counts)


def radon_hierarchical_intercept_noncentered(
    county, log_uppm, floor_measure, counties, log_radon=None
):
    mu_alpha = numpyro.sample("mu_alpha", dist.Normal(0.0, 10.0))
    sigma_alpha = numpyro.sample("sigma_alpha", dist.HalfNormal(1.0))
    sigma_y = numpyro.sample("sigma_y", dist.HalfNormal(1.0))
    beta = normals("beta", 2, 10.0)
    alpha_raw = normals("alpha_raw", counties)
    alpha = numpyro.deterministic("alpha", mu_alpha + sigma_alpha * alpha_raw)
    mean = alpha[county] + beta[0] * log_uppm + beta[1] * floor_measure
    with numpyro.plate("houses", county.shape[0]):
        numpyro.sample("log_radon", dist.Normal(mean, sigma_y), obs=log_radon)


def radon_variable_intercept_slope_noncentered(county, floor_measure, counties, log_radon=None):
    mu_alpha = numpyro.sample("mu_alpha", dist.Normal(0.0, 10.0))
    mu_beta = numpyro.sample("mu_beta", dist.Normal(0.0, 10.0))
    sigma_alpha = numpyro.sample("sigma_alpha", dist.HalfNormal(1.0))
    sigma_beta = numpyro.sample("sigma_beta", dist.HalfNormal(1.0))
    sigma_y = numpyro.sample("sigma_y", dist.HalfNormal(1.0))
    alpha_raw, beta_raw = normals("alpha_raw", counties), normals("beta_raw", counties)
    alpha = numpyro.deterministic("alpha", mu_alpha + sigma_alpha * alpha_raw)
    beta = numpyro.deterministic("beta", mu_beta + sigma_beta * beta_raw)
    mean = alpha[county] + beta[county] * floor_measure
    with numpyro.plate("houses", county.shape[0]):
        numpyro.sample("log_radon", dist.Normal(mean, sigma_y), obs=log_radon)


def election88_full(x, age, edu, age_edu, state, region, levels, y=None):
    """Columns of x: 1, black, female, previous vote, female × black."""
    beta = normals("beta", x.shape[1], 100.0)
    logit = x @ beta
    groups = {"a": age, "b": edu, "c": age_edu, "d": state, "e": region}
    for name, index in groups.items():
        sigma = numpyro.sample(f"sigma_{name}", dist.Uniform(0.0, 100.0))
        logit = logit + normals(name, levels[name], sigma)[index]
    with numpyro.plate("voters", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=logit), obs=y)
