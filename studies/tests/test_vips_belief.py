"""The belief network's part of the VIPS study, on images that are made up."""

import numpy as np
import pytest

from tacit_studies import vips_belief
from tacit_studies.images import Images
from tacit_studies.vips_belief import CURVE, FILTERS, RECONSTRUCTIONS, Setting, belief
from tacit_studies.vips_regression import auc, plot_regression


def made_up(*, seed=0):
    rng = np.random.default_rng(seed)
    kinds = rng.random((5, 784)) < 0.3
    x = kinds[rng.integers(5, size=260)] ^ (rng.random((260, 784)) < 0.02)
    x = x.astype(np.uint8)
    return Images(train={"x": x[:200]}, test={"x": x[200:]})


def test_rows_say_what_was_guaranteed_and_figures_are_written(tmp_path, monkeypatch):
    monkeypatch.setattr(vips_belief, "load_images", made_up)
    setting = Setting(
        hidden=3, sweeps=2, rate=0.5, rounds=3, epsilons=(4.0,), places=("central", "trusted")
    )
    steps = []
    rows = belief(tmp_path, setting=setting, progress=lambda *step: steps.append(step))
    assert [row["parties"] for row in rows] == [1, 1, 10]
    assert [row["epsilon"] is None for row in rows] == [True, False, False]
    for row in rows[1:]:
        assert row["epsilon"] <= row["asked"] == 4.0
        assert (row["unit"], row["adjacency"], row["delta"]) == ("record", "replace-one", 1e-5)
        assert np.isfinite([row["bound"], row["sampled_bound"]]).all()
    assert rows[1]["trust"] != rows[2]["trust"]
    assert len(steps) == 3
    for file in (CURVE, FILTERS, RECONSTRUCTIONS):
        assert (tmp_path / file).stat().st_size > 5000


def test_the_area_under_the_curve_counts_pairs():
    rng = np.random.default_rng(0)
    p, y = rng.random(60).round(1), rng.integers(2, size=60)
    ones, zeros = p[y == 1], p[y == 0]
    pairs = (ones[:, None] > zeros) + 0.5 * (ones[:, None] == zeros)
    assert auc(p, y) == pytest.approx(pairs.mean())


def test_regression_is_drawn_a_panel_a_place():
    row = {"method": "DP-SGD", "asked": None, "place": "open", "log_likelihood": -0.3}
    private = [
        row | {"asked": epsilon, "place": place, "log_likelihood": -0.3 - 0.01 / epsilon}
        for place in ("central", "plain")
        for epsilon in (0.5, 1.0)
    ]
    figure = plot_regression([row, *private])
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["Central", "Plain"]
