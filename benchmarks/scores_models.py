"""Models, records and reference posteriors of benchmarks/scores_coverage.py.

A case is a model and the law of its records: that of the model, or another one (a misfit). θ and
the records are new in every replication.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import distributions as dist

from tacit.methods.scores.prior import PriorTerm

RECORDS, GROUPS = 24_000, 8


def _weights(x, sd=1.0):
    return numpyro.sample("weights", dist.Normal(0.0, sd).expand([x.shape[1]]).to_event(1))


def normal(x, y=None):
    """Linear regression with unknown standard deviation."""
    level = numpyro.sample("level", dist.Normal(0.0, 10.0))
    weights = _weights(x)
    scale = numpyro.sample("scale", dist.HalfNormal(10.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(level + x @ weights, scale), obs=y)


def negative_binomial(x, y=None):
    """Counts with unknown dispersion."""
    level = numpyro.sample("level", dist.Normal(0.0, 2.0))
    weights = _weights(x)
    scale = numpyro.sample("scale", dist.LogNormal(1.0, 1.0))
    with numpyro.plate("records", x.shape[0]):
        mean = jnp.exp(jnp.clip(level + x @ weights, -20.0, 20.0))
        numpyro.sample("y", dist.NegativeBinomial2(mean, scale), obs=y)


def ordinal(x, y=None):
    """Four ordered levels."""
    weights = _weights(x)
    cuts = numpyro.sample(
        "cuts",
        dist.TransformedDistribution(
            dist.Normal(0.0, 2.0).expand([3]), dist.transforms.OrderedTransform()
        ),
    )
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.OrderedLogistic(x @ weights, cuts), obs=y)


def student(x, y=None):
    """Robust regression with unknown scale and degrees of freedom."""
    level = numpyro.sample("level", dist.Normal(0.0, 10.0))
    weights = _weights(x)
    scale = numpyro.sample("scale", dist.HalfNormal(10.0))
    freedom = numpyro.sample("freedom", dist.LogNormal(1.5, 0.5))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.StudentT(freedom, level + x @ weights, scale), obs=y)


def robust(x, y=None):
    """Robust regression in large units, with a wide prior of the degrees of freedom."""
    level = numpyro.sample("level", dist.Normal(100.0, 100.0))
    weights = _weights(x, 50.0)
    scale = numpyro.sample("scale", dist.HalfNormal(50.0))
    freedom = numpyro.sample("freedom", dist.Gamma(2.0, 0.1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.StudentT(freedom, level + x @ weights, scale), obs=y)


def hierarchical(x, group, y=None):
    """Eight groups whose levels have a common mean and an unknown spread."""
    middle = numpyro.sample("middle", dist.Normal(0.0, 5.0))
    spread = numpyro.sample("spread", dist.HalfNormal(2.0))
    with numpyro.plate("groups", GROUPS):
        level = numpyro.sample("level", dist.Normal(middle, spread))
    weights = _weights(x)
    scale = numpyro.sample("scale", dist.HalfNormal(5.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(level[group] + x @ weights, scale), obs=y)


def poisson(x, y=None):
    """Counts."""
    level = numpyro.sample("level", dist.Normal(0.0, 2.0))
    weights = _weights(x)
    with numpyro.plate("records", x.shape[0]):
        mean = jnp.exp(jnp.clip(level + x @ weights, -20.0, 20.0))
        numpyro.sample("y", dist.Poisson(mean), obs=y)


def logistic(x, y=None):
    """Yes or no."""
    level = numpyro.sample("level", dist.Normal(0.0, 2.0))
    weights = _weights(x)
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=level + x @ weights), obs=y)


CASES = {
    "normal": normal,
    "negative_binomial": negative_binomial,
    "ordinal": ordinal,
    "student": student,
    "robust": robust,
    "hierarchical": hierarchical,
    "small_groups": hierarchical,
    "poisson": poisson,
    "heavy_tails": normal,
    "overdispersed": poisson,
    "wrong_link": logistic,
}
GROUPED = ("hierarchical", "small_groups")
"""Eight groups of 3,000 records, and of about 12,000 down to 94."""
MISFITS = ("heavy_tails", "overdispersed", "wrong_link")
"""Student's t₄ under the normal model, negative binomial counts (dispersion 2) under Poisson's, and
a complementary log-log link under the logistic one."""


def truth_of(name, rng, width):
    """Sites of a true θ, spread as in ordinary problems."""
    size = 0.5 / np.sqrt(width / 10.0)
    sites = {"weights": rng.normal(size=width) * size}
    if name in GROUPED:
        sites |= {"middle": rng.normal(), "spread": np.exp(0.3 * rng.normal())}
        sites["level"] = sites["middle"] + sites["spread"] * rng.normal(size=GROUPS)
        sites["scale"] = 2.0 * np.exp(0.3 * rng.normal())
    elif name == "ordinal":
        sites["cuts"] = np.sort(np.array([-1.0, 0.0, 1.2]) + 0.3 * rng.normal(size=3))
    elif name in ("negative_binomial", "poisson", "overdispersed"):
        sites["weights"] *= 0.5
        sites["level"] = 0.7 + 0.3 * rng.normal()
        if name == "negative_binomial":
            sites["scale"] = 2.0 * np.exp(0.3 * rng.normal())
    elif name == "wrong_link":
        sites["level"] = -0.5 + 0.3 * rng.normal()
    elif name == "robust":
        sites["weights"] *= 20.0
        sites |= {"level": 140.0 + 20.0 * rng.normal(), "scale": 10.0 * np.exp(0.3 * rng.normal())}
        sites["freedom"] = 3.0 * np.exp(0.2 * rng.normal())
    else:
        sites |= {"level": rng.normal(), "scale": 2.0 * np.exp(0.5 * rng.normal())}
        if name == "student":
            sites["freedom"] = 4.0 * np.exp(0.2 * rng.normal())
    return sites


def draw(name, rng, width, correlation, sites=None, count=RECORDS):
    """Records and the true sites, new ones if none are given."""
    common = rng.normal(size=(count, 1))
    x = np.sqrt(1.0 - correlation) * rng.normal(size=(count, width))
    x = np.clip(x + np.sqrt(correlation) * common, -3.0, 3.0)
    sites, group = sites or truth_of(name, rng, width), rng.integers(0, GROUPS, count)
    if name == "small_groups":
        group = np.minimum(rng.geometric(0.5, count), GROUPS) - 1
    eta = x @ sites["weights"]
    if name in GROUPED:
        y = sites["level"][group] + eta + sites["scale"] * rng.normal(size=count)
        return {"x": x, "group": group, "y": y}, sites
    if name == "ordinal":
        hidden = eta + rng.logistic(size=count)
        return {"x": x, "y": np.sum(hidden[:, None] > sites["cuts"], axis=1)}, sites
    eta = eta + sites["level"]
    if name in ("negative_binomial", "overdispersed"):
        shape = sites.get("scale", 2.0)
        rate = np.exp(eta) * rng.gamma(shape, 1.0 / shape, count)
        return {"x": x, "y": rng.poisson(rate) * 1.0}, sites
    if name == "poisson":
        return {"x": x, "y": rng.poisson(np.exp(eta)) * 1.0}, sites
    if name == "wrong_link":
        return {"x": x, "y": (rng.random(count) < -np.expm1(-np.exp(eta))) * 1}, sites
    noise = rng.normal(size=count)
    if name in ("student", "robust", "heavy_tails"):
        noise = rng.standard_t(sites.get("freedom", 4.0), count)
    return {"x": x, "y": eta + sites["scale"] * noise}, sites


class Reference:
    """The posterior without privacy: Newton's method on all records, and the same prior term."""

    def __init__(self, model):
        self.model = model
        family_mean, family_sd = model.prior_mean, model.prior_sd
        self.prior = PriorTerm(model, np.asarray(family_mean), np.asarray(family_sd) ** -2.0)

        def total(theta, records):
            return jnp.sum(model.log_likelihood(theta, records))

        self.value = jax.jit(total)
        self.slope = jax.jit(jax.grad(total))
        self.bend = jax.jit(jax.hessian(total))

    def fit(self, records, start):
        mean = np.asarray(start, np.float64)
        for _ in range(20):
            gradient = np.asarray(self.slope(mean, records))
            information = -np.asarray(self.bend(mean, records))
            information = 0.5 * (information + information.T)
            found, precision = self.prior.posterior(
                information, gradient + information @ mean, mean
            )
            step = found - mean
            mean = found
            if step @ precision @ step < 1e-4:
                break
        linear = np.asarray(self.slope(mean, records)) + information @ mean
        mean, precision, _ = self.prior.moments(information, linear, mean, precision)
        return mean, np.sqrt(np.diagonal(np.linalg.inv(precision)))


def unconstrained(model, sites):
    from numpyro.distributions import biject_to

    traced, _ = model.program.run(model.program.blank(1))
    parts = []
    for latent in model.layout.latents:
        support = traced[latent.name]["fn"].support
        parts.append(np.ravel(biject_to(support).inv(jnp.asarray(sites[latent.name]))))
    return np.concatenate(parts)
