"""`tacit join`: run one party of a live federation."""

from __future__ import annotations

import functools
import math
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec import to_builtins

from tacit.data import Federation as Loaded
from tacit.data.records import len_records
from tacit.errors import ConfigError, DataError, PrivacyBudgetError
from tacit.live.approval import (
    approved_versions,
    followed_version,
    require_approval,
    unfinished_version,
    version_of,
    write_approval,
)
from tacit.live.config import PartySetup
from tacit.live.journal import Journal, Watch
from tacit.live.party import LiveParty, NewVersionError
from tacit.live.plan import party_plan
from tacit.live.protocol.messages import Promise
from tacit.live.secure.agreed import message_bytes
from tacit.live.secure.kept_party import KeptParty, signing_key
from tacit.live.session import Introduction
from tacit.live.settings import reported_count
from tacit.live.state_dir import held, make_private
from tacit.live.transport.tls import Credentials, name_of, read_key
from tacit.live.versions import check_same_terms, check_successor
from tacit.party.charge import Charging
from tacit.party.compute import SinglePartyComputer
from tacit.party.datasets import identify_parties
from tacit.party.store import PartyStore
from tacit.plan.plan import Plan
from tacit.privacy.ledger.ledger import DatasetId, Ledger, Spent
from tacit.privacy.ledger.paths import LEDGER_NAME, own_ledger
from tacit.results.compose import (
    data_facts,
    model_facts,
    outside_notes,
    posterior_table,
    privacy_facts,
    public_facts,
    stored_coefficients,
    verdict_facts,
)
from tacit.results.evaluation import Attempts, measure
from tacit.results.posterior import Posterior, posterior_of
from tacit.results.saved import write_posterior
from tacit.results.statements import interval_note, statement
from tacit.results.summary import (
    CautionNote,
    Intervals,
    LedgerFacts,
    PartyEvaluation,
    PartyResult,
    read_part,
    write_result,
)
from tacit.run.config import Continues
from tacit.run.continued import SeenRecords, records_used
from tacit.run.directory import private_part, public_part
from tacit.run.ledger import refuse_simulated, set_own_budgets
from tacit.support.public_files import EVALUATION, POSTERIOR, RESULT

SUMS = "secure-sums"
"""Name of the file with a party's keys and shares, which a new approval does not remove
(`KeptParty`).
"""


@dataclass(frozen=True)
class ReadyParty:
    """A party with checked files and records."""

    setup: PartySetup
    name: str
    credentials: Credentials
    plan: Plan
    loaded: Loaded

    @property
    def signing_key(self) -> Any:
        """The private key of this party's certificate, which signs messages of secure sums.

        Raises an error if its fingerprint is not the one in the agreed file.
        """
        keys = self.setup.agreed.federation.keys
        return signing_key(read_key(self.credentials.key), keys[self.name], self.name)

    @property
    def reported_records(self) -> int:
        """Number of records to report to the server; 0 reports none."""
        join, privacy = self.setup.own.join, self.plan.privacy
        count = len_records(self.loaded.parties[self.name])
        public = privacy is None or (privacy.adjacency, privacy.unit) == ("replace-one", "record")
        if not public:
            return 0  # the number of records is public under replace-one only
        return reported_count(count, join.report_records)

    @property
    def promise(self) -> Promise | None:
        """The guarantee that the party reports to the server."""
        settled = self.plan.settled.get(self.name)
        if settled is None:
            return None
        guarantee = settled.guarantee
        return Promise(
            epsilon=guarantee.epsilon,
            delta=guarantee.delta,
            unit=guarantee.unit,
            adjacency=guarantee.adjacency,
            answers=settled.visits,
        )

    @property
    def first_approved(self) -> str:
        """Digest of the version that was approved first for this run; it names the run in the
        ledger.
        """
        versions, digest = approved_versions(self.setup.state), self.setup.agreed.digest
        return versions[0] if digest in versions else digest

    @property
    def ledger_path(self) -> Path:
        """Ledger file of a private run."""
        assert self.plan.privacy is not None
        if self.plan.privacy.insecure_noise_seed is not None:
            return self.setup.state / LEDGER_NAME
        named = self.setup.own.ledger
        return own_ledger() if named is None else self.setup.base / Path(named).expanduser()


class PartyEnd(NamedTuple):
    """Result of a party's run, and metrics on its own records."""

    result: PartyResult
    evaluation: PartyEvaluation


