"""The same records and settings through `tacit.fit` and a study file: one meaning of priors."""

import numpy as np
import polars as pl
import pytest

import tacit
from tacit.data.schema.layout import INTERCEPT, Feature
from tacit.models.base import ModelSchema
from tacit.models.glm.linear import LinearRegression
from tacit.models.settings import LinearSettings
from tacit.run.config import parse_config
from tacit.run.run import prepare

LOW, HIGH = 50.0, 250.0
LAYOUT = (INTERCEPT, Feature("numeric", "age", -1.0, 1.0))


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(8)
    age = rng.uniform(20, 90, 60)
    pressure = 100 + 0.5 * age + rng.normal(0, 12, 60)
    return pl.DataFrame({"age": age, "pressure": pressure, "site": ["a", "b", "c"] * 20})


def study(folder, frame, model, outcome):
    frame.write_csv(folder / "records.csv")
    return parse_config(
        {
            "privacy": "none",
            "outcome": "pressure",
            "data": {"path": str(folder / "records.csv"), "party": "site", "held_out": 0.0},
            "columns": {"age": {"low": 0.0, "high": 100.0}, "pressure": outcome},
            "model": {"kind": "linear", **model},
        }
    )


def in_own_units(model, mean, sd, center, scale):
    """Coefficients of the outcome itself, from those of its prepared form."""
    constant = np.array([feature.kind == "intercept" for feature in model.layout])
    return scale * mean + np.where(constant, center, 0.0), scale * sd


@pytest.mark.parametrize(
    ("outcome", "schema"),
    [
        ({"low": LOW, "high": HIGH}, {"bounds": {"pressure": (LOW, HIGH)}}),
        ({"center": 120.0, "scale": 20.0}, {"scale": {"pressure": (120.0, 20.0)}}),
    ],
)
def test_a_study_file_and_fit_have_the_same_posterior(frame, tmp_path, outcome, schema):
    from tacit.engines.execute import carry_out

    model = {"noise_sd": 12.0, "prior_sd": 0.3, "prior_mean": 0.1}
    plan = prepare(study(tmp_path, frame, model, outcome)).plan
    found = carry_out(plan).posterior
    bounds = {"age": (0.0, 100.0), **schema.pop("bounds", {})}
    fitted = tacit.fit(
        "pressure ~ age", frame, party="site", privacy=None, family={"kind": "linear", **model},
        schema=tacit.Schema(bounds=bounds, **schema),
    )  # fmt: skip
    other = fitted.posterior
    # The file leaves an outcome with bounds as it is, `tacit.fit` divides it by its half-range.
    units = (150.0, 100.0) if "low" in outcome else (0.0, 1.0)
    mean, sd = in_own_units(other.model, other.mean, other.sd, *units)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-9)
    np.testing.assert_allclose(found.sd, sd, rtol=1e-9)


@pytest.mark.parametrize("declared", [{}, {"prior_sd": 0.3}, {"prior_sd": 0.3, "prior_mean": 0.1}])
@pytest.mark.parametrize("noise", [{}, {"noise_sd": 12.0}])
def test_priors_are_those_of_the_prepared_outcome(declared, noise):
    names, settings = ("intercept", "age"), LinearSettings(**declared, **noise)
    facts = {"names": names, "output": "gaussian", "outcome": "pressure", "layout": LAYOUT}
    raw = LinearRegression.build(settings, ModelSchema(**facts, y_bounds=(LOW, HIGH)))
    ready = LinearRegression.build(
        settings, ModelSchema(**facts, y_bounds=(-1.0, 1.0), y_scale=100.0)
    )
    mean, sd = in_own_units(ready, ready.prior_mean[:2], ready.prior_sd[:2], 150.0, 100.0)
    np.testing.assert_allclose(raw.prior_mean[:2], mean)
    np.testing.assert_allclose(raw.prior_sd[:2], sd)
    assert raw.undeclared == ready.undeclared
    unit = raw.scale_unit
    assert unit == (None if ready.scale_unit is None else pytest.approx(100.0 * ready.scale_unit))
