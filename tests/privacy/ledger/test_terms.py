"""Budgets, units, adjacencies and lineage: what counts how under what."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger_worker import EVENT, TERMS, budget_of, zcdp

from tacit.errors import ConfigError, PrivacyBudgetError
from tacit.privacy.events import GaussianEvent, Poisson
from tacit.privacy.ledger.ledger import Budget, LineageWarning
from tacit.privacy.ledger.state import UNITS, counted


def other(ledger, seed, schema=("schema",)):
    return ledger.first_version_id(list(schema), {"y": np.random.default_rng(seed).normal(size=4)})


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf])
def test_a_budget_is_a_finite_positive_number(epsilon):
    with pytest.raises(ConfigError, match="epsilon"):
        budget_of(epsilon)


@pytest.mark.parametrize("delta", [1.0, math.nan, -1.0])
def test_a_delta_is_a_probability(delta):
    with pytest.raises(ConfigError, match="delta"):
        budget_of(delta=delta)


def test_a_budget_falls_freely_and_rises_only_when_told_to(ledger, dataset):
    ledger.set_budget(dataset, budget_of(0.5), reason="less")
    for higher in (
        budget_of(0.6),
        budget_of(0.5, delta=1e-4),
        budget_of(0.4, adjacency="replace-one"),
        budget_of(0.4, unit="person"),
    ):
        with pytest.raises(PrivacyBudgetError, match="--raise"):
            ledger.set_budget(dataset, higher, reason="more")
    ledger.set_budget(dataset, budget_of(2.0), reason="more", raising=True)
    assert ledger.budget(dataset) == budget_of(2.0)
    kinds = [(row.kind, row.purpose, row.detail["epsilon"]) for row in ledger.entries(dataset)]
    assert kinds[1:] == [("budget", "less", 0.5), ("budget", "more", 2.0)]


def test_a_budget_needs_a_reason(ledger, dataset):
    for reason in ("", "  ", "a\nb", "x" * 501):
        with pytest.raises(ConfigError, match="reason"):
            ledger.set_budget(dataset, budget_of(0.1), reason=reason)


def test_add_or_remove_counts_double_under_a_substitute_budget(ledger):
    some = other(ledger, 1)
    ledger.set_budget(some, budget_of(adjacency="replace-one"), reason="test")
    ledger.charge(some, "run", "r1", [EVENT], **TERMS)
    assert ledger.spent(some).epsilon == zcdp([EVENT], 1e-5, "replace-one")


def test_substitute_does_not_count_under_add_or_remove(ledger, dataset):
    with pytest.raises(PrivacyBudgetError, match="number of records"):
        ledger.charge(dataset, "run", "r1", [EVENT], unit="record", adjacency="replace-one")
    for unit in ("record", "party"):
        with pytest.raises(PrivacyBudgetError, match="number of records"):
            ledger.check(dataset, [EVENT], unit=unit, adjacency="replace-one")


def worst_move(unit, budget, rng, *, nonnegative):
    """How far a sum of contributions of norm 1 moves when one record does, tried out."""

    def vector():
        v = rng.normal(size=2)
        v = np.abs(v) if nonnegative else v
        return v / np.linalg.norm(v)

    # One record added changes one unit's contribution; one substituted may change two persons'.
    changed = 2 if budget.adjacency == "replace-one" and unit == "person" else 1
    return float(np.linalg.norm(sum(vector() - vector() for _ in range(changed))))


@given(st.integers(0, 2**32), st.sampled_from(["person", "party"]), st.booleans(), st.booleans())
def test_a_coarser_unit_is_counted_at_least_as_far_as_its_sum_can_move(seed, unit, substitute, pos):
    adjacency = "replace-one" if substitute else "add-or-remove-one"
    budget = budget_of(adjacency=adjacency, unit="record")
    event = GaussianEvent(clip=1.0, noise_sd=3.0, count=2, nonnegative=pos)
    found = counted(event, unit, "add-or-remove-one", budget)
    rng = np.random.default_rng(seed)
    far = max(worst_move(unit, budget, rng, nonnegative=pos) for _ in range(50))
    assert far <= found.sensitivity(adjacency) * (1 + 1e-12)
    assert far > 0.2 * found.sensitivity(adjacency), "the bound is of the right size"
    assert (found.noise_sd, found.count) == (3.0, 2)


def test_finer_units_and_sampled_coarser_ones_are_refused():
    sampled = GaussianEvent(clip=1.0, noise_sd=3.0, sampling=Poisson(rate=0.1))
    for unit in UNITS:
        budget = budget_of(unit=unit)
        assert counted(sampled, unit, "add-or-remove-one", budget) is sampled
        for charged in UNITS:
            if UNITS.index(charged) < UNITS.index(unit):
                with pytest.raises(PrivacyBudgetError, match="cannot count under"):
                    counted(EVENT, charged, "add-or-remove-one", budget)
            elif charged != unit:
                with pytest.raises(PrivacyBudgetError, match="sampled"):
                    counted(sampled, charged, "add-or-remove-one", budget)


def test_a_budget_in_terms_that_past_charges_do_not_have_is_refused(ledger, dataset):
    ledger.charge(dataset, "run", "r1", [EVENT], **TERMS)
    with pytest.raises(PrivacyBudgetError, match="budget with unit = person"):
        ledger.set_budget(dataset, budget_of(unit="person"), reason="test", raising=True)
    assert ledger.budget(dataset) == budget_of()


def test_the_same_records_under_another_schema_share_the_budget(ledger, dataset):
    renamed = ledger.first_version_id(["wider bounds"], {"y": np.arange(5.0)[::-1]})
    assert renamed.schema != dataset.schema
    ledger.charge(dataset, "run", "r1", [EVENT], **TERMS)
    ledger.charge(renamed, "run", "r2", [EVENT], **TERMS)
    for name in (dataset, renamed):
        assert ledger.spent(name).charges == 2
        assert ledger.budget(name) == budget_of()


def test_a_changed_file_has_no_budget_until_the_operator_says_which(ledger, dataset):
    ledger.charge(dataset, "run", "r1", [EVENT], **TERMS)
    changed = other(ledger, 1)
    assert ledger.lookalikes(changed) == [dataset]
    with pytest.raises(PrivacyBudgetError, match=rf"tacit ledger link {changed} {dataset}"):
        ledger.charge(changed, "run", "r2", [EVENT], **TERMS)
    with pytest.warns(LineageWarning, match="separate budget"):
        ledger.set_budget(changed, budget_of(0.3), reason="other patients")
    assert ledger.spent(changed).epsilon == 0.0
    assert ledger.lookalikes(other(ledger, 2, ["another schema"])) == []


def test_linked_data_sets_share_spending_both_ways_and_across_generations(ledger, dataset):
    second, third = other(ledger, 1), other(ledger, 2)
    ledger.charge(dataset, "run", "r1", [EVENT], **TERMS)
    ledger.link(second, dataset, reason="May's update")
    ledger.charge(second, "run", "r2", [EVENT], **TERMS)
    ledger.link(third, second, reason="June's update")
    ledger.link(third, second, reason="said twice")
    ledger.charge(third, "run", "r3", [EVENT], **TERMS)
    for name in (dataset, second, third):
        assert ledger.budget(name) == budget_of()
        spent = ledger.spent(name)
        assert (spent.charges, spent.family) == (3, 3)
        assert spent.epsilon == zcdp([EVENT] * 3, 1e-5, "add-or-remove-one")
    ledger.set_budget(third, budget_of(0.2), reason="for all of them")
    with pytest.raises(PrivacyBudgetError, match="budget"):
        ledger.charge(dataset, "run", "r4", [EVENT], **TERMS)
    assert [row.kind for row in ledger.entries(dataset)].count("link") == 2


def test_a_link_raises_no_budget_and_needs_a_known_ancestor(ledger, dataset):
    high, unknown = other(ledger, 1, ["s"]), other(ledger, 2, ["s"])
    ledger.set_budget(high, Budget(epsilon=9.0, delta=1e-5, **TERMS), reason="test")
    with pytest.raises(PrivacyBudgetError, match="must not raise"):
        ledger.link(high, dataset, reason="test")
    with pytest.raises(ConfigError, match="not in the ledger"):
        ledger.link(high, unknown, reason="test")
    ledger.set_budget(high, budget_of(), reason="alike")
    ledger.link(high, dataset, reason="test")
    assert ledger.spent(high).family == 2
