"""Closing a connection: any number of times, whatever the peer does, and with no side effects.

A peer is mute here if it keeps its TCP connection open and never answers the closing handshake.
"""

import asyncio
import contextlib
import json
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness
import pytest
from harness import Federation, Puppet, run_async

import tacit
from tacit.errors import DataError
from tacit.live.plan import server_plan
from tacit.live.protocol import messages as m
from tacit.live.protocol.arrays import pack
from tacit.live.protocol.codec import decode, encode
from tacit.live.server.coordinator import StoppedTaskError
from tacit.live.transport.certificates import revoke
from tacit.live.transport.stream import shut
from tacit.live.transport.tls import Credentials, client_context, server_context

THREE = ("north", "south", "west")


def read_message(sock: ssl.SSLSocket, known: Any) -> Any:
    """The next message in JSON of a blocking socket."""
    raw = b""
    while len(raw) < 4 or len(raw) < 4 + int.from_bytes(raw[:4], "big"):
        wanted = 4 if len(raw) < 4 else 4 + int.from_bytes(raw[:4], "big")
        more = sock.recv(wanted - len(raw))
        assert more, "hung up"
        raw += more
    return decode(raw[4:], "json", known)


def send_message(sock: ssl.SSLSocket, message: m.Message) -> None:
    payload = encode(message, "json")
    sock.sendall(len(payload).to_bytes(4, "big") + payload)


def mute_party(port: int, credentials: Credentials, digest: str) -> ssl.SSLSocket:
    """A party that joins and then neither reads nor writes; nothing happens on a blocking socket
    that is not used."""
    plain = socket.create_connection(("127.0.0.1", port))
    sock = client_context(credentials).wrap_socket(plain, server_hostname="127.0.0.1")
    send_message(sock, m.JoinCluster(data_size=1, protocol=1, configuration=digest))
    assert isinstance(read_message(sock, m.SERVER_MESSAGES), m.AcceptedIntoCluster)
    return sock


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


def test_a_mute_peer_is_cut_off_and_a_second_close_is_nothing(pki):
    async def play() -> None:
        accepted: asyncio.Queue[tuple[Any, asyncio.StreamWriter]] = asyncio.Queue()
        server = await asyncio.start_server(
            lambda *both: accepted.put_nowait(both),
            "127.0.0.1", 0, ssl=server_context(pki.server),
        )  # fmt: skip
        port = server.sockets[0].getsockname()[1]

        def connect() -> ssl.SSLSocket:
            plain = socket.create_connection(("127.0.0.1", port))
            context = client_context(pki.of("north"))
            return context.wrap_socket(plain, server_hostname="127.0.0.1")

        mute = await asyncio.to_thread(connect)
        _reader, writer = await accepted.get()  # a reader that is collected ends the stream
        sock = writer.get_extra_info("socket")
        began = time.monotonic()
        await asyncio.gather(shut(writer, 0.2), shut(writer, 0.3), shut(writer, 0.1))
        await shut(writer, 0.2)
        assert time.monotonic() - began < 2.0
        assert writer.transport.is_closing()
        assert sock.fileno() == -1, "the descriptor is free"
        mute.close()
        server.close()

    run_async(play())


def test_a_close_that_is_cancelled_cancels_nothing_else(pki):
    """The caller's timeout is the caller's; the connection is aborted and closes again."""

    async def play() -> None:
        accepted: asyncio.Queue[tuple[Any, asyncio.StreamWriter]] = asyncio.Queue()
        server = await asyncio.start_server(
            lambda *both: accepted.put_nowait(both),
            "127.0.0.1", 0, ssl=server_context(pki.server),
        )  # fmt: skip
        port = server.sockets[0].getsockname()[1]
        context = client_context(pki.of("north"))
        plain = socket.create_connection(("127.0.0.1", port))
        mute = await asyncio.to_thread(context.wrap_socket, plain, server_hostname="127.0.0.1")
        _reader, writer = await accepted.get()  # a reader that is collected ends the stream
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await shut(writer, 60.0)
        async with asyncio.timeout(1.0):
            await shut(writer, 60.0)
        mute.close()
        server.close()

    run_async(play())


