"""What has been agreed, in plain words: for an approval and for a check."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from tacit.cli.show.live import NO_RECORDS, records_here, say
from tacit.cli.show.results import show_table
from tacit.live.config import Agreed, Federation, ServerSetup
from tacit.live.join import ReadyParty, required_budget, spent_by
from tacit.live.settings import MIN_REPORTED_RECORDS, Start
from tacit.live.transport.tls import read_certificate
from tacit.plan.plan import Plan
from tacit.results.check import numbers_sent, plan_rows
from tacit.results.statements import statement
from tacit.server.schedule import Schedule

MOST_NAMES = 12


def show_approval(ready: ReadyParty, path: Path) -> None:
    """Everything that an operator agrees to, in plain words."""
    agreed, plan = ready.setup.agreed, ready.plan
    federation = agreed.federation
    names = f": {_listed(plan.model.names)}" if plan.model.listed else ""
    say(f"Federation {federation.name!r}, as {ready.name} would take part in it")
    _section(
        "What is agreed",
        [
            f"parties: {_listed(federation.parties)} ({len(federation.parties)})",
            f"model: {plan.model.kind} with {plan.model.dimension} parameters{names}",
            *(f"{what}: {value}" for what, value in plan_rows(plan)[1:]),
            f"a round needs {_quorum(federation)}",
            f"a party that leaves for good: {_on_leave(plan, federation)}",
            *([NO_RECORDS] if federation.records is None else []),
        ],
    )
    _section("The guarantee", _guarantee(ready, path))
    _section("What leaves this place", _leaves(ready))
    _section(
        "What never leaves",
        [
            f"the {records_here(ready):,} records themselves, or any one of them; there is no "
            "message that could hold one",
            "the key, the ledger and the metrics that are measured here",
        ],
    )
    _section("Who sees it", _seen_by(plan))
    say(f"digest: {agreed.digest}")
    say("  (the same for everybody who has the same file: compare it with the others by telephone)")


def _guarantee(ready: ReadyParty, path: Path) -> list[str]:
    plan = ready.plan
    if plan.privacy is None:
        return [
            "NOT PRIVATE. NO NOISE IS ADDED.",
            "Updates are computed from the records as they are; whoever sees them, or the "
            "posterior of every round, may be able to tell things about single records.",
        ]
    settled = plan.settled[ready.name]
    guarantee = settled.guarantee
    shares = f", of which this party adds 1/√{settled.shares}" if settled.shares > 1 else ""
    verb = (
        "added or removed" if guarantee.adjacency == "add-or-remove-one" else "replaced by another"
    )
    rows = [
        f"(ε = {guarantee.epsilon:.4g}, δ = {guarantee.delta:g}): what is sent looks almost the "
        f"same if one {guarantee.unit} is {verb}",
        guarantee.trust,
        f"noise in an answer: standard deviation {settled.noise_sd:.4g}{shares}, on contributions "
        f"of at most {settled.clip:g}; {settled.releases} releases",
    ]
    federation = ready.setup.agreed.federation
    if settled.shares > 1 and federation.quorum in (None, len(federation.parties)):
        rows.append(
            "one party whose answer cannot be used ends the run: every party adds a share of the "
            "noise, and all shares are needed"
        )
    if guarantee.caveat is not None:
        rows.insert(0, f"NOT PRIVATE: {guarantee.caveat.removeprefix('Not private: ')}")
    else:
        rows.append(f"charged to {ready.ledger_path}, under the budget that is set there")
        rows += _budget(ready, path)
    return rows


def _budget(ready: ReadyParty, path: Path) -> list[str]:
    """The budget that suffices, and the command that sets it."""
    guarantee, needed = ready.plan.settled[ready.name].guarantee, required_budget(ready)
    present = spent_by(ready)
    terms = f"δ = {guarantee.delta:g}, per {guarantee.unit}, {guarantee.adjacency}"
    spent = present.epsilon if present is not None else None
    after = f", {spent:.4g} of which was spent before" if spent else ""
    rows = [
        f"budget that suffices: ε = {needed:g} ({terms}){after}; that is exactly what the run "
        "costs, since an answer that is lost in a crash is not paid for again"
    ]
    limit = None if present is None else present.budget
    if limit is not None and limit.epsilon >= needed and limit.delta == guarantee.delta:
        return [*rows, f"budget that is set: ε = {limit.epsilon:g}: there is room"]
    file = path if limit is None else f"{path} --raise"
    return [
        *rows,
        f"to set it: tacit ledger budget {file} --epsilon {needed:g} "
        f"--delta {guarantee.delta:g} --reason …",
    ]


def _leaves(ready: ReadyParty) -> list[str]:
    plan, join = ready.plan, ready.setup.own.join
    numbers = numbers_sent(plan)
    noisy = "noisy " if plan.privacy is not None else ""
    private = plan.privacy is not None
    told = ready.reported_records
    return [
        f"{_answers(ready)}, each of {numbers:,} {noisy}numbers: changes of natural parameters",
        f"the number of records: {'not told' if told == 0 else f'told as {_count(told)}'}"
        f" (join.report_records = {join.report_records!r})",
        "the loss with each answer: "
        + (
            "not sent"
            if private or not join.send_loss
            else "yes, one exact number (join.send_loss = false withholds it)"
        ),
        "the name in the certificate, this machine's address, when it comes and goes"
        + (", and the guarantee above" if private else ""),
    ]


def _count(told: int) -> str:
    return f"fewer than {MIN_REPORTED_RECORDS}" if told == MIN_REPORTED_RECORDS - 1 else f"{told:,}"


def _answers(ready: ReadyParty) -> str:
    plan = ready.plan
    if plan.privacy is not None:
        return f"at most {plan.settled[ready.name].visits} answers, whatever a server asks for"
    count = times_asked(plan.schedule, tuple(plan.parties), plan.seed, ready.name)
    if plan.schedule.kind == "asynchronous":
        return f"about {count} answers, more if this party is quicker than others"
    return f"{count} answers if all rounds take place (a server could ask more often)"


def times_asked(schedule: Schedule, names: tuple[str, ...], seed: int, name: str) -> int:
    """How often the schedule asks a party."""
    rounds = range(1, schedule.rounds + 1)
    return sum(name in schedule.chosen(names, seed, number) for number in rounds)


def _seen_by(plan: Plan) -> list[str]:
    rows = ["the server and its operator: every answer of every party, by name"]
    if len(plan.parties) == 2:
        rows.append(
            "the other party: the posterior of every round, and, as there are only two, exactly "
            "this party's answers by subtraction"
        )
    else:
        rows.append("the other parties: the posterior of every round, not anybody's own answers")
    rows.append("whoever is on the line: that there is traffic and how much (TLS 1.3)")
    return rows


def _section(title: str, rows: list[str]) -> None:
    say("")
    say(title)
    for row in rows:
        say(f"  - {row}")


# Checks -----------------------------------------------------------------------------------------


def show_agreed(agreed: Agreed, plan: Plan) -> None:
    """What `tacit check` says of federation.toml."""
    rows = [["name", agreed.federation.name], *_agreed_rows(agreed, plan)]
    show_table("In order: this is what everybody would agree on", ["what", "value"], rows)


def show_server_check(setup: ServerSetup, plan: Plan, address: str, state: str) -> None:
    """What `tacit check` says of server.toml."""
    serve, federation = setup.own.serve, setup.agreed.federation
    rows = [
        ["certificate", _certificate(setup.base / serve.certificate)],
        ["listens on", address],
        ["state", state],
        ["starts", _start(serve.start, len(federation.parties))],
        ["a round needs", _quorum(federation)],
        ["late parties", _late(serve.deadline_s, federation.quorum)],
        ["revocation list", serve.revoked or "none: a lost key cannot be shut out"],
        ["metrics", serve.metrics or "nowhere"],
        *_agreed_rows(setup.agreed, plan),
    ]
    show_table("The server", ["what", "value"], rows)


def show_party_check(ready: ReadyParty, approval: str, budget: str) -> None:
    """What `tacit check` says of party.toml."""
    setup, join = ready.setup, ready.setup.own.join
    told = ready.reported_records
    rows = [
        ["party", ready.name],
        ["certificate", _certificate(ready.credentials.certificate)],
        ["servers", f"{', '.join(join.servers)} (not contacted)"],
        ["records", f"{records_here(ready):,} read; told as {told:,}" if told else
         f"{records_here(ready):,} read; their number is not told"],
        ["approval", approval],
        ["budget", budget],
        ["state", str(setup.state)],
        *_agreed_rows(setup.agreed, ready.plan),
    ]  # fmt: skip
    show_table("The party", ["what", "value"], rows)
    for note in ready.loaded.notes:
        say(f"note: {note}")


def _agreed_rows(agreed: Agreed, plan: Plan) -> list[list[str]]:
    federation = agreed.federation
    return [
        ["parties", f"{_listed(federation.parties)} ({len(federation.parties)})"],
        *map(list, plan_rows(plan)),
        ["quorum", _quorum(federation)],
        ["a party that leaves", _on_leave(plan, federation)],
        ["privacy", statement(plan)],
        ["digest", agreed.digest],
    ]


def _certificate(path: Path) -> str:
    found = read_certificate(path)
    name = found.subject.rfc4514_string().removeprefix("CN=")
    end = found.not_valid_after_utc
    days = (end - datetime.now(end.tzinfo)).days
    soon = ": renew it soon" if days < 30 else ""
    return f"{name}, until {end:%Y-%m-%d} ({days} days){soon}"


def _start(start: Start, parties: int) -> str:
    rules = []
    if start.parties is not None:
        rules.append(f"{start.parties} parties have joined")
    elif not start.command and start.at is None:
        rules.append(f"all {parties} parties have joined")
    else:
        rules.append("one party has joined")
    if start.at is not None:
        rules.append(f"it is {start.at:%Y-%m-%d %H:%M %Z}")
    if start.command:
        rules.append("tacit server start is given")
    return "once " + " and ".join(rules)


def _quorum(federation: Federation) -> str:
    if federation.quorum is None:
        return "an answer of every party that is asked and has not left"
    return f"{federation.quorum} answers of the {len(federation.parties)} parties"


def _late(deadline_s: float | None, quorum: int | None) -> str:
    if deadline_s is None:
        return "waited for, however long (serve.deadline_s is not set)"
    if quorum is None:
        return (
            f"waited for: serve.deadline_s = {deadline_s:g} has no effect without an agreed quorum"
        )
    return f"passed over after {deadline_s:g} s, once {quorum} have answered"


def _on_leave(plan: Plan, federation: Federation) -> str:
    if federation.on_leave == "divide-out" and plan.privacy is None:
        return "what it has said is divided out of the posterior"
    if federation.on_leave == "divide-out":
        return "what it has said stays: in a private run it cannot be told apart from the rest"
    return "what it has said stays in the posterior"


def _listed(names: tuple[str, ...]) -> str:
    more = f", … and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more
