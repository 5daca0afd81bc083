"""Count and Student-t regression by augmentation: densities, bounds, sums, sensitivity."""

import numpy as np
import pytest
from scipy import stats

from tacit.engines.execute import carry_out
from tacit.errors import ConfigError, DataError
from tacit.expfam import FullGaussian
from tacit.methods import ExpectedStatistics, NaturalVI, PrivateStatistics
from tacit.models import (
    LinearRegression,
    LogisticRegression,
    NegativeBinomialRegression,
    StudentRegression,
)
from tacit.plan.plan import make_plan
from tacit.results.statements import interval_note
from tacit.server.schedule import Synchronous
from tacit.testing import check_private_method

NAMES = ("intercept", "a")
COUNTS = NegativeBinomialRegression(NAMES, dispersion=1.5, max_count=200, prior_sd=2.0)
ROBUST = StudentRegression(NAMES, df=4.0, scale=0.7, prior_sd=5.0)
BOTH = {"negative-binomial": COUNTS, "student": ROBUST}
ETA = np.linspace(-3.0, 3.0, 41)


def density(model, eta, y):
    """SciPy's, in its own parametrisation."""
    if model is COUNTS:
        r, mean = model.dispersion, np.exp(eta)
        return stats.nbinom.logpmf(y, r, r / (r + mean))
    return stats.t.logpdf(y, model.df, eta, model.scale)


def outcomes(model, x, rng):
    eta = x @ np.array([0.4, 0.8])
    if model is COUNTS:
        return rng.poisson(np.exp(eta) * rng.gamma(1.5, 1 / 1.5, len(eta))).astype(float)
    return eta + model.scale * rng.standard_t(model.df, len(eta))


def parties_of(model, sizes=(150, 250, 200)):
    rng = np.random.default_rng(4)
    found = {}
    for place, size in enumerate(sizes):
        x = np.column_stack([np.ones(size), rng.uniform(-1.5, 1.5, size)])
        found[f"p{place}"] = {"x": x, "y": outcomes(model, x, rng)}
    return found


