"""The algebra: cavity × factor = q, and powers, products and damped updates are what they say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit import pvi
from tacit.expfam import FullGaussian

D = 2
SHAPES = FullGaussian(D).shapes


def natural(scale=1e3):
    values = st.lists(st.floats(-scale, scale), min_size=6, max_size=6)
    return values.map(lambda v: {"linear": np.array(v[:2]), "quadratic": np.reshape(v[2:], (D, D))})


def assert_same(one, two, tolerance=1e-12):
    assert set(one) == set(two) == set(SHAPES)
    for name in one:
        size = 1 + max(np.max(np.abs(one[name])), np.max(np.abs(two[name])))
        np.testing.assert_allclose(one[name], two[name], rtol=0, atol=tolerance * size)


@given(q=natural(), factor=natural())
def test_cavity_times_factor_is_q(q, factor):
    assert_same(pvi.multiply(pvi.cavity(q, factor), factor), q)


@given(one=natural(), two=natural())
def test_divide_undoes_multiply(one, two):
    assert_same(pvi.divide(pvi.multiply(one, two), two), one)


@given(start=natural(), factors=st.lists(natural(), max_size=4))
def test_product_is_the_sum_of_everything(start, factors):
    expected = {name: sum((f[name] for f in factors), start[name]) for name in start}
    assert_same(pvi.product(start, factors), expected)


@given(one=natural())
def test_a_power_of_three_is_three_factors(one):
    assert_same(pvi.power(one, 3), pvi.product(one, [one, one]))
    assert_same(pvi.power(one, 0.0), FullGaussian(D).zero())


@given(q=natural(), answer=natural(), damping=st.floats(0.01, 1))
def test_a_damped_update_goes_part_of_the_way(q, answer, damping):
    moved = pvi.multiply(q, pvi.damped_update(answer, q, damping))
    expected = {n: (1 - damping) * q[n] + damping * answer[n] for n in q}
    assert_same(moved, expected)


@pytest.mark.parametrize("operation", [pvi.multiply, pvi.divide, pvi.cavity])
def test_arguments_are_left_as_they_were(operation):
    one, two = ({n: np.ones(s) * v for n, s in SHAPES.items()} for v in (2.0, 3.0))
    operation(one, two)
    assert all(np.all(one[n] == 2.0) and np.all(two[n] == 3.0) for n in SHAPES)
