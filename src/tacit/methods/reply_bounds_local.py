"""Bounds on replies of parties that optimise their local free energy (`natural`).

In mean-field, sequential, asynchronous and quorum runs a party takes as many steps as it needs.
Only the party knows the means mₖ at which it evaluates its sites. The server can still bound these
means, because no accepted step raises the free energy of the party's records x,

    F(q) = −E_q[log p(x|θ)] + KL(q ‖ cavity).

**Bound on the means.** Let L(q) be the first term of F minus its smallest possible value. Every
accepted q has

    KL(q ‖ cavity) ≤ F₀ = L(q₀) + KL(q₀ ‖ cavity),

where q₀ is the starting point. This is the q that the party received or, at its first visit, the
cavity times a site at linear predictors η₀, which are computed from the outcomes. With the cavity's
mean m_c and standard deviations s_c, the mean of every accepted q therefore satisfies |mₖ − m_c|_j
≤ s_cj √(2F₀) in coordinate j.

**Bound on a site.** A site has a linear term and a precision P. The number of records n, the bounds
b_j of the columns, and the bounds S and c on derivatives are those of `reply_bounds`. Every site
satisfies

    |linear − P m_c|_j ≤ n b_j S + D_j.

For a mean-field q, D_j is n c b_j² |mₖ − m_c|_j. For a full covariance it is n c b_j Σᵢ bᵢ|mₖ −
m_c|ᵢ. The expression linear − P m_c is linear in the site, so the bound also holds for convex
combinations of sites. After short steps, a part of the factor that the party received remains in
the reply. The limit is therefore at least the value of |linear − P m_c| for this factor. If no step
lowers F, the reply is a full step, to which the bound applies too.

**Bound on L(q₀).** Let ℓ₀ be an upper bound on the maximum of a record's log-likelihood minus its
value at the predictor η = 0. Let E be an upper bound on the average over records of E_q|η|. Then
L(q₀) ≤ n(ℓ₀ + S·E). For a linear model with |outcome| ≤ Y and error variance σ², L(q₀) ≤ n(Y +
E)²/2σ².

**First visit, full covariance.** Let g and −h be the first and second derivative of a record's
log-likelihood at η₀, and u = g + h(η₀ − x·m_c). Let Λ_c be the precision of the cavity, X the
matrix of features and A = Λ_c + P. The mean m₀ of q₀ satisfies m₀ − m_c = A⁻¹Xᵀu. Let U be the
average of u²/h over the records. Both (m₀ − m_c)ᵀΛ_c(m₀ − m_c) and Σ h(x·(m₀ − m_c))² are at most
nU. With h ≥ h₀ and d parameters, the second bound gives E ≤ Σ b|m_c| + √(U/h₀) + √(d/(n h₀)).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tacit.expfam import FullGaussian, Gaussian, Natural
from tacit.models.capabilities import DerivativeBounds
from tacit.pvi import divide

ENERGY_MARGIN = 1e-3
"""Relative margin for rounding errors of the free energy F₀. In addition, 1 nat is added to F₀."""
LIMIT_MARGIN = 1e-2
"""Relative margin for rounding errors that is added to the limit of `score_limit`."""


class Terms(NamedTuple):
    """Public facts about a party's records: their number, the bounds of the columns, and bounds on
    the derivatives of the log-likelihood.
    """

    records: float
    bounds: np.ndarray
    derivatives: DerivativeBounds
    rounding: float


class _Start(NamedTuple):
    """Bounds at the starting point of a party: on the free energy (`energy`), and on the gradient
    of its log-factor at the cavity's mean (`score`).
    """

    energy: float
    score: np.ndarray


def score_limit(
    family: Gaussian, terms: Terms, q: Natural, factor: Natural, visit: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the cavity's mean, and the largest possible gradient of the party's log-factor at this
    mean.

    The limit has one entry per coordinate. The result is None if there is no limit.
    """
    rest = divide(q, factor)
    if not family.is_proper(rest):
        return None
    full, bounds = isinstance(family, FullGaussian), terms.bounds
    centre, sd = (np.asarray(part, np.float64) for part in family.location_scale(rest))
    if not (np.all(np.isfinite(bounds)) and np.all(np.isfinite(centre))):
        return None
    if visit > 0:
        start = _later(family, terms, q, factor, rest, centre)
    elif full:
        start = _first_full(terms, centre, sd)
    else:
        start = _first_mean_field(terms, rest, centre, sd)
    energy = start.energy * (1.0 + ENERGY_MARGIN + 4.0 * terms.rounding) + 1.0
    away = sd * math.sqrt(2.0 * energy)
    reach, moved = float(bounds @ np.abs(centre)), float(bounds @ away)
    slope = terms.derivatives.slope + terms.derivatives.slope_per_reach * (reach + moved)
    bent = moved if full else bounds * away
    with np.errstate(invalid="ignore"):  # without declared bounds on outcomes the limit is infinite
        limit = terms.records * bounds * (slope + terms.derivatives.curvature * bent)
    limit = np.where(bounds > 0, limit, 0.0)
    return centre, np.maximum(limit, start.score) * (1.0 + LIMIT_MARGIN + terms.rounding)


