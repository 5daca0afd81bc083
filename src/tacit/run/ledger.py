"""The ledger of a configured run: its path, the budget check, and the charges.

A run with secret noise is charged to a permanent ledger, in which only the operator sets or raises
budgets. A run with seeded noise is a simulation without a guarantee, as its result states. It is
charged to a ledger in the private part of its run directory, because a simulation should behave
like a real run. A run on records that are generated from a seed may also use a ledger in its run
directory (privacy.ledger = "run-directory"), because no real records are involved.
"""

from __future__ import annotations

import math
import secrets
import shlex
from pathlib import Path

from tacit.data import Federation
from tacit.errors import ConfigError, PrivacyBudgetError
from tacit.party.charge import Charging
from tacit.party.datasets import identify_parties
from tacit.plan.plan import Plan
from tacit.privacy.ledger.ledger import Budget, BudgetCheck, Ledger
from tacit.privacy.ledger.paths import LEDGER_NAME, own_ledger
from tacit.privacy.settings import RUN_DIRECTORY
from tacit.results.summary import LedgerFacts
from tacit.run.config import Config
from tacit.run.directory import checkpoint_path, private_part
from tacit.support.storage import write_text

SIMULATION = "simulation with a seeded noise"
GENERATED_RECORDS = "records generated from a seed"


def ledger_path(config: Config, out: Path, asked: Path | None) -> Path:
    """Return the path of the ledger of a private run.

    The ledger is the file that records the privacy loss charged for each data set. `asked` is the
    path given with --ledger, and is returned if it is not None. Otherwise the ledger is a file in
    the run directory `out` if privacy.ledger is "run-directory", or if the run is a simulation
    (privacy.insecure_noise_seed is set) and privacy.ledger is not set. In all other cases the path
    of the operator's ledger is returned (`operators_ledger`).
    """
    assert config.private is not None
    if asked is not None:
        return asked
    if config.private.ledger == RUN_DIRECTORY:
        return private_part(out) / LEDGER_NAME
    if config.private.ledger is None and config.private.insecure_noise_seed is not None:
        return private_part(out) / LEDGER_NAME
    return operators_ledger(config)


def operators_ledger(config: Config) -> Path:
    """Return the path of the permanent ledger, in which an operator sets the budgets."""
    named = None if config.private is None else config.private.ledger
    if named == RUN_DIRECTORY:
        raise ConfigError(
            f'privacy.ledger = "{RUN_DIRECTORY}"; such a ledger needs no budget: '
            "to set a budget in another ledger, name its file with --ledger"
        )
    return own_ledger() if named is None else Path(named).expanduser()


def own_ledger_of_run(config: Config, path: Path, out: Path) -> bool:
    """Return True if the ledger of a run is in the run's own directory.

    Raises a ConfigError in two cases. A simulation must not use a permanent ledger, because its
    charge would look like a finite ε, although a release with seeded noise has no guarantee. A run
    with secret noise must not have its ledger in the run directory, because --overwrite would
    delete the charges. The only exception is privacy.ledger = "run-directory", which
    `tacit.run.config.ledger_faults` allows for generated records only.
    """
    assert config.private is not None
    within = out.resolve() in path.resolve().parents
    if not within and config.private.insecure_noise_seed is not None:
        raise ConfigError(
            f"privacy.insecure_noise_seed = {config.private.insecure_noise_seed} with the ledger "
            f"{path}; noise from a known seed has no guarantee and is charged only in the run "
            "directory: remove one of the two"
        )
    if (
        within
        and config.private.insecure_noise_seed is None
        and config.private.ledger != RUN_DIRECTORY
    ):
        raise ConfigError(
            f"the ledger {path} is in the run directory {out} and would be overwritten with it; "
            "keep it elsewhere, or simulate with privacy.insecure_noise_seed"
        )
    return within


def check_room(
    plan: Plan,
    federation: Federation,
    path: Path,
    *,
    inside: bool,
    run: str | None = None,
    ended: str | None = None,
) -> BudgetCheck | None:
    """Refuse a run that would exceed a budget, before anything is created or charged.

    `run` is the id of the run that is resumed, of which only the remaining charges count as new.
    `ended` is the id of a run that will be overwritten. The result is the check of the budget with
    the least remaining ε. It is None if `inside` is true, because a run sets the budgets in a
    ledger inside its directory.
    """
    if inside:
        return None
    assert plan.guarantee is not None
    needed = plan.guarantee.epsilon
    if not path.exists():
        raise PrivacyBudgetError(
            f"the ledger {path} does not exist, so no privacy budget is set for these records and "
            f"nothing may be released; set a budget: {_budget_command(plan, path, needed)}; or "
            "set privacy.insecure_noise_seed to simulate without a guarantee"
        )
    with Ledger(path) as ledger:
        refuse_simulated(ledger, path)
        charging = _charging(plan, federation, ledger, run or "check")
        without = [p for p, data in charging.datasets.items() if ledger.budget(data) is None]
        try:
            return charging.require_budget(ended=ended)
        except PrivacyBudgetError as error:
            if not without:
                raise
            _, similar, hint = str(error).partition("; it has the schema of ")
            more = f" and {len(without) - 1} more" if len(without) > 1 else ""
            before, needed = _before_and_with(charging)
            said = f" ({before:.4g} was spent before)" if before > 0.0 else ""
            raise PrivacyBudgetError(
                f"no privacy budget is set in {path} for the records of party {without[0]!r}"
                f"{more}, so nothing may be released; this run needs ε = {needed:.4g}{said}; set "
                f"a budget: {_budget_command(plan, path, needed)}{similar}{hint}"
            ) from None


