"""Further textbook models for `benchmarks.textbook`, in units as a user has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from benchmarks.textbook_models import Case, Rng, deterministic, plate, sample


def raw_frame(rng: Rng) -> Case:
    """Pay in euros on age in days, weight in grams and year: a user's data frame as it is."""
    days = rng.integers(7_000, 25_000, 400)
    grams = rng.normal(74_000, 12_000, 400)
    year = rng.integers(2001, 2020, 400)
    euros = (
        18_000 + 1.1 * days + 0.05 * grams + 310 * (year - 2001) + 6_000 * rng.standard_t(5, 400)
    )

    def model(days, grams, year, euros=None):
        a = sample("a", dist.Normal(0.0, 1e6))
        b = sample("b", dist.Normal(0.0, jnp.array([10.0, 10.0, 5e3])).to_event(1))
        s = sample("s", dist.HalfNormal(5e4))
        nu = sample("nu", dist.Gamma(2.0, 0.1))
        with plate("records", days.shape[0]):
            sample(
                "euros",
                dist.StudentT(nu, a + b[0] * days + b[1] * grams + b[2] * year, s),
                obs=euros,
            )

    return Case(model, {"days": days, "grams": grams, "year": year, "euros": euros})


def visits(rng: Rng) -> Case:
    """Visits of patients of 12 practices: Poisson, a lognormal effect each, exposure in days."""
    practice = rng.integers(0, 12, 260)
    days = rng.integers(30, 720, 260)
    age = rng.integers(18, 92, 260)
    mean = days / 365 * np.exp(0.4 + 0.015 * (age - 50) + 0.45 * rng.normal(size=12)[practice])
    count = rng.poisson(mean)

    def make(centred):
        def model(practice, days, age, count=None):
            a = sample("a", dist.Normal(0.0, 5.0))
            b = sample("b", dist.Normal(0.0, 1.0))
            tau = sample("tau", dist.HalfNormal(1.0))
            with plate("practices", 12):
                if centred:
                    effect = sample("effect", dist.Normal(a, tau))
                else:
                    effect = a + tau * sample("raw", dist.Normal(0.0, 1.0))
                    deterministic("effect", effect)
            with plate("records", days.shape[0]):
                sample(
                    "count",
                    dist.Poisson(days / 365.0 * jnp.exp(effect[practice] + b * (age - 50))),
                    obs=count,
                )

        return model

    return Case(
        make(True),
        {"practice": practice, "days": days, "age": age, "count": count},
        reference=make(False),
    )


def spline(rng: Rng) -> Case:
    """Temperature by day of year on ten hat functions with a random-walk prior."""
    day = rng.integers(1, 366, 150)
    knots = jnp.linspace(1.0, 365.0, 10)
    degrees = 11 - 9 * np.cos(2 * np.pi * (day - 20) / 365) + 2.5 * rng.normal(size=150)

    def model(day, degrees=None):
        first = sample("first", dist.Normal(10.0, 20.0))
        tau = sample("tau", dist.HalfNormal(10.0))
        s = sample("s", dist.HalfNormal(10.0))
        z = sample("z", dist.Normal(0.0, 1.0).expand([9]).to_event(1))
        height = deterministic(
            "height", first + jnp.concatenate([jnp.zeros(1), jnp.cumsum(tau * z)])
        )
        basis = jnp.maximum(0.0, 1.0 - jnp.abs(day[:, None] - knots) / (knots[1] - knots[0]))
        with plate("records", day.shape[0]):
            sample("degrees", dist.Normal(basis @ height, s), obs=degrees)

    return Case(model, {"day": day, "degrees": degrees})


