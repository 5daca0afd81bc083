"""Messages as bytes: every one of them there and back, the thesis's own shapes, and refusals."""

import contextlib
import json
import os
import pickle
import random
import re
import subprocess
import sys
import time
import types
import typing
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import cbor2
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, UnsetType

from tacit.errors import PeerError
from tacit.live.protocol import messages as m
from tacit.live.protocol.arrays import unpack
from tacit.live.protocol.bincode import LAYOUTS
from tacit.live.protocol.codec import ENCODINGS, decode, detect, encode
from tacit.live.protocol.messages import CLIENT_MESSAGES, SERVER_MESSAGES

KINDS = [*CLIENT_MESSAGES.values(), *SERVER_MESSAGES.values()]
SECRET = "S3CR3T"
AT = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)

dump = {
    "json": lambda value: json.dumps(value).encode(),
    "cbor": cbor2.dumps,
    "msgpack": msgspec.msgpack.encode,
}


def known(kind):
    return CLIENT_MESSAGES if issubclass(kind, m.ClientMessage) else SERVER_MESSAGES


def back(message, encoding):
    return decode(encode(message, encoding), encoding, known(type(message)))


def refusal(payload, encoding, among=CLIENT_MESSAGES):
    """The one line with which a payload is refused."""
    with pytest.raises(PeerError) as caught:
        decode(payload, encoding, among)
    line = str(caught.value)
    assert "\n" not in line
    assert "\r" not in line
    assert len(line) < 450
    assert SECRET not in line
    assert caught.value.__cause__ is None
    return line


# -- there and back

finite = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(
    [-0.0, 5e-324, -2.2250738585072e-308, 1e308, -1.7976931348623157e308, 0.1]
)
counts = st.integers(0, 2**63 - 1)
arrays = st.builds(
    m.Array,
    st.lists(st.integers(0, 2**31), max_size=4).map(tuple),
    st.binary(max_size=40) | st.lists(finite, max_size=6),
)
distributions = st.dictionaries(st.text(max_size=8), finite | arrays | st.none(), max_size=4)
SIMPLE = {
    int: counts,
    str: st.text(max_size=20) | st.just("ü" * 200),
    float: finite,
    bool: st.booleans(),
    bytes: st.binary(max_size=40),
    type(None): st.none(),
    UnsetType: st.just(UNSET),
    datetime: st.datetimes(timezones=st.just(UTC)).map(lambda time: time.replace(fold=0)),
    m.Duration: st.builds(m.Duration, counts, st.integers(0, 10**9 - 1)),
}


def values(hint):
    """Every value of a field."""
    if hint in SIMPLE:
        return SIMPLE[hint]
    if hint in (m.Promise, m.Offer, m.Parcel, m.Consent, m.Caution, m.FinalVerdict):
        return fields_of(hint)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return st.one_of([values(each) for each in typing.get_args(hint)])
    if typing.get_origin(hint) is tuple:
        return st.lists(values(typing.get_args(hint)[0]), max_size=4).map(tuple)
    if hint == list[float]:
        return st.lists(finite, max_size=4)
    if hint == dict[str, bytes]:
        return st.dictionaries(st.text(max_size=8), SIMPLE[bytes], max_size=3)
    assert typing.get_origin(hint) is dict, f"a new type of field: {hint}"
    return distributions


def fields_of(kind):
    hints = typing.get_type_hints(kind)
    return st.builds(
        kind, **{name: values(hints[name]) for name in kind.__struct_fields__}
    )  # fmt: skip


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_every_message_comes_back_to_the_last_bit(kind, encoding, data):
    message = data.draw(fields_of(kind))
    # repr tells -0.0 from 0.0, and every other two floats, apart
    assert repr(back(message, encoding)) == repr(message)


SUMS = (
    ["OfferedKeys", "DealtShares", "MaskedUpdate", "SurvivorSignature", "UnmaskShares"],
    ["RequestKeys", "KeyRoster", "PartyShares", "SurvivorSet", "UnmaskRequest"],
)


def test_the_messages_are_those_of_the_thesis_a_heartbeat_and_secure_sums():
    both = ["Error", "EndOfConnectionAcknowledgement", "Heartbeat"]
    assert sorted(CLIENT_MESSAGES) == sorted(
        ["JoinCluster", "ReJoinCluster", "UpdatedLikelihood", "ReturnLastLikelihood",
         "EarlyLeaveCluster", "FinalLeaveTraining", *both, *SUMS[0]]
    )  # fmt: skip
    assert sorted(SERVER_MESSAGES) == sorted(
        ["AcceptedIntoCluster", "ReAcceptanceIntoCluster", "RejectionFromCluster",
         "SelectedForTraining", "EarlyCloseOfConnection", "EndOfTraining", *both, *SUMS[1]]
    )  # fmt: skip


@pytest.mark.parametrize("encoding", ["cbor", "msgpack"])
def test_infinity_travels_in_a_binary_encoding(encoding):
    message = m.ReturnLastLikelihood(likelihood={"mean": 0.0, "variance": float("inf")})
    assert back(message, encoding) == message


def test_infinity_is_null_in_json():
    message = m.ReturnLastLikelihood(likelihood={"mean": 0.0, "variance": float("inf")})
    assert json.loads(encode(message, "json"))["ReturnLastLikelihood"]["likelihood"] == {
        "mean": 0.0, "variance": None
    }  # fmt: skip


