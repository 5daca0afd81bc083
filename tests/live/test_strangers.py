"""Whoever comes to a running server and does not behave: refused, logged, and of no consequence.

In every test one honest party takes part in a synchronous run and another is in the test's hands;
whatever happens in between, the posterior is that of the undisturbed run, to the last bit.
TACIT_FLOOD=10000 makes the flood that large; the default is 1,000.
"""

import asyncio
import contextlib
import os
import ssl
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import harness
import numpy as np
import pytest
from harness import Federation, Puppet, answer_to, exact_delta, run_async, same_bits

from tacit.errors import ConfigError
from tacit.live.protocol import messages as m
from tacit.live.protocol.arrays import pack
from tacit.live.protocol.state_tables import ServerSide
from tacit.live.server.slots import MAX_HANDSHAKES
from tacit.live.transport.certificates import issue_party, revoke
from tacit.live.transport.frames import HangupError
from tacit.live.transport.tls import Credentials, client_context

FLOOD = int(os.environ.get("TACIT_FLOOD", "1000"))
ROUNDS = 3
DEADLINE = 0.6
"""serve.handshake_s and serve.frame_s here; a refusal may take two of them and a little."""
REFUSED = (OSError, ssl.SSLError, asyncio.IncompleteReadError)
SLOW = {"schedule": {"kind": "synchronous", "rounds": ROUNDS, "damping": 0.3}}


def made(tmp_path: Path, pki: harness.Pki, **serve: Any) -> Federation:
    limits = {"handshake_s": DEADLINE, "frame_s": DEADLINE} | serve
    return Federation.make(tmp_path, pki, serve=limits, **SLOW)


@dataclass
class Scene:
    """A run in its first round: north is honest, south is ours and was just asked."""

    federation: Federation
    running: harness.Running
    south: Puppet
    asked: m.SelectedForTraining

    @property
    def port(self) -> int:
        return self.running.port

    @property
    def digest(self) -> str:
        return self.running.live.digest

    def honest(self, **changes: Any) -> m.UpdatedLikelihood:
        delta = exact_delta(self.asked, harness.RECORDS["south"])
        return answer_to(self.asked, delta, self.south.encoding, **changes)

    async def refused(self, kind: str, reason: str = "", seconds: float = 5.0) -> None:
        await self.running.line("refused", seconds, kind=kind, reason=reason)

    async def finish(self) -> None:
        """The rest of the run, as if nothing had happened."""
        while isinstance(self.asked, m.SelectedForTraining):
            await self.south.send(self.honest())
            self.asked = await self.south.receive()
        assert isinstance(self.asked, m.EndOfTraining)
        await self.south.send(m.FinalLeaveTraining(available_for_future_training=False))


@contextlib.asynccontextmanager
async def scene(federation: Federation, south: Credentials | None = None):
    async with federation.serving() as running:
        north = asyncio.create_task(federation.join("north", running.port))
        puppet = await Puppet.connect(running.port, south or federation.pki.of("south"))
        assert isinstance(await puppet.join(running.live.digest), m.AcceptedIntoCluster)
        now = Scene(federation, running, puppet, await puppet.receive())
        yield now
        await now.finish()
        assert await running.over() == "finished"
        await north
        await now.south.close()


def posterior_after(federation: Federation, attack: Any = None, **options: Any) -> Any:
    async def play() -> Any:
        async with scene(federation, **options) as now:
            if attack is not None:
                await attack(now)
        assert not now.running.events("internal"), now.running.events("internal")
        return now.running.posterior

    return run_async(play())


@pytest.fixture(scope="module")
def undisturbed(pki, tmp_path_factory) -> Any:
    return posterior_after(made(tmp_path_factory.mktemp("undisturbed"), pki))


@pytest.fixture
def unharmed(tmp_path, pki, undisturbed):
    """Plays an attack and compares the posterior."""

    def play(attack: Any, federation: Federation | None = None, **options: Any) -> None:
        federation = federation or made(tmp_path, pki)
        assert same_bits(posterior_after(federation, attack, **options), undisturbed)

    return play


