"""Every message in every state, against the running code: it does what the tables say.

The tables are those of docs/protocol.md. A pair that is not in a table is answered with Error,
changes nothing, and the run goes on to the right posterior.
"""

import asyncio
import contextlib
from typing import Any

import harness
import numpy as np
import pytest
from harness import Federation, Puppet, Running, answer_to, exact_delta, run_async

from tacit.errors import PeerError
from tacit.expfam import FullGaussian
from tacit.live.protocol import messages as m
from tacit.live.protocol.arrays import pack
from tacit.live.protocol.codec import decode, encode
from tacit.live.protocol.state_tables import PARTY, SERVER, PartySide, ServerSide
from tacit.live.session import AsyncSession, ClosedError, Introduction, RejectedError
from tacit.live.transport.frames import read_frame, write_frame

EXACT = harness.exact_posterior(harness.RECORDS["north"], harness.RECORDS["south"])
FLAT = pack({"linear": np.zeros(1), "quadratic": np.zeros((1, 1))}, "msgpack")
PROPER = pack({"linear": np.ones(1), "quadratic": -np.ones((1, 1))}, "msgpack")


# The server's side ------------------------------------------------------------------------------

SIDES = [side for side in ServerSide if side is not ServerSide.GONE]
REPLIES = {
    "admit": m.AcceptedIntoCluster,
    "readmit": m.ReAcceptanceIntoCluster,
    "part": m.ServerAcknowledgement,
    None: m.ServerError,
}

SUMS = {
    name
    for (_, name), do in (*SERVER.items(), *PARTY.items())
    if do.action in ("add_up", "help_sum")
}
"""Messages of secure sums."""


class Table:
    """A server with two parties in the test's hands."""

    def __init__(self, federation: Federation, running: Running) -> None:
        self.federation, self.running = federation, running
        self.asked: dict[str, Any] = {}
        self.puppets: dict[str, Puppet] = {}

    async def connect(self, name: str) -> Puppet:
        if name in self.puppets:
            await self.puppets[name].close()
        puppet = await Puppet.connect(self.running.port, self.federation.pki.of(name))
        self.puppets[name] = puppet
        return puppet

    async def join(self, name: str) -> None:
        answer = await (await self.connect(name)).join(self.running.live.digest)
        assert isinstance(answer, m.AcceptedIntoCluster)

    async def be_asked(self, name: str) -> None:
        self.asked[name] = await self.puppets[name].receive()
        assert isinstance(self.asked[name], m.SelectedForTraining)

    def honest(self, name: str) -> m.UpdatedLikelihood:
        delta = exact_delta(self.asked[name], harness.RECORDS[name])
        return answer_to(self.asked[name], delta, "msgpack")

    async def finish(self, name: str) -> None:
        """Whatever is still to be answered, until the end."""
        puppet = self.puppets[name]
        while True:
            self.asked[name] = await puppet.receive()
            if isinstance(self.asked[name], m.EndOfTraining):
                await puppet.send(m.FinalLeaveTraining(available_for_future_training=True))
                return
            if isinstance(self.asked[name], m.SelectedForTraining):
                await puppet.send(self.honest(name))

    async def bring(self, side: ServerSide, message: str) -> None:
        """South's connection to a state."""
        if side is ServerSide.CONNECTED:
            if message == "ReJoinCluster":
                await self.join("south")
            await self.connect("south")
            return
        await self.join("south")
        if side is ServerSide.WAITING:
            return
        await self.join("north")
        await self.be_asked("north")
        await self.be_asked("south")
        if side is ServerSide.CLOSING:
            self.running.server.close("for a while", 1.0)
            assert isinstance(await self.puppets["south"].receive(), m.EarlyCloseOfConnection)
        if side is ServerSide.ENDING:
            for name in ("north", "south"):
                await self.puppets[name].send(self.honest(name))
            assert isinstance(await self.puppets["south"].receive(), m.EndOfTraining)

    def message(self, name: str) -> m.ClientMessage:
        """A valid body of each kind."""
        update = self.honest("south") if "south" in self.asked else None
        made: dict[str, m.ClientMessage] = {
            "JoinCluster": m.JoinCluster(data_size=3, protocol=m.PROTOCOL),
            "ReJoinCluster": m.ReJoinCluster(),
            "UpdatedLikelihood": update
            or m.UpdatedLikelihood(delta=FLAT, request="r1", factor_version=0),
            "ReturnLastLikelihood": m.ReturnLastLikelihood(likelihood=FLAT),
            "EarlyLeaveCluster": m.EarlyLeaveCluster(expected_absence=m.Duration(1)),
            "FinalLeaveTraining": m.FinalLeaveTraining(available_for_future_training=True),
            "EndOfConnectionAcknowledgement": m.ClientAcknowledgement(),
            "Heartbeat": m.ClientHeartbeat(),
            "Error": m.ClientError(error="hm", reason="hm"),
        }
        return made[name]

    @property
    def side(self) -> ServerSide:
        found = self.running.server.connections.get("south")
        return ServerSide.GONE if found is None else found.side


