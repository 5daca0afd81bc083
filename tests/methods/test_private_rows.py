"""One record reaches into its own unit only, whatever numbers it holds."""

import jax
import numpy as np
import pytest

import tacit
import tacit.plan.plan
from tacit.data.records import pooled
from tacit.engines.batching import PartyBatches
from tacit.expfam import MeanFieldGaussian
from tacit.methods.dpsgd.clipping import clipped_gradient
from tacit.methods.private import group_rows
from tacit.methods.scoring.party import score_sum
from tacit.models import LogisticRegression, SoftmaxRegression
from tacit.party.compute import padded_rows, stack_records
from tacit.privacy.sampling import chunk_length
from tacit.results.verdict import TooNarrowWarning


@pytest.mark.parametrize("bad", [np.inf, np.nan, 1e30])
def test_padding_of_a_unit_is_its_own(bad):
    x = np.arange(8.0)
    x[0] = bad
    arranged = group_rows({"x": x}, np.array([0, 1, 1, 2, 2, 2, 4, 4]), 5)
    method = tacit.methods.DPSGD(dtype="float64").bind(unit="person")
    stack, weights = stack_records([arranged], 9, method)
    poisoned = ~(np.abs(np.asarray(stack["x"][0])) < 100)
    assert poisoned[0].all()
    assert not poisoned[1:5].any(), "another unit is padded with the first record"
    assert not np.asarray(weights)[0, 5:].any()
    np.testing.assert_array_equal(arranged.records["x"][3], 0.0)


def test_persons_of_two_parties_stay_two():
    parties = {
        "north": {"y": np.zeros(3), "person": np.array([0, 1, 1])},
        "south": {"y": np.zeros(2), "person": np.array([0, 1])},
    }
    assert pooled(parties)["person"].tolist() == [0, 1, 1, 2, 3]


def test_a_private_fit_scores_no_training_records():
    cohort = tacit.datasets.load("synthetic-cohort", parties=2, records=200, seed=1)
    private = tacit.Privacy(epsilon=1.0, insecure_noise_seed=0)
    schedule = tacit.schedules.Synchronous(rounds=2)
    with pytest.warns(TooNarrowWarning, match="selected dp-sgd"):
        fit = tacit.fit(tacit.models.LogisticRegression, cohort, privacy=private, schedule=schedule)
    assert fit.metrics["training"] is None
    assert fit.metrics["held_out"] is not None


def cancelling(width, size=1.1e8, dtype=np.float32):
    """θ whose products with a record cancel: what is left depends on the order of additions."""
    theta = np.random.default_rng(1).normal(size=width)
    theta[[0, -1]] = size, -size
    return theta.astype(dtype)


@pytest.mark.full_optimisation
@pytest.mark.parametrize("kind", ["logistic", "softmax", "many levels"])
def test_a_record_counts_the_same_whatever_the_length_of_the_array(kind):
    """One record more may make the array longer, which must not change what others add."""
    rng, width = np.random.default_rng(0), 50
    x = rng.normal(size=(128, width)).astype(np.float32)
    x[:, [0, -1]] = 1.0
    y = rng.integers(0, 2, 128).astype(np.float32)
    names = tuple(f"c{place}" for place in range(width))
    model = LogisticRegression(names)
    if kind == "softmax":
        model = SoftmaxRegression(names, levels=("u", "v", "w"))
    if kind == "many levels":  # products of 17 and more columns have instructions of their own
        model = SoftmaxRegression(names, levels=tuple(f"l{place}" for place in range(20)))
    family = MeanFieldGaussian(model.dimension)
    outputs = model.dimension // width
    growing = 1.0 + np.arange(outputs)[:, None] / outputs
    free = {
        "location": (growing * cancelling(width)).astype(np.float32).reshape(-1),
        "scale": np.full(model.dimension, -8.0, np.float32),
    }
    maps = {"location": np.ones(model.dimension, np.float32)}
    still = np.zeros(model.dimension, np.float32)

    def total(x, y, weights):
        given = (model, family, free, still, {"x": x, "y": y}, weights, 1.0, maps)
        return clipped_gradient(*given).value["location"]

    assert_same_in_every_length(total, x, y)


def assert_same_in_every_length(total, x, y):
    """The sum of the first records in arrays of several lengths, padded with weight 0."""

    def summed(count, rows):
        there = (np.arange(rows) < count).astype(x.dtype)
        places = np.where(there > 0, np.arange(rows), 0)
        return np.asarray(jax.jit(jax.vmap(total))(x[None, places], y[None, places], there[None]))

    for count in (32, 46, 64, 91):  # ends of blocks, and of a ladder by factors of √2
        lengths = {padded_rows(count), padded_rows(count + 1), 128}
        found = [summed(count, rows) for rows in lengths]
        assert np.linalg.norm(found[0]) > 1.0
        for one in found[1:]:
            # The sum itself may round differently, which is charged.
            np.testing.assert_allclose(one, found[0], rtol=0, atol=1e-12)


@pytest.mark.full_optimisation
def test_a_score_counts_the_same_whatever_the_length_of_the_array():
    """As above for private scoring, whose records are float64."""
    rng, width, levels = np.random.default_rng(0), 50, ("u", "v", "w")
    x = rng.normal(size=(128, width))
    x[:, [0, -1]] = 1.0
    y = rng.integers(0, len(levels), 128).astype(float)
    model = SoftmaxRegression(tuple(f"c{place}" for place in range(width)), levels=levels)
    point = cancelling(width, 1.1e15, np.float64)
    point = np.concatenate([(1.0 + 0.3 * level) * point for level in range(len(levels))])
    bend = rng.normal(size=(4, width))
    steered = {"centre": np.zeros(width), "scale": np.ones(width), "bend": 0.1 * bend}

    def total(x, y, weights):
        likelihood, records = model.score_likelihood(), {"x": x, "y": y}
        return score_sum(
            likelihood, records, weights, 1.0, **steered, point=point, reach=np.asarray(1.0)
        ).value

    assert_same_in_every_length(total, x, y)


@pytest.mark.parametrize(
    "terms", [{"adjacency": "add-or-remove-one"}, {"unit": "person"}, {}], ids=str
)
def test_arrays_are_whole_blocks_where_their_length_is_secret(terms):
    rng = np.random.default_rng(2)
    parties = {
        name: {
            "x": rng.normal(size=(count, 2)),
            "y": np.zeros(count),
            "person": np.arange(count) // 2,
        }
        for name, count in (("a", 46), ("b", 91), ("c", 30))
    }
    plan = tacit.plan.plan.make_plan(
        LogisticRegression(("u", "v")), parties, method=tacit.methods.DPSGD(),
        privacy=tacit.Privacy(noise_multiplier=1.0, delta=1e-4, **terms),
    )  # fmt: skip
    batches = PartyBatches(plan.agreement, plan.settled)
    batches.add(plan.parties, batch_parties=True, all_at_once=True)
    lengths = {batches._batch_of[name].weights.shape[1] for name in parties}
    assert all(length % 64 == 0 for length in lengths) == bool(terms)
    for rate, units in ((0.01, 4096), (0.5, 128), (0.9, 64)):
        assert chunk_length(rate, units) % 64 == 0
