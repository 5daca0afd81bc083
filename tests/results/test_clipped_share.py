"""The share of clipped contributions: shown for simulations, and nowhere in a private run."""

import json
import pickle
from dataclasses import replace

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import tacit
from tacit.cli.show.results import console, show_verdict
from tacit.engines.execute import carry_out
from tacit.methods import DPSGD, Hybrid, PrivateScoring, PrivateStatistics, PrivateUpdate, Whitened
from tacit.models import LinearRegression, LogisticRegression
from tacit.plan.plan import make_plan
from tacit.privacy.settings import Privacy
from tacit.report import write_report
from tacit.results.cautions import ClippingWarning
from tacit.results.summary import builtins_of
from tacit.run.config import parse_config
from tacit.run.directory import private_part, public_part
from tacit.run.run import run
from tacit.server.schedule import Synchronous
from tacit.support.public_files import EVALUATION, RESULT

ALMOST_EXACT = Privacy(epsilon=1000.0, insecure_noise_seed=1)


def regression(x, y=None):
    level = numpyro.sample("level", dist.Normal(0.0, 5.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 5.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(5.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(level + slope * x, sigma), obs=y)


def noisy_line(records=600):
    """σ = 2, so that log σ alone has gradients beyond 1; two parties."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=records)
    data = {"x": x, "y": 1.0 + 0.5 * x + 2.0 * rng.normal(size=records)}
    half = records // 2
    parties = {
        "a": {name: value[:half] for name, value in data.items()},
        "b": {name: value[half:] for name, value in data.items()},
    }
    return tacit.from_numpyro(regression, data), parties


def fit_line(privacy, **settings):
    model, parties = noisy_line()
    return tacit.fit(
        model, parties, privacy=privacy, method=DPSGD(**settings), schedule=Synchronous(rounds=60)
    )


INDEPENDENT = ["mean-field"]
"""The caution of every mean-field posterior of dp-sgd; there is none about clipping."""


def kinds(found):
    return [one.kind for one in found._result.cautions]


def test_a_default_clip_that_biases_a_numpyro_model_warns_in_a_simulation():
    with pytest.warns(ClippingWarning, match=r"biases the posterior.*raise method\.clip"):
        found = fit_line(ALMOST_EXACT)
    assert abs(found.posterior.draws()["sigma"].mean() - 2.0) > 0.5  # the warning is deserved
    assert found.clipped is not None
    assert found.clipped > 0.5
    assert "of units clipped" in repr(found)
    assert "Clipping: method.clip clipped the contributions of" in str(found)
    assert any("the contributions of" in text for text in found.cautions)


def test_a_wider_clip_neither_biases_nor_warns():
    found = fit_line(ALMOST_EXACT, clip=10.0)  # a warning would be an error
    assert found.clipped is not None
    assert found.clipped < 0.1
    assert found.posterior.draws()["sigma"].mean() == pytest.approx(2.0, abs=0.15)
    assert kinds(found) == INDEPENDENT


def test_with_secret_noise_the_bias_of_a_default_clip_is_said_to_be_unknown():
    """From the plan alone: no number that depends on the records."""
    with pytest.warns(ClippingWarning, match="the bias is unknown and no interval includes it"):
        found = fit_line(Privacy(epsilon=1000.0))
    assert found.clipped is None
    assert "or the effect of clipping" in str(found.privacy)
    assert kinds(fit_line(Privacy(epsilon=1000.0), clip=10.0)) == INDEPENDENT


def linear_parties(make_parties, output="bernoulli"):
    return make_parties((120, 160), output=output)


def test_a_logistic_regression_with_a_clip_that_fits_does_not_warn(make_parties):
    parties = linear_parties(make_parties)
    model = LogisticRegression(("a", "b", "c"), prior_sd=1.0)
    found = tacit.fit(
        model, parties, privacy=ALMOST_EXACT, method=DPSGD(clip=2.0, label_agnostic=False)
    )
    assert found.clipped is not None
    assert found.clipped <= 0.5
    assert kinds(found) == INDEPENDENT


def test_a_label_agnostic_clip_that_shortens_most_units_is_shown_without_a_warning(make_parties):
    """Its weights do not depend on labels, so that the score keeps mean zero."""
    parties, model = linear_parties(make_parties), LogisticRegression(("a", "b", "c"), prior_sd=1.0)
    found = tacit.fit(model, parties, privacy=ALMOST_EXACT, method=DPSGD(clip=0.1))
    assert found.clipped is not None
    assert found.clipped > 0.5
    assert "loses information but does not bias" in str(found)
    assert kinds(found) == INDEPENDENT
    with pytest.warns(ClippingWarning, match="biases"):
        tacit.fit(
            model, parties, privacy=ALMOST_EXACT, method=DPSGD(clip=0.1, label_agnostic=False)
        )


METHODS = {
    "dp-sgd": DPSGD(),
    "dpsgd in batches": DPSGD(sampling_rate=0.2, sampling="without-replacement", steps=3),
    "dpsgd, adaptive": DPSGD(adaptive=0.5),
    "dpsgd, a scale each": DPSGD(precision="per-coordinate"),
    "dp-updates": PrivateUpdate(),
    "dp-updates, averaged": PrivateUpdate(shards=7, objective="averaged"),
    "dp-statistics": PrivateStatistics(),
    "dp-hybrid": Hybrid(),
    "whitened": Whitened(inner=DPSGD(), bound=2.0),
    "whitened updates": Whitened(inner=PrivateUpdate(), bound=2.0),
    "dp-scoring": PrivateScoring(),
}


@pytest.mark.parametrize("name", METHODS)
def test_every_private_method_says_its_share_and_is_not_changed_by_it(make_parties, name):
    """Tiny clips shorten everybody, wide ones hardly anybody; the posterior is the same bits."""
    parties, method = linear_parties(make_parties), METHODS[name]
    model = LogisticRegression(("a", "b", "c"), prior_sd=1.0)
    if name == "dp-scoring":
        methods = [(method, 0.0, 1.0)]  # it finds its own scale
    elif name.startswith("whitened"):
        methods = [
            (replace(method, inner=replace(method.inner, clip=1e-6), bound=1e3), 1.0, 1.0),
            (replace(method, inner=replace(method.inner, clip=1e6), bound=1e3), 0.0, 0.0),
        ]
        if isinstance(method.inner, DPSGD):  # neither biases q, and the larger share is shown
            clip = replace(method.inner, clip=1e6)
            methods.append((replace(method, inner=clip, bound=1e-6), 1.0, 1.0))
    else:
        methods = [(replace(method, clip=1e-6), 1.0, 1.0), (replace(method, clip=1e6), 0.0, 0.0)]
    for chosen, least, most in methods:
        plan = make_plan(
            model,
            parties,
            method=chosen,
            schedule=Synchronous(rounds=3),
            privacy=Privacy(noise_multiplier=1e-3, insecure_noise_seed=1, accountant="rdp"),
        )
        found = carry_out(plan)
        assert found.clipped is not None
        assert least <= found.clipped.share <= most
        bare = carry_out(replace(plan, report_steps=False))
        assert bare.clipped is None
        for part, value in found.state.q.items():
            np.testing.assert_array_equal(value, bare.state.q[part])


def test_the_share_is_that_of_gradients_longer_than_the_clip():
    """Against one gradient a record at q's mean, for a precision that is not learnt."""
    model, parties = noisy_line()
    plan = make_plan(
        model,
        parties,
        method=DPSGD(precision="fixed", clip=1.2, average_last=0.0),
        schedule=Synchronous(rounds=5),
        privacy=ALMOST_EXACT,
    )
    outcome = carry_out(plan)
    mean = outcome.posterior.mean

    def one(x, y):
        return jax.grad(lambda theta: model.log_likelihood(theta, {"x": x, "y": y})[0])(mean)

    norms = np.concatenate([
        np.linalg.norm(jax.vmap(one)(own["x"][:, None], own["y"][:, None]), axis=1)
        for own in parties.values()
    ])  # fmt: skip
    assert outcome.clipped is not None
    assert 0.05 < np.mean(norms > 1.2) < 0.95
    assert outcome.clipped.share == pytest.approx(np.mean(norms > 1.2), abs=2 / len(norms))


def test_the_moments_share_is_that_of_rows_longer_than_the_bound(make_parties):
    parties = linear_parties(make_parties)
    plan = make_plan(
        LogisticRegression(("a", "b", "c"), prior_sd=1.0),
        parties,
        method=Whitened(inner=DPSGD(clip=1e6), bound=1.5),
        schedule=Synchronous(rounds=3),
        privacy=ALMOST_EXACT,
    )
    x = np.concatenate([own["x"] for own in parties.values()])
    share = np.mean(np.linalg.norm(x, axis=1) > 1.5)
    assert 0.05 < share < 0.95
    found = carry_out(plan).clipped
    assert found is not None
    assert found == (False, pytest.approx(share), "method.whiten_bound", None)


def test_of_many_records_a_random_choice_is_measured(make_parties, monkeypatch):
    parties = make_parties((900, 100), output="gaussian")
    plan = make_plan(
        LinearRegression(("a", "b", "c"), noise_sd=1.0, prior_sd=1.0),
        parties,
        method=DPSGD(clip=2.0),
        schedule=Synchronous(rounds=2),
        privacy=ALMOST_EXACT,
    )
    whole = carry_out(plan).clipped
    monkeypatch.setattr("tacit.party.clipping.MAX_UNITS", 400)
    part = carry_out(plan).clipped
    assert whole is not None
    assert part is not None
    assert part.share != whole.share
    assert part.share == pytest.approx(whole.share, abs=0.1)


def test_a_share_that_cannot_be_computed_is_a_warning(make_parties, monkeypatch):
    def fail(*_):
        raise MemoryError("too many records")

    monkeypatch.setattr("tacit.engines.execute.clipped_share", fail)
    plan = make_plan(
        LogisticRegression(("a", "b", "c"), prior_sd=1.0),
        linear_parties(make_parties),
        schedule=Synchronous(rounds=3),
        privacy=ALMOST_EXACT,
    )
    with pytest.warns(UserWarning, match="could not be computed: too many records"):
        assert carry_out(plan).clipped is None


CONFIG = {
    "privacy": {"epsilon": 50.0, "delta": 1e-4, "insecure_noise_seed": 7},
    "data": {"source": "synthetic-cohort", "records": 400},
    "partition": {"parties": 2},
    "method": {"kind": "dp-updates", "clip": 0.001},
    "schedule": {"rounds": 5},
}


def test_files_page_and_terminal_of_a_simulation_show_the_share(tmp_path):
    result = run(parse_config(CONFIG), tmp_path / "out")
    written = json.loads((public_part(tmp_path / "out") / RESULT).read_text())
    assert written["clipped"] == builtins_of(result)["clipped"]
    assert written["clipped"]["share"] > 0.5
    assert "clipping" in [one["kind"] for one in written["cautions"]]
    page = write_report(tmp_path / "out").read_text()
    assert "<strong>Clipping:</strong> method.clip clipped the contributions of" in page
    with console.capture() as shown:
        show_verdict(result)
    assert "clipping: method.clip clipped the contributions" in " ".join(shown.get().split())


def keys_of(body):
    if isinstance(body, dict):
        return set(body).union(*(keys_of(value) for value in body.values()))
    return set().union(*map(keys_of, body)) if isinstance(body, list) else set()


def test_a_private_run_measures_and_shows_no_share(tmp_path, monkeypatch, make_parties):
    """Not even where only those who may see the records look: it is never computed."""

    def fail(*_, **__):
        pytest.fail("measured in a run with secret noise")

    monkeypatch.setattr("tacit.engines.execute.clipped_share", fail)
    for method in (DPSGD, PrivateUpdate, PrivateStatistics, PrivateScoring, Whitened, Hybrid):
        monkeypatch.setattr(method, "contributions", fail)
    privacy = {"epsilon": 50.0, "delta": 1e-4, "ledger": "run-directory"}
    result = run(parse_config({**CONFIG, "privacy": privacy}), tmp_path / "out")
    assert result.privacy.private is True
    for body in (
        builtins_of(result),
        json.loads((public_part(tmp_path / "out") / RESULT).read_text()),
        json.loads((private_part(tmp_path / "out") / EVALUATION).read_text()),
    ):
        assert "clipped" not in keys_of(body)
        assert "the contributions of" not in json.dumps(body)
    assert "Clipping:" not in write_report(tmp_path / "out").read_text()
    found = tacit.fit(
        LogisticRegression(("a", "b", "c"), prior_sd=1.0),
        linear_parties(make_parties),
        privacy=Privacy(epsilon=50.0),
        method=DPSGD(clip=0.05),
    )
    again = pickle.loads(pickle.dumps(found))
    for one in (found, again):
        assert one.clipped is None
        assert one._outcome.clipped is None
        assert "the contributions of" not in str(one) + repr(one)
