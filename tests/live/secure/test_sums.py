"""Sums are those of the integers, whoever drops out, and masked vectors look uniform."""

import numpy as np
import pytest
from scipy import stats

from tacit.live.secure import server as server_side
from tacit.live.secure.checks import SecureSumError
from tacit.live.secure.shamir import PRIME, combine, lagrange_at_zero, split
from tacit.privacy.secure_sums import SecureSums


def plain(vectors, names):
    with np.errstate(over="ignore"):
        return sum((vectors[name].view(np.uint64) for name in names), np.uint64(0)).view(np.int64)


@pytest.mark.parametrize(("count", "length"), [(3, 10), (10, 100_000), (50, 1000)])
def test_sums_are_exact(count, length, make_group, vectors):
    group = make_group(count)
    sent = vectors(group.keys, length)
    assert np.array_equal(group.sum(sent), plain(sent, sent))
    again = vectors(group.keys, length, seed=1)
    assert np.array_equal(group.sum(again, 1, "r1"), plain(again, again))


@pytest.mark.parametrize(("count", "changes"), [
    (4, {"quorum": 3}), (6, {"threshold": 4}), (9, {"threshold": 6}),
    (12, {"colluding": 2, "threshold": 8, "quorum": 8}),
])  # fmt: skip
def test_random_dropouts_at_every_step(count, changes, make_group, vectors):
    """25 schedules each: up to n − q parties are killed before their vector, then down to t."""
    group = make_group(count, slots=25, **changes)
    rng = np.random.default_rng(count)
    names, terms = list(group.keys), group.terms
    for slot in range(25):
        sent = vectors(names, 5, seed=slot)
        drop = set(rng.permutation(names)[: rng.integers(0, len(names) - terms.quorum + 1)])
        left = [name for name in names if name not in drop]
        unsigned = set(rng.permutation(left)[: rng.integers(0, len(left) - terms.threshold + 1)])
        signed = [name for name in left if name not in unsigned]
        silent = set(rng.permutation(signed)[: rng.integers(0, len(signed) - terms.threshold + 1)])
        found = group.sum(sent, slot, f"r{slot}", drop=drop, unsigned=unsigned, silent=silent)
        assert np.array_equal(found, plain(sent, left))


def test_three_parties_tolerate_no_dropout(make_group, vectors):
    group = make_group(3)
    with pytest.raises(SecureSumError, match="at least 3"):
        group.sum(vectors(group.keys, 4), drop={"p000"})


def test_too_few_signatures_or_shares_unmask_nothing(make_group, vectors):
    group = make_group(7)
    sent = vectors(group.keys, 4)
    t = group.terms.threshold
    stay = list(group.keys)[: t - 1]
    gone = set(group.keys) - set(stay)
    with pytest.raises(SecureSumError, match="signatures"):
        group.sum(sent, unsigned=gone)
    group = make_group(7)
    with pytest.raises(SecureSumError, match="sets of shares"):
        group.sum(sent | vectors(group.keys, 4), silent=gone)


def test_masked_words_are_uniform_and_only_the_sum_depends_on_the_data(make_group):
    group = make_group(3)
    zeros = {name: np.zeros(350_000, np.int64) for name in group.keys}
    told = group.collect(zeros)
    words = np.concatenate(
        [np.frombuffer(group.server.slots[0].masked[name], "<u8") for name in told.names]
    )
    assert len(words) > 10**6
    raw = words.view(np.uint8)
    assert stats.chisquare(np.bincount(raw, minlength=256)).pvalue > 1e-4
    ones = np.unpackbits(raw).mean()
    assert abs(ones - 0.5) < 5 * 0.5 / np.sqrt(8 * len(raw))
    halves = (words >> np.uint64(32)).astype(float), (words & np.uint64(2**32 - 1)).astype(float)
    assert abs(np.corrcoef(*halves)[0, 1]) < 5 / np.sqrt(len(words))
    three = words.reshape(3, -1).astype(float)
    assert np.max(np.abs(np.corrcoef(three) - np.eye(3))) < 5 / np.sqrt(three.shape[1])


def test_shares_of_fewer_than_the_threshold_fit_every_secret():
    points = range(1, 8)
    shares = dict(zip(points, split(12345, points, 4), strict=True))
    for chosen in ((1, 2, 3, 4), (2, 4, 6, 7)):
        assert combine(shares, lagrange_at_zero(chosen)) == 12345
    # With three shares, any value at 0 is reached by one fourth share: nothing is excluded.
    weights = lagrange_at_zero((1, 2, 3, 4))
    for secret in (0, 1, PRIME - 1):
        rest = sum(weights[x] * shares[x] for x in (1, 2, 3))
        fourth = (secret - rest) * pow(weights[4], -1, PRIME) % PRIME
        assert combine({1: shares[1], 2: shares[2], 3: shares[3], 4: fourth}, weights) == secret


@pytest.mark.parametrize(("count", "colluding"), [
    (3, None), (4, None), (5, 2), (10, None), (57, 2), (57, None), (200, 20), (200, None),
])  # fmt: skip
def test_default_thresholds_are_valid(count, colluding):
    """`among` refuses what is not safe; a tenth may collude, and t is not the smallest safe one."""
    found = SecureSums(colluding=colluding).among(count)
    assert found.colluding == (colluding or max(1, count // 10))
    more = 2 * found.threshold - count - 1  # colluders from whom single messages are hidden
    assert more >= found.colluding
    if count == 10:
        assert (found.threshold, found.quorum, more) == (7, 8, 3)


def test_a_late_vector_is_refused_and_the_sum_stands(make_group, vectors):
    group = make_group(8)
    sent = vectors(group.keys, 6)
    late = "p002"
    found = group.sum(sent, drop={late})
    with pytest.raises(SecureSumError, match="late"):
        server_side.take_masked(group.server, group.mask(late, 0, "r0", sent[late]))
    assert np.array_equal(found, plain(sent, set(sent) - {late}))
