"""One record reaches into its own unit only, whatever numbers it holds."""

from dataclasses import replace

import numpy as np
import pytest

import tacit
import tacit.plan.plan
from tacit.data.records import pooled
from tacit.data.schema.layout import INTERCEPT, Feature
from tacit.engines.batching import PartyBatches
from tacit.errors import DataError
from tacit.expfam import FullGaussian
from tacit.methods import DPSGD, PrivateScoring, PrivateStatistics, PrivateUpdate, Whitened
from tacit.methods.private import group_rows
from tacit.models import LogisticRegression, SoftmaxRegression
from tacit.party.compute import SinglePartyComputer, stack_records
from tacit.privacy.bounded import pack_symmetric
from tacit.results.cautions import TooNarrowWarning
from tacit.server.messages import Request


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


WIDTH = 50
NAMES = tuple(f"c{place}" for place in range(WIDTH))
OPEN = {"adjacency": "add-or-remove-one"}
LEVELS = {"softmax": ("u", "v", "w"), "many levels": tuple(f"l{place}" for place in range(12))}


def hostile_records(count, rng, levels=2):
    x = rng.normal(size=(count, WIDTH))
    x[:, [0, -1]] = 1.0
    return {"x": x, "y": rng.integers(0, levels, count).astype(float)}


def lengthened(records, rows):
    """Add records that contribute nothing, because they contain NaN."""
    more = {name: np.repeat(one[-1:], rows, axis=0) for name, one in records.items()}
    more["x"] = np.full_like(more["x"], np.nan)
    if "person" in records:
        more["person"] = np.full(rows, records["person"].max() + 1)
    return {name: np.concatenate([records[name], more[name]]) for name in records}


def reply(plan, records, q, public, stage_visit, engine):
    agreement = plan.agreement
    stage = plan.method.stage_at(stage_visit)
    asked = Request(
        "r", "a", stage_visit, stage_visit, q if stage.needs_q else None,
        plan.family.zero() if stage.needs_factor else None, 1.0, initial=False,
        stage=stage.name, public=public,
    )  # fmt: skip
    if engine == "one process":
        batches = PartyBatches(agreement, plan.settled)
        batches.add({"a": records, "b": records}, batch_parties=True, all_at_once=True)
        return batches.compute([asked], {}, None)["r"].released
    computer = SinglePartyComputer(agreement, "a", records, plan.settled["a"])
    return computer.compute([asked], {})["r"].released


def hostile_case(kind):
    """Return model, method, privacy settings, and the visit whose reply is compared."""
    if kind in LEVELS:
        return SoftmaxRegression(NAMES, levels=LEVELS[kind]), DPSGD(), OPEN, 0
    if kind == "each coordinate":
        return LogisticRegression(NAMES), DPSGD(precision="per-coordinate"), OPEN, 0
    if kind == "persons":
        return LogisticRegression(NAMES), DPSGD(), {"unit": "person"}, 0
    if kind == "batches":
        return LogisticRegression(NAMES), DPSGD(sampling_rate=0.5), OPEN, 0
    if kind == "shards":
        return LogisticRegression(NAMES), PrivateUpdate(shards=8), OPEN, 0
    if kind == "statistics":
        return LogisticRegression(NAMES), PrivateStatistics(), OPEN, 0
    if kind == "statistics of persons":
        return LogisticRegression(NAMES), PrivateStatistics(), {"unit": "person"}, 0
    if kind == "whitened":
        return LogisticRegression(NAMES), Whitened(inner=DPSGD(), bound=9.0), OPEN, 1
    if kind == "scoring":
        levels = LEVELS["softmax"]
        layout = (INTERCEPT, *(Feature("numeric", name, -1.0, 1.0) for name in NAMES[1:]))
        return (
            SoftmaxRegression(NAMES, levels=levels, layout=layout), PrivateScoring(), OPEN, 3,
        )  # fmt: skip
    return LogisticRegression(NAMES), DPSGD(), OPEN, 0


def hostile_plan(model, method, terms, count):
    """Return a plan with `count` records per party, the records, and a q whose products with the
    records cancel.
    """
    outputs = model.dimension // WIDTH
    privacy = tacit.Privacy(noise_multiplier=1.0, delta=1e-4, insecure_noise_seed=3, **terms)
    records = hostile_records(count, np.random.default_rng(count), max(2, outputs))
    if terms != OPEN:
        records["person"] = np.arange(count) // 2
    parties = {"a": records, "b": records}
    plan = tacit.plan.plan.make_plan(model, parties, method=method, privacy=privacy)
    growing = (1.0 + np.arange(outputs)[:, None] / outputs) * cancelling(WIDTH)
    spread = {"sd": np.full(model.dimension, 1e-3)}
    if isinstance(plan.family, FullGaussian):
        spread = {"covariance": 1e-6 * np.eye(model.dimension)}
    return plan, records, plan.family.natural(mean=growing.reshape(-1), **spread)


