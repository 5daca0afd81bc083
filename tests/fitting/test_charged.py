"""Private fits in a notebook are charged to a ledger and show their running total."""

import math
import warnings

import msgspec
import numpy as np
import pytest

import tacit
from tacit.errors import ConfigError, PrivacyBudgetError
from tacit.fitting.charged import RunningTotalWarning, _totals
from tacit.party.charge import Charging
from tacit.party.datasets import identify_arrays
from tacit.privacy.accounting import epsilon
from tacit.privacy.accounting.filters import GAUSSIAN_SHARE
from tacit.privacy.ledger.ledger import Budget, Ledger
from tacit.privacy.ledger.paths import own_ledger

PRIVACY = tacit.Privacy(epsilon=1.0, delta=1e-5)
FAST = {"method": "dp-statistics", "schedule": tacit.schedules.Synchronous(rounds=1)}


@pytest.fixture
def parties():
    rng = np.random.default_rng(3)
    made = {}
    for name in ("north", "south"):
        x = rng.uniform(-1, 1, size=(200, 2))
        made[name] = {"x": x, "y": np.clip(x @ [1.0, -1.0] + rng.normal(size=200), -3, 3)}
    return made


def fitted(parties, privacy=PRIVACY, **more):
    model = tacit.models.LinearRegression(("a", "b"))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, message="(?!these records)")
        return tacit.fit(model, parties, privacy=privacy, **{**FAST, **more})


def test_a_second_fit_on_the_same_records_shows_the_running_total(parties):
    first = fitted(parties)
    assert first.privacy.total_epsilon == pytest.approx(first.privacy.epsilon, rel=1e-6)
    with pytest.warns(RunningTotalWarning, match=r"charged before: ε = 1 so far and 1\.[3-9]"):
        second = fitted(parties)
    events = [e for one in second._outcome.plan.settled.values() for e in one.all_events][:1]
    both = epsilon([e for _ in range(2) for e in events], GAUSSIAN_SHARE * 1e-5, "replace-one")
    assert second.privacy.epsilon == pytest.approx(1.0, rel=1e-3)
    assert second.privacy.total_epsilon == pytest.approx(both, rel=1e-6)
    assert f"ε = {both:.4g}" in str(second.privacy)
    assert str(own_ledger()) in str(second.privacy)
    with Ledger() as ledger:
        assert {ledger.spent(one).releases for one in ledger.datasets()} == {2}
        assert ledger.verify().sound


def test_other_records_start_at_nothing(parties):
    fitted(parties)
    other = {name: {"x": -one["x"], "y": one["y"][::-1]} for name, one in parties.items()}
    other["north"]["y"] *= 0.5
    other["south"]["y"] *= 0.5
    assert fitted(other).privacy.total_epsilon == pytest.approx(1.0, rel=1e-3)


def test_a_budget_refuses_before_anything_is_computed(parties):
    with Ledger(create=True) as ledger:
        found = identify_arrays(ledger, parties)
        limit = Budget(epsilon=1.1, delta=1e-5, adjacency="replace-one", unit="record")
        ledger.set_budgets(dict.fromkeys(found.values(), limit), reason="test")
    assert fitted(parties).privacy.total_epsilon == pytest.approx(1.0, rel=1e-3)
    seen = []
    with pytest.raises(PrivacyBudgetError, match=r"together 1\.\d+ > budget 1\.1"):
        fitted(parties, callback=lambda *one: seen.append(one))
    assert not seen
    with Ledger() as ledger:
        assert {ledger.spent(one).charges for one in ledger.datasets()} == {1}


def test_simulations_and_exact_fits_charge_nothing(parties):
    simulated = fitted(parties, tacit.Privacy(epsilon=1.0, delta=1e-5, insecure_noise_seed=1))
    exact = fitted(parties, None, method="auto")
    assert simulated.privacy.total_epsilon is None
    assert exact.privacy.total_epsilon is None
    assert fitted(parties, ledger="none").privacy.total_epsilon is None
    assert not own_ledger().exists()


def test_a_named_ledger_is_charged_instead(parties, tmp_path):
    place = tmp_path / "study.sqlite"
    assert fitted(parties, ledger=place).privacy.ledger == str(place)
    again = tacit.Privacy(epsilon=1.0, delta=1e-5, ledger=str(place))
    with pytest.warns(RunningTotalWarning):
        assert fitted(parties, again).privacy.total_epsilon > 1.3
    assert not own_ledger().exists()


