"""Simulated outcomes, which a private method uses to centre a clipped score.

A model determines the distribution of an outcome y given the covariates x and θ.
`OutcomeLaw.simulated` returns outcomes yₖ with weights wₖ for which E[f(y) | x, θ] = E[meanₖ wₖ
f(yₖ)] for any function f. It uses the first of the following four ways that the distribution
supports:

* all values of a small finite support, weighted by their probabilities, without randomness;
* quantiles at stratified probabilities v, with more of them in the tails, where scores are
  clipped: t is uniform in a stratum of (−1, 1), v = ½(1 + sgn t·(1 − (1 − |t|)³)), and the weight
  is 3(1 − |t|)²;
* quantiles of a wide proposal (Student's t with 2 degrees of freedom, whose quantiles have a
  closed form), weighted by the ratio of the densities; twice as many are used;
* plain draws, of which four times as many are used.

All functions are for a single record (a batch of length 1), θ and a random key of that record; the
caller maps them over records. The simulated outcomes do not depend on the record's actual outcome.
"""

from __future__ import annotations

import abc
from typing import Any, NamedTuple

import numpy as np

from tacit.arrays import Array
from tacit.data.schema.layout import Layout
from tacit.models.base import Records
from tacit.support.compiler import jax, jnp

MOST_VALUES = 16
"""If an outcome has at most this many values, all of them are used instead of draws."""
PROPOSED_FACTOR, PLAIN_FACTOR = 2, 4
"""Number of outcomes drawn from a proposal, and number of plain draws, both relative to the number
that was requested.
"""
EDGE = 1e-12
"""Quantiles are taken at levels between this number and 1 minus this number."""
RANK_DRAWS = 99


class Simulated(NamedTuple):
    """Simulated outcomes of one record and their weights.

    Entry i of `weights` belongs to entry i of `values`. The mean of the weights has expectation 1.
    """

    values: Any
    weights: Array


class Support(NamedTuple):
    """All values that an outcome can have, along the first axis of `values`, and their
    probabilities.
    """

    values: Any
    probabilities: Array


class Proposal(NamedTuple):
    """Location, scale and kind of a distribution from which outcomes are drawn, with importance
    weights, instead of from the model's distribution.
    """

    location: Array
    scale: Array
    kind: str
    """ "real", "positive" or "count"."""


class Scored(NamedTuple):
    """Scores and log-probabilities of several outcomes. Row i of `gradients` is ∇_θ log p of
    outcome i, and entry i of `log_probs` is its log p.
    """

    gradients: Array
    log_probs: Array


class Covariates(abc.ABC):
    """The columns of the records on which an outcome depends, converted to a matrix. `layout`
    describes the columns of this matrix.
    """

    layout: Layout

    @abc.abstractmethod
    def flat(self, records: Records) -> Array:
        """Return the covariates of the records: one row per record and one column per feature of
        `layout`.
        """

    @abc.abstractmethod
    def records(self, rows: np.ndarray) -> Records:
        """Return records whose covariates are `rows` and whose outcomes are 0. This is the inverse
        of `flat`.
        """


