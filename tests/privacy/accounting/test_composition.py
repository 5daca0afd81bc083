"""Any order, any grouping; more is never cheaper; and the ends of every scale."""

import math
import random
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import ConfigError
from tacit.privacy.accounting import (
    ACCOUNTANTS,
    Composition,
    delta,
    epsilon,
    epsilon_curve,
    supported,
)
from tacit.privacy.events import GaussianEvent, Poisson, WithoutReplacement

DELTA = 1e-5
BATCH = WithoutReplacement(batch=5, total=100)
RATE = Poisson(rate=0.05)


def event(noise=4.0, count=100, sampling=None, clip=1.0, nonnegative=False) -> GaussianEvent:
    return GaussianEvent(
        clip=clip, noise_sd=noise, count=count, sampling=sampling, nonnegative=nonnegative
    )


CASES = [
    (accountant, adjacency, sampling)
    for accountant in ACCOUNTANTS
    for adjacency in ("add-or-remove-one", "replace-one")
    for sampling in (None, RATE, BATCH)
    if supported(event(sampling=sampling), adjacency, accountant) is None
]
every_case = pytest.mark.parametrize(("accountant", "adjacency", "sampling"), CASES)


def test_the_supported_cases_are_these():
    assert [(*case[:2], type(case[2]).__name__) for case in CASES] == [
        ("pld", "add-or-remove-one", "NoneType"),
        ("pld", "add-or-remove-one", "Poisson"),
        ("pld", "replace-one", "NoneType"),
        ("pld", "replace-one", "Poisson"),
        ("pld", "replace-one", "WithoutReplacement"),
        ("rdp", "add-or-remove-one", "NoneType"),
        ("rdp", "add-or-remove-one", "Poisson"),
        ("rdp", "replace-one", "NoneType"),
        ("rdp", "replace-one", "WithoutReplacement"),
        ("moments", "add-or-remove-one", "NoneType"),
        ("moments", "add-or-remove-one", "Poisson"),
        ("moments", "replace-one", "NoneType"),
        ("strong", "add-or-remove-one", "NoneType"),
        ("strong", "add-or-remove-one", "Poisson"),
        ("strong", "replace-one", "NoneType"),
        ("strong", "replace-one", "Poisson"),
        ("strong", "replace-one", "WithoutReplacement"),
    ]


@every_case
def test_order_and_grouping_change_nothing(accountant, adjacency, sampling):
    parts = [
        event(4.0, 3, sampling),
        event(6.0, 2, sampling),
        event(9.0, 1),
        event(2.0, 4, sampling, clip=0.3),
    ]
    singles = [event(p.noise_sd, 1, p.sampling, p.clip) for p in parts for _ in range(p.count)]
    random.Random(0).shuffle(singles)
    grouped = epsilon(parts, DELTA, adjacency, accountant=accountant)
    assert epsilon(singles, DELTA, adjacency, accountant=accountant) == grouped
    streamed = Composition(adjacency=adjacency, accountant=accountant)
    for single in singles:
        streamed = streamed.add(single)
    assert streamed.epsilon(DELTA) == grouped
    # The unit of clip and noise does not matter either.
    scaled = [event(p.noise_sd * 8, p.count, p.sampling, p.clip * 8) for p in parts]
    assert epsilon(scaled, DELTA, adjacency, accountant=accountant) == grouped


@every_case
def test_delta_inverts_epsilon(accountant, adjacency, sampling):
    events = [event(3.0, 30, sampling), event(5.0, 10)]
    for target in (1e-9, 1e-5, 1e-2):
        eps = epsilon(events, target, adjacency, accountant=accountant)
        again = delta(events, eps, adjacency, accountant=accountant)
        assert again == pytest.approx(target, rel=1e-4)


@every_case
@settings(max_examples=5)
@given(noise=st.floats(0.8, 20.0), count=st.integers(1, 2000))
def test_less_noise_and_more_releases_cost_more(accountant, adjacency, sampling, noise, count):
    here = epsilon([event(noise, count, sampling)], DELTA, adjacency, accountant=accountant)
    less = epsilon([event(noise * 0.9, count, sampling)], DELTA, adjacency, accountant=accountant)
    more = epsilon([event(noise, count * 2, sampling)], DELTA, adjacency, accountant=accountant)
    extra = [event(noise, count, sampling), event(50.0, 1)]
    assert here <= less * (1 + 1e-3)
    assert here <= more * (1 + 1e-3)
    assert here <= epsilon(extra, DELTA, adjacency, accountant=accountant) * (1 + 1e-3)


@settings(max_examples=6)
@given(batch=st.integers(1, 90), noise=st.floats(1.0, 10.0))
def test_larger_batches_cost_more(batch, noise):
    def cost(size, adjacency, kind):
        sampling = (
            WithoutReplacement(batch=size, total=100)
            if kind == "fixed"
            else Poisson(rate=size / 100)
        )
        return epsilon([event(noise, 50, sampling)], DELTA, adjacency)

    for adjacency, kind in [
        ("replace-one", "fixed"),
        ("replace-one", "poisson"),
        ("add-or-remove-one", "poisson"),
    ]:
        less = cost(batch, adjacency, kind)
        assert less <= cost(batch + 5, adjacency, kind) * (1 + 1e-3)
        assert less <= cost(100, adjacency, kind) * (1 + 1e-3)
    # A fixed batch costs at least what a Poisson batch does, under the same adjacency.
    assert cost(batch, "replace-one", "poisson") <= cost(batch, "replace-one", "fixed") * (1 + 1e-3)


