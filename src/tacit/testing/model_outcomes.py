"""Compare a model's outcome distribution, which private scores use, with its log-likelihood."""

from __future__ import annotations

from typing import Any

import numpy as np

from tacit.errors import ConfigError
from tacit.models.capabilities import SimulatesOutcomes
from tacit.models.outcomes import OutcomeLaw
from tacit.support.compiler import jnp
from tacit.testing.comparisons import CLOSE, EXACT, expect_average, expect_close
from tacit.testing.model_draws import DRAWN, each_grid, expect_drawn_from
from tacit.testing.model_grids import has_outcome
from tacit.testing.models import Subject

KEYS = 400
"""Number of sets of simulated outcomes per record."""
OUTCOMES = 8
PLACES = np.array([0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98])
"""Probabilities at which distribution functions and quantiles are compared."""


def check_outcomes(subject: Subject) -> None:
    """Check log-probabilities, scores, covariates and simulated outcomes of a model.

    Let u = ∇ log p be the score of a simulated outcome and w its weight. They must satisfy E[w] = 1
    and E[w u] = 0. The second condition makes it possible to centre a clipped score.
    """
    import jax

    model, records = subject.model, subject.records
    assert isinstance(model, SimulatesOutcomes)
    try:
        law = model.outcome_law()
    except ConfigError:  # the error says why this instance has none
        return
    theta = subject.thetas[0]
    single = {name: np.asarray(value)[:, None] for name, value in records.items()}

    def own(record: Any) -> Any:
        outcome = jax.tree.map(lambda leaf: leaf[None], law.observed(record))
        found = law.scored(theta, record, outcome)
        return found.gradients[0], found.log_probs[0]

    gradients, log_probs = jax.jit(jax.vmap(own))(single)
    expected = subject.log_likelihood(theta)
    expect_close("outcome_law: log_prob is not the log-likelihood", log_probs, expected, EXACT)
    slopes = jax.jit(jax.jacrev(lambda at: model.log_likelihood(at, records)))(theta)
    expect_close("outcome_law: scores are not the gradients of log_prob", gradients, slopes, CLOSE)

    def average(key: Any) -> Any:
        def one(record: Any, own_key: Any) -> Any:
            drawn = law.simulated(law.parameters(theta, record), own_key, OUTCOMES)
            scores = law.scored(theta, record, drawn.values).gradients
            return drawn.weights.mean(), (drawn.weights[:, None] * scores).mean(axis=0)

        return jax.vmap(one)(single, jax.random.split(key, subject.count))

    keys = jax.random.split(jax.random.key(3), KEYS)
    weights, scores = (np.asarray(value) for value in jax.jit(jax.vmap(average))(keys))
    expect_average("outcome_law: the mean of the weights is not 1", 1.0, weights.mean(axis=1))
    zero = np.zeros(scores.shape[-1])
    expect_average(
        "outcome_law: the mean score of simulated outcomes is not 0",
        zero,
        scores.mean(axis=1),
        slack=1e-4,
    )

    def rank(record: Any, key: Any) -> Any:
        return law.rank(law.parameters(theta, record), record, key)

    ranks = np.asarray(jax.jit(jax.vmap(rank))(single, jax.random.split(keys[0], subject.count)))
    assert np.all((ranks >= 0) & (ranks <= 1)), "outcome_law: a rank is not between 0 and 1"
    _check_covariates(subject, law)
    _check_order(subject, law)
    if _has_numbers(subject, law):
        _check_law(subject, law)


def _check_covariates(subject: Subject, law: OutcomeLaw) -> None:
    """Check that covariates are converted to a matrix and back."""
    flat = np.asarray(law.covariates.flat(subject.records))
    assert flat.shape == (subject.count, len(law.covariates.layout)), (
        f"outcome_law: covariates of shape {flat.shape} for {subject.count} records and "
        f"{len(law.covariates.layout)} features"
    )
    again = np.asarray(law.covariates.flat(law.covariates.records(flat)))
    expect_close("outcome_law: `records` is not the inverse of `flat` for covariates", again, flat)


