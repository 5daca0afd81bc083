"""A fit says whether it is to be believed, wherever its numbers are shown."""

import json
import warnings

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from json_results import run

import tacit
from tacit.data.schema.layout import indicated_columns
from tacit.expfam import FullGaussian, MeanFieldGaussian
from tacit.models.learnt_scale import LearntScalePrior
from tacit.report import write_report
from tacit.results.cautions import (
    LittleLearnedWarning,
    MissingIndicatorWarning,
    NotConvergedWarning,
)
from tacit.results.diagnostics import cautions_of, run_verdict
from tacit.results.explained import shape_words
from tacit.results.figures import BLUE
from tacit.results.verdict import judge, learned
from tacit.run.config import parse_config
from tacit.run.directory import public_part
from tacit.server.state import Rules, initial_state

MODEL = tacit.models.LogisticRegression(("one", "x"), prior_sd=1.0)
FAMILY = FullGaussian(2)


def records(count=400, seed=0):
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(count), rng.normal(size=count)])
    y = (rng.uniform(size=count) < 1 / (1 + np.exp(-x @ np.array([0.3, 1.0])))).astype(float)
    return {"x": x, "y": y}


def ended(
    last_change=1e-6, damping=1.0, negative_elbo=10.0, *, finished="rounds", state=(), **options
):
    rules = Rules(FAMILY, tacit.schedules.Synchronous(damping=1.0), ("a",), 0, MODEL.prior(FAMILY))
    whole = initial_state(rules)
    whole = type(whole)(
        **{
            **whole.__dict__,
            "finished": finished,
            "round": 3,
            "moved_since": {"a": last_change**0.5},
            **dict(state),
        }
    )
    lines = [
        {"event": "round", "last_change": 1.0, "damping": 1.0, "negative_elbo": value}
        for value in (20, 10.0)
    ]
    lines.append(
        {
            "event": "round",
            "last_change": last_change,
            "damping": damping,
            "negative_elbo": negative_elbo,
        }
    )
    how = {"private": False, "step_share": 1.0} | options
    return judge(FAMILY, whole, lines, **how)


def test_a_small_last_step_is_convergence_whatever_ended_the_run():
    assert ended().converged
    assert ended(finished="converged").converged


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ({"last_change": 0.01}, "a whole step would still move q by 0.01 nats"),
        ({"last_change": 2.0}, "moved q by 2 nats"),
        ({"last_change": 1e-5, "damping": 0.01}, "would still move q by 0.1 nats"),
        ({"last_change": 1e-5, "step_share": 0.01}, "would still move q by 0.1 nats"),
        ({"last_change": float("nan")}, "would still move"),
        ({"negative_elbo": 11.0}, "the free energy rose by 1 nats"),
        ({"finished": "too few parties"}, "ended early: too few parties"),
        ({"state": {"refused_in_a_row": 1}}, "refused"),
        ({"state": {"moved_since": {}}}, "1 of 1 parties (a) have not contributed"),
        (
            {"state": {"moved_since": {"a": 0.1}}},
            "(a) have not contributed recently, and q has changed too much since",
        ),
        ({"state": {"moved_since": {}}, "private": True}, "(a) have not contributed"),
        ({"step_share": None}, "the gradient was not measured"),
        ({"step_share": None, "gradient_step": 3.0}, "would still move q by 3 nats"),
        ({"step_share": None, "gradient_step": float("inf")}, "would still move q by inf nats"),
        ({"private": True, "last_change": 0.0, "state": {"refused_in_a_row": 1}}, "was refused"),
        ({"private": True, "last_change": 1.1}, "more than the intervals account for"),
    ],
)
def test_what_is_no_convergence(case, words):
    verdict = ended(**case)
    assert not verdict.converged
    assert words in verdict.why


def test_losses_at_several_q_may_rise_while_a_run_settles():
    assert not ended(negative_elbo=11.0).converged
    assert ended(negative_elbo=11.0, exact_loss=False).converged


def test_noise_alone_is_no_lack_of_convergence_in_a_private_run():
    verdict = ended(private=True, last_change=0.5, negative_elbo=None)
    assert verdict.converged
    assert "planned 3 rounds" in verdict.why
    assert (
        "0.71 posterior sd per coordinate, its noise included; up to 1 is expected" in verdict.why
    )


def _blue(figure):
    lines = figure.axes[0].lines
    return any(len(line.get_xdata()) and line.get_color() == BLUE for line in lines)