class FinishedRun(NamedTuple):
    """A finished run of this party, and the path of its posterior."""

    run: str
    posterior: Path
    end: PartyEnd


def prepare_party(setup: PartySetup) -> ReadyParty:
    """Read and check the certificate and the records; write and send nothing."""
    credentials = setup.own.join.credentials(setup.base)
    credentials.check()
    name = name_of(credentials.certificate)
    if name not in setup.agreed.federation.parties:
        raise ConfigError(
            f"the certificate's name {name!r} is not among the parties of "
            f"{setup.agreed.path.name}: {', '.join(setup.agreed.federation.parties[:20])}; use the "
            "certificate of a listed party, or have the name listed"
        )
    plan, loaded = party_plan(setup, name)
    ready = ReadyParty(setup, name, credentials, plan, loaded)
    if plan.thresholds is not None:
        _ = ready.signing_key
    return ready


def check_budget(ready: ReadyParty) -> Any:
    """Compare the cost of the whole run with the party's budget; charge nothing."""
    assert ready.plan.privacy is not None
    path = ready.ledger_path
    if ready.plan.privacy.insecure_noise_seed is not None:
        return None
    if not path.exists():
        needed = ready.plan.settled[ready.name].guarantee
        raise PrivacyBudgetError(
            f"{path} does not exist, so these records have no privacy budget; this run needs ε = "
            f"{needed.epsilon:.4g} at δ = {needed.delta:g}; set a budget: "
            f"tacit ledger budget party.toml --ledger {shlex.quote(str(path))} "
            f"--epsilon {rounded_up(needed.epsilon)!r} --delta {needed.delta:g} --reason …"
        )
    with Ledger(path) as ledger:
        refuse_simulated(ledger, path)
        charging = _charging(ready, ledger, joined_run(ready) or "check")
        charging.require_budget()
        return ledger.spent(charging.datasets[ready.name])


def _short_of_budget(ready: ReadyParty) -> str | None:
    """Return None if the budget covers the run; otherwise refuse the run, or return the reason.

    A run that has not started is refused with an error. If this party has already answered
    requests of the run, the reason is returned instead: the party then answers as long as its
    budget allows, and waits for the result.
    """
    if not ready.plan.settled:
        return None
    try:
        check_budget(ready)
        return None
    except PrivacyBudgetError as error:
        run = joined_run(ready)
        if run is None or not ready.ledger_path.exists():
            raise
        with Ledger(ready.ledger_path) as ledger:
            begun = bool(ledger.charges(run_in_ledger(ready.first_approved, run)))
        if not begun:
            raise
        return str(error)


def joined_run(ready: ReadyParty) -> str | None:
    """Return the id of the run that this party has joined, or None."""
    return PartyStore(ready.setup.state / "party", ready.setup.agreed.digest).run


def _dataset(ready: ReadyParty, ledger: Ledger) -> DatasetId:
    """Return the id of the party's records in its ledger."""
    return identify_parties(ledger, ready.loaded, [ready.name])[ready.name]


def spent_by(ready: ReadyParty) -> Spent | None:
    """Return the spending on a party's records; None without privacy or ledger."""
    if ready.plan.privacy is None or not ready.ledger_path.exists():
        return None
    with Ledger(ready.ledger_path) as ledger:
        return ledger.spent(_dataset(ready, ledger))


def required_budget(ready: ReadyParty) -> float:
    """Compute the smallest ε of a budget, at the run's δ, that allows one complete run; rounded up.

    It covers earlier spending on these records and this run. Crashes cost nothing extra.
    """
    settled = ready.plan.settled[ready.name]
    guarantee, path = settled.guarantee, ready.ledger_path
    terms: dict[str, Any] = {"unit": guarantee.unit, "adjacency": guarantee.adjacency}
    if path.exists():
        with Ledger(path) as ledger:
            dataset = _dataset(ready, ledger)
            found = ledger.price(dataset, settled.all_events, delta=guarantee.delta, **terms)
    else:
        from tacit.privacy.accounting import epsilon

        found = epsilon(settled.all_events, guarantee.delta, guarantee.adjacency)
    return rounded_up(found)


