"""Bounds on replies of parties that optimise their local free energy (`natural`).

In mean-field, sequential, asynchronous and quorum runs a party takes as many steps as it needs, and
only the party knows the points mₖ at which it evaluates its sites. They are bounded nevertheless,
because no accepted step raises the free energy

    F(q) = −E_q[log p(xₘ|θ)] + KL(q ‖ cavity).

With L(q) the first term minus its smallest possible value, every accepted q has

    KL(q ‖ cavity) ≤ F₀ = L(q₀) + KL(q₀ ‖ cavity),

where q₀ is the starting point: the q that the party received or, at its first visit, the cavity
times the site at predictors η₀ based on the outcomes. With the cavity's mean m_c and standard
deviations s_c the mean of every accepted q therefore satisfies |mₖ − m_c|_j ≤ s_cj √(2F₀), and
every site

    |linear − P m_c|_j ≤ n b_j S + (curvature)·|mₖ − m_c|,

where the last term is n c b_j² |mₖ − m_c|_j for a mean-field q and n c b_j Σᵢ bᵢ|mₖ − m_c|ᵢ for a
full covariance. The left side is linear in the site, so this holds for convex combinations. Short
steps leave a part of the sent factor t in the reply; the bound covers it if |t_linear − P_t m_c| is
allowed as well. If no step lowers F, the reply is a full step, which is also covered.

**L(q₀)** is at most n(ℓ₀ + S·E) for a log-likelihood of slope S, where ℓ₀ is its range at η = 0 and
E bounds the average over records of E_q|η|. For a linear model it is at most n(y + E)²/2σ².

**The first visit, full covariance.** With u = g + h(η₀ − x·m_c) for each record, A = Λ_c + P and
m₀ − m_c = A⁻¹Xᵀu: both ‖m₀ − m_c‖² in Λ_c and Σ h(x·(m₀ − m_c))² are at most Σ u²/h = nU. The
second bound gives E ≤ Σ b|m_c| + √(U/h₀) + √(d/(n h₀)) with h ≥ h₀ and d parameters.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tacit.expfam import FullGaussian, Gaussian, Natural
from tacit.models.capabilities import DerivativeBounds
from tacit.pvi import divide

ENERGY_MARGIN = 1e-3
"""Margin for rounding of the free energy: this share of it, and as many nats."""
LIMIT_MARGIN = 1e-2
"""Relative margin of the limit for rounding errors."""


class Terms(NamedTuple):
    """Public facts about a party's records: their number n, the bounds b_j of the columns, and
    bounds on the derivatives of the log-likelihood.
    """

    records: float
    bounds: np.ndarray
    derivatives: DerivativeBounds
    rounding: float


class _Start(NamedTuple):
    """A party's starting point: its free energy F₀, and |linear − P m_c| of its site."""

    energy: float
    score: np.ndarray


def score_limit(
    family: Gaussian, terms: Terms, q: Natural, factor: Natural, visit: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the cavity's mean m_c and the limit of |linear − P m_c|; None if there is no limit."""
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
    """Return an upper bound on L(q) if the average of E_q|η| over records is at most `reach`.

    For a linear model `reach` must also bound the root mean square.
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
    """Return the start at a later visit: q, whose site is the party's last factor."""
    mean, sd = family.location_scale(q)
    reach = float(terms.bounds @ (np.abs(mean) + sd))
    divergence = max(0.0, float(family.kl(q, rest)))
    form = -2.0 * factor["quadratic"]
    product = form @ centre if form.ndim == 2 else form * centre
    score = np.abs(factor["linear"] - product)
    return _Start(_excess_loss(terms, reach) + divergence, score)


def _first_mean_field(terms: Terms, rest: Natural, centre: np.ndarray, sd: np.ndarray) -> _Start:
    """Return the first start in mean-field: the cavity's mean, with a precision in [Λ_c, Λ_c + n c
    b²].
    """
    reach = float(terms.bounds @ (np.abs(centre) + sd))
    added = terms.records * terms.derivatives.curvature * np.square(terms.bounds)
    divergence = 0.5 * float(np.sum(np.log1p(added / (-2.0 * rest["quadratic"]))))
    return _Start(_excess_loss(terms, reach) + divergence, np.zeros_like(centre))


def _first_full(terms: Terms, centre: np.ndarray, sd: np.ndarray) -> _Start:
    """Return the first start with a full covariance: the cavity times the site at η₀."""
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
