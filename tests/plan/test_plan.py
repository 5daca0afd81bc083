"""Plans refuse what cannot work; Adult federated is Adult pooled, whoever holds the records."""

import numpy as np
import pytest

import tacit
from tacit.data.readers.download import locate
from tacit.engines.execute import carry_out
from tacit.errors import ConfigError, DataError
from tacit.expfam import FullGaussian
from tacit.methods import Exact, GradientVI, NaturalVI, PrivateUpdate
from tacit.models import (
    LinearRegression,
    LogisticRegression,
    NeuralNetwork,
    NormalMean,
)
from tacit.plan.checks import choose_family
from tacit.plan.plan import make_plan
from tacit.privacy.settings import Privacy
from tacit.pvi import multiply
from tacit.results import evaluate
from tacit.server.schedule import Asynchronous, Sequential, Synchronous

NAMES = ("a", "b", "c")
LINEAR = LinearRegression(NAMES, prior_sd=1.0)
LOGISTIC = LogisticRegression(NAMES, prior_sd=1.0)


@pytest.fixture(scope="module")
def parties(make_parties):
    return make_parties((9, 10))


@pytest.fixture(scope="module")
def labelled(make_parties):
    return make_parties((9, 10), output="bernoulli")


def with_column(parties, name, column, value):
    return {**parties, name: {**parties[name], column: value}}


def bad_parties(parties):
    x, y = parties["site-0"]["x"], parties["site-0"]["y"]
    hole, huge = x.copy(), y.copy()
    hole[3, 1], huge[2] = np.nan, np.inf
    return {
        "nobody": ({}, "there are no parties"),
        "no columns": ({**parties, "site-1": {}}, "'site-1' has no records"),
        "no records": ({"site-0": {"x": x[:0], "y": y[:0]}}, "'site-0' has no records"),
        "a hole": (with_column(parties, "site-0", "x", hole), "'site-0', column 'x': a value is"),
        "infinity": (with_column(parties, "site-0", "y", huge), "'site-0', column 'y': a value is"),
        "unequal columns": (with_column(parties, "site-0", "y", y[:4]), "have different lengths"),
        "another width": (with_column(parties, "site-0", "x", x[:, :2]), "give every party"),
        "a missing column": ({**parties, "site-1": {"y": y}}, "give every party the same"),
        "no x": ({"site-0": {"y": y}}, "has no column 'x' \\(it has y\\)"),
        "x too narrow": (
            {"site-0": {"x": x[:, :2], "y": y}},
            "x has shape \\(n, 2\\), but model 'linear' has 3 names",
        ),
    }


@pytest.mark.parametrize("what", bad_parties({"site-0": {"x": np.ones((9, 3)), "y": np.ones(9)}}))
def test_bad_records_are_refused_before_anything_runs(parties, what):
    bad, message = bad_parties(parties)[what]
    with pytest.raises(DataError, match=message) as caught:
        make_plan(LINEAR, bad)
    assert "\n" not in str(caught.value)


def test_labels_other_than_zero_and_one_are_refused(labelled):
    signs = with_column(labelled, "site-1", "y", 2 * labelled["site-1"]["y"] - 1)
    with pytest.raises(DataError, match="'site-1': y holds values other than 0 and 1"):
        make_plan(LOGISTIC, signs)
    assert make_plan(LINEAR, signs).method == Exact()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": -1}, r"seed = -1; give a whole number from 0 to 4294967295"),
        ({"seed": 2**32}, r"seed = 4294967296"),
        ({"family": "fulll"}, "'fulll' is unknown; choose one of"),
        ({"family": "gamma"}, "method.kind = 'exact' needs a conjugate model"),
        ({"schedule": Synchronous(parties_per_round=3)}, "it must be at most 2"),
        ({"method": NaturalVI(), "family": "dirichlet"}, "Gaussian"),
    ],
)
def test_a_plan_that_cannot_work_is_refused(parties, options, message):
    with pytest.raises(ConfigError, match=message):
        make_plan(LINEAR, parties, **options)


def test_the_priors_name_is_taken(parties):
    with pytest.raises(ConfigError, match="is reserved for the prior"):
        make_plan(LINEAR, {"(prior)": parties["site-0"]})


def test_auto_means_what_is_documented(parties, labelled):
    assert make_plan(LINEAR, parties).family == FullGaussian(3)
    plan = make_plan(LOGISTIC, labelled)
    assert (plan.family.kind, plan.method, plan.schedule.kind) == (
        "full",
        NaturalVI(_together=True, _parties=len(labelled)),
        "synchronous",
    )
    assert plan.schedule.damping == 1.0
    network = NeuralNetwork(NAMES, hidden=2)
    plan = make_plan(network, labelled)
    assert (plan.family.kind, plan.method, plan.schedule.damping) == (
        "mean-field",
        GradientVI(),
        0.5,
    )
    wide = LogisticRegression(tuple(f"c{i}" for i in range(257)), prior_sd=1.0)
    assert choose_family("auto", wide).kind == "mean-field"
    assert choose_family("full", wide).kind == "full"


def test_an_observer_sees_every_batch_and_the_outcome_keeps_the_log(parties):
    seen = []
    plan = make_plan(LINEAR, parties, schedule=Sequential(rounds=2))
    outcome = carry_out(plan, observe=lambda state, log: seen.append((state.exchanges, log)))
    assert [exchanges for exchanges, _ in seen] == [1, 2, 3, 4]
    assert outcome.log == tuple(line for _, log in seen for line in log)
    assert outcome.state.finished == "rounds"


