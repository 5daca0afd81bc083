"""Everything that a party of a private run sends, looked at byte by byte.

A relay that holds both ends' certificates decrypts what passes. `audit` knows every field that may
be there; what depends on records is only in `delta`, and only as the ledger has it, paid for before
it was sent.
"""

import asyncio
import contextlib
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import harness
import msgspec
import numpy as np
import pytest
from harness import Federation, run_async

from tacit.errors import PeerError, PrivacyBudgetError, TacitError
from tacit.live import session as session_module
from tacit.live.join import approve, prepare_party
from tacit.live.plan import server_plan
from tacit.live.protocol import messages as m
from tacit.live.protocol.arrays import pack
from tacit.live.protocol.codec import decode, encode
from tacit.live.transport.certificates import revoke
from tacit.live.transport.frames import read_frame, write_frame
from tacit.live.transport.tls import Credentials, client_context, server_context
from tacit.party.datasets import identify_parties
from tacit.privacy.ledger.ledger import Budget, Ledger
from tacit.server.messages import decode_reply

ROUNDS = 2
EPSILON, DELTA = 2.0, 1e-4
CANARY = 7.318264591  # a record; neither it nor its digits may turn up anywhere
ROWS = {
    "north": (4.5, 5.2, CANARY, 4.7, 5.5, 3.9, 6.1, 5.0, 4.4, 5.6, 5.1, 4.9),
    "south": (3.0, 4.0, 3.5, 4.1, 2.9),
}
AGREED: dict[str, Any] = {
    "privacy": {"epsilon": EPSILON, "delta": DELTA},
    "method": {"kind": "dp-sgd"},
    "schedule": {"rounds": ROUNDS},
    "records": 17,
    "outcome": "y",
    "columns": {
        "x": {"low": -1.0, "high": 1.0},
        "y": {"low": 0.0, "high": 10.0, "feature": False},
    },
}
ADDING = AGREED | {"privacy": AGREED["privacy"] | {"adjacency": "add-or-remove-one"}}
LEAVING = {
    None,
    "this party's privacy budget allows no further reply",
    "this party's privacy budget allows no further reply; it waits for the result",
    "this party cannot reply at present; the reason is in its log",
    "the party was stopped and will return",
}


def make(base: Path, pki: harness.Pki, agreed: Any = None, **join: Any) -> Federation:
    """A private federation, approved, with a ledger and a budget for each party."""
    base.mkdir(exist_ok=True)
    own = {"ledger": "ledger.sqlite", "retry_for": "5.0s"} | join
    federation = Federation.make(base, pki, rows=ROWS, join=own, **(agreed or AGREED))
    for name in federation.parties:
        allow(federation, name)
    return federation


def allow(federation: Federation, name: str, epsilon: float = 10.0) -> None:
    """As the operator does with tacit approve and tacit ledger budget."""
    setup = federation.party_setup(name, 1)
    approve(setup)
    ready = prepare_party(setup)
    adjacency = setup.agreed.federation.private.adjacency
    with Ledger(ready.ledger_path, create=True) as ledger:
        dataset = identify_parties(ledger, ready.loaded, [name])[name]
        budget = Budget(epsilon=epsilon, delta=DELTA, adjacency=adjacency, unit="record")
        ledger.set_budget(dataset, budget, reason="test")


@dataclass(frozen=True)
class Book:
    """What a party's ledger says."""

    path: Path

    @classmethod
    def of(cls, federation: Federation, name: str) -> "Book":
        return cls(federation.base / name / "ledger.sqlite")

    def spent(self) -> float:
        with Ledger(self.path) as ledger:
            (dataset,) = ledger.datasets()
            return ledger.spent(dataset).epsilon or 0.0

    def charged(self) -> list[tuple[str, str]]:
        with Ledger(self.path) as ledger:
            rows = [row for row in ledger.entries() if row.kind == "charge"]
            return [(str(row.run).partition("@")[0], str(row.request)) for row in rows]

    def reply(self, run: str, request: str) -> Any:
        """Of the run that the server calls so; the ledger adds what was approved."""
        with Ledger(self.path) as ledger:
            names = {str(row.run) for row in ledger.entries() if str(row.run).startswith(f"{run}@")}
            body = ledger.recall(*names, request) if names else None
        return None if body is None else decode_reply(body)