def loose(pki: harness.Pki, mine: Credentials | None = None) -> ssl.SSLContext:
    """The context of somebody who does not keep to our rules."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(pki.directory / "ca.pem")
    if mine is not None:
        context.load_cert_chain(mine.certificate, mine.key)
    return context


async def dial(port: int, context: Any = None) -> Puppet:
    host = None if context is None else "127.0.0.1"
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname=host
    )
    return Puppet(reader, writer)


async def turned_away(port: int, context: Any = None, says: bytes = b"") -> float:
    """Connect, say something, and see the end of it; how long that took."""
    began = time.monotonic()
    try:
        guest = await dial(port, context)
        guest.writer.write(says)
        assert await guest.closed(2 * DEADLINE + 2.0)
        await guest.close()
    except REFUSED:
        pass
    return time.monotonic() - began


# Strangers: no certificate of ours, or none that counts.


def test_no_good_certificate(pki, tmp_path, unharmed):
    elsewhere = harness.Pki.make(tmp_path / "elsewhere", ("south",))
    day = timedelta(days=1)
    for place in ("expired", "early"):
        (tmp_path / place).mkdir()
    expired = pki.forge(tmp_path / "expired", "south", start=-2 * day, end=-day)
    early = pki.forge(tmp_path / "early", "south", start=day, end=2 * day)
    old = loose(pki, pki.of("south"))
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    strangers = [
        (loose(pki), "PEER_DID_NOT_RETURN_A_CERTIFICATE"),
        (loose(pki, elsewhere.of("south")), "unable to get local issuer certificate"),
        (loose(pki, expired), "certificate has expired"),
        (loose(pki, early), "certificate is not yet valid"),
        (loose(pki, pki.server), "unsuitable certificate purpose"),
        (old, "UNSUPPORTED_PROTOCOL"),
    ]

    async def attack(now: Scene) -> None:
        for context, reason in strangers:
            assert await turned_away(now.port, context, b"x") < 2.0
            await now.refused("tls", reason)

    unharmed(attack)


def test_no_tls_at_all(unharmed):
    said = [b"\x00" * 100, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", os.urandom(4096)]

    async def attack(now: Scene) -> None:
        for waited in await asyncio.gather(*(turned_away(now.port, None, says) for says in said)):
            assert waited < 2 * DEADLINE + 1.0
        assert now.running.server.journal.refusals["tls"] == len(said)

    unharmed(attack)


def test_silence_before_and_after_tls(pki, unharmed):
    async def attack(now: Scene) -> None:
        silent = turned_away(now.port), turned_away(now.port, client_context(pki.of("east")))
        for waited in await asyncio.gather(*silent):
            assert DEADLINE * 0.8 < waited < 2 * DEADLINE + 1.5
        await now.refused("tls")
        await now.refused("protocol", "no complete frame")

    unharmed(attack)


def test_a_revoked_certificate(tmp_path, unharmed):
    own = harness.Pki.make(tmp_path / "own", ("north", "south", "east"))
    revoke(own.directory, "east")

    async def attack(now: Scene) -> None:
        assert await turned_away(now.port, client_context(own.of("east"))) < 2.0
        await now.refused("certificate", "revoked")

    unharmed(attack, made(tmp_path, own))


def test_revoked_while_connected_and_back_with_a_new_key(tmp_path, unharmed):
    own = harness.Pki.make(tmp_path / "own", ("north", "south"))

    async def attack(now: Scene) -> None:
        fresh = own.forge(tmp_path, "south")
        second = await Puppet.connect(now.port, fresh)
        refusal = await second.rejoin()
        assert isinstance(refusal, m.RejectionFromCluster)
        assert (refusal.fixable, "another key" in (refusal.reason or "")) == (False, True)
        assert await second.closed(2.0)
        await second.close()

        revoke(own.directory, "south")
        began = time.monotonic()
        assert await now.south.closed(3.0), "a revoked party is cut off while it is connected"
        assert time.monotonic() - began < 3.0
        await now.refused("certificate", "revoked")
        await now.south.close()
        assert await turned_away(now.port, client_context(own.of("south"))) < 2.0

        issued = issue_party(own.directory, "south", out=tmp_path / "new")
        renewed = Credentials(*issued, own.directory / "ca.pem")
        now.south = await Puppet.connect(now.port, renewed)
        assert isinstance(await now.south.rejoin(), m.ReAcceptanceIntoCluster)
        again = await now.south.receive()
        assert again == now.asked, "the open request, as it was sent before"

    unharmed(attack, made(tmp_path, own))


def test_a_party_that_is_not_on_the_list(pki, unharmed):
    async def attack(now: Scene) -> None:
        for say in (Puppet.rejoin, Puppet.join):
            guest = await Puppet.connect(now.port, pki.of("east"))
            refusal = await say(guest)
            assert isinstance(refusal, m.RejectionFromCluster)
            assert not refusal.fixable
            assert "not on the list" in (refusal.reason or "")
            assert await guest.closed(2.0)
            await guest.close()
        await now.refused("party", "not on the list")

    unharmed(attack)


def test_a_party_is_its_certificate(pki, unharmed):
    """Whoever holds south's key and certificate is south, and the older connection ends."""

    async def attack(now: Scene) -> None:
        second = await Puppet.connect(now.port, pki.of("south"), "cbor")
        back = await second.rejoin()
        assert isinstance(back, m.ReAcceptanceIntoCluster)
        assert back.factor_version == 0
        goodbye = await now.south.receive()
        assert isinstance(goodbye, m.EarlyCloseOfConnection)
        assert await now.south.closed(3.0)
        await now.south.close()
        now.south, now.asked = second, await second.receive()
        assert now.asked.request == "r1"

    unharmed(attack)