async def one_pair(federation: Federation, side: ServerSide, name: str) -> None:
    do = SERVER.get((side, name))
    then = side if do is None else do.then
    reply = REPLIES.get(do and do.action)
    async with federation.serving() as running:
        table = Table(federation, running)
        await table.bring(side, name)
        assert side is ServerSide.CONNECTED or table.side is side
        south = table.puppets["south"]
        await south.send(table.message(name))
        if reply is not None:
            assert isinstance(await south.receive(), reply)
        if (side, name) == (ServerSide.TRAINING, "Error"):  # what is open is asked again
            assert isinstance(await south.receive(), m.SelectedForTraining)
            then = ServerSide.TRAINING
        if then is ServerSide.GONE:
            assert await south.closed(3.0)
            await running.until(lambda: table.side is ServerSide.GONE)
        else:
            # What is no message is answered with Error in every state, after whatever came first.
            await south.send_raw(b"\xc1")
            assert isinstance(await south.receive(), m.ServerError)
            if then is not ServerSide.CONNECTED:
                assert table.side is then
        assert not running.events("internal")
        if side is not ServerSide.CLOSING:
            await complete(table, then)
            return
        with contextlib.suppress(OSError, PeerError):
            await south.send(m.ClientAcknowledgement())
        await table.puppets["north"].send(m.ClientAcknowledgement())
        assert await running.over() == "closed"
        for puppet in table.puppets.values():
            await puppet.close()
    async with federation.serving() as running:  # and goes on where it was
        table = Table(federation, running)
        for party in ("north", "south"):
            assert isinstance(
                await (await table.connect(party)).rejoin(), m.ReAcceptanceIntoCluster
            )
        await asyncio.gather(table.finish("north"), table.finish("south"))
        await over(table)


async def complete(table: Table, then: ServerSide) -> None:
    """The rest of the run, from where south's connection is."""
    running, live = table.running, table.running.live
    if running.task.done() or (then is ServerSide.GONE and live.finished):
        pass  # south has heard the result
    elif then is ServerSide.CONNECTED:
        assert isinstance(await table.puppets["south"].join(), m.AcceptedIntoCluster)
    elif then is ServerSide.GONE:
        assert isinstance(await (await table.connect("south")).rejoin(), m.ReAcceptanceIntoCluster)
    if "north" not in table.puppets:
        await table.join("north")
    if live.finished:
        south = [] if then is ServerSide.GONE else [table.puppets["south"]]
        assert isinstance(await table.puppets["north"].receive(), m.EndOfTraining)
        for puppet in (*south, table.puppets["north"]):
            await puppet.send(m.FinalLeaveTraining(available_for_future_training=False))
    else:
        if "north" in table.asked:
            await table.puppets["north"].send(table.honest("north"))
        open_now = live.state is not None and any(
            request.party == "south" for request in live.state.open.values()
        )
        if open_now and "south" in table.asked and then is not ServerSide.GONE:
            await table.puppets["south"].send(table.honest("south"))
        await asyncio.gather(table.finish("north"), table.finish("south"))
    await over(table)


async def over(table: Table) -> None:
    assert await table.running.over() == "finished"
    for puppet in table.puppets.values():
        await puppet.close()
    for name, value in EXACT.items():
        assert table.running.posterior[name].item() == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("name", [name for name in m.CLIENT_MESSAGES if name not in SUMS])
