"""The messages of the thesis (see docs/glossary.md) in bincode, the binary format of its peers.

bincode is not self-describing: a message consists of the values of its fields, in the order of Code
3.1 of the thesis, without their names. It therefore supports the messages of the thesis and no
extensions. An enum starts with the number of its variant. The Rust library bincode has two layouts
of integers, and a peer may use either:

- `bincode`: variable length, the default of tokio-serde, with which the thesis's peers are built;
- `bincode-fixint`: 4 or 8 bytes, as written by `bincode::serialize`.

Floats are 8 bytes, everything is little-endian, an Option is a byte 0 or 1 and then its value, and
text and vectors are a length and then their contents. A time is RFC 3339 text. A normal is its mean
and variance: two floats, or two vectors of floats.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeVar

import msgspec

from tacit.errors import PeerError
from tacit.live.protocol.messages import ClientMessage, Message, tag_of
from tacit.support.type_info import prepare

Layout = Literal["bincode", "bincode-fixint"]
LAYOUTS: tuple[Layout, ...] = ("bincode", "bincode-fixint")

Fields = tuple[tuple[str, str], ...]
CLIENT: Final[tuple[tuple[str, Fields], ...]] = (
    ("JoinCluster", (("data_size", "u64"),)),
    ("ReJoinCluster", ()),
    ("UpdatedLikelihood", (("new_likelihood", "normal"), ("delta", "normal"), ("loss", "f64"))),
    ("ReturnLastLikelihood", (("likelihood", "normal"),)),
    ("EarlyLeaveCluster", (("reason", "text?"), ("expected_absence", "duration?"))),
    ("FinalLeaveTraining", (("available_for_future_training", "bool"),)),
    ("Error", (("error", "text?"),)),
    ("EndOfConnectionAcknowledgement", ()),
)
"""Variants of ClientMsg in the thesis, in order, with the types of their fields ("?": an
Option).
"""
SERVER: Final[tuple[tuple[str, Fields], ...]] = (
    ("AcceptedIntoCluster", (("expected_start_time", "text?"),)),
    ("ReAcceptanceIntoCluster", (("last_likelihood", "normal"),)),
    ("RejectionFromCluster", (("reason", "text?"), ("fixable", "bool"))),
    ("SelectedForTraining", (("current_posterior", "normal"), ("damping_factor", "f64?"))),
    ("EarlyCloseOfConnection", (("reason", "text?"), ("return_in", "duration?"))),
    ("EndOfTraining", (("final_posterior", "normal"), ("future_training", "text?"))),
    ("Error", (("error", "text?"),)),
    ("EndOfConnectionAcknowledgement", ()),
)
"""Variants of ServerMsg in the thesis, in order."""

M = TypeVar("M", bound=Message)
_FIRST_LENGTHS: dict[tuple[int, int], Layout] = {
    **{(0, length): "bincode" for length in (2, 4, 6, 10)},
    (1, 1): "bincode",
    (0, 12): "bincode-fixint",
    (1, 4): "bincode-fixint",
}
"""Layout of the first message of a connection, JoinCluster or ReJoinCluster; the keys are (first
byte of the message, length of the message).
"""


def detect_layout(payload: bytes) -> Layout | None:
    r"""Return the bincode layout of the first payload of a connection; None if the payload is not
    bincode.

    >>> detect_layout(b"\x00\x0a"), detect_layout(b"\x01\x00\x00\x00"), detect_layout(b"{}")
    ('bincode', 'bincode-fixint', None)
    """
    return _FIRST_LENGTHS.get((payload[0], len(payload))) if payload else None


def encode_bincode(message: Message, layout: Layout) -> bytes:
    """Encode a message of the thesis; its extension fields are left out."""
    variants = CLIENT if isinstance(message, ClientMessage) else SERVER
    for number, (name, fields) in enumerate(variants):
        if name == message.name:
            writer = _Writer(layout)
            writer.write("u32", number)
            values = msgspec.to_builtins(message)
            for field, kind in fields:
                value = values.get(field)
                if field == "error":
                    value = value or values.get("reason")
                writer.write(kind, value)
            return bytes(writer.out)
    raise PeerError(
        f"{message.name} cannot be encoded in bincode, which supports only a part of the messages; "
        "use msgpack, cbor or json"
    )


def decode_bincode(payload: bytes, layout: Layout, known: Mapping[str, type[M]]) -> M:
    """Decode a payload to one of the `known` messages.

    Raises PeerError, ValueError or a msgspec error, none of which quotes the payload.
    """
    side = next(iter(known.values()))
    variants = CLIENT if issubclass(side, ClientMessage) else SERVER
    number = _Reader(payload, layout).read("u32")
    if number >= len(variants):
        raise PeerError(
            f"an unknown message of {len(payload)} bytes; bincode supports only {len(variants)} "
            "messages: use msgpack, cbor or json for other messages"
        )
    name, fields = variants[number]
    kind = known.get(name)
    if kind is None:
        raise PeerError(
            f"a {name} message of {len(payload)} bytes is not accepted here; see docs/protocol.md"
        )
    assert tag_of(kind) == name
    has_normal = any(type_ == "normal" for _, type_ in fields)
    body = None
    if has_normal:  # vectors and single numbers differ in length only
        body = _fields(payload, layout, fields, "vectors")
    if body is None:
        body = _fields(payload, layout, fields, "numbers")
    if body is None:
        raise PeerError(
            f"a payload of {len(payload)} bytes is not a valid {name} message in {layout}; see "
            "docs/protocol.md"
        )
    return msgspec.convert(body, prepare(kind))


def _fields(payload: bytes, layout: Layout, fields: Fields, normal: str) -> dict[str, Any] | None:
    reader = _Reader(payload, layout)
    try:
        reader.read("u32")
        body = {field: reader.read(normal if kind == "normal" else kind) for field, kind in fields}
    except ValueError:
        return None
    return body if reader.at == len(payload) else None


class _Writer:
    def __init__(self, layout: Layout) -> None:
        self.out, self._fixed = bytearray(), layout == "bincode-fixint"

    def write(self, kind: str, value: Any) -> None:
        if kind.endswith("?"):
            self.out += b"\x00" if value is None else b"\x01"
            if value is not None:
                self.write(kind[:-1], value)
        elif value is None:
            raise PeerError(
                "a required field is null, which bincode cannot encode; use msgpack, cbor or json"
            )
        elif kind in ("u32", "u64"):
            self._integer(kind, value)
        elif kind == "f64":
            self.out += struct.pack("<d", value)
        elif kind == "bool":
            self.out += b"\x01" if value else b"\x00"
        elif kind == "text":
            raw = value.encode()
            self._integer("u64", len(raw))
            self.out += raw
        elif kind == "duration":
            self._integer("u64", value["secs"])
            self._integer("u32", value["nanos"])
        else:
            self._normal(value)

    def _normal(self, value: dict[str, Any]) -> None:
        if set(value) != {"mean", "variance"}:
            raise PeerError(
                f"a normal distribution has the fields {', '.join(sorted(value))}, but bincode can "
                "only encode a mean and a variance; use msgpack, cbor or json"
            )
        for part in (value["mean"], value["variance"]):
            if isinstance(part, list):
                self._integer("u64", len(part))
                self.out += struct.pack(f"<{len(part)}d", *part)
            else:
                self.write("f64", part)

    def _integer(self, kind: str, value: int) -> None:
        if self._fixed:
            self.out += value.to_bytes(4 if kind == "u32" else 8, "little")
        elif value < 251:
            self.out.append(value)
        else:
            mark, size = (251, 2) if value < 2**16 else (252, 4) if value < 2**32 else (253, 8)
            self.out += bytes([mark]) + value.to_bytes(size, "little")


class _Reader:
    """Reads values one after another; raises ValueError if the bytes are invalid."""

    def __init__(self, payload: bytes, layout: Layout) -> None:
        self._payload, self._fixed, self.at = payload, layout == "bincode-fixint", 0

    def read(self, kind: str) -> Any:
        if kind.endswith("?"):
            return self.read(kind[:-1]) if self.read("bool") else None
        if kind in ("u32", "u64"):
            return self._integer(kind)
        if kind == "f64":
            return struct.unpack("<d", self._take(8))[0]
        if kind == "bool":
            (byte,) = self._take(1)
            if byte > 1:
                raise ValueError("a boolean must be the byte 0 or 1")
            return bool(byte)
        if kind == "text":
            return self._take(self._integer("u64")).decode()
        if kind == "duration":
            return {"secs": self._integer("u64"), "nanos": self._integer("u32")}
        if kind == "numbers":
            return {"mean": self.read("f64"), "variance": self.read("f64")}
        mean, variance = self._vector(), self._vector()
        if len(mean) != len(variance) or not mean:
            raise ValueError("mean and variance must be vectors of the same length, at least 1")
        return {"mean": mean, "variance": variance}

    def _vector(self) -> list[float]:
        length = self._integer("u64")
        return list(struct.unpack(f"<{length}d", self._take(8 * length)))

    def _integer(self, kind: str) -> int:
        size = 4 if kind == "u32" else 8
        if self._fixed:
            return int.from_bytes(self._take(size), "little")
        (first,) = self._take(1)
        if first < 251:
            return first
        length = {251: 2, 252: 4, 253: 8}.get(first, size + 1)
        if length > size:
            raise ValueError("an integer has more bytes than its field allows")
        return int.from_bytes(self._take(length), "little")

    def _take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self._payload):
            raise ValueError("the payload ends before the message is complete")
        taken, self.at = self._payload[self.at : end], end
        return taken