def test_an_approved_configuration_that_is_not_this_one(pki, tmp_path, unharmed):
    federation = made(tmp_path, pki, start={"command": True})

    async def play() -> None:
        async with federation.serving() as running:
            guest = await Puppet.connect(running.port, pki.of("south"))
            refusal = await guest.join("0" * 64)
            assert (refusal.code, refusal.fixable) == ("configuration", True)
            assert await guest.closed(2.0)
            await guest.close()

    run_async(play())


# Known parties that send nonsense before they have joined.


BROKEN = {
    "4 GiB": (b"\xff\xff\xff\xff", "protocol", "4294967295"),
    "64 KiB + 1": (struct.pack(">I", 65537), "protocol", "65537"),
    "half a length": (b"\x00\x00", "protocol", "no complete frame"),
    "half a frame": (b"\x00\x00\x00\x20{", "protocol", "no complete frame"),
    "no message": (b"\x00\x00\x00\x03\x00\x01\x02" * 3, "message", "not JSON"),
    "empty": (b"\x00\x00\x00\x00" * 3, "message", "not JSON"),
    "no tag": (b"\x00\x00\x00\x02{}" * 3, "message", "one entry"),
    "another's": (b'\x00\x00\x00\x10{"EndOfTraining"}' * 3, "message", "not a valid json message"),
}


def test_bad_frames_before_joining(pki, unharmed):
    async def attack(now: Scene) -> None:
        for name, (says, kind, reason) in BROKEN.items():
            waited = await turned_away(now.port, client_context(pki.of("east")), says)
            assert waited < 2 * DEADLINE + 1.5, name
            await now.refused(kind, reason)

    unharmed(attack)


