"""What comes after training: it may fail, and what is shown is in the space its user thinks in."""

import json
from html import unescape
from pathlib import Path

import matplotlib.colors
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from json_results import run

from tacit import Privacy, fit
from tacit.errors import ConfigError, DataError
from tacit.methods import DPSGD, GradientVI
from tacit.models import LogisticRegression
from tacit.models.numpyro.model import from_numpyro
from tacit.privacy.ledger.ledger import Ledger
from tacit.report import write_report
from tacit.results.evaluation import EvaluationWarning
from tacit.results.figures import BLUE
from tacit.run.config import parse_config, read_config, resolved_toml
from tacit.run.run import prepare

PROGRAM = """
import numpyro
import numpyro.distributions as dist

def model(dose, y):
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", dose.shape[0]):
        numpyro.factor("likelihood", -0.5 * (y - slope * dose) ** 2)
"""
STUDY = """
name = "factor"
seed = 1
{privacy}

outcome = "pain"

[data]
path = "records.csv"
keep = ["dose"]
held_out = 0.25
[columns.dose]
low = 0
high = 1
[columns.pain]
low = -3
high = 3

[partition]
parties = 2
[model]
kind = "numpyro"
function = "program.py:model"
[schedule]
rounds = 2
"""
PRIVATE = '[privacy]\nepsilon = 2.0\ndelta = 1e-3\nledger = "ledger.sqlite"'


