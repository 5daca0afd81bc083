"""The party's half of `NaturalVI` where the server controls the steps: six kinds of exchange.

All points are given as θ = mean + root·z, and derivatives are those in z. The server chooses the
root so that z has about unit scale under the posterior. Sums over records then have terms of
similar size whatever the units of the columns are, and a badly conditioned posterior costs half as
many digits as it would in θ.

| stage | published | released |
| --- | --- | --- |
| `MODE` | centre | Gaussian approximation of the party's likelihood at its own posterior mode |
| `EVALUATE` | one mean and root | E_q[log p], E_q[∇ log p], E_q[∇² log p] |
| `CANDIDATES` | several means and roots | the same for each; with spread 0 at the means alone |
| `WEIGH` | mean and root | log p at each of `weighing_draws` |
| `NODES` | means and roots | as `CANDIDATES` |
| `DRAWS` | draws of θ | log p at each of them |

A prior outside the family is divided among the parties: each adds `prior_share`·log p(θ) to its
log-likelihood, and the shares of a round add up to 1.

Models that can (`InNumPy`) are computed in NumPy, where loading and compiling a program would take
longer than all the steps of most runs. The formulas are the same for both libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import NamedTuple

import numpy as np

from tacit.arrays import Array, Arrays, Natural, namespace, while_loop
from tacit.expfam import Family, Gaussian
from tacit.expfam.quadrature import normal_rule, weighing_draws
from tacit.methods.base import Task
from tacit.methods.natural.curvature import absolute_eigen
from tacit.methods.natural.stages import FAILED
from tacit.models import Model
from tacit.models.capabilities import InNumPy, WhitenedDerivatives, WhitenedExpectations
from tacit.support.compiler import jax, jnp
from tacit.support.trees import tree_map

HESSIANS_UP_TO = 64
"""Dimension up to which E[∇²] is an average of Hessians; above, by Stein's identity."""
DRAW_BATCH = 8
BLOCK_ROWS = 4096
"""Records per block in NumPy: temporary arrays stay in the cache."""
DRAWS_BLOCK_ROWS = 256
"""The same where each record has `weighing_draws`."""
TANGENT_BATCH = 32
MAX_MODE_STEPS = 60
SETTLED_DECREMENT = 1e-3
MERIT_DROP = 10.0
"""Nats below the best merit at which the search for a mode ends: the density has no mode there."""

Scalar = Callable[[Array], Array]
Look = Callable[[Array], WhitenedDerivatives]
"""Value, gradient and Hessian at a point."""


def without_padding(task: Task) -> Task:
    """The task without rows of weight 0, in NumPy; compiled functions have fixed shapes."""
    if namespace(task.weights) is not np:
        return task
    count = int(np.count_nonzero(task.weights))
    records = {name: column[:count] for name, column in task.records.items()}
    return task._replace(records=records, weights=task.weights[:count])


def _blocks(task: Task, rows: int) -> Iterator[tuple[dict[str, Array], Array]]:
    for start in range(0, len(task.weights), rows):
        part = slice(start, start + rows)
        yield {name: column[part] for name, column in task.records.items()}, task.weights[part]


def _plain(model: Model, task: Task) -> bool:
    return isinstance(model, InNumPy) and namespace(task.weights) is np


def evaluate(model: Model, task: Task, mean: Array, root: Array, spread: Array | float) -> Arrays:
    """Value, gradient and Hessian in z at one point, sums over the records."""
    if isinstance(model, WhitenedExpectations):
        found = in_closed_form(model, task, mean, root, spread)
    else:
        found = by_cubature(in_z(share_of_log_joint(model, task), mean, root), spread, len(mean))
    xp = namespace(found.value)
    finite = _all_finite(found)
    return {
        "value": xp.where(finite, found.value, FAILED),
        "gradient": xp.where(finite, found.gradient, 0.0),
        "hessian": xp.where(finite, 0.5 * (found.hessian + found.hessian.T), 0.0),
    }


def _all_finite(found: WhitenedDerivatives) -> Array:
    xp = namespace(found.value)
    finite = xp.isfinite(found.value)
    for part in found[1:]:
        finite = finite & xp.all(xp.isfinite(part))
    return finite


def in_closed_form(
    model: WhitenedExpectations, task: Task, mean: Array, root: Array, spread: Array | float
) -> WhitenedDerivatives:
    """The model's own derivatives; in NumPy of some records at a time."""
    if namespace(task.weights) is not np:
        return model.whitened_derivatives(mean, root, spread, task.records, task.weights)
    parts = [
        model.whitened_derivatives(mean, root, spread, records, weights)
        for records, weights in _blocks(task, BLOCK_ROWS)
    ]
    return WhitenedDerivatives(*(sum(each[1:], each[0]) for each in zip(*parts, strict=True)))


def candidates(model: Model, task: Task) -> Arrays:
    """`evaluate` at each of several points, one after the other."""
    public = task.public

    def one(point: tuple[Array, Array]) -> Arrays:
        return evaluate(model, task, point[0], point[1], public["spread"])

    points = (public["mean"], public["root"])
    if _plain(model, task):
        each = [one(point) for point in zip(*points, strict=True)]
        return {name: np.stack([found[name] for found in each]) for name in each[0]}
    return jax.lax.map(one, points)


