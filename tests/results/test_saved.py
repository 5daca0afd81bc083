"""Fits that are saved, loaded and checked."""

import json

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import tacit
from tacit.data.schema.layout import INTERCEPT, Feature
from tacit.errors import ConfigError, DataError
from tacit.methods import DPSGD
from tacit.models.glm.normal import NormalRegression
from tacit.results.compose import model_facts
from tacit.results.saved import StoredModel, model_settings, read_model, write_posterior
from tacit.results.summary import PartyResult, write_result
from tacit.schedules import Synchronous

MODELS = {
    "logistic": tacit.models.LogisticRegression(
        ("intercept", "age"),
        layout=(INTERCEPT, Feature("numeric", "age", -np.inf, np.inf)),
        prior_sd=1.0,
    ),
    "linear": tacit.models.LinearRegression(("a", "b"), prior_sd=[1.0, 2.0], bounds=(0.0, 2.0)),
    "poisson": tacit.models.PoissonRegression(("a",), max_count=5, prior_sd=1.0),
    "softmax": tacit.models.SoftmaxRegression(("a", "b"), levels=("x", "y", "z"), prior_sd=1.0),
    "network": tacit.models.NeuralNetwork(("a", "b"), hidden=3, output="gaussian"),
    "mean": tacit.models.NormalMean(noise_sd=2.0, prior_mean=1.0),
    "belief": tacit.models.BeliefNetwork(4, hidden=2),
    "unknown-noise": NormalRegression(("a", "b"), center=0.5, scale=2.0, prior_sd=[1.0, 2.0]),
    "topics": tacit.models.TopicModel(3, words=7, topic_word_prior=0.1),
}


def parties():
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(60), rng.uniform(-1, 1, 60)])
    y = (rng.random(60) < 0.5) * 1.0
    return {"north": {"x": x[:40], "y": y[:40]}, "south": {"x": x[40:], "y": y[40:]}}


@pytest.fixture(scope="module")
def fitted():
    return tacit.fit(MODELS["logistic"], parties(), privacy=None, test=parties()["south"])


@pytest.fixture(scope="module")
def private():
    privacy = tacit.Privacy(epsilon=2.0, delta=1e-3, adjacency="add-or-remove-one")
    how = {"method": DPSGD(), "schedule": Synchronous(rounds=2)}
    return tacit.fit(MODELS["logistic"], parties(), privacy=privacy, test=parties()["south"], **how)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_comes_back_from_its_settings(name):
    model = MODELS[name]
    settings = json.loads(json.dumps(model_settings(model), allow_nan=False))
    again = read_model(model_facts(model), ())
    assert type(again) is type(model)
    assert model_settings(again) == settings
    assert again.names == model.names


@pytest.mark.parametrize("which", ["fitted", "private"])
def test_a_saved_fit_is_the_same_fit(which, request, tmp_path):
    fit = request.getfixturevalue(which)
    again = tacit.load(fit.save(tmp_path / "fit"))
    np.testing.assert_array_equal(again.posterior.mean, fit.posterior.mean)
    np.testing.assert_array_equal(again.posterior.sample(5), fit.posterior.sample(5))
    np.testing.assert_array_equal(
        again.predict(parties()["north"]), fit.predict(parties()["north"])
    )
    assert again.history == fit.history
    assert (again.converged, again.why, again.cautions) == (fit.converged, fit.why, fit.cautions)
    assert again.privacy == fit.privacy
    assert repr(again) == repr(fit)


def test_a_saved_private_fit_has_nothing_exact(private, tmp_path):
    assert private.metrics["held_out"] is not None
    again = tacit.load(private.save(tmp_path / "fit"))
    assert again.metrics == {"training": None, "held_out": None}
    stored = json.loads((tmp_path / "fit" / "result.json").read_text())
    assert [row["records"] for row in stored["parties"]] == [None, None]
    assert again.privacy.private
    assert again.privacy.epsilon == pytest.approx(2.0, rel=1e-3)
    assert str(again.privacy).startswith("Differential privacy")


def test_a_fit_without_privacy_has_an_infinite_epsilon(fitted):
    assert fitted.privacy.epsilon == np.inf
    assert not fitted.privacy.private
    assert str(fitted.privacy).startswith("Not private")


def test_a_folder_in_use_and_a_broken_one_are_refused(fitted, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="not an empty directory"):
        fitted.save(tmp_path)
    with pytest.raises(DataError, match=r"result\.json is missing"):
        tacit.load(tmp_path)
    folder = fitted.save(tmp_path / "fit")
    (folder / "posterior.npz").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"posterior\.npz cannot be read"):
        tacit.load(folder)