class OutcomeLaw(abc.ABC):
    """The distribution p(y | x, θ) of one record's outcome y given its covariates x.

    The distribution is described by parameters: a pytree that depends on x and is differentiable in
    θ.
    """

    covariates: Covariates

    @abc.abstractmethod
    def parameters(self, theta: Array, record: Records) -> Any:
        """Return the parameters of the distribution of a record's outcome, given θ."""

    @abc.abstractmethod
    def log_prob(self, parameters: Any, outcome: Any) -> Array:
        """Compute log p(outcome | parameters), a scalar."""

    @abc.abstractmethod
    def observed(self, record: Records) -> Any:
        """Return the outcome that the record contains."""

    @abc.abstractmethod
    def sample(self, parameters: Any, key: Array) -> Any:
        """Draw one outcome from the distribution with these parameters."""

    def support(self, parameters: Any) -> Support | None:
        """Return all possible outcomes and their probabilities if there are few; otherwise None."""
        del parameters
        return None

    def quantile(self, parameters: Any, place: Array) -> Any | None:
        """Return the quantile of the outcome at probability `place`. The result is None if the
        distribution has no quantile function.
        """
        del parameters, place
        return None

    def proposal(self, parameters: Any) -> Proposal | None:
        """Return a distribution that covers that of the outcome. The result is None if outcomes are
        not single numbers.

        The proposal is used only if `quantile` returns None.
        """
        del parameters
        return None

    def distribution(self, parameters: Any, outcome: Any) -> tuple[Array, Array] | None:
        """Return P(Y < outcome) and P(Y ≤ outcome), where Y has the distribution with these
        parameters. The result is None if the distribution function is not available.
        """
        del parameters, outcome
        return None

    def mean(self, parameters: Any) -> Array:
        """Return a number that increases with the expected outcome. Records are sorted by it."""
        del parameters
        return jnp.zeros(())

    def of_number(self, parameters: Any, number: Array) -> Any:
        """Convert a number that was drawn from the proposal to an outcome."""
        del parameters
        return number

    def number(self, parameters: Any, outcome: Any) -> Array:
        """Return a number by which outcomes are ranked, such as the outcome itself. The default is
        log p(outcome | parameters).
        """
        return self.log_prob(parameters, outcome)

    def simulated(self, parameters: Any, key: Array, count: int) -> Simulated:
        """Simulate weighted outcomes in one of the ways that the module docstring describes.

        Their number is `count` or a small multiple of it, unless the support is finite.
        """
        parameters = jax.lax.stop_gradient(parameters)
        support = self.support(parameters)
        if support is not None:
            size = len(support.probabilities)
            return Simulated(support.values, size * support.probabilities)
        tail = _strata(key, count, -1.0, 1.0)
        rest = jnp.maximum(1.0 - jnp.abs(tail), 0.0)
        place = jnp.where(tail < 0, 0.5 * rest**3, 1.0 - 0.5 * rest**3)
        values = self.quantile(parameters, jnp.clip(place, EDGE, 1.0 - EDGE))
        if values is not None:
            return Simulated(values, 3.0 * rest**2)
        proposal = self.proposal(parameters)
        if proposal is not None:
            place = jnp.clip(_strata(key, PROPOSED_FACTOR * count, 0.0, 1.0), EDGE, 1.0 - EDGE)
            numbers, log_density = _proposed(proposal, place)
            values = jax.vmap(lambda number: self.of_number(parameters, number))(numbers)
            target = jax.vmap(lambda value: self.log_prob(parameters, value))(values)
            return Simulated(values, jnp.exp(target - log_density))
        keys = jax.random.split(key, PLAIN_FACTOR * count)
        values = jax.vmap(lambda one: self.sample(parameters, one))(keys)
        return Simulated(values, jnp.ones(PLAIN_FACTOR * count))

    def scored(self, theta: Array, record: Records, outcomes: Any) -> Scored:
        """Compute ∇_θ log p and log p of several outcomes for the covariates of one record.

        The first axis of `outcomes` runs over the outcomes.
        """
        found, backward = jax.vjp(lambda value: self.parameters(value, record), theta)
        slope = jax.value_and_grad(self.log_prob, allow_int=True)

        def one(outcome: Any) -> tuple[Array, Array]:
            value, gradient = slope(found, outcome)
            return backward(gradient)[0], value

        return Scored(*jax.vmap(one)(outcomes))

    def rank(self, parameters: Any, record: Records, key: Array) -> Array:
        """Return the rank, in (0, 1), of the record's outcome in the distribution with these
        parameters.

        Ties are broken at random, so the rank is uniform in (0, 1) if the model is right.
        """
        outcome, (first, second) = self.observed(record), jax.random.split(key)
        within = jax.random.uniform(second, (), jnp.float64)
        ends = self.distribution(parameters, outcome)
        if ends is not None:
            return ends[0] + within * (ends[1] - ends[0])
        own, support = self.number(parameters, outcome), self.support(parameters)
        if support is not None:
            numbers = jax.vmap(lambda value: self.number(parameters, value))(support.values)
            below = jnp.sum(jnp.where(numbers < own, support.probabilities, 0.0))
            same = jnp.sum(jnp.where(numbers == own, support.probabilities, 0.0))
            return below + within * same
        keys = jax.random.split(first, RANK_DRAWS)
        draws = jax.vmap(lambda one: self.number(parameters, self.sample(parameters, one)))(keys)
        below, same = jnp.sum(draws < own), jnp.sum(draws == own)
        return (below + within * (same + 1.0)) / (RANK_DRAWS + 1.0)


def _strata(key: Array, count: int, low: float, high: float) -> Array:
    """Return one uniform random number in each of `count` equal parts of the interval from `low` to
    `high`.
    """
    within = jax.random.uniform(key, (count,), jnp.float64)
    return low + (high - low) * (jnp.arange(count) + within) / count


def _proposed(proposal: Proposal, place: Array) -> tuple[Array, Array]:
    """Return the quantiles of the proposal at the probabilities `place`, and their log densities.
    For counts, these are log probabilities.
    """
    centred = 2.0 * place - 1.0
    standard = centred * jnp.sqrt(0.5 / (place * (1.0 - place)))  # Student's t of 2 df
    location, scale = proposal.location, proposal.scale
    if proposal.kind == "count":
        values = jnp.maximum(jnp.floor(location + scale * standard), 0.0)
        low, high = (values - location) / scale, (values + 1.0 - location) / scale
        mass = jnp.where(low > 0, _t2_tail(low) - _t2_tail(high), _t2_tail(-high) - _t2_tail(-low))
        mass = jnp.where(values > 0, mass, _t2_tail(-high))  # values below 1 become 0
        return values, jnp.log(jnp.maximum(mass, 1e-300))
    density = -1.5 * jnp.log(2.0 + standard**2) - jnp.log(scale)
    values = location + scale * standard
    if proposal.kind == "positive":
        return jnp.exp(values), density - values
    return values, density


def _t2_tail(value: Array) -> Array:
    root = jnp.sqrt(2.0 + value**2)
    tail = 1.0 / (root * (root + jnp.abs(value)))
    return jnp.where(value > 0, tail, 1.0 - tail)