def weigh(model: Model, task: Task) -> Arrays:
    """Log-likelihood of the records at shared draws from q."""
    mean, root = task.public["mean"], task.public["root"]
    draws = weighing_draws(len(mean))
    if _plain(model, task):
        return _at(model, task, mean + draws @ root.T)
    value = in_z(share_of_log_joint(model, task), mean, root)
    draws = jnp.asarray(draws)
    values = jax.lax.map(value, draws, batch_size=DRAW_BATCH)
    return {"log_likelihood": jnp.where(jnp.isfinite(values), values, FAILED)}


def at_draws(model: Model, task: Task) -> Arrays:
    """Log-likelihood of the records at draws that the request publishes."""
    if _plain(model, task):
        return _at(model, task, task.public["draws"])
    value = share_of_log_joint(model, task)
    values = jax.lax.map(value, task.public["draws"], batch_size=DRAW_BATCH)
    return {"log_likelihood": jnp.where(jnp.isfinite(values), values, FAILED)}


def _at(model: Model, task: Task, thetas: np.ndarray) -> Arrays:
    assert isinstance(model, InNumPy)
    values = np.zeros(len(thetas))
    for records, weights in _blocks(task, DRAWS_BLOCK_ROWS):
        values += model.log_likelihoods(thetas, records, weights)
    return {"log_likelihood": np.where(np.isfinite(values), values, FAILED)}


def log_likelihood(model: Model, task: Task) -> Scalar:
    """Σ w log p(record | θ), float64."""

    def value(theta: Array) -> Array:
        each = model.log_likelihood(theta, task.records)
        return jnp.sum(jnp.where(task.weights > 0, task.weights * each, 0.0)).astype(jnp.float64)

    return value


def share_of_log_joint(model: Model, task: Task) -> Scalar:
    """The log-likelihood, with the party's share of a prior that is not in the family."""
    likelihood = log_likelihood(model, task)
    if not model.has_site_prior:
        return likelihood
    return lambda theta: likelihood(theta) + task.public["prior_share"] * model.log_prior(theta)


def in_z(value: Scalar, mean: Array, root: Array) -> Scalar:
    """A function of θ = mean + root·z as one of z."""
    return lambda z: value(mean + root @ z)


def by_cubature(value: Scalar, spread: Array | float, size: int) -> WhitenedDerivatives:
    """Averages over fixed points that integrate polynomials of degree 3 exactly.

    With spread 0 all points are one, and one says all.
    """
    points, weights = (jnp.asarray(part) for part in normal_rule(size))
    spread = jnp.asarray(spread)
    at_mean = spread == 0
    look = with_hessian if size <= HESSIANS_UP_TO else _with_outer_product

    def add(i: Array, total: WhitenedDerivatives) -> WhitenedDerivatives:
        found = look(value, spread * points[i], size)
        weight = jnp.where(at_mean, 1.0, weights[i])
        return WhitenedDerivatives(*(a + weight * b for a, b in zip(total, found, strict=True)))

    nothing = WhitenedDerivatives(jnp.zeros(()), jnp.zeros(size), jnp.zeros((size, size)))
    total = jax.lax.fori_loop(0, jnp.where(at_mean, 1, len(points)), add, nothing)
    if size <= HESSIANS_UP_TO:
        return total
    # Stein's identity: E[∇²] = E[z ∇ᵀ]/spread². The points are even and have unit second moments,
    # so that the constant and the linear part of the gradient add no error.
    hessian = jax.lax.cond(
        at_mean,
        lambda: with_hessian(value, jnp.zeros(size), size).hessian,
        lambda: total.hessian / jnp.where(at_mean, 1.0, spread * spread),
    )
    return total._replace(hessian=hessian)


def with_hessian(value: Scalar, z: Array, size: int) -> WhitenedDerivatives:
    """∇² by forward-over-reverse differentiation, some columns at a time."""
    found, along = jax.linearize(jax.value_and_grad(value), z)
    columns = jax.lax.map(
        lambda tangent: along(tangent)[1], jnp.eye(size), batch_size=min(TANGENT_BATCH, size)
    )
    return WhitenedDerivatives(found[0], found[1], columns)


def _with_outer_product(value: Scalar, z: Array, size: int) -> WhitenedDerivatives:
    del size
    found, slope = jax.value_and_grad(value)(z)
    return WhitenedDerivatives(found, slope, jnp.outer(z, slope))


class _Search(NamedTuple):
    """Where the search for a local mode is; `site` belongs to theta."""

    theta: Array
    proposal: Array
    value: Array
    gradient: Array
    hessian: Array
    site: WhitenedDerivatives
    damping: Array
    steps: Array
    settled: Array
    best: Array
    """The point of best merit so far."""
    best_site: WhitenedDerivatives
    best_merit: Array


