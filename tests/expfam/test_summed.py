"""Sums beside q change nothing about q."""

import numpy as np
import pytest

from tacit.expfam import FullGaussian, MeanFieldGaussian, with_sums, without_sums
from tacit.pvi import multiply, power


@pytest.mark.parametrize("base", [MeanFieldGaussian(3), FullGaussian(3)], ids=repr)
def test_as_a_distribution_it_is_its_gaussian_part(base):
    family = with_sums(base, {"counts": (4,), "moment": (2, 2)})
    assert family.kind == base.kind
    spread = {"sd": np.full(3, 0.5)} if base.kind == "mean-field" else {"covariance": np.eye(3) / 4}
    one = family.natural(mean=np.arange(3.0), **spread)
    two = multiply(one, power(one, 0.5) | {"counts": np.ones(4), "moment": np.eye(2)})
    plain, parts = without_sums(family, two)
    assert plain == base
    assert family.is_proper(two)
    assert family.kl(two, one) == base.kl(parts, without_sums(family, one)[1])
    assert family.entropy(two) == base.entropy(parts)
    np.testing.assert_array_equal(family.location_scale(two)[0], base.location_scale(parts)[0])
    assert family.check(two, what="it")["counts"].sum() == 4.0


def test_a_sum_that_is_not_finite_makes_it_improper():
    family = with_sums(MeanFieldGaussian(1), {"counts": (1,)})
    q = family.natural(mean=np.zeros(1), sd=np.ones(1))
    assert family.is_proper(q)
    assert not family.is_proper(q | {"counts": np.array([np.nan])})


def test_families_with_other_sums_are_others():
    base = MeanFieldGaussian(2)
    first, second = with_sums(base, {"a": (2,)}), with_sums(base, {"a": (3,)})
    assert first == with_sums(base, {"a": (2,)})
    assert hash(first) == hash(with_sums(base, {"a": (2,)}))
    assert first != second
    assert first != base
    assert base != first


def test_a_sum_cannot_take_the_name_of_a_parameter():
    with pytest.raises(ValueError, match="linear"):
        with_sums(MeanFieldGaussian(2), {"linear": (2,)})
