"""bincode: bytes written by hand from the format's description, round trips, and refusals."""

import struct
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from tacit.errors import PeerError
from tacit.expfam import MeanFieldGaussian
from tacit.live.protocol import messages as m
from tacit.live.protocol.arrays import unpack
from tacit.live.protocol.bincode import LAYOUTS, detect_layout
from tacit.live.protocol.codec import decode, detect, encode
from tacit.testing import check_codec

ONE = {"mean": 5.0, "variance": 0.1}
THREE = {"mean": [1.0, -2.0, 0.5], "variance": [0.1, 1e300, -4.0]}
AT = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)


def f64(*values: float) -> str:
    return struct.pack(f"<{len(values)}d", *values).hex()


VECTORS = [
    # message, variable-length integers, integers of fixed length
    (m.JoinCluster(data_size=10), "00 0a", "00000000 0a00000000000000"),
    (m.JoinCluster(data_size=1000), "00 fbe803", "00000000 e803000000000000"),
    (m.JoinCluster(data_size=2**33), "00 fd0000000002000000", "00000000 0000000002000000"),
    (m.ReJoinCluster(), "01", "01000000"),
    (
        m.UpdatedLikelihood(new_likelihood=ONE, delta=ONE, loss=144.5),
        "02" + f64(5.0, 0.1, 5.0, 0.1, 144.5),
        "02000000" + f64(5.0, 0.1, 5.0, 0.1, 144.5),
    ),
    (
        m.ReturnLastLikelihood(likelihood=THREE),
        "03 03" + f64(*THREE["mean"]) + "03" + f64(*THREE["variance"]),
        "03000000 0300000000000000"
        + f64(*THREE["mean"])
        + "0300000000000000"
        + f64(*THREE["variance"]),
    ),
    (
        m.EarlyLeaveCluster(reason="tea", expected_absence=m.Duration(90, 500_000_000)),
        "04 01 03 746561 01 5a fc0065cd1d",
        "04000000 01 0300000000000000 746561 01 5a00000000000000 0065cd1d",
    ),
    (m.EarlyLeaveCluster(), "04 00 00", "04000000 00 00"),
    (m.FinalLeaveTraining(available_for_future_training=True), "05 01", "05000000 01"),
    (m.ClientError(error="no"), "06 01 02 6e6f", "06000000 01 0200000000000000 6e6f"),
    (m.ClientAcknowledgement(), "07", "07000000"),
    (m.AcceptedIntoCluster(), "00 00", "00000000 00"),
    (
        m.AcceptedIntoCluster(expected_start_time=AT),
        "00 01 14" + b"2026-03-01T12:30:00Z".hex(),
        "00000000 01 1400000000000000" + b"2026-03-01T12:30:00Z".hex(),
    ),
    (m.RejectionFromCluster(fixable=False), "02 00 00", "02000000 00 00"),
    (
        m.SelectedForTraining(current_posterior=ONE, damping_factor=0.5),
        "03" + f64(5.0, 0.1) + "01" + f64(0.5),
        "03000000" + f64(5.0, 0.1) + "01" + f64(0.5),
    ),
    (
        m.EndOfTraining(final_posterior=THREE),
        "05 03" + f64(*THREE["mean"]) + "03" + f64(*THREE["variance"]) + "00",
        "05000000 0300000000000000"
        + f64(*THREE["mean"])
        + "0300000000000000"
        + f64(*THREE["variance"])
        + "00",
    ),
    (m.ServerAcknowledgement(), "07", "07000000"),
]


