"""The plan of a run is in the chain: what a run was to release counts, finished or not."""

import msgspec
import numpy as np
import pytest
from ledger_worker import EVENT, TERMS, budget_of, zcdp

from tacit.errors import ConfigError, PrivacyBudgetError
from tacit.privacy.accounting.filters import GAUSSIAN_SHARE
from tacit.privacy.ledger.ledger import Ledger, ReleaseRequest, RunPlan

DELTA = 1e-5
VISITS = 20


def cost(visits, delta=DELTA):
    return zcdp([msgspec.structs.replace(EVENT, count=visits)], delta, TERMS["adjacency"])


ALONE, FILTERED = cost(VISITS), cost(VISITS, GAUSSIAN_SHARE * DELTA)


def plan(dataset, run, visits=VISITS):
    return RunPlan(dataset=dataset, run=run, events=[EVENT] * visits, purpose="a", **TERMS)


def visit(ledger, dataset, run, number, visits=VISITS):
    """Charge one visit of a run that planned `visits` of them."""
    asked = ReleaseRequest(
        dataset=dataset, run=run, request=f"r{number}", events=[EVENT],
        purpose=f"a, visit {number}", **TERMS,
    )  # fmt: skip
    return ledger.open_many([asked], plans=[plan(dataset, run, visits)])


def set_budget(ledger, dataset, epsilon):
    ledger.set_budget(dataset, budget_of(epsilon), reason="test", raising=True)


def test_the_plan_is_recorded_once_and_before_the_first_charge(path, ledger, dataset):
    for number in range(3):
        visit(ledger, dataset, "one", number)
    visit(ledger, dataset, "one", 0)
    kinds = [row.kind for row in ledger.entries() if row.run == "one"]
    assert kinds == ["plan", "charge", "charge", "charge"]
    spent = ledger.spent(dataset)
    assert (spent.epsilon, spent.committed) == (cost(3), ALONE)
    assert spent.remaining == 1.0 - ALONE, "an unfinished run reserves its plan"
    ledger.close()
    with Ledger(path, epsilon=zcdp) as again:
        assert again.verify().sound
        assert again.check(dataset, [EVENT] * (VISITS - 3), run="one", **TERMS).total == ALONE


def test_each_data_set_of_a_run_has_its_plan_whenever_it_is_first_charged(ledger, dataset):
    """Live parties may share a ledger, and they have the same run."""
    other = ledger.identify([], {"y": np.ones(3)})
    set_budget(ledger, other, ALONE)
    for one in (dataset, other):
        visit(ledger, one, "one", f"0-{one.content}")
    kinds = [row.kind for row in ledger.entries() if row.run == "one"]
    assert kinds == ["plan", "charge"] * 2
    assert not ledger.check(other, [EVENT], run="two", **TERMS).fits


def test_no_other_run_beside_an_unfinished_one_that_was_planned_for_the_whole_budget(
    path, ledger, dataset
):
    """Without the plan the second run would fit, and the budget's guarantee would be (ε, 2δ)."""
    set_budget(ledger, dataset, ALONE)
    assert ALONE < FILTERED
    visit(ledger, dataset, "one", 0)
    check = ledger.check(dataset, [EVENT], run="two", **TERMS)
    assert not check.fits
    assert (check.spent, check.only_run) == (ALONE, "one")
    before = ledger.receipt()
    with pytest.raises(PrivacyBudgetError, match="run one is unfinished and was planned for all"):
        visit(ledger, dataset, "two", 0, visits=1)
    assert ledger.receipt() == before
    ledger.close()
    with Ledger(path, epsilon=zcdp) as again:
        for number in range(1, VISITS):
            visit(again, dataset, "one", number)
        assert again.spent(dataset).epsilon == ALONE, "finished, it costs what was planned"


def test_an_unfinished_run_can_always_be_finished(path, ledger, dataset):
    """Other runs are refused instead, at their first charge, whichever of them comes first."""
    set_budget(ledger, dataset, cost(VISITS + 2, GAUSSIAN_SHARE * DELTA))
    visit(ledger, dataset, "one", 0)
    check = ledger.check(dataset, [EVENT] * 3, run="two", **TERMS)
    assert (check.fits, check.unfinished) == (False, ("one",))
    with pytest.raises(PrivacyBudgetError, match="tacit ledger close one"):
        visit(ledger, dataset, "two", 0, visits=3)
    visit(ledger, dataset, "two", 0, visits=2)
    ledger.close()
    with Ledger(path, epsilon=zcdp) as again:
        for number in range(1, VISITS):
            assert again.check(dataset, [EVENT] * VISITS, run="one", **TERMS).fits
            visit(again, dataset, "one", number)
        visit(again, dataset, "two", 1, visits=2)
        spent = again.spent(dataset)
        assert spent.epsilon == spent.committed == cost(VISITS + 2, GAUSSIAN_SHARE * DELTA)


