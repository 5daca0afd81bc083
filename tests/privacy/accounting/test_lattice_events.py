"""Events on a lattice: the domination lemma against sums over all integers.

δ of two discrete Gaussians is Σ (P(x) − e^ε Q(x))₊, computed here term by term. It must never be
above what the accountants say of the event, and with coarse lattices it comes near.
"""

import math

import msgspec
import numpy as np
import pytest

from tacit.errors import ConfigError
from tacit.privacy.accounting import delta, epsilon
from tacit.privacy.accounting.steps import to_step
from tacit.privacy.events import (
    HIDDEN_UNITS,
    Adjacency,
    GaussianEvent,
    Lattice,
    Poisson,
    lattice_bits,
)

EPSILONS = (0.0, 0.1, 0.5, 1.0, 2.0, 4.0)
ROUND = 1.0 + 1e-9


def masses(centre, parameter, reach):
    x = np.arange(-reach, reach + 1)
    mass = np.exp(-0.5 * ((x - centre) / parameter) ** 2)
    return mass / mass.sum()


def event_of(moved, bits, numbers, rate=None):
    """One whose integer sensitivity is `moved` + √d: the part that is not rounding."""
    sampling = None if rate is None else Poisson(rate=rate)
    lattice = Lattice(numbers=numbers, bits=bits, units=1)
    return GaussianEvent(clip=float(moved), noise_sd=2.0**bits, sampling=sampling, lattice=lattice)


def exact_delta(first, second, eps):
    return float(np.sum(np.maximum(first - math.exp(eps) * second, 0.0)))


@pytest.mark.parametrize("bits", [2, 3, 5])
@pytest.mark.parametrize("moved", [0.5, 1, 3, 7])
def test_one_dimension(bits, moved):
    """Two float sums `moved` steps apart may be rounded to integers moved + 1 apart."""
    apart = math.floor(moved + 1)
    reach = 14 * 2**bits
    first, second = masses(0, 2.0**bits, reach), masses(apart, 2.0**bits, reach)
    event = event_of(moved, bits, 1)
    for eps in EPSILONS:
        worst = max(exact_delta(first, second, eps), exact_delta(second, first, eps))
        for accountant in ("pld", "rdp"):
            claimed = delta([event], eps, "add-or-remove-one", accountant=accountant)
            assert worst <= claimed * ROUND
        if bits == 5 and float(moved).is_integer() and worst > 1e-9:
            assert delta([event], eps, "add-or-remove-one") <= worst * 1.1
            # Power: with half of the sensitivity the claim is broken.
            less = msgspec.structs.replace(event, clip=0.3 * event.clip)
            low = Lattice(numbers=0, bits=bits, units=1)
            less = msgspec.structs.replace(less, lattice=low)
            assert delta([less], eps, "add-or-remove-one") < worst


@pytest.mark.parametrize("rate", [0.1, 0.5])
@pytest.mark.parametrize("moved", [1, 4])
def test_one_dimension_sampled(rate, moved):
    bits, reach = 2, 60
    none, there = masses(0, 4.0, reach), masses(moved + 1, 4.0, reach)
    mixed = (1 - rate) * none + rate * there
    event = event_of(moved, bits, 1, rate)
    for eps in EPSILONS:
        worst = max(exact_delta(mixed, none, eps), exact_delta(none, mixed, eps))
        assert worst <= delta([event], eps, "add-or-remove-one") * ROUND


@pytest.mark.parametrize("steps", [(1, 1), (2, 1), (0, 3)])
def test_two_dimensions_and_two_releases(steps):
    """Integers that moved by `steps`, twice: all sums of the two coordinates' losses."""
    bits, reach = 2, 44
    each = [(masses(0, 4.0, reach), masses(one, 4.0, reach)) for one in steps]
    first = np.multiply.outer(each[0][0], each[1][0]).ravel()
    second = np.multiply.outer(each[0][1], each[1][1]).ravel()
    # Each coordinate was rounded by up to ½ at either side: the float sums were this near.
    near = math.hypot(*steps) - math.sqrt(2.0)
    event = event_of(max(near, 1e-3), bits, 2)
    for eps in EPSILONS:
        assert exact_delta(first, second, eps) <= delta([event], eps, "add-or-remove-one") * ROUND
    if steps == (1, 1):  # two releases of one coordinate are one of two coordinates
        twice = msgspec.structs.replace(event_of(0.5, bits, 1), count=2)
        for eps in EPSILONS:
            claimed = delta([twice], eps, "add-or-remove-one")
            assert exact_delta(first, second, eps) <= claimed * ROUND