def test_a_byte_at_a_time(pki, unharmed):
    async def attack(now: Scene) -> None:
        guest = await dial(now.port, client_context(pki.of("east")))
        began = time.monotonic()
        reading = asyncio.create_task(guest.closed(5.0))
        with contextlib.suppress(*REFUSED):
            for byte in b"\x00\x00\x10\x00" + b" " * 100:
                guest.writer.write(bytes([byte]))
                await asyncio.sleep(0.1)
                if reading.done():
                    break
        assert await reading
        assert time.monotonic() - began < 2 * DEADLINE + 1.5
        await guest.close()

    unharmed(attack)


def test_random_frames(pki, unharmed):
    rng = np.random.default_rng(11)

    async def attack(now: Scene) -> None:
        context = client_context(pki.of("east"))
        for _ in range(30):
            body = rng.bytes(int(rng.integers(1, 300)))
            says = (struct.pack(">I", len(body)) + body) * 3
            assert await turned_away(now.port, context, says) < 2 * DEADLINE + 1.5
        assert now.running.server.journal.refusals["message"] >= 90

    unharmed(attack)


# A member of the run that does not behave. It is cut off or told so, and comes back.


async def back(now: Scene, seconds: float = 3.0) -> None:
    """The server has hung up; the party comes back and is asked the same again."""
    assert await now.south.closed(seconds)
    await now.south.close()
    now.south = await Puppet.connect(now.port, now.federation.pki.of("south"))
    assert isinstance(await now.south.rejoin(), m.ReAcceptanceIntoCluster)
    assert await now.south.receive() == now.asked


def test_a_member_whose_frames_are_broken(unharmed):
    async def attack(now: Scene) -> None:
        for says in (b"\xff\xff\xff\xff", b"\x00\x00\x00\x20{", b"\x00\x00"):
            now.south.writer.write(says)
            await back(now, 2 * DEADLINE + 1.5)
        assert now.running.server.journal.refusals["protocol"] == 3

    unharmed(attack)


def test_payloads_that_are_no_messages(unharmed):
    """Two: the third in a row of a party that was asked leaves it out."""
    rng = np.random.default_rng(12)

    async def attack(now: Scene) -> None:
        for _ in range(2):
            await now.south.send_raw(rng.bytes(50))
            assert isinstance(await now.south.receive(), m.ServerError)
            assert await now.south.receive() == now.asked
        await now.refused("message")

    unharmed(attack)


def with_number(now: Scene, value: float, name: str = "linear") -> dict[str, Any]:
    delta = exact_delta(now.asked, harness.RECORDS["south"])
    delta[name] = np.full_like(delta[name], value)
    return pack(delta, now.south.encoding)


def wrong(now: Scene) -> dict[str, dict[str, Any]]:
    """What is wrong with an update, and the fields that make it so."""
    short = m.Array((1, 1), b"\x00" * 7)
    return {
        "stale version": {"factor_version": 7},
        "no version": {"factor_version": ...},
        "other names": {"delta": pack({"log": np.ones(1)}, "msgpack")},
        "no names": {"delta": {}},
        "shape": {"delta": pack({"linear": np.ones(2), "quadratic": -np.eye(2)}, "msgpack")},
        "bytes": {"delta": {"linear": m.Array((1,), b"\x00" * 8), "quadratic": short}},
        "huge shape": {"delta": {"linear": m.Array((2**31,) * 4, b""), "quadratic": short}},
        "NaN": {"delta": with_number(now, np.nan)},
        "infinity": {"delta": with_number(now, np.inf, "quadratic")},
        "no number": {"delta": {"linear": 1.0, "quadratic": None}},
        "loss of NaN": {"loss": np.nan},
        "loss of infinity": {"loss": -np.inf},
        "another new factor": {"new_likelihood": with_number(now, 1e6)},
        "a normal without a variance": {"delta": {"mean": 0.0, "variance": 0.0}},
    }


