"""check_model passes on every shipped model and names what is wrong with a broken one."""

import jax
import numpy as np
import pytest

from tacit.datasets import document_records
from tacit.models import (
    BeliefNetwork,
    FactorModel,
    GaussianMixture,
    LinearRegression,
    LogisticRegression,
    NegativeBinomialRegression,
    NeuralNetwork,
    NormalMean,
    PoissonRegression,
    SoftmaxRegression,
    StudentRegression,
    TopicModel,
    from_numpyro,
)
from tacit.models.capabilities import abilities
from tacit.models.glm.logistic import BernoulliLikelihood
from tacit.models.glm.normal import NormalRegression
from tacit.models.predictive import Prediction
from tacit.models.registry import SHIPPED
from tacit.testing import check_model
from tacit.testing.model_abilities import ABILITY_CHECKS
from tacit.testing.model_laws import check_far_predictors
from tacit.testing.models import _PARTS, _subject

NAMES = ("intercept", "a")
RNG = np.random.default_rng(5)
COUNTS = RNG.poisson(1.0, (12, 9)).astype(np.float64) + np.eye(12, 9)


def regression(x, y=None):
    import numpyro
    import numpyro.distributions as dist

    slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
    noise = numpyro.sample("noise", dist.LogNormal(0.0, 0.5))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(slope * x, noise), obs=y)


SHIPPED_MODELS = {
    "logistic": lambda: LogisticRegression(NAMES, prior_sd=1.0),
    "softmax": lambda: SoftmaxRegression(NAMES, levels=("u", "v", "w"), prior_sd=1.0),
    "linear": lambda: LinearRegression(NAMES, noise_sd=0.7, bounds=(-9.0, 9.0), prior_sd=1.0),
    "poisson": lambda: PoissonRegression(NAMES, max_count=30, prior_sd=1.0),
    "negative-binomial": lambda: NegativeBinomialRegression(
        NAMES, dispersion=1.5, max_count=200, prior_sd=1.0
    ),
    "student": lambda: StudentRegression(NAMES, scale=0.7, prior_sd=1.0),
    "normal-mean": lambda: NormalMean(noise_sd=2.0),
    "neural-network": lambda: NeuralNetwork(NAMES, hidden=3),
    "topics": lambda: TopicModel(2, words=9, start_seed=3),
    "belief-network": lambda: BeliefNetwork(4, hidden=2),
    "factors": lambda: FactorModel(NAMES, factors=1),
    "mixture": lambda: GaussianMixture(NAMES, components=2),
    "linear-unknown-noise": lambda: NormalRegression(NAMES, center=0.3, scale=2.0, prior_sd=1.0),
    "numpyro": lambda: from_numpyro(regression, {"x": np.ones(3), "y": np.ones(3)}),
}
RECORDS = {
    "topics": document_records(COUNTS, width=9),
    "belief-network": {"x": (RNG.random((20, 4)) < 0.5).astype(np.float64)},
    "numpyro": {"x": RNG.normal(size=20), "y": RNG.normal(size=20)},
    "factors": {"x": RNG.normal(size=(20, len(NAMES)))},
    "mixture": {"x": RNG.normal(size=(20, len(NAMES)))},
}


@pytest.mark.parametrize("kind", [*SHIPPED, "linear-unknown-noise"])
def test_every_shipped_model_passes(kind):
    model = SHIPPED_MODELS[kind]()
    found = check_model(model, records=RECORDS.get(kind))
    assert set(abilities(model)) <= set(found)


def broken(base, *arguments, keywords, **changes):
    """A model with methods replaced; each gets the right answer's function first."""
    body = {}
    for name, change in changes.items():
        right = getattr(base, name)

        def method(self, *given, _change=change, _right=right, **named):
            return _change(lambda *args, **kw: _right(self, *args, **kw), *given, **named)

        body[name] = method
    return type(f"Broken{base.__name__}", (base,), body)(*arguments, **keywords)


def logistic(**changes):
    return broken(LogisticRegression, NAMES, keywords={}, **changes)


def linear(**changes):
    return broken(LinearRegression, NAMES, keywords={}, **changes)


def refused(name, model, words):
    """The check of that ability or part refuses the model with these words."""
    subject = _subject(model, None, 0)
    check = ABILITY_CHECKS.get(name) or _PARTS[name]
    with pytest.raises(AssertionError, match=words):
        check(subject)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"log_likelihoods": lambda right, *a: right(*a) * (1 + 1e-6)}, "log_likelihoods"),
        ({"log_likelihoods": lambda right, *a: jax.numpy.asarray(right(*a))}, "namespace"),
        ({"expected_derivatives": lambda right, m, v, y: (
            right(m, v, y) if isinstance(m, jax.Array) else right(m, 0.99 * v, y)
        )}, "whitened_derivatives in NumPy"),
    ],
)  # fmt: skip
def test_a_model_that_computes_otherwise_in_numpy_is_found(changes, words):
    refused("InNumPy", broken(LogisticRegression, NAMES, keywords={}, **changes), words)


