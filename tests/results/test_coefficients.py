"""Coefficients in the units of the columns: the same predictions as θ on the scaled columns."""

import math

import numpy as np
import polars as pl
import pytest

import tacit
from tacit.data.config import ColumnConfig
from tacit.data.prepare import encode, read_column
from tacit.data.schema.layout import layout_of
from tacit.data.schema.units import parse_unit
from tacit.errors import ConfigError
from tacit.expfam import FullGaussian, MeanFieldGaussian
from tacit.models import LinearRegression, LogisticRegression, SoftmaxRegression
from tacit.results.coefficients import as_ratios, coefficients, unit_map
from tacit.results.posterior import Posterior

COLUMNS = (
    ColumnConfig(name="age", low=20, high=100, unit="10 years"),
    ColumnConfig(name="sex", levels=("f", "m"), reference="f"),
    ColumnConfig(name="bmi", low=10, high=60, center=25, scale=5, missing="indicator"),
    ColumnConfig(name="ward", levels=("a", "b"), missing="level"),
)
RAW = pl.DataFrame(
    {
        "age": [20.0, 55.0, 91.0],
        "sex": ["f", "m", "m"],
        "bmi": [20.0, 31.0, 44.0],
        "ward": ["a", "b", "a"],
    }
)


def encoded():
    read = [read_column(RAW[one.name], one, pooled=False) for one in COLUMNS]
    return encode(read, len(RAW))


def posterior(model, seed=0, family=FullGaussian):
    rng = np.random.default_rng(seed)
    size = model.dimension
    mean = rng.normal(size=size)
    root = rng.normal(size=(size, size)) / size + 0.3 * np.eye(size)
    kind = family(size)
    if family is MeanFieldGaussian:
        natural = kind.natural(mean=mean, sd=np.abs(rng.normal(size=size)) + 0.1)
    else:
        natural = kind.natural(mean=mean, covariance=root @ root.T)
    return Posterior(model, kind, natural)


def test_raw_columns_times_the_mapped_coefficients_are_the_predictor():
    x, names = encoded()
    model = LogisticRegression(names, layout=layout_of(COLUMNS), prior_sd=1.0)
    theta = np.random.default_rng(1).normal(size=len(names))
    found = unit_map(model, COLUMNS)
    beta = dict(zip([term.text for term in found.terms], found.values(theta), strict=True))
    for row, expected in zip(RAW.iter_rows(named=True), x @ theta, strict=True):
        eta = beta["intercept"] + beta["age"] / 10 * row["age"] + beta["bmi"] * row["bmi"]
        eta += beta["sex: m vs f"] * (row["sex"] == "m") + beta[f"ward: {row['ward']}"]
        assert eta == pytest.approx(expected, rel=1e-12)
    assert {term.text: term.unit for term in found.terms}["age"] == "10 years"


@pytest.mark.parametrize("family", [FullGaussian, MeanFieldGaussian])
def test_moments_are_those_of_mapped_draws(family):
    names = encoded()[1]
    q = posterior(LogisticRegression(names, layout=layout_of(COLUMNS), prior_sd=1.0), family=family)
    rows = coefficients(q, COLUMNS, level=0.8)
    found = unit_map(q.model, COLUMNS)
    draws = found.values(q.sample(60_000, seed=3))
    np.testing.assert_allclose([row.sd for row in rows], draws.std(axis=0), rtol=0.02)
    low, high = np.quantile(draws, (0.1, 0.9), axis=0)
    np.testing.assert_allclose([row.low for row in rows], low, atol=0.03 * draws.std(axis=0).max())
    np.testing.assert_allclose(
        [row.high for row in rows], high, atol=0.03 * draws.std(axis=0).max()
    )


def test_learned_of_mapped_coefficients_compares_their_own_variances():
    names = encoded()[1]
    q = posterior(LogisticRegression(names, layout=layout_of(COLUMNS), prior_sd=1.0))
    prior_sd = np.linspace(1.0, 3.0, len(names))
    share = 1 - np.square(q.sd / prior_sd)
    rows = coefficients(q, COLUMNS, learned=list(share))
    found = unit_map(q.model, COLUMNS)
    prior = np.sqrt(np.square(found.matrix) @ np.square(prior_sd))
    expected = [1 - (row.sd / sd) ** 2 for row, sd in zip(rows, prior, strict=True)]
    np.testing.assert_allclose([row.learned for row in rows], expected, rtol=1e-9)
    assert rows[1].learned == pytest.approx(share[1])  # a slope: its unit does not matter


def test_a_scaled_outcome_gives_coefficients_in_its_own_unit():
    columns = (
        ColumnConfig(name="age", low=20, high=100),
        ColumnConfig(name="pressure", low=60, high=260, center=120, scale=20),
    )
    features = columns[:1]
    model = LinearRegression(("intercept", "age"), layout=layout_of(features), prior_sd=1.0)
    found = unit_map(model, columns, "pressure")
    theta = np.array([0.5, 2.0])
    beta = found.values(theta)
    scaled = 0.5 + 2.0 * (50 - 60) / 40
    assert beta[0] + beta[1] * 50 == pytest.approx(120 + 20 * scaled)


