"""Every family passes `check_family`, with SciPy's densities; wrong families do not."""

import functools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import digamma

from tacit.errors import ConfigError
from tacit.expfam import (
    FAMILIES,
    Dirichlet,
    FullGaussian,
    Gamma,
    MeanFieldGaussian,
    make_family,
)
from tacit.expfam.digamma import inverse_digamma
from tacit.testing import check_family

D = 3


def normal_log_density(theta, *, mean, sd):
    return stats.norm.logpdf(theta, mean, sd).sum(axis=-1)


def full_log_density(theta, *, mean, covariance):
    return stats.multivariate_normal(mean, covariance).logpdf(theta)


def dirichlet_log_density(theta, *, concentration):
    return stats.dirichlet(concentration).logpdf((theta / theta.sum(-1, keepdims=True)).T)


def gamma_log_density(theta, *, shape, rate):
    return stats.gamma.logpdf(theta, shape, scale=1 / rate).sum(axis=-1)


def bernoulli_log_density(theta, *, probability):
    return stats.bernoulli.logpmf(theta, probability).sum(axis=-1)


def categorical_log_density(theta, *, probability):
    return stats.multinomial(1, probability / probability.sum()).logpmf(theta)


LOG_DENSITY = {
    "mean-field": normal_log_density,
    "full": full_log_density,
    "dirichlet": dirichlet_log_density,
    "gamma": gamma_log_density,
    "bernoulli": bernoulli_log_density,
    "categorical": categorical_log_density,
}


def numbers(low, high, size=D):
    return st.lists(st.floats(low, high), min_size=size, max_size=size).map(np.array)


def spread(values):
    """A covariance from any nine numbers: eigenvalues within a factor of a few hundred."""
    root = np.asarray(values).reshape(D, D)
    return root @ root.T + 0.1 * np.eye(D)


USUAL = {
    "mean-field": st.fixed_dictionaries({"mean": numbers(-5, 5), "sd": numbers(0.05, 5)}),
    "full": st.fixed_dictionaries(
        {"mean": numbers(-5, 5), "covariance": numbers(-2, 2, D * D).map(spread)}
    ),
    "dirichlet": st.fixed_dictionaries({"concentration": numbers(0.3, 40)}),
    "gamma": st.fixed_dictionaries({"shape": numbers(0.3, 40), "rate": numbers(0.1, 20)}),
    "bernoulli": st.fixed_dictionaries({"probability": numbers(0.05, 0.95)}),
    "categorical": st.fixed_dictionaries(
        {"probability": numbers(0.1, 1.0).map(lambda values: values / values.sum())}
    ),
}


@pytest.mark.parametrize("kind", FAMILIES)
@settings(max_examples=3)
@given(data=st.data())
def test_family_conforms(kind, data):
    family = make_family(kind, D)
    members = [family.natural(**data.draw(USUAL[kind])) for _ in range(2)]
    check_family(family, members, log_density=LOG_DENSITY[kind])


def members_of(family):
    rng = np.random.default_rng(1)
    usual = {
        "mean-field": lambda: {"mean": rng.normal(size=D), "sd": rng.uniform(0.5, 2, D)},
        "full": lambda: {"mean": rng.normal(size=D), "covariance": spread(rng.normal(size=9))},
        "dirichlet": lambda: {"concentration": rng.uniform(0.5, 5, D)},
        "gamma": lambda: {"shape": rng.uniform(0.5, 5, D), "rate": rng.uniform(0.5, 5, D)},
    }[family.kind]
    return [family.natural(**usual()) for _ in range(2)]


def mutant(base, **overrides):
    return type("Mutant", (base,), overrides)(D)


def wide_sample(self, key, natural, shape=()):
    usual = self.usual(natural)
    wide = self.natural(mean=usual["mean"], sd=1.03 * usual["sd"])
    return MeanFieldGaussian.sample(self, key, wide, shape)


def one_draw(self, key, natural, shape=()):
    import jax

    usual = self.usual(natural)
    return usual["mean"] + usual["sd"] * np.asarray(jax.random.normal(key, (*shape, 1)))


def one_uniform(self, key, natural, shape=()):
    """Draw all coordinates at the same quantile of their distributions."""
    import jax

    usual = self.usual(natural)
    place = np.asarray(jax.random.uniform(key, (*shape, 1)))
    return stats.gamma.ppf(place, usual["shape"], scale=1 / usual["rate"])


def swapped_kl(self, first, second):
    return Dirichlet.kl(self, second, first)


def shifted_log_partition(self, natural):
    return Gamma.log_partition(self, natural) + 0.1


