"""Textbook models with simulated records in raw units, for `benchmarks.textbook`.

Every function is written as a user would write it. Where a model is centred, or has units with
which NUTS would struggle, `reference` is the same posterior in another parametrisation.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions.transforms import OrderedTransform
from numpyro.infer.reparam import LocScaleReparam

sample: Any = numpyro.sample
deterministic: Any = numpyro.deterministic
plate: Any = numpyro.plate
Records = dict[str, np.ndarray]
Rng = np.random.Generator


class Case(NamedTuple):
    """One model with its records."""

    model: Callable[..., None]
    records: Records
    arguments: dict[str, Any] = {}  # noqa: RUF012
    reference: Callable[..., None] | None = None
    """The same posterior for NUTS, if not `model`."""
    refused: bool = False
    """Whether `from_numpyro` or `fit` should say that it cannot fit the model."""


def ordered(center: Any, scale: Any) -> Any:
    base = dist.Normal(jnp.asarray(center), jnp.asarray(scale)).to_event(1)
    return dist.TransformedDistribution(base, OrderedTransform())


def growth(rng: Rng) -> Case:
    """Length of sea cows by age: a saturating curve."""
    age = np.sort(np.r_[rng.uniform(1, 20, 24), 22.5, 29.0, 31.5])
    length = 2.65 - 0.97 * 0.87**age + 0.1 * rng.normal(size=len(age))

    def model(age, length=None):
        alpha = sample("alpha", dist.Normal(0.0, 10.0))
        beta = sample("beta", dist.HalfNormal(10.0))
        gamma = sample("gamma", dist.Uniform(0.5, 1.0))
        sigma = sample("sigma", dist.HalfCauchy(1.0))
        with plate("records", age.shape[0]):
            sample("length", dist.Normal(alpha - beta * gamma**age, sigma), obs=length)

    return Case(model, {"age": age, "length": length})


def dyes(rng: Rng) -> Case:
    """Yield of dyestuff in grams, six batches of five: one-way random effects, centred."""
    batch = np.repeat(np.arange(6), 5)
    gram = 1527.0 + 42.0 * rng.normal(size=6)[batch] + 50.0 * rng.normal(size=30)

    def make(centred):
        def model(batch, gram=None):
            mu = sample("mu", dist.Normal(1500.0, 500.0))
            tau = sample("tau", dist.HalfNormal(100.0))
            sigma = sample("sigma", dist.HalfNormal(100.0))
            with plate("batches", 6):
                if centred:
                    effect = sample("effect", dist.Normal(mu, tau))
                else:
                    effect = mu + tau * sample("raw", dist.Normal(0.0, 1.0))
                    deterministic("effect", effect)
            with plate("records", batch.shape[0]):
                sample("gram", dist.Normal(effect[batch], sigma), obs=gram)

        return model

    return Case(make(True), {"batch": batch, "gram": gram}, reference=make(False))


def stacks(rng: Rng) -> Case:
    """Stack loss of a plant on air flow, water temperature and acid: Student-t errors."""
    x = np.column_stack(
        [rng.normal(60, 9, 21), rng.normal(21, 3, 21), rng.normal(86, 5, 21)]
    ).round()
    loss = -40 + x @ [0.72, 1.3, -0.15] + 2.5 * rng.standard_t(3.0, 21)

    def model(x, loss=None):
        a = sample("a", dist.Normal(0.0, 200.0))
        b = sample("b", dist.Normal(0.0, 20.0).expand([3]).to_event(1))
        s = sample("s", dist.HalfCauchy(5.0))
        with plate("records", x.shape[0]):
            sample("loss", dist.StudentT(4.0, a + x @ b, s), obs=loss)

    return Case(model, {"x": x, "loss": loss})


def seeds(rng: Rng) -> Case:
    """Germinated seeds on 21 plates, two factors: binomial with a random effect per plate."""
    root, kind = rng.integers(0, 2, 21), rng.integers(0, 2, 21)
    total = rng.integers(4, 80, 21)
    eta = -0.5 + 1.3 * root - 0.2 * kind - 0.8 * root * kind + 0.35 * rng.normal(size=21)
    sprouted = rng.binomial(total, 1 / (1 + np.exp(-eta)))

    def model(dish, root, kind, total, sprouted=None):
        b = sample("b", dist.Normal(0.0, 3.0).expand([4]).to_event(1))
        tau = sample("tau", dist.HalfNormal(1.0))
        z = sample("z", dist.Normal(0.0, 1.0).expand([21]).to_event(1))
        eta = b[0] + b[1] * root + b[2] * kind + b[3] * root * kind + tau * z[dish]
        with plate("records", dish.shape[0]):
            sample("sprouted", dist.Binomial(total, logits=eta), obs=sprouted)

    return Case(
        model,
        {"dish": np.arange(21), "root": root, "kind": kind, "total": total, "sprouted": sprouted},
    )


def epil(rng: Rng) -> Case:
    """Seizure counts of 30 patients at four visits: Poisson with random intercepts, centred."""
    patient = np.repeat(np.arange(30), 4)
    base = rng.gamma(2.0, 15.0, 30)[patient] + 4.0
    treated = rng.integers(0, 2, 30)[patient]
    mean = np.exp(
        -1.0 + 0.8 * np.log(base / 4) - 0.3 * treated + 0.5 * rng.normal(size=30)[patient]
    )
    count = rng.poisson(mean)

    def make(centred):
        def model(patient, base, treated, count=None):
            a = sample("a", dist.Normal(0.0, 5.0))
            b = sample("b", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
            tau = sample("tau", dist.HalfCauchy(1.0))
            with plate("patients", 30):
                if centred:
                    effect = sample("effect", dist.Normal(0.0, tau))
                else:
                    effect = tau * sample("raw", dist.Normal(0.0, 1.0))
                    deterministic("effect", effect)
            rate = jnp.exp(a + b[0] * jnp.log(base / 4) + b[1] * treated + effect[patient])
            with plate("records", patient.shape[0]):
                sample("count", dist.Poisson(rate), obs=count)

        return model

    records = {"patient": patient, "base": base, "treated": treated, "count": count}
    return Case(make(True), records, reference=make(False))


def fishing(rng: Rng) -> Case:
    """Fish caught by campers: zero-inflated Poisson with both parts regressed."""
    persons, child = rng.integers(1, 5, 250), rng.integers(0, 4, 250)
    rate = np.exp(-0.8 + 0.6 * persons - 0.7 * child)
    gate = 1 / (1 + np.exp(0.5 - 0.6 * child))
    caught = np.where(rng.random(250) < gate, 0, rng.poisson(rate))

    def model(persons, child, caught=None):
        b = sample("b", dist.Normal(0.0, 3.0).expand([3]).to_event(1))
        c = sample("c", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
        rate = jnp.exp(b[0] + b[1] * persons + b[2] * child)
        with plate("records", persons.shape[0]):
            gate = jax.nn.sigmoid(c[0] + c[1] * child)
            sample("caught", dist.ZeroInflatedPoisson(gate, rate), obs=caught)

    return Case(model, {"persons": persons, "child": child, "caught": caught})


def ordered_probit(rng: Rng) -> Case:
    """Agreement on a scale of five, on age in years and income."""
    age, income = rng.integers(18, 90, 300), rng.lognormal(10.4, 0.6, 300)
    latent = 0.02 * (age - 50) + 0.4 * np.log(income / 33_000) + rng.normal(size=300)
    answer = np.digitize(latent, [-1.3, -0.4, 0.5, 1.6])

    def model(age, income, answer=None):
        b = sample("b", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        cuts = sample("cuts", ordered([-1.0, 0.0, 0.0, 0.0], [2.0, 1.0, 1.0, 1.0]))
        eta = b[0] * (age - 50) + b[1] * jnp.log(income / 33_000)
        below = jax.scipy.stats.norm.cdf(cuts - eta[:, None])
        chance = jnp.diff(jnp.pad(below, ((0, 0), (1, 1)), constant_values=(0.0, 1.0)))
        with plate("records", age.shape[0]):
            sample("answer", dist.Categorical(probs=chance), obs=answer)

    return Case(model, {"age": age, "income": income, "answer": answer})


def multinomial_logit(rng: Rng) -> Case:
    """Choice of three means of transport on distance in metres and rain; the first is the base."""
    metres, rain = rng.gamma(2.0, 3000.0, 400), rng.integers(0, 2, 400)
    eta = np.column_stack([np.zeros(400), -1 + 2e-4 * metres, 0.5 + 5e-5 * metres + rain])
    chance = np.exp(eta) / np.exp(eta).sum(1, keepdims=True)
    choice = (chance.cumsum(1) < rng.random((400, 1))).sum(1)

    def model(metres, rain, choice=None):
        a = sample("a", dist.Normal(0.0, 5.0).expand([2]).to_event(1))
        b = sample("b", dist.Normal(0.0, 0.01).expand([2]).to_event(1))
        c = sample("c", dist.Normal(0.0, 5.0).expand([2]).to_event(1))
        eta = a + b * metres[:, None] + c * rain[:, None]
        logits = jnp.concatenate([jnp.zeros((metres.shape[0], 1)), eta], axis=1)
        with plate("records", metres.shape[0]):
            sample("choice", dist.Categorical(logits=logits), obs=choice)

    return Case(model, {"metres": metres, "rain": rain, "choice": choice})


def beta_regression(rng: Rng) -> Case:
    """Share of petrol from crude oil on temperature in degrees Fahrenheit."""
    degrees = rng.uniform(205, 444, 32)
    mu = 1 / (1 + np.exp(6.0 - 0.011 * degrees * 1.3))
    share = np.clip(rng.beta(60 * mu, 60 * (1 - mu)), 1e-3, 1 - 1e-3)

    def model(degrees, share=None):
        a = sample("a", dist.Normal(0.0, 10.0))
        b = sample("b", dist.Normal(0.0, 0.1))
        phi = sample("phi", dist.Gamma(1.0, 0.01))
        mu = jax.nn.sigmoid(a + b * degrees)
        with plate("records", degrees.shape[0]):
            sample("share", dist.Beta(mu * phi, (1.0 - mu) * phi), obs=share)

    return Case(model, {"degrees": degrees, "share": share})


def gamma_regression(rng: Rng) -> Case:
    """Costs in euros on age and stay: gamma with a log link."""
    age, days = rng.normal(61, 15, 200), rng.poisson(5, 200)
    cost = rng.gamma(1.8, np.exp(6.0 + 0.01 * age + 0.12 * days) / 1.8)

    def model(age, days, cost=None):
        b = sample("b", dist.Normal(0.0, jnp.array([10.0, 1.0, 1.0])).to_event(1))
        shape = sample("shape", dist.LogNormal(0.0, 1.0))
        mean = jnp.exp(b[0] + b[1] * age + b[2] * days)
        with plate("records", age.shape[0]):
            sample("cost", dist.Gamma(shape, shape / mean), obs=cost)

    return Case(model, {"age": age, "days": days, "cost": cost})


def weibull(rng: Rng) -> Case:
    """Days until a bearing fails, on load in newtons."""
    load = rng.uniform(2_000, 9_000, 80)
    days = np.exp(8.0 - 3e-4 * load) * rng.weibull(1.6, 80)

    def model(load, days=None):
        a = sample("a", dist.Normal(0.0, 20.0))
        b = sample("b", dist.Normal(0.0, 0.01))
        k = sample("k", dist.HalfNormal(3.0))
        with plate("records", load.shape[0]):
            sample("days", dist.Weibull(jnp.exp(a + b * load), k), obs=days)

    return Case(model, {"load": load, "days": days})


def geyser(rng: Rng) -> Case:
    """Minutes between eruptions: two normals with ordered means."""
    short = rng.random(200) < 0.35
    minutes = np.where(short, rng.normal(54.5, 6, 200), rng.normal(80, 6, 200))

    def model(minutes: Any = None):
        p = sample("p", dist.Beta(2.0, 2.0))
        mu = sample("mu", ordered([55.0, 3.0], [20.0, 1.0]))
        s = sample("s", dist.HalfNormal(20.0).expand([2]).to_event(1))
        weights = dist.Categorical(probs=jnp.stack([p, 1.0 - p]))
        with plate("records", minutes.shape[0]):
            sample("minutes", dist.MixtureSameFamily(weights, dist.Normal(mu, s)), obs=minutes)

    return Case(model, {"minutes": minutes})


def hinge(rng: Rng) -> Case:
    """Flow of water on a slope: two lines that meet at an unknown point."""
    log_flow = np.sort(rng.uniform(-1.4, 1.1, 29))
    height = 0.53 - 0.42 * (log_flow - 0.03) - 0.6 * np.maximum(log_flow - 0.03, 0)
    height = height + 0.03 * rng.normal(size=29)

    def model(flow, height=None):
        alpha = sample("alpha", dist.Normal(0.0, 5.0))
        b = sample("b", dist.Normal(0.0, 5.0).expand([2]).to_event(1))
        turn = sample("turn", dist.Uniform(-1.3, 1.1))
        s = sample("s", dist.HalfCauchy(1.0))
        apart = flow - turn
        mean = alpha + jnp.where(apart < 0, b[0], b[1]) * apart
        with plate("records", flow.shape[0]):
            sample("height", dist.Normal(mean, s), obs=height)

    return Case(model, {"flow": log_flow, "height": height})


def horseshoe(rng: Rng) -> Case:
    """Regularised regression on ten columns, of which two matter."""
    x = rng.normal(size=(60, 10))
    y = 12.0 * x[:, 0] - 7.0 * x[:, 4] + 10.0 * rng.normal(size=60)

    def model(x, y=None):
        tau = sample("tau", dist.HalfCauchy(1.0))
        lam = sample("lam", dist.HalfCauchy(1.0).expand([10]).to_event(1))
        z = sample("z", dist.Normal(0.0, 1.0).expand([10]).to_event(1))
        s = sample("s", dist.HalfNormal(20.0))
        b = deterministic("b", z * tau * lam)
        with plate("records", x.shape[0]):
            sample("y", dist.Normal(x @ b, s), obs=y)

    return Case(model, {"x": x, "y": y})


def lasso(rng: Rng) -> Case:
    """Bayesian lasso: Laplace priors with a learnt scale, raw columns."""
    units = np.array([1.0, 100.0, 0.01, 5.0, 1e3, 0.3, 20.0, 1e-3, 2.0, 50.0])
    x = rng.normal(size=(90, 10)) * units
    y = 50 + (x / units) @ np.r_[4.0, -3.0, 2.0, np.zeros(7)] + 5 * rng.normal(size=90)

    def model(x, y=None):
        a = sample("a", dist.Normal(0.0, 100.0))
        scale = sample("scale", dist.HalfNormal(5.0))
        b = sample("b", dist.Laplace(jnp.zeros(10), scale).to_event(1))
        s = sample("s", dist.HalfNormal(20.0))
        with plate("records", x.shape[0]):
            sample("y", dist.Normal(a + (x / units) @ b, s), obs=y)

    def reference(x, y=None):
        a = sample("a", dist.Normal(0.0, 100.0))
        scale = sample("scale", dist.HalfNormal(5.0))
        raw = sample("raw", dist.Laplace(jnp.zeros(10), 1.0).to_event(1))
        b = deterministic("b", scale * raw)
        s = sample("s", dist.HalfNormal(20.0))
        with plate("records", x.shape[0]):
            sample("y", dist.Normal(a + (x / units) @ b, s), obs=y)

    return Case(model, {"x": x, "y": y}, reference=reference)


def gaussian_process(rng: Rng) -> Case:
    """A curve over 20 days with learnt length and height."""
    day = np.linspace(0.0, 190.0, 20)
    value = 300.0 * np.sin(day / 40.0) + 60.0 * rng.normal(size=20)
    at = jnp.asarray(day)

    def model(place, value=None):
        length = sample("length", dist.InverseGamma(5.0, 200.0))
        height = sample("height", dist.HalfNormal(400.0))
        s = sample("s", dist.HalfNormal(100.0))
        z = sample("z", dist.Normal(0.0, 1.0).expand([20]).to_event(1))
        gram = jnp.exp(-0.5 * ((at[:, None] - at) / length) ** 2) + 1e-6 * jnp.eye(20)
        f = deterministic("f", height * jnp.linalg.cholesky(gram) @ z)
        with plate("records", place.shape[0]):
            sample("value", dist.Normal(f[place], s), obs=value)

    return Case(model, {"place": np.arange(20), "value": value})


def poisson_process(rng: Rng) -> Case:
    """Counts at 11 places with a latent Gaussian process, as in textbooks of spatial statistics."""
    at = np.linspace(-10.0, 10.0, 11)
    count = rng.poisson(np.exp(1.6 + 1.2 * np.sin(at / 3.0)))
    x = jnp.asarray(at)

    def model(place, count=None):
        rho = sample("rho", dist.Gamma(25.0, 4.0))
        alpha = sample("alpha", dist.HalfNormal(2.0))
        z = sample("z", dist.Normal(0.0, 1.0).expand([11]).to_event(1))
        gram = alpha**2 * jnp.exp(-0.5 * ((x[:, None] - x) / rho) ** 2) + 1e-10 * jnp.eye(11)
        f = deterministic("f", jnp.linalg.cholesky(gram) @ z)
        with plate("records", place.shape[0]):
            sample("count", dist.Poisson(jnp.exp(f[place])), obs=count)

    return Case(model, {"place": np.arange(11), "count": count})


def series(rng: Rng) -> Case:
    """An autoregression that reads the record before: records are not independent."""
    y = np.zeros(120)
    for t in range(1, 120):
        y[t] = 3.0 + 0.7 * y[t - 1] + rng.normal()

    def model(y: Any = None):
        a, r = sample("a", dist.Normal(0.0, 10.0)), sample("r", dist.Uniform(-1.0, 1.0))
        s = sample("s", dist.HalfNormal(5.0))
        before = jnp.concatenate([jnp.zeros(1), y[:-1]])
        with plate("records", y.shape[0]):
            sample("y", dist.Normal(a + r * before, s), obs=y)

    return Case(model, {"y": y}, refused=True)


def lagged(rng: Rng) -> Case:
    """The same with lags as columns, in thousands."""
    y = np.full(160, 5_000.0)
    for t in range(2, 160):
        y[t] = 600 + 1.2 * y[t - 1] - 0.32 * y[t - 2] + 150 * rng.normal()

    def model(lags, y=None):
        a = sample("a", dist.Normal(0.0, 5_000.0))
        b = sample("b", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        s = sample("s", dist.HalfCauchy(200.0))
        with plate("records", lags.shape[0]):
            sample("y", dist.Normal(a + lags @ b, s), obs=y)

    return Case(model, {"lags": np.column_stack([y[1:-1], y[:-2]]), "y": y[2:]})


def item_response(rng: Rng) -> Case:
    """Two-parameter logistic model of 30 pupils and eight items."""
    pupil, item = (one.ravel() for one in np.meshgrid(np.arange(30), np.arange(8), indexing="ij"))
    able, hard = rng.normal(size=30), rng.normal(size=8)
    sharp = np.exp(0.4 * rng.normal(size=8))
    right = rng.random(240) < 1 / (1 + np.exp(-sharp[item] * (able[pupil] - hard[item])))

    def model(pupil, item, right=None):
        able = sample("able", dist.Normal(0.0, 1.0).expand([30]).to_event(1))
        hard = sample("hard", dist.Normal(0.0, 2.0).expand([8]).to_event(1))
        sharp = sample("sharp", dist.LogNormal(0.0, 0.5).expand([8]).to_event(1))
        logits = sharp[item] * (able[pupil] - hard[item])
        with plate("records", pupil.shape[0]):
            sample("right", dist.Bernoulli(logits=logits), obs=right)

    return Case(model, {"pupil": pupil, "item": item, "right": right.astype(float)})


def occupancy(rng: Rng) -> Case:
    """Sites visited five times; an absent species is never seen."""
    hill = rng.uniform(200, 2_400, 120)
    there = rng.random(120) < 1 / (1 + np.exp(2.0 - 0.0018 * hill))
    seen = rng.binomial(5, 0.35, 120) * there

    def model(hill, seen=None):
        a, b = sample("a", dist.Normal(0.0, 3.0)), sample("b", dist.Normal(0.0, 0.01))
        p = sample("p", dist.Uniform(0.0, 1.0))
        there = jax.nn.sigmoid(a + b * hill)
        seen_given = dist.Binomial(5, probs=p)
        with plate("records", hill.shape[0]):
            law = dist.ZeroInflatedDistribution(seen_given, gate=1.0 - there)
            sample("seen", law, obs=seen)

    return Case(model, {"hill": hill, "seen": seen})


def michaelis(rng: Rng) -> Case:
    """Velocity of an enzyme on the concentration of its substrate, 12 measurements."""
    amount = np.repeat([0.02, 0.06, 0.11, 0.22, 0.56, 1.10], 2)
    velocity = 212 * amount / (0.064 + amount) + 10 * rng.normal(size=12)

    def model(amount, velocity=None):
        top = sample("top", dist.HalfNormal(500.0))
        half = sample("half", dist.HalfNormal(1.0))
        s = sample("s", dist.HalfNormal(50.0))
        with plate("records", amount.shape[0]):
            sample("velocity", dist.Normal(top * amount / (half + amount), s), obs=velocity)

    return Case(model, {"amount": amount, "velocity": velocity})


def slopes(rng: Rng) -> Case:
    """Reaction times of 12 subjects by days without sleep: correlated intercepts and slopes."""
    subject, days = (one.ravel() for one in np.meshgrid(np.arange(12), np.arange(8), indexing="ij"))
    u = rng.multivariate_normal([251.0, 10.5], [[600.0, 10.0], [10.0, 35.0]], 12)
    ms = u[subject, 0] + u[subject, 1] * days + 25 * rng.normal(size=96)

    def model(subject, days, ms=None):
        mean = sample(
            "mean", dist.Normal(jnp.array([250.0, 0.0]), jnp.array([100.0, 50.0])).to_event(1)
        )
        sd = sample("sd", dist.HalfNormal(jnp.array([50.0, 20.0])).to_event(1))
        corr = sample("corr", dist.LKJCholesky(2, 2.0))
        s = sample("s", dist.HalfNormal(50.0))
        z = sample("z", dist.Normal(0.0, 1.0).expand([12, 2]).to_event(2))
        u = deterministic("u", mean + z @ (sd[:, None] * corr).T)
        with plate("records", subject.shape[0]):
            sample("ms", dist.Normal(u[subject, 0] + u[subject, 1] * days, s), obs=ms)

    return Case(model, {"subject": subject, "days": days, "ms": ms})


def blood(rng: Rng) -> Case:
    """Shares of alleles from blood groups: a simplex."""
    group = rng.choice(4, 300, p=[0.42, 0.11, 0.04, 0.43])

    def model(group: Any = None):
        p = sample("p", dist.Dirichlet(jnp.ones(3)))
        a, b, o = p[0], p[1], p[2]
        chance = jnp.stack([a * a + 2 * a * o, b * b + 2 * b * o, 2 * a * b, o * o])
        with plate("records", group.shape[0]):
            sample("group", dist.Categorical(probs=chance), obs=group)

    return Case(model, {"group": group})


def reparametrised(rng: Rng) -> Case:
    """Random intercepts with `numpyro.handlers.reparam` around a centred model."""
    school = np.repeat(np.arange(10), 12)
    score = 500 + 30 * rng.normal(size=10)[school] + 90 * rng.normal(size=120)

    def centred(school, score=None):
        mu = sample("mu", dist.Normal(500.0, 200.0))
        tau = sample("tau", dist.HalfCauchy(25.0))
        s = sample("s", dist.HalfNormal(200.0))
        with plate("schools", 10):
            theta = sample("theta", dist.Normal(mu, tau))
        with plate("records", school.shape[0]):
            sample("score", dist.Normal(theta[school], s), obs=score)

    model: Any = numpyro.handlers.reparam(centred, config={"theta": LocScaleReparam(0.0)})
    return Case(model, {"school": school, "score": score})


def weighted(rng: Rng) -> Case:
    """Survey weights by `handlers.scale`."""
    x, weight = rng.normal(40, 12, 150), rng.uniform(0.3, 2.5, 150)
    y = 20_000 + 500 * x + 9_000 * rng.normal(size=150)

    def model(x, weight, y=None):
        a, b = sample("a", dist.Normal(0.0, 1e5)), sample("b", dist.Normal(0.0, 1e4))
        s = sample("s", dist.HalfNormal(5e4))
        with plate("records", x.shape[0]), numpyro.handlers.scale(scale=weight):
            sample("y", dist.Normal(a + b * x, s), obs=y)

    return Case(model, {"x": x, "weight": weight, "y": y})


def by_factor(rng: Rng) -> Case:
    """Censored log-logistic survival in days, written with `numpyro.factor`."""
    x = rng.normal(size=140)
    t = np.exp(6.0 + 0.5 * x + 0.6 * rng.logistic(size=140))
    end = rng.uniform(100, 2_000, 140)
    time, event = np.minimum(t, end), (t <= end).astype(float)

    def model(x, time, event):
        a, b = sample("a", dist.Normal(0.0, 10.0)), sample("b", dist.Normal(0.0, 2.0))
        s = sample("s", dist.HalfNormal(2.0))
        with plate("records", x.shape[0]):
            z = (jnp.log(time) - a - b * x) / s
            survive = -jax.nn.softplus(z)
            density = z - jnp.log(s) - jnp.log(time) - 2.0 * jax.nn.softplus(z)
            numpyro.factor("time", jnp.where(event > 0, density, survive))

    return Case(model, {"x": x, "time": time, "event": event})


def subsampled(rng: Rng) -> Case:
    """A plate with `subsample_size`."""
    x = rng.normal(size=200)

    def model(x, y=None):
        b = sample("b", dist.Normal(0.0, 1.0))
        with plate("records", x.shape[0], subsample_size=20) as place:
            sample("y", dist.Normal(b * x[place], 1.0), obs=None if y is None else y[place])

    return Case(model, {"x": x, "y": x + rng.normal(size=200)}, refused=True)


def whole_numbers(rng: Rng) -> Case:
    """A quadratic on integer columns, with whole numbers for outcomes."""
    age, year = rng.integers(20, 70, 180), rng.integers(1995, 2020, 180)
    euros = 900 + 60 * age - 0.5 * age**2 + 12 * (year - 1995) + 200 * rng.normal(size=180)

    def model(age, year, euros=None):
        a = sample("a", dist.Normal(0.0, 1e5))
        b = sample("b", dist.Normal(0.0, jnp.array([1e3, 1e2, 1e3])).to_event(1))
        s = sample("s", dist.HalfNormal(1e3))
        mean = a + b[0] * age + b[1] * age**2 + b[2] * year
        with plate("records", age.shape[0]):
            sample("euros", dist.Normal(mean, s), obs=euros)

    return Case(model, {"age": age, "year": year, "euros": euros.round().astype(np.int64)})


def masked(rng: Rng) -> Case:
    """Two measurements per record, some of them missing."""
    y = rng.multivariate_normal([120.0, 80.0], [[225.0, 90.0], [90.0, 100.0]], 100)
    known = rng.random((100, 2)) < 0.8

    def model(known, y=None):
        mean = sample("mean", dist.Normal(100.0, 50.0).expand([2]).to_event(1))
        sd = sample("sd", dist.HalfNormal(30.0).expand([2]).to_event(1))
        with plate("records", known.shape[0]):
            sample("y", dist.Normal(mean, sd).mask(known).to_event(1), obs=y)

    return Case(model, {"known": known, "y": np.where(known, y, 0.0)})


def roaches(rng: Rng) -> Case:
    """Overdispersed counts with an exposure: negative binomial."""
    before, treated = rng.gamma(0.5, 80.0, 200), rng.integers(0, 2, 200)
    traps = rng.uniform(0.2, 3.0, 200)
    mean = traps * np.exp(2.5 + 0.012 * before - 0.6 * treated)
    count = rng.poisson(mean * rng.gamma(0.4, 1 / 0.4, 200))

    def model(before, treated, traps, count=None):
        a = sample("a", dist.Normal(0.0, 5.0))
        b = sample("b", dist.Normal(0.0, jnp.array([1.0, 3.0])).to_event(1))
        phi = sample("phi", dist.Exponential(1.0))
        mean = traps * jnp.exp(a + b[0] * before + b[1] * treated)
        with plate("records", before.shape[0]):
            sample("count", dist.NegativeBinomial2(mean, phi), obs=count)

    return Case(model, {"before": before, "treated": treated, "traps": traps, "count": count})


def tumours(rng: Rng) -> Case:
    """Rats with a tumour in 30 groups: beta-binomial with learnt rate and size."""
    total = rng.integers(10, 50, 30)
    sick = rng.binomial(total, rng.beta(1.5, 9.0, 30))

    def model(total, sick=None):
        rate = sample("rate", dist.Uniform(0.0, 1.0))
        size = sample("size", dist.LogNormal(2.0, 1.0))
        with plate("records", total.shape[0]):
            law = dist.BetaBinomial(rate * size, (1 - rate) * size, total)
            sample("sick", law, obs=sick)

    return Case(model, {"total": total, "sick": sick})


def pairs(rng: Rng) -> Case:
    """Height and weight together: a bivariate normal with an LKJ prior."""
    y = rng.multivariate_normal([171.0, 68.0], [[81.0, 60.0], [60.0, 144.0]], 90)

    def model(y: Any = None):
        mean = sample("mean", dist.Normal(100.0, 100.0).expand([2]).to_event(1))
        sd = sample("sd", dist.HalfNormal(50.0).expand([2]).to_event(1))
        corr = sample("corr", dist.LKJCholesky(2, 1.0))
        root = sd[:, None] * corr
        with plate("records", y.shape[0]):
            sample("y", dist.MultivariateNormal(mean, scale_tril=root), obs=y)

    return Case(model, {"y": y})


def rare(rng: Rng) -> Case:
    """No event among 25 patients on a drug, four among 30 without."""
    drug = np.repeat([0, 1], [30, 25])
    event = np.zeros(55)
    event[:4] = 1.0
    order = rng.permutation(55)

    def model(drug, event=None):
        p = sample("p", dist.Beta(1.0, 1.0).expand([2]).to_event(1))
        deterministic("difference", p[1] - p[0])
        with plate("records", drug.shape[0]):
            sample("event", dist.Bernoulli(probs=p[drug]), obs=event)

    return Case(model, {"drug": drug[order], "event": event[order]})


def dose(rng: Rng) -> Case:
    """A sigmoid curve of dose in milligrams, 40 patients, weakly determined."""
    mg = np.repeat([0.0, 5.0, 25.0, 100.0], 10)
    change = 1.0 + 9.0 * mg / (mg + 30.0) + 4.0 * rng.normal(size=40)

    def model(mg, change=None):
        base = sample("base", dist.Normal(0.0, 10.0))
        top = sample("top", dist.Normal(0.0, 20.0))
        half = sample("half", dist.LogNormal(3.0, 1.0))
        s = sample("s", dist.HalfNormal(10.0))
        with plate("records", mg.shape[0]):
            sample("change", dist.Normal(base + top * mg / (mg + half), s), obs=change)

    return Case(model, {"mg": mg, "change": change})


def crossed(rng: Rng) -> Case:
    """Random effects of raters and items at once, in points."""
    rater, item = (one.ravel() for one in np.meshgrid(np.arange(8), np.arange(12), indexing="ij"))
    points = 60 + 6 * rng.normal(size=8)[rater] + 10 * rng.normal(size=12)[item]
    points = points + 8 * rng.normal(size=96)

    def model(rater, item, points=None):
        mu = sample("mu", dist.Normal(50.0, 50.0))
        tau = sample("tau", dist.HalfNormal(20.0).expand([2]).to_event(1))
        s = sample("s", dist.HalfNormal(20.0))
        u = sample("u", dist.Normal(0.0, 1.0).expand([8]).to_event(1))
        v = sample("v", dist.Normal(0.0, 1.0).expand([12]).to_event(1))
        with plate("records", rater.shape[0]):
            mean = mu + tau[0] * u[rater] + tau[1] * v[item]
            sample("points", dist.Normal(mean, s), obs=points)

    return Case(model, {"rater": rater, "item": item, "points": points})


def two_signs(rng: Rng) -> Case:
    """A slope that enters by its square: two modes of the same height."""
    x = rng.normal(5.0, 2.0, 60)
    y = 1.0 + 0.49 * x + rng.normal(size=60)

    def model(x, y=None):
        a, c = sample("a", dist.Normal(0.0, 5.0)), sample("c", dist.Normal(0.0, 2.0))
        s = sample("s", dist.HalfNormal(5.0))
        with plate("records", x.shape[0]):
            sample("y", dist.Normal(a + c * c * x, s), obs=y)

    return Case(model, {"x": x, "y": y})


CASES: dict[str, Callable[[Rng], Case]] = {
    one.__name__: one
    for one in (
        growth, dyes, stacks, seeds, epil, fishing, ordered_probit, multinomial_logit,
        beta_regression, gamma_regression, weibull, geyser, hinge, horseshoe, lasso,
        gaussian_process, poisson_process, series, lagged, item_response, occupancy, michaelis,
        slopes, blood, reparametrised, weighted, by_factor, subsampled, whole_numbers, masked,
        roaches, tumours, pairs, rare, dose, crossed, two_signs,
    )
}  # fmt: skip


def make_case(name: str, seed: int) -> Case:
    """The model and its records; the same for the same seed."""
    return CASES[name](np.random.default_rng([seed, zlib.crc32(name.encode())]))
