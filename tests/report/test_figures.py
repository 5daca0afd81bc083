"""Figures hold the numbers given to them, and say what they leave out."""

import io
import subprocess
import sys

import numpy as np
import pytest
from scipy.stats import binomtest

from tacit.report import (
    plot_calibration,
    plot_coefficients,
    plot_convergence,
    plot_negative_elbo,
    plot_parties,
)
from tacit.results.figures import _wilson
from tacit.results.summary import CalibrationBin, PartyRow, Round


def words(figure):
    """All text of a figure, drawn once so that every label exists."""
    figure.savefig(io.BytesIO(), format="png", dpi=40)
    parts = []
    for axes in figure.axes:
        parts += [text.get_text() for text in axes.texts]
        parts += [axes.get_title(loc="left"), axes.get_xlabel(), axes.get_ylabel()]
        parts += [label.get_text() for label in axes.get_yticklabels()]
    return "\n".join(parts)


def test_coefficients_are_ordered_and_intervals_are_right():
    figure = plot_coefficients(
        ["a", "b"], [1.0, -2.0], [0.5, 2.0], true_values={"a": 0.9, "z": 1.0}
    )
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["b", "a"]
    segments = np.concatenate([c.get_segments() for c in axes.collections])
    ends = sorted((row[0][0], row[1][0]) for row in segments)
    np.testing.assert_allclose(ends, [(-5.919928, 1.919928), (0.020018, 1.979982)], atol=1e-6)
    truth = next(line for line in axes.lines if line.get_label() == "true value")
    np.testing.assert_allclose(truth.get_xydata(), [[0.9, 1.0]])


def test_many_coefficients_are_cut_and_the_cut_is_told():
    names = [f"x{i}" for i in range(100)]
    text = words(plot_coefficients(names, np.arange(100.0), np.ones(100)))
    assert "The 30 largest by |mean|/sd of 100" in text
    assert "x99" in text
    assert "x69\n" not in text


def test_names_are_taken_literally():
    assert "$\\frac{$" in words(plot_coefficients(["$\\frac{$", "x" * 50], [1.0, 2.0], [1.0, 1.0]))


def test_negative_elbo_leaves_out_rounds_without_one():
    rounds = [Round(round=1, negative_elbo=3.0), Round(round=2, negative_elbo=None), Round(round=3)]
    figure = plot_negative_elbo(rounds)
    np.testing.assert_allclose(figure.axes[0].lines[0].get_xydata(), [[1.0, 3.0]])
    assert "3.0 nats at the start of round 1" in words(figure)


def test_convergence_is_logarithmic_and_marks_refusals():
    rounds = [
        Round(round=1, last_change=1.0, refused=0),
        Round(round=2, last_change=0.1, refused=2),
        Round(round=3, last_change=0.0),
    ]
    axes = plot_convergence(rounds).axes[0]
    assert axes.get_yscale() == "log"
    np.testing.assert_allclose(axes.lines[0].get_xydata(), [[1.0, 1.0], [2.0, 0.1]])
    np.testing.assert_allclose(axes.lines[1].get_xydata(), [[2.0, 0.1]])


@pytest.mark.parametrize("plot", [plot_negative_elbo, plot_convergence])
def test_no_rounds_still_give_a_figure(plot):
    assert "None was recorded" in words(plot([]))


def test_reliability_shows_points_counts_and_error():
    bins = [
        CalibrationBin(low=0.0, high=0.5, predicted=0.2, observed=0.3, count=10),
        CalibrationBin(low=0.5, high=1.0, predicted=0.8, observed=0.8, count=30),
    ]
    figure = plot_calibration(bins)
    np.testing.assert_allclose(figure.axes[0].lines[1].get_xydata(), [[0.2, 0.3], [0.8, 0.8]])
    assert [bar.get_height() for bar in figure.axes[1].patches] == [10, 30]
    assert "Expected calibration error 0.025 on 40 records" in words(figure)
    assert "unknown" in words(plot_calibration([]))


def test_wilson_equals_scipy():
    low, high = _wilson(np.array([0.1]), np.array([50.0]))
    expected = binomtest(5, 50).proportion_ci(0.95, method="wilson")
    assert (low[0], high[0]) == pytest.approx((expected.low, expected.high))


def test_parties_with_and_without_a_positive_fraction():
    parties = [
        PartyRow(name="a", records=30, positive_fraction=0.5),
        PartyRow(name="b", records=10, positive_fraction=0.1),
        PartyRow(name="c", records=5),
    ]
    figure = plot_parties(parties)
    assert [bar.get_width() for bar in figure.axes[0].patches] == [5, 10, 30]
    assert "Dashed: 40.0 %" in words(figure)
    assert len(plot_parties([PartyRow(name="a", records=3)]).axes) == 1


def test_many_parties_are_cut_and_the_cut_is_told():
    parties = [PartyRow(name=f"p{i}", records=i) for i in range(50)]
    assert "The 40 largest of 50" in words(plot_parties(parties))


def test_no_pyplot_state_and_no_engine_is_imported():
    code = (
        "import sys, tacit.report; "
        "sys.exit('matplotlib.pyplot' in sys.modules or 'tacit.engines' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
