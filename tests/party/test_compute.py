"""A party: its answers are pure, replayed by id, and refused when they are not numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_party import OneParty, answer_once

import tacit.party.compute as party_side
from tacit.errors import DataError
from tacit.expfam import FullGaussian
from tacit.methods import Exact, GradientVI, NaturalVI
from tacit.methods.base import RunFacts
from tacit.methods.natural.stages import EVALUATE, MODE, WEIGH
from tacit.models import LinearRegression, LogisticRegression, SoftmaxRegression
from tacit.party.compute import padded_rows, party_word, stack_records
from tacit.party.store import PartyStore, ProcessStore
from tacit.plan.agreement import Agreement
from tacit.server.checkpoint import Checkpoint
from tacit.server.messages import Request

MODEL, FAMILY = LinearRegression(("a", "b", "c"), prior_sd=1.0), FullGaussian(3)
AGREEMENT = Agreement(MODEL, FAMILY, Exact(), seed=3)
PRIOR = MODEL.prior(FAMILY)
REQUEST = Request("r0", "a", 0, 0, PRIOR, FAMILY.zero(), 0.5, initial=True)


@pytest.fixture(scope="module")
def records(make_parties):
    return make_parties((30,))["site-0"]


def test_the_same_request_is_replayed_without_computing(records, monkeypatch):
    alone = OneParty(AGREEMENT, REQUEST.party, records)
    reply = alone.answer(REQUEST)

    def refuse(*_):
        raise AssertionError("computed again")

    monkeypatch.setattr(party_side, "answer_many", refuse)
    assert alone.answer(REQUEST) is reply
    # Whatever a confused server writes into a request it has sent before, the answer stands.
    forged = REQUEST._replace(damping=1.0, version=9, q=FAMILY.zero())
    assert alone.answer(forged) is reply
    with pytest.raises(AssertionError, match="computed again"):
        alone.answer(REQUEST._replace(id="r1"))


def test_answers_are_a_function_of_the_request_alone(records):
    first = answer_once(AGREEMENT, records, REQUEST)
    alone = OneParty(AGREEMENT, REQUEST.party, records)
    other = alone.answer(REQUEST._replace(id="r5", visit=5))
    second = alone.answer(REQUEST)
    np.testing.assert_equal(first._asdict(), second._asdict())
    assert other.id == "r5"


def test_the_reply_is_the_damped_difference(records):
    whole = answer_once(AGREEMENT, records, REQUEST._replace(damping=1.0))
    half = answer_once(AGREEMENT, records, REQUEST)
    form, linear = MODEL.quadratic_form(records, np.ones(30))
    np.testing.assert_allclose(whole.released["linear"], linear, rtol=1e-10)
    np.testing.assert_allclose(whole.released["quadratic"], -0.5 * form, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(half.released["linear"], 0.5 * linear, rtol=1e-10)
    assert (half.party, half.version, half.id) == ("a", 0, "r0")


def arranged(records):
    return Exact().arrange("a", records, seed=0)


def test_padding_changes_nothing_but_rounding(records):
    short, few = stack_records([arranged(records)], 30, Exact())
    long, many = stack_records([arranged(records)], 64, Exact())
    assert short["x"].shape == (1, 30, 3)
    assert long["x"].shape == (1, 64, 3)
    np.testing.assert_array_equal(many, [[1.0] * 30 + [0.0] * 34])
    np.testing.assert_array_equal(long["x"][0, 30:], np.repeat(records["x"][:1], 34, axis=0))
    answers = [
        party_side.answer_many(AGREEMENT, stack, weights, [REQUEST])[0]
        for stack, weights in ((short, few), (long, many))
    ]
    np.testing.assert_allclose(answers[0].released["linear"], answers[1].released["linear"])
    np.testing.assert_allclose(answers[0].loss, answers[1].loss)


@pytest.mark.parametrize("stage", [MODE, EVALUATE, WEIGH])
@pytest.mark.parametrize(
    "model",
    [LogisticRegression(("a", "b", "c")), SoftmaxRegression(("a", "b", "c"), levels=("u", "v"))],
    ids=["logistic", "softmax"],
)
def test_replies_in_numpy_depend_neither_on_padding_nor_on_the_order_of_axes(records, model, stage):
    """Else engines would differ in last bits: they pad differently, and transport copies arrays."""
    size = model.dimension
    method = NaturalVI().for_run(
        RunFacts("synchronous", True, 10, 1e-5, False, parties=2, dimension=size)
    )
    assert method.in_numpy(model)
    root = np.linalg.cholesky(np.cov(np.random.default_rng(2).normal(size=(size, 3 * size))))
    public = {"mean": 0.1 * np.arange(size), "root": root, "prior_share": np.asarray(0.5)}
    public |= {"centre": np.zeros(size)}
    agreement = Agreement(model, FullGaussian(size), method, seed=3)
    own = {"x": records["x"], "y": (records["y"] > 0).astype(float)}
    replies = []
    for rows, order in ((30, "C"), (64, "F")):
        stack, weights = stack_records([arranged(own)], rows, method, on_device=False)
        given = {name: np.asarray(value, order=order) for name, value in public.items()}
        request = REQUEST._replace(stage=stage, public=given, q=None, factor=None)
        replies += party_side.answer_many(agreement, stack, weights, [request])
    np.testing.assert_equal(replies[0].released, replies[1].released)
    assert all(np.any(value) for value in replies[0].released.values())


def test_only_real_numbers_take_the_methods_precision():
    records = {"y": np.ones(3), "group": np.arange(3), "flag": np.ones(3, bool)}
    stack, _ = stack_records([arranged(records)], 3, GradientVI())
    assert {name: str(value.dtype) for name, value in stack.items()} == {
        "y": "float32",
        "group": "int64",
        "flag": "bool",
    }


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e200])
def test_an_update_that_is_no_number_is_refused_before_it_is_sent(records, bad):
    x = records["x"].copy()
    x[3, 1] = bad
    with pytest.raises(DataError, match="party 'a', visit 0: the update is not finite"):
        answer_once(AGREEMENT, {**records, "x": x}, REQUEST)


def test_a_posterior_that_is_singular_to_rounding_is_refused_by_name(records):
    agreement = Agreement(MODEL, FAMILY, GradientVI(steps=1), seed=3)
    flat = {"linear": np.zeros(3), "quadratic": -0.5 * np.ones((3, 3))}
    with pytest.raises(DataError, match=r"party 'a', visit 0: the covariance .* not positive"):
        answer_once(agreement, records, REQUEST._replace(q=flat, initial=False))


def test_requests_with_different_posteriors_are_not_answered_together(records):
    stack, weights = stack_records([arranged(records)] * 2, 30, Exact())
    other = REQUEST._replace(q={name: value.copy() for name, value in PRIOR.items()})
    with pytest.raises(ValueError, match="different q"):
        party_side.answer_many(AGREEMENT, stack, weights, [REQUEST, other])


@given(count=st.integers(1, 200_000))
def test_a_party_is_padded_by_less_than_half(count):
    rows = padded_rows(count)
    assert rows >= count
    assert rows <= (64 if count <= 64 else max(128, 1.5 * count + 1))
    assert padded_rows(rows) == rows, "the lengths are not a fixed ladder"


def test_there_are_few_padded_lengths():
    assert len({padded_rows(count) for count in range(1, 100_000)}) < 30


def test_a_partys_word_is_the_same_on_every_machine():
    names = ("site-0", "site-1", "東京")
    assert [party_word(name) for name in names] == [3543010293, 446156015, 3179978821]


@pytest.mark.parametrize("store", ["checkpoint", "party file"])
def test_what_a_party_keeps_is_rolled_back_with_a_lost_answer(store, tmp_path):
    """An answer that is made again starts from what was kept before it, not after it."""
    kept = [{"count": np.full(2, float(number))} for number in range(3)]
    if store == "party file":

        def opened():
            return PartyStore(tmp_path / "party", "digest")

        for visit in (4, 7):
            opened().keep_memories({"a": (visit, kept[visit // 4])})
        opened().keep_memories({"a": (7, kept[2])})  # once more, since the answer was lost
    else:

        def opened():
            found = ProcessStore()
            found.use(Checkpoint(tmp_path / "server.sqlite", digest="digest"))
            return found

        store = opened()
        for visit, memory in ((4, kept[1]), (7, kept[1]), (7, kept[2])):
            store.keep_memories({"a": (visit, memory)})

    assert opened().memory_at("a", 8)["count"].tolist() == [2.0, 2.0]
    assert opened().memory_at("a", 7)["count"].tolist() == [1.0, 1.0]
