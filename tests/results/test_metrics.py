"""Metrics against scikit-learn and cases done by hand."""

import json

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss

from tacit.errors import DataError
from tacit.expfam import MeanFieldGaussian
from tacit.models import LinearRegression, LogisticRegression, NormalMean, SoftmaxRegression
from tacit.results import Prediction, calibration_bins, calibration_error, evaluate, predict, score
from tacit.results.metrics import concordance


@pytest.fixture
def logistic():
    rng = np.random.default_rng(0)
    model, family = LogisticRegression(("a", "b"), prior_sd=1.0), MeanFieldGaussian(2)
    q = family.natural(mean=np.array([1.0, -0.5]), sd=np.array([0.3, 0.6]))
    x = rng.normal(size=(400, 2))
    y = (rng.random(400) < 1 / (1 + np.exp(-x @ [1.0, -0.5]))).astype(float)
    return model, family, q, {"x": x, "y": y}


def test_bernoulli_metrics_equal_scikit_learn(logistic):
    model, family, q, records = logistic
    probability, y = predict(model, family, q, records).mean, records["y"]
    got = evaluate(model, family, q, records)
    assert set(got) == {"log_predictive_density", "accuracy", "brier", "calibration_error", "auroc"}
    assert got["accuracy"] == pytest.approx(accuracy_score(y, probability > 0.5))
    assert got["brier"] == pytest.approx(brier_score_loss(y, probability))
    assert got["log_predictive_density"] == pytest.approx(-log_loss(y, probability))
    assert all(type(value) is float for value in got.values())
    assert json.loads(json.dumps(got)) == got


def test_two_levels_have_the_brier_score_of_a_yes_or_no(logistic):
    model, family, q, records = logistic
    yes = predict(model, family, q, records)
    both = yes._replace(mean=np.column_stack([1 - yes.mean, yes.mean]))
    softmax = SoftmaxRegression(("a", "b"), levels=("no", "yes"), prior_sd=1.0)
    expected = score(model, yes, records)["brier"]
    assert score(softmax, both, records)["brier"] == pytest.approx(expected)


def test_gaussian_metrics_by_hand():
    model, family = NormalMean(noise_sd=1.0), MeanFieldGaussian(1)
    q = family.natural(mean=np.zeros(1), sd=np.array([1e-9]))
    y = np.array([-2.0, -1.0, 1.0, 1.6])
    got = evaluate(model, family, q, {"y": y})
    assert got["rmse"] == pytest.approx(np.sqrt(np.mean(y**2)))
    assert got["coverage_90"] == pytest.approx(0.75)
    assert got["log_predictive_density"] == pytest.approx(
        -0.5 * np.mean(y**2) - 0.5 * np.log(2 * np.pi)
    )


def test_coverage_is_ninety_per_cent_for_the_true_posterior_and_not_for_a_wrong_noise():
    rng = np.random.default_rng(1)
    family, x = MeanFieldGaussian(1), rng.normal(size=(20_000, 1))
    q = family.natural(mean=np.array([2.0]), sd=np.array([0.5]))
    theta = 2.0 + 0.5 * rng.normal(size=20_000)
    records = {"x": x, "y": theta * x[:, 0] + 0.7 * rng.normal(size=20_000)}
    right = evaluate(LinearRegression(("a",), noise_sd=0.7, prior_sd=1.0), family, q, records)
    wrong = evaluate(LinearRegression(("a",), noise_sd=0.6, prior_sd=1.0), family, q, records)
    four_sigma = 4 * np.sqrt(0.9 * 0.1 / 20_000)
    assert right["coverage_90"] == pytest.approx(0.9, abs=four_sigma)
    assert wrong["coverage_90"] < 0.9 - four_sigma


def test_no_records_no_metrics(logistic):
    model, family, q, _ = logistic
    assert evaluate(model, family, q, {"x": np.zeros((0, 2)), "y": np.zeros(0)}) is None
    assert evaluate(model, family, q, {}) is None


