"""Every encoding of the protocol passes the suite; codecs with a known fault are rejected."""

import json
import pickle
import secrets
import zlib
from functools import partial
from typing import Annotated

import msgspec
import numpy as np
import pytest

from tacit.errors import PeerError
from tacit.live.protocol.codec import ENCODINGS, decode, encode
from tacit.live.protocol.messages import (
    CLIENT_MESSAGES,
    SERVER_MESSAGES,
    AcceptedIntoCluster,
    JoinCluster,
)
from tacit.testing import check_codec

SIDES = {"client": CLIENT_MESSAGES, "server": SERVER_MESSAGES}
OTHERS = {"client": AcceptedIntoCluster(), "server": JoinCluster(data_size=3)}


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("side", SIDES)
def test_the_protocol_passes_in_every_encoding(side, encoding):
    known = SIDES[side]
    check_codec(
        partial(encode, encoding=encoding),
        partial(decode, encoding=encoding, known=known),
        kinds=list(known.values()),
        foreign=[OTHERS[side]],
    )


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message with one field of each sort."""

    name: str
    values: list[float]
    round: int = 0
    note: str | None = None


def pack(step):
    return msgspec.msgpack.encode(step)


def unpack(payload, kind=Step):
    try:
        return msgspec.msgpack.decode(payload, type=kind)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise PeerError(f"a payload of {len(payload)} bytes is no {kind.__name__}") from error


def test_a_right_codec_passes():
    check_codec(pack, unpack, kinds=[Step])


def in_float32(step):
    with np.errstate(over="ignore"):
        values = np.array(step.values).astype(np.float32).tolist()
    return pack(msgspec.structs.replace(step, values=values))


def without_note(payload):
    return msgspec.structs.replace(unpack(payload), note=None)


def with_a_nonce(step):
    return pack(step) + secrets.token_bytes(8)


def sorted_values(payload):
    step = unpack(payload)
    return msgspec.structs.replace(step, values=sorted(step.values))


def raw_errors(payload):
    return msgspec.msgpack.decode(payload, type=Step)


def whatever_is_there(payload):
    for end in range(len(payload), 0, -1):
        try:
            return unpack(payload[:end])
        except PeerError:
            continue
    raise PeerError("nothing")


def long_error(payload):
    try:
        return unpack(payload)
    except PeerError:
        raise PeerError(f"bad payload:\n{payload!r}") from None


def unpickled(payload):
    try:
        return pickle.loads(payload)
    except Exception as error:
        raise PeerError("no pickle") from error


def evaluated(payload):
    try:
        return Step(*eval(payload.decode()))
    except Exception as error:
        raise PeerError("no expression") from error


def as_expression(step):
    return repr([step.name, step.values, step.round, step.note]).encode()


def inflated(payload):
    try:
        engine = zlib.decompressobj()
        body = engine.decompress(payload)
    except zlib.error as error:
        raise PeerError("not compressed") from error
    if engine.unused_data or not engine.eof:
        raise PeerError("cut short or too long")
    return unpack(body)


def as_json(step):
    return json.dumps(msgspec.to_builtins(step)).encode()


def from_json(payload):
    try:
        return msgspec.convert(json.loads(payload), Step)
    except (ValueError, UnicodeDecodeError) as error:
        raise PeerError("no JSON") from error


@pytest.mark.parametrize(
    ("encoder", "decoder", "message"),
    [
        (in_float32, unpack, r"round trip: Step.values.0 = 0.1 came back as 0.10000000149"),
        (pack, without_note, r"round trip: Step.note was str ''"),
        (pack, sorted_values, r"round trip: Step.values.0 = "),
        (with_a_nonce, unpack, r"canonical bytes: Step was encoded twice and gave two payloads"),
        (pack, raw_errors, r"raised (ValidationError|DecodeError) .*expected PeerError"),
        (pack, whatever_is_there, r"trailing bytes: .* was read as Step"),
        (pack, long_error, r"was refused in .* on 2 lines, expected one line of at most 500"),
        (pickle.dumps, unpickled, r"code: decoding ran a pickle"),
        (as_expression, evaluated, r"code: decoding ran an expression"),
        (lambda step: zlib.compress(pack(step)), inflated, r"memory: 32 MB of zeros, compressed"),
        (as_json, from_json, r"nested lists of JSON raised RecursionError"),
    ],
)
def test_broken_codecs_are_rejected(encoder, decoder, message):
    with pytest.raises(AssertionError, match=message):
        check_codec(encoder, decoder, kinds=[Step])


class Limited(msgspec.Struct, frozen=True):
    """A message whose field has a range."""

    count: Annotated[int, msgspec.Meta(ge=0, le=9)]


class Unlimited(msgspec.Struct, frozen=True):
    """The same without one."""

    count: int


def test_limits_sizes_and_foreign_messages():
    def careless(payload):
        return Limited(unpack(payload, Unlimited).count)

    careful = partial(unpack, kind=Limited)
    check_codec(pack, careful, kinds=[Limited], foreign=[Step("a", [])])
    with pytest.raises(AssertionError, match=r"limits: Limited.count outside of its range"):
        check_codec(pack, careless, kinds=[Limited])
    with pytest.raises(AssertionError, match=r"foreign: a Unlimited, which this side does not"):
        check_codec(pack, careful, kinds=[Limited], foreign=[Unlimited(5)])


def test_a_codec_with_a_size_limit():
    def limited(payload):
        if len(payload) > 1000:
            raise PeerError(f"a payload of {len(payload)} bytes; at most 1000 are read")
        return unpack(payload)

    check_codec(pack, limited, kinds=[Step], largest=1000)
    with pytest.raises(AssertionError, match=r"size: a payload of \d+ bytes was read as Step"):
        check_codec(pack, unpack, kinds=[Step], largest=1000)


def test_messages_of_any_type_can_be_given():
    array = np.linspace(0.0, 1.0, 3)
    encoder = partial(msgspec.msgpack.encode, enc_hook=np.ndarray.tobytes)
    with pytest.raises(AssertionError, match=r"round trip: list.1 was ndarray"):
        check_codec(encoder, msgspec.msgpack.decode, samples=[["a", array]])
    with pytest.raises(AssertionError, match="there is no message to encode"):
        check_codec(pack, unpack)
