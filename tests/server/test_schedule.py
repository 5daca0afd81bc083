"""Schedules: who is chosen, with what damping, and which numbers are refused."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import ConfigError
from tacit.server.schedule import (
    SCHEDULES,
    Asynchronous,
    Damping,
    Sequential,
    Synchronous,
    resolved_damping,
)

NAMES = tuple("abcdefgh")


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 8), number=st.integers(1, 50))
def test_a_subset_is_seeded_distinct_and_in_the_runs_order(seed, count, number):
    schedule = Synchronous(parties_per_round=count)
    chosen = schedule.chosen(NAMES, seed, number)
    assert chosen == schedule.chosen(NAMES, seed, number)
    assert len(set(chosen)) == len(chosen) == count
    assert list(chosen) == sorted(chosen)


def test_every_party_is_chosen_about_as_often():
    """2,000 rounds of 2 of 8: each count is binomial(2000, 1/4), sd 19; 5 sd allowed."""
    schedule = Synchronous(parties_per_round=2)
    counts = Counter(name for k in range(2000) for name in schedule.chosen(NAMES, 3, k))
    assert sum(counts.values()) == 4000
    assert all(abs(counts[name] - 500) < 97 for name in NAMES)
    other = [schedule.chosen(NAMES, 4, k) for k in range(20)]
    assert other != [schedule.chosen(NAMES, 3, k) for k in range(20)]


@given(start=st.floats(0.01, 1), end=st.floats(0.01, 1), rounds=st.integers(1, 30))
def test_damping_goes_straight_from_start_to_end(start, end, rounds):
    damping = Damping(start=start, end=end, rounds=rounds)
    assert damping.at(1) == start
    values = [damping.at(k) for k in range(1, rounds + 3)]
    low, high = min(start, end), max(start, end)
    assert all(low - 1e-12 <= value <= high + 1e-12 for value in values)
    if rounds > 1:
        assert damping.at(rounds) == pytest.approx(end)
        assert damping.at(rounds + 5) == pytest.approx(end)
        middle = (values[0] + values[rounds - 1]) / 2
        assert sum(values[:rounds]) / rounds == pytest.approx(middle)


NAN = float("nan")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, r"schedule\.rounds = 0"),
        ({"damping": 0.0}, r"schedule\.damping = 0\.0; it must be in \(0, 1\]"),
        ({"damping": 2.0}, r"schedule\.damping = 2\.0"),
        ({"damping": -0.1}, r"schedule\.damping = -0\.1"),
        ({"damping": NAN}, r"schedule\.damping = nan"),
        ({"parties_per_round": 0}, r"schedule\.parties_per_round = 0"),
        ({"tolerance": -1.0}, r"schedule\.tolerance = -1\.0"),
        ({"tolerance": NAN}, r"schedule\.tolerance = nan"),
        ({"tolerance": float("inf")}, r"schedule\.tolerance = inf"),
    ],
)
@pytest.mark.parametrize("kind", SCHEDULES)
def test_a_bad_number_is_refused_with_its_key_and_value(kind, options, message):
    with pytest.raises(ConfigError, match=message):
        SCHEDULES[kind](**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": 0.0, "end": 0.5, "rounds": 3}, r"damping\.start = 0\.0"),
        ({"start": 0.5, "end": 1.5, "rounds": 3}, r"damping\.end = 1\.5"),
        ({"start": 0.5, "end": NAN, "rounds": 3}, r"damping\.end = nan"),
        ({"start": 0.5, "end": 0.5, "rounds": 0}, r"damping\.rounds = 0"),
    ],
)
def test_a_bad_damping_schedule_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Damping(**options)


def test_asynchronous_runs_have_no_subsets():
    with pytest.raises(ConfigError, match="parties_per_round has no meaning"):
        Asynchronous(parties_per_round=2)


@pytest.mark.parametrize(
    ("schedule", "full", "second_order", "dimension", "parties", "expected"),
    [
        (Sequential(), False, False, 5, 10, 1.0),
        (Synchronous(), True, True, 5, 10, 1.0),
        (Synchronous(), True, False, 5, 10, 0.3),
        (Synchronous(), False, True, 1, 10, 1.0),
        (Synchronous(), False, False, 1, 10, 0.3),
        (Synchronous(), False, True, 5, 10, 0.3),
        (Synchronous(), False, True, 5, 2, 0.5),
        (Asynchronous(), False, True, 5, 10, 0.3),
        (Synchronous(damping=0.7), False, True, 5, 10, 0.7),
    ],
)
def test_damping_left_out_is_chosen(schedule, full, second_order, dimension, parties, expected):
    found = resolved_damping(
        schedule, parties=parties, dimension=dimension, full=full, second_order=second_order
    )
    assert found == expected
