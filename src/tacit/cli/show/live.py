"""Terminal output of a live federation: events and status."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

from tacit.cli.show.results import (
    EXACT,
    _Bar,
    console,
    plain_column,
    printable,
    show_coefficients,
    show_metrics,
    show_table,
    show_verdict,
    show_warning,
)
from tacit.data.records import len_records
from tacit.live.config import ServerSetup
from tacit.live.join import PartyEnd, ReadyParty
from tacit.live.settings import MIN_REPORTED_RECORDS
from tacit.privacy.ledger.ledger import Spent
from tacit.results.summary import Result

Line = dict[str, Any]
MOST_NAMES = 12
MOST_REFUSALS = 3


NO_RECORDS = (
    "the federation file has no key `records`: updates are bounded only by the number of records "
    "that each party announces, so one party could dominate the result"
)


def say(text: str) -> None:
    """Print one line without control characters."""
    console.print(printable(text).replace("\n", " "), highlight=False, markup=False)


def say_json(line: Line) -> None:
    """Print one event as JSON and flush."""
    print(json.dumps(line, default=str), flush=True)


class LiveProgress(_Bar):
    """Progress bar of a live run."""

    def __init__(self, name: str) -> None:
        super().__init__(plain_column("{task.fields[note]}"), on=console)
        self._name = name
        self.rounds = 0
        """Number of rounds; 0 until the plan is known."""

    def at(self, number: int, note: str = "") -> None:
        """Show that `number` rounds are done."""
        rounds = max(self.rounds, number)
        self._at(number, rounds, self._name, note=f"round {number}/{rounds} {note}")


# A running server -------------------------------------------------------------------------------


class ServerLines:
    """Prints a server's events; `return_in_s` is the announced time until it runs again."""

    def __init__(self, setup: ServerSetup, progress: LiveProgress) -> None:
        self._progress = progress
        self._all = len(setup.agreed.federation.parties)
        self._records_agreed = setup.agreed.federation.records is not None
        self._joined: set[str] = set()
        self._refused: dict[str, int] = {}
        self.return_in_s: float | None = None

    def __call__(self, line: Line) -> None:
        """Print one event."""
        words = self._words(line)
        if words is not None:
            say(f"{_clock(line)}  {words}")
        if line["event"] == "listening":
            self._progress.rounds = line["rounds"]
            if not self._records_agreed:  # after the first line, which programs wait for
                say(f"note: {NO_RECORDS}")
        if line["event"] == "round":
            self._progress.at(line["round"], _elbo(line).rstrip(", "))

    def _words(self, line: Line) -> str | None:
        event, party = line["event"], line.get("party", "")
        if event in ("joined", "rejoined"):
            self._joined.add(party)
            told = f", {_told(line['data_size'])} records" if line.get("data_size") else ""
            here = f"; {len(self._joined)} of {self._all} joined"
            return f"{party} {event} from {line['address']}{told}{here}"
        if event == "refused":
            return self._refusal(line)
        if event == "closing":
            self.return_in_s = line.get("return_in_s")
        known = _SERVER_EVENTS.get(event)
        return None if known is None else known(line)

    def _refusal(self, line: Line) -> str | None:
        if "kind" not in line:  # the refusal of an update, not of a peer
            return f"round {line['round']}: an update was refused: {line['reason']}"
        kind = line["kind"]
        seen = self._refused[kind] = self._refused.get(kind, 0) + 1
        if seen > MOST_REFUSALS:
            return None
        who = line.get("party") or line.get("address", "a peer")
        more = "; further refusals of this kind: see log.jsonl" if seen == MOST_REFUSALS else ""
        return f"refused: {who} ({kind}: {line['reason']}){more}"


