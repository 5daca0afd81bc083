"""What a private fit does with plain records: none in its result, none beyond declared bounds."""

import copy
import io
import pickle

import numpy as np
import pytest

import tacit
from tacit.data.schema.layout import BIAS, Feature
from tacit.engines.execute import carry_out
from tacit.errors import ConfigError, DataError
from tacit.methods import DPSGD
from tacit.plan.plan import make_plan
from tacit.server.schedule import Synchronous

CANARY = 0.7310585786300049
LABEL = 0.2689414213699951
MODEL = tacit.LinearRegression(("bias", "a"))


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
    outcome = fitted.outcome
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
    assert again.guarantee == fitted.guarantee
    assert again.summary() == fitted.summary()
    assert again.privacy == fitted.privacy
    assert tuple(again.outcome.plan.parties) == ("north", "south")


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
    layout = (BIAS, Feature("numeric", "a", -1.0, 1.0))
    model = tacit.LinearRegression(("bias", "a"), layout=layout)
    sites = parties()
    how = {"privacy": PRIVACY, "method": DPSGD(), "schedule": Synchronous(rounds=1)}
    declared = tacit.fit(model, sites, **how)
    assert declared.undeclared == ()
    assert "plain arrays" not in declared.privacy
    sites["south"]["x"][5, 1] = 1.5
    with pytest.raises(DataError, match=r"party 'south', column 'a': .* bounds \[-1, 1\]; clip"):
        tacit.fit(model, sites, **how)
    assert tacit.fit(model, sites, privacy="none", schedule=Synchronous(rounds=1))


def test_a_private_fit_says_that_no_bounds_were_declared(fitted):
    assert "a" in fitted.undeclared
    assert "without declared bounds" in fitted.privacy