HOSTILE = [
    "logistic", "softmax", "many levels", "each coordinate", "persons", "batches", "shards",
    "statistics", "statistics of persons", "whitened", "scoring",
]  # fmt: skip


@pytest.mark.full_optimisation
@pytest.mark.parametrize(
    ("kind", "engine"),
    [
        *((kind, "alone") for kind in HOSTILE),
        ("softmax", "one process"),
        ("persons", "one process"),
    ],
)
def test_other_records_change_no_contribution(kind, engine):
    """Records that contribute nothing make the arrays longer. For a q whose products with a record
    cancel, rounding in another order would change the contributions of all records.
    """
    model, method, terms, visit = hostile_case(kind)
    outputs = model.dimension // WIDTH
    for count in (64, 128):
        plan, records, q = hostile_plan(model, method, terms, count)
        public = hostile_public(plan, visit, outputs)
        both = [
            reply(plan, one, q, public, visit, engine)
            for one in (records, lengthened(records, 1 if terms == OPEN else 7))
        ]
        half = {name: one[: count // 2] for name, one in records.items()}
        fewer = reply(plan, half, q, public, visit, engine)
        assert any(np.any(np.abs(fewer[name] - both[0][name]) > 1) for name in fewer)
        moved = np.concatenate([np.ravel(both[1][name] - both[0][name]) for name in both[0]])
        if kind == "shards":  # the record changes its own shard, which two clips bound
            (event,) = plan.settled["a"].events_at(visit)
            assert np.linalg.norm(moved) * event.step <= event.sensitivity(plan.method.adjacency)
            continue
        assert np.max(np.abs(moved)) <= 1, "the sum may be rounded differently, by one step"


def hostile_public(plan, visit, outputs):
    shapes = plan.method.public_shapes(plan.model, plan.family, plan.method.stage_at(visit).name)
    rng = np.random.default_rng(4)
    public = {name: np.ones(shape) for name, shape in shapes.items()}
    if "map" in shapes:
        stretch = rng.normal(size=(WIDTH, WIDTH))
        stretch[0] += 1e8
        stretch[-1] -= 1e8
        public["map"] = np.asarray(pack_symmetric(stretch + stretch.T))
    if "point" in shapes:
        base = cancelling(WIDTH, 1.1e15, np.float64)
        public["point"] = np.concatenate([(1.0 + 0.3 * k) * base for k in range(outputs)])
        public["bend"] = 0.1 * rng.normal(size=shapes["bend"])
    return public


@pytest.mark.full_optimisation
@pytest.mark.parametrize("kind", ["softmax", "many levels", "persons", "statistics", "scoring"])
def test_the_position_of_a_record_changes_no_contribution(kind):
    """If a record is removed, all later ones move to another position of the array."""
    model, method, terms, visit = hostile_case(kind)
    outputs = model.dimension // WIDTH
    plan, records, q = hostile_plan(model, method, terms, 300)
    moved = {name: np.roll(one, 2, axis=0) for name, one in records.items()}
    public = hostile_public(plan, visit, outputs)
    both = [reply(plan, one, q, public, visit, "alone") for one in (records, moved)]
    apart = np.concatenate([np.ravel(both[1][name] - both[0][name]) for name in both[0]])
    assert np.max(np.abs(apart)) <= 1, "the sum may be rounded differently, by one step"


@pytest.mark.parametrize(
    "terms", [{"adjacency": "add-or-remove-one"}, {"unit": "person"}, {}], ids=str
)
def test_parties_are_computed_alone_where_their_lengths_are_secret(terms):
    rng = np.random.default_rng(2)
    parties = {
        name: {"x": rng.normal(size=(40, 2)), "y": np.zeros(40), "person": np.arange(40) // 2}
        for name in ("a", "b", "c")
    }
    plan = tacit.plan.plan.make_plan(
        LogisticRegression(("u", "v")), parties, method=tacit.methods.DPSGD(),
        privacy=tacit.Privacy(noise_multiplier=1.0, delta=1e-4, **terms),
    )  # fmt: skip
    batches = PartyBatches(plan.agreement, plan.settled)
    batches.add(plan.parties, batch_parties=True, all_at_once=True)
    together = {len(batches._batch_of[name].names) for name in parties}
    assert together == ({1} if terms else {3})


def test_a_shard_has_a_fixed_number_of_rows_where_lengths_are_secret():
    rng = np.random.default_rng(2)
    records = {"x": rng.normal(size=(400, 2)), "y": np.zeros(400)}
    method = PrivateUpdate(shards=8, shard_rows=100).bind(adjacency="add-or-remove-one")
    assert method.arrange("a", records, 0).weights.shape == (8, 100)
    with pytest.raises(DataError, match=r"a shard has \d+ records, but at most .*= 50"):
        replace(method, shard_rows=50).arrange("a", records, 0)
