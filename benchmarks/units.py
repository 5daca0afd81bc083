"""Regressions on raw columns, from 1e-3 to 1e5, against a reference that is not tacit's.

Each case is a random design (means, spreads, offsets and correlations of columns on very different
scales), a model (logistic, softmax, Poisson, linear), a number of parties, a schedule and a prior.
The reference is the exact posterior: a mode found by damped Newton steps in decorrelated columns,
then importance sampling from a t distribution around it. Printed are the largest error of a
posterior mean in posterior standard deviations, the largest |log ratio| of standard deviations and
whether the fit says that it converged.

    python -m benchmarks.units [--cases 100] [--seed 0]
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any, NamedTuple

import numpy as np
from scipy.special import gammaln, logsumexp

import tacit

DRAWS = 10_000
FREEDOM = 10.0
MODELS = ("logistic", "softmax", "poisson", "linear")
SCHEDULES = {
    "synchronous": tacit.schedules.Synchronous,
    "sequential": tacit.schedules.Sequential,
    "asynchronous": tacit.schedules.Asynchronous,
}
LEVELS = 3


class Case(NamedTuple):
    """A data set with all that a fit is given."""

    name: str
    model: Any
    x: np.ndarray
    y: np.ndarray
    parties: int
    schedule: str
    prior_sd: float


def columns(rng: np.random.Generator, count: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Raw columns, and the standardised ones that effects are given in."""
    root = np.eye(width) + rng.choice([0.0, 0.3, 1.0]) * rng.normal(size=(width, width)) / 2
    white = rng.normal(size=(count, width)) @ root
    white = (white - white.mean(axis=0)) / white.std(axis=0)
    raw = np.empty_like(white)
    for j in range(width):
        mean = 10.0 ** rng.uniform(-3, 5)
        kind = rng.integers(4)
        if kind == 0:  # positive and skewed, as a laboratory value
            raw[:, j] = mean * np.exp(0.5 * white[:, j])
        elif kind == 1:  # a large offset against its spread
            raw[:, j] = mean * (1.0 + 10.0 ** rng.uniform(-3, -1) * white[:, j])
        elif kind == 2:  # yes or no
            raw[:, j] = white[:, j] > 0
        else:
            raw[:, j] = mean * (1.0 + rng.uniform(0.1, 1.0) * white[:, j])
    return raw, (raw - raw.mean(axis=0)) / raw.std(axis=0)


