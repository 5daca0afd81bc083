"""No size of a record or of q takes a contribution past its clip, in single precision or double.

A closed-form norm multiplies squares: x² of a large number with w² of a small one. If either
leaves the range of its type, the norm says less than the sum holds. A grid of sizes over the whole
range is searched for a record that moves the sum, before noise, by more than what is charged.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.expfam import FullGaussian, MeanFieldGaussian
from tacit.methods.dpsgd.clipping import clipped_gradient
from tacit.models import (
    LinearRegression,
    LogisticRegression,
    NeuralNetwork,
    PoissonRegression,
    SoftmaxRegression,
)
from tacit.models.belief.model import BeliefNetwork
from tacit.privacy.bounded import clip_sum

CLIP = 1.0
SLACK = 1e-12
SIZES = {
    "float32": [0.0, 1e-45, 1e-38, 1e-30, 1e-23, 1.05e-19, 1e-8, 1.0, 1e8, 1e15, 1e17, 1e19,
                1.8e19, 1e23, 1e30, 1e38, 3e38],
    "float64": [0.0, 5e-324, 1e-308, 1e-200, 1e-170, 1e-100, 1e-8, 1.0, 1e8, 1e15, 1e100, 1e150,
                1e154, 1e200, 1e300, 1.7e308],
}  # fmt: skip
MODELS = {
    "network": NeuralNetwork(("a", "b"), hidden=3),
    "network, gaussian": NeuralNetwork(("a", "b"), hidden=3, output="gaussian"),
    "logistic": LogisticRegression(("a", "b"), prior_sd=1.0),
    "linear": LinearRegression(("a", "b"), prior_sd=1.0),
    "poisson": PoissonRegression(("a", "b"), max_count=20.0, prior_sd=1.0),
    "softmax": SoftmaxRegression(("a", "b"), levels=("u", "v", "w"), prior_sd=1.0),
}
MAPS = {"location": (), "information": ("information",), "scale": ("scale", "information")}


def flat(value):
    return np.concatenate([np.ravel(np.asarray(leaf, float)) for leaf in jax.tree.leaves(value)])


def width(model):
    return len(model.inputs) if isinstance(model, NeuralNetwork) else len(model.layout)


def locations(model, sizes, dtype, rng):
    """q's mean: for a network every pair of sizes of its two layers, otherwise one size."""
    sign = np.where(rng.random(model.dimension) < 0.7, 1.0, -1.0)
    if not isinstance(model, NeuralNetwork):
        return np.stack([size * sign for size in sizes]).astype(dtype)
    split = len(model.inputs) * model.hidden
    found = []
    for inner, outer in itertools.product(sizes, sizes):
        place = np.zeros(model.dimension)
        place[:split], place[split : split + model.hidden] = inner, 1e-3
        place[split + model.hidden : -1] = outer
        found.append(place * sign)
    return np.stack(found).astype(dtype)


@functools.cache
def sums(model, names, dtype, agnostic):
    """(locations, x, y) → the sums over the one record, for each row of each."""
    d, family = model.dimension, MeanFieldGaussian(model.dimension)
    maps = {"location": np.ones(d, dtype), "scale": np.full(d, 2.0, dtype)}
    maps["information"] = np.asarray(3.0, dtype)
    maps = {name: maps[name] for name in ("location", *names)}

    def one(location, x, y):
        free = {"location": location, "scale": jnp.full(d, -80.0, dtype)}
        return clipped_gradient(
            model, family, free, jnp.ones(d, dtype), {"x": x[None], "y": y[None]},
            jnp.ones(1, dtype), jnp.asarray(CLIP), maps, label_agnostic=agnostic,
        ).value  # fmt: skip

    every = jax.vmap(jax.vmap(one, in_axes=(None, 0, 0)), in_axes=(0, None, None))
    return jax.jit(every)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("names", MAPS)
@pytest.mark.parametrize("kind", MODELS)
def test_no_size_of_record_or_q_escapes_the_clip(kind, names, dtype):
    model, sizes, rng = MODELS[kind], SIZES[dtype], np.random.default_rng(0)
    ways = np.array([[1.0, 1.0], [-1.0, 1.0], [1.0, 0.0]])[:, : width(model)]
    x = np.concatenate([size * ways for size in sizes]).astype(dtype)
    labels = [0.0, 1.0] if model.output != "gaussian" else [0.0, 1.0, 1e30, -1e38]
    at = locations(model, sizes, dtype, rng)
    for agnostic in (True, False):
        by_label = [
            sums(model, MAPS[names], dtype, agnostic)(at, x, np.full(len(x), label, dtype))
            for label in labels
        ]
        rows = [
            np.concatenate([np.asarray(leaf, float).reshape(len(at), len(x), -1)
                            for leaf in jax.tree.leaves(one)], axis=-1)
            for one in by_label
        ]  # fmt: skip
        for label, one in zip(labels, rows, strict=True):
            norms = np.linalg.norm(one, axis=-1)
            worst = np.unravel_index(np.argmax(norms), norms.shape)
            assert np.all(np.isfinite(norms)), "what is no number contributes nothing"
            assert norms.max() <= CLIP + SLACK, (label, agnostic, at[worst[0]], x[worst[1]])
        # A label flipped and, for the same q, any record in place of any other.
        assert np.linalg.norm(rows[0] - rows[1], axis=-1).max() <= 2.0 * CLIP + SLACK


