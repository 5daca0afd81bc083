"""The ledger of `tacit.fit`, which adds up the spending of all fits on the same records."""

from __future__ import annotations

import math
import secrets
import shlex
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tacit.data import Federation
from tacit.errors import ConfigError, PrivacyBudgetError, TacitError
from tacit.party.charge import Charging, Datasets, closing
from tacit.party.datasets import identify_arrays, identify_parties
from tacit.plan.plan import Plan
from tacit.privacy.events import Adjacency
from tacit.privacy.guarantee import Unit
from tacit.privacy.ledger.fingerprint import DatasetId
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.ledger.paths import own_ledger
from tacit.privacy.ledger.state import counting_terms
from tacit.privacy.settings import RUN_DIRECTORY
from tacit.results.summary import LedgerFacts

NO_LEDGER = "none"
PREFIX = "fit-"
"""Prefix of the ids of fits in a ledger."""
NO_TOTAL = (PrivacyBudgetError, ConfigError)
"""Errors raised if no total ε is known for a unit and an adjacency."""


class RunningTotalWarning(UserWarning):
    """Warning: earlier private fits were charged to the same records, and no budget limits the
    total.
    """


@dataclass(frozen=True)
class ChargedFit:
    """The open ledger of a fit, and the spending on the fit's records, which includes this fit."""

    charging: Charging
    facts: LedgerFacts


@contextmanager
def fit_ledger(
    plan: Plan,
    federation: Federation | None,
    asked: str | Path | None,
    datasets: Datasets | None = None,
) -> Iterator[ChargedFit | None]:
    """Context manager that opens the ledger of a private fit; its value is None if nothing is
    charged.

    It refuses a fit that would exceed the budget of a party's records. `datasets` identifies
    records that are neither a federation nor plain arrays.
    """
    path = _path(plan, asked)
    if path is None:
        yield None
        return
    assert plan.privacy is not None
    with Ledger(path, create=True) as ledger:
        if datasets is not None:
            found = datasets(ledger)
        elif federation is None:
            found = identify_arrays(ledger, plan.parties)
        else:
            found = identify_parties(ledger, federation, plan.parties)
        charging = Charging(
            ledger,
            f"{PREFIX}{secrets.token_hex(12)}",
            found,
            plan.settled,
            plan.privacy.unit,
            plan.privacy.adjacency,
            budget_required=False,
        )
        charging.require_budget()
        facts = _totals(charging, path)
        if facts.before > 0.0 and any(ledger.budget(one) is None for one in found.values()):
            _warn(facts)
        with closing(charging):
            yield ChargedFit(charging, facts)


def _path(plan: Plan, asked: str | Path | None) -> Path | None:
    """Return the ledger file to charge, or None if nothing is charged."""
    if isinstance(asked, str) and asked == NO_LEDGER:
        return None
    if plan.privacy is None:
        if asked is not None:
            raise ConfigError(
                f"ledger = {str(asked)!r} without privacy; there is nothing to charge: leave "
                "ledger out"
            )
        return None
    named = plan.privacy.ledger if asked is None else str(asked)
    if named == NO_LEDGER:
        return None
    if plan.privacy.insecure_noise_seed is not None:
        if named is None:
            return None
        raise ConfigError(
            f"insecure_noise_seed = {plan.privacy.insecure_noise_seed} with the ledger {named}; "
            "noise from a known seed has no guarantee and is not charged: remove one of the two"
        )
    if named == RUN_DIRECTORY:
        raise ConfigError(
            f'ledger = "{RUN_DIRECTORY}"; a fit has no run directory: name a file, or "{NO_LEDGER}"'
        )
    return own_ledger() if named is None else Path(named).expanduser()


def _totals(charging: Charging, path: Path) -> LedgerFacts:
    """Return ε spent on the same records before and after the fit, for the party with the largest
    total.
    """
    own = charging.unit, charging.adjacency
    before, total, terms = _prices(charging)
    most = max(charging.datasets, key=lambda party: total[charging.datasets[party]])
    dataset = charging.datasets[most]
    return LedgerFacts(
        path=str(path),
        run=charging.run,
        epsilon_spent=total[dataset],
        before=max(before.values()),
        delta=charging.settled[most].guarantee.delta,
        unit=None if terms == own else terms[0],
        adjacency=None if terms == own else terms[1],
    )


def _prices(
    charging: Charging,
) -> tuple[dict[DatasetId, float], dict[DatasetId, float], tuple[Unit, Adjacency]]:
    """Return ε of each data set before and after the fit, and the unit and adjacency of these ε.

    Unit and adjacency are those of the fit if all earlier charges count for them, otherwise the
    next weaker ones for which all charges count. If there are none, every ε is infinite.
    """
    own = charging.unit, charging.adjacency
    for terms in counting_terms(*own):
        with suppress(*NO_TOTAL):
            total = charging.prices(under=terms)
            if all(math.isfinite(one) for one in total.values()):
                return charging.prices(before=True, under=terms), total, terms
    unknown = dict.fromkeys(charging.datasets.values(), math.inf)
    return unknown, unknown, own


def known_total(run: str | None, delta: float) -> LedgerFacts | None:
    """Return the total ε for the records of a fit, or None if the user's ledger has no such fit.

    A saved fit does not contain the total, because the total depends on other fits in the ledger.
    """
    path = own_ledger()
    if run is None or not run.startswith(PREFIX) or not path.exists():
        return None
    with suppress(TacitError, OSError), Ledger(path) as ledger:
        charges = {charge.dataset: charge for charge in ledger.charges(run)}
        if not charges:
            return None
        first = next(iter(charges.values()))
        own = first.unit, first.adjacency
        for terms in counting_terms(*own):
            with suppress(*NO_TOTAL):
                totals = ledger.price_many(
                    dict.fromkeys(charges, ()), unit=own[0], adjacency=own[1],
                    delta=dict.fromkeys(charges, delta), under=terms,
                )  # fmt: skip
                return LedgerFacts(
                    path=str(path), run=run, epsilon_spent=max(totals.values()), delta=delta,
                    unit=None if terms == own else terms[0],
                    adjacency=None if terms == own else terms[1],
                )  # fmt: skip
    return None


def _warn(facts: LedgerFacts) -> None:
    place = shlex.quote(facts.path)
    said = (
        f"ε = {facts.before:.4g} so far and {facts.epsilon_spent:.4g} with this fit, at δ = "
        f"{facts.delta:g}{facts.other_terms}"
        if math.isfinite(facts.before)
        else "for another unit or adjacency, so that the total ε has no bound"
    )
    warnings.warn(
        f"these records were charged before: {said}; they have no budget; to "
        f"limit the total, run: tacit ledger budget ID --epsilon … --delta … --reason … --ledger "
        f"{place} (the ID is in: tacit ledger show --ledger {place} --all)",
        RunningTotalWarning,
        stacklevel=6,  # the caller of `tacit.fit`
    )