def test_other_outputs_have_only_a_log_likelihood(logistic):
    model = logistic[0]
    model.output = "other"
    prediction = Prediction(np.zeros(2), np.array([-1.0, -3.0]), None)
    assert score(model, prediction, {"z": np.zeros(2)}) == {"log_predictive_density": -2.0}


def test_what_is_not_finite_becomes_none_and_never_a_number(logistic):
    model, family, q, records = logistic
    x = records["x"].copy()
    x[3, 0] = np.nan
    assert set(evaluate(model, family, q, {**records, "x": x}).values()) == {None}
    prediction = Prediction(np.array([0.4]), np.array([-np.inf]), None)
    assert score(model, prediction, {"y": np.zeros(1)})["log_predictive_density"] is None
    linear = LinearRegression(("a", "b"), prior_sd=1.0)
    assert set(evaluate(linear, family, q, {**records, "x": x}).values()) == {None}


def test_ece_of_known_cases():
    sure = np.array([1.0, 1.0, 0.0, 0.0])
    assert calibration_error(sure, sure) == 0.0
    assert calibration_error(sure, 1 - sure) == 1.0
    assert calibration_error(np.full(10, 0.7), np.r_[np.ones(7), np.zeros(3)]) == pytest.approx(0)
    assert calibration_error(np.full(10, 0.9), np.r_[np.ones(5), np.zeros(5)]) == pytest.approx(0.4)
    two_bins = calibration_error(np.r_[np.full(3, 0.1), 0.9], np.array([0, 0, 1, 1]))
    assert two_bins == pytest.approx(0.75 * abs(1 / 3 - 0.1) + 0.25 * 0.1)
    assert np.isnan(calibration_error(np.zeros(0), np.zeros(0)))
    assert np.isnan(calibration_error(np.array([np.nan, 0.5]), np.ones(2)))


def test_ece_of_calibrated_predictions_is_small_and_of_overconfident_ones_is_not():
    rng = np.random.default_rng(2)
    probability = rng.random(20_000)
    y = (rng.random(20_000) < probability).astype(float)
    assert calibration_error(probability, y) < 0.03
    assert calibration_error(np.clip(2 * probability - 0.5, 0, 1), y) > 0.08


def test_reliability_bins_partition_the_records():
    rng = np.random.default_rng(3)
    probability = np.r_[rng.random(500), 0.0, 1.0, 1 / 15, np.nan]
    y = (rng.random(504) < 0.5).astype(float)
    rows = calibration_bins(probability, y)
    assert sum(row.count for row in rows) == 503
    assert all(row.low <= row.predicted <= row.high for row in rows)
    assert len(rows) == 15
    assert rows[0].low == 0.0
    assert rows[-1].high == 1.0
    assert all(type(row.predicted) is float for row in rows)


def test_empty_bins_are_left_out():
    rows = calibration_bins(np.array([0.01, 0.99]), np.array([0, 1]))
    assert [row.count for row in rows] == [1, 1]


def test_labels_other_than_zero_and_one_are_refused():
    with pytest.raises(DataError, match="y holds 2"):
        calibration_bins(np.array([0.5]), np.array([2]))
    with pytest.raises(DataError, match="y holds nan"):
        calibration_bins(np.array([0.5]), np.array([np.nan]))


def test_concordance_counts_pairs():
    rng = np.random.default_rng(2)
    predicted, y = np.round(rng.normal(size=60), 1), rng.integers(0, 5, 60).astype(float)
    right = total = 0.0
    for i in range(60):
        for j in range(i):
            if y[i] != y[j]:
                total += 1
                order = np.sign(predicted[i] - predicted[j]) * np.sign(y[i] - y[j])
                right += 0.5 * (1 + order)
    assert concordance(predicted, y) == pytest.approx(right / total, abs=1e-9)
    assert concordance(y, y) == 1.0
    assert concordance(-y, y) == 0.0
    assert np.isnan(concordance(np.zeros(60), y))
    assert np.isnan(concordance(predicted, np.ones(60)))
