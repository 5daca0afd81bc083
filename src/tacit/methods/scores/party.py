"""The sums that a party releases in private scores, each bounded by construction.

At a public θ and map W (d × d), with C = `CLIP`·√d, B = 2d and η = `SLACK`, a record has the score
u = W∇log p(y | x, θ), clipped by c = min(1, C/|u|). Clipping makes its expectation under the model
differ from 0. The record therefore simulates outcomes yₖ for its own covariates, in two independent
sets a = 1, 2 with weights qₖ (`tacit.models.outcomes`), and subtracts

    b_a = meanₖ qₖ(cₖ − 1)uₖ,                         which estimates E[cu | x], for E[u | x] = 0
    τ_a = meanₖ qₖcₖ|uₖ|²,   g_a = min(1, (1 + η/2)C/(C + |b_a|), B/τ_a)
    w₁ = min(g₂, (1 + η)C/(C + |b₁|)),  w₂ likewise
    score       ψ = ½ Σ_a w_a(cu − b_a)
    curvature   h = ½ Σ_a g_a meanₖ qₖcₖuₖuₖᵀ

For any record, draws, θ and W: |w_a(cu − b_a)| ≤ w_a(C + |b_a|) ≤ (1 + η)C, hence |ψ| ≤ (1 + η)C; h
is positive semi-definite with |h| ≤ tr h ≤ B. Both are then divided by their bounds and clipped by
`tacit.privacy.bounded`, which has no effect except for rounding.

Draws depend only on a record's position and the visit's secret key. With the key fixed, replacing a
record changes only its own term; if a record is added or removed, other records move to other
positions and get other draws, which have the same joint distribution. The proof is in
docs/methods/dp-scores.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from tacit.arrays import Array, computed_once
from tacit.models import Records
from tacit.models.outcomes import OutcomeLaw
from tacit.privacy.bounded import (
    LARGEST_NORM,
    Bounded,
    add_disjoint,
    clip_moments,
    clip_units,
)
from tacit.support.compiler import jax, jnp

CLIP = 1.3
"""The clip C over √d; a whitened score u has |u|² = d on average."""
SLACK = 0.1
"""η: a centred score may exceed the clip C by this share."""
TRACE = 2.0
"""B/d, where B bounds the trace of a record's curvature."""
MARGIN = 1.0 - 1e-5
"""Share of the bounds C and B that is used; the rest covers the rounding of one term."""
OUTCOMES = 4
"""K: number of simulated outcomes in each of the two sets."""
LEVELS, RANKS = 4, 5
"""Numbers of bins of the rank histogram: by predicted mean, and by rank."""
CHUNK = 512
"""Number of records that are processed at a time."""
_DRAWS = 0x0D7A


class Centring(NamedTuple):
    """Quantities from a record's simulated outcomes; the first axis (except of `sound`) is the set
    a.
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
    """False if a number is not finite or beyond `LARGEST_NORM`; the record then contributes
    nothing.
    """


def score_bound(dimension: int) -> float:
    """Return (1 + η)C, the bound of a centred score."""
    return (1.0 + SLACK) * clip_norm(dimension)


def clip_norm(dimension: int) -> float:
    """Return the clip C of a score."""
    return CLIP * math.sqrt(dimension)


def trace_bound(dimension: int) -> float:
    """Return the bound B on the trace of a record's curvature."""
    return TRACE * dimension


def draws_key(secret: Array) -> Array:
    """Return the key of a visit's simulated outcomes.

    It is derived from the secret key and expanded by JAX's own generator, because these draws
    protect nothing.
    """
    words = jax.random.bits(jax.random.fold_in(secret, _DRAWS), (2,), jnp.uint32)
    return jax.random.wrap_key_data(words, impl="threefry2x32")


def centring(
    law: OutcomeLaw, theta: Array, mapping: Array, record: Records, key: Array, count: int
) -> Centring:
    """Return centres and gains of one record, from two sets of simulated outcomes."""
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
    """Return the centred scores ψ for several scores u of one record, (…, d)."""
    clip = MARGIN * clip_norm(scores.shape[-1])
    shorter, _ = shortened(scores, clip)
    # The first set is weighted by the gain of the second and vice versa: a weight must not depend
    # on the centre that it multiplies.
    cap = (1.0 + SLACK) * clip / (clip + found.lengths)
    weights = jnp.minimum(found.gains[::-1], cap)
    kept = shorter[..., None] * scores
    return jnp.mean(weights) * kept - jnp.mean(weights[:, None] * found.centres, axis=0)