@settings(max_examples=6)
@given(noise=st.floats(1.0, 10.0), count=st.integers(1, 3000), rate=st.floats(1e-3, 0.5))
def test_accountants_are_ordered(noise, count, rate):
    events = [event(noise, count, Poisson(rate=rate))]
    pld, rdp, moments, strong = (
        epsilon(events, DELTA, "add-or-remove-one", accountant=name) for name in ACCOUNTANTS
    )
    assert pld <= rdp * (1 + 1e-3)
    assert rdp <= moments * (1 + 1e-3)
    assert pld <= strong * (1 + 1e-3)


def test_nonnegative_vectors_cost_less_under_substitution_only():
    for sampling in (None, RATE, BATCH):
        plain = epsilon([event(sampling=sampling)], DELTA, "replace-one")
        tighter = epsilon([event(sampling=sampling, nonnegative=True)], DELTA, "replace-one")
        assert tighter < 0.8 * plain
    for sampling in (None, RATE):
        plain = epsilon([event(sampling=sampling)], DELTA, "add-or-remove-one")
        same = epsilon([event(sampling=sampling, nonnegative=True)], DELTA, "add-or-remove-one")
        assert same == plain


@every_case
def test_a_full_batch_is_no_sampling(accountant, adjacency, sampling):
    full = (
        Poisson(rate=1.0)
        if adjacency == "add-or-remove-one"
        else WithoutReplacement(batch=9, total=9)
    )
    sampled = epsilon([event(sampling=full)], DELTA, adjacency, accountant=accountant)
    assert sampled == epsilon([event()], DELTA, adjacency, accountant=accountant)


@every_case
@pytest.mark.parametrize(("noise", "count"), [(1e-9, 1), (0.05, 1), (1.0, 10**6), (1e6, 10**6)])
def test_extremes_are_answered(accountant, adjacency, sampling, noise, count):
    found = epsilon([event(noise, count, sampling)], DELTA, adjacency, accountant=accountant)
    assert found >= 0
    if noise == 1e6:
        assert found < 0.5
    if noise == 1e-9:
        assert found > 1e6
    assert 0 <= delta([event(noise, count, sampling)], 1.0, adjacency, accountant=accountant) <= 1


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_rare_units_in_a_million_steps(accountant):
    events = [event(1.0, 10**6, Poisson(rate=1e-6))]
    found = epsilon(events, DELTA, "add-or-remove-one", accountant=accountant)
    # A central limit (Bu et al. 2020): μ = q √(T (e − 1)) = 0.00131, ε = 0.00268.
    assert 0.00260 <= found <= (0.0030 if accountant == "pld" else 0.5)


def test_a_delta_below_rounding_has_no_epsilon():
    assert epsilon([event(sampling=RATE)], 1e-13, "add-or-remove-one") == math.inf
    assert epsilon([event()], 1e-14, "add-or-remove-one") < math.inf


@pytest.mark.parametrize("bad", [1.0, -1e-5, 2.0, math.nan, math.inf])
def test_bad_deltas_are_refused_in_one_line(bad):
    for accountant in ACCOUNTANTS:
        with pytest.raises(ConfigError, match=r"^delta = .*0 or more and less than 1$"):
            epsilon([event()], bad, "add-or-remove-one", accountant=accountant)


@pytest.mark.parametrize("bad", [-0.1, math.nan, math.inf])
def test_bad_epsilons_are_refused(bad):
    with pytest.raises(ConfigError, match=r"^epsilon = "):
        delta([event()], bad, "add-or-remove-one")


def test_what_is_refused_says_what_to_do():
    for accountant in ACCOUNTANTS:
        reason = supported(event(sampling=BATCH), "add-or-remove-one", accountant)
        assert reason is not None
        assert "use Poisson sampling" in reason
        with pytest.raises(ConfigError, match="use Poisson sampling"):
            epsilon([event(sampling=BATCH)], DELTA, "add-or-remove-one", accountant=accountant)
    for accountant, sampling in [("rdp", RATE), ("moments", RATE), ("moments", BATCH)]:
        with pytest.raises(ConfigError, match="use 'pld'"):
            epsilon([event(sampling=sampling)], DELTA, "replace-one", accountant=accountant)
    with pytest.raises(ConfigError, match="choose one of pld, rdp"):
        epsilon([event()], DELTA, "add-or-remove-one", accountant="magic")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="adjacency = 'replace'"):
        epsilon([event()], DELTA, "replace")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="whole number"):
        epsilon([event(count=1.5)], DELTA, "add-or-remove-one")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="is not an event"):
        epsilon(["laplace"], DELTA, "add-or-remove-one")  # type: ignore[list-item]


def test_nothing_released_costs_nothing():
    assert epsilon([], DELTA, "replace-one") == 0
    assert delta([], 0.0, "replace-one") == 0


def test_a_curve_is_the_epsilon_of_every_round():
    round_ = [event(2.0, 5, RATE), event(9.0, 1)]
    curve = epsilon_curve(round_, 4, DELTA, "add-or-remove-one")
    assert curve == sorted(curve)
    assert curve == [epsilon(round_ * n, DELTA, "add-or-remove-one") for n in (1, 2, 3, 4)]
    assert epsilon_curve(round_, [4, 1], DELTA, "add-or-remove-one") == [curve[3], curve[0]]
    with pytest.raises(ConfigError, match="times = 0"):
        epsilon_curve(round_, [0], DELTA, "add-or-remove-one")


def test_import_is_light():
    code = (
        "import sys, tacit.privacy.accounting as a; from tacit.privacy.events import GaussianEvent;"
        "e = GaussianEvent(clip=1.0, noise_sd=5.0);"
        "heavy = {'dp_accounting', 'scipy', 'jax'} & set(sys.modules);"
        "a.epsilon([e], 1e-5, 'add-or-remove-one');"
        "print(sorted(heavy), 'dp_accounting' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] False"
