"""Compare a model's outcome distribution, which private scores use, with its log-likelihood."""

from __future__ import annotations

from typing import Any

import numpy as np

from tacit.errors import ConfigError
from tacit.models.capabilities import SimulatesOutcomes
from tacit.testing.comparisons import CLOSE, EXACT, expect_average, expect_close
from tacit.testing.models import Subject

KEYS = 400
"""Number of sets of simulated outcomes per record."""
OUTCOMES = 8


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
    flat = np.asarray(law.covariates.flat(records))
    assert flat.shape == (subject.count, len(law.covariates.layout)), (
        f"outcome_law: covariates of shape {flat.shape} for {subject.count} records and "
        f"{len(law.covariates.layout)} features"
    )
    again = np.asarray(law.covariates.flat(law.covariates.records(flat)))
    expect_close("outcome_law: `records` is not the inverse of `flat` for covariates", again, flat)
