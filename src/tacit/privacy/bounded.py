"""Sums of contributions with clipped norms: the only values that a mechanism may release.

A unit (a record, a person, a shard or a party) contributes one vector, given as a pytree. Each
contribution is scaled down to a norm of at most C. `Bounded` contains the sum of the scaled
contributions and C. Only the clipping functions can make a `Bounded`, and it cannot be changed. The
sensitivity of a mechanism is therefore never set by hand. Sums are in float64, because the rounding
error of a long float32 sum would not be negligible compared with C.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from tacit.arrays import computed_once, kept_rows
from tacit.errors import DataError
from tacit.privacy.events import CLIP_MARGIN, LEAST_UNITS, Adjacency
from tacit.support.compiler import jax, jnp

Array = Any
Tree = Any
Norm = Literal["l2", "l1"]
LARGEST_NORM = 1e15
"""A unit with a larger norm contributes nothing, because norms close to overflow are not
reliable.
"""
MIN_SQUARED_NORM = 1e-200
"""A squared norm below this has lost too many digits to define a direction."""
BLOCK_ROWS = LEAST_UNITS // 2
"""Number of rows whose products are summed at a time: see `_squares_summed`."""
MOST_ROWS = BLOCK_ROWS * (LEAST_UNITS // 2 - 1)
"""Largest total number of rows of a party's units."""


class Bounded:
    """A sum with one contribution per unit, each of norm at most `clip`.

    Formal guarantee: removing a unit moves `value` by at most `clip`. The norm is taken over all
    arrays of `value` together. Replacing a unit moves `value` by at most 2·`clip`. If `nonnegative`
    is True, no two possible contributions have a negative inner product, for example because no
    coordinate is negative. In the L2 norm, replacing a unit then moves `value` by at most
    √2·`clip`. `norm` is "l2", or "l1" for Laplace noise.
    """

    __slots__ = ("clip", "nonnegative", "norm", "value")
    value: Tree
    clip: Array
    nonnegative: bool
    norm: Norm

    def __init__(self) -> None:
        raise TypeError(
            "Bounded cannot be called; make one by clipping, with clip_units or clip_sum"
        )

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(
            f"{name} of a Bounded cannot be set; clip again to get another Bounded"
        )

    def sensitivity(self, adjacency: Adjacency) -> Array:
        """Return the largest distance by which one unit can move `value`."""
        if adjacency == "add-or-remove-one":
            return self.clip
        smaller = self.nonnegative and self.norm == "l2"
        return self.clip * (math.sqrt(2.0) if smaller else 2.0)


class Tally(NamedTuple):
    """An extra coordinate of every contribution, from which the number of unclipped units is
    computed.

    The coordinate is `weight`/2 for a unit whose norm is within the clip. For other units it is
    −`weight`/2 if `signed`, and 0 otherwise. `bound` is the clip of a contribution together with
    its extra coordinate.
    """

    weight: Array
    bound: Array
    signed: bool = True


def clip_weights(norms: Array, clip: Array, mask: Array) -> Array:
    """Return the weight of each unit, by which its contribution is scaled to a norm of at most
    `clip`.

    The weight is min(1, clip·(1 − 1e-6)/norm). It is 0 for a masked unit, and for a norm that is
    NaN or exceeds `LARGEST_NORM`.
    """
    sound = (jnp.abs(norms) <= LARGEST_NORM) & (mask != 0)  # False for NaN
    limit = jnp.asarray(clip, norms.dtype) * (1.0 - CLIP_MARGIN)
    scale = jnp.minimum(1.0, limit / jnp.where(sound & (norms > 0), norms, 1.0))
    scale = jnp.where(norms > 0, scale, 1.0)
    return jnp.where(sound, scale, 0.0)


def clip_units(
    contributions: Tree,
    clip: Array,
    mask: Array | None = None,
    *,
    nonnegative: bool = False,
    norm_bound: Array | None = None,
    tally: Tally | None = None,
    norm: Norm = "l2",
) -> Bounded:
    """Return the sum over the leading axis, with each unit's contribution scaled to a norm of at
    most `clip`.

    A unit with a number that is not finite contributes nothing. `nonnegative` first sets negative
    coordinates to zero, which halves the squared sensitivity under replace-one. If `norm_bound` is
    given, a unit is scaled as if its norm were the larger of its actual norm and its `norm_bound`.
    `tally` adds a coordinate from which the number of unclipped units is computed.
    """
    leaves, treedef = jax.tree.flatten(contributions)
    if not leaves:
        raise ValueError("contributions contain no array; give at least one")
    units = leaves[0].shape[0]
    for leaf in leaves:
        if leaf.dtype not in (jnp.float32, jnp.float64):
            raise TypeError(
                f"contributions have type {leaf.dtype}; convert them to float32 or float64"
            )
    flat = [jnp.reshape(leaf, (units, math.prod(leaf.shape[1:]))) for leaf in leaves]
    if nonnegative:
        flat = [jnp.maximum(leaf, 0.0) for leaf in flat]
    flat = computed_once(flat)
    norms = row_norms(flat, norm)
    if norm_bound is not None:
        norms = jnp.where(norm_bound > norms, norm_bound, norms)
    mask = jnp.ones(units) if mask is None else mask
    weights = clip_weights(norms, clip, mask)
    summed = [
        jnp.reshape(weights.astype(jnp.float64) @ kept_rows(weights, leaf), shape.shape[1:])
        for leaf, shape in zip(flat, leaves, strict=True)
    ]
    bounded = _make(jax.tree.unflatten(treedef, summed), clip, nonnegative=nonnegative, norm=norm)
    return bounded if tally is None else _tallied(bounded, norms, mask, tally)