def test_a_numpyro_model_is_given_again(tmp_path):
    def model(y):
        level = numpyro.sample("level", dist.LogNormal(0.0, 1.0))
        with numpyro.plate("records", len(y)):
            numpyro.sample("obs", dist.Normal(level, 1.0), obs=y)

    records = {"y": np.array([1.0, 2.0, 3.0, 2.0])}
    federated = tacit.from_numpyro(model, records)
    fit = tacit.fit(federated, {"a": records}, privacy=None, schedule=Synchronous(rounds=2))
    folder = fit.save(tmp_path / "fit")
    bare = tacit.load(folder)
    assert isinstance(bare.posterior.model, StoredModel)
    assert str(bare) == str(fit)
    with pytest.raises(ConfigError, match=r"tacit\.load\(path, model=model\)"):
        tacit.load(folder).predict({"x": np.ones((2, 1))})
    with pytest.raises(ConfigError, match=r"tacit\.load\(path, model=model\)"):
        bare.posterior.draws(3)
    again = tacit.load(folder, model=federated)
    np.testing.assert_array_equal(
        again.posterior.draws(3)["level"], fit.posterior.draws(3)["level"]
    )
    with pytest.raises(ConfigError, match="give the model that was fitted"):
        tacit.load(folder, model=MODELS["mean"])


def test_check_prints_the_plan_and_trains_nothing():
    privacy = tacit.Privacy(epsilon=1.0, delta=1e-3)
    checked = tacit.check(MODELS["logistic"], parties(), privacy=privacy, method=DPSGD())
    shown = str(checked)
    assert "dp-sgd" in shown
    assert "north: units 40, ε 1, δ 0.001" in shown
    assert not any(checked.plan.parties.values())
    assert checked.as_dict()["parties"][1]["parties"] == "south"
    with pytest.raises(ConfigError, match="privacy = 1"):
        tacit.check(MODELS["logistic"], parties(), privacy=1)


# Reports and attackers.


def test_a_report_of_a_fit_shows_its_public_part_only(fitted, private, tmp_path):
    page = fitted.report(tmp_path / "open")
    assert page == tmp_path / "open" / "report.html"
    text = page.read_text(encoding="utf-8")
    assert "Held-out performance" in text
    assert "Repeat this run" not in text, "there is no study file"
    for figure in ("Calibration on the held-out records", "Change of q in each round"):
        assert figure in text
    named = fitted.report(tmp_path / "other" / "mine.html")
    assert named.name == "mine.html"
    assert named.read_text(encoding="utf-8") == text
    shared = private.report(tmp_path / "private").read_text(encoding="utf-8")
    assert "This run was private:" in shared
    assert "Held-out performance" not in shared
    assert ">Records<" not in shared, "counts are protected"
    loaded = tacit.load(private.save(tmp_path / "saved"))
    assert loaded.report(tmp_path / "again").read_text(encoding="utf-8") == shared


def test_threats_are_a_table_with_the_terms_of_each_epsilon(private, fitted, tmp_path):
    table = private.privacy.threats()
    assert table.columns == [
        "attacker", "sees", "epsilon", "party_epsilon", "delta", "unit", "adjacency", "remark",
    ]  # fmt: skip
    rows = {row["attacker"]: row for row in table.iter_rows(named=True)}
    final = rows["reads the final model"]
    assert final["epsilon"] == pytest.approx(private.privacy.epsilon, rel=1e-3)
    assert final["party_epsilon"] > final["epsilon"]
    assert (final["delta"], final["unit"], final["adjacency"]) == (
        1e-3, "record", "add-or-remove-one",
    )  # fmt: skip
    assert fitted.privacy.threats()["epsilon"].is_infinite().all()
    with pytest.raises(ConfigError, match="colluding = 0; it must be at least 1"):
        private.privacy.threats(colluding=0)
    loaded = tacit.load(private.save(tmp_path / "fit"))
    with pytest.raises(ConfigError, match="tacit explain"):
        loaded.privacy.threats()


def test_results_of_version_01_are_refused_in_one_line(fitted, tmp_path):
    folder = fitted.save(tmp_path / "fit")
    stored = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(stored | {"schema": "tacit/result/1"}))
    found = "schema 'tacit/result/1', but this version of tacit reads"
    with pytest.raises(DataError, match=found) as caught:
        tacit.load(folder)
    assert "\n" not in str(caught.value)


def test_what_a_party_of_a_live_federation_received_is_loaded(private, tmp_path):
    """Its state directory has no rounds; the guarantee and its attackers are there."""
    facts, public = private._public, tmp_path / "public"
    public.mkdir()
    write_posterior(public / "posterior.npz", private.posterior)
    part = PartyResult(
        name="study", party="north", run="r1", configuration="abc",
        privacy=facts.privacy.statement, intervals=facts.intervals, posterior=facts.posterior,
        coefficients=facts.coefficients, model=facts.model, data=facts.data,
        guarantee=facts.privacy, converged=None, why="only the server's result has the verdict",
        learned=facts.learned, cautions=facts.cautions,
    )  # fmt: skip
    write_result(public / "result.json", part)
    again = tacit.load(tmp_path)
    new = {"x": parties()["north"]["x"][:3]}
    np.testing.assert_array_equal(again.predict(new), private.predict(new))
    assert str(again).splitlines()[0].endswith("as party north received it")
    assert "convergence unknown" in repr(again)
    assert again.privacy.guarantee == private.privacy.guarantee
    assert "Attacker" in again.report(tmp_path / "out.html").read_text("utf-8")