def test_a_fit_that_did_not_converge_warns_and_says_so():
    parties = {"a": records(), "b": records(seed=1)}
    with pytest.warns(NotConvergedWarning, match="did not converge"):
        short = tacit.fit(
            MODEL, parties, privacy="none", schedule=tacit.schedules.Synchronous(rounds=1)
        )
    assert not short.converged
    assert "NOT CONVERGED" in repr(short)
    assert "Warning: This fit did not converge" in str(short)
    assert not _blue(short.plot())
    whole = tacit.fit(MODEL, parties, privacy="none")
    assert whole.converged
    assert whole.cautions == []
    assert "Converged: after" in str(whole)
    assert _blue(whole.plot())


def test_learned_is_the_part_of_the_variance_that_is_gone():
    family = MeanFieldGaussian(2)
    prior = family.natural(mean=np.zeros(2), sd=np.ones(2))
    q = family.natural(mean=np.zeros(2), sd=np.array([0.5, 1.0]))
    np.testing.assert_allclose(learned(family, q, prior), [0.75, 0.0])
    wider = {name: 0.999 * value for name, value in prior.items()}
    assert np.all(learned(family, wider, prior) == 0.0), "never below 0"


def test_a_tiny_epsilon_learns_little_and_says_so():
    hospitals = tacit.datasets.load("synthetic-cohort", parties=3, records=300, seed=1)
    private = tacit.Privacy(epsilon=0.001, delta=1e-5, insecure_noise_seed=1)
    with pytest.warns(LittleLearnedWarning, match="almost the prior"):
        fitted = tacit.fit(tacit.models.LogisticRegression, hospitals, privacy=private)
    assert max(fitted.learned.values()) < 0.05
    assert "Little was learned" in repr(fitted)
    summary = str(fitted)
    assert summary.index("Little was learned") < summary.index("Converged:")


def test_a_fit_that_learned_much_says_nothing_of_the_prior():
    hospitals = tacit.datasets.load("synthetic-cohort", parties=3, records=3000, seed=1)
    private = tacit.Privacy(epsilon=8.0, delta=1e-5, insecure_noise_seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MissingIndicatorWarning)
        fitted = tacit.fit(tacit.models.LogisticRegression, hospitals, privacy=private)
    assert "scales learned" in fitted.summary()["prior"][0]
    assert max(fitted.learned.values()) > 0.5
    assert not any(text.startswith("Little was learned:") for text in fitted.cautions)


def test_without_records_of_its_own_nothing_is_learned():
    prior = LearntScalePrior(np.zeros(6), np.diag([1.0, 2.0, 0.1, 1.0, 1.0, 1.0]), np.arange(6))
    variance = np.ones(6)
    for _ in range(200):  # the normal that meets the prior alone
        scaled = np.square(np.diagonal(prior.transform)) * variance
        variance = 1.0 / prior.term_of(scaled).precision
        variance /= np.square(np.diagonal(prior.transform))
    before = prior.variance_without_records(np.zeros(6), np.diag(variance), exact=False)
    np.testing.assert_allclose(variance / before, 1.0, rtol=1e-6)
    draws = prior.variance_without_records(np.zeros(6), np.diag(variance), exact=True)
    assert np.all(draws > 1.5 * before), "a Student-t is wider than the normal that meets it"


def test_a_large_shape_beside_converged_is_explained():
    words = shape_words(0.95, 1.28)
    assert "above 0.7" in words
    assert "the weights are not used" in words
    assert "95% effective draws" in words
    assert "method.sampling" in shape_words(0.3, 1.28)
    assert "usable" in shape_words(0.99, 0.2)


def test_a_misfit_is_reported_beside_other_trouble(monkeypatch):
    outcome = tacit.fit(MODEL, {"a": records()}, privacy="none")._outcome
    where = "tacit.results.diagnostics"
    monkeypatch.setattr(f"{where}.rounding_trouble", lambda *_: "singular to rounding")
    monkeypatch.setattr(f"{where}._misfit", lambda *_: "tails are heavier")
    verdict = run_verdict(outcome.plan, outcome.state, outcome.log)
    assert not verdict.converged
    kinds = [one.kind for one in cautions_of(outcome.plan, outcome.posterior, verdict)]
    assert kinds[:2] == ["not-converged", "misfit"]


def test_missing_values_beside_an_indicator_are_named():
    hospitals = tacit.datasets.load("synthetic-cohort", parties=2, records=300, seed=1)
    assert indicated_columns(hospitals.layout) == ("bmi", "hba1c")
    with pytest.warns(MissingIndicatorWarning, match="bmi, hba1c"):
        fitted = tacit.fit(tacit.models.LogisticRegression, hospitals, privacy="none")
    assert any("biased even if values are missing at random" in text for text in fitted.cautions)