class TestFit:
    def test_a_class_and_a_federation_are_enough(self):
        hospitals = tacit.datasets.load("synthetic-cohort", kind="balanced", parties=3, records=300)
        fitted = tacit.fit(tacit.models.LogisticRegression, hospitals, privacy="none")
        assert fitted.posterior.names == hospitals.names
        assert set(fitted.metrics["held_out"]) == {
            "log_predictive_density",
            "accuracy",
            "brier",
            "calibration_error",
            "auroc",
        }
        assert len(fitted.history) == fitted._outcome.state.round > 0
        probability = fitted.predict(hospitals.test)
        assert np.all((probability > 0) & (probability < 1))
        accuracy = np.mean((probability > 0.5) == hospitals.test["y"])
        assert accuracy == pytest.approx(fitted.metrics["held_out"]["accuracy"])
        assert all(row.term in str(fitted) for row in fitted._result.coefficients)
        assert {row.name for row in fitted._result.coefficients} == set(hospitals.names)

    def test_plain_records_need_an_instance(self, parties):
        fitted = tacit.fit(LINEAR, parties, privacy="none")
        assert fitted.metrics["held_out"] is None
        low, high = fitted.posterior.interval(0.9)
        assert np.all(low < fitted.posterior.mean)
        np.testing.assert_allclose(high - low, 2 * 1.6448536 * fitted.posterior.sd)
        draws = fitted.posterior.sample(4000, seed=1)
        error = np.abs(draws.mean(0) - fitted.posterior.mean) * np.sqrt(4000) / fitted.posterior.sd
        assert draws.shape == (4000, 3)
        assert np.max(error) < 5
        with pytest.raises(ConfigError, match="give an instance"):
            tacit.fit(LinearRegression, parties, privacy="none")

    def test_privacy_has_to_be_said(self, parties):
        with pytest.raises(TypeError, match="privacy"):
            tacit.fit(LINEAR, parties)
        with pytest.raises(ConfigError, match="privacy = 'dp'"):
            tacit.fit(LINEAR, parties, privacy="dp")

    def test_one_seed_one_answer(self, parties):
        one, two = (
            tacit.fit(LINEAR, parties, privacy="none", schedule=Asynchronous(rounds=2), seed=4)
            for _ in range(2)
        )
        np.testing.assert_equal(one.posterior.natural, two.posterior.natural)

    @pytest.mark.parametrize("level", [0.0, 1.0, np.nan, 95])
    def test_an_interval_has_a_level_between_zero_and_one(self, parties, level):
        posterior = carry_out(make_plan(NormalMean(), parties)).posterior
        with pytest.raises(ConfigError, match="interval level"):
            posterior.interval(level)


SPLITS = {
    "balanced": {},
    "small parties lack one class": {"size_skew": 0.75, "label_skew": 0.95},
    "small parties have one class in excess": {"size_skew": 0.7, "label_skew": -3.0},
}


@pytest.fixture(scope="module")
def adult(pool):
    """Each split of Adult, and central VI: one party with everything. The held-out rows agree."""
    if locate("adult") is None:
        pytest.skip("Adult is neither in $TACIT_DATA nor in the cache")
    splits = {
        name: tacit.datasets.load("adult", parties=10, seed=1, **k) for name, k in SPLITS.items()
    }
    first = splits["balanced"]
    model = LogisticRegression(first.names, prior_sd=1.0)
    records = pool(first.parties)
    central = carry_out(make_plan(model, {"all": records}, schedule=Synchronous(rounds=8)))
    return model, splits, evaluate(model, central.plan.family, central.state.q, first.test)


def gaps(found, expected):
    return {
        name: abs(found[name] - expected[name]) for name in ("log_predictive_density", "accuracy")
    }


@pytest.mark.parametrize("split", SPLITS)
def test_adult_at_ten_parties_is_adult_in_one_place(adult, split):
    model, splits, central = adult
    federation = splits[split]
    np.testing.assert_array_equal(federation.test["y"], splits["balanced"].test["y"])
    outcome = carry_out(make_plan(model, federation.parties, schedule=Synchronous(rounds=7)))
    family = outcome.plan.family
    gap = gaps(evaluate(model, family, outcome.state.q, federation.test), central)
    assert gap["log_predictive_density"] < 0.001
    assert gap["accuracy"] < 0.002
    assert central["accuracy"] > 0.85
    # Power: what one party contributes, alone, is not good enough.
    alone = multiply(model.prior(family), next(iter(outcome.state.factors.values())).natural)
    gap = gaps(evaluate(model, family, alone, federation.test), central)
    assert gap["log_predictive_density"] > 0.001


def test_reading_a_plan_draws_no_noise_and_each_run_draws_its_own(monkeypatch):
    """The server's noise is one stream for one run: the key is drawn when the run starts."""
    rng = np.random.default_rng(0)
    parties = {
        name: {"x": rng.normal(size=(40, 2)), "y": rng.integers(0, 2, 40).astype(float)}
        for name in ("a", "b")
    }
    plan = make_plan(
        LogisticRegression(("one", "two"), prior_sd=1.0),
        parties,
        method=PrivateUpdate(shards=1),
        schedule=Synchronous(rounds=2),
        privacy=Privacy(epsilon=5.0, delta=1e-3, unit="party", aggregation="server"),
    )
    with monkeypatch.context() as patch:
        patch.setattr(
            "tacit.engines.execute.secrets.randbits", lambda _: pytest.fail("drew entropy")
        )
        assert plan.rules.parties == ("a", "b")
        lattice = plan.rules.lattice
        assert lattice is not None
        assert lattice.noise is not None
        with pytest.raises(RuntimeError, match="call carry_out, which draws one"):
            lattice.noise(1, {"score": (2,)})
    first, second = (carry_out(plan).posterior.mean for _ in range(2))
    assert not np.array_equal(first, second)
