"""The same records have the same name, and nothing else has."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from tacit.errors import ConfigError, DataError
from tacit.privacy.ledger.fingerprint import DatasetId, fingerprint

KEY = bytes(range(32))


def records(rng, n=7):
    return {
        "x": rng.normal(size=(n, 3)),
        "y": rng.integers(0, 2, n),
        "ward": np.array([f"w{i % 3}" for i in range(n)], dtype=object),
        "seen": np.datetime64("2026-01-01") + np.arange(n),
    }


@given(st.permutations(range(7)))
def test_order_of_records_and_columns_does_not_matter(order):
    some = records(np.random.default_rng(1))
    moved = {name: some[name][list(order)] for name in reversed(some)}
    assert fingerprint({"a": 1, "b": 2}, some, KEY) == fingerprint({"b": 2, "a": 1}, moved, KEY)


@pytest.mark.parametrize("name", ["x", "y", "ward", "seen"])
def test_one_changed_value_changes_the_content_only(name):
    some = records(np.random.default_rng(1))
    other = {**some, name: some[name].copy()}
    other[name].reshape(7, -1)[3, 0] = {"x": 0.1, "y": 5, "ward": "w9"}.get(name, "2020-01-01")
    a, b = fingerprint([], some, KEY), fingerprint([], other, KEY)
    assert a.schema == b.schema
    assert a.content != b.content


@given(npst.arrays(np.float64, 4), st.integers(0, 3), st.floats())
def test_a_number_changes_it_exactly_if_the_multiset_of_values_changes(values, place, number):
    other = values.copy()
    other[place] = number
    same = np.array_equal(np.sort(values), np.sort(other), equal_nan=True)
    a, b = fingerprint([], {"y": values}, KEY), fingerprint([], {"y": other}, KEY)
    assert (a == b) == same


def test_values_cannot_move_between_records_columns_or_cells():
    def of(**columns):
        text = {name: np.array(value, dtype=object) for name, value in columns.items()}
        return fingerprint([], text, KEY).content

    distinct = [
        of(a=["ab", "c"], b=["d", "e"]),
        of(a=["ab", "c"], b=["e", "d"]),
        of(a=["a", "c"], b=["bd", "e"]),
        of(a=["ab", "c", "c"], b=["d", "e", "e"]),
        of(a=["d", "e"], b=["ab", "c"]),
        of(a=["ab", "c"], c=["d", "e"]),
        of(a=["ab", None], b=["d", "e"]),
        of(a=["ab", ""], b=["d", "e"]),
    ]
    assert len(set(distinct)) == len(distinct)


def test_large_whole_numbers_differ_and_float_widths_do_not():
    a, b = (fingerprint([], {"n": np.array([v])}, KEY) for v in (2**53, 2**53 + 1))
    assert a != b
    narrow = np.array([0.5, -0.0], dtype=np.float32)
    wide = np.array([0.5, 0.0])
    assert fingerprint([], {"n": narrow}, KEY) == fingerprint([], {"n": wide}, KEY)


def test_the_key_decides_the_content_and_not_the_schema():
    some = records(np.random.default_rng(1))
    a, b = fingerprint([], some, KEY), fingerprint([], some, bytes(32))
    assert a.schema == b.schema
    assert a.content != b.content
    assert fingerprint([1], some, KEY).schema != a.schema
    assert fingerprint([1], some, KEY).content == a.content


def test_refusals():
    with pytest.raises(DataError, match="31 bytes"):
        fingerprint([], {"y": np.zeros(1)}, bytes(31))
    with pytest.raises(DataError, match="same number of records"):
        fingerprint([], {"y": np.zeros(1), "x": np.zeros(2)}, KEY)
    for nothing in ({}, {"y": np.zeros(0)}):
        with pytest.raises(DataError, match="lengths"):
            fingerprint([], nothing, KEY)
    with pytest.raises(DataError, match="complex"):
        fingerprint([], {"y": np.zeros(1, dtype=complex)}, KEY)
    with pytest.raises(DataError, match="contains a value of type float"):
        fingerprint([], {"y": np.array(["a", 1.0], dtype=object)}, KEY)
    with pytest.raises(ConfigError, match="not a data set id"):
        DatasetId.parse("abc")


def test_text_of_an_id_is_read_back():
    some = fingerprint([], {"y": np.zeros(1)}, KEY)
    assert DatasetId.parse(str(some)) == some
