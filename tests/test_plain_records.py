"""What a private fit does with plain records: none in its result, none beyond declared bounds."""

import copy
import io
import pickle

import numpy as np
import pytest

import tacit
from tacit.data.schema.layout import INTERCEPT, Feature
from tacit.engines.execute import carry_out
from tacit.errors import ConfigError, DataError
from tacit.methods import DPSGD
from tacit.plan.plan import make_plan
from tacit.server.schedule import Synchronous

CANARY = 0.7310585786300049
LABEL = 0.2689414213699951
MODEL = tacit.models.LinearRegression(("intercept", "a"), prior_sd=1.0)


def parties():
    rng = np.random.default_rng(0)
    found = {}
    for name in ("north", "south"):
        x = np.column_stack([np.ones(12), rng.uniform(-1.0, 1.0, 12)])
        x[3, 1] = CANARY
        found[name] = {"x": x, "y": np.append(rng.normal(size=11), LABEL)}
    return found


def forms():
    """Two numbers of the records as they would lie in memory, in either order of bytes."""
    return [
        np.array(value, dtype).tobytes()
        for value in (CANARY, LABEL)
        for dtype in ("<f8", ">f8", "<f4", ">f4")
    ]


def holds(blob):
    return any(form in blob for form in forms())


def joblib_bytes(value):
    joblib = pytest.importorskip("joblib")
    buffer = io.BytesIO()
    joblib.dump(value, buffer)
    return buffer.getvalue()


WAYS = {
    "pickle": pickle.dumps,
    "pickle, protocol 2": lambda value: pickle.dumps(value, protocol=2),
    "deepcopy": lambda value: pickle.dumps(copy.deepcopy(value)),
    "copy": lambda value: pickle.dumps(copy.copy(value)),
    "joblib": joblib_bytes,
}
PRIVACY = tacit.Privacy(epsilon=2.0, delta=1e-3)


@pytest.fixture(scope="module")
def fitted():
    return tacit.fit(
        MODEL, parties(), privacy=PRIVACY, method=DPSGD(), schedule=Synchronous(rounds=1)
    )


def test_the_search_finds_a_record_that_is_there():
    assert holds(pickle.dumps(parties()))
    assert holds(pickle.dumps({"x": parties()["north"]["x"].astype("float32")}))
    assert holds(joblib_bytes(parties()))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("part", ["fit", "outcome", "plan", "posterior", "state"])
def test_nothing_of_a_private_fit_holds_a_record(fitted, part, way):
    outcome = fitted._outcome
    parts = {
        "fit": fitted,
        "outcome": outcome,
        "plan": outcome.plan,
        "posterior": fitted.posterior,
        "state": outcome.state,
    }
    assert not holds(WAYS[way](parts[part]))


def test_a_fit_comes_back_from_a_pickle_as_it_was(fitted):
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.posterior.mean, fitted.posterior.mean)
    assert str(again) == str(fitted)
    assert again.privacy == fitted.privacy
    assert tuple(again._outcome.plan.parties) == ("north", "south")


def test_a_private_plan_is_copied_without_its_records_and_then_refuses_to_run():
    plan = make_plan(
        MODEL, parties(), privacy=PRIVACY, method=DPSGD(), schedule=Synchronous(rounds=1)
    )
    assert "x" in plan.parties["north"]
    for way in WAYS.values():
        assert not holds(way(plan))
    copied = pickle.loads(pickle.dumps(plan))
    assert copied.guarantee == plan.guarantee
    with pytest.raises(ConfigError, match="holds no records"):
        carry_out(copied)


def test_a_fit_without_privacy_holds_no_records_either():
    fitted = tacit.fit(MODEL, parties(), privacy="none", schedule=Synchronous(rounds=1))
    assert not holds(pickle.dumps(fitted))