# What may be sent -------------------------------------------------------------------------------

FIELDS = {
    "JoinCluster": {
        "data_size",
        "protocol",
        "configuration",
        "encodings",
        "guarantee",
        "heartbeat",
    },
    "UpdatedLikelihood": {"new_likelihood", "delta", "loss", "request", "factor_version"},
    "EarlyLeaveCluster": {"reason", "expected_absence"},
    "FinalLeaveTraining": {"available_for_future_training"},
    "Error": {"error", "reason"},
}
OPTIONAL = {"EarlyLeaveCluster": {"listening"}}
BARE = {"ReJoinCluster", "EndOfConnectionAcknowledgement", "Heartbeat"}


@dataclass
class Audit:
    """Looks at what one party sends."""

    book: Book
    digest: str
    told: int
    answers: int = ROUNDS
    updates: int = 0

    def look(self, payload: bytes) -> None:
        for form in spellings(CANARY):
            assert form not in payload, "a record"
        body = msgspec.msgpack.decode(payload)
        if isinstance(body, str):
            assert body in BARE, f"a message {body}"
            return
        ((name, fields),) = body.items()
        needed = set(fields) - OPTIONAL.get(name, set())
        assert needed == FIELDS.get(name, "nothing"), f"the fields of {name}"
        getattr(self, "_" + name)(**fields)

    def _JoinCluster(  # noqa: N802
        self, data_size, protocol, configuration, encodings, guarantee, heartbeat
    ) -> None:
        assert data_size == self.told
        assert heartbeat is True
        assert (protocol, configuration) == (m.PROTOCOL, self.digest)
        assert encodings == ["msgpack", "cbor", "json"]
        assert set(guarantee) == {"epsilon", "delta", "unit", "adjacency", "answers"}
        assert guarantee["epsilon"] <= EPSILON
        assert (guarantee["delta"], guarantee["unit"]) == (DELTA, "record")
        assert guarantee["adjacency"] in ("replace-one", "add-or-remove-one")
        assert guarantee["answers"] == self.answers

    def _UpdatedLikelihood(self, new_likelihood, delta, loss, request, factor_version) -> None:  # noqa: N802
        assert new_likelihood is None
        assert loss is None
        assert isinstance(factor_version, int)
        runs = {run for run, charged in self.book.charged() if charged == request}
        assert len(runs) == 1, "an update that nobody was charged for"
        stored = self.book.reply(*runs, request)
        assert stored is not None, "an update that is not in the ledger"
        assert set(delta) == set(stored.released)
        for key, array in delta.items():
            assert set(array) == {"shape", "data"}
            assert tuple(array["shape"]) == stored.released[key].shape
            assert stored.released[key].dtype == np.int64, "a private release is integers"
            assert array["data"] == np.asarray(stored.released[key], "<i8").tobytes()
        self.updates += 1

    def _EarlyLeaveCluster(self, reason, expected_absence, listening=False) -> None:  # noqa: N802
        assert reason in LEAVING
        assert listening in (True, False)
        assert expected_absence in (None, {"secs": 600, "nanos": 0})

    def _FinalLeaveTraining(self, available_for_future_training) -> None:  # noqa: N802
        assert available_for_future_training is True

    def _Error(self, error, reason) -> None:  # noqa: N802
        assert error == reason
        assert not any(str(value) in error for rows in ROWS.values() for value in rows)


def spellings(value: float) -> list[bytes]:
    """A number as it might stand in a payload."""
    forms = [struct.pack(order, value) for order in ("<d", ">d", "<f", ">f")]
    return [*forms, str(value).encode(), f"{value:.6g}".encode(), f"{value:.4f}".encode()]


@dataclass
class Relay:
    """Between a party and a server, with a certificate of each: decrypts what passes."""

    port: int
    server: Credentials
    party: Credentials
    sent: list[bytes] = field(default_factory=list)
    heard: list[bytes] = field(default_factory=list)

    async def open(self) -> int:
        self.listener = await asyncio.start_server(
            self._meet, "127.0.0.1", 0, ssl=server_context(self.server)
        )
        return self.listener.sockets[0].getsockname()[1]

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        streams = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=client_context(self.party), server_hostname="127.0.0.1"
        )
        await asyncio.gather(
            self._pass_on(reader, streams[1], self.sent),
            self._pass_on(streams[0], writer, self.heard),
        )

    async def _pass_on(self, reader: Any, writer: Any, kept: list[bytes]) -> None:
        with contextlib.suppress(PeerError, OSError):
            while True:
                payload = await read_frame(reader)
                kept.append(payload)
                await write_frame(writer, payload)
        writer.close()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, pki) -> Any:
    """A whole private run of two parties, each behind a relay."""
    return recording(make(tmp_path_factory.mktemp("private") / "f", pki), pki)