_SERVER_EVENTS: dict[str, Callable[[Line], str | None]] = {
    "stand-by": lambda line: (
        f"stand-by: another server holds {line['state']}; waiting until it stops"
    ),
    "listening": lambda line: (
        f"listening on {line['address']}: {line['run']}, {line['state']}; "
        f"configuration {line['configuration'][:12]}…"
    ),
    "metrics": lambda line: f"metrics at http://{line['address']}/metrics",
    "begin": lambda line: f"training begins with {line['parties']} parties",
    "secure sum": lambda line: (
        "secure sums are set up: all parties have exchanged keys and shares"
        if line["step"] == "set-up"
        else None
    ),
    "round": lambda line: f"round {line['round']}: {_elbo(line)}{_change(line)}",
    "skipped": lambda line: f"round {line['round']}: skipped {line['party']}, which is late",
    "waiting": lambda line: (
        f"past the deadline, but no quorum without {', '.join(line['late'])}: waiting"
        if line.get("step", "vectors").startswith("vectors")
        else f"waiting for {line['step']} from {', '.join(line['late'])}"
        + (f"; {line['threshold']} answers are needed" if "threshold" in line else "")
    ),
    "too few": lambda line: (
        _too_few(line)
        + (f"; left permanently: {', '.join(line['left'])}" if line.get("left") else "")
        + (f"; left out: {', '.join(line['left_out'])}" if line.get("left_out") else "")
    ),
    "left out": lambda line: (
        f"{line['party']} is left out from round {line['round']} on: {line['reason']}. The run "
        f"continues without it. Its factor: {line['factor']}"
    ),
    "proposed": lambda line: (
        f"version {line['version']} is proposed, digest {line['configuration'][:12]}…; it waits "
        f"for {_some(line['waits_for'])}"
    ),
    "not proposed": lambda line: f"no new version: {line['reason']}",
    "approved": lambda line: f"{line['party']} has approved version {line['version']}",
    "version": lambda line: (
        f"version {line['version']} takes effect; it adds {', '.join(line['parties'])}"
    ),
    "readmitted": lambda line: f"{line['party']} takes part again from round {line['round']} on",
    "not readmitted": lambda line: f"{line['wanted']} is not readmitted: it was not left out",
    "parted": lambda line: (
        f"{line['party']} leaves"
        + (f", back in {line['back_in_s']:g} s" if "back_in_s" in line else " permanently")
        + (", and waits for the result" if line.get("listening") else "")
        + (f" ({line['reason']})" if line.get("reason") else "")
    ),
    "left": lambda line: f"{line['party']} has left permanently; its factor is {line['factor']}",
    "hung up": lambda line: f"connection to {line['party']} lost: {line['reason']}",
    "replaced": lambda line: f"{line['party']} has a newer connection; the old one is closed",
    "returned": lambda line: f"{line['party']} returned its factor: {line['factor']}",
    "finished with": lambda line: f"{line['party']} received the final posterior",
    "closed with": lambda line: f"{line['party']} has confirmed that the server closes",
    "party error": lambda line: f"{line['party']} reports: {line['reason']}",
    "closing": lambda line: f"closing: {line['reason']}",
    "status not written": lambda line: (
        f"warning: {line['path']} cannot be written ({line['reason']}); the run continues"
    ),
    "log not written": lambda line: (
        f"warning: {line['path']} cannot be written ({line['reason']}); the run continues"
    ),
    "internal": lambda line: f"internal: {line['reason']}; please report this",
}


def show_server_end(setup: ServerSetup, result: Result) -> None:
    """Show the posterior and the directory that contains it."""
    from tacit.cli.show.results import show_result

    show_result(result)
    say(f"posterior and result (shareable): {setup.state / 'public'}")


# A party that takes part ------------------------------------------------------------------------


class PartyLines:
    """Prints a party's events."""

    def __init__(self, progress: LiveProgress) -> None:
        self._progress = progress
        self._tries = 0

    def __call__(self, line: Line) -> None:
        """Print one event."""
        self._tries = self._tries + 1 if line["event"] == "no connection" else 0
        if self._tries > MOST_REFUSALS:
            return
        known = _PARTY_EVENTS.get(line["event"])
        words = None if known is None else known(line)
        if words is not None:
            again = "; further attempts are not shown" if self._tries == MOST_REFUSALS else ""
            say(f"{_clock(line)}  {words}{again}")
        if line["event"] == "answered":
            self._progress.at(line["round"], f"{line['sent_bytes']:,} bytes sent{_spent(line)}")


def _spent(line: Line) -> str:
    if "epsilon_spent" not in line:
        return ""
    return (
        f"; ε = {line['epsilon_spent']:.3g} of {line['budget']:g} spent "
        f"(δ = {line['delta']:g}, per {line['unit']}, {line['adjacency']})"
    )


