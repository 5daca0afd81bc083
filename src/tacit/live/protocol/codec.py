"""Encode messages as JSON, CBOR, MessagePack or bincode.

A party chooses the encoding by its first frame, and the server uses the same. A payload is a map
with one entry, or a string, so its first byte identifies the encoding; no other encoding starts
with the first byte of bincode.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeGuard, TypeVar, get_args

import cbor2
import msgspec

from tacit.errors import PeerError
from tacit.live.protocol.bincode import Layout, decode_bincode, detect_layout, encode_bincode
from tacit.live.protocol.messages import Message
from tacit.support.type_info import prepare

Described = Literal["json", "cbor", "msgpack"]
Encoding = Described | Layout
ENCODINGS: tuple[Described, ...] = ("msgpack", "cbor", "json")
"""Encodings that support every field. The two layouts of bincode support only the fields of the
thesis.
"""

M = TypeVar("M", bound=Message)
_DEPTH = 16
_BAD = (
    msgspec.MsgspecError,
    cbor2.CBORDecodeError,
    ValueError,
    TypeError,
    KeyError,
    RecursionError,
    OverflowError,
    EOFError,
)


def detect(payload: bytes) -> Encoding:
    r"""Detect the encoding of a connection from the first byte of its first payload.

    >>> detect(b'{"JoinCluster": {"data_size": 7}}'), detect(b"\x6dReJoinCluster")
    ('json', 'cbor')
    """
    layout = detect_layout(payload)
    if layout is not None:
        return layout
    first = payload[:1]
    if first and first in b'{" \t\r\n':
        return "json"
    if first and (first in b"\x81\xde\xdf\xd9\xda" or 0xA2 <= first[0] <= 0xBE):
        return "msgpack"  # a map or a string; in CBOR these start with a1, bf or 60 … 7f
    if first and (first in b"\xa1\xbf" or 0x60 <= first[0] <= 0x7F):
        return "cbor"
    raise PeerError(
        f"the first frame starts with byte 0x{payload[:1].hex() or '–'} and is not JSON, CBOR, "
        "MessagePack or bincode; begin with JoinCluster or ReJoinCluster"
    )


def encode(message: Message, encoding: Encoding) -> bytes:
    """Encode a message."""
    if is_bincode(encoding):
        return encode_bincode(message, encoding)
    if message.bare:
        return _PLAIN[encoding](message.name)
    return _PLAIN[encoding]({message.name: message})


def decode(payload: bytes, encoding: Encoding, known: Mapping[str, type[M]]) -> M:
    """Decode a payload to one of the `known` messages, or raise a PeerError.

    The error never quotes the payload.
    """
    try:
        if is_bincode(encoding):
            return decode_bincode(payload, encoding, known)
        tag, body = _open(payload, encoding)
        kind = known.get(tag)
        if kind is None:
            raise PeerError(
                f"an unknown message of {len(payload)} bytes; known messages: {', '.join(known)}"
            )
        return _read(body, kind, *_INNER[encoding])
    except PeerError:
        raise
    except _BAD as error:
        reason = (
            " ".join(str(error).split())[:200] if isinstance(error, msgspec.MsgspecError) else ""
        )
        raise PeerError(
            f"a payload of {len(payload)} bytes is not a valid {encoding} message"
            f"{f' ({reason})' if reason else ''}; see docs/protocol.md"
        ) from None


def is_bincode(encoding: Encoding) -> TypeGuard[Layout]:
    """True if an encoding supports only the fields of the thesis."""
    return encoding in get_args(Layout)


def _open(payload: bytes, encoding: Encoding) -> tuple[str, Any]:
    """Return the name and the body of a message; the body may still be encoded."""
    outer = _OUTER[encoding](payload)
    if isinstance(outer, str):
        return outer, None
    if not isinstance(outer, dict) or len(outer) != 1:
        raise PeerError("a message is a map with one entry, or a string; see docs/protocol.md")
    ((tag, body),) = outer.items()
    return tag, body


def _outer_json(payload: bytes) -> Any:
    try:
        outer = _json_outer.decode(payload)
    except msgspec.DecodeError:
        # Several JSON libraries write an infinite variance as Infinity, which is not valid JSON.
        if b"Infinity" not in payload:
            raise
        infinite = {"Infinity": math.inf, "-Infinity": -math.inf}
        outer = json.loads(
            payload.decode(), object_pairs_hook=_once, parse_constant=infinite.__getitem__
        )
        msgspec.json.encode(outer)  # refuses unpaired surrogates, as its decoder would
        return outer
    json.loads(_NUMBERS.sub(b"0", payload), object_pairs_hook=_once)
    return outer


def _outer_cbor(payload: bytes) -> Any:
    file = io.BytesIO(payload)
    outer = cbor2.CBORDecoder(
        file,
        max_depth=_DEPTH,
        strict_hashable_types=True,
        allow_duplicate_keys=False,
        semantic_decoders=_NO_TAGS,
        tag_hook=_refused,
    ).decode()
    if file.tell() != len(payload):
        raise PeerError("there are bytes after the end of a message; send one message per frame")
    return outer


def _outer_msgpack(payload: bytes) -> Any:
    outer = _msgpack_outer.decode(payload)
    _once_msgpack(payload, _DEPTH)
    return outer


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a JSON object from key-value pairs; refuse duplicate keys."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise PeerError("duplicate key in a map; send it once")
    return found


def _once_msgpack(raw: Any, depth: int) -> None:
    """Refuse MessagePack data in which a map, at any depth, has the same key twice."""
    head = bytes(memoryview(raw)[:5])
    if 0x80 <= head[0] <= 0x8F:
        size = head[0] & 0x0F
    elif head[0] in (0xDE, 0xDF):
        size = int.from_bytes(head[1:3] if head[0] == 0xDE else head[1:5], "big")
    else:
        return
    found = _msgpack_map.decode(raw)
    if len(found) != size or depth == 0:
        raise PeerError("duplicate key in a map, or maps nested too deeply")
    for value in found.values():
        _once_msgpack(value, depth - 1)


def _read(body: Any, kind: type[M], decoder: Any, none: bytes) -> M:
    if body is None or (isinstance(body, msgspec.Raw) and bytes(body).strip() == none):
        return msgspec.convert(
            {}, prepare(kind)
        )  # bare name; messages with required fields refuse it
    if not isinstance(body, msgspec.Raw):
        return msgspec.convert(body, prepare(kind))
    key = (decoder, kind)
    if key not in _decoders:
        _decoders[key] = decoder(prepare(kind))
    return _decoders[key].decode(body)


def _refused(*_: Any) -> Any:
    raise PeerError("unsupported CBOR tag; this protocol uses only tag 0, a date")


def _builtins(value: Any) -> Any:
    """Convert to JSON types; times become RFC 3339 text, and bytes stay unchanged."""
    return msgspec.to_builtins(value, builtin_types=(bytes,))


_decoders: dict[Any, Any] = {}
_json_outer = msgspec.json.Decoder(str | dict[str, msgspec.Raw])
_msgpack_outer = msgspec.msgpack.Decoder(str | dict[str, msgspec.Raw])
_msgpack_map = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
_NUMBERS = re.compile(rb"\[[-+.0-9eE,\s]*\]")
_NO_TAGS = dict.fromkeys([*range(1, 64), 100, 256, 258, 260, 261, 1004, 43000, 55799], _refused)
_OUTER: dict[Encoding, Callable[[bytes], Any]] = {
    "json": _outer_json,
    "cbor": _outer_cbor,
    "msgpack": _outer_msgpack,
}
_INNER: dict[Encoding, tuple[Any, bytes]] = {
    "json": (msgspec.json.Decoder, b"null"),
    "cbor": (None, b""),
    "msgpack": (msgspec.msgpack.Decoder, b"\xc0"),
}
_PLAIN: dict[Encoding, Callable[[Any], bytes]] = {
    "json": msgspec.json.encode,
    "cbor": lambda value: cbor2.dumps(_builtins(value)),
    "msgpack": lambda value: msgspec.msgpack.encode(_builtins(value)),
}
