"""Regressions as estimators: scikit-learn's own checks, natural units, parties and privacy."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression as SklearnLogistic
from sklearn.linear_model import PoissonRegressor
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

import tacit
from tacit.errors import ConfigError
from tacit.sklearn import LinearRegression, LogisticRegression, PoissonRegression

FRACTIONS = "scikit-learn's check uses outcomes that are not whole numbers; a count is one"
EXPECTED_FAILURES = {
    "check_regressors_train": FRACTIONS,
    "check_regressor_data_not_an_array": FRACTIONS,
    "check_regressors_no_decision_function": FRACTIONS,
}
"""Of PoissonRegression."""
BOUNDS = {"age": (18, 105), "bmi": (10, 60)}


def checks():
    """All checks of a classifier; of the regressors those that a classifier does not have."""
    seen = set()
    for estimator in (
        LogisticRegression(privacy=None),
        LinearRegression(privacy=None),
        PoissonRegression(privacy=None),
    ):
        for made, check in estimator_checks_generator(estimator):
            name = check.func.__name__
            first = type(estimator).__name__
            if first != "LogisticRegression" and name in seen and "regressor" not in name:
                continue
            seen.add(name)
            marks = []
            if first == "PoissonRegression" and name in EXPECTED_FAILURES:
                marks = [pytest.mark.xfail(reason=EXPECTED_FAILURES[name], strict=True)]
            yield pytest.param(made, check, id=f"{first}-{name}", marks=marks)


@pytest.mark.filterwarnings("ignore")  # the checks make hopeless fits on purpose
@pytest.mark.parametrize(("estimator", "check"), list(checks()))
def test_estimator_checks_of_scikit_learn(estimator, check):
    check(estimator)


def test_without_a_declared_prior_scales_are_learnt_as_in_a_fit():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3)) * [1.0, 1e3, 1e-3]
    y = (rng.random(200) < 1 / (1 + np.exp(-x[:, 0]))).astype(int)
    default = LogisticRegression(privacy=None).fit(x, y)
    assert "scales learned from the records" in default.fit_.summary()["prior"][0]
    declared = LogisticRegression(privacy=None, prior_sd=1.0).fit(x, y)
    assert declared.fit_.summary()["prior"][0].startswith("N(0, 1²)")


@pytest.fixture(scope="module")
def patients():
    rng = np.random.default_rng(3)
    frame = pd.DataFrame({"age": rng.uniform(20, 90, 1500), "bmi": rng.normal(27, 4, 1500)})
    chance = 1 / (1 + np.exp(4.5 - 0.05 * frame["age"] - 0.04 * frame["bmi"]))
    died = np.where(rng.random(1500) < chance, "yes", "no")
    return frame, died, rng.choice(["north", "south", "east"], 1500)


def test_coefficients_are_in_the_units_of_the_columns_and_parties_do_not_change_them(patients):
    frame, died, hospital = patients
    several = LogisticRegression(privacy=None, prior_sd=30.0).fit(frame, died, groups=hospital)
    one = LogisticRegression(privacy=None, prior_sd=30.0).fit(frame, died)
    other = SklearnLogistic(C=1e8, max_iter=5000).fit(frame, died)
    np.testing.assert_allclose(several.coef_, other.coef_, rtol=0.02)
    np.testing.assert_allclose(several.intercept_, other.intercept_, rtol=0.02)
    np.testing.assert_allclose(several.coef_, one.coef_, rtol=1e-4)
    assert list(several.classes_) == ["no", "yes"]
    assert len(several.fit_._result.parties) == 3
    assert several.feature_names_in_.tolist() == ["age", "bmi"]
    np.testing.assert_allclose(
        several.predict_proba(frame)[:, 1], other.predict_proba(frame)[:, 1], atol=0.01
    )


def test_the_fit_behind_an_estimator_speaks_the_same_units(patients):
    frame, died, _ = patients
    named = frame.rename(columns={"bmi": "y"})  # the name of the outcome elsewhere
    model = LogisticRegression(privacy=None).fit(named, died)
    table = model.fit_.summary()
    assert table["term"].to_list() == ["intercept", "age", "y"]
    np.testing.assert_allclose(table["mean"][1:], model.coef_[0], rtol=1e-6)
    np.testing.assert_allclose(table["mean"][0], model.intercept_[0], rtol=1e-6)
    np.testing.assert_allclose(
        model.fit_.predict(named.head(5)), model.predict_proba(named.head(5))[:, 1], rtol=1e-6
    )
    line = LinearRegression(privacy=None).fit(frame, 100.0 + 3.0 * frame["age"])
    np.testing.assert_allclose(line.fit_.summary()["mean"][1:-1], line.coef_, rtol=1e-6, atol=1e-9)


def test_cloned_piped_cross_validated_and_pickled(patients):
    frame, died, hospital = patients
    model = LogisticRegression(privacy=None, bounds=BOUNDS, prior_sd=5.0)
    assert clone(model).get_params() == model.get_params()
    scores = cross_val_score(model, frame, died, cv=3, params={"groups": hospital})
    assert scores.min() > 0.6
    piped = make_pipeline(StandardScaler(), LogisticRegression(privacy=None))
    piped.fit(frame, died, logisticregression__groups=hospital)
    fitted = model.fit(frame, died)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict(frame), fitted.predict(frame))


def test_a_private_fit_needs_public_facts_and_has_its_guarantee(patients):
    frame, died, hospital = patients
    privacy = tacit.Privacy(epsilon=3.0)
    with pytest.raises(ConfigError, match="bounds of age are missing"):
        LogisticRegression(privacy, classes=["no", "yes"]).fit(frame, died)
    with pytest.raises(ConfigError, match="classes is missing"):
        LogisticRegression(privacy, bounds=BOUNDS).fit(frame, died)
    with pytest.raises(ConfigError, match="outcome_bounds is missing"):
        LinearRegression(privacy, bounds=BOUNDS).fit(frame, frame["age"])
    with pytest.raises(ConfigError, match="max_count is missing"):
        PoissonRegression(privacy, bounds=BOUNDS).fit(frame, np.ones(1500))
    model = LogisticRegression(privacy, bounds=BOUNDS, classes=["no", "yes"], prior_sd=3.0)
    model.fit(frame, died, groups=hospital)
    assert model.privacy_.private
    assert model.privacy_.epsilon == pytest.approx(3.0, rel=0.01)
    assert abs(model.coef_[0, 0] - 0.05) < 0.03


def test_bounds_clip_records_of_training_and_of_predictions(patients):
    frame, died, _ = patients
    model = LogisticRegression(privacy=None, bounds=BOUNDS).fit(frame, died)
    outside = pd.DataFrame({"age": [105.0, 400.0], "bmi": [27.0, 27.0]})
    chances = model.predict_proba(outside)[:, 1]
    assert chances[0] == chances[1]


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ({"height": (1, 2)}, "no such column"),
        ((5, 1), "low must be less than high"),
        ([(0, 1)], "has 1 pairs, but X has 2 columns"),
        ({"age": "old"}, "give two numbers"),
    ],
)
def test_bad_bounds_are_refused(patients, bounds, words):
    frame, died, _ = patients
    with pytest.raises(ConfigError, match=words):
        LogisticRegression(privacy=None, bounds=bounds).fit(frame, died)


def test_linear_and_poisson_regression_recover_natural_units(patients):
    frame, _, hospital = patients
    rng = np.random.default_rng(0)
    pressure = 100.0 + 0.5 * frame["age"] - 2.0 * frame["bmi"] + rng.normal(0, 3, 1500)
    line = LinearRegression(privacy=None, prior_sd=10.0).fit(frame, pressure, groups=hospital)
    np.testing.assert_allclose(line.coef_, [0.5, -2.0], rtol=0.05)
    assert line.intercept_ == pytest.approx(100.0, rel=0.03)
    assert line.fit_.summary()["mean"][-1] == pytest.approx(3.0, rel=0.1)
    known = LinearRegression(privacy=None, prior_sd=10.0, noise_sd=3.0).fit(frame, pressure)
    np.testing.assert_allclose(known.coef_, line.coef_, rtol=0.01)
    visits = rng.poisson(np.exp(-1.0 + 0.02 * frame["age"]))
    rate = PoissonRegression(privacy=None, prior_sd=30.0).fit(frame, visits, groups=hospital)
    other = PoissonRegressor(alpha=0, max_iter=3000, tol=1e-8).fit(frame, visits)
    np.testing.assert_allclose(rate.coef_, other.coef_, atol=0.002)
    assert rate.score(frame, visits) == pytest.approx(other.score(frame, visits), abs=0.005)
