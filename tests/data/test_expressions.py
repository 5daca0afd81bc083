"""Transformations and interactions: their values, and bounds that no value leaves."""

import tomllib

import numpy as np
import pandas as pd
import pytest

import tacit
from tacit.data.expressions import parse_expression
from tacit.errors import ConfigError, DataError
from tacit.run.config import parse_config, plain_config

RNG = np.random.default_rng(4)
N = 400
FRAME = pd.DataFrame(
    {
        "age": RNG.uniform(20, 90, N),
        "dose": RNG.uniform(1, 50, N),
        "sex": np.where(RNG.random(N) < 0.5, "f", "m"),
        "ward": np.array(["a", "b"])[np.arange(N) % 2],
    }
)
FRAME["stay"] = (
    2.0
    + 0.1 * FRAME["age"]
    + 0.05 * (FRAME["age"] - 60) * (FRAME["sex"] == "m")
    + 1.5 * np.log(FRAME["dose"])
    + RNG.normal(0, 1, N)
)
SCHEMA = tacit.Schema(
    bounds={"age": (20, 100), "dose": (1, 60), "stay": (-10, 40)}, levels={"sex": ["f", "m"]}
)
FORMULA = "stay ~ age*C(sex) + log(dose)"


@pytest.mark.parametrize(
    "text",
    ["log(a)", "I(b**2)", "I(b**3 - 2*a)", "I((a - 3)/b2)", "sqrt(a) * -b", "exp(b/5) + a*b", "b"],
)
def test_no_value_leaves_the_bounds_of_an_expression(text):
    found = parse_expression(text)
    ranges = {"a": (0.5, 4.0), "b": (-2.0, 3.0), "b2": (1.0, 2.0)}
    columns = {name: RNG.uniform(*ends, 4000) for name, ends in ranges.items()}
    for name, ends in ranges.items():
        columns[name][:2] = ends
    values = found.values(columns)
    low, high = found.bounds(ranges)
    assert low - 1e-9 <= values.min()
    assert values.max() <= high + 1e-9
    if len(found.columns) == 1 and text.count(found.columns[0]) == 1:
        assert high - low <= 1.2 * (values.max() - values.min())


def test_a_range_that_is_not_finite_is_refused():
    for text, words in (
        ("log(a)", "must be above 0"),
        ("I(1/a)", "divisor may be 0"),
        ("exp(a)", "no finite range"),
    ):
        with pytest.raises(ConfigError, match=words):
            parse_expression(text).bounds({"a": (-1.0, 1e6)})


def test_effects_are_those_of_least_squares_in_the_users_units():
    fit = tacit.fit(FORMULA, FRAME, party="ward", schema=SCHEMA, privacy=None)
    table = fit.summary()
    terms = ["intercept", "age", "sex: m vs f", "log(dose)", "age:sex[m]", "noise sd"]
    assert table["term"].to_list() == terms
    male = (FRAME["sex"] == "m").to_numpy()
    age = FRAME["age"].to_numpy()
    design = np.column_stack(
        [np.ones(N), age, male, np.log(FRAME["dose"]), (age - 60) * male]
    ).astype(float)
    solution = np.linalg.lstsq(design, FRAME["stay"].to_numpy(), rcond=None)[0]
    np.testing.assert_allclose(table["mean"].to_numpy()[:5], solution, atol=0.05)
    np.testing.assert_allclose(fit.predict(FRAME), design @ solution, atol=0.1)
    assert "Interactions: main effects of interacting columns hold at age = 60." in str(fit)
    named = tacit.Schema(bounds=SCHEMA.bounds, levels=SCHEMA.levels, units={"age": "10 years"})
    rows = tacit.fit(FORMULA, FRAME, party="ward", schema=named, privacy=None).summary()
    np.testing.assert_allclose(rows["mean"][4], 10 * table["mean"][4], rtol=1e-6)
    assert rows["unit"][4] == "10 years"
    inferred = tacit.fit(FORMULA, FRAME, party="ward", privacy=None)
    np.testing.assert_allclose(inferred.predict(FRAME), fit.predict(FRAME), atol=0.1)


def test_bounds_of_derived_columns_are_public_and_saved(tmp_path):
    privacy = tacit.Privacy(epsilon=50.0, delta=1e-5, insecure_noise_seed=1)
    frame = FRAME.assign(high=np.random.default_rng(3).integers(0, 2, len(FRAME)))
    levels = {"sex": ["f", "m"], "high": [0, 1]}
    schema = tacit.Schema(bounds={"age": (20, 100), "dose": (1, 60)}, levels=levels)
    fit = tacit.fit("high ~ age*C(sex) + log(dose)", frame, schema=schema, privacy=privacy)
    found = {one.name: (one.low, one.high) for one in fit.schema.columns}
    assert found["age:sex[m]"] == (-40.0, 40.0)
    np.testing.assert_allclose(found["log(dose)"], (0.0, np.log(60)))
    assert fit._result.data.scaling == "public"
    again = tacit.load(fit.save(tmp_path / "fit"))
    np.testing.assert_array_equal(again.predict(frame), fit.predict(frame))
    wide = tacit.Schema(bounds={"dose": (0, 60)}, levels=levels)
    with pytest.raises(ConfigError, match="must be above 0"):
        tacit.fit("high ~ log(dose)", frame, schema=wide, privacy=privacy)
    with pytest.raises(ConfigError, match='"dose" has no public bounds'):
        tacit.fit("high ~ log(dose)", frame, schema=tacit.Schema(levels=levels), privacy=privacy)


def test_a_value_without_a_logarithm_names_its_row():
    frame = FRAME.assign(dose=FRAME["dose"].where(FRAME.index != 3, 0.0))
    with pytest.raises(DataError, match=r'column "dose", data row 4: log\(dose\) of 0 is -inf'):
        tacit.fit("stay ~ log(dose)", frame, privacy=None)


def test_a_study_file_has_derived_columns_and_keeps_them():
    text = """
formula = "died ~ age*C(sex) + log(dose)"
privacy = "none"
[data]
path = "a.csv"
[columns]
age = { low = 20, high = 100 }
dose = { low = 1, high = 60 }
sex = { levels = ["f", "m"] }
died = { levels = ["no", "yes"] }
"""
    config = parse_config(tomllib.loads(text))
    features = [one.name for one in config.data.columns if one.feature and one.name != "died"]
    assert features == ["age", "sex", "log(dose)", "age:sex[m]"]
    assert parse_config(plain_config(config)) == config
    for wrong, words in (("log(dos)", 'names "dos"'), ("age*weight", 'names "weight"')):
        with pytest.raises(ConfigError, match=words):
            parse_config(tomllib.loads(text.replace("log(dose)", wrong)))
