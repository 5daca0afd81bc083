"""Connections that die in silence: both ends find out, and the run goes on."""

import asyncio
import contextlib
from typing import Any

import harness
import pytest
from harness import Federation, Puppet, run_async

from tacit.errors import ConfigError
from tacit.live.protocol import messages as m
from tacit.live.server.coordinator import MAX_UNANSWERED
from tacit.live.server.status import give_command
from tacit.live.session import Introduction, open_session
from tacit.live.transport.frames import HangupError

BEAT = 0.7
QUICK = {"heartbeat_s": BEAT, "start": {"command": True}}


class Middlebox:
    """Passes TCP through, until it forgets the connections that it has: without a word to the
    party, and to the server only if `tells_server`. New connections are passed on."""

    def __init__(self, port: int, *, tells_server: bool) -> None:
        self.server_port, self.tells_server = port, tells_server
        self.connections = 0
        self._forgotten: list[asyncio.Event] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> int:
        self.listener = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        return self.listener.sockets[0].getsockname()[1]

    def forget(self) -> None:
        for one in self._forgotten:
            one.set()

    async def close(self) -> None:
        self.listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        gone = asyncio.Event()
        self._forgotten.append(gone)
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self.server_port)
        pumps = [
            asyncio.create_task(self._pump(reader, inner_writer, gone)),
            asyncio.create_task(self._pump(inner_reader, writer, gone)),
        ]
        ends = asyncio.gather(*pumps)
        try:
            forgotten = asyncio.create_task(gone.wait())
            await asyncio.wait([ends, forgotten], return_when=asyncio.FIRST_COMPLETED)
            if gone.is_set() and self.tells_server:
                inner_writer.transport.abort()
            await ends
        finally:
            forgotten.cancel()
            for pump in pumps:
                pump.cancel()
            writer.transport.abort()
            inner_writer.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gone: asyncio.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if not gone.is_set():
                    writer.write(data)
        if gone.is_set():  # what is swallowed stays open: neither end learns of the other's end
            await asyncio.sleep(3600.0)
        writer.close()


@pytest.mark.parametrize("tells_server", [True, False], ids=["server-side lost", "both held"])
@pytest.mark.parametrize("when", ["waiting", "training"])
def test_a_middlebox_that_forgets_a_connection_does_not_stop_the_run(
    when, tells_server, tmp_path, pki
):
    federation = Federation.make(tmp_path, pki, rounds=3, serve=QUICK)

    async def play() -> None:
        async with federation.serving() as running:
            box = Middlebox(running.port, tells_server=tells_server)
            port = await box.open()
            lines: list[dict[str, Any]] = []

            def watch(line: dict[str, Any]) -> None:
                lines.append(line)
                if when == "training" and line["event"] == "asked" and box.connections == 1:
                    box.forget()  # the answer goes nowhere

            north = asyncio.create_task(federation.join("north", port, watch=watch))
            south = asyncio.create_task(federation.join("south", running.port))
            await running.line("joined", party="north")
            await running.line("joined", party="south")
            if when == "waiting":
                await asyncio.sleep(2 * BEAT)
                box.forget()
            give_command(running.live.directory, "start")
            assert await running.over() == "finished"
            await asyncio.gather(north, south)
            assert box.connections == 2, "once more, and no more often"
            cut = [line["reason"] for line in lines if line["event"] == "cut off"]
            assert len(cut) == 1
            assert f"nothing for {3 * BEAT:g} s" in cut[0]
            asked = [line["id"] for line in lines if line["event"] == "asked"]
            assert len(set(asked)) == 3
            assert not running.events("internal")
            await box.close()
            for name, value in exact.items():
                assert running.posterior[name].item() == pytest.approx(value, rel=1e-12)

    exact = harness.exact_posterior(*(harness.RECORDS[name] for name in ("north", "south")))
    run_async(play())