@pytest.mark.parametrize("number", range(14))
def test_an_update_that_makes_no_sense(number, unharmed):
    """It is answered with Error, and asked for again."""

    async def attack(now: Scene) -> None:
        what, fields = list(wrong(now).items())[number]
        assert len(wrong(now)) == 14
        await now.south.send(now.honest(**fields))
        answer = await now.south.receive()
        assert isinstance(answer, m.ServerError), what
        await now.refused("message", (answer.error or "?")[:40])
        assert await now.south.receive() == now.asked, what

    unharmed(attack)


def test_updates_for_requests_that_are_not_ones_own(unharmed):
    async def attack(now: Scene) -> None:
        for number, name in enumerate(("r999", "r0", "", "r1\x00", "🦆" * 200), start=1):
            await now.south.send(now.honest(request=name))
            ignored = lambda count=number: len(now.running.events("ignored")) == count  # noqa: E731
            await now.running.until(ignored)

    unharmed(attack)


def test_an_update_that_is_replayed(unharmed):
    async def attack(now: Scene) -> None:
        update = now.honest()
        for _ in range(3):  # together: the second arrives before the first has been applied
            await now.south.send(update)
        now.asked = await now.south.receive()
        assert now.asked.round == 2
        for _ in range(3):  # when its round is over
            await now.south.send(update)
        await now.running.line("ignored", party="south", id="r1")
        # The old answer under the new id is what it says it is, an answer for an older factor.
        asked, now.asked = now.asked, m.SelectedForTraining(current_posterior={})
        await now.south.send(
            m.UpdatedLikelihood(
                delta=update.delta, request=asked.request, factor_version=update.factor_version
            )
        )
        assert isinstance(await now.south.receive(), m.ServerError)
        assert (await now.south.receive()).request == asked.request
        now.asked = asked

    unharmed(attack)


def test_a_member_cannot_fill_the_disk(unharmed):
    async def attack(now: Scene) -> None:
        known = len(now.running.lines)
        same = m.ReturnLastLikelihood(likelihood=with_number(now, 1.0))
        for _ in range(40):
            await now.south.send(now.honest(request="x" * 200))
            await now.south.send(same)
        await now.south.send_raw(b"no message")
        assert isinstance(await now.south.receive(), m.ServerError)
        assert len(now.running.lines) - known < 90

    unharmed(attack)


def test_a_member_that_sends_what_was_not_asked_for_is_closed(unharmed):
    """One that ignores good advice comes back to the same account: another connection is no way
    around it."""

    async def attack(now: Scene) -> None:
        south, useless = now.south, now.honest(request="none of ours")
        sent = 0
        with contextlib.suppress(HangupError):
            for _ in range(20):
                for _ in range(100):
                    await south.send(useless)
                    sent += 1
                await asyncio.sleep(0)
        await now.refused("rate", "unrequested messages")
        assert await south.closed(3.0)
        await south.close()
        taken = len(now.running.events("ignored"))
        assert taken <= 110, "what is over the limit is not looked at"
        again = await Puppet.connect(now.port, now.federation.pki.of("south"))
        goodbye = await again.rejoin()
        assert isinstance(goodbye, m.EarlyCloseOfConnection), "its account is still empty"
        assert goodbye.return_in is not None
        assert goodbye.return_in.seconds > 0
        await again.close()
        bucket = now.running.server._conversations._surplus["south"]
        bucket._at -= goodbye.return_in.seconds  # as if that time had passed
        now.south = await Puppet.connect(now.port, now.federation.pki.of("south"))
        assert isinstance(await now.south.rejoin(), m.ReAcceptanceIntoCluster)
        assert await now.south.receive() == now.asked

    unharmed(attack)


def test_joining_twice(unharmed):
    async def attack(now: Scene) -> None:
        for message in (m.JoinCluster(data_size=1, protocol=1), m.ReJoinCluster()):
            await now.south.send(message)
            answer = await now.south.receive()
            assert isinstance(answer, m.ServerError)
            assert "while training" in (answer.error or "")
        second = await Puppet.connect(now.port, now.federation.pki.of("south"))
        refusal = await second.join(now.digest)
        assert isinstance(refusal, m.RejectionFromCluster)
        assert (refusal.code, refusal.fixable) == ("rejoin", True)
        assert await second.closed(2.0)
        await second.close()

    unharmed(attack)


