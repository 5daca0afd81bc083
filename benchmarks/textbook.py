"""Models as textbooks write them, on raw records at parties of 2, 30 and 1,000, against NUTS.

Columns have the units that they come in (years, an income, a dose of a thousandth, and one column
that is nearly a multiple of another). Every model is fitted with `tacit.fit(…, privacy="none")` and
defaults. The reference is NumPyro's NUTS with a dense mass matrix on all records in one place, two
chains; one with R-hat above 1.02 is marked. Printed: the largest error of a mean in reference sds
with its site, the extreme ratios of sds, exchanges per party, CPU-seconds of both, and the verdict.
Wrong is an error above .1 sd or a ratio outside .85 to 1.15.

    python -m benchmarks.textbook [NAME ...] [--seed 0] [--without-reference]
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.diagnostics import split_gelman_rubin
from numpyro.distributions.transforms import OrderedTransform
from numpyro.infer import MCMC, NUTS, init_to_median

import tacit

SIZES = (2, 30, 1_000)
sample: Any = numpyro.sample
deterministic: Any = numpyro.deterministic
GROUPS = 9
WARMUP, DRAWS, CHAINS, MOST_RHAT = 700, 1_500, 2, 1.02
MEAN_ERROR, SD_BAND = 0.1, (0.85, 1.15)
CENTRE = np.array([52.0, 41_000.0, 0.003])
SPREAD = np.array([14.0, 17_000.0, 0.0008])


def table(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Raw columns, the last nearly a multiple of the first, and the same with unit scale."""
    count = sum(SIZES)
    white = rng.normal(size=(count, 3))
    raw = CENTRE + SPREAD * white
    near = 2.0 * raw[:, 0] + 1.5 * rng.normal(size=count)
    return np.column_stack([raw, near]), white


def linear(x: Any) -> Any:
    """An intercept and slopes with priors that allow for the units."""
    a = sample("a", dist.Normal(0.0, 20.0))
    b = sample("b", dist.Normal(0.0, 5.0 / np.array([*SPREAD, 2 * SPREAD[0]])).to_event(1))
    return a + (x - np.array([*CENTRE, 2 * CENTRE[0]])) @ b


def student(x, y=None):
    eta, s = linear(x), sample("s", dist.HalfCauchy(5.0))
    nu = sample("nu", dist.Gamma(2.0, 0.1))
    with numpyro.plate("records", x.shape[0]):
        sample("y", dist.StudentT(nu, eta, s), obs=y)


def gamma(x, y=None):
    eta, k = linear(x), sample("k", dist.Exponential(0.5))
    with numpyro.plate("records", x.shape[0]):
        sample("y", dist.Gamma(k, k * jnp.exp(-eta)), obs=y)


def negative_binomial(x, y=None):
    eta, phi = linear(x), sample("phi", dist.HalfCauchy(2.0))
    with numpyro.plate("records", x.shape[0]):
        sample("y", dist.NegativeBinomial2(jnp.exp(eta), phi), obs=y)


def beta(x, y=None):
    mu, phi = jax.nn.sigmoid(linear(x)), sample("phi", dist.LogNormal(1.0, 1.5))
    with numpyro.plate("records", x.shape[0]):
        sample("y", dist.Beta(mu * phi, (1.0 - mu) * phi), obs=y)


def ordinal(x, y=None):
    b = sample("b", dist.Normal(0.0, 5.0 / np.array([*SPREAD, 2 * SPREAD[0]])).to_event(1))
    base = dist.Normal(0.0, 3.0).expand([3]).to_event(1)
    cuts = sample("cuts", dist.TransformedDistribution(base, OrderedTransform()))
    eta = (x - np.array([*CENTRE, 2 * CENTRE[0]])) @ b
    with numpyro.plate("records", x.shape[0]):
        sample("y", dist.OrderedLogistic(eta, cuts), obs=y)


def zero_inflated(x, y=None):
    eta, gate = linear(x), sample("gate", dist.Beta(1.0, 1.0))
    with numpyro.plate("records", x.shape[0]):
        sample("y", dist.ZeroInflatedPoisson(gate, jnp.exp(eta)), obs=y)