def rounded_up(value: float, digits: int = 4) -> float:
    """Round up to `digits` significant digits.

    >>> rounded_up(1.99921), rounded_up(2.0), rounded_up(0.012341)
    (2.0, 2.0, 0.01235)
    """
    if not 0 < value < math.inf:
        return value
    scale = 10.0 ** (digits - 1 - math.floor(math.log10(value)))
    found = math.ceil(value * scale) / scale
    return found if found >= value else math.nextafter(value, math.inf)


def approve(setup: PartySetup) -> Path:
    """Record the operator's approval of the agreed file.

    If the file is a new version for the unfinished run in the state directory, the approval is for
    that run, which may be in progress. Otherwise the approval is for a new run, and the state of an
    earlier run is renamed.
    """
    make_private(setup.state)
    if added_parties(setup) is not None:
        before = [one for one in approved_versions(setup.state) if one != setup.agreed.digest]
        return write_approval(setup, before=before)
    with held(setup.state):
        path = write_approval(setup)
        # An approval is for one run: drop the state of an earlier one.
        store = setup.state / "party"
        if store.exists():
            store.rename(setup.state / "party.before")
    return path


def added_parties(setup: PartySetup) -> list[str] | None:
    """Return the parties that the agreed file adds to this party's unfinished run.

    The result is None if there is no unfinished run, or if the unfinished run already follows this
    version of the file.
    """
    old = unfinished_version(setup)
    if old is None or old.agreed.federation.version == setup.agreed.federation.version:
        return None
    check_successor(old.agreed.federation, setup.agreed.federation)
    before, after = prepare_party(old), prepare_party(setup)
    check_same_terms(before.plan, after.plan)
    known = old.agreed.federation.parties
    return [name for name in setup.agreed.federation.parties if name not in known]


async def join(
    setup: PartySetup,
    watch: Watch | None = None,
    prepared: Callable[[ReadyParty], None] | None = None,
) -> PartyEnd:
    """Take part until the end and return the result, which is also written to the state directory.

    `prepared` is called after all checks, before the first connection.
    """
    require_approval(setup)
    setup = followed_version(setup)
    finished = finished_run(setup)
    if finished is not None:
        return finished.end
    ready = prepare_party(setup)
    used = _records_used(ready)
    short = _short_of_budget(ready)
    if prepared is not None:
        prepared(ready)
    with held(setup.state):
        journal = Journal(setup.state / "log.jsonl", watch)
        if used is not None:
            private_part(setup.state).mkdir(mode=0o700, exist_ok=True)
            used.write(setup.state)
        if short is not None:
            journal.write("short of budget", reason=short)
        try:
            while True:
                try:
                    return await _take_part(ready, journal)
                except NewVersionError as version:
                    ready = _adopted(ready, version.digest)
                    agreed = ready.setup.agreed
                    journal.write(
                        "version", version=agreed.federation.version, configuration=agreed.digest
                    )
        finally:
            journal.close()


def _records_used(ready: ReadyParty) -> SeenRecords | None:
    """Return hashes of the records that this party uses in the run, or None if the run cannot be
    continued.

    A later run that continues this run needs the hashes to detect records that were used before. If
    this run itself continues an earlier run, an error is raised if the earlier run has used some of
    the party's records.
    """
    agreed, ledger = ready.setup.agreed, None
    continues = None
    if agreed.federation.continues is not None:
        rows = agreed.federation.continues.equal_rows
        continues = Continues(run=str(agreed.earlier), equal_rows=rows)
    if ready.plan.privacy is not None and ready.plan.privacy.insecure_noise_seed is None:
        ledger = ready.ledger_path
    return records_used(ready.plan, ready.loaded, continues, ledger)


async def _take_part(ready: ReadyParty, journal: Journal) -> PartyEnd:
    ledger = _open_ledger(ready)
    try:
        party = _live_party(ready, journal, ledger)
        final = party.store.result  # stored before a crash, but not written out
        if final is None:
            final = await party.take_part()
        if ledger is not None:
            _charging(ready, ledger, party.store.run or "").close("finished")
        posterior = posterior_of(ready.plan, final, party.store.result_public)
        return _result(ready, posterior, party, ledger)
    finally:
        if ledger is not None:
            ledger.close()


def _adopted(ready: ReadyParty, digest: str) -> ReadyParty:
    """Adopt the approved version of the agreed file that has this digest; return the party prepared
    for it.
    """
    setup = version_of(ready.setup, digest)
    following = prepare_party(setup)
    check_same_terms(ready.plan, following.plan)
    PartyStore(setup.state / "party", ready.setup.agreed.digest).adopt(digest)
    return following


