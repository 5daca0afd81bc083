"""Distributions on the wire: to the last bit between ours, mean and variance towards the thesis."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tacit.errors import PeerError
from tacit.expfam import Dirichlet, FullGaussian, Gamma, MeanFieldGaussian
from tacit.live.protocol.arrays import (
    FLAT_VARIANCE,
    is_independent_normal,
    pack,
    pack_normal,
    unpack,
)
from tacit.live.protocol.bincode import LAYOUTS
from tacit.live.protocol.codec import ENCODINGS, decode, encode
from tacit.live.protocol.messages import CLIENT_MESSAGES, Array, ReturnLastLikelihood

FAMILIES = [
    MeanFieldGaussian(1), MeanFieldGaussian(7), FullGaussian(1), FullGaussian(4), Dirichlet(3),
    Gamma(2),
]  # fmt: skip
SECRET = "S3CR3T"
ODD = [-0.0, 5e-324, -2.2e-308, 1e308, 1.7976931348623157e308, 0.1, -1 / 3]


def sent(distribution, encoding):
    """A distribution as the peer reads it."""
    payload = encode(ReturnLastLikelihood(likelihood=distribution), encoding)
    message = decode(payload, encoding, CLIENT_MESSAGES)
    assert isinstance(message, ReturnLastLikelihood)
    return message.likelihood


def refusal(distribution, family):
    with pytest.raises(PeerError) as caught:
        unpack(distribution, family, "delta")
    line = str(caught.value)
    assert "\n" not in line
    assert len(line) < 300
    assert SECRET not in line
    assert line.startswith("delta")
    return line


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("family", FAMILIES, ids=repr)
@given(seed=st.integers(0, 2**32 - 1))
def test_natural_parameters_arrive_to_the_last_bit(family, encoding, seed):
    rng = np.random.default_rng(seed)
    natural = {
        name: np.where(
            rng.random(shape) < 0.3,
            rng.choice(ODD, shape),
            rng.normal(size=shape) * 10.0 ** rng.integers(-200, 200, shape),
        )
        for name, shape in family.shapes.items()
    }
    for known in (family, None):
        found = unpack(sent(pack(natural, encoding), encoding), known, "factor")
        assert set(found) == set(natural)
        for name, value in natural.items():
            assert found[name].dtype == np.float64
            assert found[name].shape == value.shape
            assert found[name].tobytes() == value.tobytes()


def test_arrays_that_lie_otherwise_in_memory_are_sent_row_by_row():
    value = np.arange(6, dtype=">f8").reshape(2, 3).T
    for encoding in ENCODINGS:
        found = unpack(sent(pack({"x": value}, encoding), encoding), None, "factor")["x"]
        np.testing.assert_array_equal(found, value)
    assert pack({"x": value}, "json")["x"] == Array((3, 2), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0])
    assert pack({"x": np.array([1.0])}, "cbor")["x"] == Array((1,), b"\0\0\0\0\0\0\xf0\x3f")


def test_what_arrives_can_be_written_to():
    found = unpack(pack({"x": np.ones(2)}, "cbor"), None, "factor")["x"]
    found += 1.0


@given(
    linear=st.floats(-1e100, 1e100),
    precision=st.floats(1e-100, 1e100),
    negative=st.booleans(),
    family=st.sampled_from([None, MeanFieldGaussian(1), FullGaussian(1)]),
)
def test_a_scalar_normal_is_mean_and_variance_and_back(linear, precision, negative, family):
    assume(linear == 0.0 or abs(linear) > 1e-100)
    quadratic = 0.5 * precision if negative else -0.5 * precision
    shape = (1,) if family is None else family.shapes["quadratic"]
    natural = {"linear": np.array([linear]), "quadratic": np.full(shape, quadratic)}
    told = pack_normal(natural)
    assert (told["variance"] < 0) is negative
    for encoding in ENCODINGS:
        found = unpack(sent(told, encoding), family, "factor")
        # quadratic: two divisions; linear: these, a division and a product
        np.testing.assert_allclose(found["quadratic"], natural["quadratic"], rtol=3e-16 * 2)
        np.testing.assert_allclose(found["linear"], natural["linear"], rtol=3e-16 * 4)


def test_known_values():
    half = {"linear": np.array([6.0]), "quadratic": np.array([-1.0])}
    assert pack_normal(half) == {"mean": 3.0, "variance": 0.5}
    found = unpack({"mean": 3.0, "variance": -0.5}, MeanFieldGaussian(1), "factor")
    assert found["linear"] == [-6.0]
    assert found["quadratic"] == [1.0]


@pytest.mark.parametrize("linear", [0.0, 3.0, -1e9, 1e200])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_factor_that_says_nothing_adds_nothing(linear, encoding):
    flat = {"linear": np.array([linear]), "quadratic": np.array([0.0])}
    told = pack_normal(flat)
    assert math.isfinite(told["mean"])
    assert math.isfinite(told["variance"])
    assert told["variance"] == pytest.approx(FLAT_VARIANCE / max(1.0, abs(linear)))
    found = unpack(sent(told, encoding), MeanFieldGaussian(1), "factor")
    assert found["quadratic"] + -0.5 == -0.5
    np.testing.assert_allclose(found["linear"], flat["linear"], rtol=1e-15)


@pytest.mark.parametrize("variance", [None, math.inf, -math.inf])
@pytest.mark.parametrize("family", [None, MeanFieldGaussian(1), FullGaussian(1)])
@pytest.mark.parametrize("mean", [12.0, 0, None])
def test_no_variance_and_an_infinite_one_say_nothing(mean, variance, family):
    found = unpack({"mean": mean, "variance": variance}, family, "factor")
    assert found["linear"] == [0.0]
    assert np.all(found["quadratic"] == 0.0)


def test_who_can_be_told_in_the_words_of_the_thesis():
    assert is_independent_normal(MeanFieldGaussian(1).zero())
    assert is_independent_normal(FullGaussian(1).zero())
    assert is_independent_normal(MeanFieldGaussian(2).zero())
    assert not is_independent_normal(FullGaussian(2).zero())
    assert not is_independent_normal(Gamma(1).zero())
    assert not is_independent_normal(Dirichlet(1).zero())
    with pytest.raises(PeerError, match="mean-field"):
        pack_normal(FullGaussian(2).zero())


@pytest.mark.parametrize("encoding", [*ENCODINGS, *LAYOUTS])
def test_independent_normals_are_lists_of_means_and_variances(encoding):
    natural = {"linear": np.array([6.0, 0.0, -1.5]), "quadratic": np.array([-1.0, 0.0, 0.25])}
    told = pack_normal(natural)
    assert told == {"mean": [3.0, 0.0, 3.0], "variance": [0.5, pytest.approx(FLAT_VARIANCE), -2.0]}
    found = unpack(sent(told, encoding), MeanFieldGaussian(3), "factor")
    np.testing.assert_allclose(found["linear"], natural["linear"], rtol=1e-15)
    np.testing.assert_allclose(found["quadratic"], natural["quadratic"], rtol=1e-15, atol=1e-299)


@pytest.mark.parametrize("variance", [None, [None, None], [math.inf, None]])
@pytest.mark.parametrize("mean", [[0.0, None], None])
def test_a_flat_vector_says_nothing(mean, variance):
    if mean is None and variance is not None:
        mean = [None, None]
    if mean is not None and variance is None:
        variance = [None, None]
    found = unpack({"mean": mean, "variance": variance}, TWO, "factor")
    assert not np.any(found["linear"])
    assert not np.any(found["quadratic"])


@pytest.mark.parametrize(
    ("mean", "variance"),
    [
        ([1.0], [1.0]),
        ([1.0, 2.0, 3.0], [1.0, 1.0, 1.0]),
        ([1.0, 2.0], [1.0]),
        ([1.0, 2.0], 1.0),
        (1.0, [1.0, 2.0]),
        ([], []),
        ([1.0, 2.0], [1.0, 0.0]),
        ([1.0, None], [1.0, 2.0]),
        ([1.0, math.nan], [1.0, 2.0]),
        ([1.0, 2.0], [1.0, math.nan]),
    ],
)
def test_vectors_that_are_no_normals_of_the_family(mean, variance):
    refusal({"mean": mean, "variance": variance}, TWO)


# -- refusals

TWO = MeanFieldGaussian(2)


def arrays(linear, quadratic=(-1.0, -1.0)):
    return {
        "linear": linear if isinstance(linear, Array) else Array((2,), list(linear)),
        "quadratic": Array((2,), list(quadratic)),
    }


def test_the_refusals_below_start_from_something_good():
    found = unpack(arrays((1.0, 2.0)), TWO, "delta")
    np.testing.assert_array_equal(found["linear"], [1.0, 2.0])


@pytest.mark.parametrize("family", [TWO, None], ids=repr)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_numbers_are_finite(bad, family):
    assert "finite" in refusal(arrays((1.0, bad)), family)
    packed = Array((2,), np.array([bad, 1.0]).tobytes())
    assert "finite" in refusal(arrays(packed), family)


@pytest.mark.parametrize("family", [TWO, None], ids=repr)
@pytest.mark.parametrize(
    "bad",
    [
        Array((2,), [1.0]),
        Array((2,), [1.0, 2.0, 3.0]),
        Array((3, 0), [1.0]),
        Array((), []),
        Array((2,), b""),
        Array((2,), b"\0" * 15),
        Array((2,), b"\0" * 17),
        Array((1,), b"\0" * 15),
        Array((2**31, 2**31), b"\0" * 16),
        Array((0, 2**31, 2**31, 2**31), []),
        Array((0, 2**31, 2**31, 2**31), b""),
    ],
    ids=str,
)
def test_as_many_numbers_as_the_shape_says(bad, family):
    assert "shape" in refusal(arrays(bad), family)


@pytest.mark.parametrize(
    "bad",
    [
        Array((1, 2), [1.0, 2.0]),
        Array((2, 1), [1.0, 2.0]),
        Array((1,), [1.0]),
        Array((), [1.0]),
        Array((0,), []),
    ],
    ids=str,
)
def test_the_shape_is_the_familys(bad):
    assert "shape" in refusal(arrays(bad), TWO)


@pytest.mark.parametrize("bad", [1.0, None, SECRET, b"12345678", [1.0, 2.0]], ids=str)
def test_a_parameter_is_an_array(bad):
    for family in (TWO, None):
        assert "array" in refusal({**arrays((1.0, 2.0)), "linear": bad}, family)


def test_names_are_the_familys_and_a_peers_are_not_repeated():
    good = arrays((1.0, 2.0))
    for bad in (
        {},
        {"linear": good["linear"]},
        {**good, SECRET: good["linear"]},
        {SECRET * 99: 1.0},
    ):
        assert "linear, quadratic" in refusal(bad, TWO)
    refusal({SECRET: 1.0}, None)
    refusal({SECRET: Array((2,), [1.0])}, None)


@pytest.mark.parametrize("family", [TWO, FullGaussian(2), Gamma(1), Dirichlet(1)], ids=repr)
def test_a_scalar_normal_is_not_enough_for_a_bigger_family(family):
    assert "scalar normal" in refusal({"mean": 0.0, "variance": 1.0}, family)


@pytest.mark.parametrize("family", [MeanFieldGaussian(1), None], ids=repr)
@pytest.mark.parametrize(
    ("mean", "variance"),
    [
        (math.nan, 1.0),
        (math.inf, 1.0),
        (1.0, math.nan),
        (1.0, 0.0),
        (1.0, -0.0),
        (None, 1.0),
        (math.nan, None),
        (SECRET, None),
        (SECRET, 1.0),
        (1.0, SECRET),
        (1.0, Array((1,), [1.0])),
        (Array((1,), [1.0]), 1.0),
        (1.0, 5e-324),
        (1e300, 1e-300),
    ],
    ids=str,
)
def test_mean_and_variance_are_numbers_that_make_sense(mean, variance, family):
    refusal({"mean": mean, "variance": variance}, family)
