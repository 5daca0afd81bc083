"""What the commands of a live federation say: events as lines, an approval in plain words."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.progress import TextColumn

from tacit.cli.show import (
    _Bar,
    console,
    numbers_sent,
    plan_rows,
    show_coefficients,
    show_metrics,
    show_table,
)
from tacit.federate import Plan
from tacit.live.config import Agreed, Federation, ServerSetup
from tacit.live.join import ReadyParty
from tacit.notebook import statement
from tacit.party import len_records
from tacit.privacy.ledger import Spent
from tacit.schedule import Schedule
from tacit.wire.settings import Start
from tacit.wire.tls import read_certificate

Line = dict[str, Any]
MOST_NAMES = 12
MOST_REFUSALS = 3


def say(text: str) -> None:
    """One line as it is; what a peer wrote cannot move the cursor or colour the screen."""
    shown = "".join(sign if sign.isprintable() else " " for sign in text)
    console.print(shown, highlight=False, markup=False)


def say_json(line: Line) -> None:
    """One event for journald or another program, at once."""
    print(json.dumps(line, default=str), flush=True)


class LiveProgress(_Bar):
    """Rounds of a live run, under the lines that scroll by."""

    def __init__(self, name: str, rounds: int) -> None:
        super().__init__(TextColumn("{task.fields[note]}"), on=console)
        self._name, self._rounds = name, rounds

    def at(self, number: int, note: str = "") -> None:
        """Show that so many rounds are over."""
        self._at(number, self._rounds, self._name, note=f"round {number}/{self._rounds} {note}")


# A running server -------------------------------------------------------------------------------


class ServerLines:
    """Events of a server as lines for people; `return_in_s` is what it told the parties."""

    def __init__(self, setup: ServerSetup, progress: LiveProgress) -> None:
        self._progress = progress
        self._all = len(setup.agreed.federation.parties)
        self._joined: set[str] = set()
        self._refused: dict[str, int] = {}
        self.return_in_s: float | None = None

    def __call__(self, line: Line) -> None:
        """Say one event."""
        words = self._words(line)
        if words is not None:
            say(f"{_clock(line)}  {words}")
        if line["event"] == "round":
            self._progress.at(line["round"], _loss(line).rstrip(", "))

    def _words(self, line: Line) -> str | None:
        event, party = line["event"], line.get("party", "")
        if event in ("joined", "rejoined"):
            self._joined.add(party)
            told = f", about {line['data_size']:,} records" if line.get("data_size") else ""
            here = f"; {len(self._joined)} of {self._all} have come"
            return f"{party} {event} from {line['address']}{told}{here}"
        if event == "refused":
            return self._refusal(line)
        if event == "closing":
            self.return_in_s = line.get("return_in_s")
        known = _SERVER_EVENTS.get(event)
        return None if known is None else known(line)

    def _refusal(self, line: Line) -> str | None:
        if "kind" not in line:  # an update, not a peer
            return f"round {line['round']}: an update was refused: {line['reason']}"
        kind = line["kind"]
        seen = self._refused[kind] = self._refused.get(kind, 0) + 1
        if seen > MOST_REFUSALS:
            return None
        who = line.get("party") or line.get("address", "somebody")
        more = "; further ones of this kind are in log.jsonl only" if seen == MOST_REFUSALS else ""
        return f"turned away: {who} ({kind}: {line['reason']}){more}"


_SERVER_EVENTS: dict[str, Callable[[Line], str | None]] = {
    "stand-by": lambda line: (
        f"stand-by: another server holds {line['state']}; waiting until it is gone"
    ),
    "listening": lambda line: (
        f"listening on {line['address']}: {line['run']}, {line['state']}; "
        f"configuration {line['configuration'][:12]}…"
    ),
    "metrics": lambda line: f"metrics at http://{line['address']}/metrics",
    "begin": lambda line: f"training begins with {line['parties']} parties",
    "round": lambda line: (
        f"round {line['round']}: {_loss(line)}q moved by {line['step_kl']:.3g} nats"
    ),
    "skipped": lambda line: f"round {line['round']}: passed over {line['party']}, which is late",
    "waiting": lambda line: (
        f"past the deadline, but no quorum without {', '.join(line['late'])}: waiting"
    ),
    "too few": lambda line: (
        f"round {line['round']}: fewer parties are left than the quorum of {line['quorum']}"
    ),
    "parted": lambda line: (
        f"{line['party']} leaves"
        + (f", back in {line['back_in_s']:g} s" if "back_in_s" in line else " for good")
        + (f" ({line['reason']})" if line.get("reason") else "")
    ),
    "left": lambda line: f"{line['party']} has left for good; its factor is {line['factor']}",
    "hung up": lambda line: f"{line['party']} is cut off: {line['reason']}",
    "replaced": lambda line: f"{line['party']} has a newer connection; the old one is closed",
    "returned": lambda line: f"{line['party']} returned its factor: {line['factor']}",
    "finished with": lambda line: f"{line['party']} has heard all it needs",
    "party error": lambda line: f"{line['party']} reports: {line['reason']}",
    "closing": lambda line: f"closing: {line['reason']}",
    "internal": lambda line: f"internal: {line['reason']}; please report this",
}


def show_server_end(setup: ServerSetup, result: dict[str, Any]) -> None:
    """The posterior and where it lies."""
    from tacit.cli.show import show_result

    show_result(result)
    say(f"posterior and result: {setup.state / 'posterior.npz'}, {setup.state / 'result.json'}")


# A party that takes part ------------------------------------------------------------------------


class PartyLines:
    """Events of a party as lines for people."""

    def __init__(self, progress: LiveProgress) -> None:
        self._progress = progress
        self._tries = 0

    def __call__(self, line: Line) -> None:
        """Say one event."""
        self._tries = self._tries + 1 if line["event"] == "no connection" else 0
        if self._tries > MOST_REFUSALS:
            return
        known = _PARTY_EVENTS.get(line["event"])
        words = None if known is None else known(line)
        if words is not None:
            again = "; trying on, quietly" if self._tries == MOST_REFUSALS else ""
            say(f"{_clock(line)}  {words}{again}")
        if line["event"] == "answered":
            self._progress.at(line["round"], f"{line['sent_bytes']:,} bytes sent{_spent(line)}")


def _spent(line: Line) -> str:
    if "epsilon_spent" not in line:
        return ""
    return f"; ε = {line['epsilon_spent']:.3g} of {line['ceiling']:g} spent"


_PARTY_EVENTS: dict[str, Callable[[Line], str | None]] = {
    "no connection": lambda line: line["reason"],
    "connected": lambda line: (
        f"connected to {line['server']}: {line.get('run', 'a run')}"
        + (f", {line['parties']} parties" if "parties" in line else "")
    ),
    "answered": lambda line: (
        f"round {line['round']}: answer {line['visit'] + 1} sent after "
        f"{line['seconds']:.2f} s; {line['sent_bytes']:,} bytes sent so far{_spent(line)}"
    ),
    "server closes": lambda line: f"{line['reason']}; back in {line['back']:g} s",
    "cut off": lambda line: f"cut off from {line['server']}: {line['reason']}; connecting again",
    "end of training": lambda _: "end of training: the posterior is here",
    "ceiling": lambda line: f"leaving: {line['reason']}",
    "cannot answer": lambda line: f"leaving: {line['reason']}",
    "left without an answer": lambda line: f"left; the server said nothing: {line['reason']}",
}


def show_party_start(ready: ReadyParty, spent: Spent | None) -> None:
    """Who takes part in what, and what it may cost."""
    federation, join = ready.setup.agreed.federation, ready.setup.own.join
    say(
        f"{ready.name} in {federation.name!r}, configuration {ready.setup.agreed.digest[:12]}…; "
        f"{_records(ready):,} records stay here; servers: {', '.join(join.servers)}"
    )
    if ready.plan.privacy is None:
        say("NOT PRIVATE: exact updates are sent, which may reveal records")
        return
    settled = ready.plan.settled[ready.name]
    say(f"private: {settled.guarantee}")
    say(f"ledger {ready.ledger_path}: {_of_ceiling(spent)}; {settled.visits} answers at most")


def show_party_end(ready: ReadyParty, result: dict[str, Any], spent: Spent | None) -> None:
    """The posterior, the party's own metrics and what it all cost."""
    show_coefficients(result)
    show_metrics(result["metrics"])
    say(
        f"{result['answers']} answers in {result['run']}; {result['sent_bytes']:,} bytes sent, "
        f"{result['received_bytes']:,} received"
    )
    say(f"privacy: {result['privacy']}")
    if ready.plan.privacy is not None:
        say(f"ledger {ready.ledger_path}: {_of_ceiling(spent)}")
    state = ready.setup.state
    say(f"posterior and result: {state / 'posterior.npz'}, {state / 'result.json'}")