def recording(federation: Federation, pki: harness.Pki) -> Any:
    relays = {}

    async def play() -> Any:
        async with federation.serving() as running:
            for name in federation.parties:
                relays[name] = Relay(running.port, pki.server, pki.of(name))
            ports = {name: await relay.open() for name, relay in relays.items()}
            parties = [federation.join(name, port) for name, port in ports.items()]
            await asyncio.gather(*parties)
            assert await running.over() == "finished"
            for relay in relays.values():
                relay.listener.close()
        return running

    running = run_async(play())
    return federation, running, {name: relay.sent for name, relay in relays.items()}


def audit_of(federation: Federation, name: str, told: int) -> Audit:
    digest = federation.server_setup.agreed.digest
    return Audit(Book.of(federation, name), digest, told)


def test_every_frame_of_a_private_run(recorded):
    federation, running, sent = recorded
    for name, told in (("north", 99), ("south", 99)):
        audit = audit_of(federation, name, told)
        for payload in sent[name]:
            audit.look(payload)
        assert audit.updates == ROUNDS
        assert len(sent[name]) == ROUNDS + 2, "to join, to answer, to leave"
        book = audit.book
        assert {run for run, _ in book.charged()} == {running.live.run}
        assert len(book.charged()) == ROUNDS
        assert 0.0 < book.spent() <= EPSILON
        assert not list(federation.base.glob("state/**/*ledger*")), "the server has none"


@pytest.mark.parametrize("kind", ["dp-sgd", "dp-statistics"])
def test_batches_without_replacement_are_integers_of_the_agreed_step(tmp_path, pki, kind):
    """Of parties whose batches are different shares of their records, which no server knows."""
    method = {"kind": kind, "sampling_rate": 0.45, "sampling": "without-replacement"}
    federation = make(tmp_path, pki, AGREED | {"method": method})
    _, _, sent = recording(federation, pki)
    plan = server_plan(federation.server_setup.agreed)
    events = plan.settled["north"].events_at(0)
    for name in ROWS:
        audit = audit_of(federation, name, 99)
        for payload in sent[name]:
            audit.look(payload)
        assert audit.updates == ROUNDS
        own = prepare_party(federation.party_setup(name, 1)).plan.settled[name]
        assert own.guarantee.epsilon <= EPSILON
        (event,) = own.events_at(0)
        assert event.step == events[0].step
        batch = {"north": 5, "south": 2}[name]
        assert (event.sampling.batch, event.sampling.total) == (batch, len(ROWS[name]))


def mutated() -> dict[str, Any]:
    """What must be noticed: a change to a frame of a real run."""

    def add(fields: Any) -> None:
        fields["gradient_norm"] = 0.25

    def shift(fields: Any) -> None:
        data = np.frombuffer(fields["delta"]["location"]["data"], "<i8") + 1
        fields["delta"]["location"]["data"] = data.tobytes()

    return {
        "a field more": ("UpdatedLikelihood", add),
        "a field more at the beginning": ("JoinCluster", add),
        "a field more at the end": ("FinalLeaveTraining", add),
        "a field more in the guarantee": ("JoinCluster", lambda it: add(it["guarantee"])),
        "a parameter more": ("UpdatedLikelihood", lambda it: add(it["delta"])),
        "a field more in an array": ("UpdatedLikelihood", lambda it: add(it["delta"]["location"])),
        "a loss": ("UpdatedLikelihood", lambda it: it.update(loss=1.5)),
        "a factor": ("UpdatedLikelihood", lambda it: it.update(new_likelihood=it["delta"])),
        "another delta": ("UpdatedLikelihood", shift),
        "another request": ("UpdatedLikelihood", lambda it: it.update(request="r77")),
        "the number of records": ("JoinCluster", lambda it: it.update(data_size=11)),
        "a tighter promise": ("JoinCluster", lambda it: it["guarantee"].update(answers=12)),
    }