@pytest.mark.parametrize("side", SIDES, ids=lambda side: side.value)
def test_the_server(side, name, tmp_path, pki):
    federation = Federation.make(
        tmp_path, pki, rounds=1, serve={"accept_returned": True, "keep_result_for": "2.0s"}
    )
    run_async(one_pair(federation, side, name))


def test_a_run_without_secure_sums_has_no_messages_of_them(tmp_path, pki):
    """Answered with Error at both ends; a request that is open stays open. test_wire_secure has
    the runs that have them.
    """
    masked = m.MaskedUpdate(slot=0, request="r", words=b"12345678")

    async def scene() -> None:
        federation = Federation.make(tmp_path, pki, rounds=1)
        async with federation.serving() as running:
            table = Table(federation, running)
            await table.bring(ServerSide.TRAINING, "UpdatedLikelihood")
            await table.puppets["south"].send(masked)
            assert isinstance(await table.puppets["south"].receive(), m.ServerError)
            assert table.side is ServerSide.TRAINING
            await complete(table, ServerSide.TRAINING)
        script = Script()
        await script.open()
        try:
            work = await script.bring(PartySide.WAITING)
            await script.send(m.RequestKeys())
            assert isinstance(await script.receive(), m.ClientError)
            await script.send(server_message("SelectedForTraining"))
            assert (await asyncio.wait_for(work, 30.0)).request == "r7"
        finally:
            await script.close()

    run_async(scene())


def test_a_refusal_leads_to_the_end_whatever_the_table_says(tmp_path, pki):
    async def scene() -> None:
        async with Federation.make(tmp_path, pki).serving() as running:
            for message in (m.ReJoinCluster(), m.JoinCluster(data_size=1, configuration="other")):
                puppet = await Puppet.connect(running.port, pki.of("south"))
                await puppet.send(message)
                assert isinstance(await puppet.receive(), m.RejectionFromCluster)
                assert await puppet.closed(2.0)
                await puppet.close()

    run_async(scene())


def test_the_third_error_of_a_connection_closes_it(tmp_path, pki):
    async def scene() -> None:
        async with Federation.make(tmp_path, pki).serving() as running:
            for wrong in (m.ClientError(error="hm"), m.ClientAcknowledgement()):
                puppet = await Puppet.connect(running.port, pki.of("south"))
                assert isinstance(await puppet.join(), m.AcceptedIntoCluster)
                for _ in range(2):
                    await puppet.send(wrong)
                await asyncio.sleep(0.05)
                assert running.server.connections["south"].side is ServerSide.WAITING
                await puppet.send(wrong)
                assert await puppet.closed(2.0)
                await puppet.close()

    run_async(scene())


# The party's side -------------------------------------------------------------------------------


class Script:
    """A server in the test's hands and a session that talks to it."""

    def __init__(self) -> None:
        self.ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def open(self) -> None:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.ready.set_result((reader, writer))

        self.listener = await asyncio.start_server(accept, "127.0.0.1", 0)
        port = self.listener.sockets[0].getsockname()[1]
        streams = await asyncio.open_connection("127.0.0.1", port)
        who = Introduction(data_size=7, family=FullGaussian(1))
        self.session = AsyncSession(*streams, encoding="msgpack", introduction=who)
        self.reader, self.writer = await self.ready

    async def send(self, message: m.ServerMessage) -> None:
        await write_frame(self.writer, encode(message, "msgpack"))

    async def receive(self) -> Any:
        payload = await asyncio.wait_for(read_frame(self.reader), 30.0)
        return decode(payload, "msgpack", m.CLIENT_MESSAGES)

    async def close(self) -> None:
        await self.session.close()
        self.writer.close()
        self.listener.close()
        await self.listener.wait_closed()

    async def bring(self, side: PartySide) -> Any:
        """The session to a state, and what it then does, as a task."""
        session = self.session
        rejoin = side is PartySide.REJOINING
        work = asyncio.create_task(session.join(rejoin=rejoin))
        first = await self.receive()
        assert isinstance(first, m.ReJoinCluster if rejoin else m.JoinCluster)
        if side in (PartySide.JOINING, PartySide.REJOINING):
            return work
        await self.send(server_message("AcceptedIntoCluster"))
        await work
        if side is PartySide.TRAINING:
            await self.send(server_message("SelectedForTraining"))
            assert await session.wait_for_posterior() is not None
        if side is PartySide.LEAVING:
            work = asyncio.create_task(session.leave("bye"))
            assert isinstance(await self.receive(), m.EarlyLeaveCluster)
            return work
        assert session.side is side
        return asyncio.create_task(session.wait_for_posterior())


