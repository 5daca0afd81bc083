"""Softmax regression: its Gaussian site, and clipped gradients in closed form.

A record has features x and an outcome y, one of K levels; e_y is the one-hot vector of y. Let p be
the expectation of softmax η under q, and C the expectation of diag(softmax η) − (softmax η)(softmax
η)ᵀ (`SoftmaxRegression.expected`). The gradient of E_q[log p(y | η)] in the weights of all levels
is (e_y − p) ⊗ x, and the negative Hessian is C ⊗ xxᵀ.

**The largest gradient over the labels.** In the norm that is clipped, the coordinate of level k and
column j has a public weight α_kj. With a_k = Σ_j α_kj² x_j², the squared norm of the gradient is
Σ_k p_k² a_k + (1 − 2p_y) a_y. Label-agnostic clipping uses the largest of these K numbers, one for
each label y. If all weights are 1, the squared norm is ‖x‖²(1 − 2p_y + ‖p‖²), which is largest for
the least probable label.
"""

from __future__ import annotations

import numpy as np

from tacit.arrays import Array, computed_once, kept_rows, namespace, unit_rows
from tacit.expfam import Family, FullGaussian, Gaussian, Natural
from tacit.expfam.gaussian import Free
from tacit.models.base import Records
from tacit.models.capabilities import ClippingParts, WhitenedDerivatives
from tacit.models.glm.softmax import (
    SoftmaxRegression,
    block_covariances,
    contrasts,
    one_hot,
)
from tacit.support.compiler import jnp


def softmax_site(
    model: SoftmaxRegression,
    family: Family,
    usual: dict[str, Array],
    records: Records,
    weights: Array,
) -> tuple[Natural, Array]:
    """Return the site (b, −½P) of a softmax regression at q, and the expected loss
    (`expected_site`).

    P = Σ C ⊗ xxᵀ and b = Σ (e_y − p) ⊗ x + P m, where m is the mean of q, and the module docstring
    defines p, C and e_y.
    """
    x, y = records["x"], records["y"]
    full = isinstance(family, FullGaussian)
    spread = usual["covariance"] if full else jnp.square(usual["sd"])
    found = model.expected(*model.project(usual["mean"], spread, x), y)
    slope = weights[:, None] * (one_hot(model, y).astype(x.dtype) - found.probability)
    curvature = weights[:, None, None] * found.curvature
    loss = -jnp.sum(weights * found.value)
    if full:
        eta = x @ model.rows(usual["mean"]).T.astype(x.dtype)
        return _full_site(x, eta, slope, curvature), loss
    form = jnp.diagonal(curvature, axis1=1, axis2=2).T @ (x * x)
    form = form.reshape(-1).astype(jnp.float64)
    linear = (slope.T @ x).reshape(-1).astype(jnp.float64) + form * usual["mean"]
    return {"linear": linear, "quadratic": -0.5 * form}, loss


def softmax_whitened(
    model: SoftmaxRegression, mean: Array, root: Array, spread: Array, records: Records,
    weights: Array,
) -> WhitenedDerivatives:  # fmt: skip
    """Return `whitened_derivatives` of a softmax regression, computed for contrasts of levels.

    A change that is the same for all levels affects no probability. Such changes are removed from
    the root first. Their curvature is 0, but its rounding errors could exceed the precision of a
    wide prior.
    """
    x, y, levels = records["x"], records["y"], len(model.levels)
    xp = namespace(mean, x)
    basis, width = xp.asarray(contrasts(levels)), len(model.layout)
    within = xp.einsum("kr,kim->rim", basis, root.reshape(levels, width, -1))
    within = within.reshape((levels - 1) * width, -1)
    covariance = xp.square(spread) * within @ within.T
    blocks = covariance.reshape(levels - 1, width, levels - 1, width).transpose(0, 2, 1, 3)
    location = x @ (model.rows(mean).T @ basis).astype(x.dtype)
    found = model.expected(location, block_covariances(blocks.astype(x.dtype), x), y)
    slope = weights[:, None] * ((one_hot(model, y).astype(x.dtype) - found.probability) @ basis)
    bent = xp.einsum("kr,nkl,ls->nrs", basis, found.curvature, basis)
    form = _kronecker_sum(weights[:, None, None] * bent, x).astype(np.float64)
    gradient = (slope.T @ x).reshape(-1).astype(np.float64)
    value = xp.sum(weights * found.value).astype(np.float64)
    return WhitenedDerivatives(value, within.T @ gradient, -(within.T @ form @ within))


def softmax_data_site(
    model: SoftmaxRegression, family: Family, records: Records, weights: Array
) -> Natural:
    """Return the site of a softmax regression at predictors that are computed from the outcomes
    (`data_site`).

    The predictors of a record are log((e_y + 1/K)/2), where e_y is the one-hot vector of y, and K
    the number of levels. For a mean-field family only the precision is computed, and the linear
    term of the site is 0.
    """
    x, y = records["x"], records["y"]
    own = one_hot(model, y).astype(x.dtype)
    p = 0.5 * (own + 1.0 / len(model.levels))
    curvature = jnp.eye(p.shape[-1], dtype=p.dtype) * p[:, :, None] - p[:, :, None] * p[:, None, :]
    curvature = weights[:, None, None] * curvature
    if isinstance(family, FullGaussian):
        return _full_site(x, jnp.log(p), weights[:, None] * (own - p), curvature)
    form = jnp.diagonal(curvature, axis1=1, axis2=2).T @ (x * x)
    form = form.reshape(-1).astype(jnp.float64)
    return {"linear": jnp.zeros_like(form), "quadratic": -0.5 * form}