@pytest.mark.parametrize("seconds", [0.0, 1.5, 0.9999999999, 86400.25, 1e-9])
def test_durations(seconds):
    duration = m.Duration.of(seconds)
    assert 0 <= duration.nanos < 10**9
    assert duration.seconds == pytest.approx(seconds, abs=1e-9)
    leave = m.EarlyLeaveCluster(expected_absence=duration)
    for encoding in ENCODINGS:
        assert back(leave, encoding) == leave


# -- the exact shapes

DURATION = m.Duration(90, 500)
NORMAL: m.Distribution = {"mean": 5.0, "variance": 0.5}
TOLD = '{"mean":5.0,"variance":0.5}'
SHAPES = [
    (m.JoinCluster(data_size=1000), '{"JoinCluster":{"data_size":1000}}'),
    (m.ReJoinCluster(), '"ReJoinCluster"'),
    (m.ClientAcknowledgement(), '"EndOfConnectionAcknowledgement"'),
    (m.ServerAcknowledgement(), '"EndOfConnectionAcknowledgement"'),
    (m.ClientHeartbeat(), '"Heartbeat"'),
    (m.ServerHeartbeat(), '"Heartbeat"'),
    (
        m.UpdatedLikelihood(new_likelihood=NORMAL, delta=NORMAL, loss=2.0),
        f'{{"UpdatedLikelihood":{{"new_likelihood":{TOLD},"delta":{TOLD},"loss":2.0}}}}',
    ),
    (
        m.ReturnLastLikelihood(likelihood=NORMAL),
        f'{{"ReturnLastLikelihood":{{"likelihood":{TOLD}}}}}',
    ),
    (
        m.EarlyLeaveCluster(),
        '{"EarlyLeaveCluster":{"reason":null,"expected_absence":null}}',
    ),
    (
        m.EarlyLeaveCluster(reason="nachts zu", expected_absence=DURATION),
        '{"EarlyLeaveCluster":{"reason":"nachts zu","expected_absence":{"secs":90,"nanos":500}}}',
    ),
    (
        m.FinalLeaveTraining(available_for_future_training=True),
        '{"FinalLeaveTraining":{"available_for_future_training":true}}',
    ),
    (m.ClientError(error="e", reason="e"), '{"Error":{"error":"e","reason":"e"}}'),
    (m.ServerError(), '{"Error":{"error":null,"reason":null}}'),
    (
        m.AcceptedIntoCluster(),
        '{"AcceptedIntoCluster":{"expected_start_time":null}}',
    ),
    (
        m.AcceptedIntoCluster(expected_start_time=AT),
        '{"AcceptedIntoCluster":{"expected_start_time":"2026-03-01T12:30:00Z"}}',
    ),
    (
        m.ReAcceptanceIntoCluster(last_likelihood=NORMAL),
        f'{{"ReAcceptanceIntoCluster":{{"last_likelihood":{TOLD}}}}}',
    ),
    (
        m.RejectionFromCluster(fixable=False),
        '{"RejectionFromCluster":{"reason":null,"fixable":false}}',
    ),
    (
        m.SelectedForTraining(current_posterior=NORMAL),
        f'{{"SelectedForTraining":{{"current_posterior":{TOLD},"damping_factor":null}}}}',
    ),
    (
        m.EarlyCloseOfConnection(return_in=DURATION),
        '{"EarlyCloseOfConnection":{"reason":null,"return_in":{"secs":90,"nanos":500}}}',
    ),
    (
        m.EndOfTraining(final_posterior=NORMAL, future_training=AT),
        f'{{"EndOfTraining":{{"final_posterior":{TOLD},'
        '"future_training":"2026-03-01T12:30:00Z"}}',
    ),
]
OFFER = m.Offer(party="a", public_key=b"k", sharing=b"s", masking=(b"m",), seeds=(b"d",))
PARCEL = m.Parcel(dealer="a", recipient="b", box=b"x", hashes=b"h", signature=b"i")
OFFERED = (
    '{"party":"a","public_key":"aw==","sharing":"cw==","masking":["bQ=="],"seeds":["ZA=="],'
    '"signature":""}'
)
DEALT = '{"dealer":"a","recipient":"b","box":"eA==","hashes":"aA==","signature":"aQ=="}'
IN_SLOT = '"slot":2,"request":"r"'
SUM_SHAPES = [
    (m.OfferedKeys(offer=OFFER), f'{{"OfferedKeys":{{"offer":{OFFERED}}}}}'),
    (m.DealtShares(parcels=(PARCEL,)), f'{{"DealtShares":{{"parcels":[{DEALT}]}}}}'),
    (
        m.MaskedUpdate(slot=2, request="r", words=b"12345678"),
        f'{{"MaskedUpdate":{{{IN_SLOT},"words":"MTIzNDU2Nzg="}}}}',
    ),
    (
        m.SurvivorSignature(slot=2, request="r", signature=b"i"),
        f'{{"SurvivorSignature":{{{IN_SLOT},"signature":"aQ=="}}}}',
    ),
    (
        m.UnmaskShares(slot=2, request="r", seeds={"a": b"s"}, keys={"b": b"k"}),
        f'{{"UnmaskShares":{{{IN_SLOT},"seeds":{{"a":"cw=="}},"keys":{{"b":"aw=="}}}}}}',
    ),
    (m.RequestKeys(), '"RequestKeys"'),
    (m.KeyRoster(offers=(OFFER,)), f'{{"KeyRoster":{{"offers":[{OFFERED}]}}}}'),
    (m.PartyShares(parcels=(PARCEL,)), f'{{"PartyShares":{{"parcels":[{DEALT}]}}}}'),
    (
        m.SurvivorSet(slot=2, request="r", names=("a", "b")),
        f'{{"SurvivorSet":{{{IN_SLOT},"names":["a","b"]}}}}',
    ),
    (
        m.UnmaskRequest(
            slot=2, request="r", consents=(m.Consent(party="a", slot=2, signature=b"i"),)
        ),
        f'{{"UnmaskRequest":{{{IN_SLOT},"consents":[{{"party":"a","slot":2,"signature":"aQ=="}}]}}}}',
    ),
]