def within(bounded: Bounded) -> Bounded:
    """Return the same sum with the clip for smaller units, such as single records if each
    contribution is that of a shard.

    Adding one record changes the contribution of its shard, which has a norm of at most `clip`
    before and after. The sum therefore moves by at most 2·`clip`, which is the new clip.
    """
    return _make(bounded.value, 2.0 * bounded.clip, norm=bounded.norm)


def clip_sum(
    norms: Array,
    clip: Array,
    mask: Array,
    weighted_sum: Callable[[Array], Tree],
    *,
    least: Array | None = None,
    acute: bool = False,
    tally: Tally | None = None,
    norm: Norm = "l2",
) -> Bounded:
    """Return a clipped sum of contributions without computing each contribution.

    The sum is Σ wᵢcᵢ, where cᵢ is the contribution of unit i and wᵢ its weight from `clip_weights`.

    Parameters
    ----------
    norms
        Upper bound on the norm of each contribution, in float64: the norm itself, or the largest
        norm over all labels, so that the weight does not depend on the label.
    clip
        Largest norm of a contribution in the sum.
    mask
        0 for units that are left out.
    weighted_sum
        Function of the weights that returns Σ wᵢcᵢ. It must not use a unit of weight 0.
        `tacit.testing.check_clipping` compares it with `clip_units`.
    least
        If given, a lower bound on each unit's smallest coordinate. The sum is then marked
        `nonnegative`, and a unit with a negative (or NaN) bound contributes nothing.
    acute
        True if no two possible contributions have a negative inner product, which the caller must
        prove. The sum is then marked `nonnegative`.
    tally
        Adds a coordinate from which the number of unclipped units is computed.
    norm
        Kind of the norms in `norms`.
    """
    if norms.dtype != jnp.float64:
        raise TypeError(
            f"norms are {norms.dtype}; compute them in float64, because float32 squares can "
            "underflow and leave a contribution larger than its clip"
        )
    kept = mask if least is None else (mask != 0) & (least >= 0)  # False for NaN
    summed = weighted_sum(clip_weights(norms, clip, kept))
    alike = acute or least is not None
    bounded = _make(summed, clip, nonnegative=alike, norm=norm)
    return bounded if tally is None else _tallied(bounded, norms, kept, tally)


def _tallied(bounded: Bounded, norms: Array, mask: Array, tally: Tally) -> Bounded:
    """Return the sum with the extra coordinate of `tally`, as one vector for one release."""
    limit = jnp.asarray(bounded.clip, norms.dtype) * (1.0 - CLIP_MARGIN)
    below = jnp.where(norms <= limit, 0.5, -0.5 if tally.signed else 0.0)  # not within for NaN
    total = jnp.sum(jnp.where(mask != 0, below, 0.0)).astype(jnp.float64)
    if bounded.norm == "l1":
        norm = bounded.clip + 0.5 * tally.weight
    else:
        norm = jnp.sqrt(jnp.square(bounded.clip) + 0.25 * jnp.square(tally.weight))
    # If the bound is too small, the clip is NaN, which events refuse.
    clip = jnp.where(norm <= tally.bound, tally.bound, jnp.nan)
    alike = bounded.nonnegative and not tally.signed
    return _make((bounded.value, tally.weight * total), clip, nonnegative=alike, norm=bounded.norm)


def clip_moments(
    rows: Array,
    clip: Array,
    weights: Array,
    *,
    filled: bool = False,
    tally: Tally | None = None,
) -> Bounded:
    """Return a clipped sum of second moments, which are the outer products xxᵀ of all rows x.

    The contribution of a unit is the sum of xxᵀ over its rows. It is scaled to a Frobenius norm of
    at most `clip`. The result is a symmetric matrix, packed as a vector by `pack_symmetric`.

    Any two contributions A and B are positive semi-definite matrices. Their inner product tr(AB) is
    therefore not negative, and ‖A − B‖² ≤ ‖A‖² + ‖B‖² ≤ 2·clip². The sum is therefore marked
    `nonnegative`, although its coordinates may be negative.

    Parameters
    ----------
    rows
        Array of shape (units, d), or (units, rows per unit, d).
    clip
        Largest Frobenius norm of a contribution. The norm is computed as the sum of ‖x‖² over the
        rows, which is an upper bound if a unit has several rows.
    weights
        Rows of weight 0 are ignored.
    filled
        If True, smaller contributions are scaled up to the norm `clip`, so that only directions
        count. A contribution of zero stays zero.
    tally
        Adds a coordinate from which the number of unclipped units is computed.
    """
    there = (weights > 0).reshape(rows.shape[:-1])
    flat = jnp.where(there[..., None], rows, 0.0).reshape(-1, rows.shape[-1])
    norms = jnp.square(row_norms([flat])).reshape(there.shape)
    if there.ndim == 2:
        norms = jnp.sum(norms, axis=1)
    units = there if there.ndim == 1 else jnp.any(there, axis=1)
    scale = clip_weights(norms, clip, units)
    if filled:
        longer = clip * (1.0 - CLIP_MARGIN) / jnp.where(norms > MIN_SQUARED_NORM, norms, jnp.inf)
        scale = jnp.where(scale > 0, longer, 0.0)
    each = jnp.broadcast_to(scale.reshape(-1, *(1,) * (there.ndim - 1)), there.shape).reshape(-1)
    kept = kept_rows(each, flat) * jnp.sqrt(each)[:, None]
    bounded = _make(pack_symmetric(_squares_summed(kept)), clip, nonnegative=True)
    return bounded if tally is None else _tallied(bounded, norms, units, tally)