def mode(model: Model, family: Family, task: Task) -> Arrays:
    """The Gaussian site of the party's likelihood at the mode of its own posterior."""
    assert isinstance(family, Gaussian)
    centre = task.public["centre"]
    size = len(centre)
    share = task.public["prior_share"] if model.has_site_prior else 0.0
    likelihood, prior = _look_at_likelihood(model, task, size), _look_at_prior(model, family)
    theta, slope, hessian, settled = find_mode(likelihood, prior, centre, share)
    enough = task.weights.sum() >= 2 * size
    good = (settled & enough).astype(np.float64)
    linear = slope - hessian @ theta
    return {
        "precision": -hessian,
        "linear": linear,
        "good_precision": -good * hessian,
        "good_linear": good * linear,
        "modes": theta,
    }


def _look_at_likelihood(model: Model, task: Task, size: int) -> Look:
    if isinstance(model, WhitenedExpectations):
        root = np.eye(size)
        return lambda theta: in_closed_form(model, task, theta, root, 0.0)
    value = log_likelihood(model, task)
    return lambda theta: with_hessian(value, theta, size)


def _look_at_prior(model: Model, family: Gaussian) -> Look:
    if model.has_site_prior:
        return lambda theta: with_hessian(model.log_prior, theta, len(theta))
    return look_at_quadratic(model.prior(family))


def look_at_quadratic(natural: Natural) -> Look:
    """Of a Gaussian density with these natural parameters, up to a constant."""
    linear, form = natural["linear"], 2.0 * natural["quadratic"]
    form = form if form.ndim == 2 else namespace(form).diag(form)

    def look(theta: Array) -> WhitenedDerivatives:
        slope = form @ theta
        return WhitenedDerivatives(linear @ theta + 0.5 * theta @ slope, linear + slope, form)

    return look


def find_mode(
    likelihood: Look, log_prior: Look, centre: Array, share: Array | float = 0.0
) -> tuple[Array, Array, Array, Array]:
    """Mode of likelihood × prior, gradient and Hessian of likelihood × priorˢʰᵃʳᵉ there, settled.

    Levenberg–Marquardt with the absolute eigenvalues of the Hessian in diagonally scaled
    coordinates. Without convergence, the point of the best Laplace approximation f − ½ log|P|: at a
    singularity of the density P grows faster than f.
    """
    xp = namespace(centre)
    final = _search(likelihood, log_prior, centre, share, xp)
    theta, site = tree_map(
        lambda a, b: xp.where(final.settled, a, b),
        (final.theta, final.site),
        (final.best, final.best_site),
    )
    finite = xp.all(xp.isfinite(site.gradient)) & xp.all(xp.isfinite(site.hessian))
    slope = xp.where(finite, site.gradient, 0.0)
    hessian = xp.where(finite, 0.5 * (site.hessian + site.hessian.T), 0.0)
    return theta, slope, hessian, final.settled & finite


def _search(
    likelihood: Look, log_prior: Look, centre: Array, share: Array | float, xp: ModuleType
) -> _Search:
    size = len(centre)

    def step(now: _Search) -> _Search:
        own, prior = likelihood(now.proposal), log_prior(now.proposal)
        whole = WhitenedDerivatives(*(a + b for a, b in zip(own, prior, strict=True)))
        finite = _all_finite(whole)
        first = now.steps == 0
        better = first | (finite & (whole.value >= now.value))
        site = WhitenedDerivatives(*(a + share * b for a, b in zip(own, prior, strict=True)))
        theta, value, slope, hessian, site = tree_map(
            lambda new, old: xp.where(better, new, old),
            (now.proposal, *whole, site),
            (now.theta, now.value, now.gradient, now.hessian, now.site),
        )
        eigen = absolute_eigen(-hessian)
        merit = value - 0.5 * eigen.log_determinant
        merit = xp.where(xp.isfinite(merit), merit, -xp.inf)
        improved = first | (merit > now.best_merit)
        lost = merit < now.best_merit - MERIT_DROP
        decrement = slope @ eigen.solve(slope)
        damping = xp.where(better, 0.1 * now.damping, 10.0 * now.damping)
        damping = xp.where(lost, xp.inf, damping)
        best, best_site = tree_map(
            lambda new, old: xp.where(improved, new, old),
            (theta, site),
            (now.best, now.best_site),
        )
        return _Search(
            theta,
            theta + eigen.solve(slope, damping=damping),
            value,
            slope,
            hessian,
            site,
            damping,
            now.steps + 1,
            (decrement < SETTLED_DECREMENT) & eigen.definite & ~lost,
            best,
            best_site,
            xp.maximum(merit, now.best_merit),
        )

    def go_on(now: _Search) -> Array:
        return ~now.settled & (now.steps < MAX_MODE_STEPS) & (now.damping < 1e12)

    vector, matrix, no = xp.zeros(size), xp.zeros((size, size)), xp.asarray(False)
    nothing = WhitenedDerivatives(xp.zeros(()), vector, matrix)
    start = _Search(
        centre, centre, xp.asarray(-xp.inf), vector, matrix, nothing, xp.asarray(1e-2),
        xp.asarray(0), no, centre, nothing, xp.asarray(-xp.inf),
    )  # fmt: skip
    return while_loop(go_on, step, start, xp)