@contextlib.contextmanager
def server_process(federation: Federation, port: int) -> Iterator[subprocess.Popen[bytes]]:
    federation.serve["listen"] = f"127.0.0.1:{port}"
    federation._write_server()
    process = federation.process(
        "serve", "server.toml", "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        while json.loads(process.stdout.readline())["event"] != "listening":
            pass
        yield process
    finally:
        process.kill()
        process.communicate()


def test_revocation_works_after_a_mute_party_was_revoked(tmp_path):
    own = harness.Pki.make(tmp_path / "own", THREE)
    federation = Federation.make(tmp_path, own, parties=THREE)
    digest, port = federation.server_setup.agreed.digest, free_port()
    with server_process(federation, port) as process:
        west = mute_party(port, own.of("west"), digest)

        async def play() -> None:
            south = await Puppet.connect(port, own.of("south"))
            assert isinstance(await south.join(digest), m.AcceptedIntoCluster)
            revoke(own.directory, "west")
            await asyncio.sleep(4.0)  # the server notices, says so, and waits for an answer
            assert not await south.closed(0.1)
            revoke(own.directory, "south")
            assert await south.closed(3.0), "the second revoked party is out within a few seconds"
            await south.close()

        run_async(play())
        process.send_signal(signal.SIGTERM)
        assert process.wait(20.0) == 0
        west.close()


def test_many_mute_parties_are_out_together(tmp_path):
    """One that does not answer delays no other."""
    names = tuple(f"party-{number}" for number in range(6))
    own = harness.Pki.make(tmp_path / "own", names)
    rows = dict.fromkeys(names, (1.0, 2.0))
    federation = Federation.make(
        tmp_path, own, parties=names, rows=rows, serve={"start": {"command": True}}
    )

    async def play() -> None:
        async with federation.serving() as running:
            digest = running.live.digest
            mute = [
                await asyncio.to_thread(mute_party, running.port, own.of(name), digest)
                for name in names
            ]
            for name in names:
                revoke(own.directory, name)
            began = time.monotonic()
            await running.until(lambda: not running.server.connections, 10.0)
            assert time.monotonic() - began < 5.0, "a second to notice, two to let go: not twelve"
            assert not running.events("internal")
            for sock in mute:
                sock.close()

    run_async(play())


@pytest.mark.parametrize("name", ["checking certificates", "accepting connections"])
def test_a_server_whose_guard_is_gone_ends_with_an_error(name, tmp_path, pki):
    async def play() -> None:
        async with Federation.make(tmp_path, pki).serving() as running:
            south = await Puppet.connect(running.port, pki.of("south"))
            assert isinstance(await south.join(running.live.digest), m.AcceptedIntoCluster)
            tasks = [task for task in asyncio.all_tasks() if task.get_name() == name]
            assert len(tasks) == 1
            tasks[0].cancel()
            goodbye = await south.receive(5.0)
            assert isinstance(goodbye, m.EarlyCloseOfConnection)
            assert goodbye.return_in is not None, "a new server can go on: the party shall return"
            await south.send(m.ClientAcknowledgement())
            with pytest.raises(StoppedTaskError, match=f"{name} has stopped"):
                await running.over()
            await south.close()

    run_async(play())


def test_parties_come_back_to_a_server_whose_disk_was_full(tmp_path, pki):
    """The operator clears the disk and starts it again: the run is not over for its parties."""

    async def play() -> None:
        async with Federation.make(tmp_path, pki).serving() as running:
            south = await Puppet.connect(running.port, pki.of("south"))
            assert isinstance(await south.join(running.live.digest), m.AcceptedIntoCluster)
            running.server._fail(DataError("cannot write server.sqlite: no space left"))
            goodbye = await south.receive(5.0)
            assert isinstance(goodbye, m.EarlyCloseOfConnection)
            assert goodbye.return_in is not None
            assert goodbye.return_in.seconds == 60
            await south.send(m.ClientAcknowledgement())
            with pytest.raises(DataError, match="no space left"):
                await running.over()
            await south.close()

    run_async(play())


class HoldingServer(threading.Thread):
    """A server that says what it is told to and keeps its TCP end open, and silent, after that."""

    def __init__(self, pki: harness.Pki, digest: str, end: m.ServerMessage) -> None:
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.context, self.digest, self.end = server_context(pki.server), digest, end
        self.heard: list[str] = []
        self.over = threading.Event()

    def run(self) -> None:
        plain, _ = self.listener.accept()
        sock = self.context.wrap_socket(plain, server_side=True)
        assert isinstance(read_message(sock, m.CLIENT_MESSAGES), m.JoinCluster)
        accepted = m.AcceptedIntoCluster(
            protocol=1, configuration=self.digest, run="run-1", parties=2
        )
        send_message(sock, accepted)
        send_message(sock, self.end)
        self.heard.append(read_message(sock, m.CLIENT_MESSAGES).name)
        self.over.wait(60.0)
        sock.close()
        self.listener.close()


def joined_with(federation: Federation, server: HoldingServer) -> "subprocess.Popen[bytes]":
    path = federation.write_party(
        "north",
        harness.RECORDS["north"],
        servers=[f"127.0.0.1:{server.port}"],
        encoding="json",
    )
    federation.process("approve", str(path), "--yes", stdout=subprocess.DEVNULL).wait(60.0)
    server.start()
    return federation.process("join", str(path), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def test_the_result_is_kept_although_the_server_holds_the_connection(tmp_path, pki):
    federation = Federation.make(tmp_path, pki)
    agreed = federation.server_setup.agreed
    final = pack(server_plan(agreed).rules.prior, "json")
    server = HoldingServer(pki, agreed.digest, m.EndOfTraining(final_posterior=final))
    process = joined_with(federation, server)
    try:
        _, words = process.communicate(timeout=120.0)
    finally:
        process.kill()
        server.over.set()
    assert process.returncode == 0, words
    assert server.heard == ["FinalLeaveTraining"]
    assert (Path(federation.base) / "north" / "state" / "public" / "posterior.npz").exists()


def test_a_planned_close_is_kept_to_although_the_server_holds_the_connection(tmp_path, pki):
    """The party comes back after `return_in`; it does not end as if it had been stopped."""
    federation = Federation.make(tmp_path, pki)
    goodbye = m.EarlyCloseOfConnection(reason="new kernel", return_in=m.Duration(0))
    server = HoldingServer(pki, federation.server_setup.agreed.digest, goodbye)
    process = joined_with(federation, server)
    try:
        again = server.listener
        deadline = time.monotonic() + 90.0
        while not server.heard and time.monotonic() < deadline:
            time.sleep(0.05)
        again.settimeout(60.0)
        plain, _ = again.accept()
        plain.close()
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()
        server.over.set()
    assert server.heard == ["EndOfConnectionAcknowledgement"]


def test_a_session_may_be_closed_twice(federation):
    async def play() -> None:
        async with federation.serving() as running:

            def once_and_again() -> None:
                pki = federation.pki.of("north")
                session = tacit.connect(
                    running.address,
                    certificate=pki.certificate,
                    key=pki.key,
                    authority=pki.authority,
                    configuration=running.live.digest,
                )
                with session:
                    session.close()
                session.close()

            await asyncio.to_thread(once_and_again)

    run_async(play())