def server_message(name: str) -> m.ServerMessage:
    made: dict[str, m.ServerMessage] = {
        "AcceptedIntoCluster": m.AcceptedIntoCluster(protocol=m.PROTOCOL, run="run-1", parties=2),
        "ReAcceptanceIntoCluster": m.ReAcceptanceIntoCluster(
            last_likelihood=FLAT, protocol=m.PROTOCOL, run="run-1"
        ),
        "RejectionFromCluster": m.RejectionFromCluster(reason="no", fixable=False),
        "SelectedForTraining": m.SelectedForTraining(
            current_posterior=PROPER, request="r7", visit=0, factor_version=0, factor=FLAT
        ),
        "EarlyCloseOfConnection": m.EarlyCloseOfConnection(return_in=m.Duration(3)),
        "EndOfTraining": m.EndOfTraining(final_posterior=PROPER),
        "EndOfConnectionAcknowledgement": m.ServerAcknowledgement(),
        "Heartbeat": m.ServerHeartbeat(),
        "Error": m.ServerError(error="hm"),
    }
    return made[name]


GO_ON = {
    PartySide.JOINING: "AcceptedIntoCluster",
    PartySide.REJOINING: "ReAcceptanceIntoCluster",
    PartySide.WAITING: "SelectedForTraining",
    PartySide.TRAINING: "SelectedForTraining",
    PartySide.LEAVING: "EndOfConnectionAcknowledgement",
}
"""What leads on from a state after something that changed nothing."""
ENDS = {
    "turn_away": (RejectedError, None),
    "close": (ClosedError, m.ClientAcknowledgement),
    "fail": (PeerError, None),
    "end": (None, m.FinalLeaveTraining),
    "depart": (None, None),
    "enter": (None, None),
    "train": (None, None),
}
"""How the call ends, and what is said at it."""


async def one_answer(side: PartySide, name: str) -> None:
    do = PARTY.get((side, name))
    script = Script()
    await script.open()
    try:
        work, session = await script.bring(side), script.session
        await script.send(server_message(name))
        if do is None:
            assert isinstance(await script.receive(), m.ClientError)
            assert session.side is side
        if do is not None and do.action == "echo":
            assert isinstance(await script.receive(), m.ClientHeartbeat)
        if do is None or do.action in ("note", "ignore", "echo"):
            then = side if do is None else do.then
            await asyncio.sleep(0.02)
            assert not work.done()
            assert session.side is then
            await script.send(server_message(GO_ON[side]))
            found = await asyncio.wait_for(work, 30.0)
            assert found is None or found.request == "r7"
            return
        error, says = ENDS[do.action]
        if error is None:
            await asyncio.wait_for(work, 30.0)
        else:
            with pytest.raises(error):
                await asyncio.wait_for(work, 30.0)
        assert session.side is do.then
        if says is not None:
            assert isinstance(await script.receive(), says)
        if do.action == "end":
            assert session.final_posterior is not None
    finally:
        await script.close()


@pytest.mark.parametrize("name", [name for name in m.SERVER_MESSAGES if name not in SUMS])
@pytest.mark.parametrize(
    "side", [side for side in PartySide if side is not PartySide.GONE], ids=lambda side: side.value
)
def test_the_party(side, name):
    run_async(one_answer(side, name))


def test_a_request_while_training_takes_the_place_of_the_older_one():
    async def scene() -> None:
        script = Script()
        await script.open()
        waiting = await script.bring(PartySide.TRAINING)
        newer = m.SelectedForTraining(
            current_posterior=PROPER, request="r8", visit=1, factor_version=1, factor=FLAT
        )
        await script.send(newer)
        turn = await waiting
        await script.session.send_delta(turn, {"linear": np.ones(1), "quadratic": np.zeros((1, 1))})
        update = await script.receive()
        assert (update.request, update.factor_version, update.loss) == ("r8", 1, None)
        assert script.session.side is PartySide.WAITING
        await script.close()

    run_async(scene())


