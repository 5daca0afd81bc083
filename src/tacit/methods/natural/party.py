"""Party side of `NaturalVI` if the server controls the steps: seven kinds of exchange.

The server publishes points in the form of a mean and a root, and θ = mean + root·z. A party replies
with derivatives in z. The server chooses the root so that z has about unit scale under the
posterior. Sums over records then have terms of similar size for any scales of the columns. With a
badly conditioned posterior, half as many digits are lost as in θ.

| stage | published | released |
| --- | --- | --- |
| `MODE` | centre | Gaussian approximation of the party's likelihood at its own posterior mode |
| `EVALUATE` | one mean and root | E_q[log p], E_q[∇ log p], E_q[∇² log p] |
| `CANDIDATES` | several means and roots | the same for each; with spread 0 at the means alone |
| `WEIGH` | mean and root | log p at each of `weighing_draws` |
| `NODES` | means and roots | as `CANDIDATES` |
| `DRAWS` | draws of θ | log p at each of them |
| `SLOPES` | one θ per Markov chain | log p and its gradient in θ at each of them |

Compiling the second derivatives of a user's model takes longer than running it. `MODE`, `EVALUATE`,
`CANDIDATES` and `NODES` therefore share one program, `DERIVATIVES`. It is a loop that evaluates one
point at a time: either the next published point, or the next point of a search for the mode.
`WEIGH` and `DRAWS` share another program.

A prior that is not in the family of q is divided among the parties. Each party adds
`prior_share`·log p(θ) to its log-likelihood, and the shares of a round add up to 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tacit.arrays import Array, Arrays, namespace
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
    MORE,
    NODE_COUNT,
    NODES,
    SPLIT_UP_TO,
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
    """Return the name of the compiled program that computes the reply to a request of this stage.

    Several stages share a program.
    """
    if stage in (MODE, EVALUATE, CANDIDATES, NODES):
        return DERIVATIVES
    return DRAWS if stage in (WEIGH, MORE) else stage


def program_public(stage: str, public: Arrays) -> Arrays:
    """Return the inputs of the compiled program (`program_of`), from the public arrays of a
    request.
    """
    if stage == WEIGH:
        theta = public["mean"] + weighing_draws(len(public["mean"])) @ public["root"].T
        return {"draws": theta, "prior_share": public["prior_share"]}
    if stage not in (MODE, EVALUATE, CANDIDATES, NODES):
        return public
    mean = public["centre"] if stage == MODE else public["mean"]
    size = mean.shape[-1]
    root = np.eye(size) if stage == MODE else public["root"]
    if mean.ndim == 1:
        mean, root = mean[None], root[None]
    points = len(mean)
    # One length for all stages, so that they share a compiled program.
    slots = max(points, NODE_COUNT if size <= SPLIT_UP_TO else CANDIDATE_COUNT)
    mean = np.concatenate([mean, np.zeros((slots - points, size))])
    root = np.concatenate([root, np.zeros((slots - points, size, size))])
    spread = {MODE: 0.0, EVALUATE: 1.0}.get(stage)
    return {
        "mean": mean,
        "root": root,
        "spread": public["spread"] if spread is None else np.asarray(spread),
        "points": np.asarray(points),
        "search": np.asarray(stage == MODE),
        "prior_share": public["prior_share"],
    }


def stage_released(stage: str, found: Arrays) -> Arrays:
    """Return the arrays that a party releases at this stage, from the output `found` of the
    compiled program.
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
    if stage == EVALUATE:
        return {name: value[0] for name, value in parts.items()}
    points = {CANDIDATES: CANDIDATE_COUNT, NODES: NODE_COUNT}.get(stage)
    return {name: value[:points] for name, value in parts.items()}


class _Loop(NamedTuple):
    done: Array
    """Number of points whose derivatives are in the output."""
    found: WhitenedDerivatives
    """Value, gradient and Hessian, one row per published point."""
    search: Search
    final: Array
    """True if the search has ended. Its result is then evaluated once more, with the party's share
    of the prior.
    """


def derivatives(model: Model, family: Family, task: Task) -> Arrays:
    """Return the log-likelihood of a party's records, with its gradient and Hessian in z, at each
    requested point.

    A point has a mean and a root, and θ = mean + root·z. If the request demands a search, the only
    point is the mode of prior × the party's likelihood, which the search has found. This mode is
    returned as "theta". "good" is 1 if the search converged and there are at least two records per
    parameter, otherwise 0.
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
    """Return the log-likelihood and its derivatives in z at one point.

    `share` times the log-prior is added if the prior is not in the family of q.
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
    """Return the sum of values and derivatives of two functions."""
    return WhitenedDerivatives(*(a + b for a, b in zip(one, other, strict=True)))


