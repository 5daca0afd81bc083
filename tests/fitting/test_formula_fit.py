"""`tacit.fit` on data frames, and predictions for raw records, as a new user would call them."""

import json
import warnings

import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import polars as pl
import pytest

import tacit
from tacit.data.federation import Federation
from tacit.data.prepare import OutsideBoundsWarning
from tacit.errors import ConfigError, DataError

N = 1200
RNG = np.random.default_rng(3)
AGE = RNG.uniform(20, 90, N)
SEX = np.where(RNG.random(N) < 0.5, "f", "m")
FRAME = pd.DataFrame(
    {
        "age": AGE,
        "sex": SEX,
        "hospital": np.array(["north", "south", "east"])[RNG.integers(0, 3, N)],
        "died": (RNG.random(N) < 1 / (1 + np.exp(4 - 0.06 * AGE - 0.8 * (SEX == "m")))).astype(int),
        "pressure": 100 + 0.5 * AGE + 6 * (SEX == "m") + RNG.normal(0, 12, N),
        "stays": RNG.poisson(np.exp(-1 + 0.02 * AGE)),
        "secret": RNG.integers(10**8, 10**9, N),
    }
)
SCHEMA = tacit.Schema(
    bounds={"age": (18, 100)}, levels={"sex": ["f", "m"], "died": [0, 1]}, units={"age": "10 years"}
)
BOUNDS = tacit.Schema(bounds={"age": (0, 99), "pressure": (50, 250)})
NEW = pd.DataFrame({"age": [30.0, 80.0], "sex": ["m", "f"]}, index=["p1", "p2"])


@pytest.fixture(scope="module")
def exact():
    return tacit.fit("died ~ age + C(sex)", FRAME, party="hospital", privacy=None, test=0.25)


def test_coefficients_are_those_of_the_raw_columns(exact):
    """The same posterior mode as Newton's method on the raw columns with the prior of the fit."""
    center, scale = exact.schema.scale["age"]
    rows = {row.term: row for row in exact._result.coefficients}
    training = round(0.75 * N)
    assert sum(row.records for row in exact._result.parties) == training
    assert rows["age"].mean == pytest.approx(0.06, abs=4 * rows["age"].sd)
    assert rows["sex: m vs f"].mean == pytest.approx(0.8, abs=4 * rows["sex: m vs f"].sd)
    assert center == pytest.approx(AGE.mean())
    assert scale == pytest.approx(AGE.std())
    assert exact.metrics["held_out"]["accuracy"] > 0.6


def test_parties_are_measured_on_their_own_records(exact):
    assert set(exact.party_metrics) == {"north", "south", "east"}
    shares = [exact.party_metrics[name]["accuracy"] for name in exact.party_metrics]
    assert min(shares) <= exact.metrics["held_out"]["accuracy"] <= max(shares)
    assert 0.6 < exact.metrics["held_out"]["auroc"] < 0.95


def test_any_frame_gives_the_same_predictions(exact, tmp_path):
    expected = exact.predict(NEW)
    NEW.to_csv(tmp_path / "new.csv", index=False)
    for same in (
        pl.DataFrame(NEW.to_dict("list")),
        NEW.to_dict("list"),
        tmp_path / "new.csv",
        NEW.assign(sex=NEW["sex"].astype("category"), other=1),
    ):
        np.testing.assert_array_equal(exact.predict(same), expected)
    rows = {row.term: row.mean for row in exact._result.coefficients}
    eta = rows["intercept"] + rows["age"] * 30 + rows["sex: m vs f"]
    assert expected[0] == pytest.approx(1 / (1 + np.exp(-eta)), abs=0.01)