def test_levels_of_an_outcome_are_shown_against_the_first():
    x, names = encoded()
    model = SoftmaxRegression(
        names, levels=("home", "ward", "icu"), layout=layout_of(COLUMNS), prior_sd=1.0
    )
    q = posterior(model)
    found = unit_map(model, COLUMNS)
    assert [term.text for term in found.terms][:2] == [
        "ward vs home: intercept",
        "ward vs home: age",
    ]
    theta = q.mean.reshape(3, -1)
    odds = x @ (theta[2] - theta[0])
    beta = dict(zip([term.text for term in found.terms], found.values(q.mean), strict=True))
    eta = beta["icu vs home: intercept"] + 2.0 * beta["icu vs home: age"]
    eta += 20.0 * beta["icu vs home: bmi"] + beta["icu vs home: ward: a"]
    assert eta == pytest.approx(odds[0])


def test_ratios_are_quantiles_of_the_exponential():
    names = encoded()[1]
    q = posterior(LogisticRegression(names, layout=layout_of(COLUMNS), prior_sd=1.0))
    rows = as_ratios(coefficients(q, COLUMNS))
    assert "intercept" not in [row.name for row in rows]
    draws = np.exp(unit_map(q.model, COLUMNS).values(q.sample(200_000, seed=5)))[:, 1:]
    np.testing.assert_allclose([row.mean for row in rows], np.median(draws, axis=0), rtol=0.02)
    np.testing.assert_allclose([row.sd for row in rows], draws.std(axis=0), rtol=0.15)
    low, high = np.quantile(draws, (0.025, 0.975), axis=0)
    np.testing.assert_allclose([row.low for row in rows], low, rtol=0.03)
    np.testing.assert_allclose([row.high for row in rows], high, rtol=0.03)


@pytest.mark.parametrize(
    ("text", "number", "words"),
    [
        ("year", 1.0, "year"),
        ("10 years", 10.0, "years"),
        ("0.5 mg/dl", 0.5, "mg/dl"),
        ("10years", 10.0, "years"),
        ("1e1 years", 10.0, "years"),
        ("5%", 5.0, "%"),
        ("kg/m2", 1.0, "kg/m2"),
        ("mg per 100 ml", 1.0, "mg per 100 ml"),
        ("1 10^9/l", 1.0, "10^9/l"),
    ],
)
def test_a_unit_may_begin_with_a_number(text, number, words):
    assert parse_unit(text) == (number, words)


@pytest.mark.parametrize(
    "unit",
    [
        "", "10", "  ", "10e3", "per 10 years", "ten years", "per ten years", "10-year",
        "-10 years", "0 years", "10,5 years", "10 000 cells", "about 10 years", "2nd year",
        "½ year", ".5 years",
    ],
)  # fmt: skip
def test_a_unit_whose_number_cannot_be_read_is_refused(unit, fitted):
    """It would label the effect of one unit."""
    with pytest.raises(ConfigError, match=r'columns\.age\.unit = .*"10 years"'):
        ColumnConfig(name="age", low=0, high=1, unit=unit)
    with pytest.raises(ConfigError, match=r'per = .*"10 years"'):
        fitted.summary(per={"age": unit})


@pytest.fixture(scope="module")
def fitted():
    hospitals = tacit.datasets.load("synthetic-cohort", parties=2, records=400, seed=1)
    return tacit.fit(tacit.models.LogisticRegression, hospitals, privacy=None)


def test_a_summary_is_a_frame_in_original_units(fitted):
    table = fitted.summary()
    assert table.columns == ["term", "unit", "mean", "sd", "low", "high", "learned", "prior"]
    scaled = fitted.summary(scale="scaled")
    age = table.filter(pl.col("term") == "age")["mean"].item()
    center, scale = fitted.schema.scale["age"]
    del center
    assert age == pytest.approx(scaled.filter(pl.col("term") == "age")["mean"].item() / scale)
    ten = fitted.summary(per={"age": 10})
    assert ten.filter(pl.col("term") == "age")["mean"].item() == pytest.approx(10 * age)
    ratio = fitted.summary(exponentiate=True, per={"age": "10 years"})
    assert ratio.filter(pl.col("unit") == "10 years")["odds_ratio"].item() == pytest.approx(
        math.exp(10 * age)
    )
    narrow = fitted.summary(level=0.5)
    assert (narrow["high"] - narrow["low"] < table["high"] - table["low"]).all()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"per": {"agee": 10}}, "did you mean 'age'|did you mean age"),
        ({"per": {"age": 0}}, "above 0"),
        ({"per": {"sex": 10}}, "sex"),
        ({"scale": "raw"}, "original"),
        ({"level": 95}, "between 0 and 1"),
    ],
)
def test_wrong_arguments_are_named(fitted, arguments, words):
    with pytest.raises(ConfigError, match=words):
        fitted.summary(**arguments)