def finished_run(setup: PartySetup) -> FinishedRun | None:
    """Return the run whose complete result is in the state directory, or None; writes nothing.

    No server is needed. A result that was stored but not yet written to files does not count:
    `join` writes it, without a connection.
    """
    store = PartyStore(setup.state / "party", setup.agreed.digest)
    posterior = public_part(setup.state) / POSTERIOR
    if store.run is None or store.result is None or not posterior.exists():
        return None
    try:
        end = PartyEnd(
            read_part(public_part(setup.state) / RESULT, PartyResult),
            read_part(private_part(setup.state) / EVALUATION, PartyEvaluation),
        )
    except DataError:
        return None
    if (end.result.run, end.result.configuration) != (store.run, setup.agreed.digest):
        return None
    return FinishedRun(store.run, posterior, end)


def _result_shapes(plan: Plan) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of the arrays that are needed to interpret the final
    posterior.
    """
    return plan.method.result_shapes(plan.model, plan.family)


def _largest_public(plan: Plan) -> int:
    """Return the largest number of public values in a request or in the result."""
    stages = plan.method.stage_table(plan.schedule.rounds)
    shapes = [plan.method.public_shapes(plan.model, plan.family, stage) for stage in stages]
    each = (sum(math.prod(s) for s in one.values()) for one in (*shapes, _result_shapes(plan)))
    return max(each, default=0)


def _live_party(ready: ReadyParty, journal: Journal, ledger: Ledger | None) -> LiveParty:
    setup, plan, name = ready.setup, ready.plan, ready.name
    settled = plan.settled.get(name)
    store = PartyStore(setup.state / "party", setup.agreed.digest)
    charging = None if ledger is None else _charger(ready, ledger)
    assert plan.thresholds is None or charging is not None  # masks are for charged releases
    return LiveParty(
        name=name,
        computer=SinglePartyComputer(
            plan.agreement, name, plan.parties[name], settled, store.memory_at
        ),
        settings=setup.own.join,
        credentials=ready.credentials,
        introduction=Introduction(
            data_size=ready.reported_records,
            configuration=setup.agreed.digest,
            guarantee=ready.promise,
            family=plan.family,
            public_shapes=lambda stage: plan.method.public_shapes(plan.model, plan.family, stage),
            result_shapes=_result_shapes(plan),
            largest=_largest_public(plan),
            heartbeat=True,
            silence_s=setup.own.join.silence_s,
            sum_bytes=message_bytes(len(plan.parties), plan.schedule.rounds),
        ),
        store=store,
        journal=journal,
        charging=charging,
        approved=lambda: approved_versions(setup.state),
        sums=None if charging is None else _kept_sums(ready, charging),
    )


def _kept_sums(ready: ReadyParty, charging: Callable[[str], Charging]) -> KeptParty | None:
    """Return the party's side of secure sums, or None if the run uses no secure sums."""
    setup, plan = ready.setup, ready.plan
    if plan.thresholds is None:
        return None
    key = ready.signing_key

    def answered(run: str) -> bool:
        found = charging(run)
        return bool(found.ledger.charges(found.run))

    return KeptParty(setup.state / SUMS, ready.name, key, setup.agreed.terms(plan), answered)


def _charger(ready: ReadyParty, ledger: Ledger) -> Callable[[str], Charging]:
    simulated = (
        ready.plan.privacy is not None and ready.plan.privacy.insecure_noise_seed is not None
    )

    @functools.cache
    def charging(run: str) -> Charging:
        found = _charging(ready, ledger, run)
        if simulated:
            set_own_budgets(found)
        return found

    return charging


def _open_ledger(ready: ReadyParty) -> Ledger | None:
    if not ready.plan.settled or ready.plan.privacy is None:
        return None
    return Ledger(ready.ledger_path, create=ready.plan.privacy.insecure_noise_seed is not None)


def _charging(ready: ReadyParty, ledger: Ledger, run: str) -> Charging:
    privacy = ready.plan.privacy
    assert privacy is not None
    dataset = _dataset(ready, ledger)
    settled = {ready.name: ready.plan.settled[ready.name]}
    name = run_in_ledger(ready.first_approved, run)
    return Charging(ledger, name, {ready.name: dataset}, settled, privacy.unit, privacy.adjacency)


