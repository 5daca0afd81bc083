"""What a server and a party say to each other, whatever engine carries it."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import msgspec
import numpy as np

from tacit.expfam import Natural


class Request(NamedTuple):
    """The server asks one party for one update.

    `id` is answered once. `version` is that of the party's factor: an update made against
    another one is refused. `visit` counts the requests this party has had and, with the seed and
    the party's name, is all that its random numbers depend on.
    """

    id: str
    party: str
    visit: int
    version: int
    q: Natural
    factor: Natural
    damping: float
    initial: bool
    """True while no update has been applied: q is still the prior."""

    @property
    def content(self) -> str:
        """A digest of everything that is asked, to the last bit; two digests, two questions."""
        parts = [self.party, self.visit, self.version, float(self.damping), bool(self.initial)]
        naturals = [sorted(pack_natural(one).items()) for one in (self.q, self.factor)]
        body = msgspec.msgpack.encode([*parts, *naturals])
        return hashlib.blake2b(body, digest_size=32, person=b"tacit.request").hexdigest()


class Reply(NamedTuple):
    """A party's update Δₘ = ρ (λ_{qₘ} − λ_q), and its loss at the q it was sent.

    A private update comes without a loss, which would be one more release.
    """

    id: str
    party: str
    version: int
    delta: Natural
    loss: float | None


def pack_natural(natural: Natural) -> dict[str, Any]:
    """Shape and little-endian float64 of each part, to the last bit."""
    return {
        name: [list(np.shape(value)), np.ascontiguousarray(value, "<f8").tobytes()]
        for name, value in natural.items()
    }


def unpack_natural(body: dict[str, Any]) -> Natural:
    """The inverse of `pack_natural`."""
    return {
        name: np.frombuffer(raw, "<f8").reshape(shape).copy() for name, (shape, raw) in body.items()
    }


def encode_reply(reply: Reply) -> bytes:
    """A reply as a party keeps it, to be sent again as it is."""
    body = [reply.id, reply.party, reply.version, pack_natural(reply.delta), reply.loss]
    return msgspec.msgpack.encode(body)


def decode_reply(body: bytes) -> Reply:
    """The inverse of `encode_reply`."""
    key, party, version, delta, loss = msgspec.msgpack.decode(body)
    return Reply(key, party, version, unpack_natural(delta), loss)