def test_plain_records_beyond_the_declared_bounds_are_refused():
    layout = (INTERCEPT, Feature("numeric", "a", -1.0, 1.0))
    model = tacit.models.LinearRegression(("intercept", "a"), layout=layout, prior_sd=1.0)
    sites = parties()
    how = {"privacy": PRIVACY, "method": DPSGD(), "schedule": Synchronous(rounds=1)}
    declared = tacit.fit(model, sites, **how)
    assert "plain arrays" not in str(declared.privacy)
    sites["south"]["x"][5, 1] = 1.5
    with pytest.raises(DataError, match=r"party 'south', column 'a': .* bounds \[-1, 1\]; clip"):
        tacit.fit(model, sites, **how)
    assert tacit.fit(model, sites, privacy="none", schedule=Synchronous(rounds=1))


def test_a_private_fit_says_that_no_bounds_were_declared(fitted):
    assert "without declared bounds" in str(fitted.privacy)


def aged(scale=1.0, center=0.0):
    """Three parties with ages around 60, whose odds rise by 1 in 12 years."""
    rng = np.random.default_rng(0)
    age = rng.normal(60.0, 12.0, 6000)
    y = (rng.random(6000) < 1 / (1 + np.exp(-(age - 60.0) / 12.0))) * 1.0
    x = np.column_stack([np.ones(6000), (age - center) * scale])
    return {f"p{i}": {"x": x[i::3], "y": y[i::3]} for i in range(3)}


SEEDED = tacit.Privacy(epsilon=5.0, insecure_noise_seed=0)


@pytest.mark.parametrize("first", ["one", "intercept"])
@pytest.mark.parametrize(
    ("scale", "words"), [(1.0, "many of its values are outside"), (1e-4, "its values cover only")]
)
def test_private_scoring_refuses_plain_columns_in_units_it_cannot_count(first, scale, words):
    model = tacit.models.LogisticRegression((first, "age"), prior_sd=10.0)
    seen, sites = [], aged(scale, 60.0 if scale < 1 else 0.0)
    with pytest.raises(DataError, match=rf"column 'age': .* \[-3, 3\], but {words}"):
        tacit.fit(model, sites, privacy=SEEDED, callback=lambda *one: seen.append(one))
    assert seen == []


def test_private_scoring_counts_declared_bounds_in_their_own_units():
    layout = (INTERCEPT, Feature("numeric", "age", 0.0, 120.0))
    model = tacit.models.LogisticRegression(("intercept", "age"), prior_sd=10.0, layout=layout)
    private = tacit.fit(model, aged(), privacy=SEEDED)
    plain = tacit.fit(model, aged(), privacy="none")
    assert private.converged
    gap = np.abs(private.posterior.mean - plain.posterior.mean) / private.posterior.sd
    assert np.max(gap) < 2.0
    assert np.max(private.posterior.sd / plain.posterior.sd) < 2.0


def test_standardised_plain_columns_need_no_bounds():
    model = tacit.models.LogisticRegression(("intercept", "age"), prior_sd=10.0)
    assert tacit.fit(model, aged(1 / 12, 60.0), privacy=SEEDED).converged


def test_counts_that_show_other_units_are_no_convergence():
    """Where records are elsewhere, the released counts tell that a scale was declared wrongly."""
    layout = (INTERCEPT, Feature("numeric", "age", -120.0, 120.0))
    model = tacit.models.LogisticRegression(("intercept", "age"), prior_sd=10.0, layout=layout)
    outcome = carry_out(make_plan(model, aged(), privacy=SEEDED))
    assert not outcome.verdict.converged
    assert "of the values of 'age' are counted at 3" in outcome.verdict.why


def test_a_coefficient_of_which_nothing_was_learned_is_named():
    rng = np.random.default_rng(1)
    x = np.column_stack([np.ones(200), rng.normal(size=200), np.zeros(200)])
    y = (rng.random(200) < 0.5) * 1.0
    fitted = tacit.fit(
        tacit.models.LogisticRegression(("intercept", "x", "unseen"), prior_sd=1.0),
        {"a": {"x": x, "y": y}},
        privacy="none",
    )
    assert fitted.cautions == [
        "Little was learned about unseen: intervals are almost as wide as under the prior."
    ]