def test_a_factor_returned_in_the_middle_changes_nothing(unharmed):
    async def attack(now: Scene) -> None:
        await now.south.send(m.ReturnLastLikelihood(likelihood=with_number(now, 1e9)))
        await now.running.line("returned", factor="differs")

    unharmed(attack)


def test_a_member_that_leaves_for_a_while_and_returns(unharmed):
    async def attack(now: Scene) -> None:
        await now.south.send(m.EarlyLeaveCluster(expected_absence=m.Duration(2**62)))
        assert isinstance(await now.south.receive(), m.ServerAcknowledgement)
        await back(now)

    unharmed(attack)


@pytest.mark.parametrize("value", [1e308, 1e29, 10.0, -1e300, -1e3])
def test_numbers_that_no_records_could_lead_to(value, tmp_path, pki):
    """The party is left out, named, and hears the result, which is that of the others."""
    schedule = {"kind": "synchronous", "rounds": 40, "damping": 0.5}
    federation = Federation.make(tmp_path, pki, schedule=schedule)

    async def attack(now: Scene) -> None:
        await now.south.send(now.honest(delta=with_number(now, value, "quadratic")))
        answer = await now.south.receive()
        assert "left out until the operator readmits you" in answer.error
        now.asked = await now.south.receive()
        (line,) = now.running.events("left out")
        assert (line["party"], line["round"]) == ("south", 1)

    found = posterior_after(federation, attack)
    exact = harness.exact_posterior(harness.RECORDS["north"])
    for name, one in exact.items():
        assert found[name].item() == pytest.approx(one, rel=1e-9)


@pytest.mark.parametrize("noticed", [True, False])
def test_a_matrix_that_is_not_symmetric(noticed, tmp_path, pki, monkeypatch):
    """It passes for a proper precision, and no Cholesky factor can be had of it."""
    federation = Federation.make(
        tmp_path, pki, model={"kind": "linear", "noise_sd": 1.0}, posterior="full", rounds=2
    )
    twisted = {"linear": np.zeros(2), "quadratic": np.array([[0.0, 1e3], [-1e3, -0.001]])}
    if not noticed:  # something of that kind that no check on arrival could find
        monkeypatch.setattr("tacit.live.server.live_run.SYMMETRY_TOLERANCE", np.inf)

    async def play() -> None:
        async with federation.serving() as running:
            north = asyncio.create_task(federation.join("north", running.port))
            south = await Puppet.connect(running.port, pki.of("south"))
            assert isinstance(await south.join(), m.AcceptedIntoCluster)
            asked = await south.receive()
            await south.send(answer_to(asked, twisted, south.encoding))
            answer = await south.receive()
            if noticed:
                assert "not symmetric" in answer.error
            else:
                await running.line("refused", reason="would not be a proper distribution")
                asked = answer
            nothing = {name: 0.0 * value for name, value in twisted.items()}
            while isinstance(asked, m.SelectedForTraining):
                await south.send(answer_to(asked, nothing, south.encoding))
                asked = await south.receive()
            await south.send(m.FinalLeaveTraining(available_for_future_training=False))
            await north
            assert await running.over() == "finished"
            await south.close()

    run_async(play())


