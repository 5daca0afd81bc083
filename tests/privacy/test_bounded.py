"""A Bounded keeps the sensitivity that it declares, whatever the units hold."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import DataError
from tacit.privacy import bounded as module
from tacit.privacy.bounded import (
    Bounded,
    add_disjoint,
    clip_moments,
    clip_sum,
    clip_units,
    clip_weights,
)
from tacit.privacy.events import Lattice
from tacit.testing import check_clipping

pytestmark = pytest.mark.full_optimisation

UNITS, WIDTH = 4, 3
clip_jit = jax.jit(clip_units, static_argnames="nonnegative")
anything = st.one_of(
    st.floats(-10.0, 10.0),
    st.sampled_from([0.0, 1e-30, 1e3, -1e10, 1e30, -1e30, np.nan, np.inf, -np.inf]),
)
rows = st.lists(st.lists(anything, min_size=WIDTH, max_size=WIDTH), min_size=UNITS, max_size=UNITS)


def value(bounded):
    return np.concatenate([np.ravel(np.asarray(x, float)) for x in jax.tree.leaves(bounded.value)])


def data(count=12, width=WIDTH, seed=0, dtype="float64"):
    rng = np.random.default_rng(seed)
    return {
        "x": rng.normal(size=(count, width)).astype(dtype),
        "y": rng.normal(size=count).astype(dtype),
    }


# A squared loss at a fixed θ: the contribution (y − x·θ) x has a norm in closed form.

THETA = np.array([0.5, -1.0, 2.0])


def contributions(records):
    x = jnp.asarray(records["x"])
    return (records["y"] - x @ THETA.astype(x.dtype))[:, None] * x


def fused(records, clip, mask, *, shrink=1.0, careful=True, own_norms=None):
    x = jnp.asarray(records["x"])
    residual = records["y"] - x @ THETA.astype(x.dtype)
    norms = jnp.abs(residual.astype(float)) * jnp.linalg.norm(x.astype(float), axis=1)
    norms = shrink * (norms if own_norms is None else own_norms(norms))

    def weighted_sum(weights):
        if not careful:
            return (weights * residual) @ x
        heavy = weights > 0
        return jnp.where(heavy, weights * residual, 0.0) @ jnp.where(heavy[:, None], x, 0.0)

    return clip_sum(norms, clip, mask, weighted_sum)


def test_a_bounded_is_not_made_by_its_constructor():
    with pytest.raises(TypeError, match="clip_units"):
        Bounded()
    with pytest.raises(TypeError):
        Bounded(np.zeros(3), 1.0)  # type: ignore[call-arg]


def test_a_bounded_survives_jit_and_flattening():
    bounded = clip_units({"a": jnp.ones((2, 3))}, 1.0, nonnegative=True)
    leaves, treedef = jax.tree.flatten(bounded)
    for again in (jax.tree.unflatten(treedef, leaves), jax.jit(lambda same: same)(bounded)):
        assert isinstance(again, Bounded)
        assert again.nonnegative is True
        assert float(again.clip) == 1.0
        assert np.array_equal(value(again), value(bounded))


def test_clip_units_needs_an_array():
    with pytest.raises(ValueError, match="give at least one"):
        clip_units({}, 1.0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("nonnegative", [False, True])
@given(units=rows, other=st.lists(anything, min_size=WIDTH, max_size=WIDTH), clip=st.floats(0.1, 9))
def test_no_unit_moves_the_sum_by_more_than_declared(dtype, nonnegative, units, other, clip):
    units = np.array(units, dtype)
    changed = units.copy()
    changed[0] = other
    without = np.ones(UNITS)
    without[0] = 0.0
    whole = clip_jit(units, clip, nonnegative=nonnegative)
    absent = clip_jit(units, clip, without, nonnegative=nonnegative)
    replaced = clip_jit(changed, clip, nonnegative=nonnegative)
    rounding = UNITS * clip * np.finfo(dtype).eps
    for one, two, adjacency in (
        (whole, absent, "add-or-remove-one"),
        (replaced, absent, "add-or-remove-one"),
        (whole, replaced, "replace-one"),
    ):
        moved = np.linalg.norm(value(one) - value(two))
        assert np.isfinite(moved)
        assert moved <= float(whole.sensitivity(adjacency)) + rounding


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e200])
def test_a_unit_that_cannot_be_clipped_contributes_nothing(bad):
    units = np.ones((3, 2), np.float32)
    with np.errstate(over="ignore"):
        units[1, 0] = bad
    found, rest = clip_units(units, 1.0), clip_units(units[[0, 2]], 1.0)
    assert np.allclose(value(found), value(rest))
    weights = clip_weights(jnp.array([1.0, bad if bad < 1e100 else np.inf]), 0.5, jnp.ones(2))
    assert np.asarray(weights)[1] == 0.0


def test_what_is_short_is_not_stretched_and_a_zero_stays_zero():
    units = np.array([[0.3, 0.4], [0.0, 0.0], [30.0, 40.0]])
    found = value(clip_units(units, 1.0))
    assert np.allclose(found, [0.3 + 0.6, 0.4 + 0.8], rtol=2e-6)
    assert np.all(np.asarray(clip_weights(jnp.zeros(2), 1.0, jnp.array([1.0, 0.0]))) == [1, 0])


@given(size=st.floats(1e-30, 1e30), clip=st.floats(1e-3, 1e3), dtype=st.sampled_from("fd"))
def test_a_clipped_norm_stays_below_the_clip_in_either_precision(size, clip, dtype):
    unit = (size * np.array([[3.0, -1.0, 7.0]])).astype(dtype)
    assert np.linalg.norm(value(clip_jit(unit, clip))) <= clip


def test_the_norm_is_taken_over_all_leaves_together():
    tree = {"a": np.full((1, 2, 2), 5.0), "b": np.full((1,), 5.0), "c": np.zeros((1, 0))}
    found = clip_units(tree, 2.0)
    assert found.value["a"].shape == (2, 2)
    assert found.value["b"].shape == ()
    assert found.value["c"].shape == (0,)
    assert np.isclose(np.linalg.norm(value(found)), 2.0, rtol=2e-6)


def test_nonnegative_units_are_at_most_root_two_apart():
    axes = np.eye(2) * 100.0
    first, second = (value(clip_units(axes[i : i + 1], 1.0, nonnegative=True)) for i in (0, 1))
    moved = np.linalg.norm(first - second)
    bounded = clip_units(-axes, 1.0, nonnegative=True)
    assert np.all(value(bounded) == 0.0)
    assert 0.999 * np.sqrt(2.0) < moved <= float(bounded.sensitivity("replace-one"))
    signed = clip_units(axes, 1.0)
    assert float(signed.sensitivity("replace-one")) == 2.0
    assert float(signed.sensitivity("add-or-remove-one")) == 1.0


def test_parts_of_a_data_set_add_up_to_the_whole():
    units = data(10)["x"]
    mask = np.arange(10) < 4
    parts = [clip_units(units, 0.7, which) for which in (mask, ~mask)]
    both = add_disjoint(*parts)
    assert np.allclose(value(both), value(clip_units(units, 0.7)))
    assert float(both.clip) == 0.7
    assert both.nonnegative is False
    positive = clip_units(units, 0.7, nonnegative=True)
    assert add_disjoint(positive, positive).nonnegative is True
    assert add_disjoint(positive, parts[0]).nonnegative is False


def test_parts_that_were_clipped_differently_have_the_larger_clip():
    small, large = clip_units(np.ones((1, 2)), 0.1), clip_units(np.ones((1, 2)), 10.0)
    assert float(add_disjoint(small, large).clip) == 10.0
    assert float(add_disjoint(large, small).clip) == 10.0


@pytest.mark.parametrize("bound", [np.full(3, 10.0), np.full(3, np.inf), np.full(3, np.nan)])
def test_a_norm_bound_only_ever_shrinks_a_contribution(bound):
    units = np.array([[3.0, 4.0], [0.0, 1.0], [20.0, 0.0]])
    found = clip_units(units, 1.0, norm_bound=bound)
    weights = np.where(np.isnan(bound), [0.2, 1.0, 0.05], np.minimum(0.1, 1 / bound))
    weights = np.minimum(weights, [0.2, 1.0, 0.05])
    assert np.allclose(value(found), weights @ units, rtol=2e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_closed_form_passes_the_clipping_suite(dtype):
    tolerance = 1e-5 if dtype == "float32" else None  # sums are float64, contributions are not
    check_clipping(fused, contributions, data(dtype=dtype), clip=0.5, tolerance=tolerance)


def test_clip_units_passes_the_clipping_suite_with_nonnegative_units():
    def clipped(records, clip, mask):
        return clip_units({"x": records["x"]}, clip, mask, nonnegative=True)

    check_clipping(clipped, lambda records: {"x": records["x"]}, data())


def test_a_norm_bound_that_no_unit_reaches_is_reported():
    def bound(records):
        return 2.0 * jnp.linalg.norm(contributions(records), axis=1)

    def clipped(records, clip, mask):
        return fused(records, clip, mask, own_norms=lambda norms: 2.0 * norms)

    with pytest.raises(AssertionError, match=r"reach: .* noise is added for a norm that never"):
        check_clipping(clipped, contributions, data(), norm_bound=bound)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"shrink": 0.5}, "agreement"),
        ({"shrink": 1.5}, "agreement"),
        ({"careful": False}, "not finite"),
    ],
)
def test_a_wrong_closed_form_is_caught(options, said):
    def clipped(records, clip, mask):
        return fused(records, clip, mask, **options)

    with pytest.raises(AssertionError, match=said):
        check_clipping(clipped, contributions, data())


def test_norms_that_are_wrong_for_large_units_only_are_caught_by_the_search():
    def clipped(records, clip, mask):
        return fused(records, clip, mask, own_norms=lambda n: jnp.where(n < 1e30, n % 1e4, n))

    with pytest.raises(AssertionError, match=r"sensitivity: unit 0 replaced by .* moves the sum"):
        check_clipping(clipped, contributions, data())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_size_of_number_escapes_the_clip(dtype):
    """Also where 1/x is denormal and a compiler makes 0 of it."""
    top = float(np.log10(np.finfo(dtype).max))
    sizes = [*np.logspace(-30, top - 1e-3, 400), 8.6e37, np.finfo(dtype).max / 4]
    clipped = jax.jit(lambda rows: clip_units(rows, 1.0).value)
    for size in sizes:
        rows = np.array([[size, 1.0, 1.0]], dtype)
        assert np.linalg.norm(np.asarray(clipped(rows), np.float64)) <= 1.0, size


def shares(records, clip, mask, *, least=None):
    """Each unit contributes its x, of which no number may be negative."""
    x = jnp.asarray(records["x"])

    def weighted_sum(weights):
        return weights @ jnp.where(weights[:, None] > 0, x, 0.0)

    own = jnp.min(x, axis=1) if least is None else least(x)
    return clip_sum(jnp.linalg.norm(x.astype(float), axis=1), clip, mask, weighted_sum, least=own)


def test_a_closed_form_of_what_is_not_negative_keeps_the_smaller_sensitivity():
    records = {"x": np.abs(data()["x"])}
    found = shares(records, 0.5, np.ones(12))
    assert found.nonnegative
    assert float(found.sensitivity("replace-one")) == pytest.approx(0.5 * np.sqrt(2))
    check_clipping(shares, lambda r: jnp.asarray(r["x"]), records, clip=0.5)


def test_a_unit_with_a_negative_number_contributes_nothing():
    x = np.array([[1.0, 2.0], [3.0, -1e-9], [np.nan, 1.0], [0.0, 0.0]])
    found = shares({"x": x}, 100.0, np.ones(4))
    assert np.array_equal(value(found), [1.0, 2.0])


def test_a_least_that_does_not_look_is_found_out():
    records = {"x": np.abs(data()["x"])}

    def blind(records, clip, mask):
        return shares(records, clip, mask, least=lambda x: jnp.zeros(len(x)))

    with pytest.raises(AssertionError, match="sensitivity"):
        check_clipping(blind, lambda r: jnp.asarray(r["x"]), records, clip=0.5)


def test_filled_moments_have_the_norm_of_the_clip_and_never_more():
    """Rows from where squares vanish to where no norm is trusted; nobody's is above C."""
    rng = np.random.default_rng(3)
    for size, there in (
        (0.0, 0),
        (1e-170, 0),
        (1e-90, 1),
        (1.0, 1),
        (1e7, 1),
        (1e9, 0),
        (1e300, 0),
    ):
        row = size * rng.choice([-1.0, 1.0], (1, 5))
        found = clip_moments(jnp.asarray(row), jnp.asarray(0.7), jnp.ones(1), filled=True)
        assert np.linalg.norm(found.value) == pytest.approx(0.7 * there, rel=1e-5)
        assert np.linalg.norm(found.value) <= 0.7
    row = jnp.asarray([[np.nan, 1.0], [np.inf, 1.0]])
    assert not np.any(clip_moments(row, jnp.asarray(1.0), jnp.ones(2), filled=True).value)


