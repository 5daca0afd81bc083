"""What is known of more releases allows fewer, and never more than the accountant would."""

import math
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger_worker import EVENT, TERMS, asks_of, budget_of, zcdp

from tacit.errors import PrivacyBudgetError
from tacit.privacy.events import GaussianEvent, Poisson
from tacit.privacy.ledger.cost import CachedAccountant
from tacit.privacy.ledger.epsilon_cache import EpsilonCache, EpsilonQuery
from tacit.privacy.ledger.exposure import Charged
from tacit.privacy.ledger.ledger import Ledger

ROUND = GaussianEvent(clip=1.0, noise_sd=50.0, count=10, sampling=Poisson(rate=0.1))
KINDS = [GaussianEvent(clip=1.0, noise_sd=sd) for sd in (20.0, 30.0, 40.0)]


def times(event, count):
    return msgspec.structs.replace(event, count=count)


def planned(counts):
    """Charges of one run."""
    paid = Counter({(kind, "record", "add-or-remove-one"): n for kind, n in counts.items()})
    return Charged({"run": paid})


class Watched:
    """An accountant that remembers what it was asked."""

    def __init__(self):
        self.asked = []

    def __call__(self, *question):
        self.asked.append(question)
        return zcdp(*question)


@pytest.fixture
def watched(path, ledger, dataset):
    """The accountant of a second, open ledger on the same file, and that ledger."""
    accountant = Watched()
    with Ledger(path, epsilon=accountant) as opened:
        yield accountant, opened


def test_after_a_check_the_rounds_of_a_run_ask_nothing(watched, dataset):
    accountant, ledger = watched
    ledger.charge(dataset, "run", "before", [EVENT], **TERMS)
    assert ledger.check(dataset, [EVENT, *[ROUND] * 6], **TERMS, run="run").fits
    before = len(accountant.asked)
    for number in range(6):
        ledger.charge_many(asks_of([dataset], "run", number, ROUND))
    assert len(accountant.asked) == before
    ledger.charge_many(asks_of([dataset], "run", "more", ROUND))
    assert len(accountant.asked) == before + 1, "beyond what was checked"
    assert ledger.spent(dataset).epsilon == zcdp(
        [EVENT, times(ROUND, 70)], 1e-5, "add-or-remove-one"
    )


def test_parties_with_the_same_events_are_one_question(watched, dataset):
    accountant, ledger = watched
    parties = [ledger.identify([], {"y": [float(i)]}) for i in range(20)]
    ledger.set_budgets(dict.fromkeys(parties, budget_of(100.0)), reason="test")
    for number in range(5):
        ledger.charge_many(asks_of(parties, "run", number, ROUND))
    assert [question[0][0].count for question in accountant.asked] == [10, 20, 30, 40, 50]


def test_a_bound_is_never_reported_and_never_refuses(watched, dataset):
    _, ledger = watched
    many = [times(EVENT, 1000)]
    assert not ledger.check(dataset, many, **TERMS).fits
    ledger.charge(dataset, "run", "r1", [EVENT], **TERMS)
    assert ledger.check(dataset, [times(EVENT, 9)], **TERMS).fits
    ledger.charge(dataset, "run", "r2", [EVENT], **TERMS)
    assert ledger.spent(dataset).epsilon == zcdp([times(EVENT, 2)], 1e-5, "add-or-remove-one")


@pytest.mark.parametrize(
    "other",
    [
        budget_of(delta=1e-6),
        budget_of(delta=1e-4),
        budget_of(adjacency="replace-one"),
    ],
)
def test_a_bound_holds_in_its_own_terms_only(other):
    accountant = Watched()
    price = CachedAccountant(accountant)
    paid = lambda count: planned({EVENT: count})  # noqa: E731
    assert price.fits(paid(20), budget_of())
    assert price.fits(paid(5), budget_of())
    assert len(accountant.asked) == 1
    price.fits(paid(5), other)
    assert accountant.asked[1][1:] == (other.delta, other.adjacency)


# Few values, so that multisets often contain each other, or nearly.
_counts = st.dictionaries(st.sampled_from(KINDS), st.sampled_from([1, 20, 80]), min_size=1)
_steps = st.tuples(
    _counts,
    st.sampled_from(["fits", "check"]),
    st.sampled_from([1.0, 2.0]),
    st.sampled_from([1e-5, 1e-5, 1e-5, 1e-6]),
    st.sampled_from(["add-or-remove-one", "add-or-remove-one", "add-or-remove-one", "replace-one"]),
)


@given(st.lists(_steps, min_size=10, max_size=30), st.integers(1, 30))
def test_it_decides_as_the_accountant_asked_directly(steps, size):
    """Whatever was asked before, and however little of it is remembered."""
    accountant = Watched()
    price = CachedAccountant(accountant)
    price._cache = EpsilonCache(size)
    for counts, what, epsilon, delta, adjacency in steps:
        budget = budget_of(epsilon, delta=delta, adjacency=adjacency)
        paid = planned(counts)
        direct = CachedAccountant(zcdp).of(paid, budget)
        if what == "check":
            assert price.of(paid, budget) == direct
        else:
            assert price.fits(paid, budget) == (direct <= epsilon)
        assert len(price._cache._values) <= size
    assert price._cache._counts.keys() == price._cache._values.keys()
    held = {q for questions in price._cache._holding.values() for q in questions}
    assert held == set(price._cache._values)


def test_a_multiset_larger_in_one_kind_only_is_no_bound():
    known, asked = (
        planned({KINDS[i]: n for i, n in enumerate(counts)}) for counts in ((80, 1), (20, 400))
    )
    price = CachedAccountant(zcdp)
    budget = budget_of(3.0)
    assert price.fits(known, budget)
    assert not price.fits(asked, budget)


def test_what_is_used_is_remembered_longest():
    known = EpsilonCache(2)
    large, small, other = (
        EpsilonQuery((times(EVENT, n),), 1e-5, "add-or-remove-one") for n in (9, 1, 20)
    )
    known.learn(large, 0.5)
    known.learn(other, 0.9)
    assert known.at_most(small, 0.6), "by the smaller of two bounds"
    known.learn(EpsilonQuery((ROUND,), 1e-5, "add-or-remove-one"), 0.1)
    assert known.at_most(small, 0.6)
    assert known.value(other) is None
    assert known.value(small) is None, "a bound is not an answer"


def test_no_bound_says_nothing():
    known = EpsilonCache()
    one = EpsilonQuery((EVENT,), 1e-5, "add-or-remove-one")
    assert not known.at_most(one, 1.0)
    known.learn(EpsilonQuery((times(EVENT, 5),), 1e-5, "add-or-remove-one"), math.inf)
    assert not known.at_most(one, 1.0)
    mixed = EpsilonQuery((EVENT, ROUND), 1e-5, "add-or-remove-one")
    known.learn(EpsilonQuery((times(EVENT, 5),), 1e-5, "add-or-remove-one"), 0.1)
    assert not known.at_most(mixed, 1.0), "another kind of event is in it"


def test_a_refusal_is_the_accountants_own(watched, dataset):
    accountant, ledger = watched
    assert not ledger.check(dataset, [times(EVENT, 500)], **TERMS).fits
    before = len(accountant.asked)
    with pytest.raises(PrivacyBudgetError, match="budget"):
        ledger.charge(dataset, "run", "r1", [times(EVENT, 400)], **TERMS)
    assert accountant.asked[before][0] == (times(EVENT, 400),)
