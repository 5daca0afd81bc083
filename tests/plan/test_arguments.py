"""What a user may hand to `tacit.fit`, and what is refused in one line with the next step."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import tacit
from tacit.errors import ConfigError, DataError

X = np.linspace(-1.0, 1.0, 24).reshape(12, 2)
Y = np.tile([0.0, 1.0, 1.0], 4)
MODEL = tacit.models.LogisticRegression(("u", "v"), prior_sd=1.0)
PARTIES = {"a": {"x": X, "y": Y}, "b": {"x": X[::-1] * 0.5, "y": Y}}


def fit(model=MODEL, parties=PARTIES, **options):
    return tacit.fit(model, parties, **({"privacy": "none"} | options))


@pytest.mark.parametrize(
    ("options", "same"),
    [
        ({"schedule": "sequential"}, {"schedule": tacit.schedules.Sequential()}),
        ({"schedule": tacit.schedules.Sequential}, {"schedule": tacit.schedules.Sequential()}),
        ({"schedule": "synchronous"}, {}),
        ({"method": "gradient-vi"}, {"method": tacit.methods.GradientVI()}),
        ({"method": tacit.methods.GradientVI}, {"method": tacit.methods.GradientVI()}),
        ({"method": "auto"}, {}),
        ({"seed": np.int64(3)}, {"seed": 3}),
    ],
)
def test_names_and_classes_stand_for_objects(options, same):
    np.testing.assert_array_equal(fit(**options).posterior.mean, fit(**same).posterior.mean)


def test_a_private_method_has_a_name_too():
    privacy = tacit.Privacy(epsilon=5.0, delta=1e-3, insecure_noise_seed=1)
    by_name = fit(method="dp-sgd", privacy=privacy)
    by_object = fit(method=tacit.methods.DPSGD(), privacy=privacy)
    np.testing.assert_array_equal(by_name.posterior.mean, by_object.posterior.mean)


def test_lists_and_other_columns_are_read_as_arrays():
    lists = {"a": {"x": X.tolist(), "y": Y.tolist()}}
    series = {"a": {"x": pl.DataFrame(X), "y": pl.Series(Y)}}
    expected = fit(parties={"a": PARTIES["a"]}).posterior.mean
    for parties in (lists, series):
        np.testing.assert_array_equal(fit(parties=parties).posterior.mean, expected)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"schedule": "synchronus"}, "schedule = 'synchronus'; did you mean 'synchronous'?"),
        ({"schedule": 3}, "schedule = 3; choose one of sequential, synchronous, asynchronous"),
        ({"method": "sgd"}, "method = 'sgd'; did you mean 'dp-sgd'?"),
        ({"method": 7}, "method = 7; choose one of exact, natural, "),
        ({"model": "logistic"}, "model = 'logistic'; give a formula such as"),
        ({"model": None}, "model = None; give a model such as"),
        ({"model": len}, "give tacit.from_numpyro(len, example, …)"),
        ({"seed": "x"}, "seed = 'x'; give a whole number"),
        ({"seed": 1.5}, "seed = 1.5; give a whole number"),
        ({"seed": None}, "seed = None; give a whole number"),
        ({"callback": 3}, "callback = 3; give a function"),
        ({"posterior": 3}, "posterior = 3 is unknown; choose one of"),
        ({"privacy": 1.0}, "privacy = 1.0; give tacit.Privacy("),
    ],
)
def test_a_wrong_argument_is_a_config_error(options, words):
    with pytest.raises(ConfigError) as caught:
        fit(**options)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def of(x=X, y=Y):
    return {"a": {"x": x, "y": y}}


@pytest.mark.parametrize(
    ("parties", "words"),
    [
        ([PARTIES["a"]], "the parties are a list; give a dictionary from party names"),
        (None, "the parties are a None; give a dictionary"),
        (pl.DataFrame(X), "data frames and files need a formula"),
        ({"a": pl.DataFrame(X)}, "data frames and files need a formula"),
        ({1: PARTIES["a"]}, "party name 1 is not a string"),
        ({"a": (X, Y)}, "the records of party 'a' are a tuple"),
        ({"a": {"x": X}}, "party 'a' has no column 'y' (it has x)"),
        (of(y=np.where(Y, "yes", "no")), "column 'y' holds text, not real numbers; recode"),
        (of(y=Y.astype(object)), "column 'y' holds values of type object, not real numbers"),
        (of(x=X * 1j), "column 'x' holds complex numbers, not real numbers"),
        (of(x=[[1.0], [1.0, 2.0]], y=[0, 1]), "column 'x': its rows differ in length"),
        (of(y=1.0), "column 'y' is the single value 1.0; give an array"),
        (of(x=X[:, 0]), "x has shape (n,), but model 'logistic' has 2 names"),
        (of(x=X[..., None]), "x has shape (n, 2, 1), but model 'logistic' has 2 names"),
        (of(x=X[:, :1]), "x has shape (n, 1), but model 'logistic' has 2 names; give x the shape"),
        (of(y=Y[:, None]), "y has rows of shape (1,); give one number per record"),
        (of(x=np.where(X > 0, X, np.nan)), "column 'x': a value is not finite"),
        (of(y=np.where(Y, Y, np.nan)), "column 'y': a value is not finite"),
        (of(y=Y[:-1]), "have different lengths"),
        (of(y=Y + 1), "y holds values other than 0 and 1"),
    ],
)
def test_wrong_records_are_a_data_error(parties, words):
    with pytest.raises(DataError) as caught:
        fit(parties=parties)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("test", "words"),
    [
        ([1, 2], "the records of test are a list"),
        ({"x": X}, "argument test has no column 'y'; add it, or leave test out"),
        ({"x": X[:, :1], "y": Y}, "argument test, column 'x' has rows of shape (1,), but the rows"),
        ({"x": X * np.nan, "y": Y}, "argument test, column 'x': a value is not finite"),
        ({"x": X, "y": Y[1:]}, "the columns of argument test have different lengths"),
    ],
)
def test_held_out_records_are_checked_before_training(test, words):
    def never(*_):
        pytest.fail("training has begun")

    with pytest.raises(DataError) as caught:
        fit(test=test, callback=never)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: tacit.models.LogisticRegression("age", prior_sd=1.0),
            "names = 'age'; give a sequence of names",
        ),
        (lambda: tacit.models.LinearRegression("age", prior_sd=1.0), "e.g. ('age',)"),
        (
            lambda: tacit.models.PoissonRegression("age", max_count=3, prior_sd=1.0),
            "give a sequence of names",
        ),
        (lambda: tacit.models.NeuralNetwork("age"), "inputs = 'age'; give a sequence"),
        (
            lambda: tacit.models.SoftmaxRegression("age", levels=("a", "b"), prior_sd=1.0),
            "columns = 'age'; give a sequence",
        ),
        (
            lambda: tacit.models.SoftmaxRegression(("age",), levels="abc", prior_sd=1.0),
            "levels = 'abc'; give a sequence",
        ),
        (
            lambda: tacit.models.LogisticRegression(None, prior_sd=1.0),
            "names = None; give a sequence of names",
        ),
        (
            lambda: tacit.models.LogisticRegression((1, 2), prior_sd=1.0),
            "names contains 1; give strings",
        ),
        (lambda: tacit.models.LogisticRegression((), prior_sd=1.0), "names is empty"),
        (
            lambda: tacit.models.LogisticRegression(("u", "u"), prior_sd=1.0),
            "names contains 'u' twice",
        ),
        (
            lambda: tacit.models.LogisticRegression(("u",), prior_sd="x"),
            "model.prior_sd = 'x'; give one",
        ),
        (
            lambda: tacit.models.LogisticRegression(("u",), prior_mean=[1, 2], prior_sd=1.0),
            "or an array of 1",
        ),
        (
            lambda: tacit.datasets.load("synthetic-cohort", partis=3),
            "takes no argument 'partis'; did you mean 'parties'?",
        ),
    ],
)
def test_models_and_data_refuse_wrong_arguments(make, words):
    with pytest.raises(ConfigError) as caught:
        make()
    assert words in str(caught.value)
