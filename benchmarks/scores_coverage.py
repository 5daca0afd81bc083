"""Coverage of private scores: benchmarks/scores_coverage.py [REPEATS] [--model NAME] [--width D].

24,000 records in ten parties, δ = 1e-5, the unit a record, the adjacency replace-one. θ and the
records are new in every replication. For each model, ε and aggregation one line says:

    coverage   share of true coordinates in their 95 % intervals, beside that of the posterior
               without privacy (Newton's method on the same records), and its standard error over
               replications
    width      median ratio of private and non-private standard deviations
    nats       expected log-likelihood per record that is lost against the non-private mean
    scale      mean error of the named scale parameter in posterior standard deviations
    rms        root mean square of standardised errors, which should be 1

Correlated columns: --correlation 0.5. One process takes one model; run several beside each other.
"""

from __future__ import annotations

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import distributions as dist

from tacit.engines.execute import carry_out
from tacit.errors import ConfigError
from tacit.methods import PrivateScores
from tacit.methods.scores.prior import PriorTerm
from tacit.methods.scores.server import fit_of
from tacit.models import from_numpyro
from tacit.plan.plan import make_plan
from tacit.privacy.settings import Privacy

RECORDS, PARTIES, DELTA = 24_000, 10, 1e-5
GROUPS = 8


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


MODELS = {one.__name__: one for one in (normal, negative_binomial, ordinal, student, hierarchical)}


def truth_of(name, rng, width):
    """Sites of a true θ, spread as in ordinary problems."""
    size = 0.5 / np.sqrt(width / 10.0)
    sites = {"weights": rng.normal(size=width) * size}
    if name == "hierarchical":
        sites |= {"middle": rng.normal(), "spread": np.exp(0.3 * rng.normal())}
        sites["level"] = sites["middle"] + sites["spread"] * rng.normal(size=GROUPS)
        sites["scale"] = 2.0 * np.exp(0.3 * rng.normal())
    elif name == "ordinal":
        sites["cuts"] = np.sort(np.array([-1.0, 0.0, 1.2]) + 0.3 * rng.normal(size=3))
    elif name == "negative_binomial":
        sites["weights"] *= 0.5
        sites |= {"level": 0.7 + 0.3 * rng.normal(), "scale": 2.0 * np.exp(0.3 * rng.normal())}
    else:
        sites |= {"level": rng.normal(), "scale": 2.0 * np.exp(0.5 * rng.normal())}
        if name == "student":
            sites["freedom"] = 4.0 * np.exp(0.2 * rng.normal())
    return sites


def draw(name, rng, width, correlation):
    """Records and the true sites."""
    common = rng.normal(size=(RECORDS, 1))
    x = np.sqrt(1.0 - correlation) * rng.normal(size=(RECORDS, width))
    x = np.clip(x + np.sqrt(correlation) * common, -3.0, 3.0)
    sites, group = truth_of(name, rng, width), rng.integers(0, GROUPS, RECORDS)
    eta = x @ sites["weights"]
    if name == "hierarchical":
        y = sites["level"][group] + eta + sites["scale"] * rng.normal(size=RECORDS)
        return {"x": x, "group": group, "y": y}, sites
    if name == "ordinal":
        hidden = eta + rng.logistic(size=RECORDS)
        return {"x": x, "y": np.sum(hidden[:, None] > sites["cuts"], axis=1)}, sites
    eta = eta + sites["level"]
    if name == "negative_binomial":
        shape = sites["scale"]
        rate = np.exp(eta) * rng.gamma(shape, 1.0 / shape, RECORDS)
        return {"x": x, "y": rng.poisson(rate) * 1.0}, sites
    noise = rng.normal(size=RECORDS)
    if name == "student":
        noise = rng.standard_t(sites["freedom"], RECORDS)
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
        return mean, np.sqrt(np.diagonal(np.linalg.inv(precision)))