def test_intervals_and_draws_agree(exact):
    table = exact.predict(NEW, "interval", level=0.9)
    assert list(table.columns) == ["probability", "low", "high"]
    assert list(table.index) == ["p1", "p2"]
    draws = exact.predict(NEW, "draws", draws=20_000)
    assert draws.shape == (20_000, 2)
    np.testing.assert_allclose(np.quantile(draws, 0.05, axis=0), table["low"], atol=0.004)
    np.testing.assert_allclose(np.quantile(draws, 0.95, axis=0), table["high"], atol=0.004)
    outcomes = exact.predict(NEW, "outcomes", draws=20_000)
    assert set(np.unique(outcomes)) == {0.0, 1.0}
    np.testing.assert_allclose(outcomes.mean(axis=0), table["probability"], atol=0.015)


def test_a_linear_fit_is_least_squares_with_calibrated_intervals():
    fit = tacit.fit("pressure ~ age + sex", FRAME, party="hospital", privacy=None)
    design = np.column_stack([np.ones(N), AGE, SEX == "m"]).astype(float)
    solution, rest, *_ = np.linalg.lstsq(design, FRAME["pressure"].to_numpy(), rcond=None)
    table = fit.summary()
    assert table["term"].to_list() == ["intercept", "age", "sex: m vs f", "noise sd"]
    np.testing.assert_allclose(table["mean"].to_numpy()[:3], solution, rtol=0.01)
    noise = np.sqrt(rest[0] / (N - 3))
    assert table["mean"][3] == pytest.approx(noise, rel=0.005)
    assert table["sd"][3] == pytest.approx(noise / np.sqrt(2 * N), rel=0.03)
    errors = noise * np.sqrt(np.diag(np.linalg.inv(design.T @ design)))
    np.testing.assert_allclose(table["sd"].to_numpy()[:3], errors, rtol=0.02)
    interval = fit.predict(FRAME, "interval", level=0.8)
    inside = (interval["low"] < FRAME["pressure"]) & (FRAME["pressure"] < interval["high"])
    assert inside.mean() == pytest.approx(0.8, abs=0.04)
    assert fit.metrics["training"]["rmse"] == pytest.approx(noise, rel=0.01)


def test_tables_are_frames_of_the_library_that_was_given(exact, tmp_path):
    columns = ["term", "unit", "mean", "sd", "low", "high", "learned", "prior"]
    table = exact.summary()
    assert type(table) is pd.DataFrame
    assert list(table.columns) == columns
    assert table["mean"].dtype == table["learned"].dtype == np.float64
    assert type(exact.privacy.threats()) is pd.DataFrame
    assert type(tacit.load(exact.save(tmp_path / "fit")).summary()) is pd.DataFrame
    polars = pl.DataFrame(FRAME[["hospital", "age", "died"]].to_dict("list"))
    arrow = polars.to_arrow()
    polars.write_csv(tmp_path / "records.csv")
    known = tacit.Federation.from_frame(arrow, "died ~ age", party="hospital", infer=True)
    for data, kind in (
        (polars, pl.DataFrame),
        (arrow, type(arrow)),
        (tmp_path / "records.csv", pl.DataFrame),
        (polars.to_dict(as_series=False), pl.DataFrame),
    ):
        fit = tacit.fit("died ~ age", data, party="hospital", privacy=None)
        assert type(fit.summary()) is kind
        assert pl.DataFrame(fit.summary())["term"].to_list() == ["intercept", "age"]
    fit = tacit.fit(tacit.models.LogisticRegression, known, privacy=None)
    assert type(fit.summary()) is type(arrow)
    assert type(fit.predict(arrow.select(["age"]), "interval")) is type(arrow)


def test_a_saved_fit_of_pandas_frames_needs_no_pandas(exact, tmp_path, monkeypatch):
    folder = exact.save(tmp_path / "fit")
    monkeypatch.setattr("tacit.data.frames.find_spec", lambda _: None)
    assert type(tacit.load(folder).summary()) is pl.DataFrame


def test_counts_have_rate_ratios_and_whole_intervals():
    fit = tacit.fit("stays ~ age", FRAME, party="hospital", family="poisson", privacy=None)
    ratio = fit.summary(exponentiate=True, per={"age": 10})
    assert ratio["rate_ratio"].item() == pytest.approx(np.exp(0.2), rel=0.1)
    interval = fit.predict(NEW, "interval")
    assert (interval[["low", "high"]] == interval[["low", "high"]].round()).all(axis=None)