@pytest.mark.parametrize("size", [1e-20, 1e-22, 1e-30])
def test_a_tiny_clip_binds_where_squares_are_below_single_precision(size):
    rows = np.full((1, 4), size, np.float32)
    clip = 1e-3 * size
    found = np.asarray(jax.jit(lambda rows: clip_units(rows, clip).value)(rows))
    assert 0.99 * clip <= np.linalg.norm(found) <= clip


# Rounding of sums ------------------------------------------------------------------------------


def additions(jaxpr) -> int:
    """Additions that one term may take part in: lengths of products and loops, all added up."""
    total = 0
    for equation in jaxpr.eqns:
        inner = equation.params.get("jaxpr")
        if equation.primitive.name == "dot_general":
            (first, _), _ = equation.params["dimension_numbers"]
            total += int(np.prod([equation.invars[0].aval.shape[axis] for axis in first]))
        elif equation.primitive.name == "scan":
            own = additions(inner.jaxpr)
            total += own + equation.params["length"] if own else 0
        elif inner is not None:
            total += additions(getattr(inner, "jaxpr", inner))
    return total


@pytest.mark.parametrize("places", [1, 7, 600])
def test_rows_of_a_unit_are_not_more_additions_than_are_charged(places):
    """E is charged for `LEAST_UNITS` units or more; persons may have many times as many rows."""
    shape = jax.ShapeDtypeStruct((1_000, places, 2), jnp.float64)
    weights = jax.ShapeDtypeStruct((1_000, places), jnp.float64)
    traced = jax.make_jaxpr(lambda rows, there: clip_moments(rows, 1.0, there).value)(
        shape, weights
    )
    assert 0 < additions(traced.jaxpr) <= module.LEAST_UNITS
    assert additions(jax.make_jaxpr(lambda rows: rows.T @ rows)(jnp.ones((600_000, 2))).jaxpr) == (
        600_000
    ), "the count sees a long sum"


