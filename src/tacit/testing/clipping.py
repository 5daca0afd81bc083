"""Conformance suite of clipped sums: compare them with their declared sensitivity.

Closed-form norms are error-prone, because the sum and its norms are separate formulas. Both are
compared with explicitly computed contributions, and then tested with units that might move the sum
too far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tacit.privacy.bounded import Array, Bounded, Tree, clip_units

Columns = dict[str, Any]
ClippedSum = Callable[[Columns, Array, Array], Bounded]
Contributions = Callable[[Columns], Tree]
Norms = Callable[[Columns], Array]
SIZES = (0.0, 1e-30, 1e-3, 1.0, 1e3, 1e10, 1e18, 1e30, 9e37, 3e38, np.inf, np.nan)
MAX_UNITS = 12
REACHED = 0.99


def check_clipping(
    clipped: ClippedSum,
    contributions: Contributions,
    records: Columns,
    *,
    clip: float = 1.0,
    norm_bound: Norms | None = None,
    extreme: Sequence[str] | None = None,
    tolerance: float | None = None,
    seed: int = 0,
) -> None:
    """Assert that `clipped(records, clip, mask)` is the clipped sum with the declared sensitivity.

    The sum is compared with `clip_units` of `contributions(records)`. Then each unit is left out in
    turn, and each is replaced by extreme records. In an extreme record, the `extreme` columns
    contain values from 0 to 3e38, NaN or infinity, and all other columns contain values of some
    given record. No change of one unit may move the sum by more than its declared sensitivity for
    either adjacency, except for rounding. At least one unit must have a contribution of norm
    0.99·`clip` or more; otherwise more noise is added than necessary.

    Parameters
    ----------
    clipped
        A function of (records, clip, mask) that returns the clipped sum.
    contributions
        A function of the records that returns the contribution of each unit, one row each.
    records
        Columns of the records.
    clip
        Norm to which contributions are clipped.
    norm_bound
        A function of the records that returns an upper bound on the norm of each contribution. A
        unit is clipped as if its norm were the larger of its actual norm and this bound.
    extreme
        Columns that are filled with extreme values; by default all floating-point columns.
    tolerance
        Relative difference that rounding may cause.
    seed
        Seed of everything random.
    """
    columns = {name: np.asarray(value) for name, value in records.items()}
    count = len(next(iter(columns.values())))
    assert count >= 2, f"check_clipping needs at least two units, not {count}"
    rng = np.random.default_rng(seed)
    some = (rng.random(count) < 0.5).astype(float)
    _check_agreement(clipped, contributions, columns, clip, norm_bound, tolerance, some)
    reached = _check_left_out(clipped, columns, clip)
    others = _extreme_records(columns, extreme, rng)
    reached = max(reached, _check_replaced(clipped, columns, clip, others))
    assert reached >= REACHED * clip, (
        f"reach: no unit contributes more than {reached:.4g}, expected at least "
        f"{REACHED} of the clip {clip:g}: noise is added for a norm that never occurs"
    )


def _check_agreement(
    clipped: ClippedSum,
    contributions: Contributions,
    records: Columns,
    clip: float,
    norm_bound: Norms | None,
    tolerance: float | None,
    some: np.ndarray,
) -> None:
    def expected(size: Array, mask: Array, *, nonnegative: bool) -> Bounded:
        bound = None if norm_bound is None else norm_bound(records)
        own = contributions(records)
        return clip_units(own, size, mask, nonnegative=nonnegative, norm_bound=bound)

    found_of, wanted_of = jax.jit(clipped), jax.jit(expected, static_argnames="nonnegative")
    for size in (1e-3 * clip, clip, 1e3 * clip):
        for which, mask in (("all", np.ones(len(some))), ("some", some), ("no", 0.0 * some)):
            found = found_of(records, size, mask)
            assert isinstance(found, Bounded), (
                f"type: clipped returned {type(found).__name__}, expected a Bounded"
            )
            assert np.isclose(float(found.clip), size, rtol=1e-12), (
                f"clip: declares {float(found.clip):g}, expected {size:g}"
            )
            wanted = wanted_of(size, mask, nonnegative=found.nonnegative)
            gap = float(_distances(found.value, wanted.value))
            relative = _precision(found.value) if tolerance is None else tolerance
            allowed = relative * max(size, float(_distances(wanted.value)))
            assert gap <= allowed, (
                f"agreement: over {which} units at clip {size:g} the sum is {gap:.3g} from that of "
                f"clip_units, at most {allowed:.3g} allowed"
            )


def _check_left_out(clipped: ClippedSum, records: Columns, clip: float) -> float:
    """Check that leaving out a unit moves the sum by at most its sensitivity. Return the largest
    distance moved.
    """
    count = len(next(iter(records.values())))
    sums = jax.jit(jax.vmap(lambda mask: clipped(records, jnp.asarray(clip), mask)))
    found = sums(np.concatenate([np.ones((1, count)), 1.0 - np.eye(count)]))
    whole: Bounded = jax.tree.map(lambda leaf: leaf[0], found)
    without: Bounded = jax.tree.map(lambda leaf: leaf[1:], found)
    allowed = float(whole.sensitivity("add-or-remove-one")) + _rounding(whole, count)
    moved = _distances(without.value, whole.value)
    _expect_within("unit {} left out", moved, allowed)
    return float(np.max(moved))


def _check_replaced(clipped: ClippedSum, records: Columns, clip: float, others: Columns) -> float:
    """Check that replacing a unit by each of `others` moves the sum by at most its sensitivity.
    Return the largest distance from the sum without the unit.
    """
    count = len(next(iter(records.values())))

    def replaced(unit: Array, other: Columns, mask: Array) -> Bounded:
        own = {name: jnp.asarray(v).at[unit].set(other[name]) for name, v in records.items()}
        return clipped(own, jnp.asarray(clip), mask)

    one = jax.jit(clipped)
    every = jax.jit(jax.vmap(replaced, in_axes=(None, 0, None)))
    shown = [_shown(others, row) for row in range(len(next(iter(others.values()))))]
    whole = one(records, clip, np.ones(count))
    slack = _rounding(whole, count)
    reached = 0.0
    for unit in range(min(count, MAX_UNITS)):
        rest = np.where(np.arange(count) == unit, 0.0, 1.0)
        absent = one(records, clip, rest).value
        present, masked = every(unit, others, np.ones(count)), every(unit, others, rest)
        what = f"unit {unit} replaced by {{}}"
        for adjacency, compared in (("add-or-remove-one", absent), ("replace-one", whole.value)):
            moved = _distances(present.value, compared)
            allowed = float(whole.sensitivity(adjacency)) + slack
            _expect_within(f"{what} ({adjacency})", moved, allowed, shown)
        _expect_within(f"{what}, without weight", _distances(masked.value, absent), slack, shown)
        reached = max(reached, float(np.max(_distances(present.value, absent))))
    return reached


def _extreme_records(
    records: Columns, extreme: Sequence[str] | None, rng: np.random.Generator
) -> Columns:
    """Return records with extreme values, four for each value s in `SIZES`.

    Each is a copy of a random record with changes in the columns `extreme` (by default all
    floating-point columns). In such a column, either one random entry is s, or all entries are s,
    or all are −s, or each is s or −s at random.
    """
    names = [name for name, value in records.items() if value.dtype.kind == "f"]
    if extreme is not None:
        missing = [name for name in extreme if name not in names]
        assert not missing, (
            f"extreme: {missing[0]!r} is not one of the floating-point columns {names}"
        )
        names = list(extreme)
    rows = []
    for size in SIZES:
        for way in ("up", "down", "mixed", "one number"):
            base = int(rng.integers(len(next(iter(records.values())))))
            row = {name: np.array(value[base]) for name, value in records.items()}
            for name in names:
                row[name] = _stretched(row[name], size, way, rng)
            rows.append(row)
    return {name: np.stack([row[name] for row in rows]) for name in records}


def _stretched(value: np.ndarray, size: float, way: str, rng: np.random.Generator) -> np.ndarray:
    if way == "one number" and value.size:
        found = value.copy()
        found.flat[int(rng.integers(value.size))] = size
        return found
    sign = {"up": np.ones(value.shape), "down": -np.ones(value.shape)}.get(way)
    if sign is None:
        sign = rng.choice([-1.0, 1.0], size=value.shape)
    return (sign * size).astype(value.dtype)


def _expect_within(
    what: str, moved: np.ndarray, allowed: float, names: Sequence[str] | None = None
) -> None:
    at = int(np.argmax(np.where(np.isnan(moved), np.inf, moved)))
    named = what.format(at if names is None else names[at])
    assert np.all(np.isfinite(moved)), f"not finite: {named} makes the sum NaN or infinite"
    assert moved[at] <= allowed, (
        f"sensitivity: {named} moves the sum by {moved[at]:.6g}, at most {allowed:.6g} declared"
    )


def _distances(first: Tree, second: Tree | None = None) -> np.ndarray:
    left = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(first)]
    if second is None:
        second = [np.zeros(leaf.shape) for leaf in left]
    right = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(second)]
    total: Any = 0.0
    for a, b in zip(left, right, strict=True):
        own = tuple(range(a.ndim - b.ndim, a.ndim))
        total = total + np.sum((a - b) ** 2, axis=own)
    return np.sqrt(total)


def _rounding(bounded: Bounded, count: int) -> float:
    """Return a bound on the rounding error of a sum of `count` terms, each of which has at most the
    norm of the clip.
    """
    worst = max(float(jnp.finfo(leaf.dtype).eps) for leaf in jax.tree.leaves(bounded.value))
    return worst * count * float(bounded.clip)


def _precision(value: Tree) -> float:
    worst = max(float(jnp.finfo(leaf.dtype).eps) for leaf in jax.tree.leaves(value))
    return 1e-9 if worst < 1e-15 else 100 * worst


def _shown(records: Columns, row: int) -> str:
    return str({name: np.asarray(value[row]).tolist() for name, value in records.items()})