@pytest.mark.parametrize(("message", "text"), SHAPES, ids=lambda each: str(each)[:30])
def test_shapes_of_the_thesis(message, text):
    assert encode(message, "json").decode() == text
    # The binary encodings hold the same map, under the same names.
    assert cbor2.loads(encode(message, "cbor")) == json.loads(text)
    assert msgspec.msgpack.decode(encode(message, "msgpack")) == json.loads(text)
    assert back(message, "json") == message


def test_every_kind_has_a_shape_above():
    assert {type(message) for message, _ in (*SHAPES, *SUM_SHAPES)} == set(KINDS)


@pytest.mark.parametrize(("message", "text"), SUM_SHAPES, ids=lambda each: str(each)[:30])
def test_shapes_of_secure_sums(message, text):
    """Bytes are base64 texts in JSON and bytes elsewhere."""
    assert encode(message, "json").decode() == text
    for encoding in ENCODINGS:
        assert back(message, encoding) == message
    raw = cbor2.loads(encode(message, "cbor"))
    assert raw == msgspec.msgpack.decode(encode(message, "msgpack"))
    assert msgspec.json.encode(raw).decode() == text


def test_further_fields_are_there_when_they_are_set():
    text = encode(m.JoinCluster(data_size=0, protocol=1, encodings=("cbor",)), "json").decode()
    assert text == '{"JoinCluster":{"data_size":0,"protocol":1,"encodings":["cbor"]}}'


def test_arrays_are_lists_in_json_and_bytes_elsewhere():
    listed = m.ReturnLastLikelihood(likelihood={"linear": m.Array((2,), [1.0, -0.0])})
    assert encode(listed, "json").decode() == (
        '{"ReturnLastLikelihood":{"likelihood":{"linear":{"shape":[2],"data":[1.0,-0.0]}}}}'
    )
    packed = m.ReturnLastLikelihood(likelihood={"linear": m.Array((1,), b"\0\0\0\0\0\0\xf0\x3f")})
    for encoding in ("cbor", "msgpack"):
        assert b"\0\0\0\0\0\0\xf0\x3f" in encode(packed, encoding)


# -- peers written from the thesis

THESIS_CLIENT = [
    ({"JoinCluster": {"data_size": 7}}, m.JoinCluster(data_size=7)),
    ("ReJoinCluster", m.ReJoinCluster()),
    ({"ReJoinCluster": None}, m.ReJoinCluster()),
    ({"ReJoinCluster": {}}, m.ReJoinCluster()),
    ("EndOfConnectionAcknowledgement", m.ClientAcknowledgement()),
    ("Error", m.ClientError()),
    ({"Error": None}, m.ClientError()),
    ({"Error": {}}, m.ClientError()),
    ({"Error": {"error": "no"}}, m.ClientError(error="no")),
    ({"Error": {"reason": "no"}}, m.ClientError(reason="no")),
    ({"EarlyLeaveCluster": {}}, m.EarlyLeaveCluster()),
    ({"EarlyLeaveCluster": {"reason": None}}, m.EarlyLeaveCluster()),
    (
        {"EarlyLeaveCluster": {"expected_absence": {"secs": 3, "nanos": 0}}},
        m.EarlyLeaveCluster(expected_absence=m.Duration(3)),
    ),
    (
        {"EarlyLeaveCluster": {"expected_absence": {"secs": 3}}},
        m.EarlyLeaveCluster(expected_absence=m.Duration(3)),
    ),
    (
        {"UpdatedLikelihood": {"new_likelihood": NORMAL, "delta": NORMAL, "loss": 4}},
        m.UpdatedLikelihood(new_likelihood=NORMAL, delta=NORMAL, loss=4.0),
    ),
    (
        {"UpdatedLikelihood": {"loss": None, "delta": {"mean": 1, "variance": None}}},
        m.UpdatedLikelihood(delta={"mean": 1.0, "variance": None}),
    ),
    (
        {"JoinCluster": {"data_size": 7, "city": "Zürich", "more": {"a": [1, [2.5]], "b": None}}},
        m.JoinCluster(data_size=7),
    ),
]
THESIS_SERVER = [
    ({"AcceptedIntoCluster": {}}, m.AcceptedIntoCluster()),
    ("AcceptedIntoCluster", m.AcceptedIntoCluster()),
    (
        {"AcceptedIntoCluster": {"expected_start_time": "2026-03-01T12:30:00Z"}},
        m.AcceptedIntoCluster(expected_start_time=AT),
    ),
    (
        {"AcceptedIntoCluster": {"expected_start_time": "2026-03-01T14:30:00.000000000+02:00"}},
        m.AcceptedIntoCluster(expected_start_time=AT),
    ),
    ({"RejectionFromCluster": {"fixable": True}}, m.RejectionFromCluster(fixable=True)),
    (
        {"SelectedForTraining": {"current_posterior": NORMAL}},
        m.SelectedForTraining(current_posterior=NORMAL),
    ),
    ({"EarlyCloseOfConnection": {"return_in": None}}, m.EarlyCloseOfConnection()),
    (
        {"EndOfTraining": {"final_posterior": NORMAL, "future_training": None}},
        m.EndOfTraining(final_posterior=NORMAL),
    ),
]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    ("written", "meant"), [*THESIS_CLIENT, *THESIS_SERVER], ids=lambda each: str(each)[:40]
)
def test_what_other_programs_write_is_understood(written, meant, encoding):
    assert decode(dump[encoding](written), encoding, known(type(meant))) == meant


