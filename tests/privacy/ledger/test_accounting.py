"""The same ledger with the accountant it will have."""

import pytest
from ledger_worker import TERMS, budget_of

from tacit.errors import PrivacyBudgetError
from tacit.privacy.events import GaussianEvent, Poisson
from tacit.privacy.ledger.ledger import Ledger

accounting = pytest.importorskip("tacit.privacy.accounting")


def test_the_default_accountant_decides(path, ledger, dataset):
    step = GaussianEvent(clip=1.0, noise_sd=2.0, count=10, sampling=Poisson(rate=0.01))
    cost = accounting.epsilon([step], 1e-5, "add-or-remove-one")
    ledger.set_budget(dataset, budget_of(cost * 1.05), reason="test", raising=True)
    with Ledger(path) as real:
        assert real.charge(dataset, "run", "r1", [step], **TERMS).new
        assert real.spent(dataset).epsilon == pytest.approx(cost)
        with pytest.raises(PrivacyBudgetError, match="together"):
            real.charge(dataset, "run", "r2", [step], **TERMS)


def test_what_fits_as_a_whole_fits_round_by_round(path, ledger, dataset):
    """The shortcut that leaves the rounds unevaluated decides as this accountant would."""
    step = GaussianEvent(clip=1.0, noise_sd=50.0, count=10, sampling=Poisson(rate=0.1))
    rounds = 4
    with Ledger(path) as real:
        assert real.check(dataset, [step] * rounds, **TERMS).fits
        exact = []
        for number in range(rounds):
            real.charge(dataset, "run", f"r{number}", [step], **TERMS)
            exact.append(real.spent(dataset).epsilon)
    direct = [
        accounting.epsilon([step] * count, 1e-5, "add-or-remove-one")
        for count in range(1, rounds + 1)
    ]
    assert exact == direct == sorted(direct)