def known(message):
    ours = isinstance(message, m.ClientMessage)
    return m.CLIENT_MESSAGES if ours else m.SERVER_MESSAGES


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", VECTORS, ids=lambda case: type(case[0]).__name__)
def test_vectors(case, layout):
    message = case[0]
    expected = bytes.fromhex(case[1 + LAYOUTS.index(layout)])
    assert encode(message, layout) == expected
    assert decode(expected, layout, known(message)) == message


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_first_frame_tells_the_layout(layout):
    for size in (0, 250, 251, 2**16, 2**32, 2**63 - 1):
        assert detect(encode(m.JoinCluster(data_size=size), layout)) == layout
    assert detect(encode(m.ReJoinCluster(), layout)) == layout
    assert detect_layout(b"") is None
    for other in ("json", "cbor", "msgpack"):
        assert detect(encode(m.JoinCluster(data_size=7), other)) == other


@pytest.mark.parametrize("layout", LAYOUTS)
def test_extensions_are_left_out(layout):
    joined = m.JoinCluster(data_size=7, protocol=2, configuration="c", encodings=("json",))
    assert decode(encode(joined, layout), layout, m.CLIENT_MESSAGES) == m.JoinCluster(data_size=7)
    both = m.ServerError(error=None, reason="words")
    assert decode(encode(both, layout), layout, m.SERVER_MESSAGES) == m.ServerError(error="words")


@pytest.mark.parametrize(
    "message",
    [
        m.ServerHeartbeat(),
        m.UpdatedLikelihood(delta=ONE),
        m.EndOfTraining(final_posterior={"log": m.Array((1,), [0.0])}),
        m.SelectedForTraining(current_posterior=None),
    ],
)
def test_what_the_thesis_has_no_form_for_is_not_written(message):
    with pytest.raises(PeerError):
        encode(message, "bincode")


@pytest.mark.parametrize(
    "payload",
    ["", "08", "ff", "00", "0001ff", "05 02", "04 02 00", "06 01 7f 6e6f", "06 01 02 fffe"],
)
def test_refusals(payload):
    with pytest.raises(PeerError) as caught:
        decode(bytes.fromhex(payload), "bincode", m.CLIENT_MESSAGES)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_conformance_suite_of_codecs(layout):
    """A vector that was cut may read as two numbers: the receiver's family refuses these."""

    def read(payload, side):
        message = decode(payload, layout, side)
        for value in message.__class__.__struct_fields__:
            if isinstance(normal := getattr(message, value), dict):
                unpack(normal, MeanFieldGaussian(3), value)
        return message

    updates = [
        m.UpdatedLikelihood(new_likelihood=THREE, delta=THREE, loss=-1.5),
        m.SelectedForTraining(current_posterior=THREE, damping_factor=0.5),
    ]
    cases = [
        *updates,
        *(case[0] for case in VECTORS if ONE not in msgspec.structs.astuple(case[0])),
    ]
    for side, other in (
        (m.CLIENT_MESSAGES, m.ReAcceptanceIntoCluster(last_likelihood=THREE)),
        (m.SERVER_MESSAGES, m.UpdatedLikelihood(new_likelihood=THREE, delta=THREE, loss=0.0)),
    ):
        check_codec(
            lambda message: encode(message, layout),
            lambda payload, side=side: read(payload, side),
            samples=[message for message in cases if known(message) is side],
            foreign=[other],
        )


def test_the_vectors_of_the_specification():
    text = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
    half = {"mean": [1.0, 2.0], "variance": [0.5, 0.5]}
    single = {"mean": 5.0, "variance": 0.5}
    absence = m.Duration(90, 500_000_000)
    expected = [
        ("bincode", m.JoinCluster(data_size=1000)),
        ("bincode-fixint", m.JoinCluster(data_size=1000)),
        ("bincode", m.EarlyLeaveCluster(reason="tea", expected_absence=absence)),
        ("bincode", m.SelectedForTraining(current_posterior=single)),
        ("bincode", m.ReturnLastLikelihood(likelihood=half)),
    ]
    section = text.split("### bincode")[1].split("### Types")[0]
    table = [row for row in section.splitlines() if row.startswith("| ")][-5:]
    rows = [row.split("`")[-2] for row in table]
    assert [bytes.fromhex(row) for row in rows] == [encode(it, how) for how, it in expected]
