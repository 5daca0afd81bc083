"""Models with few records, groups without events or long tails, for `benchmarks.textbook`."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from benchmarks.textbook_models import Case, Rng, deterministic, ordered, plate, sample


def no_events(rng: Rng) -> Case:
    """Events per 100 person-years in four groups, two of them without an event."""
    group = np.repeat(np.arange(4), 8)
    years = rng.uniform(0.5, 3.0, 32)
    count = np.where(np.isin(group, [1, 3]), 0, rng.poisson(0.9 * years))

    def model(group, years, count=None):
        a = sample("a", dist.Normal(0.0, 3.0).expand([4]).to_event(1))
        with plate("records", group.shape[0]):
            sample("count", dist.Poisson(years * jnp.exp(a[group])), obs=count)

    return Case(model, {"group": group, "years": years, "count": count})


def no_cases(rng: Rng) -> Case:
    """Binomial outcomes of three arms; one without and one with only events."""
    arm = np.repeat(np.arange(3), 9)
    y = np.where(arm == 1, 0, np.where(arm == 2, 1, rng.integers(0, 2, 27)))

    def model(arm, y=None):
        base = sample("base", dist.Normal(0.0, 2.0))
        effect = sample("effect", dist.Normal(0.0, 5.0).expand([2]).to_event(1))
        logit = base + jnp.where(arm == 1, effect[0], jnp.where(arm == 2, effect[1], 0.0))
        with plate("records", arm.shape[0]):
            sample("y", dist.Bernoulli(logits=logit), obs=y)

    return Case(model, {"arm": arm, "y": y})


def tobit(rng: Rng) -> Case:
    """Fourteen concentrations, those below .5 recorded as .5."""
    x = rng.normal(20.0, 6.0, 14)
    raw = -1.0 + 0.1 * x + 0.8 * rng.normal(size=14)
    low, y = (raw < 0.5).astype(float), np.maximum(raw, 0.5)

    def model(x, low, y=None):
        a, b = sample("a", dist.Normal(0.0, 10.0)), sample("b", dist.Normal(0.0, 2.0))
        s = sample("s", dist.HalfCauchy(2.0))
        mean = a + b * x
        with plate("records", x.shape[0]):
            seen = dist.Normal(mean, s).log_prob(y)
            below = jax.scipy.stats.norm.logcdf((0.5 - mean) / s)
            numpyro.factor("y", jnp.where(low > 0, below, seen))

    return Case(model, {"x": x, "low": low, "y": y})


def scatter(rng: Rng) -> Case:
    """Covariance of three measurements of 25 people, with an LKJ prior."""
    cov = np.array([[36.0, 10.0, 3.0], [10.0, 90.0, -12.0], [3.0, -12.0, 9.0]])
    y = rng.multivariate_normal([30.0, 120.0, 5.0], cov, 25)

    def model(y=None):
        mu = sample("mu", dist.Normal(50.0, 100.0).expand([3]).to_event(1))
        sd = sample("sd", dist.HalfCauchy(10.0).expand([3]).to_event(1))
        factor = sample("factor", dist.LKJCholesky(3, 1.0))
        with plate("records", 25 if y is None else y.shape[0]):
            sample("y", dist.MultivariateNormal(mu, scale_tril=sd[:, None] * factor), obs=y)

    return Case(model, {"y": y})


def outlying(rng: Rng) -> Case:
    """A Cauchy location with five of eleven values far away: two modes, one of them small."""
    y = np.r_[0.5 * rng.normal(size=6), 14.0 + 0.4 * rng.normal(size=5)]

    def model(y=None):
        m = sample("m", dist.Normal(0.0, 20.0))
        with plate("records", 11 if y is None else y.shape[0]):
            sample("y", dist.Cauchy(m, 0.8), obs=y)

    return Case(model, {"y": y})


def gamma_shape(rng: Rng) -> Case:
    """Shape and rate of nine waiting times in minutes."""
    minutes = rng.gamma(1.7, 12.0, 9)

    def model(minutes=None):
        shape = sample("shape", dist.LogNormal(0.0, 1.5))
        rate = sample("rate", dist.HalfCauchy(1.0))
        with plate("records", 9 if minutes is None else minutes.shape[0]):
            sample("minutes", dist.Gamma(shape, rate), obs=minutes)

    return Case(model, {"minutes": minutes})


def beta_shapes(rng: Rng) -> Case:
    """Both shapes of a beta distribution from ten shares."""
    share = np.clip(rng.beta(0.7, 2.5, 10), 1e-3, 0.999)

    def model(share=None):
        a = sample("a", dist.HalfCauchy(2.0))
        b = sample("b", dist.HalfCauchy(2.0))
        with plate("records", 10 if share is None else share.shape[0]):
            sample("share", dist.Beta(a, b), obs=share)

    return Case(model, {"share": share})


def weibull_few(rng: Rng) -> Case:
    """Eight lifetimes in hours, four of them censored at 400: Weibull."""
    hours = 420.0 * rng.weibull(1.6, 8)
    dead, hours = (hours < 400.0).astype(float), np.minimum(hours, 400.0)

    def model(hours, dead=None):
        shape = sample("shape", dist.HalfNormal(3.0))
        scale = sample("scale", dist.LogNormal(6.0, 2.0))
        with plate("records", hours.shape[0]):
            h = (hours / scale) ** shape
            log_hazard = jnp.log(shape / scale) + (shape - 1.0) * jnp.log(hours / scale)
            numpyro.factor("dead", dead * log_hazard - h)

    return Case(model, {"hours": hours, "dead": dead})


def floods(rng: Rng) -> Case:
    """Annual maxima of a river in m³/s: generalised extreme values."""
    y = 900.0 + 260.0 * ((-np.log(rng.random(24))) ** -0.15 - 1.0) / 0.15

    def model(y=None):
        loc = sample("loc", dist.Normal(1000.0, 500.0))
        scale = sample("scale", dist.HalfNormal(500.0))
        xi = sample("xi", dist.Normal(0.0, 0.2))
        with plate("records", 24 if y is None else y.shape[0]):
            inside = 1.0 + xi * (y - loc) / scale
            t = jnp.log(jnp.where(inside > 0, inside, 1.0))
            safe = jnp.where(jnp.abs(xi) < 1e-6, 1e-6, xi)
            value = -jnp.log(scale) - (1.0 + 1.0 / safe) * t - jnp.exp(-t / safe)
            numpyro.factor("y", jnp.where(inside > 0, value, -1e10))

    return Case(model, {"y": y})


def empty_levels(rng: Rng) -> Case:
    """An ordinal outcome of five levels; nobody chose the second or the last."""
    x = rng.normal(40.0, 12.0, 45)
    level = np.digitize(0.08 * (x - 40.0) + rng.logistic(size=45), [-0.5, 1.0])
    level = np.array([0, 2, 3])[level]

    def model(x, level=None):
        b = sample("b", dist.Normal(0.0, 1.0))
        cut = sample("cut", ordered(np.array([-2.0, -1.0, 1.0, 2.0]), 2.0))
        with plate("records", x.shape[0]):
            sample("level", dist.OrderedLogistic(b * (x - 40.0), cut), obs=level)

    return Case(model, {"x": x, "level": level})


def random_slopes(rng: Rng) -> Case:
    """Growth in cm of seven children: correlated random intercepts and slopes."""
    child = np.repeat(np.arange(7), 5)
    age = np.tile(np.arange(2.0, 7.0), 7)
    u = rng.multivariate_normal([85.0, 6.5], [[9.0, 1.0], [1.0, 0.6]], 7)
    cm = u[child, 0] + u[child, 1] * (age - 4.0) + rng.normal(size=35)

    def model(child, age, cm=None):
        m = sample("m", dist.Normal(jnp.array([80.0, 5.0]), jnp.array([20.0, 5.0])).to_event(1))
        tau = sample("tau", dist.HalfNormal(jnp.array([10.0, 3.0])).to_event(1))
        factor = sample("factor", dist.LKJCholesky(2, 2.0))
        s = sample("s", dist.HalfNormal(5.0))
        z = sample("z", dist.Normal(0.0, 1.0).expand([7, 2]).to_event(2))
        u = m + z @ (tau[:, None] * factor).T
        with plate("records", child.shape[0]):
            sample("cm", dist.Normal(u[child, 0] + u[child, 1] * (age - 4.0), s), obs=cm)

    return Case(model, {"child": child, "age": age, "cm": cm})


def measured_badly(rng: Rng) -> Case:
    """A regression on a column with measurement error of known size, integrated out."""
    true = rng.normal(10.0, 2.0, 30)
    x, y = true + 1.5 * rng.normal(size=30), 3.0 + 0.8 * true + rng.normal(size=30)

    def model(x, y=None):
        a, b = sample("a", dist.Normal(0.0, 20.0)), sample("b", dist.Normal(0.0, 5.0))
        mu, tau = sample("mu", dist.Normal(0.0, 20.0)), sample("tau", dist.HalfNormal(5.0))
        s = sample("s", dist.HalfNormal(5.0))
        total = tau**2 + 1.5**2
        centre = a + b * (mu + tau**2 / total * (x - mu))
        spread = jnp.sqrt(s**2 + b**2 * tau**2 * 1.5**2 / total)
        with plate("records", x.shape[0]):
            both = dist.Normal(centre, spread).log_prob(y)
            numpyro.factor("y", both + dist.Normal(mu, jnp.sqrt(total)).log_prob(x))

    return Case(model, {"x": x, "y": y})


def few_columns(rng: Rng) -> Case:
    """A horseshoe over four columns with 40 records."""
    x = rng.normal(size=(40, 4))
    y = 2.0 * x[:, 0] + rng.normal(size=40)

    def model(x, y=None):
        tau = sample("tau", dist.HalfCauchy(1.0))
        lam = sample("lam", dist.HalfCauchy(1.0).expand([4]).to_event(1))
        z = sample("z", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
        s = sample("s", dist.HalfNormal(2.0))
        with plate("records", x.shape[0]):
            sample("y", dist.Normal(x @ (z * lam * tau), s), obs=y)

    return Case(model, {"x": x, "y": y})


def shares(rng: Rng) -> Case:
    """Votes for six lists, two without a vote: categorical with a Dirichlet prior."""
    vote = rng.choice(6, 18, p=[0.5, 0.3, 0.15, 0.05, 0.0, 0.0])

    def model(vote=None):
        p = sample("p", dist.Dirichlet(0.5 * jnp.ones(6)))
        with plate("records", 18 if vote is None else vote.shape[0]):
            sample("vote", dist.Categorical(probs=p), obs=vote)

    return Case(model, {"vote": vote})


def decay(rng: Rng) -> Case:
    """Exponential decay to an unknown offset, observed for one half-life only."""
    t = np.linspace(0.0, 10.0, 16)
    y = 5.0 + 20.0 * np.exp(-t / 12.0) + 0.5 * rng.normal(size=16)

    def model(t, y=None):
        base = sample("base", dist.Normal(0.0, 20.0))
        top = sample("top", dist.HalfNormal(50.0))
        life = sample("life", dist.LogNormal(2.0, 1.0))
        s = sample("s", dist.HalfNormal(2.0))
        with plate("records", t.shape[0]):
            sample("y", dist.Normal(base + top * jnp.exp(-t / life), s), obs=y)

    return Case(model, {"t": t, "y": y})


def step_change(rng: Rng) -> Case:
    """Counts of accidents before and after an unknown year, the change smoothed over a year."""
    year = np.arange(1950.0, 1990.0)
    count = rng.poisson(np.where(year < 1971, 4.0, 1.6))

    def model(year, count=None):
        early, late = sample("early", dist.Gamma(2.0, 0.5)), sample("late", dist.Gamma(2.0, 0.5))
        when = sample("when", dist.Uniform(1950.0, 1990.0))
        share = jax.nn.sigmoid(year - when)
        with plate("records", year.shape[0]):
            sample("count", dist.Poisson(early + (late - early) * share), obs=count)

    return Case(model, {"year": year, "count": count})


def two_scales(rng: Rng) -> Case:
    """Variance by group and by level of a factor: two scales that multiply."""
    group, kind = rng.integers(0, 2, 22), rng.integers(0, 2, 22)
    y = 3.0 * np.where(group, 2.0, 0.7) * np.where(kind, 1.5, 1.0) * rng.normal(size=22)

    def model(group, kind, y=None):
        m = sample("m", dist.Normal(0.0, 10.0))
        s = sample("s", dist.HalfCauchy(5.0))
        one = sample("one", dist.LogNormal(0.0, 1.0))
        two = sample("two", dist.LogNormal(0.0, 1.0))
        scale = s * jnp.where(group == 1, one, 1.0) * jnp.where(kind == 1, two, 1.0)
        with plate("records", group.shape[0]):
            sample("y", dist.Normal(m, scale), obs=y)

    return Case(model, {"group": group, "kind": kind, "y": y})


def funnel(rng: Rng) -> Case:
    """Five laboratories with three values each, centred, a scale near 0."""
    lab = np.repeat(np.arange(5), 3)
    y = 12.0 + 0.3 * rng.normal(size=5)[lab] + 2.0 * rng.normal(size=15)

    def make(centred: bool) -> Callable[..., None]:
        def model(lab, y=None):
            mu = sample("mu", dist.Normal(0.0, 50.0))
            tau = sample("tau", dist.HalfCauchy(2.0))
            with plate("labs", 5):
                if centred:
                    effect = sample("effect", dist.Normal(mu, tau))
                else:
                    effect = mu + tau * sample("raw", dist.Normal(0.0, 1.0))
                    deterministic("effect", effect)
            with plate("records", lab.shape[0]):
                sample("y", dist.Normal(effect[lab], 2.0), obs=y)

        return model

    return Case(make(True), {"lab": lab, "y": y}, reference=make(False))


def four_values(rng: Rng) -> Case:
    """Mean and sd of four values with vague priors."""
    y = rng.normal(180.0, 25.0, 4)

    def model(y=None):
        mu, s = sample("mu", dist.Normal(0.0, 1e3)), sample("s", dist.HalfCauchy(50.0))
        with plate("records", 4 if y is None else y.shape[0]):
            sample("y", dist.Normal(mu, s), obs=y)

    return Case(model, {"y": y})


def freedom(rng: Rng) -> Case:
    """Location, scale and degrees of freedom of 30 values."""
    y = 4.0 + 2.0 * rng.standard_t(4.0, 30)

    def model(y=None):
        m, s = sample("m", dist.Normal(0.0, 20.0)), sample("s", dist.HalfCauchy(5.0))
        nu = sample("nu", dist.Gamma(2.0, 0.1))
        with plate("records", 30 if y is None else y.shape[0]):
            sample("y", dist.StudentT(nu, m, s), obs=y)

    return Case(model, {"y": y})


def overdispersed(rng: Rng) -> Case:
    """Twelve counts: negative binomial with unknown concentration."""
    count = rng.poisson(rng.gamma(1.5, 6.0, 12))

    def model(count=None):
        mean = sample("mean", dist.LogNormal(2.0, 2.0))
        phi = sample("phi", dist.HalfCauchy(5.0))
        with plate("records", 12 if count is None else count.shape[0]):
            sample("count", dist.NegativeBinomial2(mean, phi), obs=count)

    return Case(model, {"count": count})


def separated(rng: Rng) -> Case:
    """A logistic regression on a column that separates 16 outcomes, in grams."""
    grams = np.sort(rng.uniform(100.0, 900.0, 16))
    y = (np.arange(16) >= 7).astype(int)

    def model(grams, y=None):
        a = sample("a", dist.Normal(0.0, 20.0))
        b = sample("b", dist.Normal(0.0, 0.1))
        with plate("records", grams.shape[0]):
            sample("y", dist.Bernoulli(logits=a + b * (grams - 500.0)), obs=y)

    return Case(model, {"grams": grams, "y": y})


def frailty(rng: Rng) -> Case:
    """Exponential survival of 40 patients in six hospitals, with lognormal frailties."""
    ward = rng.integers(0, 6, 40)
    days = rng.exponential(90.0 * np.exp(0.5 * rng.normal(size=6)[ward]))

    def model(ward, days=None):
        a, tau = sample("a", dist.Normal(4.0, 3.0)), sample("tau", dist.HalfNormal(1.0))
        z = sample("z", dist.Normal(0.0, 1.0).expand([6]).to_event(1))
        with plate("records", ward.shape[0]):
            sample("days", dist.Exponential(jnp.exp(-a - tau * z[ward])), obs=days)

    return Case(model, {"ward": ward, "days": days})


def power_law(rng: Rng) -> Case:
    """Metabolic rate in watts on mass in grams: a power law with additive noise."""
    mass = np.exp(rng.uniform(2.0, 8.0, 20))
    watt = 0.02 * mass**0.75 + 0.5 * rng.normal(size=20)

    def model(mass, watt=None):
        c = sample("c", dist.LogNormal(-4.0, 2.0))
        k = sample("k", dist.Normal(0.7, 0.3))
        s = sample("s", dist.HalfNormal(3.0))
        with plate("records", mass.shape[0]):
            sample("watt", dist.Normal(c * mass**k, s), obs=watt)

    return Case(model, {"mass": mass, "watt": watt})


def two_rates(rng: Rng) -> Case:
    """Sum of two known groups' rates with one event in all: Poisson, natural units."""
    days = rng.integers(20, 400, 10).astype(float)
    count = np.zeros(10, int)
    count[3] = 1

    def model(days, count=None):
        low = sample("low", dist.HalfNormal(0.02))
        high = sample("high", dist.HalfNormal(0.02))
        slope = sample("slope", dist.Normal(0.0, 2.0))
        rate = low * days + high * days * jax.nn.sigmoid(slope * (days - 200.0) / 100.0)
        with plate("records", days.shape[0]):
            sample("count", dist.Poisson(rate), obs=count)

    return Case(model, {"days": days, "count": count})


SMALL: dict[str, Callable[[Rng], Case]] = {
    one.__name__: one
    for one in (
        no_events, no_cases, tobit, scatter, outlying, gamma_shape, beta_shapes, weibull_few,
        floods, empty_levels, random_slopes, measured_badly, few_columns, shares, decay,
        step_change, two_scales, funnel, four_values, freedom, overdispersed, separated, frailty,
        power_law, two_rates,
    )
}  # fmt: skip