_PARTY_EVENTS: dict[str, Callable[[Line], str | None]] = {
    "no connection": lambda line: line["reason"],
    "connected": lambda line: (
        f"connected to {line['server']}: {line.get('run', 'a run')}"
        + (f", {line['parties']} parties" if "parties" in line else "")
    ),
    "answered": lambda line: (
        f"round {line['round']}: reply {line['visit'] + 1} sent after "
        f"{line['seconds']:.2f} s; {line['sent_bytes']:,} bytes sent so far{_spent(line)}"
    ),
    "waiting": lambda line: line["reason"],
    "approval sent": lambda line: line["reason"],
    "version": lambda line: f"version {line['version']} of the agreed file takes effect",
    "refused": lambda line: f"REFUSED a message from the server: {line['reason']}",
    "server error": lambda line: f"the server replied with an error: {line['reason']}",
    "server closes": lambda line: f"{line['reason']}; reconnecting in {line['back']:g} s",
    "cut off": lambda line: f"connection to {line['server']} lost: {line['reason']}; reconnecting",
    "end of training": lambda _: "end of training: received the final posterior",
    "budget": lambda line: (
        f"round {line['round']}: NO FURTHER REPLIES: {line['reason']}; waiting for the result"
    ),
    "short of budget": lambda line: (
        f"{line['reason']}; replying as far as the budget allows, then waiting for the result"
    ),
    "not allowed": lambda line: f"leaving: {line['reason']}",
    "cannot answer": lambda line: f"leaving: {line['reason']}",
    "left without an answer": lambda line: f"left without an acknowledgement: {line['reason']}",
}


def show_party_start(ready: ReadyParty, spent: Spent | None) -> None:
    """Show party, federation and privacy at the start."""
    federation, join = ready.setup.agreed.federation, ready.setup.own.join
    say(
        f"{ready.name} in {federation.name!r}, configuration {ready.setup.agreed.digest[:12]}…; "
        f"{records_here(ready):,} records stay here; servers: {', '.join(join.servers)}"
    )
    if ready.plan.privacy is None:
        say("NOT PRIVATE: exact updates are sent, which may reveal records")
        return
    settled = ready.plan.settled[ready.name]
    say(f"private: {settled.guarantee}")
    say(f"ledger {ready.ledger_path}: {_of_budget(spent)}; at most {settled.visits} replies")


def records_here(ready: ReadyParty) -> int:
    """Return the number of records that the party has read."""
    return len_records(ready.loaded.parties[ready.name])


def show_party_end(ready: ReadyParty, end: PartyEnd, spent: Spent | None) -> None:
    """Show the posterior, the party's own metrics and the privacy cost."""
    result, measured = end
    show_coefficients(result)
    show_verdict(result)
    for caution in measured.cautions:
        show_warning(f"{caution.text} {'' if ready.plan.privacy is None else EXACT}")
    show_metrics(measured.metrics)
    say(
        f"{measured.answers} answers in {result.run}; {measured.sent_bytes:,} bytes sent, "
        f"{measured.received_bytes:,} received"
    )
    say(f"privacy: {result.privacy}")
    if ready.plan.privacy is not None:
        say(f"ledger {ready.ledger_path}: {_of_budget(spent)}")
    stopped = measured.stopped
    if stopped is not None:
        show_warning(
            f"this party contributed nothing from round {stopped['round']} on; the posterior uses "
            f"its earlier replies and the replies of the other parties: {stopped['reason']}"
        )
    state = ready.setup.state
    say(f"posterior and result (shareable): {state / 'public'}")
    say(f"metrics on local records (confidential): {state / 'private'}")


def _of_budget(spent: Spent | None) -> str:
    if spent is None or spent.epsilon is None or spent.budget is None:
        return "nothing spent"
    return (
        f"ε = {spent.epsilon:.4g} spent of {spent.budget.epsilon:g} (δ = {spent.budget.delta:g}, "
        f"per {spent.budget.unit}, {spent.budget.adjacency})"
    )


# Approval ---------------------------------------------------------------------------------------


def _clock(line: Line) -> str:
    time = line.get("time")
    moment = datetime.now().astimezone() if time is None else datetime.fromisoformat(time)
    return f"{moment.astimezone():%H:%M:%S}"


def _too_few(line: dict[str, Any]) -> str:
    if line.get("threshold") is None:
        return f"round {line['round']}: fewer parties are left than the quorum of {line['quorum']}"
    return (
        f"round {line['round']}: {line['able']} of the parties in the sum are left, "
        f"{line['threshold']} are needed to unmask it; the server has learned nothing "
        "from this sum, and its charges are not refunded"
    )