def log_partition_without_determinant(self, natural):
    return 0.5 * natural["linear"] @ self.usual(natural)["mean"]


def mean_without_variance(self, natural):
    location = self.usual(natural)["mean"]
    return {"linear": location, "quadratic": 1.5 * location**2}


def from_second_moment(self, mean):
    return self.natural(mean=mean["linear"], sd=np.sqrt(mean["quadratic"]))


def single_precision(self, *, mean, sd):
    natural = MeanFieldGaussian.natural(self, mean=mean, sd=sd)
    return {name: np.asarray(value, np.float32) for name, value in natural.items()}


def says_proper_of_nan(_, natural):
    return not np.any(np.asarray(natural["linear"]) >= 0)


def constant(value):
    return lambda *_: value


MUTANTS = {
    "sampling": mutant(MeanFieldGaussian, sample=wide_sample),
    "sampling: covariance of T": mutant(MeanFieldGaussian, sample=one_draw),
    "one quantile": mutant(Gamma, sample=one_uniform),
    "gradient of log_partition": mutant(
        FullGaussian, log_partition=log_partition_without_determinant
    ),
    "log-density": mutant(Gamma, log_partition=shifted_log_partition),
    "base measure": mutant(MeanFieldGaussian, expected_log_base=constant(0.0)),
    "kl against Monte Carlo": mutant(Dirichlet, kl=swapped_kl),
    "natural -> mean -> natural": mutant(MeanFieldGaussian, mean=mean_without_variance),
    "is_proper: accepts nan": mutant(Gamma, is_proper=says_proper_of_nan),
    "is_proper: refuses": mutant(Gamma, is_proper=constant(False)),
    "zero": mutant(Dirichlet, zero=lambda _: {"log": np.ones(D)}),
    "inverse of mean": mutant(MeanFieldGaussian, from_mean=from_second_moment),
    "float64": mutant(MeanFieldGaussian, natural=single_precision),
    "entropy against Monte Carlo": mutant(FullGaussian, entropy=constant(1.0)),
}
REASONS = {"base measure": "log-density", "inverse of mean": "natural -> mean -> natural"}
REASONS |= {"one quantile": "sampling: covariance of T"}
REASONS |= {"float64": "natural -> usual -> natural"}


@functools.cache
def check_the_honest(kind):
    family = make_family(kind, D)
    check_family(family, members_of(family), log_density=LOG_DENSITY[kind])


@pytest.mark.parametrize("what", MUTANTS)
def test_a_wrong_family_does_not_conform(what):
    family = MUTANTS[what]
    check_the_honest(family.kind)
    members = members_of(make_family(family.kind, D))
    with pytest.raises(AssertionError, match=REASONS.get(what, what)):
        check_family(family, members, log_density=LOG_DENSITY[family.kind])


def test_check_family_wants_something_to_compare():
    with pytest.raises(AssertionError, match="at least two"):
        check_family(Gamma(D), members_of(Gamma(D))[:1])


@pytest.mark.parametrize(
    ("family", "natural"),
    [
        (MeanFieldGaussian(1), {"linear": np.zeros(1), "quadratic": np.zeros(1)}),
        (MeanFieldGaussian(1), {"linear": np.zeros(1), "quadratic": np.array([1e-300])}),
        (FullGaussian(2), {"linear": np.zeros(2), "quadratic": -np.ones((2, 2))}),
        (FullGaussian(2), {"linear": np.zeros(2), "quadratic": np.diag([-1.0, 1e-9])}),
        (Dirichlet(2), {"log": np.array([0.0, -1.0])}),
        (Gamma(1), {"log": np.array([-1.0]), "linear": np.array([-1.0])}),
        (Gamma(1), {"log": np.array([0.0]), "linear": np.array([0.0])}),
    ],
)
def test_the_boundary_is_improper(family, natural):
    assert not family.is_proper(natural)


@pytest.mark.parametrize(
    ("family", "natural"),
    [
        (MeanFieldGaussian(1), {"linear": np.array([1e6]), "quadratic": np.array([-1e-9])}),
        (FullGaussian(2), {"linear": np.zeros(2), "quadratic": np.array([[-1, 0.99], [0.99, -1]])}),
        (Dirichlet(2), {"log": np.array([0.0, -1 + 1e-9])}),
        (Gamma(1), {"log": np.array([-1 + 1e-9]), "linear": np.array([-1e-9])}),
    ],
)
def test_just_inside_the_boundary_is_proper(family, natural):
    assert family.is_proper(natural)


