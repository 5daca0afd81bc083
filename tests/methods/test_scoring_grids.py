"""Counts within bounds that are far wider than the values."""

import numpy as np
import pytest

from tacit.data.schema.layout import INTERCEPT, Feature
from tacit.methods.scoring.grids import Grid, part_of, rebinned
from tacit.methods.scoring.marginals import marginals
from tacit.methods.scoring.party import FINE, KNOTS, counted, counts_sum

LAYOUT = (INTERCEPT, Feature("numeric", "v", -1.0, 1.0))
WHAT = counted(LAYOUT, None)
RECORDS = 20_000


def released(values, noise_sd, rng):
    """Counts with noise, in units of records."""
    x = np.column_stack([np.ones(len(values)), values])
    clip = np.sqrt(1.0 * WHAT.columns)
    counts = np.asarray(counts_sum(WHAT, {"x": x}, np.ones(len(values)), clip).value)
    return counts + noise_sd * rng.standard_normal(len(counts))


@pytest.mark.parametrize("factor", [1, 10, 100])
def test_location_and_spread_are_found_within_wide_bounds(factor):
    rng = np.random.default_rng(factor)
    for _ in range(5):
        middle = rng.uniform(1.0 / factor - 1.0, 1.0 - 1.0 / factor)
        values = middle + np.clip(rng.standard_normal(RECORDS), -3, 3) / (3.0 * factor)
        noise_sd = 0.0003 * RECORDS
        found = marginals(LAYOUT, WHAT, released(values, noise_sd, rng), noise_sd, RECORDS)
        assert found.variance[1] / np.var(values) == pytest.approx(1.0, abs=0.25)
        assert abs(found.centre[1] - np.mean(values)) < 0.1 * np.std(values)


def test_all_of_the_range_is_used_if_values_are_outside_of_a_part_or_hidden_in_noise():
    rng = np.random.default_rng(1)
    values = np.where(rng.random(RECORDS) < 0.9, 0.01 * rng.standard_normal(RECORDS), 0.0)
    values = np.where(rng.random(RECORDS) < 0.08, rng.uniform(-1, 1, RECORDS), values)
    counts = released(values, 20.0, rng)
    found = marginals(LAYOUT, WHAT, counts, 20.0, RECORDS)
    assert found.variance[1] == pytest.approx(np.var(values), rel=0.3)
    nothing = rng.standard_normal(FINE)
    rough = Grid(np.linspace(-1, 1, KNOTS), np.full(KNOTS, 1.0 / KNOTS), 0.1)
    assert part_of(nothing, 1.0, rough, 1.0) is None


def test_a_spread_that_the_fine_grid_does_not_resolve_is_unknown():
    rng = np.random.default_rng(2)
    values = 0.3 + 1e-5 * rng.standard_normal(RECORDS)
    found = marginals(LAYOUT, WHAT, released(values, 10.0, rng), 10.0, RECORDS)
    assert np.sqrt(found.variance_error[1]) >= found.variance[1]


def test_hats_over_several_cells_are_sums_of_fine_hats():
    """The counts of a coarser grid come out exactly, and their noise is as stated."""
    rng = np.random.default_rng(3)
    spacing = 2.0 / (FINE - 1)
    values = 0.2 + 0.05 * rng.random(500)
    places = (values + 1.0) / spacing
    fine = np.maximum(0.0, 1.0 - np.abs(places[:, None] - np.arange(FINE))).sum(axis=0)
    grid = rebinned(fine, 1.0, (140, 170), np.linspace(-1, 1, KNOTS))
    distance = grid.knots[1] - grid.knots[0]
    direct = np.maximum(0.0, 1.0 - np.abs(values[:, None] - grid.knots) / distance).sum(axis=0)
    np.testing.assert_allclose(grid.counts, direct, atol=1e-9)
    assert distance / spacing == pytest.approx(3.0)
    noise = [
        rebinned(rng.standard_normal(FINE), 1.0, (0, FINE - 1), grid.knots) for _ in range(300)
    ]
    inner = np.std([one.counts[1:-1] for one in noise])
    assert inner == pytest.approx(noise[0].noise_sd, rel=0.05)