def make_case(seed: int) -> Case:
    """A case of that number; the models, schedules and numbers of parties take turns."""
    rng = np.random.default_rng([seed, 0xC0])
    kind = MODELS[seed % 4]
    schedule = list(SCHEDULES)[(seed // 4) % 3]
    parties = (1, 3, 10)[(seed // 12) % 3]
    count, width = int(rng.integers(400, 3000)), int(rng.integers(2, 7))
    raw, white = columns(rng, count, width)
    x = np.column_stack([np.ones(count), raw])
    names = ("one", *(f"c{j}" for j in range(width)))
    prior_sd = float(rng.choice([1.0, 1.0, 10.0, 100.0]))
    eta = white @ rng.normal(0.0, 0.7, width) + rng.normal(0.0, 0.7)
    if kind == "logistic":
        y = (rng.uniform(size=count) < 1 / (1 + np.exp(-eta))).astype(float)
        model = tacit.models.LogisticRegression(names, prior_sd=prior_sd)
    elif kind == "poisson":
        y = rng.poisson(np.exp(np.clip(0.5 * eta + rng.uniform(-1, 3), -5, 6))).astype(float)
        model = tacit.models.PoissonRegression(
            names, max_count=10.0 * max(1, y.max()), prior_sd=prior_sd
        )
    elif kind == "linear":
        scale = 10.0 ** rng.uniform(-2, 3)
        y = scale * (eta + rng.normal(size=count)) + scale * rng.choice([0.0, 10.0])
        model = tacit.models.LinearRegression(names, noise_sd=scale, prior_sd=prior_sd)
    else:
        eta = white @ rng.normal(0.0, 0.7, (width, LEVELS)) + rng.normal(0.0, 0.5, LEVELS)
        y = np.argmax(eta + rng.gumbel(size=eta.shape), axis=1).astype(float)
        levels = tuple(f"l{k}" for k in range(LEVELS))
        model = tacit.models.SoftmaxRegression(names, levels=levels, prior_sd=prior_sd)
    return Case(f"{kind}-{seed}", model, x, y, parties, schedule, prior_sd)


def log_joint(case: Case, theta: np.ndarray) -> np.ndarray:
    """Of every row of θ, up to a constant, in NumPy; differences of columns are taken first."""
    prior = -0.5 * np.sum(theta**2, axis=1) / case.prior_sd**2
    if isinstance(case.model, tacit.models.SoftmaxRegression):
        eta = np.einsum("nd,skd->snk", case.x, theta.reshape(len(theta), LEVELS, -1))
        eta -= logsumexp(eta, axis=2, keepdims=True)
        return prior + eta[:, np.arange(len(case.y)), case.y.astype(int)].sum(axis=1)
    eta = theta @ case.x.T
    if isinstance(case.model, tacit.models.LogisticRegression):
        return prior + (case.y * eta - np.logaddexp(eta, 0)).sum(axis=1)
    if isinstance(case.model, tacit.models.PoissonRegression):
        return prior + (case.y * eta - np.exp(np.minimum(eta, 50)) - gammaln(case.y + 1)).sum(1)
    return prior - 0.5 * np.sum(((case.y - eta) / case.model.noise_sd) ** 2, axis=1)


def slope_and_bend(case: Case, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gradient and negative Hessian of the log-joint."""
    x, ridge = case.x, np.eye(len(theta)) / case.prior_sd**2
    if isinstance(case.model, tacit.models.SoftmaxRegression):
        eta = x @ theta.reshape(LEVELS, -1).T
        p = np.exp(eta - logsumexp(eta, axis=1, keepdims=True))
        own = (case.y[:, None] == np.arange(LEVELS)).astype(float)
        slope = ((own - p).T @ x).reshape(-1)
        each = np.einsum("nk,kl->nkl", p, np.eye(LEVELS)) - p[:, :, None] * p[:, None, :]
        bend = np.einsum("nkl,ni,nj->kilj", each, x, x, optimize=True)
        return slope - theta / case.prior_sd**2, bend.reshape(len(theta), -1) + ridge
    eta = x @ theta
    if isinstance(case.model, tacit.models.LogisticRegression):
        p = 1 / (1 + np.exp(-eta))
        first, second = case.y - p, p * (1 - p)
    elif isinstance(case.model, tacit.models.PoissonRegression):
        second = np.exp(np.minimum(eta, 50))
        first = case.y - second
    else:
        first = (case.y - eta) / case.model.noise_sd**2
        second = np.full(len(eta), 1 / case.model.noise_sd**2)
    return x.T @ first - theta / case.prior_sd**2, (x.T * second) @ x + ridge


def mode(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Newton with Levenberg's damping, in units of the curvature's diagonal."""
    theta = np.zeros(case.model.dimension)
    damping, value = 1e-3, log_joint(case, theta[None])[0]
    for _ in range(500):
        slope, bend = slope_and_bend(case, theta)
        scale = np.sqrt(np.diagonal(bend))
        form = bend / np.outer(scale, scale)
        step = np.linalg.lstsq(form + damping * np.eye(len(form)), slope / scale)[0] / scale
        better = log_joint(case, (theta + step)[None])[0]
        if np.isfinite(better) and better >= value - 1e-9 * abs(value):
            if slope @ step < 1e-10 and damping < 1e-6:
                break
            theta, value, damping = theta + step, better, damping / 10
        else:
            damping *= 10
    slope, bend = slope_and_bend(case, theta)
    return theta, bend


def reference(case: Case, seed: int = 0) -> tuple[np.ndarray, np.ndarray, float]:
    """Posterior mean and sd by importance sampling around the mode, and the share of draws.

    What all levels of a softmax regression have in common is known by the prior alone; the rest is
    sampled in coordinates in which it is separate, because its precision may be 10¹⁷ times larger.
    """
    centre, bend = mode(case)
    basis = np.eye(len(centre))
    if isinstance(case.model, tacit.models.SoftmaxRegression):
        contrasts = np.linalg.qr(np.column_stack([np.ones(LEVELS), np.eye(LEVELS)[:, 1:]]))[0]
        basis = np.kron(contrasts[:, 1:], np.eye(case.x.shape[1]))
        centre = basis @ (basis.T @ centre)
    bend = basis.T @ bend @ basis
    scale = np.sqrt(np.diagonal(bend))
    root = np.linalg.cholesky(bend / np.outer(scale, scale))
    rng = np.random.default_rng([seed, 0xEF])
    noise = rng.normal(size=(DRAWS // 2, len(scale)))
    noise = np.concatenate([noise, -noise])
    stretch = np.sqrt(FREEDOM / rng.chisquare(FREEDOM, DRAWS // 2))
    noise *= np.tile(stretch, 2)[:, None]
    theta = centre + (np.linalg.solve(root.T, noise.T).T / scale) @ basis.T
    logs = [log_joint(case, part) for part in np.array_split(theta, 20)]
    proposal = -0.5 * (FREEDOM + len(scale)) * np.log1p(np.sum(noise**2, axis=1) / FREEDOM)
    weights = np.concatenate(logs) - proposal
    weights = np.exp(weights - logsumexp(weights))
    mean = centre + weights @ (theta - centre)
    variance = weights @ (theta - mean) ** 2
    if len(scale) < len(centre):
        variance = variance + case.prior_sd**2 / LEVELS
    return mean, np.sqrt(variance), 1 / np.sum(weights**2) / DRAWS


class Row(NamedTuple):
    """What came of a case."""

    name: str
    schedule: str
    parties: int
    prior_sd: float
    error: float
    log_ratio: float
    converged: bool
    why: str
    rounds: int
    share: float
    seconds: float


def fit_case(case: Case) -> Any:
    """With defaults but for the schedule's kind."""
    parts = np.array_split(np.random.default_rng(1).permutation(len(case.y)), case.parties)
    parties = {f"p{i}": {"x": case.x[part], "y": case.y[part]} for i, part in enumerate(parts)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tacit.fit(case.model, parties, privacy="none", schedule=SCHEDULES[case.schedule]())


def run_case(case: Case) -> Row:
    """One row; a fit that ends with an error says so in `why`."""
    mean, sd, share = reference(case)
    started = time.perf_counter()
    try:
        fitted = fit_case(case)
    except tacit.TacitError as error:
        values = (np.inf, np.inf, False, str(error)[:60], 0)
    else:
        posterior = fitted.posterior
        gap = float(np.max(np.abs(posterior.mean - mean) / sd))
        ratio = float(np.max(np.abs(np.log(posterior.sd / sd))))
        state = fitted._outcome.state
        converged = getattr(fitted, "converged", state.finished == "converged")
        values = (gap, ratio, converged, getattr(fitted, "why", ""), state.round)
    taken = time.perf_counter() - started
    return Row(case.name, case.schedule, case.parties, case.prior_sd, *values, share, taken)


def main() -> None:
    """Print one line per case and the summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    rows = []
    print("case            schedule      parties prior  error sd  log ratio  rounds  ESS/S  why")
    for number in range(chosen.seed, chosen.seed + chosen.cases):
        row = run_case(make_case(number))
        rows.append(row)
        print(
            f"{row.name:15} {row.schedule:13} {row.parties:7} {row.prior_sd:5g} {row.error:9.3g} "
            f"{row.log_ratio:10.3g} {row.rounds:7} {row.share:6.2f}  "
            f"{'' if row.converged else 'NOT CONVERGED: '}{row.why}",
            flush=True,
        )
    errors = np.array([row.error for row in rows])
    said = np.array([row.converged for row in rows])
    wrong = errors > 0.05
    print(
        f"{len(rows)} cases: {np.sum(~wrong)} within 0.05 sd; {np.sum(~said)} not converged; "
        f"{np.sum(wrong & said)} wrong without a warning; largest error of the converged "
        f"{max(errors[said], default=0.0):.3g} sd; median rounds "
        f"{np.median([row.rounds for row in rows]):g}"
    )


if __name__ == "__main__":
    main()