def test_a_returned_factor_that_nobody_could_start_from(tmp_path, pki):
    federation = made(tmp_path, pki, accept_returned=True)

    async def play() -> None:
        async with federation.serving() as running:
            south = await Puppet.connect(running.port, pki.of("south"))
            assert (await south.join()).return_likelihood is True
            for value in (1.0, -1e300):
                bad = {"linear": np.zeros(1), "quadratic": np.full((1, 1), value)}
                await south.send(m.ReturnLastLikelihood(likelihood=pack(bad, south.encoding)))
                assert isinstance(await south.receive(), m.ServerError)
            north = asyncio.create_task(federation.join("north", running.port))
            asked = await south.receive()
            while isinstance(asked, m.SelectedForTraining):
                delta = exact_delta(asked, harness.RECORDS["south"])
                await south.send(answer_to(asked, delta, south.encoding))
                asked = await south.receive()
            await south.send(m.FinalLeaveTraining(available_for_future_training=False))
            await north
            await south.close()

    run_async(play())


# Many at once.


def test_silent_strangers_take_no_places(tmp_path, pki, unharmed):
    """As many handshakes as there may be, all of them silent: a party is let in all the same."""
    federation = made(tmp_path, pki, handshake_s=20.0)

    async def attack(now: Scene) -> None:
        idle = [await dial(now.port) for _ in range(MAX_HANDSHAKES + 20)]
        await now.refused("full", "was closed")
        for guest in idle[:10]:
            assert await guest.closed(2.0), "the oldest give way"
        assert not await idle[-1].closed(0.1)
        second = await Puppet.connect(now.port, pki.of("east"))
        assert isinstance(await second.join(), m.RejectionFromCluster)
        await second.close()
        assert len(now.running.server._listener._handshakes) <= MAX_HANDSHAKES
        for guest in idle:
            await guest.close()

    unharmed(attack, federation)


def test_a_party_cannot_keep_the_others_out(tmp_path, pki, unharmed):
    """Connections of one party, and of peers that are not on the list, as many as they like."""
    federation = made(tmp_path, pki, most_connections=4, handshake_s=20.0, frame_s=20.0)

    async def attack(now: Scene) -> None:
        slots = now.running.server._listener._slots
        mine = [await Puppet.connect(now.port, pki.of("south")) for _ in range(6)]
        assert len(slots) <= 4
        for _ in range(4):
            mine.append(await Puppet.connect(now.port, pki.of("east")))
        await now.refused("full")
        # The two that are at work have stayed, and a party that was cut off is let in.
        assert set(now.running.server.connections) == {"north", "south"}
        for _ in range(3):  # each one replaces the one before, which need not answer
            again = await Puppet.connect(now.port, pki.of("south"))
            assert isinstance(await again.rejoin(), m.ReAcceptanceIntoCluster)
            assert await again.receive() == now.asked
            mine.append(now.south)
            now.south = again
            assert len(slots) <= 4
        north = now.running.server.connections["north"]
        assert north.side is not ServerSide.GONE
        for guest in mine:
            await guest.close()

    unharmed(attack, federation)


SERVER = """
import asyncio, sys
from pathlib import Path
from tacit.live.config import read_server
from tacit.live.serve import serve
setup = read_server(Path(sys.argv[1]))
ready = lambda port: print(port, flush=True)
asyncio.run(serve(setup, ready=ready))
"""


def memory_kb(pid: int) -> int:
    """The most that a process has had in memory so far."""
    status = Path(f"/proc/{pid}/status")
    return int(status.read_text().split("VmHWM:")[1].split()[0]) if status.exists() else 0