@pytest.mark.parametrize("what", mutated())
def test_the_audit_notices(what, recorded):
    federation, _, sent = recorded
    name, change = mutated()[what]
    audit, touched = audit_of(federation, "north", 99), 0
    for payload in sent["north"]:
        body = msgspec.msgpack.decode(payload)
        if name in body:
            change(body[name])
            touched += 1
            with pytest.raises(AssertionError):
                audit.look(msgspec.msgpack.encode(body))
    assert touched


@pytest.mark.parametrize(
    "payload",
    [
        encode(m.ReturnLastLikelihood(likelihood={}), "msgpack"),
        msgspec.msgpack.encode("Records"),
        encode(m.EarlyLeaveCluster(reason=f"row 3 is {CANARY}"), "msgpack"),
        encode(m.EarlyLeaveCluster(reason="4 rows are too many"), "msgpack"),
        encode(m.ClientError(error="y = 4.7", reason="y = 4.7"), "msgpack"),
    ],
)
def test_the_audit_notices_other_messages(payload, recorded):
    with pytest.raises(AssertionError):
        audit_of(recorded[0], "north", 99).look(payload)


# What the number of records is told as ----------------------------------------------------------


class Hostile:
    """A server with a good certificate that says what it likes."""

    def __init__(self, federation: Federation, script: Any) -> None:
        self.federation, self.script = federation, script
        self.digest = federation.server_setup.agreed.digest
        self.sent: list[bytes] = []
        self.connections = 0
        self.error: BaseException | None = None

    @contextlib.asynccontextmanager
    async def open(self):
        context = server_context(self.federation.pki.server)
        listener = await asyncio.start_server(self._meet, "127.0.0.1", 0, ssl=context)
        self.port = listener.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            listener.close()
        if self.error is not None:
            raise self.error

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.connections += 1
        try:
            await self.script(self, self.connections)
        except PeerError:
            pass  # the party has gone
        except BaseException as error:
            self.error = error
        finally:
            writer.close()

    async def say(self, message: m.ServerMessage) -> None:
        await write_frame(self.writer, encode(message, "msgpack"))

    async def hear(self) -> Any:
        payload = await asyncio.wait_for(read_frame(self.reader), 60.0)
        self.sent.append(payload)
        return decode(payload, "msgpack", m.CLIENT_MESSAGES)

    async def welcome(self, run: str = "run-a") -> Any:
        first = await self.hear()
        known = {"protocol": m.PROTOCOL, "configuration": self.digest, "run": run, "parties": 2}
        if isinstance(first, m.JoinCluster):
            await self.say(m.AcceptedIntoCluster(**known))
        else:
            await self.say(m.ReAcceptanceIntoCluster(last_likelihood=FLAT, **known))
        return first

    async def ask(self, request: str, visit: int = 0, **changes: Any) -> Any:
        given = {"current_posterior": PROPER, "factor": FLAT, "factor_version": 0} | changes
        await self.say(m.SelectedForTraining(request=request, visit=visit, **given))
        return await self.hear()


FLAT = pack({"linear": np.zeros(1), "quadratic": np.zeros(1)}, "msgpack")
PROPER = pack({"linear": np.zeros(1), "quadratic": np.full(1, -0.5)}, "msgpack")


def meet(federation: Federation, script: Any, name: str = "north") -> Hostile:
    """Our party meets a server of that kind; whatever ends it is kept."""

    async def play() -> Hostile:
        hostile = Hostile(federation, script)
        hostile.end = None
        async with hostile.open():
            try:
                await federation.join(name, hostile.port)
            except TacitError as error:
                hostile.end = error
        return hostile

    return run_async(play())


async def turn_away(hostile: Hostile, _number: int) -> None:
    await hostile.hear()
    await hostile.say(m.RejectionFromCluster(fixable=False))


@pytest.mark.parametrize(
    ("how", "agreed", "told"),
    [
        ("exact", AGREED, 12),
        ("withheld", AGREED, 0),
        ("rounded", AGREED, 99),
        ("exact", ADDING, 0),
        ("rounded", ADDING, 0),
    ],
)
def test_the_number_of_records_is_told_as_the_operator_chose(how, agreed, told, tmp_path, pki):
    federation = make(tmp_path, pki, agreed, report_records=how)
    hostile = meet(federation, turn_away)
    audit = audit_of(federation, "north", told)
    for payload in hostile.sent:
        audit.look(payload)
    (first,) = hostile.sent
    assert msgspec.msgpack.decode(first)["JoinCluster"]["data_size"] == told


