"""Bounds that every honest reply satisfies, for any records.

A server does not control the parties whose updates it sums, but it can check each update. It uses
public facts: the declared bounds b_j on the absolute values in column j, the number n of records
that the party has announced, and, in a private run, clip and noise (`reply_bounds_private`). A
reply that violates a bound was not computed as agreed.

**What is checked.** A reply is Δ = ρ(λ_{qₘ} − λ_q): the damping ρ times the difference of natural
parameters between the party's answer qₘ and q. Let t be the factor that the server sent to the
party. The party's undamped new factor is s = t + Δ/ρ = λ_{qₘ} − λ_cavity. For `NaturalVI` it is a
Gaussian approximation of the likelihood, called a site, with the linear term `linear` and the
precision P. Let the log-likelihood ℓ of a record depend on the linear predictor η = x·θ alone, with
|ℓ'| ≤ S and 0 ≤ −ℓ'' ≤ c. Then the site satisfies

    P ⪰ 0,    P_jj ≤ n c b_j²,    |linear − P m|_j ≤ n b_j S,

where m is the mean of the q at which the site was evaluated:

| model             | S                                    | c     |
|-------------------|--------------------------------------|-------|
| logistic, softmax | 1                                    | ¼     |
| poisson           | R, the largest rate                  | R     |
| linear, mean      | (largest abs(y) + Σ b_j abs(m_j))/σ² | 1/σ²  |

Here y is the outcome and σ the standard deviation of its noise. Expectations over q satisfy the
same inequalities. After damped or repeated steps, s is a convex combination of sites and of t, for
which the first two inequalities hold as well. The third is checked if m is known. If only the party
knows m, the check uses the bound on m in `reply_bounds_local`.

**Every model.** The product of the update and the q that was sent to the party is a weighted
geometric mean of q and qₘ. If this product is improper, so was the party's answer qₘ.

**Rounding.** Let u be the unit roundoff of a floating-point type. The rounding error of a sum of n
terms is at most 8√n·u times the sum of their absolute values, except with probability 2 exp(−32)
(Higham and Mary 2019).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from tacit.arrays import Arrays
from tacit.expfam import Family, FullGaussian, Gaussian, Natural
from tacit.methods.base import LocalMethod
from tacit.methods.exact import Exact
from tacit.methods.natural.method import NaturalVI
from tacit.methods.reply_bounds_local import Terms, score_limit
from tacit.methods.statistics.method import ExpectedStatistics
from tacit.models import LinearPredictor, Model
from tacit.models.capabilities import BoundedDerivatives, DerivativeBounds, GaussianSites
from tacit.models.statistics import whole
from tacit.pvi import divide, multiply, power

IMPROPER_MARGIN = 1e-2
"""A smallest eigenvalue of the scaled precision below −`IMPROPER_MARGIN` is not due to rounding.
Smaller violations are left to `tacit.server.step`, which refuses the round.
"""


LEAST_ROUNDING = 1e-6
"""Minimum of the relative rounding error, because columns of very different scales lose digits."""
MEAN_ERROR = 1e-4
"""Relative error of the mean of an ill-conditioned q."""


class Exchange(NamedTuple):
    """One request and its reply, with public facts about the party."""

    q: Any
    """Natural parameters of q, or None if the stage does not use q; the same holds for `factor`."""
    factor: Any
    damping: float
    initial: bool
    visit: int
    released: Arrays
    loss: float | None = None
    records: float = math.inf
    """Upper bound on the number of records."""
    public: Arrays = {}  # noqa: RUF012 - shared and never written to
    settled: Any = None
    """The terms of a private run (`tacit.plan.calibrate.Settled`)."""

    @property
    def site(self) -> Natural:
        """Natural parameters of the party's new factor before damping."""
        return multiply(self.factor, power(self.released, 1.0 / self.damping))

    def slack(self, name: str) -> np.ndarray:
        """Bound on the float64 rounding error of each entry of `site`."""
        size = np.abs(self.released[name])
        for natural in (self.q, self.factor):
            if natural is not None and name in natural:
                size = size + np.abs(natural[name])
        return 64.0 * np.finfo(np.float64).eps * size / self.damping


class BrokenBound(NamedTuple):
    """A public bound that a reply violates."""

    quantity: str
    value: float
    bound: float
    adjacency: str = "at most"

    def __str__(self) -> str:
        return f"{self.quantity} {self.value:.3g}, {self.adjacency} {self.bound:.3g}"