def test_levels_of_an_outcome_have_probabilities():
    frame = FRAME.assign(end=np.where(FRAME["died"] == 1, "died", SEX))
    fit = tacit.fit("end ~ age", frame, party="hospital", privacy=None)
    found = fit.predict(NEW)
    assert found.shape == (2, 3)
    np.testing.assert_allclose(found.sum(axis=1), 1)
    table = fit.predict(pl.DataFrame(NEW.to_dict("list")), "interval")
    assert table.columns[:3] == ["died", "died low", "died high"]


@pytest.fixture(scope="module")
def private():
    return tacit.fit(
        "died ~ age + C(sex)",
        dict(list(FRAME.groupby("hospital"))),
        schema=SCHEMA,
        privacy=tacit.Privacy(epsilon=2.0, delta=1e-5, insecure_noise_seed=1),
    )


def test_a_private_fit_uses_the_schema_alone(private):
    assert private._result.data.scaling == "public"
    assert "10 years" in str(private)
    lines = str(private).splitlines()
    assert lines[0] == "Logistic regression of died · 3 parties, 1,200 records"
    assert private.summary()["learned"].min() > 0.3


def test_a_saved_fit_predicts_alike_and_holds_no_record(private, tmp_path):
    folder = private.save(tmp_path / "fit")
    again = tacit.load(folder)
    np.testing.assert_array_equal(again.predict(NEW), private.predict(NEW))
    assert str(again.summary()) == str(private.summary())
    planted = [f"{age!r}"[:10] for age in AGE[:50]] + [str(one) for one in FRAME["secret"]]
    for file in folder.rglob("*"):
        body = file.read_bytes()
        assert not any(value.encode() in body for value in planted), file
        assert not any(np.float64(age).tobytes() in body for age in AGE), file
    assert json.loads((folder / "result.json").read_text())["coefficients"]


def test_values_outside_the_bounds_are_clipped_as_in_training(private):
    old = pd.DataFrame({"age": [100.0, 250.0], "sex": ["f", "f"]})
    with pytest.warns(OutsideBoundsWarning, match="1 value of age"):
        found = private.predict(old)
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("new", "words"),
    [
        (NEW.drop(columns="sex"), 'new records: there is no column "sex", which the fit used'),
        (NEW.assign(sex="x"), 'column "sex", data row 1: "x" is not a declared level'),
        (NEW.assign(age=None), 'column "age", data row 1: the value is missing'),
        (NEW.assign(age="old"), '"old" is not a number'),
        (NEW.iloc[:0], "new records: there are no rows"),
        (5, "new records are of type int"),
        ("nowhere.csv", "there is no such file"),
    ],
)
def test_wrong_new_records_are_named(private, new, words):
    with pytest.raises(DataError) as caught:
        private.predict(new)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kind": "median"}, "choose from mean, interval, draws, outcomes"),
        ({"kind": "interval", "level": 95}, "between 0 and 1"),
        ({"kind": "draws", "draws": 0}, "at least 1"),
    ],
)
def test_wrong_options_of_predict_are_named(private, options, words):
    with pytest.raises(ConfigError, match=words):
        private.predict(NEW, **options)