def test_a_party_that_promised_answers_and_gives_none_is_cut_off(tmp_path, pki):
    federation = Federation.make(tmp_path, pki, serve=QUICK)

    async def play() -> None:
        async with federation.serving() as running:
            digest = running.live.digest
            south = await Puppet.connect(running.port, pki.of("south"))
            accepted = await south.join(digest, heartbeat=True)
            assert accepted.heartbeat_s == BEAT
            for _ in range(5):  # as long as it answers, it stays
                assert isinstance(await south.receive(2.0), m.ServerHeartbeat)
                await south.send(m.ClientHeartbeat())
            assert not running.events("silent")
            assert await south.closed(10 * BEAT + 2.0)
            await running.line("silent", party="south")
            await running.until(lambda: not running.server.connections)
            await south.close()

    run_async(play())


def test_heartbeats_are_for_those_who_know_them_and_wait(tmp_path, pki):
    federation = Federation.make(tmp_path, pki, serve=QUICK)

    async def play() -> None:
        async with federation.serving() as running:
            digest = running.live.digest
            south = await Puppet.connect(running.port, pki.of("south"))
            first = await south.join(digest)  # knows further fields, but not this one
            north = await Puppet.connect(running.port, pki.of("north"))
            second = await north.join(digest, heartbeat=False)  # reads, and may not answer
            assert (first.heartbeat_s, second.heartbeat_s) == (m.UNSET, BEAT)
            for _ in range(4):  # more than are put up with from one that promised to answer
                assert isinstance(await north.receive(2.0), m.ServerHeartbeat)
            give_command(running.live.directory, "start")
            asked = await south.receive()
            assert isinstance(asked, m.SelectedForTraining), "and no heartbeat before it"
            while not isinstance(await north.receive(), m.SelectedForTraining):
                pass
            with pytest.raises(TimeoutError):
                await north.receive(4 * BEAT)  # a party at work is left alone
            assert set(running.server.connections) == {"north", "south"}
            assert running.server.connections["north"].unanswered <= MAX_UNANSWERED
            # It comes back: what it said of heartbeats when it joined still counts.
            again = await Puppet.connect(running.port, pki.of("north"))
            assert (await again.rejoin()).heartbeat_s == BEAT
            for puppet in (south, north, again):
                await puppet.close()

    run_async(play())


def test_heartbeats_that_answer_nothing_are_limited(tmp_path, pki):
    federation = Federation.make(tmp_path, pki, serve={"heartbeat_s": 60.0})

    async def play() -> None:
        async with federation.serving() as running:
            south = await Puppet.connect(running.port, pki.of("south"))
            await south.join(running.live.digest, heartbeat=True)
            with contextlib.suppress(HangupError):
                for _ in range(300):
                    await south.send(m.ClientHeartbeat())
            await running.line("refused", kind="rate")
            assert await south.closed(3.0)
            await south.close()

    run_async(play())


def test_a_server_without_heartbeats_may_be_silent_for_as_long_as_was_said(tmp_path, pki):
    """One of our sessions with a server that knows none: by default it waits for ever."""

    async def play() -> None:
        async with Federation.make(tmp_path, pki, serve={"heartbeat_s": 60.0}).serving() as running:
            configuration = running.live.digest
            for silence_s in (None, 0.4):
                who = Introduction(configuration=configuration, silence_s=silence_s)
                session = await open_session(running.address, pki.of("south"), who)
                assert session.silence_s == 180.0, "three heartbeats of the server's"
                session.silence_s = silence_s  # as if the server had said nothing of them
                waiting = asyncio.create_task(session.wait_for_posterior())
                limit = 1.5 if silence_s is None else 30.0
                done, _ = await asyncio.wait([waiting], timeout=limit)
                assert bool(done) == (silence_s is not None)
                if done:
                    with pytest.raises(HangupError, match=r"nothing for 0.4 s"):
                        await waiting
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
                await session.close()

    run_async(play())


@pytest.mark.parametrize(
    ("end", "key"), [("serve", "heartbeat_s"), ("serve", "frame_s"), ("join", "silence_s")]
)
def test_times_that_make_no_sense(end, key, tmp_path, pki):
    federation = Federation.make(tmp_path, pki)
    path = federation.base / ("server.toml" if end == "serve" else "north/party.toml")
    read = harness.read_server if end == "serve" else harness.read_party
    with pytest.raises(ConfigError, match=rf"{end}\.{key} = 0"):
        read(path, (f"{end}.{key}=0.0",))