def unconstrained(model, sites):
    from numpyro.distributions import biject_to

    traced, _ = model.program.run(model.program.blank(1))
    parts = []
    for latent in model.layout.latents:
        support = traced[latent.name]["fn"].support
        parts.append(np.ravel(biject_to(support).inv(jnp.asarray(sites[latent.name]))))
    return np.concatenate(parts)


def replication(name, model, reference, rng, given):
    records, sites = draw(name, rng, given.width, given.correlation)
    truth = unconstrained(model, sites)
    mean, sd = reference.fit(records, truth)
    best = float(reference.value(mean, records)) / RECORDS
    parties = {
        str(i): {key: column[i::PARTIES] for key, column in records.items()} for i in range(PARTIES)
    }
    rows = {"non-private": ((mean - truth) / sd, 1.0, 0.0, 1.0)}
    for aggregation in given.aggregation:
        for epsilon in given.epsilon:
            privacy = Privacy(
                epsilon=epsilon,
                delta=DELTA,
                aggregation=aggregation,
                insecure_noise_seed=int(rng.integers(2**31)),
            )
            plan = make_plan(model, parties, method=PrivateScores(), privacy=privacy)
            outcome = carry_out(plan)
            found = outcome.posterior
            lost = best - float(reference.value(np.asarray(found.mean), records)) / RECORDS
            fit = fit_of(outcome.state.memory)
            rows[f"{aggregation} ε={epsilon:g}"] = (
                (np.asarray(found.mean) - truth) / np.asarray(found.sd),
                float(np.median(np.asarray(found.sd) / sd)),
                lost,
                fit.p_value,
            )
    return rows


def summarised(label, rows, names):
    errors = np.array([row[0] for row in rows])
    inside = np.mean(np.abs(errors) < 1.959964, axis=1)
    scales = [i for i, one in enumerate(names) if one in ("scale", "freedom", "spread")]
    bias = ", ".join(
        f"{names[i]} {np.mean(errors[:, i]):+.2f}±{np.std(errors[:, i]) / np.sqrt(len(rows)):.2f}"
        for i in scales
    )
    widths, lost = [row[1] for row in rows], np.array([row[2] for row in rows])
    print(
        f"  {label:16s} coverage {np.mean(inside):.3f} ± {np.std(inside) / np.sqrt(len(rows)):.3f}"
        f"  width {np.median(widths):.2f}  nats {np.mean(lost):.5f} "
        f"± {np.std(lost) / np.sqrt(len(rows)):.5f}  rms {np.sqrt(np.mean(errors**2)):.2f}"
        f"  misfit {np.mean([row[3] < 0.01 for row in rows]):.2f}  {bias}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("repeats", nargs="?", type=int, default=100)
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--width", type=int, default=10, help="columns of x")
    parser.add_argument("--correlation", type=float, default=0.0)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 4.0])
    parser.add_argument("--aggregation", nargs="+", default=["plain", "trusted"])
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--every", type=int, default=10, help="print after so many replications")
    given = parser.parse_args()
    for name in given.model or MODELS:
        rng = np.random.default_rng([given.seed, sorted(MODELS).index(name)])
        example = {key: column[:4] for key, column in draw(name, rng, given.width, 0.0)[0].items()}
        columns = {"group": GROUPS} if name == "hierarchical" else {}
        model = from_numpyro(MODELS[name], example, columns=columns)
        reference, rows, start = Reference(model), {}, time.process_time()
        print(f"{name}: {model.dimension} parameters, correlation {given.correlation:g}")
        for repeat in range(given.repeats):
            try:
                found = replication(name, model, reference, rng, given)
            except ConfigError as refused:
                print(f"  refused: {refused}")
                break
            for label, row in found.items():
                rows.setdefault(label, []).append(row)
            if (repeat + 1) % given.every == 0 or repeat + 1 == given.repeats:
                spent = (time.process_time() - start) / (repeat + 1)
                print(f" {repeat + 1} replications, {spent:.1f} CPU-seconds each")
                for label, each in rows.items():
                    summarised(label, each, model.names)


if __name__ == "__main__":
    main()
