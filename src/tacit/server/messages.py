"""Requests and replies between the server and a party, independent of the engine.

A message contains only what its stage needs. A request contains q and the party's factor if the
stage uses them, and the arrays `public` that the server publishes for this stage. `released` in a
reply contains all arrays that leave the party.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import msgspec
import numpy as np

from tacit.arrays import Arrays, Natural

UPDATE = "update"
"""Name of the stage of methods that have only one."""


class Stage(NamedTuple):
    """One kind of exchange between server and party in a method, and what its requests contain."""

    name: str = UPDATE
    needs_q: bool = True
    needs_factor: bool = True


class Request(NamedTuple):
    """One request to one party, which is answered once.

    `version` is the version of the party's factor: an update computed for another version is
    refused. `visit` counts the requests to this party. The party's random numbers depend only on
    the visit, the seed and the party's name. q and factor are None if the stage does not use them.
    """

    id: str
    party: str
    visit: int
    version: int
    q: Natural | None
    factor: Natural | None
    damping: float
    initial: bool
    """True if no update has been applied yet, so that q is still the prior."""
    stage: str = UPDATE
    public: Arrays = {}  # noqa: RUF012 - shared by all requests and never written to

    @property
    def content(self) -> str:
        """Return a digest of the complete content of the request except its id."""
        parts = [self.party, self.visit, self.version, float(self.damping), bool(self.initial)]
        arrays = [
            None if one is None else sorted(pack_natural(one).items())
            for one in (self.q, self.factor, self.public)
        ]
        body = msgspec.msgpack.encode([*parts, self.stage, *arrays])
        return hashlib.blake2b(body, digest_size=32, person=b"tacit.request").hexdigest()


class Reply(NamedTuple):
    """The values that a party releases, and its loss (negative expected log-likelihood) at q.

    If the method has a local posterior qₘ, `released` is the damped change of natural parameters Δₘ
    = ρ (λ_{qₘ} − λ_q). A private release consists of int64 numbers, which the server multiplies by
    a public step that follows from the agreed plan (`LocalMethod.from_integers`). A private reply
    has no loss, because the loss would be another release.
    """

    id: str
    party: str
    version: int
    released: Arrays
    loss: float | None


class Asked(NamedTuple):
    """Facts about a request with which the server converts the integers in a reply to floats."""

    party: str
    visit: int
    stage: str
    q: Natural | None
    factor: Natural | None
    damping: float
    public: Arrays = {}  # noqa: RUF012 - never written to
    terms: Any = None
    """The party's privacy terms at this visit."""


INTEGER = "<i8"


def pack_natural(natural: Natural) -> dict[str, Any]:
    """Encode each array as its shape and its bytes (float64 or int64); encode an array of zeros as
    its shape only.
    """
    packed = {}
    for name, value in natural.items():
        whole = np.asarray(value).dtype == np.int64
        raw = np.ascontiguousarray(value, INTEGER if whole else "<f8").tobytes()
        packed[name] = [list(np.shape(value)), raw if raw.strip(b"\0") else b""]
        if whole:
            packed[name].append(INTEGER)
    return packed


def unpack_natural(body: dict[str, Any]) -> Natural:
    """Decode the output of `pack_natural`."""
    found = {}
    for name, (shape, raw, *kind) in body.items():
        dtype = INTEGER if kind == [INTEGER] else "<f8"
        found[name] = (
            np.frombuffer(raw, dtype).reshape(shape).copy() if raw else np.zeros(shape, dtype)
        )
    return found


def encode_reply(reply: Reply) -> bytes:
    """Encode a reply for storage, so that it can be sent again unchanged."""
    body = [reply.id, reply.party, reply.version, pack_natural(reply.released), reply.loss]
    return msgspec.msgpack.encode(body)


def decode_reply(body: bytes) -> Reply:
    """Decode the output of `encode_reply`."""
    key, party, version, released, loss = msgspec.msgpack.decode(body)
    return Reply(key, party, version, unpack_natural(released), loss)