def test_infinity_as_several_json_libraries_write_it():
    written = {"ReturnLastLikelihood": {"likelihood": {"mean": 0.0, "variance": float("inf")}}}
    text = json.dumps(written)
    assert "Infinity" in text
    message = decode(text.encode(), "json", CLIENT_MESSAGES)
    assert isinstance(message, m.ReturnLastLikelihood)
    assert message.likelihood == {"mean": 0.0, "variance": float("inf")}
    assert unpack(message.likelihood, None, "factor")["quadratic"] == 0.0


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=-5))])
def test_dates_as_cbor2_writes_them(zone):
    written = {"EndOfTraining": {"final_posterior": {}, "future_training": AT.astimezone(zone)}}
    payload = cbor2.dumps(written)
    assert b"\xc0\x74" in payload or b"\xc0\x78" in payload  # tag 0 and a text
    message = decode(payload, "cbor", SERVER_MESSAGES)
    assert isinstance(message, m.EndOfTraining)
    assert message.future_training == AT


def test_numbers_of_fewer_bits_are_read():
    payload = cbor2.dumps({"UpdatedLikelihood": {"delta": {}, "loss": 1.5}}, canonical=True)
    assert b"\xf9\x3e\x00" in payload  # 16 bits
    assert decode(payload, "cbor", CLIENT_MESSAGES) == m.UpdatedLikelihood(delta={}, loss=1.5)


def test_indefinite_lengths_of_cbor_are_read():
    payload = b"\xbf\x6bJoinCluster\xbf\x69data_size\x07\xff\xff"
    assert detect(payload) == "cbor"
    assert decode(payload, "cbor", CLIENT_MESSAGES) == m.JoinCluster(data_size=7)


# -- the first frame

FIRST = [
    m.JoinCluster(data_size=1000),
    m.JoinCluster(data_size=3, protocol=1, configuration="a" * 64, encodings=("json",)),
    m.ReJoinCluster(),
]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("message", FIRST, ids=["plain", "further", "again"])
def test_the_first_byte_tells_the_encoding(message, encoding):
    payload = encode(message, encoding)
    assert detect(payload) == encoding
    assert decode(payload, detect(payload), CLIENT_MESSAGES) == message


@pytest.mark.parametrize(
    ("payload", "encoding"),
    [
        (b' \r\n\t{"JoinCluster": {"data_size": 1}}', "json"),
        (b'\n"ReJoinCluster" ', "json"),
        (b"\x7f\x66ReJoin\x67Cluster\xff", "cbor"),
        (b"\x78\x0dReJoinCluster", "cbor"),
        (b"\xa1\x6dReJoinCluster\xf6", "cbor"),
        (b"\xd9\x0dReJoinCluster", "msgpack"),
        (b"\xda\x00\x0dReJoinCluster", "msgpack"),
        (b"\xde\x00\x01\xadReJoinCluster\xc0", "msgpack"),
        (b"\xdf\x00\x00\x00\x01\xadReJoinCluster\x80", "msgpack"),
    ],
)
def test_other_ways_to_begin(payload, encoding):
    assert detect(payload) == encoding
    assert isinstance(decode(payload, encoding, CLIENT_MESSAGES), m.JoinCluster | m.ReJoinCluster)


def test_a_first_byte_of_something_else_is_refused():
    ours = set(b'{" \t\r\n\x81\xde\xdf\xd9\xda\xa1\xbf') | {*range(0xA2, 0xBF), *range(0x60, 0x80)}
    for first in range(256):
        payload = bytes([first]) + SECRET.encode()
        if first in ours:
            assert detect(payload) in (*ENCODINGS, *LAYOUTS)
        else:
            with pytest.raises(PeerError, match="not JSON") as caught:
                detect(payload)
            assert SECRET not in str(caught.value)
            assert "\n" not in str(caught.value)
    with pytest.raises(PeerError, match="begin with JoinCluster"):
        detect(b"")


# -- refusals

