"""Terms of a federation as text, for approval and check."""

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
from tacit.results.check import as_range, plan_rows, reply_sizes
from tacit.results.diagnostics import unchecked_caution
from tacit.results.statements import statement
from tacit.server.schedule import Schedule

MOST_NAMES = 12


def show_approval(ready: ReadyParty, path: Path) -> None:
    """Show everything that an operator approves."""
    agreed, plan = ready.setup.agreed, ready.plan
    federation = agreed.federation
    names = f": {_listed(plan.model.names)}" if plan.model.listed else ""
    say(f"Federation {federation.name!r}, terms for party {ready.name}")
    _section(
        "Agreement",
        [
            f"parties: {_listed(federation.parties)} ({len(federation.parties)})",
            f"model: {plan.model.kind} with {plan.model.dimension} parameters{names}",
            *(f"{what}: {value}" for what, value in plan_rows(plan)[1:]),
            f"a round needs {_quorum(federation, plan)}",
            f"if a party leaves permanently: {_on_leave(plan, federation)}",
            *([NO_RECORDS] if federation.records is None else []),
            *_limits(plan),
        ],
    )
    _section("Privacy guarantee", _guarantee(ready, path))
    _section("What is sent", _leaves(ready))
    _section(
        "What is never sent",
        [
            f"the {records_here(ready):,} records; no message of the protocol can hold a record",
            "the key, the ledger and local metrics",
        ],
    )
    _section("Who sees it", _seen_by(plan))
    say(f"digest: {agreed.digest}")
    say("  (check over another channel that the other parties have the same digest)")


def show_version(ready: ReadyParty, added: list[str]) -> None:
    """Show a version that adds parties to a running federation: what changes, and what does not."""
    agreed, plan = ready.setup.agreed, ready.plan
    federation = agreed.federation
    say(f"Federation {federation.name!r}, version {federation.version}, for party {ready.name}")
    _section(
        "What changes",
        [
            f"new parties: {_listed(tuple(added))}; then {len(federation.parties)} in all",
            "after joining they receive the posterior of every round, which includes this party's "
            "contributions",
            "the version takes effect once every party has approved it; until then the run follows "
            "the old version",
        ],
    )
    unchanged = ["model, method, schedule and every other term of the agreement"]
    if plan.settled:
        settled = plan.settled[ready.name]
        unchanged += [
            f"the guarantee: {settled.guarantee}",
            f"noise {as_range(*settled.noise_range)}, at most {settled.visits} replies; replies "
            f"are charged to {ready.ledger_path} as approved for this run",
        ]
    _section("What stays", unchanged)
    say(f"digest: {agreed.digest}")
    say("  (check over another channel that the other parties have the same digest)")


def _limits(plan: Plan) -> list[str]:
    """Return lines that say which facts a private result will not contain."""
    if plan.privacy is None:
        return []
    return [f"limit: {one.text}" for one in unchecked_caution(plan)]


def _guarantee(ready: ReadyParty, path: Path) -> list[str]:
    plan = ready.plan
    if plan.privacy is None:
        return [
            "NOT PRIVATE. NO NOISE IS ADDED.",
            "Updates are computed from exact records. The updates and the posterior of every round "
            "may reveal single records.",
        ]
    settled = plan.settled[ready.name]
    guarantee = settled.guarantee
    shares = f", of which this party adds 1/√{settled.shares}" if settled.shares > 1 else ""
    verb = (
        "added or removed" if guarantee.adjacency == "add-or-remove-one" else "replaced by another"
    )
    rows = [
        f"(ε = {guarantee.epsilon:.4g}, δ = {guarantee.delta:g}): messages are almost "
        f"unchanged in distribution if one {guarantee.unit} is {verb}",
        guarantee.trust,
        f"noise in a reply: standard deviation {as_range(*settled.noise_range)}{shares}, on "
        f"contributions of at most {settled.clip:g}; {settled.releases} releases",
    ]
    federation = ready.setup.agreed.federation
    everyone = federation.quorum in (None, len(federation.parties)) and plan.thresholds is None
    if settled.shares > 1 and everyone:
        rows.append(
            "the run ends if one party's reply cannot be used: every party adds a share of the "
            "noise, and all shares are needed"
        )
    if guarantee.caveat is not None:
        rows.insert(0, f"NOT PRIVATE: {guarantee.caveat.removeprefix('Not private: ')}")
    else:
        rows.append(f"charged to {ready.ledger_path}, under its budget")
        rows += _budget(ready, path)
    return rows


def _budget(ready: ReadyParty, path: Path) -> list[str]:
    """Return lines with the required budget and the command that sets it."""
    guarantee, needed = ready.plan.settled[ready.name].guarantee, required_budget(ready)
    present = spent_by(ready)
    terms = f"δ = {guarantee.delta:g}, per {guarantee.unit}, {guarantee.adjacency}"
    spent = present.epsilon if present is not None else None
    after = f", {spent:.4g} of which was spent before" if spent else ""
    rows = [f"required budget: ε = {needed:g} ({terms}){after}; crashes do not increase it"]
    limit = None if present is None else present.budget
    if limit is not None and limit.epsilon >= needed and limit.delta == guarantee.delta:
        return [*rows, f"current budget: ε = {limit.epsilon:g}, sufficient"]
    file = path if limit is None else f"{path} --raise"
    return [
        *rows,
        f"to set it: tacit ledger budget {file} --epsilon {needed:g} "
        f"--delta {guarantee.delta:g} --reason …",
    ]