def _of_ceiling(spent: Spent | None) -> str:
    if spent is None or spent.epsilon is None or spent.ceiling is None:
        return "nothing spent"
    return (
        f"ε = {spent.epsilon:.4g} spent of {spent.ceiling.epsilon:g} (δ = {spent.ceiling.delta:g})"
    )


# Approval ---------------------------------------------------------------------------------------


def show_approval(ready: ReadyParty) -> None:
    """Everything that an operator agrees to, in plain words."""
    agreed, plan = ready.setup.agreed, ready.plan
    federation = agreed.federation
    names = plan.model.names
    say(f"Federation {federation.name!r}, as {ready.name} would take part in it")
    _section(
        "What is agreed",
        [
            f"parties: {_listed(federation.parties)} ({len(federation.parties)})",
            f"model: {plan.model.kind} with {plan.model.dimension} parameters: {_listed(names)}",
            *(f"{what}: {value}" for what, value in plan_rows(plan)[1:]),
            f"a round needs {_quorum(federation)}",
            f"a party that leaves for good: {_on_leave(plan, federation)}",
        ],
    )
    _section("The guarantee", _guarantee(ready))
    _section("What leaves this place", _leaves(ready))
    _section(
        "What never leaves",
        [
            f"the {_records(ready):,} records themselves, or any one of them; there is no message "
            "that could hold one",
            "the key, the ledger and the metrics that are measured here",
        ],
    )
    _section("Who sees it", _seen_by(plan))
    say(f"digest: {agreed.digest}")
    say("  (the same for everybody who has the same file: compare it with the others by telephone)")