UNFIT = [
    {SECRET: {}},
    SECRET,
    {"joincluster": {"data_size": 1}},
    {"AcceptedIntoCluster": {}},  # the server's, not a party's
    {"JoinCluster": {"data_size": 1}, "ReJoinCluster": None},
    {},
    [],
    ["JoinCluster", {"data_size": 1}],
    None,
    7,
    1.5,
    True,
    "",
    "JoinCluster",
    {"JoinCluster": None},
    {"JoinCluster": {}},
    {"JoinCluster": {"size": 1}},
    {"JoinCluster": [1000]},
    {"JoinCluster": 1000},
    {"JoinCluster": {"data_size": -1}},
    {"JoinCluster": {"data_size": None}},
    {"JoinCluster": {"data_size": SECRET}},
    {"JoinCluster": {"data_size": 1.0}},
    {"JoinCluster": {"data_size": True}},
    {"JoinCluster": {"data_size": 2**63}},
    {"JoinCluster": {"data_size": 1, "protocol": SECRET}},
    {"JoinCluster": {"data_size": 1, "configuration": SECRET * 40}},
    {"JoinCluster": {"data_size": 1, "encodings": SECRET}},
    {"JoinCluster": {"data_size": 1, "encodings": [SECRET, 1]}},
    {"JoinCluster": {"data_size": 1, "guarantee": {"epsilon": 1}}},
    {"EarlyLeaveCluster": {"reason": SECRET * 400}},
    {"EarlyLeaveCluster": {"reason": 3}},
    {"EarlyLeaveCluster": {"expected_absence": 3}},
    {"EarlyLeaveCluster": {"expected_absence": {"nanos": 3}}},
    {"EarlyLeaveCluster": {"expected_absence": {"secs": -3, "nanos": 0}}},
    {"EarlyLeaveCluster": {"expected_absence": {"secs": 3, "nanos": 10**9}}},
    {"EarlyLeaveCluster": {"expected_absence": {"secs": 3.5}}},
    {"FinalLeaveTraining": {"available_for_future_training": "yes"}},
    {"FinalLeaveTraining": {}},
    {"UpdatedLikelihood": {"loss": 1.0}},
    {"UpdatedLikelihood": {"delta": None}},
    {"UpdatedLikelihood": {"delta": {}, "loss": SECRET}},
    {"UpdatedLikelihood": {"delta": {"mean": SECRET, "variance": 1}}},
    {"UpdatedLikelihood": {"delta": {SECRET: [[1.0], 2.0]}}},
    {"UpdatedLikelihood": {"delta": {SECRET: {"shape": [1], "data": "?" + SECRET}}}},
    {"UpdatedLikelihood": {"delta": {SECRET: {"shape": [1], "data": [SECRET]}}}},
    {"UpdatedLikelihood": {"delta": {SECRET: {"shape": [1], "data": [None]}}}},
    {"UpdatedLikelihood": {"delta": {SECRET: {"shape": [-1], "data": []}}}},
    {"UpdatedLikelihood": {"delta": {SECRET: {"shape": [2**32], "data": []}}}},
    {"UpdatedLikelihood": {"delta": {SECRET: {"shape": [1] * 5, "data": [1.0]}}}},
    {"UpdatedLikelihood": {"delta": {SECRET: {"shape": 1, "data": [1.0]}}}},
    {"UpdatedLikelihood": {"delta": {SECRET: {"data": [1.0]}}}},
]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("value", UNFIT, ids=lambda each: str(each)[:50])
def test_what_does_not_fit_is_refused_in_one_line(value, encoding):
    refusal(dump[encoding](value), encoding)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_time_says_its_zone(encoding):
    naive = {"AcceptedIntoCluster": {"expected_start_time": "2026-03-01T12:30:00"}}
    assert "timezone" in refusal(dump[encoding](naive), encoding, SERVER_MESSAGES)
    words = {"AcceptedIntoCluster": {"expected_start_time": SECRET}}
    refusal(dump[encoding](words), encoding, SERVER_MESSAGES)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(("message", "text"), SHAPES[::3], ids=lambda each: str(each)[:20])
def test_a_message_cut_short_anywhere_is_refused(message, text, encoding):
    payload = encode(message, encoding)
    for length in range(len(payload)):
        refusal(payload[:length], encoding, known(type(message)))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_bytes_after_the_message_are_refused(encoding):
    payload = encode(m.JoinCluster(data_size=1), encoding)
    refusal(payload + payload, encoding)
    refusal(payload + b"\0", encoding)


@pytest.mark.parametrize(
    ("payload", "encoding"),
    [
        (b'{"JoinCluster":{"data_size":1},"JoinCluster":{"data_size":2}}', "json"),
        (b'{"JoinCluster":{"data_size":1,"data_size":2}}', "json"),
        (b'{"JoinCluster":{"data_size":1,"data\\u005fsize":2}}', "json"),
        (b'{"JoinCluster":{"data_size":1,"x":Infinity,"x":2}}', "json"),
        (b'{"ReturnLastLikelihood":{"likelihood":{"mean":1,"variance":1,"mean":2}}}', "json"),
        (
            b'{"ReturnLastLikelihood":{"likelihood":{"l":{"shape":[1],"data":[1],"data":[2]}}}}',
            "json",
        ),
        (
            b"\xa2\x6bJoinCluster\xa1\x69data_size\x01\x6bJoinCluster\xa1\x69data_size\x01",
            "cbor",
        ),
        (b"\xa1\x6bJoinCluster\xa2\x69data_size\x01\x69data_size\x02", "cbor"),
        (b"\xbf\x6bJoinCluster\xbf\x69data_size\x01\x69data_size\x02\xff\xff", "cbor"),
        (
            b"\x82\xabJoinCluster\x81\xa9data_size\x01\xabJoinCluster\x81\xa9data_size\x01",
            "msgpack",
        ),
        (b"\x81\xabJoinCluster\x82\xa9data_size\x01\xa9data_size\x02", "msgpack"),
        (b"\x81\xabJoinCluster\xde\x00\x02\xa9data_size\x01\xa9data_size\x02", "msgpack"),
        (b"\x81\xabJoinCluster\xdf\0\0\0\x02\xa9data_size\x01\xa9data_size\x02", "msgpack"),
        (
            b"\x81\xb4ReturnLastLikelihood\x81\xaalikelihood\x82\xa4mean\x01\xa4mean\x02",
            "msgpack",
        ),
    ],
)
def test_a_key_that_comes_twice_is_refused(payload, encoding):
    refusal(payload, encoding)


