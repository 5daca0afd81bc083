"""A result that depends on one party says so."""

import numpy as np
import pytest

from tacit.expfam import FullGaussian, MeanFieldGaussian
from tacit.pvi import product
from tacit.results.dependence import dependence_cautions

NAMES = ("intercept", "age")


def factor_of(family, mean, precision):
    form = precision * np.eye(2) if isinstance(family, FullGaussian) else np.full(2, precision)
    return {"linear": precision * np.asarray(mean, float), "quadratic": -0.5 * form}


@pytest.mark.parametrize("family", [FullGaussian(2), MeanFieldGaussian(2)])
def test_a_party_that_moves_a_mean_far_is_named_with_the_coefficient(family):
    factors = {name: factor_of(family, [0.0, 0.1], 100.0) for name in ("a", "b")}
    factors["c"] = factor_of(family, [0.0, 9.1], 1e9)
    q = product(factor_of(family, [0.0, 0.0], 1.0), factors.values())
    (found,) = dependence_cautions(family, q, factors, NAMES)
    assert found.kind == "one-party"
    assert "depends on party 'c'" in found.text
    assert "'age' moves from 9.1 to 0.0995" in found.text
    assert "1.3e+02 sd" in found.text


@pytest.mark.parametrize("sizes", [(100, 100, 100), (10, 10, 100000), (50, 50)])
def test_honest_parties_of_any_size_are_not_named(sizes):
    family, rng = FullGaussian(2), np.random.default_rng(1)
    for _ in range(50):
        factors = {
            f"p{number}": factor_of(family, rng.normal(size=2) / np.sqrt(size), size)
            for number, size in enumerate(sizes)
        }
        q = product(factor_of(family, [0.0, 0.0], 1.0), factors.values())
        assert dependence_cautions(family, q, factors, NAMES) == []
