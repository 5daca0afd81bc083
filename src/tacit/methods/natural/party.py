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
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tacit.arrays import Array, Arrays
from tacit.expfam import Family, Gaussian
from tacit.expfam.quadrature import normal_rule, weighing_draws
from tacit.methods.base import Task
from tacit.methods.natural.curvature import absolute_eigen
from tacit.methods.natural.stages import FAILED
from tacit.models import Model
from tacit.models.capabilities import WhitenedDerivatives, WhitenedExpectations
from tacit.support.compiler import jax, jnp

HESSIANS_UP_TO = 64
"""Dimension up to which E[∇²] is an average of Hessians; above, by Stein's identity."""
DRAW_BATCH = 8
TANGENT_BATCH = 32
MAX_MODE_STEPS = 60
SETTLED_DECREMENT = 1e-3
MERIT_DROP = 10.0
"""Nats below the best merit at which the search for a mode ends: the density has no mode there."""

Scalar = Callable[[Array], Array]


def evaluate(model: Model, task: Task, mean: Array, root: Array, spread: Array) -> Arrays:
    """Value, gradient and Hessian in z at one point, sums over the records."""
    if isinstance(model, WhitenedExpectations):
        found = model.whitened_derivatives(mean, root, spread, task.records, task.weights)
    else:
        found = by_cubature(in_z(share_of_log_joint(model, task), mean, root), spread, len(mean))
    finite = jnp.isfinite(found.value)
    for part in found[1:]:
        finite = finite & jnp.all(jnp.isfinite(part))
    return {
        "value": jnp.where(finite, found.value, FAILED),
        "gradient": jnp.where(finite, found.gradient, 0.0),
        "hessian": jnp.where(finite, 0.5 * (found.hessian + found.hessian.T), 0.0),
    }


def candidates(model: Model, task: Task) -> Arrays:
    """`evaluate` at each of several points, one after the other."""
    public = task.public

    def one(point: tuple[Array, Array]) -> Arrays:
        return evaluate(model, task, point[0], point[1], public["spread"])

    return jax.lax.map(one, (public["mean"], public["root"]))


def weigh(model: Model, task: Task) -> Arrays:
    """Log-likelihood of the records at shared draws from q."""
    mean, root = task.public["mean"], task.public["root"]
    value = in_z(share_of_log_joint(model, task), mean, root)
    draws = jnp.asarray(weighing_draws(len(mean)))
    values = jax.lax.map(value, draws, batch_size=DRAW_BATCH)
    return {"log_likelihood": jnp.where(jnp.isfinite(values), values, FAILED)}


def at_draws(model: Model, task: Task) -> Arrays:
    """Log-likelihood of the records at draws that the request publishes."""
    value = share_of_log_joint(model, task)
    values = jax.lax.map(value, task.public["draws"], batch_size=DRAW_BATCH)
    return {"log_likelihood": jnp.where(jnp.isfinite(values), values, FAILED)}


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


def by_cubature(value: Scalar, spread: Array, size: int) -> WhitenedDerivatives:
    """Averages over fixed points that integrate polynomials of degree 3 exactly.

    With spread 0 all points are one, and one says all.
    """
    points, weights = (jnp.asarray(part) for part in normal_rule(size))
    at_mean = spread == 0
    look = _with_hessian if size <= HESSIANS_UP_TO else _with_outer_product

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
        lambda: _with_hessian(value, jnp.zeros(size), size).hessian,
        lambda: total.hessian / jnp.where(at_mean, 1.0, spread * spread),
    )
    return total._replace(hessian=hessian)


def _with_hessian(value: Scalar, z: Array, size: int) -> WhitenedDerivatives:
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
    prior = _log_prior(model, family)
    theta, slope, hessian, settled = find_mode(log_likelihood(model, task), prior, centre, share)
    enough = jnp.sum(task.weights) >= 2 * size
    good = (settled & enough).astype(jnp.float64)
    linear = slope - hessian @ theta
    return {
        "precision": -hessian,
        "linear": linear,
        "good_precision": -good * hessian,
        "good_linear": good * linear,
        "modes": theta,
    }