def test_a_record_that_depends_on_others_is_found():
    model = broken(
        NormalMean, keywords={}, log_likelihood=lambda right, t, r: right(t, r) / len(r["y"])
    )
    with pytest.raises(AssertionError, match="a record's value changes with the others"):
        check_model(model)


def test_a_cut_gradient_is_found():
    def cut(right, theta, records):
        return right(jax.lax.stop_gradient(theta), records)

    model = broken(NormalMean, keywords={}, log_likelihood=cut)
    with pytest.raises(AssertionError, match="automatic derivative"):
        check_model(model)


def test_probabilities_that_do_not_add_up_are_found():
    model = broken(
        NeuralNetwork, NAMES, keywords={"hidden": 2},
        log_likelihood=lambda right, t, r: right(t, r) - 0.01,
    )  # fmt: skip
    with pytest.raises(AssertionError, match="do not add up to 1"):
        check_model(model)


def test_a_response_that_is_not_the_probability_is_found():
    model = broken(
        NeuralNetwork, NAMES, keywords={"hidden": 2},
        response=lambda right, t, r: 0.9 * right(t, r),
    )  # fmt: skip
    with pytest.raises(AssertionError, match="response: not the probability"):
        check_model(model)


def test_a_wrong_predictive_is_found():
    def narrow(right, *given, **named):
        found = right(*given, **named)
        return Prediction(found.mean, found.log_density + 0.3, found.sd)

    refused("predictive", linear(predict=narrow), "predictive: density")


def test_a_wrong_quadratic_form_is_found():
    def doubled(right, *given):
        form, slope = right(*given)
        return 2.0 * form, slope

    refused("ConjugateGaussian", linear(quadratic_form=doubled), "quadratic_form: not the")


def test_a_wrong_slope_is_found():
    def steeper(right, *given):
        value, slope, curvature = right(*given)
        return value, 1.01 * slope, curvature

    model = logistic(expected_derivatives=steeper)
    refused("GaussianSites", model, "expected_site: gradient")
    refused("GradientNorms", model, "gradient_norms: gradient")


def test_a_wrong_curvature_is_found():
    def flatter(right, *given):
        value, slope, curvature = right(*given)
        return value, slope, 0.9 * curvature

    model = logistic(expected_derivatives=flatter)
    refused("GaussianSites", model, "expected_site: precision")
    refused("GaussianExpectations", model, "expected_information")


def test_a_wrong_expectation_is_found():
    model = logistic(expected_log_likelihood=lambda right, *given: right(*given) - 0.1)
    refused("GaussianExpectations", model, "expected_fit")


def test_a_norm_that_is_too_small_is_found():
    def smaller(right, *given, **named):
        parts = right(*given, **named)
        return parts._replace(norms=0.99 * parts.norms)

    refused("GradientNorms", logistic(gradient_norms=smaller), "norm of a record")


def test_a_label_agnostic_norm_that_depends_on_the_label_is_found():
    model = logistic(largest_slope=lambda _, mean, __: 0.0 * mean)
    refused("GradientNorms", model, "label-agnostic norm")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"slope": 0.4}, "derivative_bounds: slope"),
        ({"curvature": 0.1}, "derivative_bounds: curvature"),
        ({"range_at_zero": 0.01}, "range_at_zero"),
        ({"loss_at_zero": -0.5}, "loss_at_zero"),
    ],
)
def test_a_wrong_bound_is_found(change, words):
    model = logistic(derivative_bounds=lambda right: right()._replace(**change))
    refused("BoundedDerivatives", model, words)


def test_a_wrong_bound_where_a_fit_starts_is_found():
    def tighter(right):
        found = right()
        start = found.data_start._replace(slope=0.1, pull=0.1)
        return found._replace(data_start=start)

    refused("BoundedDerivatives", logistic(derivative_bounds=tighter), "data_start")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bound", "score_likelihood: bound"),
        ("expected", "score_likelihood: expected"),
        ("slope", "score_likelihood: slope"),
        ("variance", "score_likelihood: variance"),
    ],
)
def test_a_wrong_score_likelihood_is_found(name, words):
    def changed(self, *given):
        return 0.9 * getattr(BernoulliLikelihood, name)(self, *given)

    wrong = type("Wrong", (BernoulliLikelihood,), {name: changed})()
    refused("Scores", logistic(score_likelihood=lambda _: wrong), words)


def test_statistics_with_a_wrong_norm_are_found():
    def shorter(right, *given, **named):
        found = right(*given, **named)
        norms = found.norms
        object.__setattr__(found, "norms", lambda: 0.9 * norms())
        return found

    refused("statistics", linear(statistics=shorter), "statistics: norm of a record")


