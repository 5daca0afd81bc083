"""Records as they come: values outside bounds, missing cells, odd codings, and what is said."""

import re
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest

import tacit
from tacit.data.codes import MissingCodeWarning
from tacit.data.prepare import OutsideBoundsWarning
from tacit.errors import ConfigError, DataError
from tacit.results.cautions import LittleLearnedWarning
from tacit.support.argument_names import in_python

RNG = np.random.default_rng(11)
N = 300
AGE = RNG.uniform(20, 90, N).round()
FRAME = pd.DataFrame(
    {
        "age": AGE,
        "sex": np.where(RNG.random(N) < 0.5, "f", "m"),
        "ward": np.where(RNG.random(N) < 0.5, "a", "b"),
        "died": (RNG.random(N) < AGE / 120).astype(int),
        "stay": 3 + 0.1 * AGE + RNG.normal(0, 2, N),
    }
)
SCHEMA = tacit.Schema(
    bounds={"age": (18, 100)},
    levels={"sex": ["f", "m"], "died": [0, 1]},
    missing={"sex": "drop", "age": "drop"},
)


SCHEMA_OF_SEX = tacit.Schema(levels={"sex": ["f", "m"]}, missing={"sex": "drop"})


def fitted(formula, frame, **more):
    return tacit.fit(formula, frame, privacy=None, **more)


