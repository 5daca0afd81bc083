"""Bounds on the replies of a party to the requests of a `NaturalSolver` or `WideSolver`.

They apply to models in which the log-likelihood ℓ of a record depends only on the linear predictor
η = x·θ, with |ℓ'| ≤ S and 0 ≤ −ℓ'' ≤ c. Let n be the number of records, and let b_j bound the
absolute values of column j. At θ = mean + root·z, the gradient g and the Hessian H in z of the
party's log-likelihood satisfy

    −H ⪰ 0,    −H_jj ≤ n c r_j²,    |g_j| ≤ n S r_j,    r_j = Σ_i b_i |root_ij|,

and a log-probability is at most 0. The Gaussian approximation of the likelihood at the party's own
mode has a precision P in θ with P ⪰ 0 and P_jj ≤ n c b_j². For other models the only requirement is
that replies are finite.
"""

from __future__ import annotations

import numpy as np

from tacit.arrays import Arrays
from tacit.methods.natural.stages import DISPERSION, FAILED
from tacit.methods.natural.wide_columns import Columns
from tacit.methods.reply_bounds import BrokenBound, Exchange, column_bounds
from tacit.models import Model
from tacit.models.capabilities import BoundedDerivatives, DerivativeBounds

ROUNDING = 1e-6
"""Relative margin for rounding errors that is added to every bound."""
DEFINITE = 1e-8
"""A d×d matrix with a diagonal of ones counts as positive semidefinite if its smallest eigenvalue
is at least −d·`DEFINITE`; the remainder is rounding error.
"""


def broken_sum_bound(model: Model, exchange: Exchange) -> BrokenBound | None:
    """Return the first bound on log-likelihoods or their derivatives that the reply violates, or
    None if it satisfies all bounds.
    """
    curve = model.derivative_bounds() if isinstance(model, BoundedDerivatives) else None
    if curve is None:
        return None
    released, public, bounds = exchange.released, exchange.public, column_bounds(model)
    if "log_likelihood" in released:
        return _broken_value(released["log_likelihood"], curve) or _broken_dispersion(released)
    if "products" in released:
        return _broken_wide(model, exchange, bounds, curve)
    if "precision" in released:
        return _broken_mode(released, exchange.records, bounds, curve)
    found = _broken_value(released["value"], curve)
    means, roots = (
        np.atleast_2d(public["mean"]),
        np.reshape(public["root"], (-1, *[len(bounds)] * 2)),
    )
    gradients = np.atleast_2d(released["gradient"])
    hessians = np.reshape(released["hessian"], roots.shape)
    for mean, root, gradient, hessian in zip(means, roots, gradients, hessians, strict=True):
        with np.errstate(invalid="ignore"):
            reach = np.nansum(np.where(root == 0, 0.0, bounds[:, None] * np.abs(root)), axis=0)
            away = float(np.nansum(np.where(mean == 0, 0.0, bounds * np.abs(mean))))
            away += float(np.sum(reach))
            slope = curve.slope + (curve.slope_per_reach * away if curve.slope_per_reach else 0.0)
            push = exchange.records * slope * reach * (1.0 + ROUNDING)
            most = exchange.records * curve.curvature * np.square(reach) * (1.0 + ROUNDING)
        found = (
            found
            or _over("gradient in direction", np.abs(gradient), push)
            or _broken_form("curvature", -hessian, most)
        )
    return found


def _broken_wide(
    model: Model, exchange: Exchange, bounds: np.ndarray, curve: DerivativeBounds
) -> BrokenBound | None:
    # The bounds of the module docstring for a mean-field q with standard deviations `scale`: here
    # r_j = b_j scale_j, and |(Hv)_j| ≤ n c r_j Σ_i r_i |v_i| for each requested direction v. The
    # standard deviation of η is at most Σ_j r_j. If q has a root, it is at most the norm of the
    # vector with one entry Σ_j r_j |root_kj| for each row k of the root.
    released, public = exchange.released, exchange.public
    columns = Columns.of(model)
    with np.errstate(invalid="ignore"):
        if columns is not None:  # centred columns
            centre = np.abs(public["centre"])
            bounds = bounds + np.where(centre == 0, 0.0, centre * columns.of_constants(bounds))
        reach = np.where(bounds == 0, 0.0, bounds * public["scale"])
        away = float(np.nansum(np.where(public["mean"] == 0, 0.0, bounds * abs(public["mean"]))))
        root = np.abs(public["root"])
        further = np.sum(np.where(root == 0, 0.0, root * reach), axis=1)
        away += float(np.linalg.norm(further) if np.any(root) else np.sum(reach))
        slope = curve.slope + (curve.slope_per_reach * away if curve.slope_per_reach else 0.0)
        scale = exchange.records * (1.0 + ROUNDING)
        most = scale * curve.curvature * np.square(reach)
        directions = np.abs(public["directions"])
        along = np.sum(np.where(directions == 0, 0.0, directions * reach), axis=1)
        wide = scale * curve.curvature * np.outer(along, reach)
        push = scale * slope * reach
    least = np.max(released["diagonal"] - ROUNDING * np.where(np.isfinite(most), most, 0.0))
    return (
        _broken_value(released["value"], curve)
        or _over("gradient in direction", np.abs(released["gradient"]), push)
        or _over("curvature in direction", -released["diagonal"], most)
        or (BrokenBound("second derivative", float(least), 0.0) if least > 0 else None)
        or _over("product", np.abs(released["products"]).ravel(), wide.ravel())
    )


def _broken_mode(
    released: Arrays, records: float, bounds: np.ndarray, curve: DerivativeBounds
) -> BrokenBound | None:
    with np.errstate(invalid="ignore"):
        most = records * curve.curvature * np.square(bounds) * (1.0 + ROUNDING)
    most = np.where(bounds > 0, most, 0.0)
    found = None
    for name in ("precision", "good_precision"):
        found = found or _broken_form("precision", released[name], most)
    return found


def _broken_value(values: np.ndarray, curve: DerivativeBounds) -> BrokenBound | None:
    if not curve.nonnegative_loss:
        return None
    largest = float(np.max(values))
    least = 1e-9 * float(np.max(np.abs(np.where(values > 0.1 * FAILED, values, 0.0)))) + 1e-9
    return BrokenBound("log-likelihood", largest, 0.0) if largest > least else None


def _broken_dispersion(released: Arrays) -> BrokenBound | None:
    """Return a `BrokenBound` if `variance`, `third` or `scale` of the released `DispersionSums` is
    negative; otherwise return None.
    """
    if DISPERSION not in released:
        return None
    least = float(np.min(released[DISPERSION][1:]))
    return BrokenBound("variance of outcomes", least, 0.0, "at least") if least < 0 else None


def _over(what: str, values: np.ndarray, limits: np.ndarray) -> BrokenBound | None:
    over = np.flatnonzero(values > limits)
    if not len(over):
        return None
    worst = int(over[np.argmax(values[over] - limits[over])])
    return BrokenBound(f"{what} {worst + 1}", float(values[worst]), float(limits[worst]))


def _broken_form(what: str, form: np.ndarray, most: np.ndarray) -> BrokenBound | None:
    diagonal = np.diagonal(form)
    found = _over(f"{what} in direction", diagonal, most)
    if found is not None:
        return found
    unit = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    scaled = form / np.outer(unit, unit)
    smallest = float(np.min(np.linalg.eigvalsh(0.5 * (scaled + scaled.T))))
    least = -DEFINITE * len(unit)
    if smallest >= least:
        return None
    return BrokenBound(f"smallest scaled eigenvalue of the {what}", smallest, least, "at least")