def _has_numbers(subject: Subject, law: OutcomeLaw) -> bool:
    """True if the outcome of the law is the column y of the records."""
    if not has_outcome(subject):
        return False
    import jax

    leaves = jax.tree.leaves(law.observed(_single(subject, 0)))
    return (
        len(leaves) == 1
        and np.shape(leaves[0]) == ()
        and float(leaves[0]) == float(subject.records["y"][0])
    )


def _single(subject: Subject, row: int) -> Any:
    return {name: np.asarray(value)[row : row + 1] for name, value in subject.records.items()}


def _check_order(subject: Subject, law: OutcomeLaw) -> None:
    """Check that `mean` of the law does not decrease if `response` increases."""
    import jax

    model, records = subject.model, subject.records
    single = {name: np.asarray(value)[:, None] for name, value in records.items()}
    order = jax.jit(jax.vmap(lambda at, row: law.mean(law.parameters(at, row)), in_axes=(None, 0)))
    for theta in subject.thetas:
        try:
            expected = np.asarray(model.response(theta, records), np.float64)
        except ConfigError:  # a model without one mean per record says so
            return
        if expected.shape != (subject.count,):
            return
        found = np.asarray(order(theta, single), np.float64)[np.argsort(expected)]
        slack = EXACT * max(1.0, float(np.max(np.abs(found))))
        assert np.all(np.diff(found) >= -slack), (
            "outcome_law: `mean` does not increase with the expected outcome `response`"
        )


def _check_law(subject: Subject, law: OutcomeLaw) -> None:
    """Compare `sample`, `distribution` and `quantile` of the law with the log-likelihood."""
    import jax

    first = _single(subject, 0)
    (own,), tree = jax.tree.flatten(law.observed(first))

    def value_of(outcome: Any) -> Any:
        return jax.tree.leaves(outcome)[0]

    def ends_at(parameters: Any, y: Any) -> Any:
        return law.distribution(parameters, jax.tree.unflatten(tree, [y.astype(own.dtype)]))

    def sampled(theta: Any, record: Any, keys: Any) -> Any:
        return jax.vmap(lambda key: value_of(law.sample(law.parameters(theta, record), key)))(keys)

    def ends(theta: Any, record: Any, y: Any) -> Any:
        return jax.vmap(lambda one: ends_at(law.parameters(theta, record), one))(y)

    def quantiles(theta: Any, record: Any) -> Any:
        return jax.vmap(lambda at: value_of(law.quantile(law.parameters(theta, record), at)))(
            PLACES
        )

    known = law.parameters(jnp.asarray(subject.thetas[0]), first)
    sampled, ends, quantiles = (jax.jit(one) for one in (sampled, ends, quantiles))
    for number, (theta, row, grid) in enumerate(each_grid(subject)):
        record, what = _single(subject, row), f"of record {row}"
        keys = jax.random.split(jax.random.key(number), DRAWN)
        draws = np.asarray(sampled(theta, record, keys), np.float64)
        expect_drawn_from(f"outcome_law: samples {what}", draws, grid, subject.rng)
        y = grid.quantile(PLACES)
        if law.distribution(known, law.observed(first)) is not None:
            for name, found, right in zip(
                ("<", "≤"), ends(theta, record, y), grid.distribution(y), strict=True
            ):
                words = f"outcome_law: `distribution` {what} is not P(Y {name} y)"
                expect_close(words, found, right, grid.tolerance)
        if law.quantile(known, jnp.asarray(0.5)) is not None:
            found = np.asarray(quantiles(theta, record), np.float64)
            below, within = grid.distribution(found)
            gap = np.maximum(below - PLACES, PLACES - within)
            worst = int(np.argmax(gap))
            assert gap[worst] <= grid.tolerance, (
                f"outcome_law: `quantile` {what} at {PLACES[worst]:.3g} is {found[worst]:.6g}, "
                f"where P(Y ≤ y) is {within[worst]:.3g}"
            )