def test_blocks_of_rows_are_the_same_sum(monkeypatch):
    rng = np.random.default_rng(5)
    rows, there = rng.normal(size=(40, 9, 3)), (rng.random((40, 9)) < 0.7).astype(float)
    whole = clip_moments(jnp.asarray(rows), 2.0, jnp.asarray(there)).value
    monkeypatch.setattr(module, "BLOCK_ROWS", 50)
    blocks = clip_moments(jnp.asarray(rows), 2.0, jnp.asarray(there)).value
    np.testing.assert_allclose(blocks, whole, rtol=1e-13)
    monkeypatch.setattr(module, "MOST_ROWS", 359)
    with pytest.raises(DataError, match="360 rows"):
        clip_moments(jnp.asarray(rows), 2.0, jnp.asarray(there))


@pytest.mark.parametrize("count", [1_000, 65_536])
def test_sums_in_any_order_differ_by_no_more_than_is_charged(count):
    """Terms of alternating size and of one sign, in orders that err the most: ≤ E, and not by far.

    Every order is a float64 sum of the same clipped contributions; E bounds their distance from the
    exact sum, and 2E that of two of them.
    """
    rng = np.random.default_rng(count)
    clip = 0.7
    lattice = Lattice(numbers=1, bits=20, units=count)
    bound = lattice.rounding(clip) / 2.0
    units = np.where(rng.random(count) < 0.5, clip, clip * rng.random(count) ** 8)
    worst = 0.0
    for terms in (units, units * rng.choice([-1.0, 1.0], count), np.full(count, clip / 3)):
        exact = math.fsum(terms)
        orders = (terms, np.sort(terms), np.sort(terms)[::-1], rng.permutation(terms))
        sums = [float(np.add.accumulate(order)[-1]) for order in orders]  # one by one
        sums += [float(np.sum(order)) for order in orders]  # in pairs
        sums += [float(jnp.sum(jnp.asarray(order))) for order in orders]
        sums += [float(jnp.ones(count) @ jnp.asarray(order)) for order in orders]
        worst = max(worst, *(abs(one - exact) for one in sums))
    assert 0 < worst <= bound
    single = abs(float(np.add.accumulate(units.astype(np.float32))[-1]) - math.fsum(units))
    assert single > bound, "a float32 sum is further away than the bound"