def test_a_flood_of_strangers(tmp_path, pki, undisturbed):
    """Connections that hang up, talk nonsense, or have no certificate, as fast as they can be."""
    federation = made(tmp_path, pki)
    path = federation.base / "server.toml"
    process = subprocess.Popen([sys.executable, "-c", SERVER, path], stdout=subprocess.PIPE)
    context, sizes = loose(pki), []
    said = [None, b"\x16\x03\x01" + os.urandom(500), b"GET / HTTP/1.0\r\n\r\n"]

    async def stranger(port: int, number: int, free: asyncio.Semaphore) -> None:
        async with free:
            with contextlib.suppress(*REFUSED):
                guest = await dial(port, context if number % 4 == 3 else None)
                if number % 4 < 3 and said[number % 4]:
                    guest.writer.write(said[number % 4])
                if number % 2:
                    await guest.closed(5.0)
                await guest.close()

    async def play(port: int) -> tuple[float, Any]:
        north = asyncio.create_task(federation.join("north", port))
        south = await Puppet.connect(port, pki.of("south"))
        assert isinstance(await south.join(), m.AcceptedIntoCluster)
        asked, free = await south.receive(), asyncio.Semaphore(100)
        sizes.append(memory_kb(process.pid))
        began = time.monotonic()
        await asyncio.gather(*(stranger(port, number, free) for number in range(FLOOD)))
        took = time.monotonic() - began
        sizes.append(memory_kb(process.pid))
        while isinstance(asked, m.SelectedForTraining):
            delta = exact_delta(asked, harness.RECORDS["south"])
            await south.send(answer_to(asked, delta, south.encoding))
            asked = await south.receive()
        await south.send(m.FinalLeaveTraining(available_for_future_training=False))
        await south.close()
        await north
        return took, asked

    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        took, end = run_async(play(port), 1000.0)
        assert process.wait(20.0) == 0
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    found = {name: np.frombuffer(value.data) for name, value in end.final_posterior.items()}
    assert same_bits(found, undisturbed)
    grown = sizes[1] - sizes[0]
    assert grown < 100_000, "the server grows with the connections at one time, if at all"
    log = (federation.base / "state" / "log.jsonl").read_text().splitlines()
    assert len(log) < 500, "no stranger fills the disk"
    print(f"{FLOOD} connections in {took:.1f} s; the server's memory in kB: {sizes}")


def test_connections_without_a_certificate_cost_no_memory(tmp_path, pki):
    """Connections that come and go, that show no certificate, and that are held open: the buffers
    of TLS are for peers that speak TLS, for a limited number of them, and given back at once."""
    federation = made(tmp_path, pki, handshake_s=20.0)
    path = federation.base / "server.toml"
    process = subprocess.Popen([sys.executable, "-c", SERVER, path], stdout=subprocess.PIPE)
    grown: dict[str, int] = {}

    async def stranger(port: int, free: asyncio.Semaphore, context: Any) -> None:
        async with free:
            with contextlib.suppress(*REFUSED):
                guest = await dial(port, context)
                if context is not None:
                    await guest.closed(5.0)
                await guest.close()

    async def play(port: int) -> None:
        free, before = asyncio.Semaphore(50), memory_kb(process.pid)
        await asyncio.gather(*(stranger(port, free, None) for _ in range(1000)))
        grown["come and gone"] = memory_kb(process.pid) - before
        context = loose(pki)
        await asyncio.gather(*(stranger(port, free, context) for _ in range(150)))
        grown["no certificate"] = memory_kb(process.pid) - before
        held = [await dial(port) for _ in range(300)]
        for guest in held:
            guest.writer.write(b"\x16\x03\x01\x02\x00\x01\x00")  # half a greeting
        await asyncio.sleep(1.0)
        grown["held open"] = memory_kb(process.pid) - before
        for guest in held:
            await guest.close()

    try:
        assert process.stdout is not None
        run_async(play(int(process.stdout.readline())), 100.0)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    print(f"the server's memory grew by so many kB: {grown}")
    assert grown["come and gone"] < 20_000
    assert grown["no certificate"] < 60_000
    assert grown["held open"] < 100_000


def test_places_for_fewer_than_the_listed_parties_are_refused(tmp_path, pki):
    federation = made(tmp_path, pki, most_connections=1)
    with pytest.raises(
        ConfigError,
        match=r"serve.most_connections = 1; the federation has 2 parties: .* at least 2",
    ):
        federation.server_setup  # noqa: B018 - reading the files is the test
    assert ConfigError.exit_code == 2
    assert made(tmp_path, pki, most_connections=2).server_setup.own.serve.most_connections == 2
