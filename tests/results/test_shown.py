"""Numbers of a posterior are shown to the precision that their sd gives them."""

import math

import msgspec
import numpy as np
import pytest

import tacit
from tacit.cli.show.results import console, show_coefficients, show_verdict
from tacit.results.shown import to_precision
from tacit.results.summary import CautionNote, Intervals, PartyResult, PosteriorTable


@pytest.mark.parametrize(
    ("value", "sd", "text"),
    [
        (0.25, 0.0361, "0.2500"),
        (-1.642, 0.2, "-1.642"),
        (6.9e-6, 3.6e-6, "6.90e-06"),
        (-1.56e-7, 3.6e-6, "-1.6e-07"),
        (1e-12, 3.6e-6, "0"),
        (0.0, 3.6e-6, "0"),
        (1234.5, 250.0, "1234"),
        (1.25e9, 3e6, "1.25000e+09"),
        (0.5, 1e-9, "5.0000000000e-01"),
        (0.5, 0.0, "0.5"),
        (math.inf, 1.0, "inf"),
        (None, 1.0, "–"),
    ],
)
def test_three_digits_of_the_sd_are_shown(value, sd, text):
    assert to_precision(value, sd) == text


def test_a_summary_shows_coefficients_of_large_columns():
    rng = np.random.default_rng(0)
    income = rng.normal(scale=1e5, size=400)
    records = {
        "x": np.column_stack([np.ones(400), income]),
        "y": (rng.random(400) < 1 / (1 + np.exp(-1e-5 * income))).astype(float),
    }
    model = tacit.models.LogisticRegression(("intercept", "income"), prior_sd=1.0)
    fitted = tacit.fit(model, {"a": records}, privacy="none", posterior="full")
    (line,) = [line for line in str(fitted).splitlines() if line.startswith("income")]
    shown = [float(text) for text in line.split()[1:]]
    sd = fitted.posterior.sd[1]
    assert sd < 1e-5
    low, high = fitted.posterior.interval()
    np.testing.assert_allclose(
        shown, [fitted.posterior.mean[1], sd, low[1], high[1]], atol=0.005 * sd, rtol=0
    )


def test_the_terminal_shows_them_too_and_warnings_before_convergence():
    table = PosteriorTable(family="full", names=["income"], mean=[6.9e-6], sd=[3.6e-6])
    result = PartyResult(
        name="run",
        party="north",
        run="r",
        configuration="c",
        privacy="none",
        intervals=Intervals(),
        posterior=table,
        converged=False,
        why="it stood still",
        learned=None,
        cautions=[CautionNote(kind="little-learned", text="Little was learned.")],
    )
    with console.capture() as printed:
        show_coefficients(result)
        show_verdict(msgspec.structs.replace(result, converged=True))
    text = printed.get()
    assert "6.90e-06" in text
    assert "NOT CONVERGED" in text
    assert text.index("Little was learned.") < text.index("converged: it stood still")