def test_a_missing_value_that_is_dropped_has_no_prediction():
    schema = tacit.Schema(missing={"age": "drop"})
    frame = FRAME.assign(age=FRAME["age"].where(FRAME.index > 5))
    fit = tacit.fit("died ~ age", frame, party="hospital", schema=schema, privacy=None)
    found = fit.predict(NEW.assign(age=[None, 40.0]))
    assert np.isnan(found).tolist() == [True, False]
    assert fit.predict(NEW.assign(age=[None, 40.0]), "interval")["low"].isna().tolist() == [
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"family": "logit"}, "did you mean 'logistic'"),
        ({"family": "numpyro"}, "choose from logistic, softmax, linear, poisson"),
        ({"family": {"kind": "topics"}}, "cannot be combined with a formula"),
        ({"family": {"kind": "linear", "noise_s": 1}}, "did you mean noise_sd"),
        ({"model": "sex ~ age", "schema": BOUNDS, "family": "poisson"}, "holds text, but this"),
        ({"test": True}, "test = True; give a share"),
        ({"test": 2}, "test = 2; give a share"),
        ({"family": "linear"}, "has the levels 0, 1, but this family needs a number"),
        ({"schema": {"age": (0, 1)}}, "give tacit.Schema"),
        ({"model": tacit.models.LogisticRegression}, "need a formula"),
        ({"model": "died ~ age + (1 | hospital)"}, "not supported yet"),
    ],
)  # fmt: skip
def test_wrong_arguments_of_fit_are_named(arguments, words):
    given = {"model": "died ~ age + C(sex)", "schema": SCHEMA, **arguments}
    with pytest.raises((ConfigError, DataError)) as caught:
        tacit.fit(
            given.pop("model"), FRAME, party="hospital", privacy=tacit.Privacy(epsilon=1.0), **given
        )
    assert words in str(caught.value)


def test_unused_arguments_are_refused():
    federation = Federation.from_frame(
        FRAME, "died ~ age + C(sex)", party="hospital", schema=SCHEMA
    )
    with pytest.raises(ConfigError, match="party = 'hospital' has no effect"):
        tacit.fit(tacit.models.LogisticRegression, federation, party="hospital", privacy=None)
    fit = tacit.fit(tacit.models.LogisticRegression, federation, privacy=None)
    assert fit.predict(NEW).shape == (2,)


def test_a_numpyro_model_reads_columns_by_name():
    def model(age, died=None):
        slope = numpyro.sample("slope", dist.Normal(0, 1))
        with numpyro.plate("records", len(age)):
            numpyro.sample("died", dist.Bernoulli(logits=slope * (age - 55) / 10), obs=died)

    adapted = tacit.from_numpyro(model, {"age": np.ones(2), "died": np.ones(2)})
    fit = tacit.fit(adapted, FRAME, party="hospital", privacy=None)
    assert fit.posterior.mean[0] == pytest.approx(0.55, abs=0.15)
    assert fit.predict(NEW).shape == (2,)
    assert fit.predict({"age": NEW["age"].to_numpy()}).shape == (2,)
    with pytest.raises(DataError, match='no column "died"'):
        tacit.fit(adapted, FRAME.drop(columns="died"), party="hospital", privacy=None)


def slope(age, pressure=None):
    a = numpyro.sample("a", dist.Normal(100.0, 100.0))
    b = numpyro.sample("b", dist.Normal(0.0, 10.0))
    with numpyro.plate("records", age.shape[0]):
        numpyro.sample("pressure", dist.Normal(a + b * age, 12.0), obs=pressure)


def test_a_numpyro_function_is_fitted_to_the_columns_that_it_names():
    fitted = tacit.fit(slope, FRAME, party="hospital", privacy="none")
    assert fitted.converged
    assert fitted.posterior.mean[1] == pytest.approx(0.5, abs=0.1)
    with pytest.raises(ConfigError, match="slope is a function, which cannot be combined"):
        tacit.fit(slope, FRAME, party="hospital", privacy=tacit.Privacy(epsilon=1.0))
    with pytest.raises(ConfigError, match="argument age is not a column of the records"):
        tacit.fit(slope, FRAME.rename(columns={"age": "years"}), party="hospital", privacy="none")


