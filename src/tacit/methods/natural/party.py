"""The party's half of `NaturalVI` if the server controls the steps: six kinds of exchange.

All points are given as θ = mean + root·z, and derivatives are those in z. The server chooses the
root so that z has about unit scale under the posterior. Sums over records then have terms of
similar size for any units of the columns, and a badly conditioned posterior loses half as many
digits as it would in θ.

| stage | published | released |
| --- | --- | --- |
| `MODE` | centre | Gaussian approximation of the party's likelihood at its own posterior mode |
| `EVALUATE` | one mean and root | E_q[log p], E_q[∇ log p], E_q[∇² log p] |
| `CANDIDATES` | several means and roots | the same for each; with spread 0 at the means alone |
| `WEIGH` | mean and root | log p at each of `weighing_draws` |
| `NODES` | means and roots | as `CANDIDATES` |
| `DRAWS` | draws of θ | log p at each of them |

Compiling the second derivatives of a user's model takes longer than running it, so the first three
stages share one program, `DERIVATIVES`: a loop that evaluates one point at a time, either the next
published point or the next point of a search for the mode. `WEIGH` and `DRAWS` share another.

A prior outside the family is divided among the parties: each adds `prior_share`·log p(θ) to its
log-likelihood, and the shares of a round add up to 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tacit.arrays import Array, Arrays
from tacit.expfam import Family, Gaussian
from tacit.expfam.quadrature import normal_rule, weighing_draws
from tacit.methods.base import Task
from tacit.methods.natural.products import with_matrix_products
from tacit.methods.natural.search import Search, first_search, only_finite, searched
from tacit.methods.natural.stages import (
    CANDIDATE_COUNT,
    CANDIDATES,
    DERIVATIVES,
    DRAWS,
    EVALUATE,
    FAILED,
    MODE,
    NODE_COUNT,
    NODES,
    WEIGH,
)
from tacit.models import Model
from tacit.models.capabilities import WhitenedDerivatives, WhitenedExpectations
from tacit.support.compiler import jax, jnp

HESSIANS_UP_TO = 64
"""Largest dimension for which E[∇²] is an average of Hessians; beyond it, Stein's identity is
used.
"""
DRAW_BATCH = 8
TANGENT_BATCH = 32

Scalar = Callable[[Array], Array]


def program_of(stage: str) -> str:
    """Return the name of the compiled program for a stage."""
    if stage in (MODE, EVALUATE, CANDIDATES):
        return DERIVATIVES
    return DRAWS if stage == WEIGH else stage


def program_public(stage: str, public: Arrays) -> Arrays:
    """Convert the public arrays of a request to the form that its program needs. NumPy."""
    if stage == WEIGH:
        theta = public["mean"] + weighing_draws(len(public["mean"])) @ public["root"].T
        return {"draws": theta, "prior_share": public["prior_share"]}
    if stage not in (MODE, EVALUATE, CANDIDATES, NODES):
        return public
    mean = public["centre"] if stage == MODE else public["mean"]
    size = mean.shape[-1]
    root = np.eye(size) if stage == MODE else public["root"]
    slots = NODE_COUNT if stage == NODES else CANDIDATE_COUNT
    if mean.ndim == 1:
        mean = np.concatenate([mean[None], np.zeros((slots - 1, size))])
        root = np.concatenate([root[None], np.zeros((slots - 1, size, size))])
    spread = {MODE: 0.0, EVALUATE: 1.0}.get(stage)
    return {
        "mean": mean,
        "root": root,
        "spread": public["spread"] if spread is None else np.asarray(spread),
        "points": np.asarray(1 if stage in (MODE, EVALUATE) else slots),
        "search": np.asarray(stage == MODE),
        "prior_share": public["prior_share"],
    }


def stage_released(stage: str, found: Arrays) -> Arrays:
    """Select the arrays that the reply of a stage releases from the output of its program.
    NumPy.
    """
    if stage == MODE:
        theta, good = found["theta"], found["good"]
        form, slope = -found["hessian"][0], found["gradient"][0]
        linear = slope + form @ theta
        return {
            "precision": form,
            "linear": linear,
            "good_precision": good * form,
            "good_linear": good * linear,
            "modes": theta,
        }
    parts = {name: value for name, value in found.items() if name not in ("theta", "good")}
    return {name: value[0] for name, value in parts.items()} if stage == EVALUATE else parts


class _Loop(NamedTuple):
    """State of the loop: results at the points so far, and the state of the search for the mode."""

    done: Array
    """Number of points whose derivatives are in the output."""
    found: WhitenedDerivatives
    """One row per published point."""
    search: Search
    final: Array
    """True if the search has ended; its result is then evaluated once more, with a share of the
    prior.
    """


def derivatives(model: Model, family: Family, task: Task) -> Arrays:
    """Compute value, gradient and Hessian in z at the published points, or at the mode of the
    party's own posterior.

    `theta` is that mode. `good` is true if the search converged and there are enough records.
    """
    assert isinstance(family, Gaussian)
    public = task.public
    slots, size = public["mean"].shape
    searches = public["search"]
    prior = None if model.has_site_prior else gaussian_prior(model, family)

    def body(now: _Loop) -> _Loop:
        searching = searches & ~now.final
        mean = jnp.where(searches, now.search.proposal, public["mean"][now.done])
        share = jnp.where(searching, 1.0, public["prior_share"])
        seen = _at_point(model, task, mean, public["root"][now.done], public["spread"], share)
        seen, finite = only_finite(seen)

        def search_on() -> tuple[Search, Array]:
            whole = seen if prior is None else total(seen, prior(mean))
            after = searched(now.search, whole, finite)
            proposal = jnp.where(after.goes_on, after.proposal, after.result)
            ended = now.search._replace(settled=now.search.settled & finite)
            after = jax.tree.map(
                lambda one, other: jnp.where(now.final, one, other),
                ended,
                after._replace(proposal=proposal),
            )
            return after, ~after.goes_on

        search, ended = jax.lax.cond(searches, search_on, lambda: (now.search, now.final))
        at = jnp.where(searching, slots, now.done)  # an index outside the array writes nothing
        found = WhitenedDerivatives(
            *(
                whole.at[at].set(part, mode="drop")
                for whole, part in zip(now.found, seen, strict=True)
            )
        )
        return _Loop(now.done + ~searching, found, search, ended)

    nothing = WhitenedDerivatives(
        jnp.zeros(slots), jnp.zeros((slots, size)), jnp.zeros((slots, size, size))
    )
    start = _Loop(jnp.asarray(0), nothing, first_search(public["mean"][0]), jnp.asarray(False))
    last = jax.lax.while_loop(lambda now: now.done < public["points"], body, start)
    enough = jnp.sum(task.weights) >= 2 * size
    return last.found._asdict() | {
        "theta": last.search.proposal,
        "good": (last.search.settled & enough).astype(jnp.float64),
    }


def _at_point(
    model: Model, task: Task, mean: Array, root: Array, spread: Array, share: Array
) -> WhitenedDerivatives:
    """Compute the derivatives at one point: sums over the records, plus the party's share of the
    prior.

    The prior is shared only if it is not in the family.
    """
    if not isinstance(model, WhitenedExpectations):
        value = share_of_log_joint(model, task, share)
        return by_cubature(in_z(value, mean, root), spread, len(mean))
    found = model.whitened_derivatives(mean, root, spread, task.records, task.weights)
    if not model.has_site_prior:
        return found
    prior = by_cubature(
        in_z(lambda theta: share * model.log_prior(theta), mean, root), spread, len(mean)
    )
    return total(found, prior)


def total(one: WhitenedDerivatives, other: WhitenedDerivatives) -> WhitenedDerivatives:
    """Add the derivatives of two functions."""
    return WhitenedDerivatives(*(a + b for a, b in zip(one, other, strict=True)))


def gaussian_prior(model: Any, family: Gaussian) -> Callable[[Array], WhitenedDerivatives]:
    """Return a function that computes value, gradient and Hessian of a prior in the family."""
    prior = model.prior(family)
    quadratic = prior["quadratic"]
    form = quadratic if quadratic.ndim == 2 else np.diag(quadratic)

    def at(theta: Array) -> WhitenedDerivatives:
        pull = form @ theta
        return WhitenedDerivatives(
            (prior["linear"] + pull) @ theta, prior["linear"] + 2.0 * pull, 2.0 * form
        )

    return at


def at_draws(model: Model, task: Task) -> Arrays:
    """Compute the records' log-likelihood at the draws that the request publishes."""
    value = share_of_log_joint(model, task, task.public["prior_share"])
    values = jax.lax.map(value, task.public["draws"], batch_size=DRAW_BATCH)
    return {"log_likelihood": jnp.where(jnp.isfinite(values), values, FAILED)}