@pytest.mark.parametrize("side", [PartySide.JOINING, PartySide.WAITING, PartySide.LEAVING])
def test_a_server_that_talks_nonsense_is_left_after_three_times(side):
    async def scene() -> None:
        script = Script()
        await script.open()
        work = await script.bring(side)
        for _ in range(3):
            await write_frame(script.writer, b"\xc1")
        with pytest.raises(PeerError, match="violates the protocol"):
            await asyncio.wait_for(work, 30.0)
        await script.close()

    run_async(scene())


def test_a_server_that_does_not_let_go(monkeypatch):
    """A party that leaves is gone in good time, whatever it is still asked."""
    monkeypatch.setattr("tacit.live.session.CONNECT_S", 0.3)

    async def scene() -> None:
        script = Script()
        await script.open()
        work = await script.bring(PartySide.LEAVING)

        async def ask_on() -> None:
            with contextlib.suppress(PeerError):
                while True:
                    await script.send(server_message("SelectedForTraining"))
                    await asyncio.sleep(0.02)

        asking = asyncio.create_task(ask_on())
        with pytest.raises(PeerError):
            await asyncio.wait_for(work, 15.0)
        asking.cancel()
        await script.close()

    run_async(scene())


BAD_TURNS = {
    "damping of 0": {"damping_factor": 0.0},
    "damping of 2": {"damping_factor": 2.0},
    "NaN as damping": {"damping_factor": np.nan},
    "no request": {"request": None},
    "no factor": {"factor": None},
    "no visit": {"visit": None},
    "a visit beyond all counting": {"visit": 2**63 - 1},
    "NaN in q": {"current_posterior": pack({"linear": np.full(1, np.nan),
                                            "quadratic": -np.ones((1, 1))}, "msgpack")},
    "another shape": {"factor": pack({"linear": np.ones(2), "quadratic": np.ones((2, 2))},
                                     "msgpack")},
}  # fmt: skip


@pytest.mark.parametrize("what", BAD_TURNS)
def test_a_turn_that_makes_no_sense(what):
    async def scene() -> None:
        script = Script()
        await script.open()
        work = await script.bring(PartySide.WAITING)
        given = {
            "current_posterior": PROPER, "request": "r7", "visit": 0, "factor_version": 0,
            "factor": FLAT,
        } | BAD_TURNS[what]  # fmt: skip
        fields: Any = {key: value for key, value in given.items() if value is not None}
        await script.send(m.SelectedForTraining(**fields))
        with pytest.raises(PeerError):
            await asyncio.wait_for(work, 30.0)
        assert script.session.side is PartySide.WAITING
        await script.close()

    run_async(scene())


def test_a_result_that_is_no_distribution():
    async def scene() -> None:
        script = Script()
        await script.open()
        work = await script.bring(PartySide.WAITING)
        await script.send(m.EndOfTraining(final_posterior=FLAT))
        with pytest.raises(PeerError, match="not a proper distribution"):
            await work
        assert script.session.final_posterior is None
        await script.close()

    run_async(scene())


def test_a_frame_larger_than_any_answer_could_be():
    async def scene() -> None:
        script = Script()
        await script.open()
        work = await script.bring(PartySide.WAITING)
        script.writer.write((2**20).to_bytes(4, "big"))
        with pytest.raises(PeerError, match="a frame of 1048576 bytes"):
            await work
        await script.close()

    run_async(scene())


def test_words_of_a_server_cannot_draw_on_a_terminal():
    async def scene() -> None:
        script = Script()
        await script.open()
        work = await script.bring(PartySide.JOINING)
        rude = "\x1b[2J\x1b]0;gone\x07 no\r\nroot# \u202eevil\u0000"
        await script.send(m.RejectionFromCluster(reason=rude, fixable=False))
        with pytest.raises(RejectedError) as caught:
            await work
        assert str(caught.value).isprintable()
        await script.close()

    run_async(scene())
