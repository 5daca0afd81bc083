"""Adam walks as Optax's does; with a wrong correction or schedule it would not."""

import jax
import numpy as np
import optax
import pytest

from tacit.methods import adam

STEPS, RATE, LEAST = 60, 0.05, 0.05
CURVATURE = {"location": np.array([1.0, 30.0, 0.01]), "scale": np.array([[2.0, 0.5], [0.1, 9.0]])}
START = {name: np.ones_like(value) for name, value in CURVATURE.items()}


def slope(values):
    return {name: CURVATURE[name] * value for name, value in values.items()}


def walked(table, epsilon=adam.EPSILON):
    def step(carry, pace):
        values, moments = carry
        return adam.moved(values, moments, slope(values), pace, epsilon), None

    return jax.lax.scan(step, (START, adam.at_rest(START)), table)[0][0]


def walked_by_optax(epsilon=adam.EPSILON):
    optimiser = optax.adam(optax.cosine_decay_schedule(RATE, STEPS, alpha=LEAST), eps=epsilon)

    def step(carry, _):
        values, state = carry
        updates, state = optimiser.update(slope(values), state)
        return (optax.apply_updates(values, updates), state), None

    return jax.lax.scan(step, (START, optimiser.init(START)), length=STEPS)[0][0]


def test_it_walks_as_optax_does_and_a_wrong_table_does_not():
    table = adam.paces(RATE, STEPS, least=LEAST, dtype="float64")
    expected = walked_by_optax()
    for name, value in walked(table).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-10)
    for wrong in (
        table._replace(rate=np.full(STEPS, RATE)),
        table._replace(first=np.ones(STEPS)),
        table._replace(second=np.ones(STEPS)),
        adam.Pace(*(np.roll(column, -1) for column in table)),
    ):
        found = walked(wrong)
        assert not np.allclose(found["location"], expected["location"], rtol=1e-4)


def test_a_large_epsilon_makes_steps_proportional_to_the_gradient():
    table = adam.paces(RATE, STEPS, least=LEAST, dtype="float64")
    expected = walked_by_optax(5.0)
    for name, value in walked(table, 5.0).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-10)
    one = adam.paces(1.0, 1, least=LEAST, dtype="float64")
    for name, value in walked(one, 1e6).items():
        np.testing.assert_allclose(1e6 * (START[name] - value), CURVATURE[name], rtol=1e-4)


@pytest.mark.parametrize("steps", [1, 2, 200])
def test_a_table_has_a_row_a_step_and_nothing_that_divides_by_zero(steps):
    table = adam.paces(RATE, steps, least=LEAST, dtype="float32")
    for column in table:
        assert column.dtype == np.float32
        assert column.shape == (steps,)
        assert np.all(column > 0)
    assert table.rate[0] == np.float32(RATE)
    assert np.all(table.rate >= np.float32(LEAST * RATE))