def _excess_loss(terms: Terms, reach: float) -> float:
    """Return an upper bound on the expected loss of the party's records minus its smallest possible
    value.

    `reach` is an upper bound on the average over records of E|η|, where η is the linear predictor.
    For a linear model it must also bound the root mean square of η.
    """
    curve = terms.derivatives
    if curve.slope_per_reach:
        largest = curve.slope / curve.slope_per_reach
        return terms.records * 0.5 * curve.slope_per_reach * (largest + reach) ** 2
    return terms.records * (curve.range_at_zero + curve.slope * reach)


def _later(
    family: Gaussian,
    terms: Terms,
    q: Natural,
    factor: Natural,
    rest: Natural,
    centre: np.ndarray,
) -> _Start:
    # A later visit starts at the q that the party received, in which its site is its last factor.
    mean, sd = family.location_scale(q)
    reach = float(terms.bounds @ (np.abs(mean) + sd))
    divergence = max(0.0, float(family.kl(q, rest)))
    form = -2.0 * factor["quadratic"]
    product = form @ centre if form.ndim == 2 else form * centre
    score = np.abs(factor["linear"] - product)
    return _Start(_excess_loss(terms, reach) + divergence, score)


def _first_mean_field(terms: Terms, rest: Natural, centre: np.ndarray, sd: np.ndarray) -> _Start:
    # The start has the cavity's mean, and a precision between the cavity's Λ_c and Λ_c + n c b².
    reach = float(terms.bounds @ (np.abs(centre) + sd))
    added = terms.records * terms.derivatives.curvature * np.square(terms.bounds)
    divergence = 0.5 * float(np.sum(np.log1p(added / (-2.0 * rest["quadratic"]))))
    return _Start(_excess_loss(terms, reach) + divergence, np.zeros_like(centre))


def _first_full(terms: Terms, centre: np.ndarray, sd: np.ndarray) -> _Start:
    # The start is the cavity times the site at η₀ (module docstring).
    count, bounds, size = terms.records, terms.bounds, len(centre)
    reach, width = float(bounds @ np.abs(centre)), float(bounds @ sd)
    own, slope, least, _ = terms.derivatives.data_start
    away = own + reach
    score = count * bounds * (slope + terms.derivatives.curvature * away)
    if least is None:  # the curvature may vanish in some direction: use Λ_c only
        length = float(score @ sd) ** 2
        reach = reach + width * (1.0 + math.sqrt(length))
    else:
        each = 2.0 * (slope * slope / least + terms.derivatives.curvature * away * away)
        length = count * each
        reach = reach + math.sqrt(each / least) + math.sqrt(size / (max(count, 1.0) * least))
    spread = 0.5 * size * math.log1p(count * terms.derivatives.curvature * width * width / size)
    return _Start(_excess_loss(terms, reach) + 0.5 * length + spread, score)
