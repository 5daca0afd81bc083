"""check_model on models of positive numbers: right ones pass, versions with one error do not."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.arrays import namespace, special
from tacit.errors import ConfigError, DataError
from tacit.models import (
    GeneralisedLinear,
    LinearRegression,
    LogisticRegression,
    Model,
    SoftmaxRegression,
)
from tacit.models.glm.outcomes import PredictorLaw
from tacit.models.scores import ScoreLikelihood
from tacit.models.simulate import at_most
from tacit.testing import check_model
from tacit.testing.model_abilities import ABILITY_CHECKS
from tacit.testing.model_grids import grid_of
from tacit.testing.models import _PARTS, _subject

NAMES = ("intercept", "a")
FAR = 30.0


class ExponentialRegression(GeneralisedLinear):
    """y ~ Exponential with mean exp(x·θ). The density is also finite for y < 0."""

    kind = "exponential"
    output = "other"
    serves = ("gaussian",)
    largest = 20.0
    shape = 1.0

    def __init__(self, names=NAMES):
        super().__init__(names, 0.0, 1.0, None)

    def check_records(self, party, records):
        if np.any(np.asarray(records["y"]) < 0):
            raise DataError(f"party {party!r}: y is negative")

    def pointwise(self, eta, y):
        xp = namespace(eta, y)
        inside = xp.clip(eta, -FAR, FAR)
        return -eta - y * xp.exp(-inside) * (1.0 + inside - eta)

    def inverse_link(self, eta):
        xp = namespace(eta)
        return xp.exp(xp.clip(eta, -FAR, FAR))

    def data_predictor(self, y):
        return namespace(y).log(y + 0.3)

    def score_likelihood(self):
        return ExponentialScore(self.largest)

    def outcome_law(self):
        return ExponentialLaw(self.layout, self.pointwise)

    def simulate(self, theta, records, rng, bounds=None):
        del bounds
        return rng.exponential(self.inverse_link(at_most(records["x"] @ theta, 1.0)))

    def draw_outcomes(self, theta, means, records, seed):
        del theta, records
        return np.random.default_rng(seed).exponential(means)


class Strict(ExponentialRegression):
    """The density is 0 for y < 0."""

    def pointwise(self, eta, y):
        xp = namespace(eta, y)
        return xp.where(y >= 0, super().pointwise(eta, xp.maximum(y, 0.0)), -xp.inf)


class Unchecked(ExponentialRegression):
    """The model does not refuse y < 0."""

    def check_records(self, party, records):
        pass


class GammaRegression(ExponentialRegression):
    """y ~ Gamma(¼) with mean exp(x·θ). The density is infinite at y = 0."""

    shape = 0.25

    def pointwise(self, eta, y):
        xp, k = namespace(eta, y), self.shape
        inside = xp.clip(eta, -FAR, FAR)
        slope = k * y * xp.exp(-inside) * (1.0 + inside - eta)
        logs = (k - 1.0) * xp.log(y) + k * (np.log(k) - eta) - slope
        return logs - special(eta).gammaln(k)

    score_likelihood = outcome_law = None

    def simulate(self, theta, records, rng, bounds=None):
        del bounds
        mean = self.inverse_link(at_most(records["x"] @ theta, 1.0))
        return np.maximum(rng.gamma(self.shape, mean / self.shape), 1e-300)

    def draw_outcomes(self, theta, means, records, seed):
        del theta, records
        return np.random.default_rng(seed).gamma(self.shape, means / self.shape)


class ExponentialLaw(PredictorLaw):
    def quantile(self, parameters, place):
        return -jnp.exp(parameters) * jnp.log1p(-place)

    def distribution(self, parameters, outcome):
        end = -jnp.expm1(-jnp.maximum(outcome, 0.0) * jnp.exp(-parameters))
        return end, end

    def sample(self, parameters, key):
        return jnp.exp(parameters) * jax.random.exponential(key, (), jnp.float64)

    def mean(self, parameters):
        return jnp.exp(parameters)


@dataclass(frozen=True)
class ExponentialScore(ScoreLikelihood):
    """ψ = (min(y, Y) − m(η))/μ(η) with m = E[min(y, Y)] = μ(1 − e^{−Y/μ})."""

    largest: float

    def _parts(self, eta):
        xp = namespace(eta)
        mu = xp.exp(xp.clip(eta, -FAR, FAR))
        return mu, self.largest / mu, -mu * xp.expm1(-self.largest / mu)

    def link(self, mean):
        return namespace(mean).log(mean)

    def residual(self, y, eta, reach):
        mu, _, m = self._parts(eta)
        return (namespace(eta, y).clip(y, 0.0, self.largest) - m) / mu

    def bound(self, eta, reach):
        mu, _, m = self._parts(eta)
        return namespace(eta).maximum(m, self.largest - m) / mu

    def expected(self, truth, eta, reach):
        mu, _, m = self._parts(eta)
        return (self._parts(truth)[2] - m) / mu

    def slope(self, eta, reach):
        mu, a, m = self._parts(eta)
        return (m - self.largest * namespace(eta).exp(-a)) / mu

    def variance(self, eta, reach):
        mu, a, m = self._parts(eta)
        second = 2.0 * mu * mu * (1.0 - namespace(eta).exp(-a) * (1.0 + a))
        return (second - m * m) / (mu * mu)


class UnitNormal(LinearRegression):
    """y ~ N(x·θ, 1)."""

    def __init__(self):
        super().__init__(NAMES, noise_sd=1.0, prior_sd=1.0)


def changed(base=ExponentialRegression, **body):
    return type("Changed", (base,), body)()


def with_law(**body):
    law = type("Law", (ExponentialLaw,), body)
    return changed(outcome_law=lambda self: law(self.layout, self.pointwise))


def refused(name, model, words):
    check = ABILITY_CHECKS.get(name) or _PARTS[name]
    with pytest.raises(AssertionError, match=words):
        check(_subject(model, None, 0))


@pytest.mark.parametrize("kind", [ExponentialRegression, Strict])
def test_a_right_model_of_positive_numbers_passes(kind):
    found = check_model(kind())
    assert {"density", "responses", "draw_outcomes", "Scores", "SimulatesOutcomes"} <= set(found)


@pytest.mark.parametrize("kind", [ExponentialRegression, Strict, Unchecked, GammaRegression])
def test_the_density_is_summed_over_positive_numbers(kind):
    subject = _subject(kind(), None, 0)
    for row, theta in enumerate(subject.thetas):
        grid = grid_of(subject, theta, row)
        mean = float(np.exp(subject.records["x"][row] @ theta))
        assert grid.where == "0 < y"
        assert grid.mass == pytest.approx(1.0, abs=1e-9)
        assert grid.mean == pytest.approx(mean, rel=1e-9)
        assert grid.variance == pytest.approx(mean**2 / kind.shape, rel=1e-9)
    for part in ("density", "draw_outcomes"):
        assert _PARTS[part](subject)
    ABILITY_CHECKS["Simulates"](subject)


@pytest.mark.parametrize("kind", [ExponentialRegression, Strict, Unchecked, GammaRegression])
def test_a_density_that_is_off_by_a_constant_is_found(kind):
    wrong = changed(kind, pointwise=lambda self, eta, y: kind.pointwise(self, eta, y) - 0.1)
    refused("density", wrong, r"does not add up to 1 over 0 < y: found 0\.904837")


def test_a_density_between_two_numbers_is_summed():
    def pointwise(_, eta, y):  # y/6 has a beta distribution
        xp = namespace(eta, y)
        inside = (y > 0) & (y < 6)
        share = xp.where(inside, y, 3.0) / 6.0
        return xp.where(inside, xp.log(share) + xp.log1p(-share), -xp.inf) + 0.0 * eta

    model = changed(pointwise=pointwise, inverse_link=lambda _, eta: 3.0 + 0.0 * eta)
    subject = _subject(model, {"x": np.ones((4, 2)), "y": np.array([1.0, 2.5, 3.1, 5.0])}, 0)
    grid = grid_of(subject, subject.thetas[0], 0)
    assert grid.where == "0 < y < 6"
    assert grid.mass == pytest.approx(1.0, abs=1e-9)  # the integral of 6·s(1 − s)


def test_tails_that_are_too_heavy_are_reported():
    def pointwise(_, eta, y):
        xp = namespace(eta, y)
        z = xp.log(1.0 + xp.abs(y - eta))
        return -np.log(2.0) - z - 1.05 * xp.log1p(z) + np.log(0.05)

    model = changed(UnitNormal, pointwise=pointwise)
    with pytest.warns(UserWarning, match="density: not checked for some records: the tails of y"):
        assert not _PARTS["density"](_subject(model, None, 0))


@pytest.mark.parametrize("name", ["bound", "expected", "slope", "variance"])
def test_a_wrong_score_of_positive_numbers_is_found(name):
    def smaller(self, *given):
        return 0.9 * getattr(ExponentialScore, name)(self, *given)

    wrong = type("Wrong", (ExponentialScore,), {name: smaller})
    model = changed(score_likelihood=lambda self: wrong(self.largest))
    refused("Scores", model, f"score_likelihood: {name}")


def other_shape(self, theta, means, records, seed):
    return np.random.default_rng(seed).gamma(2.0, 0.5 * means)


def one_seed(self, theta, means, records, seed):
    return np.random.default_rng(1).exponential(means)


GLOBAL = np.random.default_rng(4)


def no_seed(self, theta, means, records, seed):
    return GLOBAL.exponential(means)


@pytest.mark.parametrize(
    ("draws", "words"),
    [
        (other_shape, "outcomes of record 0 do not follow the likelihood: the distribution"),
        (one_seed, "two seeds gave the same outcomes"),
        (no_seed, "the same seed gave different outcomes"),
        (GeneralisedLinear.draw_outcomes, "intervals of predictions are refused .* define draw_"),
        (lambda *_: np.ones(3), r"draw_outcomes: shape \(3,\), expected \(4000, 3\)"),
    ],
)
def test_draws_of_another_distribution_are_found(draws, words):
    refused("draw_outcomes", changed(draw_outcomes=draws), words)


def test_a_model_without_any_simulation_may_refuse_to_draw():
    none = changed(simulate=None, outcome_law=None, draw_outcomes=GeneralisedLinear.draw_outcomes)
    subject = _subject(none, {"x": np.ones((4, 2)), "y": np.array([1.0, 2.5, 3.1, 5.0])}, 0)
    assert not _PARTS["draw_outcomes"](subject)
    with pytest.raises(ConfigError):
        none.draw_outcomes(np.zeros((1, 2)), np.ones((1, 4)), subject.records, 0)


@pytest.mark.parametrize("spread", [0.9, 1.1])
def test_draws_with_another_variance_are_found(spread):
    def draws(self, theta, means, records, seed):
        return means + spread * self.noise_sd * np.random.default_rng(seed).normal(size=means.shape)

    refused("draw_outcomes", changed(UnitNormal, draw_outcomes=draws), "do not follow")


def flattened(self, theta, means, records, seed):
    """Draw labels whose probabilities are moved towards each other."""
    even = np.full_like(means, 1.0 / means.shape[-1] if means.ndim == 3 else 0.5)
    return Model.draw_outcomes(self, theta, 0.3 * means + 0.7 * even, records, seed)


@pytest.mark.parametrize(
    ("base", "options"),
    [(LogisticRegression, {}), (SoftmaxRegression, {"levels": ("u", "v", "w")})],
)
def test_drawn_labels_with_another_probability_are_found(base, options):
    right = base(NAMES, **options)
    assert _PARTS["draw_outcomes"](_subject(right, None, 0))
    wrong = type("Wrong", (base,), {"draw_outcomes": flattened})(NAMES, **options)
    refused("draw_outcomes", wrong, "do not follow the likelihood")


def test_expected_outcomes_that_differ_from_the_response_are_found():
    right = ExponentialRegression
    twice = changed(responses=lambda self, *given: 2.0 * right.responses(self, *given))
    refused("responses", twice, "responses: not `response` of each θ")
    link = changed(
        inverse_link=lambda self, eta: 1.03 * right.inverse_link(self, eta),
        response=lambda self, theta, records: right.inverse_link(self, records["x"] @ theta),
        responses=lambda _, thetas, records: np.exp(thetas @ np.asarray(records["x"]).T),
    )
    refused("responses", link, "inverse_link: not `response`")
    both = changed(inverse_link=lambda self, eta: 1.03 * right.inverse_link(self, eta))
    refused("density", both, "response: not the mean of y of record 0")


@pytest.mark.parametrize(
    ("law", "words"),
    [
        ({"quantile": lambda _, at, place: 2.0 * place * jnp.exp(at)}, "mean score|quantile"),
        ({"distribution": lambda _, at, y: (jnp.clip(y * jnp.exp(-at), 0, 1),) * 2},
         r"`distribution` of record 0 is not P\(Y < y\)"),
        ({"sample": lambda _, at, key: 2.0 * jnp.exp(at) * jax.random.uniform(key)},
         "samples of record 0 do not follow the likelihood"),
        ({"mean": lambda _, at: -at}, "`mean` does not increase with the expected outcome"),
    ],
)  # fmt: skip
def test_a_wrong_outcome_law_is_found(law, words):
    refused("SimulatesOutcomes", with_law(**law), words)