def missing(rng: Rng) -> Case:
    """Blood pressure on weight, five of which are missing and are parameters."""
    kilos = rng.normal(78, 13, 70)
    mmhg = 80 + 0.6 * kilos + 9 * rng.normal(size=70)
    gone = np.zeros(70, int)
    gone[rng.choice(70, 5, replace=False)] = np.arange(1, 6)
    seen = np.where(gone > 0, 0.0, kilos)

    def model(seen, gone, mmhg=None):
        m = sample("m", dist.Normal(70.0, 30.0))
        w = sample("w", dist.HalfNormal(30.0))
        a = sample("a", dist.Normal(0.0, 200.0))
        b = sample("b", dist.Normal(0.0, 5.0))
        s = sample("s", dist.HalfNormal(30.0))
        z = sample("z", dist.Normal(0.0, 1.0).expand([5]).to_event(1))
        filled = jnp.concatenate([jnp.zeros(1), m + w * z])
        kilos = jnp.where(gone > 0, filled[gone], seen)
        with plate("records", seen.shape[0]):
            with numpyro.handlers.mask(mask=gone == 0):
                sample("kilos", dist.Normal(m, w), obs=seen)
            sample("mmhg", dist.Normal(a + b * kilos, s), obs=mmhg)

    return Case(model, {"seen": seen, "gone": gone, "mmhg": mmhg})


def monotone(rng: Rng) -> Case:
    """Satisfaction by education in six ordered levels: a monotone effect, a simplex."""
    school = rng.integers(0, 6, 240)
    step = np.r_[0, np.cumsum([0.4, 0.1, 0.05, 0.3, 0.15])]
    score = 40 + 18 * step[school] + 8 * rng.normal(size=240)

    def model(school, score=None):
        a = sample("a", dist.Normal(0.0, 100.0))
        top = sample("top", dist.Normal(0.0, 50.0))
        s = sample("s", dist.HalfNormal(30.0))
        share = sample("share", dist.Dirichlet(2.0 * jnp.ones(5)))
        level = jnp.concatenate([jnp.zeros(1), jnp.cumsum(share)])
        with plate("records", school.shape[0]):
            sample("score", dist.Normal(a + top * level[school], s), obs=score)

    return Case(model, {"school": school, "score": score})


def emax(rng: Rng) -> Case:
    """Clearance in ml/min on dose in micrograms: Hill curve with lognormal noise."""
    dose = np.tile([10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0], 8)
    out = 120 * dose**1.4 / (250**1.4 + dose**1.4) * np.exp(0.2 * rng.normal(size=48))

    def model(dose, out=None):
        top = sample("top", dist.LogNormal(5.0, 1.0))
        half = sample("half", dist.LogNormal(5.0, 2.0))
        hill = sample("hill", dist.LogNormal(0.0, 0.5))
        s = sample("s", dist.HalfNormal(1.0))
        mean = top / (1.0 + (half / dose) ** hill)
        with plate("records", dose.shape[0]):
            sample("out", dist.LogNormal(jnp.log(mean), s), obs=out)

    return Case(model, {"dose": dose, "out": out})


def truth_each(rng: Rng) -> Case:
    """Errors in variables with a latent truth per record inside the plate: refused."""
    x = rng.normal(50, 10, 80)
    seen = x + 4 * rng.normal(size=80)
    y = 3 + 0.5 * x + 2 * rng.normal(size=80)

    def model(seen, y=None):
        m = sample("m", dist.Normal(50.0, 30.0))
        w = sample("w", dist.HalfNormal(20.0))
        a = sample("a", dist.Normal(0.0, 50.0))
        b = sample("b", dist.Normal(0.0, 5.0))
        s = sample("s", dist.HalfNormal(10.0))
        with plate("records", seen.shape[0]):
            x = sample("x", dist.Normal(m, w))
            sample("seen", dist.Normal(x, 4.0), obs=seen)
            sample("y", dist.Normal(a + b * x, s), obs=y)

    return Case(model, {"seen": seen, "y": y}, refused=True)


