"""Conformance suite of codecs: encode and decode all messages, and refuse malicious payloads."""

from __future__ import annotations

import pickle
import tracemalloc
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from tacit.errors import PeerError
from tacit.testing.differences import difference, shortened
from tacit.testing.message_samples import beyond_limits, message_samples

Encode = Callable[[Any], bytes]
Decode = Callable[[bytes], Any]

CUTS, FLIPS, RANDOM = 40, 60, 200
LONGEST_ERROR = 500
MEMORY = 4 * 2**20
"""Memory in bytes that decoding may use in addition to 64 bytes per byte of the payload."""


def check_codec(
    encode: Encode,
    decode: Decode,
    *,
    kinds: Sequence[type[msgspec.Struct]] = (),
    samples: Sequence[Any] = (),
    foreign: Sequence[Any] = (),
    error: type[Exception] = PeerError,
    largest: int | None = None,
    seed: int = 0,
) -> None:
    """Assert that a codec preserves every message exactly and refuses everything else.

    For each type in `kinds` the suite generates messages with extreme values of every field. After
    encoding and decoding, each message must be equal to the original, including every bit of its
    floats. Encoding it again must give the same bytes.

    Damaged or hostile payloads must be decoded to a message or raise `error` with one line of text.
    They must never raise another exception, execute code, or use much more memory than their length
    justifies. The suite tests values outside the declared ranges, truncated messages, messages
    followed by more bytes, flipped bits, random bytes, deep nesting, lengths larger than the
    payload, compressed data and pickles.

    Parameters
    ----------
    encode, decode
        `encode(message)` returns bytes; `decode(payload)` returns the message.
    kinds
        Types of messages: `msgspec.Struct` classes.
    samples
        Further messages, of any type: dataclasses, named tuples and arrays are compared by value.
    foreign
        Messages that `decode` must refuse, for example messages that are only sent in the other
        direction.
    error
        The only exception that `decode` may raise.
    largest
        The length in bytes above which a payload must be refused; None if another layer limits it.
    seed
        Seed of the random payloads.
    """
    codec = _Codec(encode, decode, error)
    messages = [*samples, *(each for kind in kinds for each in message_samples(kind))]
    assert messages, "check_codec needs kinds or samples: there is no message to encode"
    payloads = [_check_round_trip(codec, message) for message in messages]
    for kind in kinds:
        _check_limits(codec, kind)
    for message in foreign:
        what = f"a {type(message).__name__}, which this side does not read,"
        codec.must_refuse(encode(message), "foreign", what)
    longest = sorted(payloads, key=len)[-3:]
    _check_code(codec, messages)
    _check_damaged(codec, [*payloads[:: max(1, len(payloads) // 12)], *longest], seed)
    for what, payload in _greedy():
        codec.cheap(payload, what)
    if largest is not None:
        _check_size(codec, messages, longest[-1], largest)


@dataclass(frozen=True)
class _Codec:
    encode: Encode
    decode: Decode
    error: type[Exception]

    def read(self, payload: bytes, check: str, what: str) -> tuple[bool, Any]:
        """Try to decode a payload; return (True, message), or (False, None) if the payload is
        refused.
        """
        try:
            return True, self.decode(payload)
        except self.error as refused:
            text = str(refused)
            one_line = text and "\n" not in text and len(text) <= LONGEST_ERROR
        except Exception as other:
            raise AssertionError(
                f"{check}: {what} raised {type(other).__name__} ({shortened(other)}), expected "
                f"{self.error.__name__} and nothing else"
            ) from other
        assert one_line, (
            f"{check}: {what} was refused in {len(text)} characters on {text.count(chr(10)) + 1} "
            f"lines, expected one line of at most {LONGEST_ERROR}"
        )
        return False, None

    def must_refuse(self, payload: bytes, check: str, what: str) -> None:
        """Assert that a payload is refused."""
        read, message = self.read(payload, check, what)
        assert not read, (
            f"{check}: {what} was read as {shortened(message)}, expected {self.error.__name__}"
        )

    def either(self, payload: bytes, check: str, what: str) -> None:
        """Assert that a payload is refused, or is a message that can be encoded again."""
        read, message = self.read(payload, check, what)
        if read:
            try:
                self.encode(message)
            except Exception as other:
                raise AssertionError(
                    f"{check}: {what} was read as {shortened(message)}, which cannot be encoded: "
                    f"{type(other).__name__} ({shortened(other)})"
                ) from other

    def cheap(self, payload: bytes, what: str) -> None:
        """Assert that decoding a payload of n bytes uses at most `MEMORY` + 64·n bytes."""
        allowed = 64 * len(payload) + MEMORY
        running = tracemalloc.is_tracing()
        if not running:
            tracemalloc.start()
        try:
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            self.either(payload, "hostile bytes", what)
            taken = tracemalloc.get_traced_memory()[1] - before
        finally:
            if not running:
                tracemalloc.stop()
        assert taken <= allowed, (
            f"memory: {what}, {len(payload)} bytes, took {taken / 2**20:.1f} MB, expected "
            f"at most {allowed / 2**20:.1f}"
        )


def _check_round_trip(codec: _Codec, message: Any) -> bytes:
    name = type(message).__name__
    payload = codec.encode(message)
    assert isinstance(payload, bytes), (
        f"round trip: {name} was encoded as {type(payload).__name__}, expected bytes"
    )
    assert codec.encode(message) == payload, (
        f"canonical bytes: {name} was encoded twice and gave two payloads"
    )
    read, back = codec.read(payload, "round trip", name)
    assert read, f"round trip: {name} is refused by its own decoder: {shortened(message)}"
    gap = difference(message, back, name)
    assert gap is None, f"round trip: {gap}"
    assert codec.encode(back) == payload, (
        f"canonical bytes: {name} that was decoded and encoded again gave other bytes"
    )
    return payload


def _check_limits(codec: _Codec, kind: type[msgspec.Struct]) -> None:
    for field, message in beyond_limits(kind):
        try:
            payload = codec.encode(message)
        except Exception:  # refusing to encode it is fine too
            continue
        what = f"{kind.__name__}.{field} outside of its range"
        codec.must_refuse(payload, "limits", what)


def _check_size(codec: _Codec, messages: Sequence[Any], payload: bytes, largest: int) -> None:
    """Check that payloads of more than `largest` bytes are refused: zeros, a padded message, and
    messages with a long field.
    """
    padded = payload + b" " * max(0, largest + 1 - len(payload))
    grown = [
        codec.encode(changed)
        for message in messages
        for changed in _replaced(message, bytes(largest + 1), "x" * (largest + 1), [0.1] * largest)
    ]
    for body in (bytes(largest + 1), padded, *grown):
        if len(body) > largest:
            codec.must_refuse(body, "size", f"a payload of {len(body)} bytes")


def _check_damaged(codec: _Codec, payloads: Sequence[bytes], seed: int) -> None:
    rng = np.random.default_rng(seed)
    for payload in payloads:
        for end in np.unique(np.linspace(0, len(payload) - 1, CUTS).astype(int)).tolist():
            what = f"a message cut to {end} of its {len(payload)} bytes"
            codec.must_refuse(payload[:end], "truncation", what)
        for more in (b"\0", payload, b"]"):
            what = f"a message followed by {len(more)} more bytes"
            codec.must_refuse(payload + more, "trailing bytes", what)
        for _ in range(FLIPS):
            changed = bytearray(payload)
            place, bit = rng.integers(len(payload)), rng.integers(8)
            changed[place] ^= 1 << bit
            codec.either(bytes(changed), "hostile bytes", f"a message with bit {bit} flipped")
    for length in rng.integers(0, 60, RANDOM).tolist():
        codec.either(rng.bytes(length), "hostile bytes", f"{length} random bytes")


ran: list[str] = []
"""Arguments of `detonate`; empty unless a decoder executes a payload."""


def detonate(how: str) -> str:
    """Record that code inside a payload was executed."""
    ran.append(how)
    return how


class _Bomb:
    def __reduce__(self) -> Any:
        return detonate, ("a pickle",)


def _check_code(codec: _Codec, messages: Sequence[Any]) -> None:
    """Check that code in a payload, or in a field of a message, is not executed."""
    call = f"__import__({__name__!r}, fromlist=['ran']).detonate('an expression')"
    bombs = [pickle.dumps(_Bomb(), protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    texts = [call, f"!!python/object/apply:{__name__}.detonate ['a YAML tag']"]
    hidden = [changed for each in messages[::7] for changed in _replaced(each, bombs[2], texts[0])]
    ran.clear()
    for payload in (*bombs, *(text.encode() for text in texts)):
        codec.either(payload, "code", "an executable payload")
        assert not ran, f"code: decoding ran {ran[0]}, expected bytes to stay data"
    for message in hidden:
        try:
            payload = codec.encode(message)
        except Exception:  # bytes where the codec supports only text
            continue
        codec.either(payload, "code", f"{type(message).__name__} with code in a field")
        assert not ran, f"code: decoding {type(message).__name__} ran {ran[0]}"


def _replaced(
    message: Any, data: bytes, text: str, numbers: list[float] | None = None
) -> Iterator[Any]:
    """Yield copies of the message. In each copy one field is replaced: bytes by `data`, text by
    `text`, a list of numbers by `numbers`.
    """
    if not isinstance(message, msgspec.Struct):
        return
    for name in message.__struct_fields__:
        value = getattr(message, name)
        if isinstance(value, bytes):
            yield msgspec.structs.replace(message, **{name: data})
        elif isinstance(value, str):
            yield msgspec.structs.replace(message, **{name: text})
        elif numbers and isinstance(value, list) and value and isinstance(value[0], float):
            yield msgspec.structs.replace(message, **{name: numbers})


def _greedy() -> Iterator[tuple[str, bytes]]:
    """Yield short payloads that declare a very large length, or that expand to a very large
    value.
    """
    yield "MessagePack that announces 4 GB of bytes", b"\x81\xa1a\xc6\xff\xff\xff\xff"
    yield "MessagePack that announces 4e9 items", b"\x81\xa1a\xdd\xff\xff\xff\xff"
    yield "MessagePack that announces 4e9 keys", b"\xdf\xff\xff\xff\xff\xa1a\x01"
    yield "CBOR that announces 4 GB of bytes", b"\xa1\x61a\x5b\x00\x00\x00\x01\x00\x00\x00\x00"
    yield "CBOR that announces 2^62 items", b"\xa1\x61a\x9b\x40" + bytes(7)
    yield "nested lists of JSON", b"[" * 50_000
    yield "nested maps of JSON", b'{"a":' * 50_000
    yield "nested lists of MessagePack", b"\x91" * 50_000
    yield "nested maps of CBOR", b"\xa1\x61a" * 50_000
    yield "a number of 20,000 digits", b"9" * 20_000
    yield "32 MB of zeros, compressed", zlib.compress(bytes(2**25))
