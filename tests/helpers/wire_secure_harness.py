"""Federations with secure sums over TLS, whose ends may be killed at any step."""

import asyncio
from collections import Counter
from typing import Any

import numpy as np
from wire_harness import BINARY, Fed, ended, started, until

from tacit.live.join import join
from tacit.live.protocol import messages as m
from tacit.live.secure.kept_party import KeptParty
from tacit.live.session import AsyncSession
from tacit.privacy.lattice import lattice_sum

ROWS = 24
THREE = ("a", "b", "c")
SEEDED = {"epsilon": 4.0, "delta": 1e-4, "insecure_noise_seed": 5, "aggregation": "secure"}
PRIVATE = {
    **BINARY,
    "model": {"kind": "logistic"},
    "privacy": SEEDED,
    "method": {"kind": "dp-scoring"},
    "schedule": {"kind": "synchronous", "rounds": 4},
}


class CrashError(BaseException):
    """As if the process were killed: no handler of the library catches it."""


def federation(folder, names=THREE, **agreed):
    agreed = {**PRIVATE, "records": ROWS * len(names), **agreed}
    fed = Fed(folder, names, agreed, rows=ROWS, encodings=("json", "cbor", "msgpack"))
    fed.approve()
    return fed


def refusals(fed, place="server"):
    return [line["reason"] for line in fed.journal(place) if line["event"] == "refused"]


def assert_sums(seen, slots):
    """Every sum is that of its survivors' integers."""
    assert set(seen.sums) == set(range(slots))
    for slot, found in seen.sums.items():
        for name, value in found.items():
            parts = [seen.vectors[slot, party][name] for party in seen.survivors[slot]]
            assert np.array_equal(value, lattice_sum(parts))


class Crashing:
    """Ends a party at a step of a round, once for each (visit, party, step)."""

    STEPS = ("before masking", "before sending", "after sending", "signature", "shares")

    def __init__(self, monkeypatch, plan):
        self.left, self.done = Counter(plan), []
        mask, send = KeptParty.masked, AsyncSession._send

        def masked(party: Any, request: Any, *rest: Any) -> Any:
            self.at(request.visit, party._name, "before masking")
            found = mask(party, request, *rest)
            self.at(request.visit, party._name, "before sending")
            return found

        async def sending(session: Any, message: Any) -> None:
            kinds = {m.SurvivorSignature: "signature", m.UnmaskShares: "shares"}
            step = kinds.get(type(message))
            if step is not None:
                self.at(message.slot, who(session), step)
            await send(session, message)
            if isinstance(message, m.MaskedUpdate):
                self.at(message.slot, who(session), "after sending")

        monkeypatch.setattr(KeptParty, "masked", masked)
        monkeypatch.setattr(AsyncSession, "_send", sending)

    def at(self, visit, name, step):
        key = (visit, name, step)
        if self.left[key]:
            self.left[key] -= 1
            self.done.append(key)
            raise CrashError(str(key))


def who(session):
    """Name of the party of a session of secure sums."""
    return session.sums.__self__._name


def rounds(fed):
    return [line for line in fed.journal() if line["event"] == "round"]


async def join_again(fed, name, *, away=False):
    """A party whose process is started again when it was killed, `away` in the next round."""
    while True:
        try:
            return await join(fed.party(name))
        except CrashError as crash:
            if away:
                missed = int(str(crash)[1 : str(crash).index(",")])
                await until(lambda missed=missed: len(rounds(fed)) > missed, 100)


async def play(fed, *, away=False):
    async with asyncio.timeout(150):
        server = await started(fed)
        try:
            parties = [join_again(fed, name, away=away) for name in fed.names]
            return await asyncio.gather(*parties), await server
        finally:
            await ended(server)


FIVE = ("a", "b", "c", "d", "e")
DROPPING = {**SEEDED, "secure": {"quorum": 4}}