def test_score_parts_with_a_wrong_norm_are_found():
    def shorter(right, *given, **named):
        norms, plain, score_sum = right(*given, **named)
        return 0.9 * norms, plain, score_sum

    model = broken(NeuralNetwork, NAMES, keywords={"hidden": 2}, score_parts=shorter)
    refused("score_parts", model, "score_parts: weighted norm")


def test_outcomes_that_the_model_refuses_are_found():
    model = logistic(simulate=lambda right, *given: right(*given) + 0.5)
    refused("Simulates", model, "rejects simulated outcomes")


@pytest.mark.parametrize("factor", [0.0, 1.5])
@pytest.mark.parametrize("model", [logistic, linear])
def test_outcomes_of_another_law_are_found(model, factor):
    wrong = model(simulate=lambda right, theta, *rest: right(factor * theta, *rest))
    refused("Simulates", wrong, "do not follow the likelihood")


def poisson(**changes):
    return broken(PoissonRegression, NAMES, keywords={"max_count": 30, "prior_sd": 1.0}, **changes)


def eta_of(theta, records):
    return np.asarray(records["x"]) @ theta


@pytest.mark.parametrize("model", [poisson, linear])
def test_a_density_that_does_not_add_up_is_found(model):
    constant = model(log_likelihood=lambda right, t, r: right(t, r) - 0.01)
    refused("density", constant, "does not add up to 1 over y: found 0.99005")
    moving = model(log_likelihood=lambda right, t, r: right(t, r) + 0.1 * eta_of(t, r))
    refused("density", moving, "does not add up to 1 over y")


@pytest.mark.parametrize("model", [poisson, linear])
def test_a_response_that_is_not_the_mean_is_found(model):
    refused("density", model(response=lambda right, t, r: right(t, r) + 0.1), "response: not the")


def test_counts_with_the_right_mean_and_a_wrong_variance_are_found():
    def wider(_, theta, records, rng, bounds=None):
        del bounds
        return rng.geometric(1 / (1 + np.exp(eta_of(theta, records)))) - 1.0

    refused("Simulates", poisson(simulate=wider), r"variance of the score minus −E\[ℓ''\]: found")


def test_outcomes_that_do_not_depend_on_the_seed_alone_are_found():
    other = np.random.default_rng(0)
    model = logistic(simulate=lambda right, theta, records, _: right(theta, records, other))
    refused("Simulates", model, "two generators with the same seed gave different outcomes")


def test_outcomes_with_another_mean_than_the_response_are_found():
    model = poisson(response=lambda right, t, r: right(t, r) + 1.0)
    refused("Simulates", model, "simulate: mean outcome of record 0: found")


def test_a_log_likelihood_that_overflows_is_found():
    def pointwise(_, eta, y):
        return y * eta - jax.numpy.log1p(jax.numpy.exp(20.0 * eta)) / 20.0

    model = logistic(pointwise=pointwise)
    with pytest.raises(AssertionError, match="log-likelihood: not finite for predictors of ±50"):
        check_far_predictors(_subject(model, None, 0))


def test_a_link_that_is_not_the_inverse_of_the_mean_is_found():
    wrong = type("Wrong", (BernoulliLikelihood,), {"link": lambda _, mean: mean})()
    refused("Scores", logistic(score_likelihood=lambda _: wrong), "link of the mean is not the")


def test_outcomes_outside_of_the_declared_bounds_are_named():
    wrong = type("Wrong", (BernoulliLikelihood,), {"largest": 0.5})()
    with pytest.raises(AssertionError, match=r"records: the model refuses its records: .*largest"):
        check_model(logistic(score_likelihood=lambda _: wrong))


@pytest.mark.parametrize("part", ["GradientNorms", "statistics"])
def test_a_record_of_weight_0_that_changes_a_sum_is_found(part):
    def leaking(right, family, free, records, maps, *, label_agnostic):
        parts = right(family, free, records, maps, label_agnostic=label_agnostic)

        def total(weights):
            more = 0.0 * jax.numpy.sum(weights * records["x"][:, 0])
            return {name: value + more for name, value in parts.weighted_sum(weights).items()}

        return parts._replace(weighted_sum=total)

    def adding(right, family, q, records, weights):
        found = right(family, q, records, weights)
        total, x = found.total, np.asarray(records["x"])

        def summed(used):
            return jax.tree.map(lambda value: value + 0.0 * (used @ x[:, 0]), total(used))

        object.__setattr__(found, "total", summed)
        return found

    changes = {"GradientNorms": {"gradient_norms": leaking}, "statistics": {"statistics": adding}}
    refused(part, linear(**changes[part]), "a record of weight 0 that contains NaN changes a sum")


def test_records_of_counts_have_to_be_given_or_simulated():
    class Counts(PoissonRegression):
        simulate = None

    with pytest.raises(TypeError, match="pass records="):
        check_model(Counts(NAMES, max_count=9))
