"""Clipped gradients: closed forms agree with one gradient a unit, and no unit moves a sum too far.

A contribution has the coordinates that `maps` names. The closed forms know its norm without writing
it down; `fast=False` writes it down.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.expfam import MeanFieldGaussian
from tacit.methods.dpsgd.clipping import clipped_gradient
from tacit.methods.private import by_unit
from tacit.models import (
    LinearRegression,
    LogisticRegression,
    NeuralNetwork,
    SoftmaxRegression,
)

MODELS = {
    "logistic": LogisticRegression(("a", "b", "c"), prior_sd=1.0),
    "linear": LinearRegression(("a", "b", "c"), prior_sd=1.0),
    "softmax": SoftmaxRegression(("a", "b"), levels=("u", "v", "w"), prior_sd=1.0),
    "network": NeuralNetwork(("a", "b"), hidden=3),
    "network, gaussian": NeuralNetwork(("a", "b"), hidden=3, output="gaussian"),
}
UNITS = 6
ROUNDING = 1e-12


def columns(model):
    return len(model.inputs) if isinstance(model, NeuralNetwork) else len(model.layout)


def records_of(model, count=UNITS, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.normal(size=count)
    if model.output == "bernoulli":
        y = (y > 0).astype(float)
    elif model.output == "categorical":
        y = np.arange(count) % 3.0
    return {"x": rng.normal(size=(count, columns(model))), "y": y}


@functools.cache
def point(model, seed=0):
    """q and the shared draw; q is narrow enough for the quadrature to be exact to 1e-8."""
    rng = np.random.default_rng([seed, model.dimension])
    d = model.dimension
    free = {"location": 0.7 * rng.normal(size=d), "scale": -1.5 + 0.2 * rng.normal(size=d)}
    return free, rng.normal(size=d)


def maps_of(model, names, alpha="one"):
    rng = np.random.default_rng(5)
    d = model.dimension
    every = {
        "location": np.ones(d) if alpha == "one" else rng.uniform(0.1, 1.5, d),
        "scale": rng.uniform(2.0, 20.0, d),
        "information": np.asarray(3.0),
    }
    return {name: every[name] for name in ("location", *names)}


def clipped(model, maps, records, weights, clip, **how):
    free, noise = point(model)
    records = {name: jnp.asarray(value) for name, value in records.items()}
    return clipped_gradient(
        model, MeanFieldGaussian(model.dimension), free, noise, records, jnp.asarray(weights),
        jnp.asarray(clip), maps, **how,
    )  # fmt: skip


def flat(value):
    return np.concatenate([np.ravel(np.asarray(leaf, float)) for leaf in jax.tree.leaves(value)])


AGREE = [
    ("logistic", ("scale", "information"), True),
    ("logistic", ("information",), False),
    ("linear", ("scale", "information"), False),
    ("softmax", ("scale", "information"), True),
    ("network", (), True),
    ("network", ("scale",), True),
    ("network", ("scale", "information"), True),
    ("network", ("information",), False),
    ("network, gaussian", ("information",), False),
]


@pytest.mark.parametrize(("name", "names", "agnostic"), AGREE)
def test_a_closed_form_is_one_gradient_a_unit(name, names, agnostic):
    model = MODELS[name]
    maps = maps_of(model, names, "any")
    mask = np.array([1.0, 1.0, 0.0, 1.0, 1.0, 1.0])

    @jax.jit
    def both(clip):
        how = {"label_agnostic": agnostic}
        records = records_of(model)
        return [
            clipped(model, maps, records, mask, clip, fast=fast, **how).value
            for fast in (True, False)
        ]

    for clip in (0.3, 3.0, 1e9):
        quick, slow = both(clip)
        assert set(quick) == set(slow) == set(maps)
        np.testing.assert_allclose(flat(quick), flat(slow), rtol=1e-6, atol=1e-6 * min(clip, 1.0))


CLIP = 1.5
ADVERSARIAL = {
    "logistic": ("logistic", ("information",), True),
    "logistic, each coordinate": ("logistic", ("scale",), True),
    "softmax": ("softmax", ("scale", "information"), True),
    "network": ("network", ("information",), True),
    "network, both": ("network", ("scale", "information"), True),
    "network, gaussian": ("network, gaussian", ("information",), False),
}


@functools.cache
def sums(case):
    """(three records) -> the sum over all, over all but the first, over all but the second."""
    name, names, agnostic = ADVERSARIAL[case]
    model = MODELS[name]
    # Weights α below one: what is released besides the gradient must not escape the bound.
    maps = maps_of(model, names, "any")

    @jax.jit
    def three(x, y):
        def over(weights):
            how = {"label_agnostic": agnostic}
            return clipped(model, maps, {"x": x, "y": y}, weights, CLIP, **how).value

        return jax.vmap(over)(jnp.array([[1.0, 1.0, 1.0], [0.0, 1.0, 1.0], [1.0, 0.0, 1.0]]))

    return model, three


extreme = [0.0, 1e6, -1e6, 1e30, 1e200, np.inf, -np.inf, np.nan]
number = st.one_of(st.floats(-3.0, 3.0), st.floats(-1e6, 1e6), st.sampled_from(extreme))


@pytest.mark.parametrize("case", ADVERSARIAL)
@given(data=st.data())
def test_no_record_moves_the_sum_further_than_the_clip(case, data):
    model, three = sums(case)
    width = columns(model)
    row = st.lists(number, min_size=width, max_size=width)
    labels = {"bernoulli": [0.0, 1.0], "categorical": [0.0, 1.0, 2.0, 7.0]}
    known = labels.get(model.output)
    label = number if known is None else st.sampled_from(known)
    x = np.array([data.draw(row) for _ in range(3)])
    y = np.array([data.draw(label) for _ in range(3)])
    found = [flat(jax.tree.map(lambda leaf, i=i: leaf[i], three(x, y))) for i in range(3)]
    whole, first, second = found
    assert np.all(np.isfinite(found)), "what is no number contributes nothing"
    for gone in (first, second):
        assert np.linalg.norm(whole - gone) <= CLIP * (1.0 + ROUNDING)
    # The data sets without the first and without the second differ by a substitution.
    assert np.linalg.norm(first - second) <= 2.0 * CLIP * (1.0 + ROUNDING)


def moves(name, maps, one, other):
    """How far the sum moves when one record goes, another takes its place, or that one goes."""
    model = MODELS[name]
    rest = records_of(model)

    @jax.jit
    def summed(x, y, weights):
        return clipped(model, maps, {"x": x, "y": y}, weights, CLIP).value

    def total(first, weights):
        x, y = rest["x"].copy(), rest["y"].copy()
        x[0], y[0] = first
        return flat(summed(x, y, weights))

    every, without = np.ones(UNITS), np.append(0.0, np.ones(UNITS - 1))
    return (
        np.linalg.norm(total(one, every) - total(one, without)),
        np.linalg.norm(total(one, every) - total(other, every)),
        np.linalg.norm(total(other, every) - total(other, without)),
    )


@pytest.mark.parametrize("name", ["logistic", "network"])
def test_the_worst_record_reaches_the_clip(name):
    """A bound that nobody reaches would be noise for nothing."""
    model = MODELS[name]
    # The first stays away from q's mean, where the two labels pull alike.
    direction = np.ones(columns(model))
    if name == "logistic":
        location = point(model)[0]["location"]
        direction = direction - location * (direction @ location) / (location @ location)
    gone, replaced, _ = moves(
        name, maps_of(model, ()), (4.0 * direction, 1.0), (4.0 * direction, 0.0)
    )
    assert gone <= CLIP
    if name == "logistic":
        assert gone >= 0.99 * CLIP
        assert 2.0 * 0.99 * CLIP <= replaced <= 2.0 * CLIP
    with_information = maps_of(model, ("information",))
    # Label-agnostic weights are small for the label that is believed: take the other one.
    far = 9.0 * direction
    reached = moves(name, with_information, (far, 1.0), (far, 0.0))
    assert 0.99 * CLIP <= max(reached[0], reached[2]) <= CLIP


def unit_weights(model, maps, records, labels=(0.0, 1.0), **how):
    """The weight of each label, from a record's part of the sum with and without a clip."""

    @jax.jit
    def part(y, clip):
        record = {"x": records["x"], "y": y}
        return clipped(model, maps, record, np.ones(1), clip, **how).value["location"]

    found = []
    for label in labels:
        small, large = (np.asarray(part(np.array([label]), clip)) for clip in (0.05, 1e9))
        at = np.argmax(np.abs(large))
        found.append(small[at] / large[at])
    return found