def _full_site(x: Array, eta: Array, slope: Array, curvature: Array) -> Natural:
    # The site (b, −½P) with P = Σ C ⊗ xxᵀ and b = Σ (slope + Cη) ⊗ x, where C is `curvature`.
    form = _kronecker_sum(curvature, x).astype(jnp.float64)
    form = 0.5 * (form + form.T)  # symmetrise: rounding may differ
    working = slope + jnp.einsum("nkl,nl->nk", curvature, eta)
    return {"linear": (working.T @ x).reshape(-1).astype(jnp.float64), "quadratic": -0.5 * form}


def _kronecker_sum(curvature: Array, x: Array) -> Array:
    """Return Σᵢ Cᵢ ⊗ xᵢxᵢᵀ over records i, where Cᵢ is `curvature[i]`."""
    size = curvature.shape[-1]
    blocks = [
        [
            (x * curvature[:, max(row, column), min(row, column), None]).T @ x
            for column in range(size)
        ]
        for row in range(size)
    ]
    return namespace(x).block(blocks)


def softmax_gradient_norms(
    model: SoftmaxRegression,
    family: Gaussian,
    free: Free,
    records: Records,
    maps: Free,
    agnostic: bool,
) -> ClippingParts:
    """Return `gradient_norms` of a softmax regression for a mean-field q."""
    x, y = records["x"], records["y"]
    spread = jnp.square(family.free_root(free))
    found = model.expected(*model.project(free["location"], spread, x), y)
    slope = one_hot(model, y).astype(x.dtype) - found.probability
    bend = jnp.diagonal(found.curvature, axis1=1, axis2=2)
    information = jnp.sum(bend, axis=1) * jnp.sum(x * x, axis=1) / model.dimension
    parts = (slope, bend, found.probability, information)
    slope, bend, probability, information = computed_once(parts)
    # Norms in float64, like the sums: a float32 square may underflow and drop out of the norm.
    direction, largest = unit_rows(x)
    wide, largest = jnp.square(direction), largest[:, None]
    reach = {name: jnp.asarray(value, jnp.float64) for name, value in maps.items()}
    each = _by_level(wide, jnp.square(model.rows(reach["location"])))
    norms = jnp.sum(jnp.square(slope * largest) * each, axis=1)
    if agnostic:
        p, each = probability.astype(jnp.float64), jnp.square(largest) * each
        labels = jnp.sum(jnp.square(p) * each, axis=1)[:, None] + (1.0 - 2.0 * p) * each
        norms = jnp.maximum(norms, jnp.max(labels, axis=1))
    if "scale" in maps:
        squares = model.rows(jnp.square(reach["scale"] * spread.astype(jnp.float64)))
        fourth = _by_level(jnp.square(wide), squares)
        norms = norms + jnp.sum(jnp.square(bend * largest * largest) * fourth, axis=1)
    if "information" in maps:
        norms = norms + jnp.square(reach["information"] * information.astype(jnp.float64))

    def weighted_sum(weights: Array) -> Free:
        rows, kept = kept_rows(weights, x), kept_rows(weights, weights[:, None] * slope)
        summed = {"location": maps["location"] * (kept.T @ rows).reshape(-1)}
        if "scale" in maps:
            bent = kept_rows(weights, weights[:, None] * bend).T @ jnp.square(rows)
            summed["scale"] = -maps["scale"] * spread * bent.reshape(-1)
        if "information" in maps:
            total = jnp.sum(kept_rows(weights, weights * information))
            summed["information"] = maps["information"] * total
        return summed

    def unit_sums(weights: Array) -> Free:
        return _units(maps, spread, x, slope, bend, information, weights)

    return ClippingParts(jnp.sqrt(norms), weighted_sum, unit_sums)


def _by_level(squares: Array, rows: Array) -> Array:
    # A matrix product is avoided: see `tacit.methods.dpsgd.clipping._unfolded`.
    return jnp.sum(squares[:, None, :] * rows, axis=-1)


def _units(
    maps: Free,
    spread: Array,
    x: Array,
    slope: Array,
    bend: Array,
    information: Array,
    weights: Array,
) -> Free:
    """Return the contributions of units, one row per unit. A contribution is a sum over the unit's
    records.
    """
    count = weights.shape[0]

    def added(levels: Array, columns: Array) -> Array:
        levels = kept_rows(weights.reshape(-1), weights.reshape(-1, 1) * levels)
        columns = kept_rows(weights.reshape(-1), columns)
        levels, columns = (part.reshape(*weights.shape, -1) for part in (levels, columns))
        return jnp.einsum("upk,upd->ukd", levels, columns).reshape(count, -1)

    units = {"location": maps["location"] * added(slope, x)}
    if "scale" in maps:
        units["scale"] = -maps["scale"] * spread * added(bend, x * x)
    if "information" in maps:
        each = kept_rows(weights.reshape(-1), weights.reshape(-1) * information)
        units["information"] = maps["information"] * jnp.sum(each.reshape(weights.shape), axis=1)
    return units