def test_a_rounded_number(tmp_path, pki):
    federation = make(tmp_path, pki)
    federation.write_party("north", [5.0] * 1234, ledger="other.sqlite", report_records="rounded")
    allow(federation, "north")
    hostile = meet(federation, turn_away)
    assert msgspec.msgpack.decode(hostile.sent[0])["JoinCluster"]["data_size"] == 1200


def test_nothing_tells_the_number_of_records_where_it_is_protected(tmp_path, pki):
    """The same bytes whether there are 12 records or 13, or one."""
    frames = []
    for number, rows in enumerate((ROWS["north"], (*ROWS["north"], 5.0), (5.0,))):
        federation = make(tmp_path / str(number), pki, ADDING)
        federation.write_party("north", rows, ledger="other.sqlite")
        allow(federation, "north")
        frames.append(meet(federation, turn_away).sent)
    assert frames[0] == frames[1] == frames[2]


# Charge, then speak -----------------------------------------------------------------------------


def test_an_update_is_paid_for_and_stored_before_it_is_sent(tmp_path, pki, monkeypatch):
    federation = make(tmp_path, pki)
    book, moments = Book.of(federation, "north"), []
    really = session_module.write_frame

    async def watched(writer: Any, payload: bytes, **options: Any) -> None:
        body = msgspec.msgpack.decode(payload)
        if "UpdatedLikelihood" in body:
            request = body["UpdatedLikelihood"]["request"]
            assert ("run-a", request) in book.charged()
            assert book.reply("run-a", request) is not None
            moments.append((request, book.spent()))
        await really(writer, payload, **options)

    monkeypatch.setattr(session_module, "write_frame", watched)

    async def script(hostile: Hostile, _number: int) -> None:
        await hostile.welcome()
        assert book.spent() == 0.0
        for number in range(ROUNDS):
            await hostile.ask(f"a{number}", number)
        await hostile.say(m.EndOfTraining(final_posterior=PROPER))
        await hostile.hear()

    hostile = meet(federation, script)
    assert hostile.end is None
    assert [request for request, _ in moments] == ["a0", "a1"]
    assert 0.0 < moments[0][1] < moments[1][1] <= EPSILON


def test_asked_again_it_sends_the_same_and_pays_nothing(tmp_path, pki):
    """Over new connections, with another q, factor and damping under the same id.

    A reply is for one visit: the same id for another visit is refused, and costs nothing either.
    """
    federation = make(tmp_path, pki)
    book, answers, spent = Book.of(federation, "north"), [], []
    other = pack({"linear": np.full(1, 3.0), "quadratic": np.full(1, -2.0)}, "msgpack")
    changes = [{}, {"current_posterior": other}, {"factor": other}, {"damping_factor": 0.25}]

    async def script(hostile: Hostile, number: int) -> None:
        first = await hostile.welcome()
        assert isinstance(first, m.JoinCluster if number == 1 else m.ReJoinCluster)
        update = await hostile.ask("a0", 0, **changes[number - 1])
        answers.append(update.delta)
        spent.append(book.spent())
        if number < len(changes):
            return  # hang up
        assert isinstance(await hostile.ask("a0", 1), m.EarlyLeaveCluster)
        spent.append(book.spent())

    hostile = meet(federation, script)
    assert isinstance(hostile.end, PrivacyBudgetError)
    assert "the server must use a new id" in str(hostile.end)
    assert len(answers) == len(changes)
    assert all(answer == answers[0] for answer in answers)
    assert len(set(spent)) == 1
    assert 0.0 < spent[0] < EPSILON
    audit = audit_of(federation, "north", 99)
    for payload in hostile.sent:
        audit.look(payload)


