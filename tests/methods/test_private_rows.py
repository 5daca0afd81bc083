"""One record reaches into its own unit only, whatever numbers it holds."""

import numpy as np
import pytest

import tacit
from tacit.data.records import pooled
from tacit.methods.private import group_rows
from tacit.party.compute import stack_records


@pytest.mark.parametrize("bad", [np.inf, np.nan, 1e30])
def test_padding_of_a_unit_is_its_own(bad):
    x = np.arange(8.0)
    x[0] = bad
    arranged = group_rows({"x": x}, np.array([0, 1, 1, 2, 2, 2, 4, 4]), 5)
    method = tacit.methods.DPSGD(dtype="float64").bind(unit="person")
    stack, weights = stack_records([arranged], 9, method)
    poisoned = ~(np.abs(np.asarray(stack["x"][0])) < 100)
    assert poisoned[0].all()
    assert not poisoned[1:5].any(), "another unit is padded with the first record"
    assert not np.asarray(weights)[0, 5:].any()
    np.testing.assert_array_equal(arranged.records["x"][3], 0.0)


def test_persons_of_two_parties_stay_two():
    parties = {
        "north": {"y": np.zeros(3), "person": np.array([0, 1, 1])},
        "south": {"y": np.zeros(2), "person": np.array([0, 1])},
    }
    assert pooled(parties)["person"].tolist() == [0, 1, 1, 2, 3]


def test_a_private_fit_scores_no_training_records():
    cohort = tacit.datasets.load("synthetic-cohort", parties=2, records=200, seed=1)
    private = tacit.Privacy(epsilon=1.0, insecure_noise_seed=0)
    schedule = tacit.schedules.Synchronous(rounds=2)
    fit = tacit.fit(tacit.models.LogisticRegression, cohort, privacy=private, schedule=schedule)
    assert fit.metrics["training"] is None
    assert fit.metrics["held_out"] is not None