@pytest.mark.parametrize(
    ("name", "names", "fast"),
    [
        ("logistic", ("scale", "information"), True),
        ("logistic", ("scale", "information"), False),
        ("softmax", ("scale", "information"), True),
        ("network", ("information",), True),
        ("network", ("information",), False),
    ],
)
def test_the_label_agnostic_weight_does_not_know_the_label(name, names, fast):
    model = MODELS[name]
    maps, record = maps_of(model, names), records_of(model, 1, seed=3)
    labels = (0.0, 1.0, 2.0) if model.output == "categorical" else (0.0, 1.0)
    knows_not = unit_weights(model, maps, record, labels, label_agnostic=True, fast=fast)
    knows = unit_weights(model, maps, record, labels, label_agnostic=False, fast=fast)
    np.testing.assert_allclose(knows_not, knows_not[0], rtol=1e-9)
    assert np.ptp(knows) > 0.05 * max(knows), "an ordinary clip does know it"
    assert knows_not[0] == pytest.approx(min(knows), rel=1e-9), "as at the worse label, not below"


@pytest.mark.parametrize(("name", "agnostic"), [("logistic", True), ("network", False)])
def test_a_person_is_one_contribution_however_many_records(name, agnostic):
    model = MODELS[name]
    maps = maps_of(model, ("information",))
    rng = np.random.default_rng(2)
    rest, most = records_of(model, 3), 4

    @jax.jit
    def summed(records, weights):
        return clipped(model, maps, records, weights, CLIP, label_agnostic=agnostic).value

    def total(copies):
        """Persons 0, 1, 2 have a record each; person 7 has his so many times."""
        x = np.vstack([rest["x"], np.tile(8.0 * np.eye(columns(model))[0], (most, 1))])
        persons = np.append([0, 1, 2], np.full(most, 7))
        table = {"x": x, "y": np.append(rest["y"], np.ones(most)), "person": persons}
        order = rng.permutation(3 + most)
        arranged = by_unit("clinic", {key: v[order] for key, v in table.items()}, "person")
        assert "person" not in arranged.records
        sizes = arranged.weights.sum(axis=1)  # in the order of first appearance
        assert sorted(sizes.tolist()) == [1.0, 1.0, 1.0, most]
        # What is taken away is masked, so that all data sets have one shape.
        alone = (sizes == 1.0)[:, None]
        weights = arranged.weights * np.where(np.arange(most) < copies, 1.0, alone)
        return flat(summed(arranged.records, weights))

    without = total(0)
    for copies in (1, 2, most):
        assert 0.5 * CLIP < np.linalg.norm(total(copies) - without) <= CLIP * (1.0 + ROUNDING)


