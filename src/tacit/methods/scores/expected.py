"""Expected scores at the server: averages over synthetic records and simulated outcomes.

A score ψ is computed at a point θ with a map W (`tacit.methods.scores.party`), for outcomes y that
are distributed with the parameters θ′. The averages per record are

    score     E[ψ], which is 0 at θ′ = θ
    slope     ∂E[ψ]/∂θ′ = E[ψ ∇log p(y | θ′)ᵀ]
    variance  E[ψψᵀ], including the part due to the draws of a visit
    released  E[h], the expectation of the curvature h that a record contributes to a release
    fisher    E[∇log p ∇log pᵀ] at θ′

where ψ and h are in the coordinates W⁻ᵀθ. Outcomes are drawn with parameters `base` and weighted by
p(y | θ′)/p(y | base). If θ′ is near θ, base = θ, otherwise base = θ′. All calls use the same random
numbers, so differences of two scores are smooth in θ′.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tacit.arrays import Array
from tacit.methods.scores.party import OUTCOMES, Centring, centred, centring
from tacit.models import Records
from tacit.models.outcomes import OutcomeLaw
from tacit.support.compiler import jax, jnp

SEED = 0x5C0E
DRAWS = 8
"""Simulated outcomes per synthetic record, in addition to those that centre its score."""
FARTHEST_RATIO = 30.0


class Expected(NamedTuple):
    """Averages of scores and curvatures over synthetic records and simulated outcomes."""

    score: Any
    slope: Any
    variance: Any
    drawn: Any
    """The part of `variance` that is due to the draws of a visit. These draws differ between
    rounds.
    """
    released: Any
    fisher: Any
    level: Any
    """The predicted mean of each synthetic record."""


class Simulator:
    """Computes `Expected` for one set of synthetic records and caches the results."""

    def __init__(self, law: OutcomeLaw, rows: np.ndarray) -> None:
        self.law, self.rows = law, rows
        self._records = law.covariates.records(rows)
        self._found: dict[bytes, Any] = {}

    def expected(
        self, theta: np.ndarray, mapping: np.ndarray, base: np.ndarray, truth: np.ndarray
    ) -> Expected:
        """Return averages of scores over the synthetic records and simulated outcomes.

        The scores are computed at the parameters θ = `theta` and transformed by the matrix W =
        `mapping`. The averages are those for outcomes that are distributed with the parameters
        `truth`. The outcomes are drawn with the parameters `base`, and each is weighted by the
        ratio of its probabilities under `truth` and `base`.
        """
        return Expected(*self._kept("all", theta, mapping, base, truth))

    def score(
        self, theta: np.ndarray, mapping: np.ndarray, base: np.ndarray, truth: np.ndarray
    ) -> np.ndarray:
        """Return the average score, `Expected.score`, without computing the other averages."""
        return self._kept("score", theta, mapping, base, truth)[0]

    def fisher(self, theta: np.ndarray) -> np.ndarray:
        """Return `Expected.fisher` alone: the average information of one record at `theta`."""
        return self._kept("fisher", theta)[0]

    def _kept(self, what: str, *points: np.ndarray) -> tuple[np.ndarray, ...]:
        key = what.encode() + b"".join(np.asarray(one, np.float64).tobytes() for one in points)
        if key not in self._found:
            found = _program(self.law, what)(self._records, *points)
            self._found[key] = tuple(np.asarray(value, np.float64) for value in found)
        return self._found[key]


@functools.lru_cache(maxsize=32)
def _program(law: OutcomeLaw, what: str) -> Callable[..., Any]:
    """Return the compiled function that computes the averages `what`: "all", "score" or "fisher".

    It is compiled once for each distribution of outcomes `law`. Runs of one model share it.
    """
    programs: dict[str, Callable[..., Any]] = {
        "all": _averages,
        "score": lambda *given: (_averages(*given).score,),  # the rest is not computed
        "fisher": _fisher,
    }
    return jax.jit(functools.partial(programs[what], law))


def _keys(count: int) -> Array:
    return jax.vmap(lambda place: jax.random.fold_in(jax.random.key(SEED), place))(
        jnp.arange(count, dtype=jnp.uint32)
    )


def _fisher(law: OutcomeLaw, records: Records, theta: Array) -> tuple[Array]:
    """Return the average information of one record, computed from the same simulated outcomes as in
    `_averages`.
    """

    def one(record: Records, key: Array) -> tuple[Array, Array]:
        drawn = law.simulated(law.parameters(theta, record), jax.random.split(key)[1], DRAWS)
        gradients = law.scored(theta, record, drawn.values).gradients
        weights = drawn.weights / len(drawn.weights)
        sound = jnp.all(jnp.isfinite(weights)) & jnp.all(jnp.isfinite(gradients))
        return jnp.where(sound, weights, 0.0), jnp.where(sound, gradients, 0.0)

    count = len(next(iter(records.values())))
    weights, gradients = jax.vmap(one)(
        {name: jnp.asarray(column)[:, None] for name, column in records.items()}, _keys(count)
    )
    weights = weights / jnp.maximum(jnp.sum(weights), 1e-300)
    return (jnp.einsum("nki,nkj->ij", weights[..., None] * gradients, gradients),)


def _averages(
    law: OutcomeLaw, records: Records, theta: Array, mapping: Array, base: Array, truth: Array
) -> Expected:
    count = len(next(iter(records.values())))

    def one(record: Records, key: Array) -> tuple[Array, ...]:
        first, second = jax.random.split(key)
        found = centring(law, theta, mapping, record, first, OUTCOMES)
        parameters = law.parameters(base, record)
        drawn = law.simulated(parameters, second, DRAWS)
        there = law.scored(truth, record, drawn.values)
        here = law.scored(theta, record, drawn.values).gradients @ mapping.T
        start = jax.vmap(lambda value: law.log_prob(parameters, value))(drawn.values)
        ratio = jnp.exp(jnp.clip(there.log_probs - start, -FARTHEST_RATIO, FARTHEST_RATIO))
        weights = drawn.weights * ratio / len(drawn.weights)
        sound = (
            found.sound
            & jnp.all(jnp.isfinite(weights))
            & jnp.all(jnp.isfinite(here))
            & jnp.all(jnp.isfinite(there.gradients))
        )
        weights = jnp.where(sound, weights, 0.0)
        here = jnp.where(sound, here, 0.0)
        gradients = jnp.where(sound, there.gradients, 0.0)
        level = law.mean(law.parameters(truth, record))
        return weights, centred(here, found), gradients, *_curvature(found), level

    weights, score, gradients, rows, apart, level = jax.vmap(one)(
        {name: jnp.asarray(column)[:, None] for name, column in records.items()}, _keys(count)
    )
    total = jnp.sum(weights) / count  # 1 if every record contributes
    weights = weights / jnp.maximum(total * count, 1e-300)
    scored, slope = weights[..., None] * score, weights[..., None] * gradients
    return Expected(
        jnp.sum(scored, axis=(0, 1)),
        jnp.einsum("nki,nkj->ij", scored, gradients),
        jnp.einsum("nki,nkj->ij", scored, score),
        apart.T @ apart / count,
        jnp.einsum("nki,nkj->ij", rows, rows) / count,
        jnp.einsum("nki,nkj->ij", slope, gradients),
        level,
    )


def _curvature(found: Centring) -> tuple[Array, Array]:
    """Return rows whose outer products add up to the curvature h of a record, and a measure of how
    much the simulated outcomes change its score ψ.

    The measure is half of g₂b₁ − g₁b₂, with the centres b and the gains g of two independent sets
    of simulated outcomes (`tacit.methods.scores.party`).
    """
    share = found.gains[:, None] * found.weights / found.weights.size
    rows = jnp.sqrt(jnp.maximum(share, 0.0))[..., None] * found.scores
    centres = found.gains[::-1, None] * found.centres
    apart = 0.5 * (centres[0] - centres[-1])
    return rows.reshape(-1, rows.shape[-1]), apart