def horseshoe(x, y=None):
    a, s = sample("a", dist.Normal(0, 10.0)), sample("s", dist.HalfNormal(5.0))
    tau = sample("tau", dist.HalfCauchy(0.2))
    lam = sample("lam", dist.HalfCauchy(1.0).expand([4]).to_event(1))
    z = sample("z", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
    scaled = (x - np.array([*CENTRE, 2 * CENTRE[0]])) / np.array([*SPREAD, 2 * SPREAD[0]])
    b = deterministic("b", tau * lam * z)
    with numpyro.plate("records", x.shape[0]):
        sample("y", dist.Normal(a + scaled @ b, s), obs=y)


def correlated(x, group, y=None):
    """Random intercepts and slopes with an LKJ prior on their correlation."""
    mean = sample("mean", dist.Normal(0.0, 5.0).expand([2]).to_event(1))
    sd = sample("sd", dist.HalfNormal(2.0).expand([2]).to_event(1))
    corr = sample("corr", dist.LKJCholesky(2, 2.0))
    z = sample("z", dist.Normal(0.0, 1.0).expand([GROUPS, 2]).to_event(2))
    s = sample("s", dist.HalfNormal(5.0))
    effects = mean + z @ (sd[:, None] * corr).T
    eta = effects[group, 0] + effects[group, 1] * (x[:, 0] - CENTRE[0]) / SPREAD[0]
    with numpyro.plate("records", x.shape[0]):
        sample("y", dist.Normal(eta, s), obs=y)


def lognormal_scale(x, group, y=None):
    """Centred random intercepts with a log-normal scale; counts."""
    tau = sample("tau", dist.LogNormal(-1.0, 1.0))
    level = sample("level", dist.Normal(0.0, 3.0))
    effect = sample("effect", dist.Normal(level, tau).expand([GROUPS]).to_event(1))
    slope = sample("slope", dist.Normal(0.0, 1.0))
    rate = jnp.exp(effect[group] + slope * (x[:, 0] - CENTRE[0]) / SPREAD[0])
    with numpyro.plate("records", x.shape[0]):
        sample("y", dist.Poisson(rate), obs=y)


def curve(x, group, y=None):
    """A Gaussian process over the groups, with learnt length and height."""
    length = sample("length", dist.InverseGamma(5.0, 10.0))
    height = sample("height", dist.HalfNormal(2.0))
    s = sample("s", dist.HalfNormal(3.0))
    at = jnp.arange(GROUPS, dtype=jnp.result_type(float))
    gram = jnp.exp(-0.5 * ((at[:, None] - at) / length) ** 2) + 1e-6 * jnp.eye(GROUPS)
    z = sample("z", dist.Normal(0.0, 1.0).expand([GROUPS]).to_event(1))
    f = deterministic("f", height * jnp.linalg.cholesky(gram) @ z)
    with numpyro.plate("records", x.shape[0]):
        sample("y", dist.Normal(f[group], s), obs=y)


def mixture(y: Any = None):
    p = sample("p", dist.Beta(2.0, 2.0))
    base = dist.Normal(0.0, 5.0).expand([2]).to_event(1)
    mu = sample("mu", dist.TransformedDistribution(base, OrderedTransform()))
    s = sample("s", dist.HalfNormal(2.0).expand([2]).to_event(1))
    weights = dist.Categorical(probs=jnp.stack([p, 1.0 - p]))
    with numpyro.plate("records", y.shape[0]):
        sample("y", dist.MixtureSameFamily(weights, dist.Normal(mu, s)), obs=y)


def make_outcome(name: str, rng: np.random.Generator, white: np.ndarray, group: np.ndarray) -> Any:
    """Outcomes like those of the model, or with what a user may have instead."""
    eta = 0.5 + white @ [0.6, -0.4, 0.2]
    count = len(eta)
    effect = rng.normal(size=GROUPS)[group]
    makers: dict[str, Callable[[], Any]] = {
        "student": lambda: eta + 1.5 * rng.standard_t(3.0, count),
        "gamma": lambda: rng.gamma(2.0, np.exp(eta) / 2.0),
        "negative_binomial": lambda: rng.poisson(np.exp(eta) * rng.gamma(1.2, 1 / 1.2, count)),
        "beta": lambda: np.clip(
            rng.beta(6 / (1 + np.exp(-eta)), 6 / (1 + np.exp(eta))), 1e-4, 1 - 1e-4
        ),
        "ordinal": lambda: np.digitize(eta + rng.logistic(size=count), [-1.0, 0.3, 3.0]),
        "zero_inflated": lambda: np.where(rng.random(count) < 0.3, 0, rng.poisson(np.exp(eta))),
        "horseshoe": lambda: 0.5 + 0.3 * white[:, 0] + 2.0 * rng.normal(size=count),
        "correlated": lambda: eta + effect * (1 + 0.4 * white[:, 0]) + rng.normal(size=count),
        "lognormal_scale": lambda: rng.poisson(np.exp(0.3 * eta + 0.4 * effect)),
        "curve": lambda: np.sin(0.7 * group) + 0.8 * rng.normal(size=count),
        "mixture": lambda: np.where(rng.random(count) < 0.3, -1.0, 1.5) + rng.normal(size=count),
    }
    return np.asarray(makers[name]())


MODELS = {
    "student": student,
    "gamma": gamma,
    "negative_binomial": negative_binomial,
    "beta": beta,
    "ordinal": ordinal,
    "zero_inflated": zero_inflated,
    "horseshoe": horseshoe,
    "correlated": correlated,
    "lognormal_scale": lognormal_scale,
    "curve": curve,
    "mixture": mixture,
}


def make_records(name: str, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([seed, list(MODELS).index(name)])
    x, white = table(rng)
    group = rng.integers(0, GROUPS, len(x))
    y = make_outcome(name, rng, white, group)
    if name == "mixture":
        return {"y": y}
    grouped = name in ("correlated", "lognormal_scale", "curve")
    return {"x": x, **({"group": group} if grouped else {}), "y": y}


def reference(function: Callable[..., None], records: dict[str, np.ndarray], seed: int) -> Any:
    kernel = NUTS(function, dense_mass=True, target_accept_prob=0.9, init_strategy=init_to_median())
    sampler = MCMC(
        kernel, num_warmup=WARMUP, num_samples=DRAWS, num_chains=CHAINS,
        chain_method="sequential", progress_bar=False,
    )  # fmt: skip
    sampler.run(jax.random.key(seed), **records)
    return {name: np.asarray(v) for name, v in sampler.get_samples(group_by_chain=True).items()}


class Errors(NamedTuple):
    """How far a posterior is from its reference."""

    mean: float
    site: str
    low: float
    high: float
    rhat: float

    @property
    def right(self) -> bool:
        return self.mean <= MEAN_ERROR and self.low >= SD_BAND[0] and self.high <= SD_BAND[1]


def errors_of(draws: dict[str, Any], chains: dict[str, np.ndarray]) -> Errors:
    """The worst coordinate of all sites; constant entries of a Cholesky factor do not count."""
    worst, site, low, high, rhat = 0.0, "", np.inf, 0.0, 0.0
    for name, value in chains.items():
        exact = value.reshape(-1, int(np.prod(value.shape[2:], initial=1)))
        found = np.asarray(draws[name]).reshape(-1, exact.shape[1])
        used = exact.std(axis=0) > 1e-8
        exact, found = exact[:, used], found[:, used]
        error = np.abs(found.mean(axis=0) - exact.mean(axis=0)) / exact.std(axis=0)
        ratio = found.std(axis=0) / exact.std(axis=0)
        if np.max(error) > worst:
            worst, site = float(np.max(error)), name
        low, high = min(low, float(np.min(ratio))), max(high, float(np.max(ratio)))
        rhats = np.asarray(split_gelman_rubin(exact.reshape(CHAINS, -1, exact.shape[1])))
        rhat = max(rhat, float(np.max(rhats)))
    return Errors(worst, site, low, high, rhat)


def run(name: str, seed: int, *, compared: bool) -> str:
    records = make_records(name, seed)
    edges = np.cumsum([0, *SIZES])
    parties = {
        f"p{n}": {key: value[edges[n] : edges[n + 1]] for key, value in records.items()}
        for n in range(len(SIZES))
    }
    started = time.process_time()
    model = tacit.from_numpyro(MODELS[name], {key: value[:8] for key, value in records.items()})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = tacit.fit(model, parties, privacy="none")
    spent, found = time.process_time() - started, fit.diagnostics
    share, shape = (found.get(key, np.nan) for key in ("effective_share", "pareto_k"))
    facts = (
        f"{len(fit.history)} exchanges, {spent:.1f} s, share {share:.2f}, k {shape:.2f}, split "
        f"along {found.get('split_along')}; {'converged' if fit.converged else fit.why}"
    )
    if not compared:
        return f"{name:18s} {facts}"
    started = time.process_time()
    chains = reference(MODELS[name], records, seed)
    exact_s = time.process_time() - started
    errors = errors_of(fit.posterior.draws(20_000, seed=0), chains)
    flagged = not fit.converged or bool(fit.cautions)
    word = "right" if errors.right else "flagged" if flagged else "WRONG"
    doubt = f", R-hat {errors.rhat:.3f}" if errors.rhat > MOST_RHAT else ""
    return (
        f"{name:18s} {word:8s} mean {errors.mean:.3f} sd ({errors.site}), sds {errors.low:.2f} to "
        f"{errors.high:.2f}, NUTS {exact_s:.1f} s{doubt}; {facts}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*MODELS, []])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--without-reference", action="store_true")
    chosen = parser.parse_args()
    for name in chosen.names or MODELS:
        try:
            print(run(name, chosen.seed, compared=not chosen.without_reference), flush=True)
        except Exception as error:  # one model must not end the others
            print(f"{name:18s} ERROR {type(error).__name__}: {error}", flush=True)


if __name__ == "__main__":
    main()