def test_clipped_values_are_counted_in_a_warning():
    frame = FRAME.assign(age=FRAME["age"].where(FRAME.index > 2, 990.0))
    with pytest.warns(OutsideBoundsWarning, match=r"3 values of age to \[18, 100\]") as caught:
        fit = fitted("died ~ age", frame, schema=SCHEMA)
    assert caught[0].filename == __file__
    assert any("clipped to [18, 100]: 3" in line for line in str(fit).splitlines())
    with pytest.warns(OutsideBoundsWarning, match="1 value of age"):
        fit.predict(pd.DataFrame({"age": [50.0, 1000.0]}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit.predict(FRAME)


def test_many_values_outside_the_bounds_are_a_caution():
    frame = FRAME.assign(age=FRAME["age"].where(FRAME.index > len(FRAME) // 4, 990.0))
    with pytest.warns(OutsideBoundsWarning):
        fit = fitted("died ~ age", frame, schema=SCHEMA)
    (text,) = [one for one in fit.cautions if "outside" in one]
    assert text.startswith("2")
    assert "% of the values of age are outside the declared" in text
    for shown in (str(fit), repr(fit), fit._repr_html_()):
        assert text in shown
    few = FRAME.assign(age=FRAME["age"].where(FRAME.index > 0, 990.0))
    with pytest.warns(OutsideBoundsWarning):
        fit = fitted("died ~ age", few, schema=SCHEMA)
    assert len(FRAME) > 100
    assert not any("outside" in one for one in fit.cautions)


def test_the_share_outside_is_not_in_what_a_private_fit_shows_others(tmp_path):
    frame = FRAME.assign(age=FRAME["age"].where(FRAME.index > len(FRAME) // 4, 990.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        privacy = tacit.Privacy(epsilon=5.0, delta=1e-5)
        fit = tacit.fit("died ~ age", frame, schema=SCHEMA, privacy=privacy)
    (text,) = [one for one in fit.cautions if "outside" in one]
    assert f"Warning (exact, not covered by the guarantee): {text}" in str(fit)
    page = fit.report(tmp_path / "report.html").read_text("utf-8")
    folder = fit.save(tmp_path / "fit")
    saved = "".join(file.read_text("utf-8") for file in folder.glob("*.json*"))
    for shown in (repr(fit), fit._repr_html_(), page, saved):
        assert "of the values of age" not in shown
    assert not any("outside" in one for one in tacit.load(folder).cautions)


def test_a_large_delta_is_a_caution_for_those_who_may_see_the_records(tmp_path):
    """It contains the number of records."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        privacy = tacit.Privacy(epsilon=5.0, delta=0.01)
        fit = tacit.fit("died ~ age", FRAME, schema=SCHEMA, privacy=privacy)
    (text,) = [one for one in fit.cautions if "is not below 1/n" in one]
    assert text in str(fit)
    folder = fit.save(tmp_path / "fit")
    assert not any("below 1/n" in file.read_text("utf-8") for file in folder.glob("*.json*"))
    assert "below 1/n" not in repr(fit) + fit._repr_html_()


def test_numbers_of_clipped_and_dropped_records_stay_out_of_a_saved_private_fit(tmp_path):
    frame = FRAME.assign(age=FRAME["age"].where(FRAME.index > 2, 990.0))
    frame["sex"] = frame["sex"].where(frame.index != 7, None)
    privacy = tacit.Privacy(epsilon=5.0, delta=1e-5)
    with warnings.catch_warnings(record=True) as caught:  # of little learned too
        warnings.simplefilter("always")
        fit = tacit.fit("died ~ age + C(sex)", frame, schema=SCHEMA, privacy=privacy)
    assert any(one.category is OutsideBoundsWarning for one in caught)
    assert "(exact, not covered by the guarantee): column" in str(fit)
    assert len(fit.notes) == 2
    folder = fit.save(tmp_path / "fit")
    again = tacit.load(folder)
    assert again.notes == []
    assert not any("clipped" in file.read_text("utf-8") for file in folder.glob("*.json*"))
    assert "dropped" not in fit._repr_html_()
    # The total is in the user's ledger, by the id of the fit, and not in the folder.
    assert again.privacy.total_epsilon == pytest.approx(fit.privacy.total_epsilon, rel=1e-6)
    assert "epsilon_spent" not in (folder / "result.json").read_text("utf-8")


def test_two_values_that_are_not_0_and_1_need_a_word():
    frame = FRAME.assign(died=FRAME["died"] + 1)
    with pytest.raises(
        DataError, match=r'two values, 1 and 2; name the one that is y = 1, e.g. died\["2"\]'
    ):
        fitted("died ~ age", frame)
    with pytest.raises(DataError, match="two values, 1 and 2"):
        fitted("died ~ age", frame, family="logistic")
    named = fitted('died["2"] ~ age', frame)
    coded = fitted("died ~ age", FRAME)
    np.testing.assert_allclose(named.predict(FRAME), coded.predict(FRAME), rtol=1e-6)
    assert fitted("died ~ age", frame, family="linear").posterior.model.output == "gaussian"


def test_the_first_cell_that_is_no_number_is_named():
    frame = FRAME.assign(age=FRAME["age"].astype(str).where(FRAME.index != 9, "n/k"))
    with pytest.raises(DataError, match='column "age", data row 10: "n/k" is not a number'):
        fitted("died ~ age", frame)
    with pytest.raises(DataError, match='party "b": column "age", data row 10'):
        fitted("died ~ age", {"a": FRAME, "b": frame})


def test_a_missing_category_has_no_prediction_and_is_left_out():
    frame = FRAME.assign(sex=FRAME["sex"].where(FRAME.index != 4, None))
    fit = fitted("died ~ age + C(sex)", frame, schema=SCHEMA)
    found = fit.predict(frame)
    assert np.flatnonzero(np.isnan(found)).tolist() == [4]
    expected = fit.predict(FRAME)
    np.testing.assert_allclose(np.delete(found, 4), np.delete(expected, 4))
    pytest.importorskip("arviz")
    assert fit.to_arviz(frame, draws=20).observed_data["y"].shape == (N - 1,)


@pytest.mark.filterwarnings("ignore")  # of ArviZ's own imports
def test_arviz_has_the_units_of_the_summary():
    pytest.importorskip("arviz")
    fit = fitted("stay ~ age + C(sex)", FRAME)
    tree = fit.to_arviz(FRAME, draws=4000)
    table = fit.summary().query("term != 'noise sd'")
    noise = fit.summary().query("term == 'noise sd'")
    beta = tree.posterior["beta"]
    assert float(tree.posterior["noise_sd"].mean()) == pytest.approx(noise["mean"].item(), rel=0.01)
    assert beta.dims == ("chain", "draw", "term")
    assert beta.coords["term"].values.tolist() == table["term"].to_list()
    spread = table["sd"].to_numpy() / np.sqrt(4000)
    assert np.all(np.abs(beta.values[0].mean(0) - table["mean"].to_numpy()) < 5 * spread)
    np.testing.assert_allclose(tree.observed_data["y"].values, FRAME["stay"])
    mean = tree.log_likelihood["y"].values[0].mean()
    assert mean == pytest.approx(fit.metrics["training"]["log_predictive_density"], abs=0.02)
    simulated = tree.posterior_predictive["y"].values[0]
    assert simulated.mean() == pytest.approx(FRAME["stay"].mean(), rel=0.02)


def test_python_errors_name_arguments():
    with pytest.raises(ConfigError, match=r'^low of bounds\["age"\] = 9.0; it must be less'):
        tacit.Schema(bounds={"age": (9, 5)})
    frame = FRAME.assign(age=FRAME["age"].where(FRAME.index > 2))
    with pytest.raises(DataError, match=r'missing\["age"\] = "drop" or "indicator" in'):
        fitted("died ~ age", frame, schema=tacit.Schema(bounds={"age": (0, 99)}))
    with pytest.raises(ConfigError, match=r"^method = 'dp-sgd' .* privacy=tacit.Privacy\(eps"):
        fitted("died ~ age", FRAME, method="dp-sgd")
    assert in_python("data.person names it; see [columns]") == "person names it; see the schema"


def test_the_whole_name_of_a_column_with_a_space_is_quoted():
    frame = pl.DataFrame({"SBP mmHg": [120.0, None, 140.0, 150.0], "died": [0, 1, 0, 1]})
    schema = tacit.Schema(bounds={"SBP mmHg": (60, 240)})
    with pytest.raises(DataError, match=re.escape('missing["SBP mmHg"] = "drop" or "indicator"')):
        tacit.fit("died ~ `SBP mmHg`", frame, schema=schema, privacy=None)
    with pytest.raises(ConfigError, match=re.escape('low of bounds["SBP mmHg"] = 240')):
        tacit.Schema(bounds={"SBP mmHg": (240, 60)})


def test_a_third_code_of_a_yes_no_outcome_is_refused_with_words():
    """Linear regression would read 9, a usual code for missing, as a number."""
    frame = FRAME.assign(died=FRAME["died"].where(FRAME.index % 50 > 0, 9))
    with pytest.raises(DataError, match=r"three values, 0, 1 and 9; if 9 stands for missing, decl"):
        fitted("died ~ age", frame)
    declared = tacit.Schema(missing_values={"died": [9]}, missing={"died": "drop"})
    assert fitted("died ~ age", frame, schema=declared)._result.model.kind == "logistic"


def test_an_unknown_outcome_and_dates_as_text_are_refused_with_words():
    frame = FRAME.assign(
        died=np.where(FRAME.index % 40 == 0, "Unknown", np.where(FRAME["died"], "yes", "no")),
        on=[f"2024-02-{1 + i % 28:02d}" for i in FRAME.index],
    )
    with pytest.raises(DataError, match=r'level "Unknown"; .*missing_values=\{"died": \["Unkn'):
        fitted("died ~ age", frame)
    schema = tacit.Schema(missing_values={"died": ["Unknown"]}, missing={"died": "drop"})
    assert fitted("died ~ age", frame, schema=schema)._result.model.kind == "logistic"
    with pytest.raises(DataError, match='"on" holds dates'):
        fitted("stay ~ on", frame)


def test_codes_that_stand_for_missing_are_declared_or_named():
    """As text and as numbers, they are neither values nor part of centre and scale."""
    gone = FRAME.index % 10 == 0
    for code, frame in (
        (999, FRAME.assign(age=FRAME["age"].mask(gone, 999))),
        ("unknown", FRAME.assign(age=FRAME["age"].astype(object).mask(gone, "unknown"))),
    ):
        schema = tacit.Schema(missing_values={"age": [code]}, missing={"age": "drop"})
        fit = fitted("died ~ age", frame, schema=schema)
        plain = fitted("died ~ age", FRAME[~gone])
        np.testing.assert_allclose(fit.summary()["mean"], plain.summary()["mean"], rtol=1e-6)
        with (
            pytest.raises(DataError)
            if code == "unknown"
            else pytest.warns(
                MissingCodeWarning, match="999 looks like a code for a missing value"
            ) as caught
        ):
            fitted("died ~ age", frame)
        if code == "unknown":
            assert """missing_values={"age": ["unknown"]}""" in str(caught.value)
    with pytest.raises(ConfigError, match=r"missing_values\['age'\] = 'NA'; give a list"):
        tacit.Schema(missing_values={"age": "NA"})


@pytest.mark.parametrize("code", [999, "999.0", "9.99e2"])
def test_codes_in_a_file_are_compared_as_numbers(tmp_path, code):
    """`pandas.to_csv` writes 999.0."""
    gone = FRAME.index % 10 == 0
    path = tmp_path / "records.csv"
    FRAME.assign(age=FRAME["age"].mask(gone, 999.0)).to_csv(path, index=False)
    schema = tacit.Schema(missing_values={"age": [code]}, missing={"age": "drop"})
    with warnings.catch_warnings():
        warnings.simplefilter("error", MissingCodeWarning)
        fit = fitted("died ~ age", path, schema=schema)
    plain = fitted("died ~ age", FRAME[~gone])
    np.testing.assert_allclose(fit.summary()["mean"], plain.summary()["mean"], rtol=1e-6)
    assert fit.schema.scale["age"] == pytest.approx(plain.schema.scale["age"])


def test_codes_of_categories_parties_and_outcomes_are_compared_as_numbers(tmp_path):
    frame = FRAME.assign(grade=1.0 + FRAME.index % 3, site=1.0 + FRAME.index % 2)
    frame.loc[frame.index < 9, ["grade", "site", "died"]] = 9.0
    path = tmp_path / "records.csv"
    frame.to_csv(path, index=False)
    names = ("grade", "site", "died")
    schema = tacit.Schema(
        missing=dict.fromkeys(names, "drop"), missing_values={name: [9] for name in names}
    )
    fit = fitted("died ~ age + C(grade)", path, party="site", schema=schema)
    assert len(fit.party_metrics) == 2
    assert fit.schema.levels["grade"] == ("1", "2", "3")


@pytest.mark.parametrize(
    "facts",
    [
        {"bounds": {"agee": (18, 100)}},
        {"units": {"agee": "10 years"}},
        {"levels": {"agee": ["a", "b"]}},
        {"missing": {"agee": "drop"}},
        {"missing_values": {"agee": [999]}},
        {"scale": {"agee": (50, 10)}},
    ],
)
def test_a_misspelt_column_of_a_schema_is_refused(facts):
    message = r'the schema declares "agee", which no table has; did you mean "age"\?'
    for function in (tacit.fit, tacit.check):
        with pytest.raises(ConfigError, match=message):
            function("died ~ age", FRAME, schema=tacit.Schema(**facts), privacy=None)


def test_a_schema_may_declare_columns_that_the_formula_does_not_use():
    schema = tacit.Schema(bounds={"age": (18, 100), "stay": (0, 50)}, units={"ward_b": "bed"})
    frames = {"a": FRAME, "b": FRAME.assign(ward_b=1.0)}
    tacit.check("died ~ age", frames, schema=schema, privacy=None)
    fit = fitted("died ~ log(age)", FRAME, schema=SCHEMA)
    assert "log(age)" in fit.schema.bounds
    tacit.check("died ~ age", FRAME, schema=fit.schema, privacy=None)
    with pytest.raises(ConfigError, match='"ward_b", which no table has; the columns are age, '):
        fitted("died ~ age", FRAME.drop(columns="ward"), schema=schema)


@pytest.mark.parametrize("formula", ["stay ~ age", "age ~ stay", "died ~ log(age)", "died ~ age"])
def test_numbers_whose_squares_overflow_are_refused(tmp_path, formula):
    frame = FRAME.assign(age=FRAME["age"].mask(FRAME.index == 4, 1e300))
    path = tmp_path / "records.csv"
    frame.to_csv(path, index=False)
    message = r'column "age", data row 5: 1e\+300 exceeds 1e\+150, .*; fix the cell, or declare '
    for data in (frame, path):
        with pytest.raises(DataError, match=message):
            fitted(formula, data)
    parts = {"n": FRAME, "s": frame}
    with pytest.raises(DataError, match='party "s": column "age", data row 5: 1e'):
        fitted(formula, parts)
    gone = tacit.Schema(missing_values={"age": ["1e300"]}, missing={"age": "drop"})
    assert fitted(formula, path, schema=gone).converged


@pytest.mark.parametrize(("value", "what"), [(-1.0, "negative"), (2.5, "not a whole number")])
@pytest.mark.parametrize("privacy", [None, tacit.Privacy(epsilon=5.0, delta=1e-5)])
def test_an_outcome_of_counts_has_no_other_values(value, what, privacy, tmp_path):
    counts = FRAME.assign(falls=np.where(FRAME.index == 6, value, 3.0))
    message = f'column "falls", data row 7: {value:g} is {what}, but this family needs counts'
    schema = None if privacy is None else tacit.Schema(bounds={"age": (18, 100), "falls": (0, 9)})
    path = tmp_path / "records.csv"
    counts.to_csv(path, index=False)
    for data in (counts, path):
        with pytest.raises(DataError, match=f"^{message}; correct it, or choose another family"):
            tacit.fit("falls ~ age", data, family="poisson", privacy=privacy, schema=schema)
    named = counts.assign(site=np.where(FRAME.index % 2, "east", "west"))
    with pytest.raises(DataError, match=f'^party "west": {message}'):
        tacit.fit(
            "falls ~ age", named, party="site", family="poisson", privacy=privacy, schema=schema
        )
    parts = {"a": counts[:4], "b": counts[4:]}
    with pytest.raises(DataError, match=f'^party "b": {message.replace("row 7", "row 3")}'):
        tacit.fit("falls ~ age", parts, family="poisson", privacy=privacy, schema=schema)


def test_counts_derived_numbers_and_bounds_have_a_largest_size():
    counts = FRAME.assign(deaths=np.where(FRAME.index == 1, 1e200, 3.0))
    with pytest.raises(DataError, match=r'"deaths", data row 2: 1e\+200 exceeds'):
        fitted("deaths ~ age", counts, family="poisson")
    with pytest.raises(
        DataError, match=r'"I\(age\*\*2\)", data row 3: 1e\+200 .*another transformation'
    ):
        fitted("died ~ I(age**2)", FRAME.assign(age=FRAME["age"].mask(FRAME.index == 2, 1e100)))
    with pytest.raises(ConfigError, match=r'high of bounds\["age"\] = 1e\+300; .*at most 1e\+150'):
        tacit.Schema(bounds={"age": (0, 1e300)})
    frame = FRAME.assign(age=FRAME["age"].mask(FRAME.index == 4, 1e300))
    with pytest.warns(OutsideBoundsWarning, match="1 value of age"):
        fitted("died ~ age", frame, schema=SCHEMA)


@pytest.mark.parametrize(
    ("age", "found"),
    [
        (None, "the value is missing; fill it in"),
        ("x", '"x" is not a number; fix the cell'),
        (np.inf, "the value is inf; fix the cell"),
        (1e300, "1e+300 exceeds 1e+150, the largest size of a number; fix the cell"),
    ],
)
@pytest.mark.parametrize("formula", ["died ~ age", "died ~ sqrt(age)"])
def test_errors_about_new_records_do_not_advise_to_change_the_schema(formula, age, found):
    fit = fitted(formula, FRAME)
    with pytest.raises(DataError) as caught:
        fit.predict({"age": [40.0, age]})
    assert str(caught.value) == f'column "age", data row 2: {found}, or drop the row'
    with pytest.raises(DataError, match="or declare "):
        fitted(formula, FRAME, test=pd.DataFrame({"age": [40.0, age], "died": [0, 1]}))


def test_predicted_outcomes_have_the_codes_of_the_records(tmp_path):
    new = FRAME.head(5)
    coded = fitted('died["1"] ~ age', FRAME.assign(died=2 - FRAME["died"]))  # 1 is y = 1
    plain = fitted("died ~ age", FRAME)
    drawn = plain.predict(new, "outcomes", draws=50)
    assert set(np.unique(drawn)) == {0.0, 1.0}
    np.testing.assert_array_equal(coded.predict(new, "outcomes", draws=50), 2 - drawn)
    words = fitted("died ~ age", FRAME.assign(died=np.where(FRAME["died"], "yes", "no")))
    words.save(tmp_path / "fit")
    for fit in (words, tacit.load(tmp_path / "fit")):
        found = fit.predict(new, "outcomes", draws=50)
        np.testing.assert_array_equal(found, np.where(drawn, "yes", "no"))
    truth = fitted("died ~ age", FRAME.assign(died=FRAME["died"] == 1))
    np.testing.assert_array_equal(truth.predict(new, "outcomes", draws=50), drawn)


def test_predicted_outcomes_with_levels_are_the_levels():
    stage = np.array(["I", "II", "III"])[np.digitize(FRAME["stay"], [8, 11])]
    fit = fitted("stage ~ age + C(sex)", FRAME.assign(stage=stage), schema=SCHEMA_OF_SEX)
    new = FRAME.head(4).assign(sex=["f", "m", None, "f"])
    found = fit.predict(new, "outcomes", draws=40)
    assert found.shape == (40, 4)
    assert set(found[:, [0, 1, 3]].ravel()) == {"I", "II", "III"}
    assert all(one is None for one in found[:, 2])
    frame = FRAME.assign(stage=10.0 * np.digitize(FRAME["stay"], [8, 11]))
    schema = tacit.Schema(levels={"stage": [0, 10, 20]})
    numbers = fitted("stage ~ age", frame, family="softmax", schema=schema)
    assert set(np.unique(numbers.predict(new, "outcomes", draws=40))) == {0.0, 10.0, 20.0}


@pytest.mark.parametrize("bounds", [{}, {"bmi": (10, 60)}])
def test_a_column_with_one_value_is_named(bounds):
    frame = FRAME.assign(bmi=25.0, kind="a")
    levels = {"kind": ["a", "b", "c"], "died": [0, 1]}
    schema = tacit.Schema(bounds={"age": (18, 100), **bounds}, levels=levels)
    text = "bmi has one value in all training records, so its effect cannot be learned"
    with pytest.warns(LittleLearnedWarning, match=text) as caught:
        fit = fitted("died ~ age + bmi", frame, schema=schema)
    assert caught[0].filename == __file__
    assert any(text in one for one in fit.cautions)
    checked = tacit.check("died ~ age + bmi + kind", frame, schema=schema, privacy=None)
    assert any("bmi, kind have one value" in one for one in checked.warnings)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LittleLearnedWarning)
        assert not fitted("died ~ age + C(sex)", frame, schema=SCHEMA).cautions


def test_no_caution_about_one_value_reveals_records():
    frame = FRAME.assign(bmi=25.0)
    bounds = {"age": (18, 100), "bmi": (10, 60)}
    schema = tacit.Schema(bounds=bounds, levels={"died": [0, 1]})
    privacy = tacit.Privacy(epsilon=5.0, ledger="none")
    checked = tacit.check("died ~ age + bmi", frame, schema=schema, privacy=privacy)
    assert not any("one value" in one for one in checked.warnings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = tacit.fit("died ~ age + bmi", frame, schema=schema, privacy=privacy)
    assert not any("one value" in one for one in fit.cautions)


def test_a_category_with_one_level_and_unused_indicators_are_not_cautioned_about():
    fit = fitted("died ~ age + kind", FRAME.assign(kind="a"))
    assert any(
        "all records have the level 'a', so it has no coefficient" in one for one in fit.notes
    )
    schema = tacit.Schema(bounds={"age": (18, 100)}, missing={"age": "indicator"})
    with warnings.catch_warnings():
        warnings.simplefilter("error", LittleLearnedWarning)
        warnings.filterwarnings("ignore", message="Missing values of age")
        fitted("died ~ age", FRAME, schema=schema)


def test_whole_numbers_that_may_be_codes_are_noted():
    fit = fitted("died ~ grade", FRAME.assign(grade=1 + FRAME.index % 4))
    assert "write C(grade) if they are codes" in str(fit)


def test_records_without_a_party_are_refused_or_left_out_as_the_error_says():
    frame = FRAME.assign(ward=FRAME["ward"].where(FRAME.index > 2))
    with pytest.raises(DataError, match=re.escape('missing["ward"] = "drop" in the schema')):
        fitted("died ~ age", frame, party="ward")
    fit = fitted("died ~ age", frame, party="ward", schema=tacit.Schema(missing={"ward": "drop"}))
    assert "their party is missing: 3" in str(fit.notes)
    assert fit.summary()["mean"][0] == pytest.approx(
        fitted("died ~ age", FRAME.iloc[3:], party="ward").summary()["mean"][0]
    )


def test_an_interaction_has_the_units_of_its_numbers():
    """Per ten years everywhere, or nowhere."""
    schema = tacit.Schema(
        bounds={"age": (18, 100), "stay": (0, 40)}, levels={"sex": ["f", "m"], "died": [0, 1]},
        units={"age": "year"},
    )  # fmt: skip
    fit = fitted("died ~ age*C(sex) + age*stay", FRAME, schema=schema)

    def rows(**more):
        table = fit.summary(**more)
        return dict(zip(table["term"], zip(table["unit"], table["mean"], strict=True), strict=True))

    one, ten = rows(), rows(per={"age": 10})
    for term, unit in (("age", "year"), ("age:sex[m]", "year"), ("age:stay", "year × stay")):
        assert one[term][0] == unit
        assert ten[term][0] == f"10 {unit}"
        assert ten[term][1] == pytest.approx(10 * one[term][1])
    assert one["stay"] == ten["stay"]


def test_a_column_that_fills_little_of_its_bounds_is_named():
    """Its spread is hidden in the noise of private counts; narrower bounds help."""
    rng = np.random.default_rng(0)
    frame = pl.DataFrame(
        {
            "creatinine": 80.0 + 20.0 * rng.standard_normal(3000).clip(-3, 3),
            "died": rng.integers(0, 2, 3000),
            "clinic": rng.choice(["a", "b"], 3000),
        }
    )

    def cautions(high):
        schema = tacit.Schema(bounds={"creatinine": (20, high)}, levels={"died": [0, 1]})
        privacy = tacit.Privacy(epsilon=2.0, insecure_noise_seed=1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fit = tacit.fit(
                "died ~ creatinine", frame, party="clinic", schema=schema, privacy=privacy
            )
        return [text for text in fit.cautions if "The spread of 'creatinine'" in text]

    assert cautions(900)
    assert not cautions(150)


def test_decimal_commas_are_not_levels(tmp_path):
    path = tmp_path / "records.csv"
    FRAME.to_csv(path, sep=";", index=False)
    np.testing.assert_allclose(
        fitted("died ~ age", path).posterior.mean, fitted("died ~ age", FRAME).posterior.mean
    )
    FRAME.assign(age=FRAME["age"] / 2).to_csv(path, sep=";", decimal=",", index=False)
    with pytest.raises(
        DataError, match=r'column "age", data row \d+: "\d+,\d+" has a decimal comma'
    ):
        fitted("died ~ age", path)


def test_a_csv_of_levels_that_are_numbers_has_the_levels_of_its_frame(tmp_path):
    """A gap makes pandas write 1.0, 2.0 for whole numbers."""
    wards = np.where(FRAME.index % 40 == 0, np.nan, FRAME.index % 3 + 1.0)
    frame = FRAME.assign(ward=wards, site=FRAME.index % 2 + np.where(wards > 0, 1.0, np.nan))
    path = tmp_path / "records.csv"
    frame.to_csv(path, index=False)
    assert ",2.0," in path.read_text()
    declared = tacit.Schema(levels={"ward": [1, 2, 3]}, missing={"ward": "drop", "site": "drop"})
    drop = tacit.Schema(missing={"ward": "drop", "site": "drop"})
    for schema in (declared, drop):
        one, other = (
            fitted("died ~ C(ward)", data, schema=schema, party="site") for data in (frame, path)
        )
        assert one.posterior.names == other.posterior.names == ("intercept", "ward=2", "ward=3")
        assert np.array_equal(one.posterior.mean, other.posterior.mean)
        assert [row.name for row in one._result.parties] == ["1", "2"]
        assert [row.name for row in other._result.parties] == ["1", "2"]
        assert other.predict({"ward": ["2.0", "2"]}).tolist() == [one.predict({"ward": [2]})[0]] * 2
    for levels in (["1.0", "2.0", "3.0"], [1.0, 2.0, 3.0]):
        schema = tacit.Schema(levels={"ward": levels}, missing={"ward": "drop"})
        assert fitted("died ~ ward", FRAME.assign(ward=wards), schema=schema).converged


def test_levels_with_leading_zeros_are_texts():
    codes = FRAME.assign(ward=np.where(FRAME.index % 2 == 0, "01", "02"))
    schema = tacit.Schema(levels={"ward": ["01", "02"]})
    assert fitted("died ~ ward", codes, schema=schema).posterior.names[1] == "ward=02"
    with pytest.raises(DataError, match='row 1: "1" is not a declared level; the levels are 01'):
        fitted("died ~ ward", FRAME.assign(ward=FRAME.index % 2 + 1), schema=schema)
    schema = tacit.Schema(levels={"ward": [1, 2]})
    with pytest.raises(DataError, match='row 1: "01" is not a declared level; the levels are 1'):
        fitted("died ~ ward", codes, schema=schema)