def test_a_closed_run_costs_what_it_charged_where_its_plan_fits(ledger, dataset):
    set_budget(ledger, dataset, FILTERED)
    visit(ledger, dataset, "one", 0)
    left = VISITS - 1
    assert not ledger.check(dataset, [EVENT] * left, run="two", **TERMS).fits
    assert ledger.check_many({dataset: [EVENT] * left}, run="two", ended="one", **TERMS)[
        dataset
    ].fits
    assert ledger.close_run("one", reason="the board stopped it") == [dataset]
    assert ledger.close_run("one", reason="again") == []
    for number in range(left):
        visit(ledger, dataset, "two", number, visits=left)
    with pytest.raises(PrivacyBudgetError, match=r"closed \(the board .*cannot be charged"):
        visit(ledger, dataset, "one", 1)
    assert ledger.spent(dataset).epsilon == FILTERED
    visit(ledger, dataset, "one", 0)  # charged before it was closed: the same key again
    assert ledger.verify().sound


def test_a_closed_run_that_was_planned_for_the_whole_budget_stays_the_only_one(ledger, dataset):
    """Otherwise the transcripts of the complete run and those of the second add up to 2δ."""
    set_budget(ledger, dataset, ALONE)
    visit(ledger, dataset, "one", 0)
    ledger.close_run("one", reason="a crash")
    check = ledger.check(dataset, [EVENT], run="two", **TERMS)
    assert (check.fits, check.only_run) == (False, "one")
    assert ledger.spent(dataset).committed == ALONE


def test_only_a_run_of_the_ledger_can_be_closed(ledger, dataset):
    visit(ledger, dataset, "one", 0)
    with pytest.raises(ConfigError, match="is not in"):
        ledger.close_run("two", reason="x")
    other = ledger.identify([], {"y": np.ones(3)})
    assert ledger.close_run("one", reason="x", datasets=[other]) == []
    assert ledger.spent(dataset).committed == ALONE, "still reserved"


def test_a_plan_for_records_that_are_charged_later_is_compared_with_the_first_charge(
    ledger, dataset
):
    """Parties that are visited one after another: none may be short in mid-run."""
    other = ledger.identify([], {"y": np.ones(3)})
    set_budget(ledger, other, 0.5 * ALONE)
    first = ReleaseRequest(
        dataset=dataset, run="one", request="r0", events=[EVENT], purpose="a, visit 0", **TERMS
    )
    before = ledger.receipt()
    with pytest.raises(PrivacyBudgetError, match=f"data set {other.short}"):
        ledger.open_many([first], plans=[plan(dataset, "one"), plan(other, "one")])
    assert ledger.receipt() == before


def test_a_budget_lowered_in_mid_run_stops_the_run_at_once(ledger, dataset):
    """What is charged fits the new budget only by the accountant of a plan that is cut short after
    its releases were seen, which proves nothing.
    """
    set_budget(ledger, dataset, ALONE)
    visit(ledger, dataset, "one", 0)
    ledger.set_budget(dataset, budget_of(cost(3)), reason="lower")
    assert not ledger.check(dataset, [EVENT] * VISITS, run="one", **TERMS).fits
    before = ledger.receipt()
    with pytest.raises(PrivacyBudgetError, match="exceeded"):
        visit(ledger, dataset, "one", 1)
    assert ledger.receipt() == before
    visit(ledger, dataset, "one", 0)  # what is paid for can still be sent


def test_the_running_total_without_a_budget_has_the_whole_plan(ledger, dataset):
    visit(ledger, dataset, "one", 0)
    assert ledger.price(dataset, (), delta=DELTA, **TERMS) == ALONE
    both = ledger.price(dataset, [EVENT], run="two", delta=DELTA, **TERMS)
    assert both == pytest.approx(cost(VISITS + 1, GAUSSIAN_SHARE * DELTA), rel=1e-6)
    ledger.close_run("one", reason="interrupted")
    both = ledger.price(dataset, [EVENT], run="two", delta=DELTA, **TERMS)
    assert both == pytest.approx(FILTERED, rel=1e-6)


def test_charges_that_were_not_planned_are_bounded_by_a_filter(ledger, dataset):
    visit(ledger, dataset, "one", 0, visits=1)
    alone = ledger.spent(dataset)
    assert alone.epsilon == alone.as_one_run
    visit(ledger, dataset, "one", 1, visits=1)
    both = ledger.spent(dataset)
    assert both.epsilon > both.as_one_run


def test_a_run_that_began_without_a_plan_gets_none(ledger, dataset):
    """A run of an earlier version that is resumed: its plan would be recorded too late."""
    ledger.charge(dataset, "old", "r0", [EVENT], **TERMS)
    visit(ledger, dataset, "old", 1)
    assert all(row.kind != "plan" for row in ledger.entries())
    assert ledger.check(dataset, [EVENT], run="two", **TERMS).fits