def shortened(scores: Array, clip: Array | float) -> tuple[Array, Array]:
    """Return c = min(1, clip/|u|) and |u| for scores u."""
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
) -> Bounded:
    """Return the sum of the records' centred scores ψ, each scaled to norm ≤ `clip`."""
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

    return _in_chunks(summed, records, mask, key)


def curvature_sum(
    law: OutcomeLaw,
    records: Records,
    mask: Array,
    clip: Array,
    *,
    point: Array,
    mapping: Array,
    key: Array,
) -> Bounded:
    """Return the sum of the records' curvatures h, each scaled to norm ≤ `clip`, as upper
    triangle.
    """
    dimension = point.shape[0]

    def one(record: Records, own_key: Array) -> Array:
        """Return rows r such that the record's curvature h is Σ rrᵀ."""
        found = centring(law, point, mapping, record, own_key, OUTCOMES)
        share = found.gains[:, None] * found.weights / found.weights.size
        rows = jnp.sqrt(jnp.maximum(share, 0.0))[..., None] * found.scores
        return rows.reshape(-1, dimension)

    def summed(rows: Records, present: Array, keys: Array) -> Bounded:
        scale = jnp.sqrt(clip / trace_bound(dimension))
        each = computed_once(scale * jax.vmap(one)(rows, keys))
        weights = jnp.broadcast_to(present[:, None], each.shape[:2])
        return clip_moments(each, clip, weights)

    return _in_chunks(summed, records, mask, key)


def rank_sum(
    law: OutcomeLaw,
    records: Records,
    mask: Array,
    clip: Array,
    *,
    point: Array,
    edges: Array,
    key: Array,
) -> Bounded:
    """Return a histogram of randomised ranks by bins of the predicted mean; each record counts
    once.
    """

    def one(record: Records, own_key: Array) -> Array:
        parameters = law.parameters(point, record)
        rank, level = law.rank(parameters, record, own_key), law.mean(parameters)
        place = RANKS * jnp.sum(level > edges) + jnp.clip(jnp.floor(RANKS * rank), 0, RANKS - 1)
        return jnp.where(place == jnp.arange(LEVELS * RANKS), 1.0, 0.0)  # NaN is in no bin

    def summed(rows: Records, present: Array, keys: Array) -> Bounded:
        return clip_units(clip * jax.vmap(one)(rows, keys), clip, present, nonnegative=True)

    return _in_chunks(summed, records, mask, key)


def _in_chunks(
    summed: Callable[[Records, Array, Array], Bounded], records: Records, mask: Array, key: Array
) -> Bounded:
    """Add up all records in chunks; `summed` receives records as batches of length 1."""
    count = mask.shape[0]
    size = min(CHUNK, count)
    chunks = math.ceil(count / size)

    def split(column: Any) -> Array:
        column = jnp.asarray(column)
        rows = jnp.concatenate(
            [column, jnp.broadcast_to(column[:1], (chunks * size - count, *column.shape[1:]))]
        )
        return rows.reshape(chunks, size, *column.shape[1:])

    present = jnp.concatenate([mask, jnp.zeros(chunks * size - count, mask.dtype)])
    parts = (
        {name: split(column)[:, :, None] for name, column in records.items()},
        present.reshape(chunks, size).astype(jnp.float64),
        jnp.arange(chunks * size, dtype=jnp.uint32).reshape(chunks, size),
    )

    def chunk(rows: Records, there: Array, positions: Array) -> Bounded:
        keys = jax.vmap(lambda position: jax.random.fold_in(key, position))(positions)
        return summed(rows, there, keys)

    def step(total: Bounded, part: Any) -> tuple[Bounded, None]:
        return add_disjoint(total, chunk(*part)), None

    shapes = jax.eval_shape(chunk, *jax.tree.map(lambda leaf: leaf[0], parts))
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return jax.lax.scan(step, nothing, parts)[0]
