"""Sums of contributions whose norms were clipped: all that a mechanism may release.

A unit (a record, a person, a shard, a party) contributes one vector, given as a pytree. `Bounded`
is the sum of these after each was scaled to norm ≤ C, together with C. It is made by clipping and
cannot be changed, so that no mechanism is handed a value whose sensitivity somebody typed. Sums are
float64 whatever the contributions are: the rounding of a long float32 sum would count against C.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tacit.arrays import computed_once, kept_rows
from tacit.privacy.events import Adjacency
from tacit.support.compiler import jax, jnp

Array = Any
Tree = Any
LARGEST_NORM = 1e15
"""A unit beyond it contributes nothing: near the ends of its range no norm can be trusted."""
SMALLEST = 1e-200
"""Of a squared norm: one below it has lost too many of its digits to say a direction."""
MARGIN = 1e-6
"""Norms are clipped to C·(1 − MARGIN): float32 may exceed what it was scaled to by 1e-7."""


class Bounded:
    """Σᵢ cᵢ with ‖cᵢ‖ ≤ `clip` for every unit i, over units that are each in it at most once.

    Formal guarantee: leaving a unit out moves `value` by at most `clip` in the norm over all
    leaves; putting another in its place by at most 2·`clip`, or √2·`clip` where no two possible
    contributions have a negative inner product, as is so where no coordinate is negative.
    """

    __slots__ = ("clip", "nonnegative", "value")
    value: Tree
    clip: Array
    nonnegative: bool

    def __init__(self) -> None:
        raise TypeError("a Bounded is made by clipping: use clip_units or clip_sum")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Bounded does not change; clip again instead of setting {name}")

    def sensitivity(self, adjacency: Adjacency) -> Array:
        """How far one unit can move the value."""
        if adjacency == "add-or-remove-one":
            return self.clip
        return self.clip * (math.sqrt(2.0) if self.nonnegative else 2.0)


class Tally(NamedTuple):
    """A coordinate ±ω/2 a unit that counts those within the clip, and the bound on all of it."""

    weight: Array
    bound: Array


def clip_weights(norms: Array, clip: Array, mask: Array) -> Array:
    """min(1, C(1 − 1e-6)/‖cᵢ‖); 0 for a unit that is masked or has no norm up to `LARGEST_NORM`."""
    sound = (jnp.abs(norms) <= LARGEST_NORM) & (mask != 0)  # False for NaN
    limit = jnp.asarray(clip, norms.dtype) * (1.0 - MARGIN)
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
) -> Bounded:
    """The sum over the leading axis, a unit at a time scaled to norm ≤ C.

    A unit with a number that is not finite contributes nothing. `nonnegative` sets negative
    coordinates to zero first, which halves the square of the sensitivity under substitution. A
    `norm_bound` larger than a unit's norm takes its place; a smaller one does not. `tally` = ω adds
    a coordinate that tells how many units were within the clip: see `_tallied`.
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
    norms = row_norms(flat)
    if norm_bound is not None:
        norms = jnp.where(norm_bound > norms, norm_bound, norms)
    mask = jnp.ones(units) if mask is None else mask
    weights = clip_weights(norms, clip, mask)
    summed = [
        jnp.reshape(weights.astype(jnp.float64) @ kept_rows(weights, leaf), shape.shape[1:])
        for leaf, shape in zip(flat, leaves, strict=True)
    ]
    bounded = _make(jax.tree.unflatten(treedef, summed), clip, nonnegative=nonnegative)
    return bounded if tally is None else _tallied(bounded, norms, mask, tally)


def within(bounded: Bounded) -> Bounded:
    """The same sum, for units *inside* of the contributors.

    One unit more inside of a shard does not add a contribution of norm ≤ C: it turns one into
    another, which moves the sum by up to 2C. So what is inside is bounded by 2C a unit.
    """
    return _make(bounded.value, 2.0 * bounded.clip)


def clip_sum(
    norms: Array,
    clip: Array,
    mask: Array,
    weighted_sum: Callable[[Array], Tree],
    *,
    least: Array | None = None,
    tally: Tally | None = None,
) -> Bounded:
    """Σ wᵢ cᵢ where the norms are known in closed form and no cᵢ is ever written down.

    `norms` must bound ‖cᵢ‖ from above: the norm itself, or the largest over all labels, which
    makes the weight independent of the label. They are float64: in float32 the square of a number
    below 1e-19 is 0 and leaves the norm without it. `weighted_sum(w)` must be Σ wᵢ cᵢ and must not
    look at a unit of weight 0. `tacit.testing.check_clipping` compares it with `clip_units`.
    `tally` is as there.

    Where no coordinate of a contribution is negative, `least` must be at most the smallest one of
    each unit: the sum is then `nonnegative`, and a unit below 0 (or NaN) contributes nothing.
    """
    if norms.dtype != jnp.float64:
        raise TypeError(
            f"norms are {norms.dtype}; compute them in float64: a float32 square that vanishes "
            "leaves a contribution larger than its clip"
        )
    kept = mask if least is None else (mask != 0) & (least >= 0)  # False for NaN
    summed = weighted_sum(clip_weights(norms, clip, kept))
    bounded = _make(summed, clip, nonnegative=least is not None)
    return bounded if tally is None else _tallied(bounded, norms, kept, tally)