def test_a_wide_network_far_from_its_records_is_clipped():
    """100 columns and 400 hidden units, w₂² below what single precision holds."""
    model = NeuralNetwork(tuple(f"c{i}" for i in range(100)), hidden=400)
    split = len(model.inputs) * model.hidden
    location = np.zeros(model.dimension)
    location[split : split + 400], location[split + 400 : -1] = 1e-3, 1.05e-19
    scores = sums(model, (), "float32", True)
    x = np.full((1, 100), 1.8e18, "float32")
    moved = [flat(scores(location[None].astype("float32"), x, np.array([y], "float32")))
             for y in (0.0, 1.0)]  # fmt: skip
    assert np.linalg.norm(moved[0] - moved[1]) <= 2.0 * CLIP
    assert np.linalg.norm(moved[0] - moved[1]) > 0.5 * CLIP, "the record is not left out"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("label", [-3.0, 0.5, 40.0, 1e20])
def test_a_label_that_is_neither_0_nor_1_is_clipped_by_its_own_gradient(label, dtype):
    model = MODELS["network"]
    at = 0.3 * np.ones((1, model.dimension), dtype)
    found = sums(model, ("information",), dtype, True)(
        at, np.ones((1, 2), dtype), np.array([label], dtype)
    )
    assert np.linalg.norm(flat(found)) <= CLIP + SLACK


@pytest.mark.parametrize("family", [FullGaussian(2), MeanFieldGaussian(2)])
@pytest.mark.parametrize("kind", ["logistic", "linear"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_size_escapes_the_clip_of_expected_statistics(kind, family, dtype):
    model, sizes = MODELS[kind], SIZES[dtype]
    full = isinstance(family, FullGaussian)

    def one(mean, x, y):
        precision = np.eye(2) if full else np.ones(2)
        q = {"linear": mean, "quadratic": jnp.asarray(-0.5 * precision)}
        found = model.statistics(family, q, {"x": x[None], "y": y[None]}, jnp.ones(1, dtype))
        assert found is not None
        return clip_sum(found.norms(), jnp.asarray(CLIP), jnp.ones(1), found.total).value

    every = jax.jit(jax.vmap(jax.vmap(one, in_axes=(None, 0, 0)), in_axes=(0, None, None)))
    ways = np.array([[1.0, 1.0], [-1.0, 1.0]])
    x = np.concatenate([size * ways for size in sizes]).astype(dtype)
    means = np.stack([size * np.array([1.0, -1.0]) for size in sizes])
    for label in (0.0, 1.0):
        found = every(means, x, np.full(len(x), label, dtype))
        shaped = [np.asarray(leaf).reshape(len(means), len(x), -1) for leaf in found.values()]
        norms = np.linalg.norm(np.concatenate(shaped, axis=-1), axis=-1)
        assert np.nanmax(norms) <= CLIP + SLACK
        assert np.all(np.isfinite(norms)), "what is no number contributes nothing"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_q_escapes_the_clip_of_a_belief_network(dtype):
    model = BeliefNetwork(3, hidden=2)
    family = MeanFieldGaussian(model.dimension)
    rng = np.random.default_rng(1)
    ways = np.where(rng.random((4, model.dimension)) < 0.5, 1.0, -1.0)
    pairs = itertools.product([s for s in SIZES[dtype] if s < 1e150], [1e-8, 1.0, 1e8, 1e15])
    q = [
        {"linear": way * size * precision, "quadratic": np.full(model.dimension, -0.5 * precision)}
        for size, precision in pairs
        for way in ways
    ]
    x = np.array(list(itertools.product([0.0, 1.0], repeat=3)), dtype)

    def one(q, x):
        found = model.statistics(family, q, {"x": x[None]}, jnp.ones(1, dtype))
        assert found is not None
        return clip_sum(found.norms(), jnp.asarray(CLIP), jnp.ones(1), found.total).value

    stacked = {name: np.stack([each[name] for each in q]) for name in q[0]}
    found = jax.jit(jax.vmap(jax.vmap(one, in_axes=(None, 0)), in_axes=(0, None)))(stacked, x)
    shaped = np.concatenate([np.asarray(leaf) for leaf in found.values()], axis=-1)
    norms = np.linalg.norm(shaped, axis=-1)
    assert np.all(np.isfinite(norms)), "what is no number contributes nothing"
    assert norms.max() <= CLIP + SLACK
    assert norms.max() > 0.3 * CLIP


def test_norms_in_single_precision_are_refused():
    with pytest.raises(TypeError, match="norms are float32; compute them in float64"):
        clip_sum(jnp.ones(3, jnp.float32), jnp.asarray(1.0), jnp.ones(3), lambda w: w)
