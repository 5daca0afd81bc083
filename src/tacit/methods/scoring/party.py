"""The three sums that a party releases in private scoring, each bounded by construction.

A record has covariates x and an outcome y. Everything else in these formulas is public.

* **Counts.** Let G be the number of counted columns, including y. A categorical column contributes
  its one-hot vector, and a number its position between two of a dozen knots. A bounded y
  contributes its position between its bounds, and a y of K levels its one-hot vector. Each of these
  vectors is non-negative with norm ≤ 1. All of them together have norm ≤ √G, and replacing a record
  moves the sum by at most √(2G). Everything is then divided by √G.
* **Second moment.** With z = scale∘(x − centre), a record contributes uuᵀ with u = z/‖z‖, which has
  norm 1. Replacing a record moves the sum by at most √2.
* **Score.** With the predictor η = x·θ and the residual ψ(y, η), a record contributes w ψ z. The
  weight is w = min(1, 1/(b(η)‖z‖)), where b(η) ≥ |ψ| for any y, so the norm is ≤ 1. Replacing a
  record moves the sum by at most 2. For K levels with probabilities p, ψ is the vector e_y − p, and
  the contribution is w ψ ⊗ z. Its norm is w‖ψ‖‖z‖, and b² is the value of ‖ψ‖² = 1 − 2p_y + ‖p‖²
  for the least probable y, which is the largest one. The weight w does not depend on y, so the
  expected sum is 0 at the true θ. Clipping therefore loses information but causes no bias.
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
"""Numeric columns are counted within this many declared scales of their centre."""


LARGEST_ASKED = 1e30
ROUNDING = 2.0**-44
"""Rounding margin of norms; see `score_sum`."""


class Counted(NamedTuple):
    """Which columns are counted, and how.

    `groups` has, for each category, the indices in x of the columns of its levels. `numbers` are
    the indices in x of the numeric columns, whose values are counted at knots between `low` and
    `high`. y is counted if `largest` or `levels` is given.
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
        """Number of counts for the outcome y."""
        return self.levels or 2 * (self.largest is not None)

    @property
    def columns(self) -> int:
        """Number of counted variables. A record contributes a vector of norm ≤ 1 for each of
        them.
        """
        return len(self.groups) + len(self.numbers) + (self.outcomes > 0)

    @property
    def size(self) -> int:
        """Total number of counts."""
        return sum(len(group) for group in self.groups) + KNOTS * len(self.numbers) + self.outcomes


def counted(
    layout: Layout, largest: float | None, smallest: float = 0.0, levels: int = 0
) -> Counted:
    """Return which columns to count.

    Only public facts are used: the `layout`, the range of a numeric outcome, and the number of
    levels of the outcome.
    """
    groups: dict[str, list[int]] = {}
    numbers, low, high = [], [], []
    for place, feature in enumerate(layout):
        if feature.kind == "level":
            groups.setdefault(feature.source, []).append(place)
        elif feature.kind == "numeric":
            ends = max(feature.low, -WIDEST), min(feature.high, WIDEST)
            if math.isfinite(feature.high - feature.low) and _own_units(feature):
                ends = feature.low, feature.high  # most values are outside ± WIDEST
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
    """True if most values are probably outside 0 ± `WIDEST`, judged by the declared bounds.

    This is the case if the bounds exclude most of that interval, or if the column has a wide range
    and only values of one sign, such as 0 … 120 years.
    """
    inside = min(feature.high, WIDEST) - max(feature.low, -WIDEST)
    one_sided = feature.low >= 0.0 or feature.high <= 0.0
    return inside < 1.0 or (one_sided and feature.high - feature.low > 2.0 * WIDEST)


def counts_sum(what: Counted, records: Records, mask: Array, clip: Array) -> Bounded:
    """Return the sum of the counts of all records, times `clip`/√G, where G is the number of
    counted columns.

    The counts of one record then have norm at most `clip`. A number is divided between its two
    nearest knots.
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
    """Return, for each row, an upper bound on the squared norm of the counts of its numeric
    columns.

    The bound is 1 per numeric column, and NaN if a value is NaN.
    """
    return jnp.sum(jnp.where(jnp.isnan(numbers), jnp.nan, 1.0), axis=1)


def moment_sum(x: Array, centre: Array, scale: Array, mask: Array, clip: Array) -> Bounded:
    """Return the sum of `clip`·uuᵀ over the records, with u = z/‖z‖ and z = scale∘(x − centre).

    The result is a packed upper triangle (`pack_symmetric`). A record with z = 0 contributes
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
    """Return the sum of the records' clipped scores at the parameters θ = `point`, times `clip`.

    The score of a record with covariates x is ψ z. The factor ψ is the residual of the outcome at
    the predictor x·θ. `reach` is an upper limit on |ψ| that the server has chosen, for likelihoods
    with such a limit. The vector z is x after centring, scaling and a linear map: z = v − Wᵀa with
    v = scale∘(x − centre), a = Wv and W = `bend`.

    A clipped score is w ψ z with a weight w ≤ 1 that makes its norm at most 1 for every outcome.
    For K levels, `point` and the sum Σ w ψ ⊗ z have K rows. `mask` is 0 for padding, otherwise 1.

    **Rounding.** z is computed explicitly for every record, and the norm of z is computed from the
    same numbers that are summed. A norm in closed form, or a projection of the sum, would have
    rounding errors of the size of v. The server chooses `centre` and W, so v may be much longer
    than z. The compiler may compute z twice from a, for the norm and for the sum, with different
    rounding. There are fewer than 400 such errors. Each is at most 2⁻⁵³ S with S = ‖z‖ + Σᵣ
    |aᵣ|‖Wᵣ‖ ≥ ‖v‖, where Wᵣ is row r of W. To cover them, `ROUNDING`·S is added to the norm.

    **Refusals.** A record contributes nothing if its score is not finite, or if the norm of its x
    or z is above `LARGEST_NORM`. No record contributes if the request contains a number above
    `LARGEST_ASKED`. The party answers nevertheless, because a refusal must not depend on a single
    record.
    """
    x, y = jnp.asarray(records["x"]), records["y"]
    asked = jnp.concatenate([jnp.ravel(one) for one in (centre, scale, bend, point, reach)])
    eta = x @ point.reshape(likelihood.outputs, -1).T
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
        if not likelihood.levels:
            return clip * (jnp.where(weights > 0, weights * residual, 0.0) @ kept_rows(weights, z))
        each = jnp.where(weights[:, None] > 0, weights[:, None] * residual, 0.0)
        return clip * (each.T @ kept_rows(weights, z)).reshape(-1)

    return clip_sum(clip * most * length, clip, mask, weighted_sum, tally=tally)