def _guarantee(ready: ReadyParty) -> list[str]:
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
    verb = "added or removed" if guarantee.relation == "add-or-remove" else "replaced by another"
    rows = [
        f"(ε = {guarantee.epsilon:.4g}, δ = {guarantee.delta:g}): what is sent looks almost the "
        f"same if one {guarantee.unit} is {verb}",
        f"trusted: {guarantee.trust}",
        f"noise in an answer: standard deviation {settled.noise_sd:.4g}{shares}, on contributions "
        f"of at most {settled.clip:g}; {sum(one.count for one in settled.all_events)} releases",
    ]
    if guarantee.caveat is not None:
        rows.insert(0, f"NOT PRIVATE: {guarantee.caveat.removeprefix('Not private: ')}")
    else:
        rows.append(f"charged to {ready.ledger_path}, under the ceiling that is set there")
    return rows


def _leaves(ready: ReadyParty) -> list[str]:
    plan, join = ready.plan, ready.setup.own.join
    numbers = numbers_sent(plan)
    noisy = "noisy " if plan.privacy is not None else ""
    private = plan.privacy is not None
    told = ready.told_records
    return [
        f"{_answers(ready)}, each of {numbers:,} {noisy}numbers: changes of natural parameters",
        f"the number of records: {'not told' if told == 0 else f'told as {told:,}'}"
        f" (join.record_count = {join.record_count!r})",
        "the loss with each answer: "
        + (
            "not sent"
            if private or not join.send_loss
            else "yes, one exact number (join.send_loss = false withholds it)"
        ),
        "the name in the certificate, this machine's address, when it comes and goes"
        + (", and the guarantee above" if private else ""),
    ]


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
    told = ready.told_records
    rows = [
        ["party", ready.name],
        ["certificate", _certificate(ready.credentials.certificate)],
        ["servers", f"{', '.join(join.servers)} (not contacted)"],
        ["records", f"{_records(ready):,} read; told as {told:,}" if told else
         f"{_records(ready):,} read; their number is not told"],
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
        *plan_rows(plan),
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
        rules.append("tacit control … start is given")
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


def _records(ready: ReadyParty) -> int:
    return len_records(ready.loaded.parties[ready.name])


def _clock(line: Line) -> str:
    time = line.get("time")
    moment = datetime.now().astimezone() if time is None else datetime.fromisoformat(time)
    return f"{moment.astimezone():%H:%M:%S}"


def _loss(line: Line) -> str:
    return "" if line.get("loss") is None else f"loss {line['loss']:.4f}, "


# Status -----------------------------------------------------------------------------------------


def show_server_status(status: dict[str, Any], *, running: bool) -> None:
    """status.json for people."""
    where = f", port {status['port']}" if running else ""
    say(
        f"{status['run']}: {_phase(status['phase'])}, round {status['round']} of "
        f"{status['rounds']}; the server {'runs' if running else 'does not run'} (process "
        f"{status['process']}{where}, written {status['updated']})"
    )
    if status["loss"] is not None:
        say(f"loss {status['loss']:.4f}")
    if status["step_kl"] is not None:
        say(f"the last round moved q by {status['step_kl']:.3g} nats")
    rows = [
        [name, _presence(one, running=running), one["visits"], one["data_size"] or "not told",
         one["guarantee"]["epsilon"] if one["guarantee"] else "", one["bytes_in"], one["bytes_out"]]
        for name, one in status["parties"].items()
    ]  # fmt: skip
    columns = ["party", "is", "asked", "records told", "ε promised", "bytes in", "bytes out"]
    show_table("Parties", columns, rows)
    if status["turned_away"]:
        kinds = ", ".join(f"{kind} {count}" for kind, count in status["turned_away"].items())
        say(f"turned away: {kinds}")


def _phase(phase: str) -> str:
    if phase in ("waiting for parties", "training"):
        return phase
    return f"finished ({'all rounds' if phase == 'rounds' else phase})"


def _presence(one: dict[str, Any], *, running: bool) -> str:
    if one["left"]:
        return "gone for good"
    if not one["joined"]:
        return "not here yet"
    if not running:
        return "a member"
    if not one["connected"]:
        return "away, passed over" if one["passed_over"] else "away"
    return "at work" if one["asked"] else "here"


def show_party_status(status: dict[str, Any]) -> None:
    """A party's own state for people."""
    say(
        f"{status['state']}: {'takes part now' if status['running'] else 'does not run'}; "
        f"{status['answers']} answers in {status['run'] or 'no run yet'}"
        + ("; the posterior is here" if status["finished"] else "")
    )
    approved = status["approved"]
    say(f"approved: {approved[:12]}…" if approved else "approved: nothing; tacit approve")
    if status["ledger"] is not None:
        book = status["ledger"]
        say(f"ledger {book['path']}: ε = {book['epsilon']:.4g} spent of {book['ceiling']:g}")
    for line, following in zip(status["log"], [*status["log"][1:], None], strict=True):
        if line["event"] == "asked" and following is not None:
            continue  # the answer says it too
        known = _PARTY_EVENTS.get(line["event"])
        words = known(line) if known is not None else None
        say(f"{line['time'][:19]}Z  {words or line['event']}")