def _before_and_with(charging: Charging) -> tuple[float, float]:
    """Return the ε of all earlier charges, and the ε of all earlier charges and this run together.

    Each is the largest over all parties.
    """
    try:
        return max(charging.prices(before=True).values()), max(charging.prices().values())
    except PrivacyBudgetError:  # earlier charges have another unit or adjacency
        own = max(one.guarantee.epsilon for one in charging.settled.values())
        return 0.0, own


def _budget_command(plan: Plan, path: Path, needed: float) -> str:
    """Return the command that sets the budget that this plan needs."""
    assert plan.guarantee is not None
    unit = 10.0 ** (math.floor(math.log10(needed)) - 2)  # unit of the third significant digit
    return (
        f"tacit ledger budget CONFIG.toml --ledger {shlex.quote(str(path))} --epsilon "
        f'{math.ceil(needed / unit) * unit:.6g} --delta {plan.guarantee.delta:g} --reason "..."'
    )


def refuse_simulated(ledger: Ledger, path: Path) -> None:
    """Raise an error for the ledger of a run directory, because no operator set its budgets."""
    own = (SIMULATION, GENERATED_RECORDS)
    if any(row.kind == "budget" and row.purpose in own for row in ledger.entries()):
        raise ConfigError(
            f"{path} is the ledger of one run, which sets its own budgets; name "
            "another ledger with --ledger"
        )


def open_charging(
    plan: Plan, federation: Federation, path: Path, run: str, *, inside: bool
) -> Charging:
    """Open the ledger, and return a `Charging` that charges each party's replies to it."""
    ledger = Ledger(path, create=inside)
    try:
        charging = _charging(plan, federation, ledger, run)
        if inside:
            assert plan.privacy is not None
            seeded = plan.privacy.insecure_noise_seed is not None
            set_own_budgets(charging, reason=SIMULATION if seeded else GENERATED_RECORDS)
        else:
            refuse_simulated(ledger, path)
        return charging
    except BaseException:
        ledger.close()
        raise


def _charging(plan: Plan, federation: Federation, ledger: Ledger, run: str) -> Charging:
    assert plan.privacy is not None
    found = identify_parties(ledger, federation, plan.parties)
    return Charging(ledger, run, found, plan.settled, plan.privacy.unit, plan.privacy.adjacency)


def set_own_budgets(charging: Charging, *, reason: str = SIMULATION) -> None:
    """Set budgets in a run directory's ledger that are large enough for its run."""
    if charging.ledger.charges(charging.run):
        return  # already started, with sufficient budgets
    wanted, prices = {}, charging.prices()
    for party, settled in charging.settled.items():
        dataset, guarantee = charging.datasets[party], settled.guarantee
        terms = {"unit": charging.unit, "adjacency": charging.adjacency, "delta": guarantee.delta}
        price = prices[dataset]
        present = charging.ledger.budget(dataset)
        if present is None or not price <= present.epsilon:
            limit = max(guarantee.epsilon, price)
            wanted[dataset] = Budget(epsilon=limit, **terms)
    if wanted:
        charging.ledger.set_budgets(wanted, reason=reason, raising=True)


def run_name(out: Path) -> str:
    """Return the id of this run in the ledger. It never changes and is stored in the directory."""
    found = known_run(out)
    if found is None:
        found = f"run-{secrets.token_hex(12)}"
        write_text(_name_file(out), f"{found}\n")
    return found


def known_run(out: Path) -> str | None:
    """Return the ledger's id for the run in a directory; None if the run has no id yet."""
    path = _name_file(out)
    return path.read_text(encoding="utf-8").strip() if path.exists() else None


def _name_file(out: Path) -> Path:
    return checkpoint_path(out).with_name("run-name")


def end_run(path: Path, run: str) -> None:
    """Close a run whose directory is overwritten, if the ledger contains charges of this run."""
    with Ledger(path) as ledger:
        if ledger.charges(run):
            ledger.close_run(run, reason="overwritten")


def spent(charging: Charging, path: Path) -> LedgerFacts:
    """Return the ledger's totals after the run, and a receipt.

    The totals and the budget are those of the party with the largest ε spent on its records.
    """
    totals = [charging.ledger.spent(dataset) for dataset in charging.datasets.values()]
    most = max(totals, key=lambda one: one.epsilon or 0.0, default=None)
    budget = None if most is None else most.budget
    return LedgerFacts(
        path=str(path),
        run=charging.run,
        epsilon_spent=0.0 if most is None else most.epsilon or 0.0,
        receipt=charging.ledger.receipt(),
        delta=None if budget is None else budget.delta,
        budget=None if budget is None else budget.epsilon,
    )