def _elbo(line: Line) -> str:
    value = line.get("negative_elbo")
    return "" if value is None else f"negative ELBO {value:.4f}, "


def _change(line: dict[str, Any]) -> str:
    if line.get("last_change") is None:
        return f"stage {line.get('stage', 'update')}"
    return f"change {line['last_change']:.3g} (KL)"


# Status -----------------------------------------------------------------------------------------


def show_server_status(status: dict[str, Any], *, running: bool) -> None:
    """Print status.json."""
    where = f", port {status['port']}" if running else ""
    say(
        f"{status['run']}: {_phase(status['phase'])}, round {status['round']} of "
        f"{status['rounds']}; the server {'is running' if running else 'is not running'} (process "
        f"{status['process']}{where}, written {status['updated']})"
    )
    if status["negative_elbo"] is not None:
        say(f"negative ELBO {status['negative_elbo']:.4f}")
    if status["last_change"] is not None:
        say(f"last change: {status['last_change']:.3g} (KL)")
    rows = [
        [name, _presence(one, running=running), one["visits"], _told(one["data_size"]),
         _promised(one["guarantee"]), one["bytes_in"], one["bytes_out"]]
        for name, one in status["parties"].items()
    ]  # fmt: skip
    columns = ["party", "status", "requests", "records reported", "ε", "bytes in", "bytes out"]
    show_table("Parties", columns, rows)
    for name, found in status.get("left_out", {}).items():
        say(
            f"{name} is left out from round {found['round']} on: {found['reason']}; its factor: "
            f"{found['factor']}; to readmit it: tacit server readmit server.toml {name}"
        )
    proposed = status.get("proposed")
    if proposed is not None:
        say(
            f"version {proposed['version']} is proposed (digest {proposed['configuration'][:12]}…) "
            f"and not in effect yet; it waits for {_some(proposed['waits_for'])}"
        )
    if status["turned_away"]:
        kinds = ", ".join(f"{kind} {count}" for kind, count in status["turned_away"].items())
        say(f"refused: {kinds}")


def _some(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def _phase(phase: str) -> str:
    if phase in ("waiting for parties", "training"):
        return phase
    return f"finished ({'all rounds' if phase == 'rounds' else phase})"


def _told(count: int | None) -> str:
    if not count:
        return "not reported"
    return "fewer than 100" if count == MIN_REPORTED_RECORDS - 1 else f"about {count:,}"


def _promised(guarantee: dict[str, Any] | None) -> str:
    if guarantee is None:
        return ""
    return (
        f"{guarantee['epsilon']:.4g} (δ = {guarantee['delta']:g}, per {guarantee['unit']}, "
        f"{guarantee['adjacency']})"
    )


def _presence(one: dict[str, Any], *, running: bool) -> str:
    if one["left"]:
        return "waits for the result" if one.get("listening") else "left permanently"
    if one.get("left_out"):
        return "left out"
    if not one["joined"]:
        return "not joined yet"
    if not running:
        return "joined"
    if not one["connected"]:
        return "away, skipped" if one["passed_over"] else "away"
    if one["asked"] and one["refused"]:
        return "its reply was refused"
    return "computing" if one["asked"] else "connected"


def show_party_status(status: dict[str, Any]) -> None:
    """Print a party's state."""
    say(
        f"{status['state']}: {'is running' if status['running'] else 'is not running'}; "
        f"{status['answers']} replies in {status['run'] or 'no run yet'}"
        + ("; received the final posterior" if status["finished"] else "")
    )
    approved = status["approved"]
    say(f"approved: {approved[:12]}…" if approved else "approved: nothing yet; run tacit approve")
    if status["ledger"] is not None:
        book = status["ledger"]
        say(
            f"ledger {book['path']}: ε = {book['epsilon']:.4g} spent of {book['budget']:g} "
            f"({book['terms']})"
        )
    for line, following in zip(status["log"], [*status["log"][1:], None], strict=True):
        if line["event"] == "asked" and following is not None:
            continue  # shown with the reply
        known = _PARTY_EVENTS.get(line["event"])
        words = known(line) if known is not None else None
        say(f"{line['time'][:19]}Z  {words or line['event']}")