def _log_prior(model: Model, family: Gaussian) -> Scalar:
    if model.has_site_prior:
        return model.log_prior
    prior = {name: jnp.asarray(value) for name, value in model.prior(family).items()}

    def value(theta: Array) -> Array:
        parts = family.statistics(theta)
        return sum(jnp.sum(prior[name] * parts[name]) for name in prior)

    return value


def find_mode(
    likelihood: Scalar, log_prior: Scalar, centre: Array, share: Array | float = 0.0
) -> tuple[Array, Array, Array, Array]:
    """Mode of likelihood × prior, gradient and Hessian of likelihood × priorˢʰᵃʳᵉ there, settled.

    Levenberg–Marquardt with the absolute eigenvalues of the Hessian in diagonally scaled
    coordinates. Without convergence, the point of the best Laplace approximation f − ½ log|P|: at a
    singularity of the density P grows faster than f.
    """
    final = _search(likelihood, log_prior, centre, share)
    theta, site = jax.tree.map(
        lambda a, b: jnp.where(final.settled, a, b),
        (final.theta, final.site),
        (final.best, final.best_site),
    )
    finite = jnp.all(jnp.isfinite(site.gradient)) & jnp.all(jnp.isfinite(site.hessian))
    slope = jnp.where(finite, site.gradient, 0.0)
    hessian = jnp.where(finite, 0.5 * (site.hessian + site.hessian.T), 0.0)
    return theta, slope, hessian, final.settled & finite


def _search(likelihood: Scalar, log_prior: Scalar, centre: Array, share: Array | float) -> _Search:
    size = len(centre)

    def step(now: _Search) -> _Search:
        own, prior = (_with_hessian(part, now.proposal, size) for part in (likelihood, log_prior))
        whole = WhitenedDerivatives(*(a + b for a, b in zip(own, prior, strict=True)))
        finite = jnp.isfinite(whole.value)
        for part in whole[1:]:
            finite = finite & jnp.all(jnp.isfinite(part))
        first = now.steps == 0
        better = first | (finite & (whole.value >= now.value))
        site = WhitenedDerivatives(*(a + share * b for a, b in zip(own, prior, strict=True)))
        theta, value, slope, hessian, site = jax.tree.map(
            lambda new, old: jnp.where(better, new, old),
            (now.proposal, *whole, site),
            (now.theta, now.value, now.gradient, now.hessian, now.site),
        )
        eigen = absolute_eigen(-hessian)
        merit = value - 0.5 * eigen.log_determinant
        merit = jnp.where(jnp.isfinite(merit), merit, -jnp.inf)
        improved = first | (merit > now.best_merit)
        lost = merit < now.best_merit - MERIT_DROP
        decrement = slope @ eigen.solve(slope)
        damping = jnp.where(better, 0.1 * now.damping, 10.0 * now.damping)
        damping = jnp.where(lost, jnp.inf, damping)
        best, best_site = jax.tree.map(
            lambda new, old: jnp.where(improved, new, old),
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
            jnp.maximum(merit, now.best_merit),
        )

    def go_on(now: _Search) -> Array:
        return ~now.settled & (now.steps < MAX_MODE_STEPS) & (now.damping < 1e12)

    vector, matrix, no = jnp.zeros(size), jnp.zeros((size, size)), jnp.asarray(False)
    nothing = WhitenedDerivatives(jnp.zeros(()), vector, matrix)
    start = _Search(
        centre, centre, jnp.asarray(-jnp.inf), vector, matrix, nothing, jnp.asarray(1e-2),
        jnp.asarray(0), no, centre, nothing, jnp.asarray(-jnp.inf),
    )  # fmt: skip
    return jax.lax.while_loop(go_on, step, start)
