"""Party side of `NaturalVI` for models with too many parameters for a full covariance.

There is one kind of exchange, `WIDE`. The server publishes q and some directions. q is the
distribution of φ = mean + scale·z with z ~ N(0, I), or with z ~ N(0, rootᵀroot) if `root` is not 0.
The coordinates φ are θ, or the parameters of centred columns (`wide_columns`). The party replies
with four arrays, which are sums over its records with derivatives in z:

    E_q[log p],  E_q[∇ log p],  the diagonal of E_q[∇² log p],  its product with each direction.

For generalised linear models, all are computed by quadrature. For other models, `root` is 0. The
first two arrays are then averages over fixed points (`wide_points`). The products are averages over
two opposite points, one standard deviation from the mean in every coordinate. The diagonal costs
one product per parameter, so it is evaluated only on request, and only at the mean.
"""

from __future__ import annotations

import functools

import numpy as np

from tacit.arrays import Array, Arrays
from tacit.methods.base import Task
from tacit.methods.natural.party import TANGENT_BATCH, Scalar, share_of_log_joint, with_products
from tacit.methods.natural.plain import BLOCK_ROWS, blocks
from tacit.methods.natural.stages import FAILED
from tacit.methods.natural.wide_columns import Columns
from tacit.models import Model
from tacit.models.base import Records
from tacit.models.capabilities import DiagonalDerivatives, DiagonalExpectations
from tacit.support.compiler import jax, jnp

STRATA = 32
"""Number of positive quantiles per coordinate. Each is used with both signs, so there are 2·STRATA
points.
"""
POINT_BATCH = 8


@functools.cache
def wide_points(dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """Return fixed points of shape (2·STRATA, dimension) and fixed signs of shape (dimension,).

    In every coordinate, the points are quantiles of a standard normal distribution, scaled to
    variance 1. Their order is random and differs between coordinates. If a function is a sum of
    functions of single coordinates, its average over the points therefore has a small error.
    """
    from scipy.special import ndtri

    rng = np.random.default_rng([dimension, 0x1A77])
    sizes = ndtri(0.5 + (np.arange(STRATA) + 0.5) / (2 * STRATA))
    sizes /= np.sqrt(np.mean(sizes * sizes))
    order = np.argsort(rng.random((STRATA, dimension)), axis=0)
    half = sizes[order] * rng.choice([-1.0, 1.0], (STRATA, dimension))
    return np.concatenate([half, -half]), rng.choice([-1.0, 1.0], dimension)


def program_public(public: Arrays) -> Arrays:
    """Add the points and signs of `wide_points` to the public arrays of a request, in NumPy."""
    points, signs = wide_points(len(public["mean"]))
    return public | {"points": points, "signs": signs}


def derivatives(model: Model, task: Task) -> Arrays:
    """Return the expected log-likelihood of a party's records and its derivatives, compiled by JAX.

    The derivatives are the gradient, the diagonal of the Hessian, and the products of the Hessian
    with the requested directions.
    """
    public = task.public
    if isinstance(model, DiagonalExpectations) and not model.has_site_prior:
        records = _centred(model, public, task.records)
        found = model.diagonal_derivatives(*_place(public), records, task.weights)
        return _released(found, jnp)
    value = share_of_log_joint(model, task, public["prior_share"])
    return _released(_by_points(value, public, Columns.of(model)), jnp)


def _place(public: Arrays) -> tuple[Array, Array, Array, Array, Array]:
    """Return the published mean, scale, root, directions and spread."""
    names = ("mean", "scale", "root", "directions", "spread")
    mean, scale, root, directions, spread = (public[name] for name in names)
    return mean, scale, root, directions, spread


def _centred(model: object, public: Arrays, records: Records) -> Records:
    """Return the records with centred columns."""
    columns = Columns.of(model)
    if columns is None:
        return records
    x = records["x"]
    return records | {"x": columns.back(x, public["centre"][: columns.count].astype(x.dtype))}


def in_numpy(model: DiagonalExpectations, task: Task) -> Arrays:
    """Return the same as `derivatives`, computed in NumPy for blocks of records."""
    public = task.public
    found: DiagonalDerivatives | None = None
    for records, weights in blocks(task, BLOCK_ROWS):
        records = _centred(model, public, records)
        part = model.diagonal_derivatives(*_place(public), records, weights)
        found = part if found is None else DiagonalDerivatives(*map(np.add, found, part))
    assert found is not None
    return _released(found, np)


def _by_points(value: Scalar, public: Arrays, columns: Columns | None) -> DiagonalDerivatives:
    size, spread = len(public["mean"]), public["spread"]

    def log_joint(z: Array) -> Array:
        phi = public["mean"] + public["scale"] * z
        return value(phi if columns is None else columns.theta(phi, public["centre"]))

    slope = jax.value_and_grad(log_joint)
    groups = public["points"].reshape(-1, POINT_BATCH, size)
    wanted = jnp.where(spread == 0, 1, len(groups))  # with spread 0 all points coincide

    def add(i: Array, total: tuple[Array, Array]) -> tuple[Array, Array]:
        values, gradients = jax.vmap(slope)(spread * groups[i])
        return total[0] + jnp.sum(values), total[1] + jnp.sum(gradients, axis=0)

    nothing = (jnp.zeros(()), jnp.zeros(size))
    fit, gradient = jax.lax.fori_loop(0, wanted, add, nothing)
    count = wanted * POINT_BATCH

    def along(z: Array, tangents: Array) -> Array:
        product = with_products(log_joint, z)[2]
        return jax.lax.map(product, tangents, batch_size=TANGENT_BATCH)

    reach = spread * public["signs"]
    products = 0.5 * (along(reach, public["directions"]) + along(-reach, public["directions"]))

    def diagonal() -> Array:
        product = with_products(log_joint, jnp.zeros(size))[2]
        return jax.lax.map(
            lambda i: product(jax.nn.one_hot(i, size, dtype=gradient.dtype))[i],
            jnp.arange(size),
            batch_size=TANGENT_BATCH,
        )

    found = jax.lax.cond(public["exact"] > 0, diagonal, lambda: jnp.zeros(size))
    return DiagonalDerivatives(fit / count, gradient / count, found, products)


def _released(found: DiagonalDerivatives, xp: Array) -> Arrays:
    """Return the arrays of a reply. If a number is not finite, the value is FAILED and the other
    arrays are 0.
    """
    finite = xp.isfinite(found.value)
    for part in found[1:]:
        finite = finite & xp.all(xp.isfinite(part))
    parts = {name: xp.where(finite, part, 0.0) for name, part in found._asdict().items()}
    return parts | {"value": xp.where(finite, found.value, FAILED)}