def gaussian_prior(model: Any, family: Gaussian) -> Callable[[Array], WhitenedDerivatives]:
    """Return a function of θ that computes value, gradient and Hessian of log p(θ), up to a
    constant.

    The prior p must be in the family of q.
    """
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
    """Return the log-likelihood of a party's records at each θ in the "draws" of the request.

    If the prior is not in the family of q, the party's share of the log-prior is added.
    """
    value = share_of_log_joint(model, task, task.public["prior_share"])
    values = jax.lax.map(value, task.public["draws"], batch_size=DRAW_BATCH)
    return {"log_likelihood": jnp.where(jnp.isfinite(values), values, FAILED)}


def at_slopes(model: Model, task: Task) -> Arrays:
    """Return what `at_draws` returns, and the gradient in θ at each of the draws."""
    value = share_of_log_joint(model, task, task.public["prior_share"])
    both = jax.value_and_grad(value)
    values, slopes = jax.lax.map(both, task.public["draws"], batch_size=DRAW_BATCH)
    return finite_slopes(values, slopes)


def finite_slopes(values: Array, slopes: Array) -> Arrays:
    """Return log-likelihoods and their gradients, one row per draw, as arrays of a reply. If a
    number of a draw is not finite, its log-likelihood is `FAILED` and its gradient 0.
    """
    xp = namespace(values)
    finite = xp.isfinite(values) & xp.all(xp.isfinite(slopes), axis=1)
    return {
        "log_likelihood": xp.where(finite, values, FAILED),
        "gradient": xp.where(finite[:, None], slopes, 0.0),
    }


def log_likelihood(model: Model, task: Task) -> Scalar:
    """Return a function of θ that computes Σᵢ weightᵢ log p(recordᵢ | θ) in float64."""
    each_record = with_matrix_products(model.log_likelihood)

    def value(theta: Array) -> Array:
        each = each_record(theta, task.records)
        return jnp.sum(jnp.where(task.weights > 0, task.weights * each, 0.0)).astype(jnp.float64)

    return value


def share_of_log_joint(model: Model, task: Task, share: Array) -> Scalar:
    """Return a function of θ that computes the log-likelihood of the records.

    If the prior is not in the family of q, the function adds `share` times log p(θ).
    """
    likelihood = log_likelihood(model, task)
    if not model.has_site_prior:
        return likelihood
    return lambda theta: likelihood(theta) + share * model.log_prior(theta)


def in_z(value: Scalar, mean: Array, root: Array) -> Scalar:
    """Return the function z ↦ value(mean + root·z), where `value` is a function of θ."""
    return lambda z: value(mean + root @ z)


def by_cubature(value: Scalar, spread: Array, size: int) -> WhitenedDerivatives:
    """Return the expectations of the function `value`, its gradient and its Hessian under N(0,
    spread²·I).

    They are computed by a cubature rule that is exact for polynomials of degree 3. If `spread` is
    0, the function is evaluated only at 0.
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
    """Return value, gradient and Hessian of the function `value` at z.

    The Hessian is computed a few columns at a time, to limit memory.
    """
    found, slope, product = with_products(value, z)
    columns = jax.lax.map(product, jnp.eye(size), batch_size=min(TANGENT_BATCH, size))
    return WhitenedDerivatives(found, slope, columns)


def with_products(value: Scalar, z: Array) -> tuple[Array, Array, Callable[[Array], Array]]:
    """Return value and gradient of a function at z, and the function v ↦ Hessian·v.

    Hessian products differentiate the gradient in forward mode. A function with only a reverse
    derivative (`jax.custom_vjp`), such as `jax.experimental.ode.odeint`, is differentiated twice in
    reverse mode.
    """
    try:
        (found, slope), along = jax.linearize(jax.value_and_grad(value), z)
        jax.eval_shape(jax.vmap(along), z[None])  # raises only if mapped or compiled
    except TypeError as error:
        if "custom_vjp" not in str(error):
            raise
        found = value(z)
        slope, back = jax.vjp(jax.grad(value), z)
        return found, slope, lambda vector: back(vector)[0]
    return found, slope, lambda vector: along(vector)[1]


def _with_outer_product(value: Scalar, z: Array, size: int) -> WhitenedDerivatives:
    del size
    found, slope = jax.value_and_grad(value)(z)
    return WhitenedDerivatives(found, slope, jnp.outer(z, slope))