def test_lists_in_a_text_are_left_alone():
    payload = b'{"EarlyLeaveCluster":{"reason":"[1, 2] and [3]","a[1]":1}}'
    message = decode(payload, "json", CLIENT_MESSAGES)
    assert message == m.EarlyLeaveCluster(reason="[1, 2] and [3]")


@pytest.mark.parametrize(
    "text",
    [
        '{"UpdatedLikelihood":{"delta":{},"loss":NaN}}',
        '{"UpdatedLikelihood":{"delta":{"mean":NaN,"variance":Infinity}}}',
        '{"UpdatedLikelihood":{"delta":{},"loss":1e999}}',
        '{"JoinCluster":{"data_size":Infinity}}',
        '{"JoinCluster":{"data_size":NaN}}',
        '{"JoinCluster":{"data_size":' + "9" * 6000 + "}}",
        '{"JoinCluster":{"data_size":1,"x":Infinity,"y":' + "9" * 6000 + "}}",
        '{"EarlyLeaveCluster":{"reason":"\\ud800"}}',
        '{"EarlyLeaveCluster":{"reason":"\\ud800","x":Infinity}}',
        "{'JoinCluster':{'data_size':1}}",
        '{"JoinCluster":{"data_size":1},}',
        '{"JoinCluster":{"data_size":01}}',
        '\ufeff{"JoinCluster":{"data_size":1}}',
    ],
    ids=lambda text: text[:60],
)
def test_what_is_no_json_is_refused(text):
    refusal(text.encode(), "json")


def test_json_is_utf_8():
    text = '{"JoinCluster":{"data_size":1,"x":"Infinity"}}'
    for other in ("utf-16", "utf-16-le", "utf-32"):
        refusal(text.encode(other), "json")
    refusal(b'{"EarlyLeaveCluster":{"reason":"\xff"}}', "json")


@pytest.mark.parametrize("encoding", ["cbor", "msgpack"])
def test_nan_is_refused_where_a_distribution_is_read(encoding):
    payload = dump[encoding]({"UpdatedLikelihood": {"delta": {"mean": 1.0, "variance": 1.0}}})
    for name in (b"mean", b"variance"):
        at = payload.index(name) + len(name) + 1
        spoilt = payload[:at] + b"\x7f\xf8" + payload[at + 2 :]
        message = decode(spoilt, encoding, CLIENT_MESSAGES)
        assert isinstance(message, m.UpdatedLikelihood)
        with pytest.raises(PeerError):
            unpack(message.delta, None, "delta")


def tag(number, content):
    head = {1: b"\xd8", 2: b"\xd9", 4: b"\xda"}
    size = 0 if number < 24 else 1 if number < 2**8 else 2 if number < 2**16 else 4
    start = bytes([0xC0 | number]) if not size else head[size] + number.to_bytes(size, "big")
    return start + content


@pytest.mark.parametrize(
    "number",
    [*range(1, 64), 64, 70, 85, 86, 100, 256, 258, 260, 261, 999, 1004, 43000, 55799, 2**20],
)
def test_tags_of_cbor_are_refused_wherever_they_are(number):
    for content in (b"\x01", b"\x41\x01", b"\x63abc", b"\x80", b"\x82\x01\x02", b"\xa0"):
        tagged = tag(number, content)
        refusal(b"\xa1\x6bJoinCluster\xa1\x69data_size" + tagged, "cbor")
        refusal(b"\xa1\x6bJoinCluster\xa2\x69data_size\x01\x61x" + tagged, "cbor")
    refusal(tag(number, b"\xa1\x6bJoinCluster\xa1\x69data_size\x01"), "cbor")


def test_tag_0_is_for_a_date_and_nothing_else():
    for content in (
        b"\x01",
        b"\x63abc",
        b"\x80",
        b"\xc0\x63abc",
        b"\x54" + b"2026-03-01T12:30:00Z",
    ):
        refusal(b"\xa1\x6bJoinCluster\xa1\x69data_size\xc0" + content, "cbor")
        refusal(b"\xa1\x6bJoinCluster\xa2\x69data_size\x01\x61x\xc0" + content, "cbor")
    as_a_text = {"EarlyLeaveCluster": {"reason": AT}}
    refusal(cbor2.dumps(as_a_text), "cbor")


@pytest.mark.parametrize("content", [b"\xf7", b"\xe5", b"\xf8\x64", b"\xff", b"\x1c", b"\x5f\x41a"])
def test_odd_values_of_cbor_are_refused(content):
    refusal(content, "cbor")
    refusal(b"\xa1\x6bJoinCluster" + content, "cbor")
    refusal(b"\xa1\x6bJoinCluster\xa1\x69data_size" + content, "cbor")


