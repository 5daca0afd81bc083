"""What a notebook shows of fits, federations and guarantees: no record, nothing unescaped."""

from __future__ import annotations

import re
from html import unescape

import numpy as np
import pytest

import tacit
from tacit.fitting.progress import Progress

PLANTED = 61.9137


@pytest.fixture(scope="module")
def federation():
    return tacit.datasets.load("synthetic-cohort", parties=3, records=300, seed=1)


@pytest.fixture(scope="module")
def private():
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(200), rng.uniform(-1, 1, 200)])
    records = {"x": x, "y": (rng.random(200) < 0.5).astype(float)}
    layout = tacit.models.LogisticRegression(("intercept", "<i>dose</i>")).layout
    bounded = (layout[0], layout[1]._replace(low=-1.0, high=1.0))
    model = tacit.models.LogisticRegression(("intercept", "<i>dose</i>"), layout=bounded)
    test = {"x": np.array([[1.0, 0.5]]), "y": np.array([1.0])}
    return tacit.fit(model, {"a": records}, privacy=tacit.Privacy(epsilon=5.0), test=test)


def test_a_fit_shows_its_public_part(private):
    html = private._repr_html_()
    assert "<i>" not in html
    assert "<i>dose</i>" in unescape(html)
    assert "ε = 5" in html
    assert "accuracy" not in html, "held-out metrics would stay in a saved notebook"
    assert private.converged == ("NOT CONVERGED" not in html)
    assert len(re.findall("<tr>", html)) == 3
    assert "Differential privacy" in private.privacy._repr_html_()
    assert "one record" in private.privacy.guarantee._repr_html_()


def test_a_federation_shows_no_record_and_no_count(federation):
    planted = federation.parties["hospital-1"]["x"]
    planted[0, 1] = PLANTED
    html = federation._repr_html_()
    assert "hospital-1, hospital-2, hospital-3" in html
    assert str(PLANTED) not in html
    assert not re.search(rf"\b{len(planted)}\b", html)


def test_short_rounds_are_not_all_shown(capsys):
    class State:
        round = 0

    with Progress(5_000, enabled=True) as bar:
        observe = bar.observer(None)
        assert observe is not None
        for State.round in range(5_000):
            observe(State(), ())
    assert 1 <= capsys.readouterr().err.count("round") < 1_000


def test_the_progress_bar_is_shown_on_request_and_removed(capsys, monkeypatch):
    class State:
        round = 2

    monkeypatch.setattr("tacit.fitting.progress.SHOWN_EVERY_S", 0.0)
    seen = []
    with Progress(5, enabled=True) as bar:
        observe = bar.observer(lambda state, _: seen.append(state.round))
        observe(State(), ())
    shown = capsys.readouterr().err
    assert "round 2 of at most 5" in shown
    assert shown.endswith("\x1b[2K")
    assert seen == [2]
    with Progress(5, enabled=None) as bar:
        assert bar.observer(None) is None, "no bar outside notebooks"
    assert capsys.readouterr().err == ""