def run_in_ledger(digest: str, run: str) -> str:
    """Return the name of a run in the ledger.

    `run` is the id that the server gave the run, and `digest` is that of the agreed file's version
    that was approved first for the run.
    """
    return f"{run}@{digest[:16]}"


def answers_charged(ledger: Ledger, run: str) -> int:
    """Count the charged requests of a run."""
    return len({charge.request for charge in ledger.charges(run)})


def _balance(ready: ReadyParty, party: LiveParty, ledger: Ledger | None) -> LedgerFacts | None:
    """Return the ε spent on this party's records after the run; None without a ledger or budget.

    The spending depends on the records, so it is not public.
    """
    spent = None if ledger is None else ledger.spent(_dataset(ready, ledger))
    if spent is None or spent.budget is None or spent.epsilon is None:
        return None
    return LedgerFacts(
        path=ready.ledger_path.name,
        run=run_in_ledger(ready.first_approved, party.store.run or ""),
        epsilon_spent=spent.epsilon,
        delta=spent.budget.delta,
        budget=spent.budget.epsilon,
    )


def _with_server(own: dict[str, Any], sent: dict[str, Any] | None, size: int) -> dict[str, Any]:
    """Return the party's facts `own`, with the verdict that the server computed from all rounds.

    Cautions of the party that the server did not send, such as one about the party's columns, are
    kept. `sent` is None if the server implements only the messages of the thesis. `size` is the
    number of coordinates.
    """
    if sent is None:
        return own
    cautions = [CautionNote(kind=one["kind"], text=one["text"]) for one in sent["cautions"]]
    known = {one.text for one in cautions}
    learned = sent.get("learned")
    if learned is None or len(learned) != size or not np.all(np.isfinite(learned)):
        learned = own["learned"]
    return own | {
        "converged": sent["converged"],
        "why": sent["why"],
        "cautions": [*cautions, *(one for one in own["cautions"] if one.text not in known)],
        "learned": learned,
    }


def _result(
    ready: ReadyParty, posterior: Posterior, party: LiveParty, ledger: Ledger | None
) -> PartyEnd:
    """Write the party's result files and return the result; nothing is sent.

    Metrics on held-out records, transferred bytes, the number of answers and the balance of the
    ledger are written to the private part of the state directory.
    """
    setup = ready.setup
    public, private = public_part(setup.state), private_part(setup.state)
    public.mkdir(exist_ok=True)
    private.mkdir(mode=0o700, exist_ok=True)
    write_posterior(public / POSTERIOR, posterior)
    attempts = Attempts()
    metrics, _ = attempts.attempt(
        "metrics",
        lambda: measure(posterior, None, ready.loaded.test, 100, ready.plan.seed),
        otherwise=({"training": None, "held_out": None}, None),
    )
    federation = setup.agreed.federation
    data = public_facts(federation.data, len(federation.parties))
    verdict = _with_server(
        verdict_facts(ready.plan, posterior, None, ready.loaded.layout),
        party.store.verdict,
        len(posterior.mean),
    )
    shared = PartyResult(
        name=federation.name,
        party=ready.name,
        run=party.store.run,
        configuration=setup.agreed.digest,
        privacy=statement(ready.plan),
        intervals=Intervals(warning=interval_note(ready.plan)),
        posterior=posterior_table(posterior),
        coefficients=stored_coefficients(posterior, data, verdict["learned"]),
        model=model_facts(ready.plan.model),
        data=data,
        guarantee=attempts.attempt("privacy", lambda: privacy_facts(ready.plan), otherwise=None),
        **verdict,
    )
    balance = attempts.attempt("ledger", lambda: _balance(ready, party, ledger), otherwise=None)
    local = PartyEvaluation(
        answers=party.store.visits
        if ledger is None
        else answers_charged(ledger, run_in_ledger(ready.first_approved, party.store.run or "")),
        stopped=None if party.store.stopped is None else to_builtins(party.store.stopped),
        sent_bytes=party.sent_bytes,
        received_bytes=party.received_bytes,
        metrics=metrics,
        ledger=balance,
        not_evaluated=attempts.failed,
        cautions=outside_notes(data_facts(ready.loaded)),
    )
    write_result(private / EVALUATION, local)
    write_result(public / RESULT, shared)
    return PartyEnd(shared, local)