def test_keys_are_texts():
    refusal(cbor2.dumps({b"JoinCluster": {"data_size": 1}}), "cbor")
    refusal(cbor2.dumps({1: {"data_size": 1}}), "cbor")
    refusal(cbor2.dumps({"JoinCluster": {1: 1, "data_size": 1}}), "cbor")
    refusal(msgspec.msgpack.encode({1: {"data_size": 1}}), "msgpack")
    refusal(msgspec.msgpack.encode({"JoinCluster": {1: 1, "data_size": 1}}), "msgpack")


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_unknown_fields_are_ignored_inside_a_distribution_too(encoding):
    array = {"shape": [1], "data": [2.0], SECRET: 1}
    payload = dump[encoding]({"ReturnLastLikelihood": {"likelihood": {"linear": array}}})
    assert decode(payload, encoding, CLIENT_MESSAGES) == m.ReturnLastLikelihood(
        likelihood={"linear": m.Array((1,), [2.0])}
    )


@pytest.mark.parametrize("encoding", ["cbor", "msgpack"])
def test_maps_are_at_most_16_deep(encoding):
    def nested(levels):
        value = 1
        for _ in range(levels - 2):  # the message and its fields are two
            value = {"a": value}
        return dump[encoding]({"JoinCluster": {"data_size": 1, "x": value}})

    assert decode(nested(16), encoding, CLIENT_MESSAGES) == m.JoinCluster(data_size=1)
    refusal(nested(17), encoding)


# -- payloads made to hurt, each in a process of its own: what they would do is end it

DEEP = 100_000
JOIN = {
    "json": b'{"JoinCluster":{"data_size":1,"x":',
    "cbor": b"\xa1\x6bJoinCluster\xa2\x69data_size\x01\x61x",
    "msgpack": b"\x81\xabJoinCluster\x82\xa9data_size\x01\xa1x",
}
LAST = b"\x81\xb4ReturnLastLikelihood\x81\xaalikelihood\x81\xa6linear\x82\xa5shape"
HURTFUL = {
    "json": [
        b"[" * DEEP,
        b'{"a":' * DEEP,
        JOIN["json"] + b"[" * DEEP + b"]" * DEEP + b"}}",
        JOIN["json"] + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}}",
        JOIN["json"] + b"Infinity,\"y\":" + b"[" * DEEP + b"]" * DEEP + b"}}",
    ],
    "cbor": [
        *(head * DEEP + b"\x00" for head in (b"\x81", b"\x9f", b"\xa1\x61a", b"\xbf\x61a")),
        *(head * DEEP + b"\x00" for head in (b"\xc0", b"\xc1", b"\xd8\x46", b"\xd9\x03\xe7")),
        *(head * DEEP + b"\x00" for head in (b"\xa1", b"\x5f", b"\x7f", b"\xd8\x1c", b"\xd8\x1d")),
        *(JOIN["cbor"] + head * DEEP for head in (b"\x81", b"\xa1\x61a", b"\xc0", b"\xd9\x03\xe7")),
        *(
            JOIN["cbor"] + bytes([major | 26]) + size.to_bytes(4, "big")
            for major in (0x40, 0x60, 0x80, 0xA0)
            for size in (2**24, 2**28, 2**31, 2**32 - 1)
        ),
        *(
            JOIN["cbor"] + bytes([major | 27]) + size.to_bytes(8, "big")
            for major in (0x40, 0x60, 0x80, 0xA0)
            for size in (2**32, 2**40, 2**62, 2**63, 2**64 - 1)
        ),
    ],
    "msgpack": [
        b"\x91" * DEEP,
        b"\x81" * DEEP,
        JOIN["msgpack"] + b"\x91" * DEEP + b"\x00",
        JOIN["msgpack"] + b"\x81\xa1a" * DEEP + b"\x00",
        *(
            start + head + size.to_bytes(4, "big")
            for start in (b"", JOIN["msgpack"], LAST, LAST + b"\x91\x01\xa4data")
            for head in (b"\xdd", b"\xdf", b"\xdb", b"\xc6", b"\xc9")
            for size in (2**24, 2**28, 2**31, 2**32 - 1)
        ),
    ],
}  # fmt: skip