def _tallied(bounded: Bounded, norms: Array, mask: Array, tally: Tally) -> Bounded:
    """The sum, and how many units were within the clip, as one vector to be released together.

    `value` becomes (value, ω Σ ±½): + for a unit whose norm is at most C, − for one that was scaled
    down or left out. A contribution (cᵢ, ±ω/2) has norm ≤ √(C² + ω²/4); the new clip is the tally's
    bound, if that is not smaller, and NaN, which no event may have, if it is.
    """
    limit = jnp.asarray(bounded.clip, norms.dtype) * (1.0 - MARGIN)
    below = jnp.where(norms <= limit, 0.5, -0.5)  # −½ for NaN
    total = jnp.sum(jnp.where(mask != 0, below, 0.0)).astype(jnp.float64)
    norm = jnp.sqrt(jnp.square(bounded.clip) + 0.25 * jnp.square(tally.weight))
    clip = jnp.where(norm <= tally.bound, tally.bound, jnp.nan)
    return _make((bounded.value, tally.weight * total), clip)


def clip_moments(
    rows: Array,
    clip: Array,
    weights: Array,
    *,
    filled: bool = False,
    tally: Tally | None = None,
) -> Bounded:
    """Σ_u w_u Σⱼ x_uj x_ujᵀ, a unit at a time scaled to Frobenius norm ≤ C, as `pack_symmetric`.

    `rows` is (units, d), or (units, places, d) where a unit has several; a row of weight 0 is not
    there. A unit's norm is bounded by Σⱼ ‖x_uj‖², which for one row is the norm itself. `filled`
    makes shorter ones longer too, so that only directions count; what is 0 has none. `tally` is
    that of `clip_units`.

    Contributions are positive semi-definite matrices P, Q, whose inner product tr(PQ) is ≥ 0, so
    that ‖P − Q‖² ≤ ‖P‖² + ‖Q‖² ≤ 2C²: the √2 of `nonnegative` holds without a coordinate being so.
    """
    there = (weights > 0).reshape(rows.shape[:-1])
    flat = jnp.where(there[..., None], rows, 0.0).reshape(-1, rows.shape[-1])
    norms = jnp.square(row_norms([flat])).reshape(there.shape)
    if there.ndim == 2:
        norms = jnp.sum(norms, axis=1)
    units = there if there.ndim == 1 else jnp.any(there, axis=1)
    scale = clip_weights(norms, clip, units)
    if filled:
        longer = clip * (1.0 - MARGIN) / jnp.where(norms > SMALLEST, norms, jnp.inf)
        scale = jnp.where(scale > 0, longer, 0.0)
    each = jnp.broadcast_to(scale.reshape(-1, *(1,) * (there.ndim - 1)), there.shape).reshape(-1)
    kept = kept_rows(each, flat) * jnp.sqrt(each)[:, None]
    bounded = _make(pack_symmetric(kept.T @ kept), clip, nonnegative=True)
    return bounded if tally is None else _tallied(bounded, norms, units, tally)


def pack_symmetric(matrix: Array) -> Array:
    """The upper triangle, off-diagonals times √2: the norm is that of the whole matrix.

    >>> pack_symmetric(jnp.ones((2, 2))).round(3).tolist()
    [1.0, 1.414, 1.0]
    """
    rows, columns = np.triu_indices(matrix.shape[-1])
    return matrix[rows, columns] * np.where(rows == columns, 1.0, math.sqrt(2.0))


def add_disjoint(first: Bounded, second: Bounded) -> Bounded:
    """The sum of two sums over different units of one data set; the larger clip bounds both."""
    value = jax.tree.map(jnp.add, first.value, second.value)
    clip = jnp.maximum(first.clip, second.clip)
    return _make(value, clip, nonnegative=first.nonnegative and second.nonnegative)


def row_norms(flat: list[Array]) -> Array:
    """Norm of each row over several matrices, in float64; infinite beyond `LARGEST_NORM`.

    In float32 neither the squares nor a division by the largest number will do: the reciprocal
    of one above 8.5e37 is denormal, a compiler may flush it to 0, and the row would count as
    having no norm at all. In float64 squares of anything up to `LARGEST_NORM` are exact enough.
    """
    wide = [leaf.astype(jnp.float64) for leaf in flat]
    peaks = [jnp.max(jnp.abs(leaf), axis=1, initial=0.0) for leaf in wide]
    sound = jnp.max(jnp.stack(peaks), axis=0) <= LARGEST_NORM  # False for NaN
    squares = sum(jnp.sum(jnp.square(leaf), axis=1) for leaf in wide)
    return jnp.where(sound, jnp.sqrt(squares), jnp.inf)


@functools.cache
def _register() -> None:
    """Tell JAX of the parts of a Bounded, before the first one is made."""
    jax.tree_util.register_pytree_node(
        Bounded,
        lambda bounded: ((bounded.value, bounded.clip), bounded.nonnegative),
        lambda nonnegative, parts: _make(*parts, nonnegative=nonnegative),
    )


def _make(value: Tree, clip: Array, *, nonnegative: bool = False) -> Bounded:
    _register()
    bounded = object.__new__(Bounded)
    for name, part in (("value", value), ("clip", clip), ("nonnegative", nonnegative)):
        object.__setattr__(bounded, name, part)
    return bounded