def test_the_sum_of_parties_is_within_the_bound_of_one_gaussian():
    """Σ of M discrete Gaussians against one of parameter √M s, the ratio as in `slack`."""
    bits, parties = 2, 3
    one = masses(0, 4.0, 60)
    total = one
    for _ in range(parties - 1):
        total = np.convolve(total, one)
    single = masses(0, 4.0 * math.sqrt(parties), len(total) // 2)
    inside = single > 1e-25
    gap = np.max(np.abs(np.log(total[inside] / single[inside])))
    slack = Lattice(numbers=1, bits=bits, parties=parties, units=1).slack
    assert gap <= slack + 1e-12
    assert Lattice(numbers=10**6, bits=20, parties=200, units=1).slack < 1e-20


def test_at_twenty_bits_the_lattice_costs_less_than_a_millionth():
    plain = GaussianEvent(clip=1.0, noise_sd=5.0, count=20)
    for numbers in (1, 100, 10**5):
        found = plain.on_lattice(numbers, units=1000)
        for adjacency in ("add-or-remove-one", "replace-one"):
            before = epsilon([plain], 1e-6, adjacency)
            after = epsilon([found], 1e-6, adjacency)
            assert before <= after <= before * (1 + 3e-6)
    # Where the number of units is secret, the rounding of 2²⁰ contributions is paid for.
    hidden = epsilon([plain.on_lattice(100, units=HIDDEN_UNITS)], 1e-6, "add-or-remove-one")
    before = epsilon([plain], 1e-6, "add-or-remove-one")
    assert 1e-4 < hidden / before - 1 < 1e-3


def test_rounding_of_long_sums_is_counted():
    """E = n(n + 3)·2⁻⁵³·C: nothing up to 2¹⁶ units, then what it is."""
    event = GaussianEvent(clip=2.0, noise_sd=3.0)
    cases: tuple[tuple[int, Adjacency, float], ...] = (
        (1000, "add-or-remove-one", 0.0),
        (60_000, "replace-one", 0.0),
        (10**6, "add-or-remove-one", 2 * 10**12 * 2.0**-53),
    )
    for units, adjacency, more in cases:
        found = event.on_lattice(1, units=units)
        step = to_step(found, adjacency)
        gained = step.far * 3.0 / event.sensitivity(adjacency) - 1.0
        assert gained == pytest.approx(more, abs=3e-6)
        assert gained >= more - 1e-6


def test_the_step_is_that_of_one_party():
    event = GaussianEvent(clip=1.0, noise_sd=6.0).on_lattice(10, parties=9, units=100)
    assert event.lattice is not None
    assert event.lattice.bits == lattice_bits(10, 2.0) == 23
    assert event.step == 2.0 * 2.0**-23
    with pytest.raises(ConfigError, match="no step"):
        _ = GaussianEvent(clip=1.0, noise_sd=1.0).step


def test_an_event_of_an_old_ledger_is_read_as_continuous():
    body = b'{"type":"gaussian","clip":1.0,"noise_sd":2.0,"count":3,"sampling":null,'
    event = msgspec.json.decode(body + b'"nonnegative":false}', type=GaussianEvent)
    assert event == GaussianEvent(clip=1.0, noise_sd=2.0, count=3)
    assert to_step(event, "replace-one").slack == 0.0
    again = event.on_lattice(7, parties=2, units=50)
    assert msgspec.json.decode(msgspec.json.encode(again), type=GaussianEvent) == again


@pytest.mark.parametrize("wrong", [{"bits": 1}, {"bits": 60}, {"parties": 0}, {"units": 0}])
def test_an_invalid_lattice_is_refused(wrong):
    with pytest.raises(ConfigError, match="Lattice"):
        Lattice(**{"numbers": 3, "bits": 20, "units": 5} | wrong)