def log_likelihood(model: Model, task: Task) -> Scalar:
    """Compute Σ w log p(record | θ) in float64, with `weights` w."""
    each_record = with_matrix_products(model.log_likelihood)

    def value(theta: Array) -> Array:
        each = each_record(theta, task.records)
        return jnp.sum(jnp.where(task.weights > 0, task.weights * each, 0.0)).astype(jnp.float64)

    return value


def share_of_log_joint(model: Model, task: Task, share: Array) -> Scalar:
    """Compute the log-likelihood plus the party's share of a prior that is not in the family."""
    likelihood = log_likelihood(model, task)
    if not model.has_site_prior:
        return likelihood
    return lambda theta: likelihood(theta) + share * model.log_prior(theta)


def in_z(value: Scalar, mean: Array, root: Array) -> Scalar:
    """Convert a function of θ = mean + root·z to a function of z."""
    return lambda z: value(mean + root @ z)


def by_cubature(value: Scalar, spread: Array, size: int) -> WhitenedDerivatives:
    """Average a function's value and derivatives over fixed points, exact for polynomials of degree
    3.

    With spread 0 all points coincide, and only one is evaluated.
    """
    points, weights = (jnp.asarray(part) for part in normal_rule(size))
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
    """Compute the Hessian by forward-over-reverse differentiation, a few columns at a time."""
    found, along = jax.linearize(jax.value_and_grad(value), z)
    columns = jax.lax.map(
        lambda tangent: along(tangent)[1], jnp.eye(size), batch_size=min(TANGENT_BATCH, size)
    )
    return WhitenedDerivatives(found[0], found[1], columns)


def _with_outer_product(value: Scalar, z: Array, size: int) -> WhitenedDerivatives:
    del size
    found, slope = jax.value_and_grad(value)(z)
    return WhitenedDerivatives(found, slope, jnp.outer(z, slope))