def test_a_person_with_several_levels_is_clipped_as_one_gradient_a_unit():
    """Written down in closed form, or by automatic differentiation: the same clipped sum."""
    model = MODELS["softmax"]
    maps, table = maps_of(model, ("scale", "information"), "any"), records_of(model, 5)
    persons = by_unit("clinic", table | {"person": np.array([0, 1, 0, 2, 0])}, "person")

    @jax.jit
    def both(records, weights):
        how = [clipped(model, maps, records, weights, 0.4, fast=fast) for fast in (True, False)]
        return [one.value for one in how]

    quick, slow = both(persons.records, persons.weights)
    np.testing.assert_allclose(flat(quick), flat(slow), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["logistic", "softmax"])
def test_a_persons_contribution_is_the_sum_of_his_records(name):
    model = MODELS[name]
    maps, table = maps_of(model, ("information",)), records_of(model, 4)
    persons = by_unit("clinic", {**table, "person": np.array([5, 5, 5, 5])}, "person")
    how = {"label_agnostic": False}
    together = jax.jit(
        lambda: clipped(model, maps, persons.records, persons.weights, 1e9, **how).value
    )()
    one_each = jax.jit(lambda: clipped(model, maps, table, np.ones(4), 1e9, **how).value)()
    np.testing.assert_allclose(flat(together), flat(one_each), rtol=1e-9)