@pytest.mark.parametrize(
    ("privacy", "ledger", "said"),
    [
        (None, "a.sqlite", "without privacy"),
        (tacit.Privacy(epsilon=1.0, insecure_noise_seed=1), "a.sqlite", "known seed"),
        (tacit.Privacy(epsilon=1.0), "run-directory", "no run directory"),
        (tacit.Privacy(epsilon=1.0), "a.txt", "ends in"),
    ],
)
def test_a_ledger_that_cannot_be_charged_is_refused(parties, privacy, ledger, said, tmp_path):
    method = "auto" if privacy is None else "dp-statistics"
    place = str(tmp_path / ledger) if "." in ledger else ledger
    with pytest.raises(ConfigError, match=said):
        fitted(parties, privacy, ledger=place, method=method)
    assert not list(tmp_path.iterdir())


def test_charges_of_two_adjacencies_have_a_total_under_replace_one(parties, tmp_path):
    """A fit under replace-one may use the number of records, so that it does not count under
    add-or-remove-one; the reverse counts with twice the clip.
    """
    first = fitted(parties)
    removing = tacit.Privacy(epsilon=1.0, delta=1e-5, adjacency="add-or-remove-one")
    with pytest.warns(RunningTotalWarning, match="with this fit, at δ = 1e-05 per record under r"):
        second = fitted(parties, removing)
    plans = (first._outcome.plan, second._outcome.plan)
    events = [one for plan in plans for one in plan.settled["north"].all_events]
    together = epsilon(events, GAUSSIAN_SHARE * 1e-5, "replace-one")
    assert second.privacy.total_epsilon == pytest.approx(together, rel=1e-6)
    assert "inf" not in str(second.privacy)
    assert (
        f"so far: ε = {second.privacy.total_epsilon:.4g} at δ = 1e-05 per record under replace-one"
    ) in str(second.privacy)
    loaded = tacit.load(second.save(tmp_path / "fit"))
    assert str(loaded.privacy) == str(second.privacy)


def test_charges_that_cannot_be_added_up_say_so(parties, monkeypatch):
    fitted(parties)
    monkeypatch.setattr("tacit.fitting.charged.counting_terms", lambda *own: [own])
    removing = tacit.Privacy(epsilon=1.0, delta=1e-5, adjacency="add-or-remove-one")
    with pytest.warns(RunningTotalWarning, match="the total ε has no bound"):
        found = fitted(parties, removing).privacy
    assert found.total_epsilon == math.inf
    assert "so far: no bound on ε, because they have different units or adjacencies" in str(found)


def test_the_saved_fit_does_not_name_the_ledger(parties, tmp_path):
    fit = fitted(parties)
    folder = fit.save(tmp_path / "saved")
    texts = [one.read_bytes() for one in folder.rglob("*") if one.is_file()]
    assert not any(b"ledger.sqlite" in text for text in texts)


def test_a_budget_of_other_tables_with_the_same_rows_refuses_before_the_first_charge(parties):
    """Two new rows have no budget; the others have one, which binds."""
    with Ledger(create=True) as ledger:
        limit = Budget(epsilon=1.0, delta=1e-5, adjacency="replace-one", unit="record")
        found = identify_arrays(ledger, parties)
        ledger.set_budgets(dict.fromkeys(found.values(), limit), reason="test")
    longer = {
        name: {key: np.concatenate([own, -own[:2] / 3]) for key, own in one.items()}
        for name, one in parties.items()
    }
    more = {"method": "dp-statistics", "schedule": tacit.schedules.Synchronous(rounds=4)}
    with pytest.raises(PrivacyBudgetError, match=r"party 'north': privacy budget exceeded"):
        fitted(longer, tacit.Privacy(epsilon=2.0, delta=1e-5), **more)
    with Ledger() as ledger:
        assert [ledger.spent(one).charges for one in ledger.datasets()] == [0, 0]


def test_the_total_is_shown_at_the_delta_of_its_party(parties, tmp_path):
    plan = fitted(parties, ledger="none")._outcome.plan
    large = plan.settled["north"]
    small = msgspec.structs.replace(
        large,
        answers=tuple(
            tuple(msgspec.structs.replace(e, noise_sd=9 * e.noise_sd, lattice=None) for e in events)
            for events in large.answers
        ),
        guarantee=msgspec.structs.replace(large.guarantee, delta=1e-3),
    )
    with Ledger(tmp_path / "ledger.sqlite", create=True) as ledger:
        found = identify_arrays(ledger, parties)
        settled = {"north": large, "south": small}
        charging = Charging(ledger, "run", found, settled, "record", "replace-one")
        facts = _totals(charging, tmp_path)
        assert facts.epsilon_spent == pytest.approx(1.0, rel=1e-3)
        assert facts.delta == 1e-5
