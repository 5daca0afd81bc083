"""The sums that a party releases in private scores, each bounded by construction.

**Score of a record.** The server publishes a point θ and a matrix W, for d parameters. A record has
the score u = W∇log p(y | x, θ). The score is multiplied by c = min(1, C/|u|), which clips it to the
norm C = `CLIP`·√d. The expectation of the clipped score under the model differs from 0. An estimate
of this expectation is therefore subtracted.

**Centres.** The party simulates outcomes yₖ for the covariates x of the record, in two independent
sets a = 1, 2 with weights qₖ (`tacit.models.outcomes`). Let uₖ and cₖ be u and c for the outcome
yₖ. From each set a the party computes

    b_a = meanₖ qₖ(cₖ − 1)uₖ,     τ_a = meanₖ qₖcₖ|uₖ|².

The centre b_a estimates E[cu | x], because E[u | x] = 0.

**Weights.** With B = 2d and η = `SLACK`, the gains g_a and the weights w_a are

    g_a = min(1, (1 + η/2)C/(C + |b_a|), B/τ_a)
    w₁ = min(g₂, (1 + η)C/(C + |b₁|)),    w₂ = min(g₁, (1 + η)C/(C + |b₂|)).

**Contributions.** The record contributes its centred score ψ or its curvature h:

    ψ = ½ Σ_a w_a(cu − b_a),     h = ½ Σ_a g_a meanₖ qₖcₖuₖuₖᵀ.

**Bounds.** For any record, draws, θ and W, |w_a(cu − b_a)| ≤ w_a(C + |b_a|) ≤ (1 + η)C, hence |ψ| ≤
(1 + η)C. The matrix h is positive semi-definite with |h| ≤ tr h ≤ B. Both are then divided by their
bounds and clipped by `tacit.privacy.bounded`, which has no effect except for rounding.

**Sensitivity.** Draws depend only on a record's position and the visit's secret key. With the key
fixed, replacing a record changes only one term of the sum. If a record is added or removed, other
records move to other positions and get other draws, which have the same joint distribution. The
proof is in docs/methods/dp-scores.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from tacit.arrays import Array, computed_once
from tacit.models import Records
from tacit.models.outcomes import OutcomeLaw
from tacit.privacy.bounded import (
    LARGEST_NORM,
    Bounded,
    clip_moments,
    clip_units,
)
from tacit.privacy.sampling import summed_in_blocks
from tacit.support.compiler import jax, jnp

CLIP = 1.3
"""The clip C divided by √d; a whitened score u has |u|² = d on average."""
SLACK = 0.1
"""η: the norm of a centred score is at most (1 + η)C."""
TRACE = 2.0
"""B/d, where B bounds the trace of a record's curvature."""
MARGIN = 1.0 - 1e-5
"""Share of the bounds C and B that is used. The rest allows for rounding errors of one term."""
OUTCOMES = 4
"""K: number of simulated outcomes in each of the two sets."""
LEVELS, RANKS = 4, 5
"""Number of bins of the rank histogram for the predicted mean, and for the rank."""
CHUNK = 512
"""Number of records that are processed at a time."""
_DRAWS = 0x0D7A


class Centring(NamedTuple):
    """Simulated outcomes of one record, and the estimates that centre its clipped score.

    The first axis of every array except `sound` runs over the two sets of outcomes.
    """

    scores: Array
    """Scores uₖ of the simulated outcomes, (sets, K, d)."""
    weights: Array
    """Weights qₖcₖ of the simulated outcomes, (sets, K)."""
    centres: Array
    """Centres b_a, (sets, d)."""
    lengths: Array
    """Norms |b_a| of the centres."""
    gains: Array
    """Gains g_a."""
    sound: Array
    """False if a number is not finite, or larger than `LARGEST_NORM`. The record then contributes
    nothing.
    """


def score_bound(dimension: int) -> float:
    """Return the bound on the norm of a record's centred score, for `dimension` parameters."""
    return (1.0 + SLACK) * clip_norm(dimension)