def broken_bound(
    model: Model, family: Family, method: LocalMethod, exchange: Exchange
) -> BrokenBound | None:
    """Return the first bound that the reply violates, or None if the reply satisfies all bounds."""
    if method.private:
        from tacit.methods.reply_bounds_private import broken_private_bound

        return broken_private_bound(model, family, method, exchange)
    if exchange.q is None:
        from tacit.methods.natural.reply_bounds import broken_sum_bound

        return broken_sum_bound(model, exchange)
    return (
        _improper_alone(family, exchange)
        or _broken_site(model, family, method, exchange)
        or _broken_loss(model, family, method, exchange)
    )


def _improper_alone(family: Family, exchange: Exchange) -> BrokenBound | None:
    """Check that the q that was sent to the party, times the party's update, is proper up to
    rounding.
    """
    alone = multiply(exchange.q, exchange.released)
    if not isinstance(family, Gaussian):
        if family.is_proper(alone):
            return None
        smallest = min(float(np.min(value)) for value in alone.values())
        return BrokenBound("smallest natural parameter of q times its update", smallest, 0, "above")
    precision, size = -2.0 * alone["quadratic"], np.abs(exchange.q["quadratic"])
    size = 2.0 * (size + np.abs(exchange.released["quadratic"]))
    if isinstance(family, FullGaussian):
        unit = np.sqrt(np.maximum(np.diagonal(size), np.finfo(float).tiny))
        scaled = precision / np.outer(unit, unit)
        smallest = float(np.min(np.linalg.eigvalsh(0.5 * (scaled + scaled.T))))
    else:
        smallest = float(np.min(precision / np.maximum(size, np.finfo(float).tiny)))
    if smallest >= -IMPROPER_MARGIN:
        return None
    return BrokenBound(
        "smallest scaled eigenvalue of the precision of q times its update",
        smallest,
        -IMPROPER_MARGIN,
        "at least",
    )


