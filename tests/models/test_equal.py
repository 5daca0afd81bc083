"""Equal models are compiled once, and no two that differ are taken for equal."""

import gc
import weakref

import jax
import numpy as np
import pytest

import tacit
from tacit.data.schema.layout import Feature
from tacit.models import (
    LinearRegression,
    LogisticRegression,
    NeuralNetwork,
    PoissonRegression,
    SoftmaxRegression,
    TopicModel,
)
from tacit.models.equal import MOST_KEPT, _copy_of_first, first_equal
from tacit.server.schedule import Synchronous

NAMES = ("a", "b")
LAYOUT = (Feature("numeric", "a", -1.0, 1.0), Feature("level", "b=u"))
MAKE = {
    "linear": lambda **how: LinearRegression(NAMES, **how),
    "logistic": lambda **how: LogisticRegression(NAMES, **how),
    "poisson": lambda **how: PoissonRegression(NAMES, **{"max_count": 3.0} | how),
    "softmax": lambda **how: SoftmaxRegression(NAMES, **{"levels": ("u", "v")} | how),
    "network": lambda **how: NeuralNetwork(NAMES, **{"hidden": 2} | how),
    "topics": lambda **how: TopicModel(2, **{"words": 3, "document_words": 8} | how),
}


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_equal_models_are_compiled_as_one(make):
    assert make().compiled_as is make().compiled_as


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("linear", {"prior_mean": -0.0}),
        ("linear", {"prior_sd": 1.0 + 2**-52}),
        ("linear", {"prior_sd": np.array([1.0, 2.0])}),
        ("linear", {"noise_sd": 2.0}),
        ("linear", {"bounds": (-9.0, 9.0)}),
        ("logistic", {"layout": LAYOUT}),
        ("poisson", {"max_count": 4.0}),
        ("softmax", {"levels": ("u", "w")}),
        ("network", {"hidden": 3}),
        ("network", {"noise_sd": 2.0, "output": "gaussian"}),
        ("topics", {"document_words": 9}),
        ("topics", {"doc_topic_prior": 0.25}),
    ],
)
def test_models_that_differ_are_not(name, how):
    make = MAKE[name]
    assert make().compiled_as is not make(**how).compiled_as


def test_a_class_from_elsewhere_is_compiled_for_itself():
    """It may read what is no attribute of it."""

    class Own(LinearRegression):
        pass

    model = Own(NAMES)
    assert model.compiled_as is model
    assert Own(NAMES).compiled_as is not model


def test_a_model_with_an_attribute_of_an_unknown_kind_is_compiled_for_itself():
    model = LinearRegression(NAMES, prior_sd=1.0)
    model.extra = lambda theta: theta
    assert first_equal(model) is model


def test_what_becomes_of_a_model_changes_no_other():
    model = LinearRegression(NAMES, prior_sd=7.0)
    shared = model.compiled_as
    model.prior_sd = np.array([0.5, 0.5])
    assert LinearRegression(NAMES, prior_sd=7.0).compiled_as is shared
    np.testing.assert_array_equal(shared.prior_sd, 7.0)


def test_few_models_are_kept():
    first = weakref.ref(LinearRegression(NAMES, noise_sd=3.0, prior_sd=1.0).compiled_as)
    assert first() is not None
    for number in range(MOST_KEPT):
        assert (
            LinearRegression(NAMES, noise_sd=4.0 + number, prior_sd=1.0).compiled_as is not first()
        )
    gc.collect()
    assert first() is None
    assert _copy_of_first.cache_info().currsize == MOST_KEPT


def test_a_second_fit_of_an_equal_model_compiles_nothing(make_parties):
    parties = make_parties((30, 40), output="bernoulli")
    names = ("u", "v", "w")
    compiled = []

    def listen(event, duration, **_):
        if event.endswith("backend_compile_duration"):
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        fits = []
        for _ in range(2):
            before = len(compiled)
            model = LogisticRegression(names, prior_sd=1.75)
            some = Synchronous(rounds=4, parties_per_round=1)  # local optimisation, which compiles
            fits.append(tacit.fit(model, parties, privacy="none", schedule=some))
            counts = len(compiled) - before
            assert counts > 0 if len(fits) == 1 else counts == 0
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    first, second = (fit.posterior.mean for fit in fits)
    np.testing.assert_array_equal(first, second)