@pytest.mark.parametrize("name", ["logistic", "network"])
def test_padding_contributes_nothing_whatever_it_holds(name):
    model = MODELS[name]
    maps, table = maps_of(model, ("information",)), records_of(model, 4)
    summed = jax.jit(lambda records, weights: clipped(model, maps, records, weights, CLIP).value)
    plain = flat(summed(table, np.ones(4)))
    for fill in (0.0, 1e6, np.inf, np.nan):
        padded = {key: np.concatenate([v, np.full_like(v[:2], fill)]) for key, v in table.items()}
        found = flat(summed(padded, np.array([1.0, 1.0, 1.0, 1.0, 0.0, 0.0])))
        np.testing.assert_allclose(found, plain, atol=ROUNDING)


@pytest.mark.parametrize("name", ["logistic", "softmax", "network"])
def test_an_empty_place_of_a_person_contributes_nothing(name):
    model = MODELS[name]
    maps, table = maps_of(model, ("information",)), records_of(model, 4)
    summed = jax.jit(
        lambda records, weights: (
            clipped(model, maps, records, weights, CLIP, label_agnostic=False).value
        )
    )
    plain = flat(summed(table, np.ones(4)))
    weights = np.array([[1.0, 0.0]] * 4 + [[0.0, 0.0]])
    for fill in (0.0, 1e6):
        person = {key: np.concatenate([v, np.full_like(v[:1], fill)]) for key, v in table.items()}
        wide = {key: np.stack([v, np.full_like(v, fill)], axis=1) for key, v in person.items()}
        np.testing.assert_allclose(flat(summed(wide, weights)), plain, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("name", "fast"),
    # One gradient a unit of several levels is compared with the closed form above.
    [(name, fast) for name in MODELS for fast in (True, False) if fast or name != "softmax"],
)
def test_no_q_that_a_server_sends_switches_the_clip_off(name, fast, dtype):
    """q comes from outside: however far it lies, a person moves the sum by the clip at most."""
    model = MODELS[name]
    records = {key: value.astype(dtype) for key, value in records_of(model, count=4).items()}
    free, noise = point(model)
    maps = {key: value.astype(dtype) for key, value in maps_of(model, ["information"]).items()}
    # Powers of two and in between, up to the last number: thresholds lie anywhere.
    reach = [1e10, 1e18, 1e19, 3e30, 8.4e37, 8.6e37, 9e37, 1.7e38, 3.3e38]
    if dtype == np.float64:
        reach += [1e100, 1e150, 8.6e307, 1.7e308]
    run = jax.jit(
        functools.partial(clipped_gradient, model, MeanFieldGaussian(model.dimension), fast=fast)
    )
    grouped = by_unit("site", records | {"person": np.array([0, 0, 1, 1])}, "person")
    for weights, each in ((np.ones(4, dtype), records), (grouped.weights, grouped.records)):
        for far in reach:
            for place in range(model.dimension):
                location = np.array(free["location"], dtype)
                location[place] = far
                at = {"location": location, "scale": np.asarray(free["scale"], dtype)}
                found = run(at, noise.astype(dtype), each, weights.astype(dtype), 1.0, maps)
                flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(found.value)])
                units = len(weights)
                assert np.linalg.norm(flat) <= units * 1.0 + ROUNDING, (far, place)


@pytest.mark.parametrize("size", [1e-19, 1e-21, 1e-25])
def test_no_square_vanishes_from_a_norm_in_closed_form(size):
    """x² is no float32 any more, the slope still is: their product may be longer than the clip."""
    model, family, clip = (
        LinearRegression(("a",), noise_sd=1e-10, prior_sd=1.0),
        MeanFieldGaussian(1),
        0.01,
    )
    free = {"location": jnp.zeros(1, jnp.float32), "scale": jnp.full(1, -1.0, jnp.float32)}
    for y in (0.01, 0.17):  # slopes of 1e18 and 1.7e19: the last whose squares are float32
        records = {"x": jnp.full((1, 1), size, jnp.float32), "y": jnp.array([y], jnp.float32)}
        found = jax.jit(
            lambda records: clipped_gradient(
                model, family, free, jnp.zeros(1), records, jnp.ones(1, jnp.float32),
                jnp.asarray(clip), {"location": jnp.ones(1)},
            )
        )(records)  # fmt: skip
        assert abs(float(found.value["location"][0])) <= clip