def column_bounds(model: Model) -> np.ndarray:
    """Return, for each coordinate of θ, the largest absolute value that the schema allows in its
    column.

    The bound is infinite for a column without declared bounds. All bounds are 1 for a model without
    a linear predictor.
    """
    if not isinstance(model, LinearPredictor):
        return np.ones(model.dimension)
    each = [max(abs(feature.low), abs(feature.high)) for feature in model.layout]
    return np.tile(each, model.dimension // len(each))


def _derivatives(model: Model) -> DerivativeBounds | None:
    return model.derivative_bounds() if isinstance(model, BoundedDerivatives) else None


def _rounding(method: LocalMethod, records: float) -> float:
    """Return a bound on the relative rounding error of a sum over records.

    The error is relative to the sum of absolute values.
    """
    unit = float(np.finfo(method.dtype).eps)
    return min(1.0, max(LEAST_ROUNDING, unit * (64.0 + 8.0 * math.sqrt(records))))


def _broken_site(
    model: Model, family: Family, method: LocalMethod, exchange: Exchange
) -> BrokenBound | None:
    curve = _derivatives(model)
    known = isinstance(method, NaturalVI | Exact | ExpectedStatistics)
    if curve is None or not known or not isinstance(family, Gaussian):
        return None
    rate = method.sampling_rate if isinstance(method, ExpectedStatistics) else 1.0
    exchange = exchange._replace(records=exchange.records / rate)
    found = _broken_precision(model, family, method, exchange, curve)
    return found or _broken_linear(model, family, method, exchange, curve)


def _broken_precision(
    model: Model, family: Gaussian, method: LocalMethod, exchange: Exchange, curve: DerivativeBounds
) -> BrokenBound | None:
    """Check that the precision matrix of the party's new factor is positive semi-definite, and that
    its diagonal entries satisfy P_jj ≤ n c b_j² (see the module).
    """
    bounds, rounding = column_bounds(model), _rounding(method, exchange.records)
    form, slack = -2.0 * exchange.site["quadratic"], 2.0 * exchange.slack("quadratic")
    full = isinstance(family, FullGaussian)
    diagonal, loose = (np.diagonal(form), np.diagonal(slack)) if full else (form, slack)
    most = exchange.records * curve.curvature
    start = np.abs(_started(model, family, method, exchange)["quadratic"])
    with np.errstate(invalid="ignore"):
        limit = np.where(bounds > 0, most * np.square(bounds), 0.0) * (1.0 + rounding)
    limit = limit + 2.0 * (np.diagonal(start) if full else start)
    before = -2.0 * exchange.factor["quadratic"]
    limit = np.maximum(limit, np.diagonal(before) if full else before) + loose
    over = np.flatnonzero(diagonal > limit)
    if len(over):
        worst = int(over[np.argmax(diagonal[over] - limit[over])])
        name = f"precision of {model.names[worst]!r}"
        return BrokenBound(name, float(diagonal[worst]), float(limit[worst]))
    # Columns without declared bounds are scaled by their precision.
    unit = np.where(np.isfinite(bounds) & (bounds > 0), bounds, np.sqrt(np.abs(diagonal)))
    unit = np.where(unit > 0, unit, 1.0)
    least = math.sqrt(len(unit)) * rounding * max(most, 1.0)
    if full:
        scaled = form / np.outer(unit, unit)
        smallest = float(np.min(np.linalg.eigvalsh(0.5 * (scaled + scaled.T))))
        least += float(np.linalg.norm(slack / np.outer(unit, unit)))
    else:
        smallest = float(np.min(diagonal / np.square(unit)))
        least += float(np.max(slack / np.square(unit)))
    if smallest >= -least:
        return None
    return BrokenBound("smallest eigenvalue of its precision", smallest, -least, "at least")


def _started(model: Model, family: Gaussian, method: LocalMethod, exchange: Exchange) -> Natural:
    """Return the model's starting point divided by q, in natural parameters.

    A part of this quotient remains in the reply if the first step is short. The result is 0 if the
    party starts at q, or if its first step is a full one.
    """
    if not (isinstance(method, NaturalVI) and isinstance(model, GaussianSites)):
        return family.zero()
    if method.starts_at_q or model.first_step_whole:
        return family.zero()
    if not exchange.initial or method.length_of(model, family) == 1.0:
        return family.zero()
    start = model.start(family)
    return family.zero() if start is None else divide(start, exchange.q)


def _broken_linear(
    model: Model, family: Gaussian, method: LocalMethod, exchange: Exchange, curve: DerivativeBounds
) -> BrokenBound | None:
    """Check the bound on the gradient of the party's log-likelihood, computed from its new factor.

    The gradient is taken at the mean at which the party evaluated its factor. If the server does
    not know this mean, it checks a bound that holds for all possible means.
    """
    if isinstance(method, NaturalVI):
        assert isinstance(model, GaussianSites)
        if method.starts_at_q:
            return _broken_walk(model, family, method, exchange, curve)
        steps, length = method.steps_of(model, family), method.length_of(model, family)
        if steps > 1:
            return _broken_path(model, family, method, exchange, curve)
        start = (model.start(family) if exchange.initial else None) or exchange.q
        before = divide(start, divide(exchange.q, exchange.factor))
        first = 1.0 if exchange.initial and model.first_step_whole else length
        site = power(divide(exchange.site, power(before, 1.0 - first)), 1.0 / first)
        mean = family.location_scale(start)[0]
    elif isinstance(method, Exact) and not isinstance(family, FullGaussian):
        answer = multiply(exchange.q, power(exchange.released, 1.0 / exchange.damping))
        site, mean, first = exchange.site, family.location_scale(answer)[0], 1.0
    elif not whole(family):
        site, first = exchange.site, 1.0
        mean = family.location_scale(exchange.q)[0]
    else:  # statistics that do not depend on m
        site, mean, first = exchange.site, np.zeros(model.dimension), 1.0
    return _broken_score(model, method, exchange, curve, site, mean, first)


def _broken_walk(
    model: Model, family: Gaussian, method: NaturalVI, exchange: Exchange, curve: DerivativeBounds
) -> BrokenBound | None:
    """Check the reply of a local optimisation, with the bound of `reply_bounds_local`.

    Only the party knows the means at which it evaluated its sites.
    """
    rounding = _rounding(method, exchange.records)
    terms = Terms(exchange.records, column_bounds(model), curve, rounding)
    found = score_limit(family, terms, exchange.q, exchange.factor, exchange.visit)
    if found is None:
        return None
    centre, limit = found
    score, slack = _score_at(exchange, exchange.site, centre, 1.0)
    return _first_over(model, "gradient at the cavity's mean of", score, limit + slack)


def _broken_score(
    model: Model,
    method: LocalMethod,
    exchange: Exchange,
    curve: DerivativeBounds,
    site: Natural,
    mean: np.ndarray,
    first: float,
) -> BrokenBound | None:
    bounds, rounding = column_bounds(model), _rounding(method, exchange.records)
    score, slack = _score_at(exchange, site, mean, first)
    limit = _score_limit(bounds, mean, exchange.records, curve, rounding)
    return _first_over(model, "gradient of", score, limit + slack)


def _score_at(
    exchange: Exchange, site: Natural, mean: np.ndarray, first: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the absolute gradient of the log-factor `site` at `mean`, and a bound on its rounding
    error.
    """
    form = -2.0 * site["quadratic"]
    product = form @ mean if form.ndim == 2 else form * mean
    score, slack = np.abs(site["linear"] - product), exchange.slack("linear") / first
    wide = 2.0 * np.abs(exchange.slack("quadratic")) / first
    return score, slack + (wide @ np.abs(mean) if form.ndim == 2 else wide * np.abs(mean))


def _first_over(
    model: Model, what: str, score: np.ndarray, limit: np.ndarray
) -> BrokenBound | None:
    """Return the violated bound of the coordinate that exceeds its limit by the largest factor.

    The result is None if no coordinate exceeds its limit.
    """
    over = np.flatnonzero(score > limit)
    if not len(over):
        return None
    worst = int(over[np.argmax(score[over] / np.maximum(limit[over], 1e-300))])
    return BrokenBound(f"{what} {model.names[worst]!r}", float(score[worst]), float(limit[worst]))


def _score_limit(
    bounds: np.ndarray, mean: np.ndarray, records: float, curve: DerivativeBounds, rounding: float
) -> np.ndarray:
    """Return the largest possible gradient of the party's log-likelihood in each coordinate, plus
    rounding errors.

    It is infinite for a column without declared bounds.
    """
    with np.errstate(invalid="ignore"):
        reach = float(np.nansum(np.where(mean == 0, 0.0, bounds * np.abs(mean))))
        slope = curve.slope + (curve.slope_per_reach * reach if curve.slope_per_reach else 0.0)
        lost = rounding * slope + max(rounding, MEAN_ERROR) * 2.0 * curve.curvature * reach
        return np.where(bounds > 0, records * bounds * (slope + lost), 0.0)


def _broken_path(
    model: Model, family: Gaussian, method: NaturalVI, exchange: Exchange, curve: DerivativeBounds
) -> BrokenBound | None:
    # Several mean-field steps, in the symbols of the module docstring. With the means mₖ of q after
    # k steps, the bound is |linear| ≤ n b S + n c b² max|mₖ|. Let the cavity have precision Λ_c and
    # mean m_c, and let Λₖ be the precision of q after k steps. A step of length β gives
    # Λ_{k+1}(m_{k+1} − mₖ) = β(gₖ + Λ_c(m_c − mₖ)), where |gₖ| ≤ n b S and Λ_{k+1} ≥ (1 − β)Λₖ +
    # βΛ_c. The resulting bound is far above typical values, but finite.
    assert isinstance(model, GaussianSites)
    rest = divide(exchange.q, exchange.factor)
    others = -2.0 * rest["quadratic"]
    if isinstance(family, FullGaussian) or curve.slope_per_reach or not np.all(others > 0):
        return None
    start = (model.start(family) if exchange.initial else None) or exchange.q
    bounds, length = column_bounds(model), method.length_of(model, family)
    whole_first = exchange.initial and model.first_step_whole
    mean, precision = family.location_scale(start)[0], -2.0 * start["quadratic"]
    away = np.abs(rest["linear"] / others - mean)
    push, moved = exchange.records * bounds * curve.slope, np.zeros(model.dimension)
    with np.errstate(invalid="ignore", over="ignore"):
        for number in range(method.steps_of(model, family)):
            step = 1.0 if number == 0 and whole_first else length
            precision = (1.0 - step) * precision + step * others
            moved = moved + step * (push + others * (away + moved)) / precision
        before = np.abs(divide(start, rest)["linear"])
        limit = before + push
        limit += exchange.records * curve.curvature * np.square(bounds) * (np.abs(mean) + moved)
        limit = np.where(bounds > 0, limit, before) * 1.01 + exchange.slack("linear")
        over = np.flatnonzero(np.abs(exchange.site["linear"]) > limit)
    if not len(over):
        return None
    worst = int(over[0])
    value = float(np.abs(exchange.site["linear"][worst]))
    return BrokenBound(f"linear term of {model.names[worst]!r}", value, float(limit[worst]))


def _broken_loss(
    model: Model, family: Family, method: LocalMethod, exchange: Exchange
) -> BrokenBound | None:
    """Check 0 ≤ loss ≤ n(ℓ₀ + S·E|η|), for models that bound their loss.

    η is the linear predictor, n is the number of records, ℓ₀ the largest loss of a record at η = 0,
    and S the largest slope of the loss in η.
    """
    bounds = _derivatives(model)
    if exchange.loss is None or bounds is None or not bounds.nonnegative_loss:
        return None
    rounding = min(
        1.0, float(np.finfo(np.float32).eps) * (64.0 + 8.0 * math.sqrt(exchange.records))
    )
    if exchange.loss < -rounding * exchange.records:
        return BrokenBound("loss", exchange.loss, 0.0, "at least")
    if bounds.loss_at_zero is None:
        return None
    elsewhere = exchange.initial and not method.starts_at_q
    start = (model.start(family) if elsewhere else None) or exchange.q
    mean, sd = family.location_scale(start)
    reach = float(np.sum(column_bounds(model) * (np.abs(mean) + sd)))
    limit = exchange.records * (bounds.loss_at_zero + bounds.slope * reach) * (1.0 + rounding)
    return BrokenBound("loss", exchange.loss, limit) if exchange.loss > limit else None