def learnt(model, parties, method, rounds=30):
    schedule = Synchronous(rounds=rounds, tolerance=0.0)
    return carry_out(make_plan(model, parties, method=method, schedule=schedule, family="full"))


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("y", [0.0, 2.0, 9.0])
def test_the_likelihood_is_scipys(kind, y):
    model = BOTH[kind]
    found = model.pointwise(ETA, np.full_like(ETA, y))
    np.testing.assert_allclose(found, density(model, ETA, y), rtol=1e-10)


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("y", [0.0, 2.0, 9.0])
def test_the_quadratic_touches_the_likelihood_and_stays_below(kind, y):
    """At a q that is nearly a point m, s·η − ½ωη² is tangent at m and nowhere above."""
    model, family, at = BOTH[kind], FullGaussian(2), 0.6
    q = family.natural(mean=np.array([at, 0.0]), covariance=1e-14 * np.eye(2))
    records = {"x": np.array([[1.0, 0.0]]), "y": np.array([y])}
    parts = model.working(family, q, records)
    slope, weight = float(parts.slope[0]), float(parts.weight[0])
    assert weight > 0

    def quadratic(eta):
        return slope * eta - 0.5 * weight * eta**2

    gap = density(model, ETA, y) - density(model, at, y) - (quadratic(ETA) - quadratic(at))
    assert np.min(gap) >= -1e-9
    step = 1e-5
    change = density(model, at + step, y) - density(model, at - step, y)
    np.testing.assert_allclose(slope - weight * at, change / (2 * step), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("kind", BOTH)
def test_federated_is_central_near_quadrature_and_narrower(kind):
    model, parties = BOTH[kind], parties_of(BOTH[kind])
    whole = {key: np.concatenate([one[key] for one in parties.values()]) for key in ("x", "y")}
    federated = learnt(model, parties, ExpectedStatistics()).posterior
    central = learnt(model, {"all": whole}, ExpectedStatistics()).posterior
    np.testing.assert_allclose(federated.mean, central.mean, rtol=1e-6)
    np.testing.assert_allclose(federated.sd, central.sd, rtol=1e-6)
    exact = learnt(model, parties, NaturalVI(), rounds=10).posterior
    assert np.all(np.abs(federated.mean - exact.mean) < 0.1 * exact.sd)
    assert np.all((0.6 * exact.sd < federated.sd) & (federated.sd < exact.sd))
    if model is ROBUST:  # Fisher information (ν + 1)/(ν + 3), against 1 of the expected weights
        np.testing.assert_allclose(federated.sd / exact.sd, np.sqrt(5 / 7), rtol=0.05)


@pytest.mark.parametrize("kind", BOTH)
def test_no_record_moves_a_release_further_than_is_charged(kind):
    assert check_private_method(PrivateStatistics(), BOTH[kind], rounds=1, reach=0.5) <= 1.0


def test_outliers_hardly_move_student_t_regression():
    parties = parties_of(ROBUST)
    spoilt = {name: {**one, "y": one["y"].copy()} for name, one in parties.items()}
    spoilt["p0"]["y"][:10] += 40.0
    normal = LinearRegression(NAMES, noise_sd=0.7, prior_sd=5.0)
    moved = {}
    for model in (ROBUST, normal):
        ends = [learnt(model, data, ExpectedStatistics()).posterior for data in (parties, spoilt)]
        moved[model.kind] = np.max(np.abs(ends[1].mean - ends[0].mean) / ends[0].sd)
    assert moved["student"] < 1.5
    assert moved["linear"] > 10.0


@pytest.mark.parametrize("model", [COUNTS, ROBUST, LogisticRegression(NAMES, prior_sd=1.0)])
def test_narrow_intervals_are_named(model):
    x = np.column_stack([np.ones(6), np.arange(6.0)])
    parties = {"one": {"x": x, "y": np.array([0.0, 1, 0, 1, 1, 0])}}
    note = interval_note(make_plan(model, parties, method=ExpectedStatistics()))
    assert note is not None
    assert "too narrow" in note
    assert interval_note(make_plan(model, parties, method=NaturalVI())) is None


@pytest.mark.parametrize(("kind", "wrong"), [("negative-binomial", 6.0), ("student", 0.5)])
def test_a_wrong_constant_is_seen_and_a_right_one_is_not(kind, wrong):
    right = BOTH[kind]
    keys = {"dispersion": wrong, "max_count": 200} if right is COUNTS else {"scale": wrong}
    records = parties_of(right, (4000,))["p0"]
    eta, weights = records["x"] @ np.array([0.4, 0.8]), np.ones(4000)
    for model, seen in ((right, False), (type(right)(NAMES, **keys), True)):
        sums = model.dispersion_sums(eta, np.zeros(4000), records["y"], weights)
        assert (float(sums.excess) ** 2 > 25.0 * float(sums.variance)) is seen
        if seen:
            assert float(sums.excess) > 0
            assert "too narrow" in model.dispersion_words(1.5)


def test_bad_settings_name_the_bound():
    with pytest.raises(ConfigError, match=r"model\.df = 2.*more than 2"):
        StudentRegression(NAMES, df=2.0)
    with pytest.raises(ConfigError, match=r"max_count is missing.*NegativeBinomialRegression"):
        NegativeBinomialRegression(NAMES, dispersion=1.0)
    with pytest.raises(DataError, match=r"whole numbers from 0 to 200.*'negative-binomial'"):
        COUNTS.check_records("north", {"y": np.array([0.5])})
    with pytest.raises(DataError, match=r"'north': y of record 2 is 0\.5, .* or use a model of"):
        COUNTS.check_records("north", {"y": np.array([1, 0.5])})
    with pytest.raises(DataError, match=r"y of record 1 is 201, .* or declare a larger max_count"):
        COUNTS.check_records("north", {"y": np.array([201.0])})