def clip_norm(dimension: int) -> float:
    """Return the norm to which the score of a record is clipped, for `dimension` parameters."""
    return CLIP * math.sqrt(dimension)


def trace_bound(dimension: int) -> float:
    """Return the bound on the trace of a record's curvature, for `dimension` parameters."""
    return TRACE * dimension


def draws_key(secret: Array) -> Array:
    """Return the random key of a visit's simulated outcomes, derived from the visit's secret key.

    JAX's default generator is sufficient, because these draws are not privacy noise.
    """
    words = jax.random.bits(jax.random.fold_in(secret, _DRAWS), (2,), jnp.uint32)
    return jax.random.wrap_key_data(words, impl="threefry2x32")


def centring(
    law: OutcomeLaw, theta: Array, mapping: Array, record: Records, key: Array, count: int
) -> Centring:
    """Return the quantities that centre the clipped score of one record.

    They are computed from two sets of `count` simulated outcomes, or from all possible outcomes if
    there are finitely many.
    """
    parameters = law.parameters(theta, record)
    sets = 2 if law.support(parameters) is None else 1  # a listed support has no randomness
    keys = jax.random.split(key, sets)
    drawn = jax.vmap(lambda one: law.simulated(parameters, one, count))(keys)
    weights = jnp.asarray(drawn.weights, jnp.float64)
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), drawn.values)
    scores = law.scored(theta, record, flat).gradients @ mapping.T
    scores = scores.reshape(*weights.shape, -1)
    sound = jnp.all(jnp.abs(scores) <= LARGEST_NORM) & jnp.all(
        (weights >= 0) & (weights <= LARGEST_NORM)
    )  # False for NaN
    scores, weights = jnp.where(sound, scores, 0.0), jnp.where(sound, weights, 0.0)
    dimension = scores.shape[-1]
    clip, trace = MARGIN * clip_norm(dimension), MARGIN * trace_bound(dimension)
    shorter, norms = shortened(scores, clip)
    centres = jnp.mean((weights * (shorter - 1.0))[..., None] * scores, axis=1)
    lengths = _norms(centres)
    traces = jnp.mean(weights * shorter * jnp.square(norms), axis=1)
    gains = jnp.minimum(1.0, (1.0 + 0.5 * SLACK) * clip / (clip + lengths))
    gains = jnp.minimum(gains, trace / jnp.maximum(traces, 1e-300))
    return Centring(scores, weights * shorter, centres, lengths, gains, sound)


def centred(scores: Array, found: Centring) -> Array:
    """Return clipped scores of one record minus their estimated expectation.

    `scores` has the shape (…, parameters), and `found` contains the estimates.
    """
    clip = MARGIN * clip_norm(scores.shape[-1])
    shorter, _ = shortened(scores, clip)
    # The first set is weighted by the gain of the second and vice versa: a weight must not depend
    # on the centre that it multiplies.
    cap = (1.0 + SLACK) * clip / (clip + found.lengths)
    weights = jnp.minimum(found.gains[::-1], cap)
    kept = shorter[..., None] * scores
    return jnp.mean(weights) * kept - jnp.mean(weights[:, None] * found.centres, axis=0)


def shortened(scores: Array, clip: Array | float) -> tuple[Array, Array]:
    """Return the factors min(1, clip/norm) that clip each score, and the norms of the scores."""
    norms = _norms(scores)
    return jnp.minimum(1.0, clip / jnp.maximum(norms, 1e-300)), norms


def _norms(rows: Array) -> Array:
    return jnp.sqrt(jnp.sum(jnp.square(rows), axis=-1))


