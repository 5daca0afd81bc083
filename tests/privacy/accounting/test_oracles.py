"""Against closed forms, quadrature in one and two dimensions, and composition from below."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import brentq

from tacit.privacy.accounting import delta, epsilon
from tacit.privacy.accounting.moments import LAMBDAS, _log_moments
from tacit.privacy.accounting.profiles import hockey_stick
from tacit.privacy.accounting.steps import Step
from tacit.privacy.events import GaussianEvent, Poisson, WithoutReplacement
from tacit.testing.privacy_loss import compose_below, density

DELTA = 1e-5


def gaussian_delta(mu: float, eps: float) -> mpmath.mpf:
    """Balle and Wang 2018, Theorem 8, to 60 digits."""
    with mpmath.workdps(60):
        mu, eps = mpmath.mpf(mu), mpmath.mpf(eps)
        return mpmath.ncdf(mu / 2 - eps / mu) - mpmath.exp(eps) * mpmath.ncdf(-mu / 2 - eps / mu)


@pytest.mark.parametrize("noise", [0.05, 0.5, 3.0, 1e3, 1e6])
@pytest.mark.parametrize("target", [1e-12, 1e-5, 0.1])
def test_gaussian_is_exact(noise, target):
    event = GaussianEvent(clip=1.0, noise_sd=noise)
    found = epsilon([event], target, "add-or-remove-one")
    assert gaussian_delta(1 / noise, found) <= target
    if found > 0:
        assert gaussian_delta(1 / noise, found * (1 - 1e-6)) > target
        again = delta([event], found, "add-or-remove-one")
        assert again == pytest.approx(float(gaussian_delta(1 / noise, found)), rel=1e-6)


@pytest.mark.parametrize(
    ("adjacency", "distance"), [("add-or-remove-one", 1.0), ("replace-one", 2.0)]
)
def test_gaussian_releases_add_their_squares(adjacency, distance):
    events = [
        GaussianEvent(clip=1.0, noise_sd=4.0, count=3),
        GaussianEvent(clip=2.0, noise_sd=5.0),
    ]
    mu = distance * math.sqrt(3 / 16 + 4 / 25)
    exact = float(gaussian_delta(mu, 1.5))
    assert delta(events, 1.5, adjacency) == pytest.approx(exact, rel=1e-9)


def pairs(rate: float, noise: float) -> dict[str, tuple[GaussianEvent, str, list]]:
    """Events with the pairs of mixtures (in units of the noise) that attain their worst case."""
    c = 1 / noise
    out, with_unit = [(1.0, 0.0)], [(1 - rate, 0.0), (rate, c)]
    minus, plus = [(1 - rate, 0.0), (rate, -c)], [(1 - rate, 0.0), (rate, c)]
    swapped = [(1 - rate, 0.0), (rate, 2 * c)]
    total = round(1 / rate)

    def event(sampling):
        return GaussianEvent(clip=1.0, noise_sd=noise, sampling=sampling)

    poisson, fixed = Poisson(rate=rate), WithoutReplacement(batch=1, total=total)
    return {
        "poisson": (
            event(poisson),
            "add-or-remove-one",
            [(with_unit, out), (out, with_unit)],
        ),
        "poisson-replace-one": (event(poisson), "replace-one", [(minus, plus)]),
        "without-replacement": (event(fixed), "replace-one", [(swapped, out), (out, swapped)]),
    }


@pytest.mark.parametrize("scheme", ["poisson", "poisson-replace-one", "without-replacement"])
@pytest.mark.parametrize(("rate", "noise"), [(0.1, 1.0), (0.5, 0.7), (0.01, 2.0)])
@pytest.mark.parametrize("eps", [0.0, 0.05, 0.5])
def test_one_step_equals_quadrature(scheme, rate, noise, eps):
    event, adjacency, family = pairs(rate, noise)[scheme]

    def stick(p, q):
        def gap(x):
            return float(density(p, x) - math.exp(eps) * density(q, x))

        ends = -12.0, 12 + 2 / noise
        if gap(ends[0]) * gap(ends[1]) >= 0:  # nowhere, or everywhere, worth taking
            return max(0.0, 1 - math.exp(eps)) if gap(ends[0]) < 0 else math.nan
        middle = brentq(gap, *ends, xtol=1e-14)
        taken = (ends[0], middle) if gap(ends[0]) > 0 else (middle, ends[1])
        return quad(gap, *taken, limit=400, epsabs=1e-14)[0]

    exact = max(stick(p, q) for p, q in family)
    found = delta([event], eps, adjacency)
    assert exact - 1e-13 <= found <= exact * 1.001 + 1e-9


@pytest.mark.parametrize("scheme", ["poisson", "poisson-replace-one", "without-replacement"])
@pytest.mark.parametrize(("rate", "noise", "count"), [(0.1, 1.0, 50), (0.02, 1.5, 400)])
def test_never_below_an_independent_composition(scheme, rate, noise, count):
    event, adjacency, family = pairs(rate, noise)[scheme]
    event = GaussianEvent(clip=1.0, noise_sd=noise, count=count, sampling=event.sampling)
    found = epsilon([event], DELTA, adjacency)

    lost = [compose_below([(pair, count)], grid=2e-5, size=2**20) for pair in family]

    def below(eps):
        return max(one.delta(eps) for one in lost)

    assert below(found) <= DELTA
    if scheme != "without-replacement":  # whose symmetric bound is not attained by a fixed pair
        assert below(found * 0.98) > DELTA


def test_mixed_events_against_an_independent_composition():
    sampled, _, (remove, add) = pairs(0.1, 1.0)["poisson"]
    other, _, (remove_other, add_other) = pairs(0.02, 0.8)["poisson"]
    plain = ([(1.0, 0.0)], [(1.0, 0.25)])
    events = [sampled] * 20 + [GaussianEvent(clip=1.0, noise_sd=4.0)] * 3 + [other] * 40
    found = epsilon(events, DELTA, "add-or-remove-one")

    removed = compose_below([(remove, 20), (plain, 3), (remove_other, 40)])
    added = compose_below([(add, 20), (plain, 3), (add_other, 40)])

    def below(eps):
        return max(removed.delta(eps), added.delta(eps))

    assert below(found) <= DELTA < below(found * 0.99)


vectors = st.tuples(st.floats(0, 1), st.floats(0, 2 * math.pi)).map(
    lambda polar: polar[0] * np.array([math.cos(polar[1]), math.sin(polar[1])])
)


@given(
    vectors,
    vectors,
    vectors,
    st.floats(0.05, 0.95),
    st.sampled_from([0.4, 1.0, 2.5]),
    st.floats(0, 2),
)
def test_the_pair_dominates_in_the_plane(unit, other, batchmate, rate, scale, eps):
    """Lemma 1: no three vectors of norm ≤ C do worse than the pair on the line, at any α ≥ 1."""

    def stick(u, v, w):
        axis = np.linspace(-scale - 6, scale + 6, 241)
        x, y = np.meshgrid(axis, axis)

        def bell(m):
            return np.exp(-((x - scale * m[0]) ** 2 + (y - scale * m[1]) ** 2) / 2) / (2 * np.pi)

        gap = (
            (1 - rate) * bell(w)
            + rate * bell(u)
            - math.exp(eps) * ((1 - rate) * bell(w) + rate * bell(v))
        )
        return float(np.maximum(gap, 0).sum() * (axis[1] - axis[0]) ** 2)

    def line(far, near):
        return float(hockey_stick(np.array([eps]), rate, far * scale, near * scale)[0]) + 1e-4

    nothing = np.zeros(2)
    assert stick(unit, other, nothing) <= line(2.0, 1.0)
    assert stick(unit, other, batchmate) <= line(2.0, 2.0)
    assert stick(unit, nothing, nothing) <= line(1.0, 1.0)
    assert stick(nothing, unit, nothing) <= line(1.0, 0.0)
    unit, other, batchmate = np.abs(unit), np.abs(other), np.abs(batchmate)
    assert stick(unit, other, nothing) <= line(math.sqrt(2), 1.0)
    assert stick(unit, other, batchmate) <= line(math.sqrt(2), math.sqrt(2))


@pytest.mark.parametrize(
    ("far", "near"), [(1.0, 1.0), (0.2, 0.2), (1.4, 1.0), (3.0, 3.0), (2.0, 1.0)]
)
@pytest.mark.parametrize("rate", [0.01, 0.3, 0.9])
def test_the_symmetric_profile_is_a_profile(far, near, rate):
    """Convex and decreasing in α, between (1−α)₊ and 1, above both directions: it composes."""
    alpha = np.concatenate([np.linspace(0.02, 1, 400, endpoint=False), np.linspace(1, 20, 2000)])

    def stick(a, near):
        return hockey_stick(np.log(a), rate, far, near)

    def all_alpha(above, below):
        small, large = alpha[alpha < 1], alpha[alpha >= 1]
        return np.concatenate([1 - small + small * stick(1 / small, below), stick(large, above)])

    profile = all_alpha(near, near)
    slopes = np.diff(profile) / np.diff(alpha)
    assert np.all(np.diff(slopes) >= -1e-12)
    assert np.all(slopes <= 1e-12)
    assert np.all((profile >= np.maximum(0, 1 - alpha) - 1e-15) & (profile <= 1))
    for above, below in [(near, far - near), (far - near, near)]:
        assert np.all(profile >= all_alpha(above, below) - 1e-14)


@pytest.mark.parametrize(("sigma", "rate"), [(0.5, 0.3), (2.0, 0.05), (0.1, 0.5), (5.0, 1e-3)])
@pytest.mark.parametrize("moment", [1, 7, 32])
def test_moments_equal_mpmath(sigma, rate, moment):
    """E₂ by the binomial sum, E₁ by adaptive quadrature in 50 digits."""
    with mpmath.workdps(50):
        s, q = mpmath.mpf(sigma), mpmath.mpf(rate)
        second = mpmath.fsum(
            mpmath.binomial(moment + 1, k)
            * (1 - q) ** (moment + 1 - k)
            * q**k
            * mpmath.exp(mpmath.mpf(k * (k - 1)) / (2 * s**2))
            for k in range(moment + 2)
        )
        edges = [-12 * s, -3 * s, 0, min(0.5, 3 * s), 3 * s, 12 * s]
        first = mpmath.quad(
            lambda x: (
                mpmath.npdf(x, 0, s) * (1 - q + q * mpmath.exp((2 * x - 1) / (2 * s**2))) ** -moment
            ),
            sorted(set(edges)),
        )
        exact = float(mpmath.log(max(first, second)))
    found = _log_moments(Step("poisson", rate, 1 / sigma, 1 / sigma, True))
    assert found[list(LAMBDAS).index(moment)] == pytest.approx(exact, rel=1e-9, abs=2e-12)