def _squares_summed(rows: Array) -> Array:
    # Σ rrᵀ over the rows r. `Lattice` bounds the rounding error of a sum in terms of the number of
    # units, but a unit may have many rows. In blocks, a term is rounded at most `LEAST_UNITS`
    # times: in at most `BLOCK_ROWS` additions of its block, and once per block.
    count, width = rows.shape
    if count > MOST_ROWS:
        raise DataError(
            f"a party has {count} rows, including padding, but rounding errors are bounded only "
            f"for at most {MOST_ROWS} rows; divide the records among several parties"
        )
    blocks = count // BLOCK_ROWS
    if not blocks:
        return rows.T @ rows

    def add(total: Array, block: Array) -> tuple[Array, None]:
        return total + block.T @ block, None

    whole = rows[: blocks * BLOCK_ROWS].reshape(blocks, BLOCK_ROWS, width)
    last = rows[blocks * BLOCK_ROWS :]
    return jax.lax.scan(add, last.T @ last, whole)[0]


def pack_symmetric(matrix: Array) -> Array:
    """Return the upper triangle of a symmetric matrix as a vector.

    Off-diagonal entries are multiplied by √2, so that the norm of the vector is the Frobenius norm
    of the matrix.

    >>> pack_symmetric(jnp.ones((2, 2))).round(3).tolist()
    [1.0, 1.414, 1.0]
    """
    rows, columns = np.triu_indices(matrix.shape[-1])
    return matrix[rows, columns] * np.where(rows == columns, 1.0, math.sqrt(2.0))


def add_disjoint(first: Bounded, second: Bounded) -> Bounded:
    """Add two sums over different units of one data set.

    Each unit is in only one of the sums, so the clip of the result is the larger of the two clips.
    """
    value = jax.tree.map(jnp.add, first.value, second.value)
    clip = jnp.maximum(first.clip, second.clip)
    if first.norm != second.norm:
        raise TypeError(
            f"the sums are clipped in different norms, {first.norm} and {second.norm}; clip both "
            "in the same norm"
        )
    alike = first.nonnegative and second.nonnegative
    return _make(value, clip, nonnegative=alike, norm=first.norm)


def row_norms(flat: list[Array], norm: Norm = "l2") -> Array:
    """Return the norm of each row in float64; infinite if an entry exceeds `LARGEST_NORM`.

    Row i consists of row i of every matrix in `flat`.
    """
    # In float32, squaring overflows, and dividing by the largest entry fails too: its reciprocal is
    # denormal above 8.5e37, a compiler may flush it to 0, and the row would get norm 0.
    wide = [leaf.astype(jnp.float64) for leaf in flat]
    peaks = [jnp.max(jnp.abs(leaf), axis=1, initial=0.0) for leaf in wide]
    sound = jnp.max(jnp.stack(peaks), axis=0) <= LARGEST_NORM  # False for NaN
    if norm == "l1":
        return jnp.where(sound, sum(jnp.sum(jnp.abs(leaf), axis=1) for leaf in wide), jnp.inf)
    squares = sum(jnp.sum(jnp.square(leaf), axis=1) for leaf in wide)
    return jnp.where(sound, jnp.sqrt(squares), jnp.inf)


@functools.cache
def _register() -> None:
    """Register `Bounded` as a JAX pytree."""
    jax.tree_util.register_pytree_node(
        Bounded,
        lambda bounded: ((bounded.value, bounded.clip), (bounded.nonnegative, bounded.norm)),
        lambda kind, parts: _make(*parts, nonnegative=kind[0], norm=kind[1]),  # pyright: ignore[reportArgumentType]
    )


def _make(value: Tree, clip: Array, *, nonnegative: bool = False, norm: Norm = "l2") -> Bounded:
    _register()
    bounded = object.__new__(Bounded)
    parts = {"value": value, "clip": clip, "nonnegative": nonnegative, "norm": norm}
    for name, part in parts.items():
        object.__setattr__(bounded, name, part)
    return bounded