def integrated(rng: Rng) -> Case:
    """The same with the truth integrated out: a bivariate normal per record."""
    x = rng.normal(50, 10, 80)
    pair = np.column_stack([x + 4 * rng.normal(size=80), 3 + 0.5 * x + 2 * rng.normal(size=80)])

    def model(pair: Any = None):
        m = sample("m", dist.Normal(50.0, 30.0))
        w = sample("w", dist.HalfNormal(20.0))
        a = sample("a", dist.Normal(0.0, 50.0))
        b = sample("b", dist.Normal(0.0, 5.0))
        s = sample("s", dist.HalfNormal(10.0))
        cov = jnp.array([[w**2 + 16.0, b * w**2], [b * w**2, b**2 * w**2 + s**2]])
        with plate("records", pair.shape[0]):
            sample(
                "pair",
                dist.MultivariateNormal(jnp.stack([m, a + b * m]), covariance_matrix=cov),
                obs=pair,
            )

    return Case(model, {"pair": pair})


def censored(rng: Rng) -> Case:
    """Concentrations in nanograms below a detection limit of 50: left-censored lognormal."""
    site = rng.integers(0, 3, 150)
    value = np.exp(np.array([3.2, 4.3, 5.0])[site] + 0.9 * rng.normal(size=150))
    below = (value < 50).astype(int)
    seen = np.where(below, 50.0, value)

    def model(site, seen, below):
        mu = sample("mu", dist.Normal(0.0, 10.0).expand([3]).to_event(1))
        s = sample("s", dist.HalfCauchy(1.0))
        with plate("records", site.shape[0]):
            z = (jnp.log(seen) - mu[site]) / s
            numpyro.factor(
                "seen",
                jnp.where(
                    below > 0,
                    jax.scipy.stats.norm.logcdf(z),
                    jax.scipy.stats.norm.logpdf(z) - jnp.log(s * seen),
                ),
            )

    return Case(model, {"site": site, "seen": seen, "below": below})


def volatility(rng: Rng) -> Case:
    """Daily returns in basis points whose log-variance depends on volume and a weekday effect."""
    day = np.arange(500) % 5
    volume = rng.lognormal(14, 0.5, 500)
    bp = 3 + np.exp(3.6 + 0.4 * np.log(volume / 1.2e6) + 0.1 * (day == 0)) * rng.normal(size=500)

    def model(day, volume, bp=None):
        m = sample("m", dist.Normal(0.0, 50.0))
        g = sample("g", dist.Normal(0.0, 10.0))
        h = sample("h", dist.Normal(0.0, 2.0))
        d = sample("d", dist.Normal(0.0, 1.0).expand([5]).to_event(1))
        with plate("records", day.shape[0]):
            sample("bp", dist.Normal(m, jnp.exp(g + h * jnp.log(volume / 1.2e6) + d[day])), obs=bp)

    return Case(model, {"day": day, "volume": volume, "bp": bp})


def dropouts(rng: Rng) -> Case:
    """Pupils who leave each of 40 schools: beta-binomial regression with a small size."""
    pupils = rng.integers(3, 900, 40)
    poor = rng.uniform(0, 1, 40)
    p = 1 / (1 + np.exp(3 - 2.2 * poor))
    left = rng.binomial(pupils, rng.beta(12 * p, 12 * (1 - p)))

    def model(pupils, poor, left=None):
        a = sample("a", dist.Normal(0.0, 5.0))
        b = sample("b", dist.Normal(0.0, 5.0))
        size = sample("size", dist.HalfCauchy(10.0))
        p = jax.nn.sigmoid(a + b * poor)
        with plate("records", pupils.shape[0]):
            sample("left", dist.BetaBinomial(p * size, (1 - p) * size, pupils), obs=left)

    return Case(model, {"pupils": pupils, "poor": poor, "left": left})


MORE: dict[str, Callable[[Rng], Case]] = {
    one.__name__: one
    for one in (
        raw_frame, visits, spline, missing, monotone, emax, truth_each, integrated, censored,
        volatility, dropouts,
    )
}  # fmt: skip
