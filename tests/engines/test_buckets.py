"""Padded lengths are the best there are; batches waste few size."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.engines.padding import (
    CALL_COST_ROWS,
    MAX_PADDING_RATIO,
    ROWS_PER_CALL,
    batch_size,
    bucket_lengths,
)

SIZES = st.lists(st.integers(1, 60), min_size=1, max_size=9)


def rows(sizes, lengths):
    return sum(min(length for length in lengths if length >= size) for size in sizes)


def best(sizes, count):
    """Fewest rows with `count` lengths, by trying all; the largest size is always one."""
    distinct = sorted(set(sizes))
    rest = itertools.combinations(distinct[:-1], min(count, len(distinct)) - 1)
    return min(rows(sizes, [*some, distinct[-1]]) for some in rest)


@given(sizes=SIZES, most=st.integers(1, 4))
def test_lengths_are_the_fewest_that_do_and_waste_least(sizes, most):
    lengths = bucket_lengths(sizes, most)
    assert lengths == sorted(set(lengths))
    assert len(lengths) <= most
    assert lengths[-1] == max(sizes)
    assert rows(sizes, lengths) == best(sizes, len(lengths))
    bearable = max(MAX_PADDING_RATIO * sum(sizes), best(sizes, most))
    assert rows(sizes, lengths) <= bearable
    if len(lengths) > 1:
        assert best(sizes, len(lengths) - 1) > bearable, "one length fewer would have done"


@given(parties=st.integers(1, 300), length=st.integers(1, 20_000))
def test_a_bench_is_the_cheapest_that_fits(parties, length):
    def cost(size):
        calls = -(-parties // size)
        return calls * (size * length + CALL_COST_ROWS)

    size = batch_size(parties, length)
    allowed = range(1, max(1, min(parties, ROWS_PER_CALL // length)) + 1)
    assert size in allowed
    assert cost(size) == min(map(cost, allowed))


@pytest.mark.parametrize(
    ("sizes", "expected"), [([7], [7]), ([3, 3, 3], [3]), ([1, 100], [1, 100])]
)
def test_small_cases(sizes, expected):
    assert bucket_lengths(sizes, 3) == expected