def _leaves(ready: ReadyParty) -> list[str]:
    plan, join = ready.plan, ready.setup.own.join
    sizes = ", ".join(f"{size:,} ({stage})" for stage, size in reply_sizes(plan).items())
    noisy = "noisy " if plan.privacy is not None else ""
    private = plan.privacy is not None
    told = ready.reported_records
    return [
        f"{_answers(ready)}; {noisy}numbers per reply, by stage: {sizes}",
        f"the number of records: {'not reported' if told == 0 else f'reported as {_count(told)}'}"
        f" (join.report_records = {join.report_records!r})",
        "the loss with each reply: "
        + (
            "not sent"
            if private or not join.send_loss
            else "yes, one exact number (join.send_loss = false withholds it)"
        ),
        "the name in the certificate, this machine's address, times of connections"
        + (", and the guarantee above" if private else ""),
    ]


def _count(told: int) -> str:
    return f"fewer than {MIN_REPORTED_RECORDS}" if told == MIN_REPORTED_RECORDS - 1 else f"{told:,}"


def _answers(ready: ReadyParty) -> str:
    plan = ready.plan
    if plan.privacy is not None:
        return f"at most {plan.settled[ready.name].visits} replies, whatever a server requests"
    count = times_asked(plan.schedule, tuple(plan.parties), plan.seed, ready.name)
    if plan.rules.order == "asynchronous":
        return f"about {count} replies, more if this party is faster than others"
    return f"{count} replies if all rounds take place (a server could request more)"


def times_asked(schedule: Schedule, names: tuple[str, ...], seed: int, name: str) -> int:
    """Count the requests that the party `name` receives under the schedule."""
    rounds = range(1, schedule.rounds + 1)
    return sum(name in schedule.chosen(names, seed, number) for number in rounds)


def _seen_by(plan: Plan) -> list[str]:
    rows = ["the server and its operator: every reply of every party, by name"]
    if plan.thresholds is not None:
        rows = ["the server and its operator: masked replies, and the sum of each round"]
    if len(plan.parties) == 2:
        rows.append(
            "the other party: the posterior of every round, from which it can compute this "
            "party's exact replies because there are only two parties"
        )
    else:
        rows.append("the other parties: the posterior of every round, not individual replies")
    rows.append("network observers: time and amount of traffic (TLS 1.3)")
    return rows


def _section(title: str, rows: list[str]) -> None:
    say("")
    say(title)
    for row in rows:
        say(f"  - {row}")


# Checks -----------------------------------------------------------------------------------------


def show_agreed(agreed: Agreed, plan: Plan) -> None:
    """Show the output of `tacit check federation.toml`."""
    rows = [["name", agreed.federation.name], *_agreed_rows(agreed, plan)]
    show_table("Agreement is valid", ["item", "value"], rows)


def show_server_check(setup: ServerSetup, plan: Plan, address: str, state: str) -> None:
    """Show the output of `tacit check server.toml`."""
    serve, federation = setup.own.serve, setup.agreed.federation
    quorum = plan.thresholds.quorum if plan.thresholds else federation.quorum
    rows = [
        ["certificate", _certificate(setup.base / serve.certificate)],
        ["listens on", address],
        ["state", state],
        ["starts", _start(serve.start, len(federation.parties))],
        ["a round needs", _quorum(federation, plan)],
        ["late parties", _late(serve.deadline_s, quorum)],
        ["revocation list", serve.revoked or "none: a lost key cannot be revoked"],
        ["metrics", serve.metrics or "not published"],
        *_agreed_rows(setup.agreed, plan),
    ]
    show_table("The server", ["item", "value"], rows)


def show_party_check(ready: ReadyParty, approval: str, budget: str) -> None:
    """Show the output of `tacit check party.toml`."""
    setup, join = ready.setup, ready.setup.own.join
    told = ready.reported_records
    rows = [
        ["party", ready.name],
        ["certificate", _certificate(ready.credentials.certificate)],
        ["servers", f"{', '.join(join.servers)} (not contacted)"],
        ["records", f"{records_here(ready):,} read; reported as {told:,}" if told else
         f"{records_here(ready):,} read; their number is not reported"],
        ["approval", approval],
        ["budget", budget],
        ["state", str(setup.state)],
        *_agreed_rows(setup.agreed, ready.plan),
    ]  # fmt: skip
    show_table("The party", ["item", "value"], rows)
    for note in ready.loaded.notes:
        say(f"note: {note}")


def _agreed_rows(agreed: Agreed, plan: Plan) -> list[list[str]]:
    federation = agreed.federation
    return [
        ["parties", f"{_listed(federation.parties)} ({len(federation.parties)})"],
        *map(list, plan_rows(plan)),
        ["quorum", _quorum(federation, plan)],
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
        rules.append("the server's operator has run tacit server start")
    return "once " + " and ".join(rules)


def _quorum(federation: Federation, plan: Plan) -> str:
    if plan.thresholds is not None:
        return f"{plan.thresholds.quorum} replies from the {len(federation.parties)} parties"
    if federation.quorum is None:
        return "a reply from every requested party that has not left"
    return f"{federation.quorum} replies from the {len(federation.parties)} parties"


def _late(deadline_s: float | None, quorum: int | None) -> str:
    if deadline_s is None:
        return "the server waits without limit (serve.deadline_s is not set)"
    if quorum is None:
        return f"the server waits: serve.deadline_s = {deadline_s:g} has no effect without a quorum"
    return f"skipped after {deadline_s:g} s, once {quorum} have replied"


def _on_leave(plan: Plan, federation: Federation) -> str:
    if federation.on_leave == "divide-out" and plan.privacy is None:
        return "its contribution is divided out of the posterior"
    if federation.on_leave == "divide-out":
        return "its contribution stays: in a private run it cannot be separated"
    return "its contribution stays in the posterior"


def _listed(names: tuple[str, ...]) -> str:
    more = f", … and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more