def score_sum(
    law: OutcomeLaw,
    records: Records,
    mask: Array,
    clip: Array,
    *,
    point: Array,
    mapping: Array,
    key: Array,
    chunk: int | None = None,
) -> Bounded:
    """Return the sum of the records' centred scores, each scaled to a norm of at most `clip`.

    A centred score is a clipped score minus an estimate of its expectation under the model.
    """
    dimension = point.shape[0]

    def one(record: Records, own_key: Array) -> Array:
        found = centring(law, point, mapping, record, own_key, OUTCOMES)
        outcome = jax.tree.map(lambda leaf: leaf[None], law.observed(record))
        score = law.scored(point, record, outcome).gradients[0] @ mapping.T
        sound = found.sound & jnp.all(jnp.abs(score) <= LARGEST_NORM)
        return jnp.where(sound, centred(jnp.where(sound, score, 0.0), found), 0.0)

    def summed(rows: Records, present: Array, keys: Array) -> Bounded:
        scale = clip / score_bound(dimension)
        return clip_units(scale * jax.vmap(one)(rows, keys), clip, present)

    return _in_chunks(summed, records, mask, key, chunk)


def curvature_sum(
    law: OutcomeLaw,
    records: Records,
    mask: Array,
    clip: Array,
    *,
    point: Array,
    mapping: Array,
    key: Array,
    chunk: int | None = None,
) -> Bounded:
    """Return the sum of the records' curvatures as a packed upper triangle.

    The curvature of a record is a weighted average of outer products of the scores of simulated
    outcomes. It is scaled to a norm of at most `clip`.
    """
    dimension = point.shape[0]

    def one(record: Records, own_key: Array) -> Array:
        # The record's curvature h is the sum of the outer products of these rows.
        found = centring(law, point, mapping, record, own_key, OUTCOMES)
        share = found.gains[:, None] * found.weights / found.weights.size
        rows = jnp.sqrt(jnp.maximum(share, 0.0))[..., None] * found.scores
        return rows.reshape(-1, dimension)

    def summed(rows: Records, present: Array, keys: Array) -> Bounded:
        scale = jnp.sqrt(clip / trace_bound(dimension))
        each = computed_once(scale * jax.vmap(one)(rows, keys))
        weights = jnp.broadcast_to(present[:, None], each.shape[:2])
        return clip_moments(each, clip, weights)

    return _in_chunks(summed, records, mask, key, chunk)


def rank_sum(
    law: OutcomeLaw,
    records: Records,
    mask: Array,
    clip: Array,
    *,
    point: Array,
    edges: Array,
    key: Array,
    chunk: int | None = None,
) -> Bounded:
    """Return a histogram of the records' ranks for each level of the predicted mean.

    The rank of a record, in (0, 1), is the probability of a smaller outcome under the model, with
    ties broken at random. `edges` separate the levels. Each record is counted once.
    """

    def one(record: Records, own_key: Array) -> Array:
        parameters = law.parameters(point, record)
        rank, level = law.rank(parameters, record, own_key), law.mean(parameters)
        place = RANKS * jnp.sum(level > edges) + jnp.clip(jnp.floor(RANKS * rank), 0, RANKS - 1)
        return jnp.where(place == jnp.arange(LEVELS * RANKS), 1.0, 0.0)  # NaN is in no bin

    def summed(rows: Records, present: Array, keys: Array) -> Bounded:
        return clip_units(clip * jax.vmap(one)(rows, keys), clip, present, nonnegative=True)

    return _in_chunks(summed, records, mask, key, chunk)


def _in_chunks(
    summed: Callable[[Records, Array, Array], Bounded],
    records: Records,
    mask: Array,
    key: Array,
    chunk: int | None,
) -> Bounded:
    """Return the sum over all records, computed for `chunk` records at a time, by default for at
    most `CHUNK`.

    `summed` is called with the records of a chunk, each with an additional axis of length 1, their
    mask, and one random key per record.
    """

    def each(given: tuple[Records, Array], present: Array) -> Bounded:
        rows, positions = given
        keys = jax.vmap(lambda position: jax.random.fold_in(key, position))(positions)
        own = {name: jnp.asarray(column)[:, None] for name, column in rows.items()}
        return summed(own, present.astype(jnp.float64), keys)

    positions = jnp.arange(mask.shape[0], dtype=jnp.uint32)
    return summed_in_blocks(each, (records, positions), mask, chunk or min(CHUNK, len(mask)))