def test_only_on_bounded_sets_the_factor_of_one_is_proper():
    families = [make_family(kind, 2) for kind in FAMILIES]
    proper = [family.kind for family in families if family.is_proper(family.zero())]
    assert proper == ["dirichlet", "bernoulli", "categorical"]


@pytest.mark.parametrize("kind", ["bernoulli", "categorical"])
def test_large_log_odds_neither_overflow_nor_vanish(kind):
    family = make_family(kind, 2)
    for sign in (-1.0, 1.0):
        q = {"linear": np.full(family.shapes["linear"], sign * 800.0)}
        assert family.is_proper(q)
        assert np.isfinite(family.log_partition(q))
        assert np.all(np.isfinite(family.mean(q)["linear"]))
        assert float(family.entropy(q)) == pytest.approx(0.0, abs=1e-10)


@given(first=USUAL["full"], second=USUAL["full"])
def test_full_kl_is_the_textbook_formula(first, second):
    family = FullGaussian(D)
    found = float(family.kl(family.natural(**first), family.natural(**second)))
    inverse = np.linalg.inv(second["covariance"])
    shift = second["mean"] - first["mean"]
    logdet = np.linalg.slogdet(second["covariance"])[1] - np.linalg.slogdet(first["covariance"])[1]
    expected = 0.5 * (
        np.trace(inverse @ first["covariance"]) + shift @ inverse @ shift - D + logdet
    )
    assert found == pytest.approx(expected, rel=1e-8, abs=1e-8)


@given(usual=USUAL["mean-field"])
def test_mean_field_is_full_with_a_diagonal_covariance(usual):
    mean_field, full = MeanFieldGaussian(D), FullGaussian(D)
    one = mean_field.natural(**usual)
    two = full.natural(mean=usual["mean"], covariance=np.diag(usual["sd"] ** 2))
    assert mean_field.entropy(one) == pytest.approx(full.entropy(two), rel=1e-10)
    assert mean_field.log_partition(one) == pytest.approx(full.log_partition(two), rel=1e-10)
    np.testing.assert_allclose(mean_field.covariance(one), full.covariance(two), rtol=1e-10)


@pytest.mark.parametrize("kind", ["mean-field", "full"])
@settings(max_examples=10)
@given(data=st.data())
def test_free_parameters_describe_the_same_gaussian(kind, data):
    family = make_family(kind, D)
    q, other = (family.natural(**data.draw(USUAL[kind])) for _ in range(2))
    free = family.free(q)
    for name, value in family.from_free(free).items():
        np.testing.assert_allclose(value, q[name], rtol=1e-7, atol=1e-9)
    inner = sum(np.sum(other[name] * mean) for name, mean in family.mean(q).items())
    assert family.free_inner(free, other) == pytest.approx(inner, rel=1e-9)
    constant = 0.5 * D * (1 + np.log(2 * np.pi))
    assert family.free_entropy(free) + constant == pytest.approx(float(family.entropy(q)), abs=1e-8)
    x = np.array([[1.0, -2.0, 0.5], [0.0, 1.0, 1.0]])
    mean, variance = family.free_project(free, x)
    np.testing.assert_allclose(mean, x @ family.usual(q)["mean"], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(variance, np.diag(x @ family.covariance(q) @ x.T), rtol=1e-8)
    noise = np.eye(D)
    spread_of = family.free_draw(free, noise) - family.free_draw(free, np.zeros((D, D)))
    np.testing.assert_allclose(spread_of.T @ spread_of, family.covariance(q), rtol=1e-8, atol=1e-10)


def test_full_naturals_stay_symmetric_to_the_last_bit():
    family = FullGaussian(D)
    q = members_of(family)[0]
    covariance = family.usual(q)["covariance"]
    assert np.array_equal(covariance, covariance.T)
    assert np.array_equal(q["quadratic"], q["quadratic"].T)


@given(value=st.floats(1e-3, 1e6))
@example(value=1.0)
def test_inverse_digamma_undoes_digamma(value):
    assert inverse_digamma(digamma(np.array([value])))[0] == pytest.approx(value, rel=1e-9)


def test_families_are_equal_by_kind_and_dimension():
    assert FullGaussian(2) == FullGaussian(2) != FullGaussian(3)
    assert MeanFieldGaussian(2) != FullGaussian(2)
    assert len({Gamma(2), Gamma(2), Dirichlet(2)}) == 2


def test_an_unknown_family_is_named_with_the_known_ones():
    with pytest.raises(ConfigError, match="'fulll' is unknown; choose one of mean-field, full"):
        make_family("fulll", 2)