@pytest.mark.filterwarnings("ignore::UserWarning")  # one round learns nothing
def test_a_private_numpyro_fit_says_which_columns_to_declare():
    records = {"age": AGE, "pressure": FRAME["pressure"].to_numpy()}
    facts = {"age": (18, 100), "pressure": (0, 300)}
    privacy = tacit.Privacy(epsilon=4.0, insecure_noise_seed=1)
    few = {name: column[:8] for name, column in records.items()}
    how = {
        "privacy": privacy,
        "method": tacit.methods.DPSGD(),
        "schedule": tacit.schedules.Synchronous(rounds=1),
    }
    plain = tacit.fit(tacit.from_numpyro(slope, few), {"a": records}, **how)
    said = str(plain.privacy)
    assert "without declared bounds (age, pressure)" in said
    assert "columns={'age': (low, high), …}" in said
    declared = tacit.from_numpyro(slope, few, columns=facts)
    quiet = tacit.fit(declared, {"a": records}, **how)
    assert "without declared bounds" not in str(quiet.privacy)
    beyond = tacit.from_numpyro(slope, few, columns=facts | {"age": (18, 60)})
    with pytest.raises(DataError, match=r"column 'age': a value is outside .* \[18, 60\]; clip"):
        tacit.fit(beyond, {"a": records}, **how)


def test_levels_that_differ_only_in_case_are_refused():
    frame = pl.DataFrame({"x": [1.0, 2.0, 3.0, 4.0], "y": ["no", "yes", "Yes", "no"]})
    with pytest.raises(DataError, match="'Yes' and 'yes', which differ only in case or spaces"):
        tacit.fit("y ~ x", frame, privacy=None)


def test_a_student_regression_is_in_the_units_of_its_outcome():
    rng = np.random.default_rng(1)
    x = rng.uniform(0, 10, 600)
    y = 100.0 + 5.0 * x + 3.0 * rng.standard_t(4, 600)
    frame = pd.DataFrame({"h": ["a", "b"] * 300, "x": x, "y": y})
    family = {"kind": "student", "df": 4.0, "scale": 3.0}
    how = {"party": "h", "family": family, "privacy": None}
    for schema in (None, tacit.Schema(bounds={"x": (0, 10), "y": (50, 250)})):
        fit = tacit.fit("y ~ x", frame, schema=schema, **how)
        table = fit.summary().set_index("term")
        assert table.loc["x", "mean"] == pytest.approx(5.0, abs=0.2)
        assert table.loc["intercept", "mean"] == pytest.approx(100.0, abs=1.0)
        found = fit.predict(frame, "interval", level=0.9)
        assert np.mean((found["low"] <= y) & (y <= found["high"])) == pytest.approx(0.9, abs=0.04)
        assert np.mean(fit.predict(frame)) == pytest.approx(np.mean(y), abs=0.5)


@pytest.mark.parametrize(("spread", "hidden"), [(0.3, False), (0.05, True)])
def test_correlated_columns_have_wide_private_intervals_or_a_caution(spread, hidden):
    """The private intervals of two collinear columns are not narrower than the exact ones."""
    rng = np.random.default_rng(5)
    first = rng.normal(size=6000)
    other = np.clip(first + spread * rng.normal(size=6000), -4, 4)
    died = rng.random(6000) < 1.0 / (1.0 + np.exp(-2.0 * first))
    frame = pd.DataFrame({"h": ["p", "q", "r"] * 2000, "a": np.clip(first, -4, 4), "b": other})
    frame["died"] = np.where(died, "yes", "no")
    schema = tacit.Schema(bounds={"a": (-4, 4), "b": (-4, 4)}, levels={"died": ["no", "yes"]})
    how = {"party": "h", "schema": schema}
    exact = tacit.fit("died ~ a + b", frame, privacy=None, **how)
    budget = tacit.Privacy(epsilon=6.0, insecure_noise_seed=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        private = tacit.fit("died ~ a + b", frame, privacy=budget, **how)
    assert hidden == any("are correlated is hidden" in one for one in private.cautions)
    if not hidden:
        table, other = (one.summary().set_index("term") for one in (private, exact))
        assert np.all(table["sd"] > 0.9 * other["sd"])
        assert np.all(np.abs(table["mean"] - other["mean"]) < 3.0 * table["sd"])
