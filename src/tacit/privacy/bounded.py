"""Sums of contributions with clipped norms: the only values that a mechanism may release.

A unit (a record, a person, a shard, a party) contributes one vector, given as a pytree. `Bounded`
is the sum of these after each was scaled to norm ≤ C, together with C. It is made by clipping and
cannot be changed, so no mechanism ever receives a value with a hand-written sensitivity. Sums are
always float64, because the rounding error of a long float32 sum would not be negligible compared
with C.
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
    """Σᵢ cᵢ with ‖cᵢ‖ ≤ `clip` for every unit i, where each unit occurs at most once.

    Formal guarantee: removing a unit moves `value` by at most `clip` in the norm over all leaves;
    replacing a unit moves it by at most 2·`clip`, or √2·`clip` if no two possible contributions
    have a negative inner product, for example because no coordinate is negative. `norm` is "l2", or
    "l1" for Laplace noise, where replacing a unit moves the sum by at most 2·`clip`.
    """

    __slots__ = ("clip", "nonnegative", "norm", "value")
    value: Tree
    clip: Array
    nonnegative: bool
    norm: Norm

    def __init__(self) -> None:
        raise TypeError("a Bounded is made by clipping: use clip_units or clip_sum")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Bounded does not change; clip again instead of setting {name}")

    def sensitivity(self, adjacency: Adjacency) -> Array:
        """Return the largest distance by which one unit can move the value."""
        if adjacency == "add-or-remove-one":
            return self.clip
        smaller = self.nonnegative and self.norm == "l2"
        return self.clip * (math.sqrt(2.0) if smaller else 2.0)


class Tally(NamedTuple):
    """An extra coordinate per unit that counts units within the clip, and the new clip.

    The coordinate is ±ω/2 or, if not `signed`, 0 or ω/2: a contribution without negative
    coordinates then still has none.
    """

    weight: Array
    bound: Array
    signed: bool = True


def clip_weights(norms: Array, clip: Array, mask: Array) -> Array:
    """Return min(1, C(1 − 1e-6)/‖cᵢ‖); 0 for a masked unit, or if ‖cᵢ‖ exceeds `LARGEST_NORM` or is
    NaN.
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
    """Return the sum over the leading axis, with each unit's contribution scaled to norm ≤ C.

    A unit with a number that is not finite contributes nothing. `nonnegative` sets negative
    coordinates to zero first, which halves the squared sensitivity under replace-one. A unit is
    clipped by the larger of its norm and its `norm_bound`. `tally` adds a coordinate that counts
    the units within the clip: see `_tallied`.
    """
    leaves, treedef = jax.tree.flatten(contributions)
    if not leaves:
        raise ValueError("clip_units needs at least one array")
    units = leaves[0].shape[0]
    for leaf in leaves:
        if leaf.dtype not in (jnp.float32, jnp.float64):
            raise TypeError(f"contributions are float32 or float64, not {leaf.dtype}")
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
    """Return the same sum with the bound that holds for the units *inside* each contributor.

    Adding a unit to a shard does not add a contribution of norm ≤ C: it changes the shard's
    contribution, which moves the sum by up to 2C. So the bound per inner unit is 2C.
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
    """Return the clipped sum Σ wᵢ cᵢ from norms in closed form, without forming any cᵢ.

    `norms` must bound ‖cᵢ‖ from above: the norm itself, or the largest over all labels, which makes
    the weight independent of the label. They are float64: in float32 the square of a number below
    1e-19 underflows to 0, and the norm would be too small. `weighted_sum(w)` must be Σ wᵢ cᵢ and
    must not use a unit of weight 0. `tacit.testing.check_clipping` compares it with `clip_units`.
    `tally` is as in `clip_units`; `norm` is the kind of norm in `norms`.

    If contributions are nonnegative, `least` is a lower bound on each unit's smallest coordinate.
    The sum is then marked `nonnegative`, and a unit with `least` < 0 (or NaN) contributes nothing.
    `acute` declares that no two possible contributions have a negative inner product, which the
    caller must prove; the sum is marked accordingly.
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
    """Return the sum and the number of units within the clip, as one vector for one release.

    `value` becomes (value, ω Σ ±½): + for a unit whose norm is at most C, − for one that was scaled
    down or left out. A contribution (cᵢ, ±ω/2) has norm ≤ √(C² + ω²/4), and so has (cᵢ, 0 or ω/2)
    of a tally that is not signed. The new clip is the tally's bound. If the bound is smaller than
    that norm, the clip is NaN, which events refuse.
    """
    limit = jnp.asarray(bounded.clip, norms.dtype) * (1.0 - CLIP_MARGIN)
    below = jnp.where(norms <= limit, 0.5, -0.5 if tally.signed else 0.0)  # not within for NaN
    total = jnp.sum(jnp.where(mask != 0, below, 0.0)).astype(jnp.float64)
    if bounded.norm == "l1":
        norm = bounded.clip + 0.5 * tally.weight
    else:
        norm = jnp.sqrt(jnp.square(bounded.clip) + 0.25 * jnp.square(tally.weight))
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
    """Return Σ_u w_u Σⱼ x_uj x_ujᵀ, each unit scaled to Frobenius norm ≤ C, as `pack_symmetric`
    packs it.

    `rows` is (units, d), or (units, places, d) if units have several rows; rows of weight 0 are
    ignored. A unit's norm is bounded by Σⱼ ‖x_uj‖², which for one row is the norm itself. `filled`
    also scales shorter contributions up to norm C, so that only directions count; a zero
    contribution stays zero. `tally` is as in `clip_units`.

    Contributions are positive semi-definite matrices P, Q, whose inner product tr(PQ) is ≥ 0, so
    that ‖P − Q‖² ≤ ‖P‖² + ‖Q‖² ≤ 2C²: the √2 of `nonnegative` holds although coordinates may be
    negative.
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
    """Return Σ rᵢrᵢᵀ, summed in blocks so that no number is rounded more than `LEAST_UNITS` times.

    The bound E on the rounding error of a sum depends on the units' norms, which the clip bounds,
    and on the number of additions that a term takes part in. Units may have any number of rows, so
    the rows of one long sum could outnumber the units that E is charged for. Here each term is in
    at most `BLOCK_ROWS` additions of its block and one per block.
    """
    count, width = rows.shape
    if count > MOST_ROWS:
        raise DataError(
            f"a party has {count} rows with its padding; the rounding of their second moment is "
            f"bounded for at most {MOST_ROWS}: divide the party"
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
    """Return the upper triangle with off-diagonals times √2, which has the norm of the whole
    matrix.

    >>> pack_symmetric(jnp.ones((2, 2))).round(3).tolist()
    [1.0, 1.414, 1.0]
    """
    rows, columns = np.triu_indices(matrix.shape[-1])
    return matrix[rows, columns] * np.where(rows == columns, 1.0, math.sqrt(2.0))


def add_disjoint(first: Bounded, second: Bounded) -> Bounded:
    """Add two sums over different units of one data set; the larger clip bounds both."""
    value = jax.tree.map(jnp.add, first.value, second.value)
    clip = jnp.maximum(first.clip, second.clip)
    if first.norm != second.norm:
        raise TypeError(f"sums clipped in different norms, {first.norm} and {second.norm}")
    alike = first.nonnegative and second.nonnegative
    return _make(value, clip, nonnegative=alike, norm=first.norm)


def row_norms(flat: list[Array], norm: Norm = "l2") -> Array:
    """Return the norm of each row over several matrices, in float64; infinite beyond
    `LARGEST_NORM`.

    In float32, squaring overflows, and dividing by the largest entry fails too: its reciprocal is
    denormal above 8.5e37, a compiler may flush it to 0, and the row would get norm 0. In float64
    squares of anything up to `LARGEST_NORM` are exact enough.
    """
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
