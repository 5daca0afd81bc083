"""The three sums that a party releases in private scoring, each bounded by construction.

With G counted columns (including y), z linear in x, and everything except x and y public:

* counts: for each categorical column its one-hot vector, for each number its position between two
  of a dozen knots, for a bounded y its position between its bounds, for a y of K levels its one-hot
  vector. Each is a non-negative vector of norm ≤ 1, so a record has norm ≤ √G and replacing a
  record moves the sum by at most √(2G) (everything is divided by √G);
* second moment: uuᵀ with u = z/‖z‖, of norm 1; replacing a record moves it by at most √2;
* score: w ψ(y, η) z with w = min(1, 1/(b(η)‖z‖)) and b(η) ≥ |ψ| for any y. Its norm is ≤ 1, and
  replacing a record moves the sum by at most 2. With K levels it is w ψ ⊗ z with ψ = e_y − p, of
  norm w‖ψ‖‖z‖, and ‖ψ‖² = 1 − 2p_y + ‖p‖² is largest, b², for the least probable y. w does not
  depend on y, so the expected sum is 0 at the true θ: clipping loses information but causes no
  bias.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tacit.arrays import Array, computed_once, kept_rows
from tacit.data.schema.layout import Feature, Layout
from tacit.models import Records
from tacit.models.scores import ScoreLikelihood
from tacit.privacy.bounded import LARGEST_NORM, Bounded, Tally, clip_moments, clip_sum, row_norms
from tacit.support.compiler import jnp

KNOTS = 12
WIDEST = 3.0
"""Numbers are counted up to this many declared scales from their centre."""


LARGEST_ASKED = 1e30
ROUNDING = 2.0**-44
"""Rounding margin of norms; see `score_sum`."""


class Counted(NamedTuple):
    """The counted columns: the indices in x of the levels of each category, and of numbers with
    knots.
    """

    groups: tuple[np.ndarray, ...]
    numbers: np.ndarray
    low: np.ndarray
    high: np.ndarray
    largest: float | None
    """The largest y, if y is counted."""
    smallest: float = 0.0
    levels: int = 0
    """Number of levels of y; 0 if y is a number."""

    @property
    def outcomes(self) -> int:
        """Number of counts of y."""
        return self.levels or 2 * (self.largest is not None)

    @property
    def columns(self) -> int:
        """Number G of vectors of norm ≤ 1 that a record contributes."""
        return len(self.groups) + len(self.numbers) + (self.outcomes > 0)

    @property
    def size(self) -> int:
        """Number of counts."""
        return sum(len(group) for group in self.groups) + KNOTS * len(self.numbers) + self.outcomes


def counted(
    layout: Layout, largest: float | None, smallest: float = 0.0, levels: int = 0
) -> Counted:
    """Determine the columns to count, from the public schema alone."""
    groups: dict[str, list[int]] = {}
    numbers, low, high = [], [], []
    for place, feature in enumerate(layout):
        if feature.kind == "level":
            groups.setdefault(feature.source, []).append(place)
        elif feature.kind == "numeric":
            ends = max(feature.low, -WIDEST), min(feature.high, WIDEST)
            if math.isfinite(feature.high - feature.low) and _own_units(feature):
                ends = feature.low, feature.high  # the declared scale is not that of the bulk
            numbers.append(place)
            low.append(ends[0])
            high.append(ends[1])
    return Counted(
        tuple(np.array(group) for group in groups.values()),
        np.array(numbers, dtype=np.int64),
        np.array(low),
        np.array(high),
        largest,
        smallest,
        levels,
    )


def _own_units(feature: Feature) -> bool:
    """True if the declared bounds show that most values are not within 0 ± `WIDEST`.

    This is the case if the bounds exclude most of that interval, or if a wide range lies on one
    side of 0, such as 0 … 120 years.
    """
    inside = min(feature.high, WIDEST) - max(feature.low, -WIDEST)
    one_sided = feature.low >= 0.0 or feature.high <= 0.0
    return inside < 1.0 or (one_sided and feature.high - feature.low > 2.0 * WIDEST)


def counts_sum(what: Counted, records: Records, mask: Array, clip: Array) -> Bounded:
    """Sum the counts of all records, each times C/√G; a number is divided between its two nearest
    knots.

    Levels are summed in the columns of x and selected from the sum.
    """
    x, unit = records["x"], clip / math.sqrt(what.columns)
    levels, parts = np.concatenate([np.zeros(0, np.int64), *what.groups]), []
    square = jnp.zeros(x.shape[0])
    if len(what.numbers):
        step = (what.high - what.low) / (KNOTS - 1)
        places = (jnp.stack([x[:, int(i)] for i in what.numbers], axis=1) - what.low) / step
        square += _at_most_one(places)
        places = jnp.clip(places, 0.0, KNOTS - 1.0)[:, :, None]
        hats = jnp.maximum(0.0, 1.0 - jnp.abs(places - jnp.arange(KNOTS)))
        parts.append(hats.reshape(x.shape[0], -1))
    if what.largest is not None:
        width = what.largest - what.smallest
        share = jnp.clip((records["y"] - what.smallest) / width, 0.0, 1.0)
        square += _at_most_one(share[:, None])
        parts.append(jnp.stack([1.0 - share, share], axis=1))
    if what.levels:
        square += _at_most_one(records["y"][:, None])
        parts.append((records["y"][:, None] == jnp.arange(what.levels)).astype(x.dtype))
    whole = len(levels) > 0 or not parts  # without levels it is a constant that XLA is slow to fold
    if whole:
        here = np.isin(np.arange(x.shape[1]), levels)
        parts.insert(0, jnp.where(here, jnp.maximum(x, 0.0), 0.0))
        square += jnp.square(row_norms(parts[:1]))

    def weighted_sum(weights: Array) -> Array:
        sums = [weights @ kept_rows(weights, part) for part in parts]
        return unit * jnp.concatenate([sums[0][levels], *sums[1:]] if whole else sums)

    least = jnp.zeros(x.shape[0])
    return clip_sum(unit * jnp.sqrt(square), clip, mask, weighted_sum, least=least)


def _at_most_one(numbers: Array) -> Array:
    """Bound the squared norm of a row's counts, with each number counted as a vector of norm ≤ 1;
    or NaN.
    """
    return jnp.sum(jnp.where(jnp.isnan(numbers), jnp.nan, 1.0), axis=1)


def moment_sum(x: Array, centre: Array, scale: Array, mask: Array, clip: Array) -> Bounded:
    """Sum uuᵀ over records, u = z/‖z‖, as an upper triangle (`pack_symmetric`); z = 0 contributes
    nothing.
    """
    return clip_moments(scale * (x - centre), clip, mask, filled=True)


def score_sum(
    likelihood: ScoreLikelihood,
    records: Records,
    mask: Array,
    clip: Array,
    *,
    centre: Array,
    scale: Array,
    bend: Array,
    point: Array,
    reach: Array,
    tally: Tally | None = None,
) -> Bounded:
    """Sum the records' scores w ψ z at θ = `point` (weights on x), where w clips each to norm ≤ 1,
    times `clip`.

    With K levels `point` has K rows of weights and the sum is Σ w ψ ⊗ z, one row per level.

    z = y − Wᵀa with y = scale∘(x − centre), a = Wy and W = `bend` is computed explicitly for every
    record, and its norm is computed from the summed numbers. A norm in closed form, or a projection
    of the sum, would leave rounding errors of the size of y in a sum of much shorter z, and both
    centre and W come from the server. a is computed once; the compiler may compute z from it twice,
    for norm and sum, with different rounding. `ROUNDING` times ‖z‖ + Σ |a_r|‖W_r‖ ≥ ‖y‖, added to
    the norm, covers the errors: each is at most 2⁻⁵³ of that, and there are fewer than 400.

    A record whose score is not finite, or whose x or z is beyond `LARGEST_NORM`, contributes
    nothing, and no record contributes anything if the request contains numbers beyond
    `LARGEST_ASKED`. The party answers in both cases: a refusal must not depend on a single record.
    """
    x, y, outputs = jnp.asarray(records["x"]), records["y"], likelihood.outputs
    asked = jnp.concatenate([jnp.ravel(one) for one in (centre, scale, bend, point, reach)])
    eta = x @ point.reshape(outputs, -1).T
    eta = eta if likelihood.levels else eta[:, 0]
    residual = likelihood.residual(y, eta, reach)
    # A y outside the declared range must not be treated like a y inside it.
    own = row_norms([residual]) if likelihood.levels else jnp.abs(residual)
    most = jnp.maximum(likelihood.bound(eta, reach), own)
    steered = (bend * scale).T
    residual, most, along = computed_once((residual, most, x @ steered - centre @ steered))
    z = scale * (x - centre) - along @ bend
    length = jnp.sqrt(jnp.sum(jnp.square(z), axis=1))
    bent = jnp.abs(along) @ jnp.sqrt(jnp.sum(jnp.square(bend), axis=1))
    length = length + ROUNDING * (length + bent)
    far = jnp.maximum(jnp.sum(jnp.square(x), axis=1), jnp.square(length))
    sound = jnp.all(jnp.abs(asked) <= LARGEST_ASKED) & (far <= LARGEST_NORM**2)  # False for NaN
    mask = jnp.where(sound, mask, 0.0)

    def weighted_sum(weights: Array) -> Array:
        if likelihood.levels:
            each = jnp.where(weights[:, None] > 0, weights[:, None] * residual, 0.0)
            return clip * (each.T @ kept_rows(weights, z)).reshape(-1)
        each = jnp.where(weights > 0, weights * residual, 0.0)
        return clip * (each @ kept_rows(weights, z))

    return clip_sum(clip * most * length, clip, mask, weighted_sum, tally=tally)
