"""Models with more than 1,024 parameters, in raw units, against what is known exactly.

`logistic`: a regression with a declared prior on correlated columns of very different scales, three
records per column, against the best normal approximation with a full covariance. `means`: a
regression with the default prior on columns whose means are five standard deviations from 0,
against the fit of the same columns with mean 0, which has the same posterior. `groups`: random
intercepts of many groups around a slope, against the exact posterior, in which they are integrated
out. Printed: errors of means in sds, ratios of sds, rounds, CPU-seconds and verdict.

    python -m benchmarks.wide [logistic|means|groups] [--columns 1500] [--mean 2] [--groups 1500]
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import numpy as np

import tacit
from tacit.expfam.quadrature import hermite

PARTIES = 5
GRID = 41


def shared_out(records: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, Any]:
    """The records at parties of random sizes."""
    count = len(next(iter(records.values())))
    part = rng.integers(0, PARTIES, size=count)
    return {
        f"p{k}": {name: column[part == k] for name, column in records.items()}
        for k in range(PARTIES)
    }


def timed(model: Any, parties: dict[str, Any]) -> Any:
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = tacit.fit(model, parties, privacy="none")
    took = time.process_time() - start
    print(f"{fitted._result.rounds} rounds, {took:.0f} CPU-seconds, {fitted.why}")
    return fitted


def logistic(columns: int, middle: float = 2.0) -> None:
    rng = np.random.default_rng(0)
    count = 3 * columns
    white = np.sqrt(0.7) * rng.normal(size=(count, columns))
    white += np.sqrt(0.3) * rng.normal(size=(count, 1))
    units = np.exp(3.0 * rng.normal(size=columns))
    x = np.column_stack([np.ones(count), (white + middle) * units])
    effects = np.where(rng.random(columns) < 0.1, 0.4 * rng.normal(size=columns), 0.0)
    y = (rng.random(count) < 1.0 / (1.0 + np.exp(-white @ effects))).astype(np.float64)
    sd = np.r_[5.0, 0.5 / units]
    names = ("intercept", *(f"x{j}" for j in range(columns)))
    model = tacit.models.LogisticRegression(names, prior_sd=sd)
    print(f"logistic regression, {columns} columns with mean {middle:g}, {count} records")
    found = timed(model, shared_out({"x": x, "y": y}, rng)).posterior
    size = np.r_[1.0, units]
    mean, covariance = full_normal(x / size, y, sd * size)
    exact = np.sqrt(np.diagonal(covariance)) / size
    apart, ratio = (found.mean - mean / size) / exact, found.sd / exact
    rms = np.sqrt(np.mean(apart**2))
    print(f"  means off by at most {np.max(np.abs(apart)):.3f} sd, rms {rms:.3f}")
    print(f"  sd ratio {np.min(ratio):.3f} to {np.max(ratio):.3f}")


def means(columns: int) -> None:
    rng = np.random.default_rng(1)
    count = 3 * columns
    white = np.sqrt(0.7) * rng.normal(size=(count, columns))
    white += np.sqrt(0.3) * rng.normal(size=(count, 1))
    effects = np.where(rng.random(columns) < 0.1, 0.4 * rng.normal(size=columns), 0.0)
    y = (rng.random(count) < 1.0 / (1.0 + np.exp(-white @ effects))).astype(np.float64)
    model = tacit.models.LogisticRegression(("intercept", *(f"x{j}" for j in range(columns))))
    fits = []
    for middle in (0.0, 5.0):
        print(f"default prior, {columns} columns with mean {middle:g}, {count} records")
        x = np.column_stack([np.ones(count), white + middle])
        fits.append(timed(model, shared_out({"x": x, "y": y}, np.random.default_rng(2))).posterior)
    near, far = fits
    apart = (far.mean - near.mean)[1:] / near.sd[1:]
    ratio = (far.sd / near.sd)[1:]
    constant = far.mean[0] + 5.0 * np.sum(far.mean[1:])
    print(f"  coefficients differ by at most {np.max(np.abs(apart)):.4f} sd")
    print(f"  sd ratio {np.min(ratio):.4f} to {np.max(ratio):.4f}")
    print(f"  constants differ by {(constant - near.mean[0]) / near.sd[0]:+.4f} sd")


def full_normal(x: np.ndarray, y: np.ndarray, sd: np.ndarray) -> tuple[Any, Any]:
    """The best normal approximation with a full covariance, by natural gradients on a matrix.

    Whole steps may oscillate and diverge near the optimum, so the later ones are shorter.
    """
    nodes, weights = hermite(16)
    mean, spread, form = np.zeros(len(sd)), np.zeros(len(x)), np.zeros((len(sd), len(sd)))
    for number in range(40):
        length = 1.0 if number < 8 else 0.7
        eta = (x @ mean)[:, None] + spread[:, None] * nodes
        chance = 1.0 / (1.0 + np.exp(-eta))
        slope = x.T @ (y - chance @ weights) - mean / sd**2
        new = (x * ((chance * (1.0 - chance)) @ weights)[:, None]).T @ x + np.diag(sd**-2.0)
        form = (1.0 - length) * form + length * new
        covariance = np.linalg.inv(0.5 * (form + form.T))
        step = covariance @ slope
        mean = mean + length * step
        spread = np.sqrt(np.sum((x @ covariance) * x, axis=1))
        off = np.max(np.abs(np.log(np.diagonal(new) / np.diagonal(form))))
        if slope @ step < 1e-4 and off < 1e-3:
            return mean, covariance
    raise RuntimeError("the reference did not converge")


def grouped(groups: int) -> None:
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    rng = np.random.default_rng(0)
    sizes = rng.integers(2, 8, size=groups)
    group = np.repeat(np.arange(groups), sizes)
    count = len(group)
    x = rng.normal(52.0, 14.0, size=count)
    y = 900.0 + 70.0 * rng.normal(size=groups)[group] + 3.0 * x + 120.0 * rng.normal(size=count)
    sample: Any = numpyro.sample

    def model(group, x, y=None):
        a, b = sample("a", dist.Normal(0.0, 2000.0)), sample("b", dist.Normal(0.0, 50.0))
        tau, s = sample("tau", dist.HalfNormal(300.0)), sample("s", dist.HalfNormal(300.0))
        effect = sample("effect", dist.Normal(jnp.zeros(groups), tau).to_event(1))
        with numpyro.plate("records", x.shape[0]):
            sample("y", dist.Normal(a + b * x + effect[group], s), obs=y)

    print(f"random intercepts, {groups} groups, {count} records")
    fitted = timed(model, shared_out({"group": group, "x": x, "y": y}, rng))
    draws = fitted.posterior.draws(4000)
    for name, (mean, sd) in exact_groups(group, sizes, x, y).items():
        off, ratio = (np.mean(draws[name]) - mean) / sd, np.std(draws[name]) / sd
        print(f"  {name}: off by {off:+.3f} sd, sd ratio {ratio:.3f} (exact {mean:.4g} ± {sd:.3g})")


def exact_groups(
    group: np.ndarray, sizes: np.ndarray, x: np.ndarray, y: np.ndarray
) -> dict[str, tuple[float, float]]:
    """Moments on a grid of (log τ, log s), with effects and coefficients integrated out."""
    columns = np.column_stack([np.ones(len(x)), x])
    sums = np.stack([np.bincount(group, one) for one in columns.T], axis=1)
    totals = np.bincount(group, y)
    taus = np.log(70.0) + np.linspace(-0.6, 0.4, GRID)
    noises = np.log(120.0) + np.linspace(-0.12, 0.12, GRID)
    fits, means, spreads = np.zeros((GRID, GRID)), np.zeros((GRID, GRID, 2)), {}
    for i, log_tau in enumerate(taus):
        for j, log_s in enumerate(noises):
            wide, noise = np.exp(2.0 * log_tau), np.exp(2.0 * log_s)
            shrink = wide / (noise + sizes * wide) / noise
            form = columns.T @ columns / noise - (sums * shrink[:, None]).T @ sums
            form += np.diag([2000.0**-2, 50.0**-2])
            pull = columns.T @ y / noise - sums.T @ (shrink * totals)
            mean = np.linalg.solve(form, pull)
            rest = y @ y / noise - np.sum(shrink * totals**2) - mean @ form @ mean
            fits[i, j] = -0.5 * rest - len(y) * log_s - 0.5 * np.linalg.slogdet(form)[1]
            fits[i, j] -= 0.5 * np.sum(np.log1p(sizes * wide / noise))
            fits[i, j] += log_tau + log_s - 0.5 * (wide + noise) / 300.0**2
            means[i, j], spreads[i, j] = mean, np.diagonal(np.linalg.inv(form))
    weights = np.exp(fits - np.max(fits))
    weights /= np.sum(weights)
    found = {}
    values = {"tau": np.exp(taus)[:, None] + 0.0 * fits, "s": np.exp(noises) + 0.0 * fits}
    for name, value in values.items():
        mean = float(np.sum(weights * value))
        found[name] = (mean, float(np.sqrt(np.sum(weights * (value - mean) ** 2))))
    for place, name in enumerate(("a", "b")):
        mean = float(np.sum(weights * means[..., place]))
        inside = sum(weights[at] * spread[place] for at, spread in spreads.items())
        between = np.sum(weights * (means[..., place] - mean) ** 2)
        found[name] = (mean, float(np.sqrt(inside + between)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=["logistic", "means", "groups"])
    parser.add_argument("--columns", type=int, default=1500)
    parser.add_argument("--groups", type=int, default=1500)
    parser.add_argument("--mean", type=float, default=2.0, help="mean of the columns of `logistic`")
    given = parser.parse_args()
    if "logistic" in given.names:
        logistic(given.columns, given.mean)
    if "means" in given.names:
        means(given.columns)
    if "groups" in given.names:
        grouped(given.groups)


if __name__ == "__main__":
    main()