# Servers that want more -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asks",
    [
        [("a0", 0), ("a1", 0), ("a2", 0)],
        [("a0", 1), ("a1", 1), ("a0", 0), ("a2", 1)],
        [("a0", ROUNDS)],
        [("a0", 2**32 - 1)],
    ],
)
def test_a_server_that_asks_more_often_than_agreed(asks, tmp_path, pki):
    federation = make(tmp_path, pki)
    book, farewell = Book.of(federation, "north"), []

    async def script(hostile: Hostile, _number: int) -> None:
        await hostile.welcome()
        for request, visit in asks:
            answer = await hostile.ask(request, visit)
            if isinstance(answer, m.EarlyLeaveCluster):
                farewell.append(answer)
                await hostile.say(m.ServerAcknowledgement())
                return
        raise AssertionError("it answers and answers")

    hostile = meet(federation, script)
    assert isinstance(hostile.end, PrivacyBudgetError)
    assert len(set(book.charged())) == len(book.charged()) <= ROUNDS
    assert book.spent() <= EPSILON
    assert [(one.reason, one.expected_absence) for one in farewell] == [
        ("this party's privacy budget allows no further reply", None)
    ]
    audit = audit_of(federation, "north", 99)
    for payload in hostile.sent:
        audit.look(payload)

    async def insist(hostile: Hostile, _number: int) -> None:
        await hostile.welcome()
        answer = await hostile.ask("a9", 0)
        assert isinstance(answer, m.EarlyLeaveCluster) or len(book.charged()) <= ROUNDS
        await hostile.say(m.ServerAcknowledgement())

    if len(book.charged()) == ROUNDS:  # nor when the operator starts it again
        again = meet(federation, insist)
        assert isinstance(again.end, PrivacyBudgetError)
        assert len(book.charged()) == ROUNDS


@pytest.mark.parametrize("how", ["rejoin", "join"])
def test_a_server_that_lies_about_the_runs_name(how, tmp_path, pki):
    """A new name would be a new budget: one approval is for one run."""
    federation = make(tmp_path, pki)
    book = Book.of(federation, "north")

    async def script(hostile: Hostile, number: int) -> None:
        if number == 1:
            await hostile.welcome("run-a")
            for visit, request in enumerate(("a0", "a1")):
                # The name in a request is nobody's word: the one that was joined counts.
                await hostile.ask(request, visit, run="run-z")
            return
        if how == "join" and number == 2:
            await hostile.hear()
            await hostile.say(m.RejectionFromCluster(fixable=True, code="join"))
            return
        await hostile.welcome("run-b")
        await hostile.ask("b0", 0)
        raise AssertionError("answered under another name")

    hostile = meet(federation, script)
    assert isinstance(hostile.end, PeerError)
    assert "an approval is for one run" in str(hostile.end)
    assert book.charged() == [("run-a", "a0"), ("run-a", "a1")]
    assert book.spent() <= EPSILON


@pytest.mark.parametrize(("run", "request_id"), [("", "a0"), ("a b", "a0"), ("run-a", "a 0")])
def test_names_that_no_ledger_could_keep(run, request_id, tmp_path, pki):
    federation = make(tmp_path, pki)
    book = Book.of(federation, "north")

    async def script(hostile: Hostile, _number: int) -> None:
        await hostile.welcome(run)
        answer = await hostile.ask(request_id)
        assert isinstance(answer, m.EarlyLeaveCluster)
        await hostile.say(m.ServerAcknowledgement())

    hostile = meet(federation, script)
    assert isinstance(hostile.end, TacitError)
    assert book.charged() == []
    audit = audit_of(federation, "north", 99)
    for payload in hostile.sent:
        audit.look(payload)


def test_a_budget_below_the_run_keeps_a_party_from_joining(tmp_path, pki):
    federation = make(tmp_path, pki)
    federation.write_party("north", ROWS["north"], ledger="small.sqlite")
    allow(federation, "north", epsilon=0.5 * EPSILON)
    hostile = meet(federation, turn_away)
    assert isinstance(hostile.end, PrivacyBudgetError)
    assert hostile.sent == []


def test_a_server_whose_certificate_is_revoked_meanwhile_gets_no_answer(tmp_path):
    own = harness.Pki.make(tmp_path / "own")
    revoked = str(own.directory / "revoked.pem")
    federation = make(tmp_path / "f", own, revoked=revoked, retry_for="0.5s")

    async def script(hostile: Hostile, number: int) -> None:
        if number == 1:
            await hostile.welcome()
            assert isinstance(await hostile.ask("a0"), m.UpdatedLikelihood)
            revoke(own.directory, "127.0.0.1")
            await hostile.ask("a1", 1)
            raise AssertionError("answered to a revoked certificate")
        await hostile.hear()
        raise AssertionError("talked to a revoked certificate")

    hostile = meet(federation, script)
    assert isinstance(hostile.end, PeerError)
    assert Book.of(federation, "north").charged() == [("run-a", "a0")]


