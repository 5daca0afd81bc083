"""Simulated outcomes, which a private method uses to centre a clipped score.

Given covariates x and θ a model determines the distribution of the outcome. `OutcomeLaw.simulated`
gives weighted outcomes with E[f(y) | x, θ] = E[meanₖ wₖ f(yₖ)], in one of four ways, the first that
the distribution supports:

* all values of a small finite support, weighted by their probabilities: no randomness is left;
* quantiles at stratified places, more of them in the tails, where scores are clipped:
  t ∈ (−1, 1) uniform in its stratum, v = ½(1 + sgn t·(1 − (1 − |t|)³)), w = 3(1 − |t|)²;
* quantiles of a wide proposal (Student's t of 2 degrees of freedom, which has a closed form),
  weighted by the ratio of the densities, twice as many;
* plain draws, four times as many.

Everything is a function of one record (a batch of length 1), of θ and of the record's own key; a
caller maps it over records. Nothing here depends on the record's own outcome.
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
"""Factors by which more outcomes are drawn: from a proposal, and without stratification."""
EDGE = 1e-12
"""Quantiles are taken at levels between this number and 1 minus this number."""
RANK_DRAWS = 99


class Simulated(NamedTuple):
    """Simulated outcomes of one record (first axis), with weights whose expected mean is 1."""

    values: Any
    weights: Array


class Support(NamedTuple):
    """A finite support: its values (first axis) and their probabilities."""

    values: Any
    probabilities: Array


class Proposal(NamedTuple):
    """A distribution from which outcomes are drawn instead of the model's own distribution."""

    location: Array
    scale: Array
    kind: str
    """ "real", "positive" or "count"."""


class Scored(NamedTuple):
    """Gradient ∇_θ log p of each outcome, one row each, and log p of each outcome."""

    gradients: Array
    log_probs: Array


class Covariates(abc.ABC):
    """The columns that an outcome depends on, as one matrix that the public schema describes."""

    layout: Layout

    @abc.abstractmethod
    def flat(self, records: Records) -> Array:
        """Return the covariates as a matrix: one row per record, one column per feature of
        `layout`.
        """

    @abc.abstractmethod
    def records(self, rows: np.ndarray) -> Records:
        """Make records with these covariates and with outcomes of zero: the inverse of `flat`."""


class OutcomeLaw(abc.ABC):
    """Distribution p(y | x, θ) of one record's outcome, given by parameters: a pytree that is
    differentiable in θ.
    """

    covariates: Covariates

    @abc.abstractmethod
    def parameters(self, theta: Array, record: Records) -> Any:
        """Compute the parameters of the outcome's distribution."""

    @abc.abstractmethod
    def log_prob(self, parameters: Any, outcome: Any) -> Array:
        """Compute log p(outcome | parameters), a scalar."""

    @abc.abstractmethod
    def observed(self, record: Records) -> Any:
        """Return the record's own outcome."""

    @abc.abstractmethod
    def sample(self, parameters: Any, key: Array) -> Any:
        """Draw one outcome."""

    def support(self, parameters: Any) -> Support | None:
        """Return all values that an outcome can have if there are few, else None."""
        del parameters
        return None

    def quantile(self, parameters: Any, place: Array) -> Any | None:
        """Return the quantile of the outcome at level `place`; None if quantiles are not
        available.
        """
        del parameters, place
        return None

    def proposal(self, parameters: Any) -> Proposal | None:
        """Return a proposal for outcomes that are single numbers without quantiles, else None."""
        del parameters
        return None

    def distribution(self, parameters: Any, outcome: Any) -> tuple[Array, Array] | None:
        """Return P(Y < y) and P(Y ≤ y) of an outcome that is a single number; None if not
        available.
        """
        del parameters, outcome
        return None

    def mean(self, parameters: Any) -> Array:
        """Return a number that orders records by their expected outcome."""
        del parameters
        return jnp.zeros(())

    def of_number(self, parameters: Any, number: Array) -> Any:
        """Convert a number to an outcome, if outcomes are single numbers."""
        del parameters
        return number

    def number(self, parameters: Any, outcome: Any) -> Array:
        """Return a number by which outcomes are ranked: the outcome itself if it is a number."""
        return self.log_prob(parameters, outcome)

    def simulated(self, parameters: Any, key: Array, count: int) -> Simulated:
        """Simulate about `count` weighted outcomes; see the module docstring."""
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
        """Compute ∇_θ log p of several outcomes of one record; `outcomes` has them along its first
        axis.

        The parameters are computed once; each outcome costs one backward pass through them.
        """
        found, backward = jax.vjp(lambda value: self.parameters(value, record), theta)
        slope = jax.value_and_grad(self.log_prob, allow_int=True)

        def one(outcome: Any) -> tuple[Array, Array]:
            value, gradient = slope(found, outcome)
            return backward(gradient)[0], value

        return Scored(*jax.vmap(one)(outcomes))

    def rank(self, parameters: Any, record: Records, key: Array) -> Array:
        """Compute the randomised rank of the record's outcome under the model; it is uniform in (0,
        1) if the model is right.
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
    """Draw one uniform number in each of `count` equal parts of an interval."""
    within = jax.random.uniform(key, (count,), jnp.float64)
    return low + (high - low) * (jnp.arange(count) + within) / count


def _proposed(proposal: Proposal, place: Array) -> tuple[Array, Array]:
    """Return quantiles of the proposal, and the logarithm of their density or probability."""
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
    """Compute P(T > value) for Student's t with 2 degrees of freedom, without cancellation."""
    root = jnp.sqrt(2.0 + value**2)
    tail = 1.0 / (root * (root + jnp.abs(value)))
    return jnp.where(value > 0, tail, 1.0 - tail)
