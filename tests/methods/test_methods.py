"""Every local method passes `check_local_method`; wrong ones do not, and bad options are named."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.errors import ConfigError
from tacit.expfam import Dirichlet, FullGaussian, MeanFieldGaussian
from tacit.methods import (
    DPSGD,
    METHODS,
    Answer,
    Exact,
    ExpectedStatistics,
    GradientVI,
    NaturalVI,
    Task,
)
from tacit.models import (
    LinearRegression,
    LogisticRegression,
    NeuralNetwork,
    NormalMean,
    PoissonRegression,
)
from tacit.plan.auto import MAX_COLUMNS, REASONS, choose_method
from tacit.privacy.settings import Privacy
from tacit.pvi import multiply
from tacit.server.schedule import Sequential, Synchronous
from tacit.testing import check_local_method, conjugate_optimum, synthetic_records

NAMES = ("a", "b")
LINEAR = LinearRegression(NAMES, prior_sd=2.0)
LOGISTIC = LogisticRegression(NAMES, prior_sd=2.0)
POISSON = PoissonRegression(NAMES, max_count=9, prior_sd=1.0)
NETWORK = NeuralNetwork(("a",), hidden=2)

COMPILED = {
    "natural": (NaturalVI(steps=20), LOGISTIC, MeanFieldGaussian(2), 0.0),
    "gradient-vi, full batch": (GradientVI(steps=30), LINEAR, FullGaussian(2), 0.1),
    "gradient-vi, minibatches and draws": (
        GradientVI(steps=30, batch_size=10, draws=3),
        NormalMean(),
        MeanFieldGaussian(1),
        0.7,
    ),
}
QUICK = {
    "exact, full": (Exact(), LINEAR, FullGaussian(2)),
    "exact, mean-field": (Exact(), LINEAR, MeanFieldGaussian(2)),
    "exact, mean of a normal": (Exact(), NormalMean(), FullGaussian(1)),
    "expected statistics": (ExpectedStatistics(), LINEAR, FullGaussian(2)),
    "expected statistics, augmented": (ExpectedStatistics(), LOGISTIC, FullGaussian(2)),
    "natural, conjugate": (NaturalVI(dtype="float64"), LINEAR, FullGaussian(2)),
}


@pytest.mark.parametrize("case", COMPILED)
def test_method_conforms(case):
    method, model, family, wander = COMPILED[case]
    check_local_method(method, model, family, wander=wander)


@pytest.mark.parametrize("case", QUICK)
def test_a_method_without_loops_conforms(case):
    with jax.disable_jit():  # running it is quicker than compiling it
        check_local_method(*QUICK[case])


@dataclass(frozen=True)
class Wrong(Exact):
    """`Exact` with one mistake."""

    mistake: str = ""

    def answer(self, model, family, key, task: Task) -> Answer:
        if self.mistake == "forgets the weights":
            task = task._replace(weights=jnp.ones_like(task.weights))
        if self.mistake == "reads only the first records":
            task = task._replace(weights=jnp.where(jnp.arange(len(task.weights)) < 5, 1.0, 0.0))
        if self.mistake == "forgets its factor":
            task = task._replace(factor=family.zero())
        natural, loss, *_ = super().answer(model, family, key, task)
        if self.mistake == "single precision":
            natural = {name: value.astype(jnp.float32) for name, value in natural.items()}
        if self.mistake == "improper":
            natural = {**natural, "quadratic": -natural["quadratic"]}
        if self.mistake == "goes the wrong way":
            natural = {"linear": -3.0 * natural["linear"], "quadratic": natural["quadratic"]}
        if self.mistake == "loss is not a number":
            loss = loss + jnp.nan
        return Answer(natural, loss)


MISTAKES = {
    "forgets the weights": "padding",
    "reads only the first records": "records in reverse",
    "forgets its factor": "fixed point",
    "single precision": "float32, not float64",
    "improper": "not proper",
    "goes the wrong way": "progress",
    "loss is not a number": "loss nan is not finite",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_method_does_not_conform(mistake):
    with jax.disable_jit(), pytest.raises(AssertionError, match=MISTAKES[mistake]):
        check_local_method(Wrong(mistake=mistake), LINEAR, FullGaussian(2))


@pytest.mark.parametrize("family", [FullGaussian(2), MeanFieldGaussian(2)])
def test_one_party_alone_gets_the_exact_posterior(family):
    records = synthetic_records(LINEAR)
    prior = LINEAR.prior(family)
    task = Task(records, np.ones(37), prior, family.zero(), prior, np.array(True))
    natural = Exact().answer(LINEAR, family, jax.random.key(0), task).natural
    for name, value in conjugate_optimum(LINEAR, family, records).items():
        np.testing.assert_allclose(natural[name], value, rtol=1e-10)


def test_the_exact_loss_is_the_expected_negative_log_likelihood():
    family, records = FullGaussian(2), synthetic_records(LINEAR)
    q = multiply(LINEAR.prior(family), LINEAR.prior(family))
    task = Task(records, np.ones(37), q, family.zero(), q, np.array(True))
    loss = Exact().answer(LINEAR, family, jax.random.key(0), task).loss
    mean, variance = family.free_project(family.free(q), records["x"])
    expected = -np.sum(LINEAR.expected_log_likelihood(mean, variance, records["y"]))
    assert loss == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("family", [FullGaussian(2), MeanFieldGaussian(2)])
@pytest.mark.parametrize("method", [NaturalVI(steps=2), GradientVI(steps=2)])
def test_an_answer_is_the_same_whoever_began_it(method, family):
    records, prior = synthetic_records(LOGISTIC), LOGISTIC.prior(family)
    start, other = LOGISTIC.start(family), multiply(prior, prior)
    task = Task(records, np.ones(37), prior, family.zero(), start, np.array(True))
    with jax.disable_jit():
        alone, helped, misled = (
            method.answer(LOGISTIC, family, jax.random.key(0), task._replace(begun=begun))
            for begun in (None, method.begin(family, start), method.begin(family, other))
        )
    for name, value in alone.natural.items():
        np.testing.assert_allclose(helped.natural[name], value, rtol=1e-5, atol=1e-6)
    assert float(helped.loss) == pytest.approx(float(alone.loss), rel=1e-6)
    assert float(misled.loss) != pytest.approx(float(alone.loss), rel=1e-6)


def batches(batch_size, count, padded, keys):
    """What `_batch` hands out: total weight and weighted sum of a column, one a key."""
    task = Task(
        {"y": jnp.where(jnp.arange(padded) < count, jnp.arange(padded), 1e6)},
        (jnp.arange(padded) < count).astype(jnp.float64),
        {}, {}, {}, np.array(False),
    )  # fmt: skip
    method = GradientVI(batch_size=batch_size, dtype="float64")

    def one(key):
        records, weights = method._batch(key, task)
        return jnp.sum(weights), jnp.sum(weights * records["y"])

    return jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(3), keys))


def test_a_minibatch_is_unbiased_and_never_padding():
    total, weighted = batches(batch_size=5, count=20, padded=32, keys=4000)
    np.testing.assert_allclose(total, 20.0)
    weighted = np.asarray(weighted)
    error = weighted.std() / np.sqrt(len(weighted))
    assert abs(weighted.mean() - 190.0) < 4 * error
    assert error < 190.0 * 0.01, "too few keys to notice a bias of a few per cent"
    assert weighted.max() <= 20 * 19, "a padded record was drawn"


@pytest.mark.parametrize("padded", [20, 24, 64])
def test_a_party_smaller_than_a_batch_uses_every_record_once(padded):
    total, weighted = batches(batch_size=24, count=20, padded=padded, keys=2)
    np.testing.assert_allclose(total, 20.0)
    np.testing.assert_allclose(weighted, 190.0)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        (GradientVI, {"steps": 0}, "method.steps = 0"),
        (GradientVI, {"batch_size": 0}, "method.batch_size = 0"),
        (GradientVI, {"learning_rate": 0.0}, "method.learning_rate = 0.0"),
        (GradientVI, {"learning_rate": float("nan")}, "method.learning_rate = nan"),
        (GradientVI, {"learning_rate": float("inf")}, "method.learning_rate = inf"),
        (GradientVI, {"draws": 0}, "method.draws = 0"),
        (NaturalVI, {"steps": 0}, "method.steps = 0"),
        (NaturalVI, {"step_size": 0.0}, "method.step_size = 0.0"),
        (NaturalVI, {"step_size": 1.5}, "method.step_size = 1.5"),
        (NaturalVI, {"step_size": float("nan")}, "method.step_size = nan"),
    ],
)
def test_a_bad_option_is_refused_with_its_key_and_value(method, options, message):
    with pytest.raises(ConfigError, match=message.replace(".", r"\.")):
        method(**options)


@pytest.mark.parametrize(
    ("method", "model", "family"),
    [
        (Exact(), LOGISTIC, FullGaussian(2)),
        (Exact(), LINEAR, Dirichlet(2)),
        (NaturalVI(steps=1), NETWORK, MeanFieldGaussian(7)),
        (NaturalVI(), LOGISTIC, Dirichlet(2)),
        (GradientVI(), LOGISTIC, Dirichlet(2)),
    ],
)
def test_a_method_refuses_what_it_cannot_serve(method, model, family):
    with pytest.raises(ConfigError, match=r"needs? a .*(use method.kind|set posterior|leave)"):
        method.check(model, family)


def test_auto_is_the_cheapest_method_that_serves():
    assert [choose_method(m)[0].kind for m in (LINEAR, NormalMean(), LOGISTIC, NETWORK)] == [
        "exact",
        "exact",
        "natural",
        "gradient-vi",
    ]
    private = {
        "dp-sgd", "dp-scoring", "dp-scores", "dp-updates", "dp-statistics", "dp-hybrid",
        "dp-conjugate",
    }  # fmt: skip
    plain = {"exact", "natural", "gradient-vi", "expected-statistics", "conjugate"}
    assert set(METHODS) == {*plain, *private}


def test_auto_with_privacy_is_scoring_where_it_will_do_and_says_why_not_elsewhere():
    def auto(model, schedule=None, *, parties=3, steady=True, **asked):
        method, why = choose_method(
            model, privacy=Privacy(epsilon=1.0, **asked), schedule=schedule, parties=parties,
            steady=steady,
        )  # fmt: skip
        assert "\n" not in why
        return method.kind, why

    for aggregation in ("plain", "trusted"):
        for model in (LINEAR, LOGISTIC, POISSON):
            kind, why = auto(model, aggregation=aggregation)
            assert kind == ("dp-scores" if model is POISSON else "dp-scoring")
            assert repr(model.kind) in why
    wide = LogisticRegression(tuple(f"x{k}" for k in range(MAX_COLUMNS + 1)), prior_sd=1.0)
    told = []
    for (kind, why), word in (
        (auto(NETWORK), "'neural-network'"),
        (auto(NormalMean()), "'normal-mean'"),
        (auto(LogisticRegression(("intercept",), prior_sd=1.0)), "besides the intercept"),
        (auto(wide), f"{MAX_COLUMNS + 1} columns"),
        (auto(LOGISTIC, unit="person"), "privacy.unit = 'person'"),
        (auto(LOGISTIC, aggregation="server"), "privacy.aggregation = 'server'"),
        (auto(LOGISTIC, Sequential()), "schedule.kind = 'sequential'"),
        (auto(LOGISTIC, Synchronous(parties_per_round=2)), "parties_per_round"),
        (auto(LOGISTIC, steady=False), "quorum"),
        (auto(LOGISTIC, Synchronous(rounds=2)), "schedule.rounds = 2"),
        (auto(LOGISTIC, Synchronous(damping=0.3)), "schedule.damping"),
    ):
        assert kind == "dp-sgd"
        assert word in why
        told.append(why)
    assert len(told) == len(REASONS) - 1, "all but unknown noise and unbounded scores; one twice"


def test_dpsgd_as_auto_takes_it_is_blind_to_labels_damped_and_averaged():
    method, _ = choose_method(NETWORK, privacy=Privacy(epsilon=1.0))
    assert isinstance(method, DPSGD)
    assert method.label_agnostic
    assert method.average_last == 0.5
    assert method.step_size is None, "left to the method: all the damping that there is"