@pytest.fixture
def study(tmp_path, monkeypatch):
    """Writes a study whose likelihood is a numpyro.factor, which has no predictive mean."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    dose = rng.uniform(size=40)
    rows = zip(dose, np.clip(dose + rng.normal(size=40), -3, 3), strict=True)
    text = "dose,pain\n" + "\n".join(f"{a:.3f},{b:.3f}" for a, b in rows)
    Path("records.csv").write_text(text + "\n")
    Path("program.py").write_text(PROGRAM)

    def write(privacy):
        top = 'privacy = "none"' if privacy is None else ""
        body = STUDY.format(privacy=top) + (f"\n{privacy}\n" if privacy else "")
        Path("study.toml").write_text(body)
        return "study.toml"

    return write


def test_check_says_what_cannot_be_evaluated(tacit, study):
    code, out, _ = tacit("check", study(None))
    assert code == 0
    assert "there will be no metrics of the held-out records: observed sites ['likelihood']" in out
    assert "the model was not evaluated on the records" not in out
    _, out, _ = tacit("check", study(PRIVATE))
    assert "the model was not evaluated on the records" in out


@pytest.mark.parametrize("privacy", [None, PRIVATE], ids=["none", "private"])
def test_an_evaluation_that_fails_costs_no_posterior(tacit, study, privacy):
    file = study(privacy)
    if privacy:
        allow = ("ledger", "budget", file, "--epsilon", "2", "--delta", "1e-3", "--reason", "r",
                 "--ledger", "ledger.sqlite")  # fmt: skip
        assert tacit(*allow)[0] == 0
    for options in ((), ("--resume",)):
        code, out, err = tacit("run", file, "--out", "out", "--report", *options)
        assert (code, err) == (0, "")
        assert "note: metrics could not be computed: observed sites" in out
        with np.load("out/public/posterior.npz") as archive:
            assert list(archive["names"]) == ["slope"]
        kept = json.loads(Path("out/private/evaluation.json").read_text())
        assert "do not have one mean per record" in kept["not_evaluated"]["metrics"]
        page = Path("out/public/report.html").read_text()
        assert ("do not have one mean" in page) == (privacy is None), "its reason may name records"
    if privacy:
        with Ledger("ledger.sqlite") as ledger:
            assert {ledger.spent(one).charges for one in ledger.datasets()} == {2}


SMALL = {
    "privacy": "none",
    "data": {"source": "synthetic-cohort", "records": 80},
    "partition": {"parties": 2},
    "schedule": {"rounds": 1},
}


@pytest.mark.parametrize(
    ("place", "what"),
    [("measure", "metrics"), ("site_summary", "summary"), ("exact_posterior", "reference")],
)
def test_whatever_fails_after_training_is_a_note(tmp_path, monkeypatch, place, what):
    raw = SMALL
    if what == "reference":
        raw = SMALL | {"data": {"source": "normal-mean", "records": 80}}

    def fail(*_args, **_more):
        raise ValueError("two\nlines")

    monkeypatch.setattr(f"tacit.run.run.{place}", fail)
    result = run(parse_config(raw), tmp_path / "run")
    assert result["not_evaluated"] == {what: "two lines"}
    assert (tmp_path / "run" / "public" / "posterior.npz").exists()
    assert "two lines" in write_report(tmp_path / "run").read_text()


def test_the_posterior_is_there_before_anything_is_measured(tmp_path, monkeypatch):
    out = tmp_path / "run"

    def power_cut(*_args, **_more):
        assert (out / "public" / "posterior.npz").exists()
        raise KeyboardInterrupt

    monkeypatch.setattr("tacit.run.run.measure", power_cut)
    with pytest.raises(KeyboardInterrupt):
        run(parse_config(SMALL), out)
    assert not (out / "public" / "result.json").exists()
    monkeypatch.undo()
    assert run(parse_config(SMALL), out, resume=True)["metrics"]["training"]["accuracy"] > 0.5


def test_the_page_lists_no_settings_of_other_models(tmp_path):
    run(parse_config(SMALL | {"model": {"kind": "logistic", "prior_sd": 1.0}}), tmp_path / "run")
    text = (tmp_path / "run" / "public" / "config.toml").read_text()
    assert "prior_sd" in text
    for key in ("topics", "hidden", "document_words", "noise_sd", "trials"):
        assert key not in text
    page = unescape(write_report(tmp_path / "run").read_text(encoding="utf-8"))
    assert text.split("[model]")[1].split("[")[0].strip() in page


def spread(x, y=None):
    slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
    sd = numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(slope * x, sd), obs=y)


@pytest.fixture(scope="module")
def spread_fit():
    rng = np.random.default_rng(2)
    x = rng.normal(size=200)
    records = {"x": x, "y": 1.5 * x + 0.12 * rng.normal(size=200)}
    model = from_numpyro(spread, records)
    return fit(model, {"a": records}, privacy="none", method=GradientVI(steps=400))


def drawn(figure):
    """name -> (low, high, whether blue) of a forest plot."""
    axes = figure.axes[0]
    names = [label.get_text() for label in axes.get_yticklabels()]
    blue = matplotlib.colors.to_rgba(BLUE)
    found = {}
    for lines in axes.collections:
        for (low, row), (high, _) in lines.get_segments():
            found[names[round(row)]] = (low, high, tuple(lines.get_color()[0]) == blue)
    return found


def test_a_scale_is_plotted_as_a_scale_and_never_coloured(spread_fit):
    found = drawn(spread_fit.plot())
    low, high, blue = found["spread"]
    assert 0.05 < low < 0.13 < high < 0.4, "not the logarithm, which is about −2.1"
    assert not blue, "a positive quantity excludes 0 whatever is known of it"
    assert found["slope"][2], "a slope of 1.5 is clear"
    line = next(line for line in str(spread_fit).splitlines() if line.startswith("spread"))
    assert f"{low:.5f}" in line
    assert f"{high:.5f}" in line


def test_a_fit_whose_metrics_fail_warns_and_is_a_fit(monkeypatch):
    records = {"x": np.ones((30, 1)), "y": np.arange(30) % 2.0}

    def fail(*_):
        raise ValueError("no score")

    monkeypatch.setattr("tacit.results.evaluation.score", fail)
    with pytest.warns(EvaluationWarning, match="metrics could not be computed: no score"):
        found = fit(
            LogisticRegression(("intercept",), prior_sd=1.0), {"a": records}, privacy="none"
        )
    assert found.metrics == {"training": None, "held_out": None}


def test_intervals_without_the_noise_are_marked_wherever_they_are_shown(tmp_path, tacit):
    raw = {
        "name": "narrow",
        "seed": 1,
        "privacy": {"epsilon": 8.0, "delta": 1e-4, "insecure_noise_seed": 1},
        "data": {"source": "synthetic-cohort", "records": 400, "held_out": 0.0},
        "partition": {"parties": 2},
        "method": {"kind": "dp-sgd"},
        "schedule": {"rounds": 4},
    }
    result = run(parse_config(raw), tmp_path / "run")
    assert "too narrow" in result["intervals"]["warning"]
    page = write_report(tmp_path / "run").read_text()
    assert 'class="clear"' not in page
    assert "<strong>Too narrow.</strong>" in page
    Path("narrow.toml").write_text(resolved_toml(parse_config(raw)))
    _, out, _ = tacit("run", "narrow.toml", "--out", "again")
    assert "posterior with 95 % intervals that are too narrow" in out
    assert "warning: Intervals are too narrow" in out


def test_a_private_fit_that_lacks_the_noise_says_so_in_summary_and_plot(make_parties):
    parties = make_parties((200, 200), output="bernoulli")
    found = fit(
        LogisticRegression(("a", "b", "c"), prior_sd=1.0), parties,
        privacy=Privacy(epsilon=8.0, delta=1e-4, insecure_noise_seed=1), method=DPSGD(),
    )  # fmt: skip
    assert "warning: Intervals are too narrow" in str(found)
    figure = found.plot()
    assert not any(blue for _, _, blue in drawn(figure).values())
    assert any("too narrow" in text.get_text() for text in figure.axes[0].texts)


# The private demo.

DEMO = Path(__file__).parents[2] / "examples" / "hospitals-private.toml"


def test_the_private_demo_is_private_and_keeps_its_ledger_with_it(tacit, monkeypatch, tmp_path):
    monkeypatch.setenv("TACIT_STATE", str(tmp_path / "state"))
    code, out, err = tacit("run", str(DEMO), "--out", "demo", "--report", "--overwrite")
    assert (code, err) == (0, "")
    assert "privacy: Differential privacy: ε = 2, δ = 1e-05 per record" in out
    assert "shareable" in out
    shared = json.loads(Path("demo/public/result.json").read_text())
    assert shared["privacy"]["private"] is True
    assert shared["intervals"]["warning"] is None
    page = Path("demo/public/report.html").read_text()
    assert "This run was private:" in page
    assert "Not private" not in page
    assert "not private" not in page
    assert not (tmp_path / "state").exists(), "the user's own ledger is not needed"
    with Ledger("demo/private/ledger.sqlite") as ledger:
        assert ledger.verify().sound
        assert len(ledger.datasets()) == 10
        spent = [ledger.spent(one) for one in ledger.datasets()]
    assert all((one.epsilon or 0.0) <= 2.0 * (1 + 1e-6) for one in spent)
    assert tacit("run", str(DEMO), "--out", "demo", "--resume")[0] == 0


def test_real_records_have_their_ledger_elsewhere(tmp_path, tacit):
    raw = {
        "privacy": {"epsilon": 1.0, "ledger": "run-directory"},
        "data": {"source": "breast-cancer"},
        "partition": {"parties": 2},
    }
    with pytest.raises(ConfigError, match="must outlive the run"):
        parse_config(raw)
    Path("study.toml").write_text(
        'privacy = { epsilon = 1.0, ledger = "run-directory" }\n[data]\nsource = "breast-cancer"\n'
    )
    for command in (("run", "study.toml", "--out", "run"), ("check", "study.toml")):
        code, out, err = tacit(*command)
        assert (code, out) == (2, "")
        assert "must outlive the run" in err
    assert not (tmp_path / "run").exists()


LOG_NORMAL = """
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

def model(dose, y):
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", dose.shape[0]):
        numpyro.sample("obs", dist.LogNormal(slope * dose, 1.0), obs=y)
"""


@pytest.mark.parametrize("zeros", [0, 1])
def test_records_without_a_density_are_found_before_a_run(tmp_path, monkeypatch, zeros):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(LOG_NORMAL)
    rows = [f"{i / 40},{0 if i < zeros else 1 + i / 20}" for i in range(40)]
    (tmp_path / "records.csv").write_text("\n".join(["dose,pain", *rows]))
    path = tmp_path / "study.toml"
    path.write_text(STUDY.format(privacy='privacy = "none"').replace("0.25", "0.0"))
    config = read_config(path)
    if not zeros:
        prepare(config)
        return
    with pytest.raises(DataError, match=r"party 'party-\d': the log-likelihood of 1 of 20 records"):
        prepare(config)