def test_adam_that_is_too_slow_for_the_units_is_not_called_converged():
    """A slope of 2,000 per unit: steps of the learning rate hardly move a wide q."""

    def regression(x, y=None):
        slope = numpyro.sample("slope", dist.Normal(0.0, 1e5))
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("y", dist.Normal(slope * x, 1.0), obs=y)

    rng = np.random.default_rng(0)
    x = 1e-3 * rng.normal(size=200)
    data = {"x": x, "y": 2000.0 * x + rng.normal(size=200)}
    model = tacit.from_numpyro(regression, data)
    with pytest.warns(NotConvergedWarning):
        fitted = tacit.fit(
            model, {"a": data}, privacy="none", method="gradient-vi", posterior="mean-field"
        )
    assert not fitted.converged
    natural = tacit.fit(model, {"a": data}, privacy="none")
    assert natural.converged
    exact = np.sum(data["x"] * data["y"]) / (np.sum(np.square(x)) + 1e-10)
    assert abs(natural.posterior.mean[0] - exact) < 0.01 * natural.posterior.sd[0]


def test_adam_on_an_easy_model_converges():
    def regression(x, y=None):
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("y", dist.Normal(slope * x, 1.0), obs=y)

    rng = np.random.default_rng(0)
    x = rng.normal(size=200)
    data = {"x": x, "y": 0.5 * x + rng.normal(size=200)}
    model = tacit.from_numpyro(regression, data)
    for method in ("gradient-vi", "auto"):
        fitted = tacit.fit(model, {"a": data}, privacy="none", method=method)
        assert fitted.converged, fitted.why


SHORT = {
    "privacy": "none",
    "data": {"source": "synthetic-cohort", "records": 300},
    "partition": {"parties": 3},
    "schedule": {"rounds": 1},
    "model": {"prior_sd": 1.0},
}


def test_result_and_report_carry_the_verdict(tmp_path):
    result = run(parse_config(SHORT), tmp_path / "out")
    assert result["converged"] is False
    assert "limit of 1 round" in result["why"]
    kinds = [one["kind"] for one in result["cautions"]]
    assert kinds == ["not-converged", "little-learned", "missing-indicator"]
    assert len(result["learned"]) == len(result["posterior"]["names"])
    written = json.loads((public_part(tmp_path / "out") / "result.json").read_text())
    assert written["cautions"] == result["cautions"]
    page = write_report(tmp_path / "out").read_text()
    assert "Not converged:" in page
    assert "biased even if values are missing at random" in page


def test_a_run_that_has_not_asked_every_party_is_not_called_converged():
    """One party a round: the step of a round says nothing about parties that were not asked."""
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(600), rng.normal(size=600)])
    y = (rng.random(600) < 1 / (1 + np.exp(-x @ np.array([0.3, 1.0])))) * 1.0
    parties = {f"p{i}": {"x": x[i::6], "y": y[i::6]} for i in range(6)}
    whole = tacit.fit(MODEL, parties, privacy="none").posterior
    for rounds in (1, 3, 7, 12, 20, 40, 200):
        schedule = tacit.schedules.Synchronous(parties_per_round=1, rounds=rounds)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotConvergedWarning)
            fitted = tacit.fit(MODEL, parties, privacy="none", schedule=schedule)
        gap = np.max(np.abs(fitted.posterior.mean - whole.mean) / whole.sd)
        assert not fitted.converged or gap < 0.05, (rounds, gap, fitted.why)
    assert fitted.converged, fitted.why


def test_a_mean_field_posterior_whose_correlations_are_not_measured_says_so():
    """dp-sgd is mean-field, and its sds leave out the correlation of the coefficients."""
    parties = {"a": records(), "b": records(seed=1)}
    seeded = tacit.Privacy(epsilon=100.0, delta=1e-5, insecure_noise_seed=1)

    def told(method, privacy, posterior="auto"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fit = tacit.fit(
                MODEL, parties, privacy=privacy, method=method, posterior=posterior,
                schedule=tacit.schedules.Synchronous(rounds=2),
            )  # fmt: skip
        return [one.text for one in fit._result.cautions if one.kind == "mean-field"]

    (text,) = told(tacit.methods.DPSGD(), seeded)
    assert "the mean-field posterior leaves out correlations; use method=" in text
    (text,) = told(tacit.methods.GradientVI(), None, "mean-field")
    assert text.endswith('leaves out correlations; use posterior="full".')
    assert told(tacit.methods.GradientVI(), None, "full") == []
    assert told(tacit.methods.NaturalVI(), None, "mean-field") == []
