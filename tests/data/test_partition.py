import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tacit.data.partition import balanced, by_label, held_out_rows, skew
from tacit.errors import ConfigError, DataError


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def assert_each_row_once(rows: dict[str, np.ndarray], records: int) -> None:
    everything = np.concatenate(list(rows.values()))
    assert np.array_equal(np.sort(everything), np.arange(records))


@given(records=st.integers(1, 400), parties=st.integers(1, 50), seed=st.integers(0, 9))
def test_balanced_deals_every_record_once_and_evenly(records, parties, seed):
    assume(parties <= records)
    rows = balanced(records, parties, rng(seed))
    assert_each_row_once(rows, records)
    sizes = [len(part) for part in rows.values()]
    assert len(sizes) == parties
    assert max(sizes) - min(sizes) <= 1


@given(
    y=st.lists(st.booleans(), min_size=2, max_size=400),
    parties=st.integers(2, 20),
    size_skew=st.floats(0, 0.99),
    label_skew=st.floats(-4, 1),
)
def test_skew_deals_every_record_once_or_refuses(y, parties, size_skew, label_skew):
    values = np.array(y, dtype=np.float64)
    try:
        rows, _ = skew(
            values,
            parties=parties,
            size_skew=size_skew,
            label_skew=label_skew,
            binary=True,
            rng=rng(),
        )
    except (ConfigError, DataError):
        return
    assert_each_row_once(rows, len(values))
    small = [part for name, part in rows.items() if name.startswith("small")]
    large = [part for name, part in rows.items() if name.startswith("large")]
    assert len(small) == parties // 2
    assert len({len(part) for part in small}) == 1
    assert len({values[part].sum() for part in small}) == 1
    assert max(map(len, large)) - min(map(len, large)) <= 1
    assert min(map(len, large)) >= len(small[0])


@given(labels=st.lists(st.sampled_from("abc"), min_size=1, max_size=100))
def test_by_label_keeps_labels_apart(labels):
    values = np.array(labels, dtype=object)
    order = sorted(set(labels))
    rows = by_label(values, order, "site")
    assert_each_row_once(rows, len(labels))
    assert list(rows) == order
    for name, part in rows.items():
        assert set(values[part]) == {name}


@given(records=st.integers(1, 300), fraction=st.floats(0, 0.99), seed=st.integers(0, 9))
def test_held_out_leaves_something_to_train_on(records, fraction, seed):
    held = held_out_rows(records, fraction, rng(seed))
    assert not held.all()
    assert abs(held.sum() - records * fraction) <= 1


@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=10), fraction=st.floats(0, 0.99))
def test_natural_parties_hold_out_their_own_share(sizes, fraction):
    groups = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    held = held_out_rows(sum(sizes), fraction, rng(), groups)
    for rows in groups:
        assert abs(len(rows) * fraction - held[rows].sum()) <= 1 + 1e-6
        assert not held[rows].all()


def test_a_thousand_tiny_sites_still_make_a_test_set():
    groups = list(np.arange(3000).reshape(1000, 3))
    held = held_out_rows(3000, 0.2, rng(), groups)
    assert held.sum() == 600
    assert max(held[rows].sum() for rows in groups) == 1


@pytest.mark.parametrize(
    ("size_skew", "label_skew", "small_size", "small_fraction", "large_fraction"),
    [(0.0, 0.0, 447, 0.5, 0.5), (0.75, 0.95, 111, 0.97, 0.43), (0.7, -0.5, 134, 0.25, 0.54)],
)
def test_tmlr_table_4_sizes_and_fractions(
    size_skew, label_skew, small_size, small_fraction, large_fraction
):
    """4,475 balanced labels over ten parties.

    The paper's λ_large (.4144, .5158) are of one random draw each; the arithmetic of the other
    columns gives .43 and .54.
    """
    y = np.arange(4475) % 2 * 1.0
    rows, _ = skew(
        y, parties=10, size_skew=size_skew, label_skew=label_skew, binary=True, rng=rng()
    )
    small = [part for name, part in rows.items() if name.startswith("small")]
    large = np.concatenate([part for name, part in rows.items() if name.startswith("large")])
    assert [len(part) for part in small] == [small_size] * 5
    for part in small:
        assert 1 - y[part].mean() == pytest.approx(small_fraction, abs=0.006)
    assert 1 - y[large].mean() == pytest.approx(large_fraction, abs=0.006)


def test_floors_are_those_of_the_formula_on_paper():
    rows, _ = skew(
        np.arange(1000) % 2 * 1.0,
        parties=10,
        size_skew=0.9,
        label_skew=0.0,
        binary=True,
        rng=rng(),
    )
    assert len(rows["small-1"]) == 10


def test_leftovers_are_said():
    y = np.arange(24421) % 4 // 3 * 1.0
    rows, notes = skew(y, parties=10, size_skew=0.75, label_skew=0.95, binary=True, rng=rng())
    assert_each_row_once(rows, len(y))
    assert "6 records left over by rounding went to large parties" in notes[0]


def test_size_skew_alone_serves_a_numeric_target():
    y = np.linspace(0, 1, 100)
    rows, _ = skew(y, parties=4, size_skew=0.5, label_skew=0.0, binary=False, rng=rng())
    assert [len(part) for part in rows.values()] == [12, 12, 38, 38]
    with pytest.raises(ConfigError, match="does not have two classes"):
        skew(y, parties=4, size_skew=0.5, label_skew=0.1, binary=False, rng=rng())


def test_impossible_partitions_are_refused():
    y = np.array([0.0] * 90 + [1.0] * 10)
    with pytest.raises(ConfigError, match=r"partition\.parties = 11; there are only 10"):
        balanced(10, 11, rng())
    with pytest.raises(ConfigError, match=r"label_skew = -20\.0.*majority"):
        skew(y, parties=4, size_skew=0.5, label_skew=-20.0, binary=True, rng=rng())
    with pytest.raises(ConfigError, match=r"label_skew = -9\.0.*minority label, .* have 10"):
        skew(y, parties=4, size_skew=0.5, label_skew=-9.0, binary=True, rng=rng())
    with pytest.raises(DataError, match='party "small-1" has no records'):
        skew(y, parties=4, size_skew=0.99, label_skew=0.0, binary=True, rng=rng())
    with pytest.raises(DataError, match=r'party "c".*has no records'):
        by_label(np.array(["a", "b"], dtype=object), ["a", "b", "c"], "site")
