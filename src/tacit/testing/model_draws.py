"""Checks of drawn outcomes and expected outcomes, which predictions use.

Draws are compared with the distribution function F that belongs to the log-likelihood: F(y) of a
draw y must be uniform in (0, 1). If y is a count or a label, F(y) is replaced by a uniform number
between P(Y < y) and P(Y ≤ y).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.errors import ConfigError
from tacit.models import Model
from tacit.models.capabilities import NumPyResponses, Simulates, SimulatesOutcomes
from tacit.models.glm.base import GeneralisedLinear
from tacit.testing.comparisons import EXACT, expect_close
from tacit.testing.families import STANDARD_ERRORS
from tacit.testing.model_grids import Grid, grid_of, has_outcome

if TYPE_CHECKING:
    from tacit.testing.models import Subject

DRAWN = 4_000
"""Number of outcomes drawn per record and θ."""
RECORDS = 3
"""Number of records whose outcomes are drawn."""
KOLMOGOROV = 3.3
"""Largest √n·D, where D is the distance between the distribution functions of n draws and of the
model. A right model exceeds it with probability 1e−9.
"""


def check_drawn(subject: Subject) -> bool:
    """Check that `draw_outcomes` draws from the likelihood and depends on its seed. Return False if
    the model has no outcome y, or draws none.
    """
    model = subject.model
    if not has_outcome(subject):
        return False
    few = {name: value[:RECORDS] for name, value in subject.records.items()}
    places: list[np.ndarray] = []
    for number, theta in enumerate(subject.thetas):
        try:
            y = _drawn(model, theta, few, number)
        except ConfigError as error:
            _check_may_refuse(model, error)
            return False
        assert np.array_equal(y, _drawn(model, theta, few, number)), (
            "draw_outcomes: the same seed gave different outcomes: draw all random numbers from a "
            "generator with this seed"
        )
        assert not np.array_equal(y, _drawn(model, theta, few, number + 10)), (
            "draw_outcomes: two seeds gave the same outcomes: draw all random numbers from a "
            "generator with this seed"
        )
        for row, draws in enumerate(y.T):
            grid = grid_of(subject, theta, row)
            if grid is not None and grid.adds_up:
                what = f"draw_outcomes: outcomes of record {row}"
                places.append(expect_drawn_from(what, draws, grid, subject.rng))
    if not places:
        return False
    expect_uniform("draw_outcomes: outcomes of all records", np.concatenate(places))
    return True


def _drawn(model: Model, theta: np.ndarray, records: Any, seed: int) -> np.ndarray:
    """Return an array of outcomes with `DRAWN` rows and one column per record."""
    means = np.asarray(model.response(theta, records), np.float64)
    thetas = np.repeat(np.asarray(theta)[None], DRAWN, axis=0)
    found = np.asarray(
        model.draw_outcomes(thetas, np.repeat(means[None], DRAWN, axis=0), records, seed)
    )
    expected = (DRAWN, len(means))
    assert found.shape == expected, f"draw_outcomes: shape {found.shape}, expected {expected}"
    return found.astype(np.float64)


def _check_may_refuse(model: Model, error: ConfigError) -> None:
    """Check that a model that draws no outcomes for predictions does not simulate any either."""
    own = type(model).draw_outcomes is not Model.draw_outcomes
    assert own or not isinstance(model, Simulates | SimulatesOutcomes), (
        f"draw_outcomes: the model simulates outcomes, but intervals of predictions are refused "
        f"({error}): define draw_outcomes"
    )


def check_responses(subject: Subject) -> bool:
    """Check that `responses` and `inverse_link` agree with `response`. Return False if the model
    has neither.
    """
    model, records, thetas = subject.model, subject.records, subject.thetas
    if not isinstance(model, NumPyResponses) and not isinstance(model, GeneralisedLinear):
        return False
    expected = np.stack([np.asarray(model.response(theta, records)) for theta in thetas])
    if isinstance(model, NumPyResponses):
        found = np.asarray(model.responses(thetas, records))
        assert found.shape == expected.shape, (
            f"responses: shape {found.shape}, expected {expected.shape}"
        )
        expect_close("responses: not `response` of each θ", found, expected, EXACT)
    if isinstance(model, GeneralisedLinear) and np.shape(records["x"])[1] == model.dimension:
        means = model.inverse_link(thetas @ np.asarray(records["x"]).T)
        expect_close("inverse_link: not `response`", np.asarray(means), expected, EXACT)
    return True


def expect_drawn_from(
    what: str, draws: np.ndarray, grid: Grid, rng: np.random.Generator
) -> np.ndarray:
    """Assert that draws have the distribution of `grid`, with its mean and variance. Return F(y) of
    each draw y.
    """
    below, within = grid.distribution(draws)
    places = below + rng.random(len(draws)) * (within - below)
    expect_uniform(what, places)
    for moment, values, expected in (
        ("mean", draws, grid.mean),
        ("variance", np.square(draws - grid.mean), grid.variance),
    ):
        error = float(np.std(values)) / np.sqrt(len(values))
        allowed = STANDARD_ERRORS * error + grid.tolerance * max(1e-9, abs(expected))
        found = float(np.mean(values))
        assert abs(found - expected) <= allowed, (
            f"{what} do not follow the likelihood: {moment} {found:.4g}, expected {expected:.4g} "
            f"± {allowed:.2g}"
        )
    return places


def expect_uniform(what: str, places: np.ndarray) -> None:
    """Assert that numbers are uniform in (0, 1), by the Kolmogorov–Smirnov statistic."""
    ordered, count = np.sort(places), len(places)
    steps = np.arange(count + 1) / count
    distance = float(max(np.max(steps[1:] - ordered), np.max(ordered - steps[:-1])))
    allowed = KOLMOGOROV / np.sqrt(count) + 2e-3
    assert distance <= allowed, (
        f"{what} do not follow the likelihood: the distribution functions differ by "
        f"{distance:.3g}, expected at most {allowed:.2g}"
    )


def each_grid(subject: Subject) -> Iterator[tuple[np.ndarray, int, Grid]]:
    """Yield pairs of θ and a record, with a grid of its outcome."""
    for theta in subject.thetas:
        for row in range(min(RECORDS, subject.count)):
            grid = grid_of(subject, theta, row)
            if grid is not None and grid.adds_up:
                yield theta, row, grid