CHILD = """
import pickle, resource, sys, time
from tacit.errors import PeerError
from tacit.live.protocol.codec import decode
from tacit.live.protocol.messages import CLIENT_MESSAGES
encoding, payloads = pickle.load(sys.stdin.buffer)
pages = int(open("/proc/self/statm").read().split()[0])
most = pages * resource.getpagesize() + 64 * 2**20
resource.setrlimit(resource.RLIMIT_AS, (most, most))
for payload in payloads:
    start = time.perf_counter()
    try:
        decode(payload, encoding, CLIENT_MESSAGES)
        raise SystemExit(f"accepted {payload[:60]}")
    except PeerError as error:
        assert len(str(error)) < 450
    assert time.perf_counter() - start < 1
print("unhurt")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory as Linux has them")
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_depth_and_announced_sizes_cost_nothing(encoding):
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=pickle.dumps((encoding, HURTFUL[encoding])),
        capture_output=True,
        timeout=100,
        check=False,
    )
    assert done.stdout.decode().strip() == "unhurt", (done.returncode, done.stderr[-500:])


# -- fuzz

FUZZ = int(os.environ.get("TACIT_FUZZ", "2000"))
VALID = [
    *(message for message, _ in SHAPES),
    *FIRST,
    m.JoinCluster(
        data_size=10,
        protocol=1,
        guarantee=m.Promise(epsilon=1.0, delta=1e-5, unit="record", adjacency="remove", answers=9),
    ),
    m.SelectedForTraining(
        current_posterior={
            "linear": m.Array((2,), [1.0, 2.0]),
            "quadratic": m.Array((1, 1), b"12345678"),
        },
        factor={"mean": 1.0, "variance": None},
        request="r1",
        factor_version=3,
    ),
]  # fmt: skip


def mutated(rng, pool):
    """A valid payload, changed in one to four places."""
    changed = bytearray(rng.choice(pool))
    for _ in range(rng.randint(1, 4)):
        at = rng.randint(0, len(changed))
        kind = rng.randrange(5)
        if kind == 0 and at < len(changed):
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(changed):
            changed[at] = rng.choice(b'\x00\xff\x7f\x80\x9f\xbf\xc0\xd9\xdd{}[]"\\,:0-')
        elif kind == 2:
            del changed[at : at + rng.randint(1, 8)]
        elif kind == 3:
            changed[at:at] = rng.randbytes(rng.randint(1, 8))
        else:
            other = rng.choice(pool)
            start = rng.randint(0, len(other))
            changed[at : at + rng.randint(0, 20)] = other[start : start + rng.randint(0, 40)]
    return bytes(changed)


def survives(payload, encoding, among):
    """Whether a payload is a message; anything but a message or a PeerError fails the test."""
    start = time.perf_counter()
    message, line = None, ""
    try:
        message = decode(payload, encoding, among)
    except PeerError as error:
        line = str(error)
    assert time.perf_counter() - start < 1
    assert "\n" not in line
    assert len(line) < 450
    if message is not None and b"Infinity" not in payload:
        assert repr(back(message, encoding)) == repr(message)
    return message is not None


@pytest.mark.parametrize("encoding", [*ENCODINGS, *LAYOUTS])
def test_random_bytes_are_a_message_or_a_refusal(encoding):
    rng = random.Random(f"bytes {encoding}")
    for _ in range(FUZZ):
        payload = rng.randbytes(rng.choice([1, 2, 3, 8, 40, 300]))
        survives(payload, encoding, rng.choice([CLIENT_MESSAGES, SERVER_MESSAGES]))
        with contextlib.suppress(PeerError):
            assert detect(payload) in (*ENCODINGS, *LAYOUTS)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_spoilt_messages_are_a_message_or_a_refusal(encoding):
    rng = random.Random(f"spoilt {encoding}")
    pools = [
        (among, [encode(each, encoding) for each in VALID if known(type(each)) is among])
        for among in (CLIENT_MESSAGES, SERVER_MESSAGES)
    ]
    good = 0
    for _ in range(FUZZ):
        among, pool = rng.choice(pools)
        good += survives(mutated(rng, pool), encoding, among)
    assert 0 < good < FUZZ  # neither a decoder that refuses all nor one that takes all


# -- the specification's own examples

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"


def test_examples_of_the_specification_are_messages():
    blocks = re.findall(r"^```json\n(.*?)\n```", PAGE.read_text("utf-8"), re.S | re.M)
    assert len(blocks) >= 6
    for text in blocks:
        tags = SERVER_MESSAGES if text.split('"')[1] in SERVER_MESSAGES else CLIENT_MESSAGES
        assert encode(decode(text.encode(), "json", tags), "json").decode() == text


def test_the_session_of_the_specification_is_right():
    found = re.findall(
        r"`((?:[0-9a-f]{2} ){3}[0-9a-f]{2})` \((\d+) bytes\).*?```json\n(.*?)\n```",
        PAGE.read_text("utf-8"),
        re.S,
    )
    assert len(found) == 6
    for head, size, text in found:
        assert bytes.fromhex(head) == len(text.encode()).to_bytes(4, "big")
        assert int(size) == len(text.encode())
    q, update, end = (json.loads(found[at][2]) for at in (2, 3, 4))
    factor = unpack(update["UpdatedLikelihood"]["delta"], None, "delta")
    prior = unpack(q["SelectedForTraining"]["current_posterior"], None, "prior")
    final = unpack(end["EndOfTraining"]["final_posterior"], None, "result")
    # Ten records with mean 5 and known variance 1: precision 10, and 10 · 5.
    assert factor["linear"] == pytest.approx([50.0])
    assert factor["quadratic"] == pytest.approx([-5.0])
    for name, value in final.items():
        assert value == pytest.approx(prior[name] + factor[name], rel=1e-15)
    records = 5 + np.array([-1.0, 1.0] * 5)
    assert records.mean() == pytest.approx(5.0)
    assert records.var() == pytest.approx(1.0)
    theta, weight = np.polynomial.hermite_e.hermegauss(5)  # E over N(0, 1), exact here
    each = 0.5 * np.log(2 * np.pi) + 0.5 * (records[:, None] - theta) ** 2
    loss = float(each.sum(0) @ weight / weight.sum())
    assert update["UpdatedLikelihood"]["loss"] == pytest.approx(loss, rel=1e-12)