def test_a_server_that_never_makes_sense_is_given_up(tmp_path, pki):
    federation = make(tmp_path, pki, retry_for="1.0s")

    async def script(hostile: Hostile, _number: int) -> None:
        await hostile.welcome()
        for _ in range(3):
            await write_frame(hostile.writer, b"\xc1")
        while True:
            await hostile.hear()

    hostile = meet(federation, script)
    assert "join again" in str(hostile.end)
    assert 1 < hostile.connections < 10, "with longer and longer breaks"
    assert Book.of(federation, "north").charged() == []


def test_the_time_to_give_up_counts_from_the_last_message_that_made_sense(tmp_path, pki):
    federation = make(tmp_path, pki, retry_for="1.0s")

    async def script(hostile: Hostile, number: int) -> None:
        await hostile.welcome()
        if number == 1:
            for _ in range(6):
                await asyncio.sleep(0.25)
                await hostile.say(m.ServerHeartbeat())
                await hostile.hear()
        for _ in range(3):
            await write_frame(hostile.writer, b"\xc1")
        while True:
            await hostile.hear()

    hostile = meet(federation, script)
    assert "join again" in str(hostile.end)
    assert hostile.connections > 1, "1.5 s of sense are not held against the server"


# Failures tell nothing --------------------------------------------------------------------------


def hostile_numbers() -> dict[str, Any]:
    def both(linear: float, quadratic: float) -> Any:
        return pack({"linear": np.full(1, linear), "quadratic": np.full(1, quadratic)}, "msgpack")

    return {
        "q is improper": {"current_posterior": both(1.0, 2.0)},
        "q is far away": {"current_posterior": both(1e308, -0.5)},
        "q is a point": {"current_posterior": both(0.0, -1e300)},
        "q is nothing": {"current_posterior": both(0.0, -5e-324)},
        "the factor is everything": {"factor": both(1e308, -1e308)},
        "hardly any damping": {"damping_factor": 5e-324},
    }


def test_failures_tell_nothing_of_the_records(tmp_path, pki):
    """Whatever a server sends, a party says what it always says, or what is in its ledger."""
    left = list(hostile_numbers().values())
    federation = make(tmp_path, pki, AGREED | {"schedule": {"rounds": len(left)}})
    texts, answered = [], 0

    async def script(hostile: Hostile, _number: int) -> None:
        nonlocal answered
        await hostile.welcome()
        await write_frame(hostile.writer, b"\xc1 no message")
        assert isinstance(await hostile.hear(), m.ClientError)
        await hostile.say(m.AcceptedIntoCluster())
        assert isinstance(await hostile.hear(), m.ClientError)
        while left:
            answer = await hostile.ask(f"a{len(left)}", 0, **left.pop())
            if isinstance(answer, m.EarlyLeaveCluster):
                texts.append(answer.reason)
                await hostile.say(m.ServerAcknowledgement())
                return
            answered += 1
            for array in answer.delta.values():
                assert np.all(np.abs(np.frombuffer(array.data, "<i8")) < 2**62)  # integers
        await hostile.say(m.EarlyCloseOfConnection())
        await hostile.hear()

    audit = audit_of(federation, "north", 99)
    audit.answers = len(left)
    while left:
        hostile = meet(federation, script)
        for payload in hostile.sent:
            audit.look(payload)
        assert str(CANARY) not in str(hostile.end)
    assert audit.book.spent() <= EPSILON
    assert set(texts) <= LEAVING
    assert len(audit.book.charged()) == answered == audit.updates, "nothing paid for and lost"
    assert answered < audit.answers


def test_a_file_that_cannot_be_read_stays_at_home(tmp_path, pki):
    """Its name and its cells are in the operator's error and in no frame."""
    federation = make(tmp_path, pki)
    (federation.base / "north" / "records.csv").write_text("x,y\n0.5,CANARY-4711\n")
    hostile = meet(federation, turn_away)
    assert hostile.end is not None
    assert hostile.sent == []
