"""Rényi differential privacy from dp_accounting, as a cross-check of `pld`.

Formal guarantee: the Rényi divergence of every order is an upper bound, divergences add over
adaptive steps, and the conversion to (ε, δ) is Canonne, Kamath and Steinke 2020, Proposition 12.
dp_accounting would read a divergence that rounding made negative as ε = 0; a floor per step
prevents this.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from tacit.privacy.accounting.composition import Steps
from tacit.privacy.accounting.steps import Step

# Largest rounding error of ln E[(P/Q)^α] in one step.
_ROUNDING = 1e-14


def refusal(step: Step) -> str | None:
    """Refuse Poisson sampling under replace-one: dp_accounting has no Rényi bound for it."""
    if step.scheme == "poisson" and not step.one_way:
        return "rdp has no bound for poisson sampling under replace-one: use 'pld'"
    return None


def epsilon(steps: Steps, delta: float) -> float:
    """Compute ε at δ: the smallest over the Rényi orders."""
    from dp_accounting.rdp import rdp_privacy_accountant as library

    return float(library.compute_epsilon(_orders(), list(_compose(steps)), delta)[0])


def delta(steps: Steps, epsilon: float) -> float:
    """Compute δ at ε: the smallest over the Rényi orders."""
    from dp_accounting.rdp import rdp_privacy_accountant as library

    return float(library.compute_delta(_orders(), list(_compose(steps)), epsilon)[0])


def _orders() -> list[float]:
    from dp_accounting.rdp import rdp_privacy_accountant as library

    return library.DEFAULT_RDP_ORDERS


def _compose(steps: Steps) -> np.ndarray:
    return np.sum([count * _divergences(step) for step, count in steps], axis=0)


@functools.lru_cache(maxsize=256)
def _divergences(step: Step) -> np.ndarray:
    """Compute one step's Rényi divergence at every order.

    The library's noise multiplier is the noise over the distance of the sums: s/(2C) for
    replace-one, because it does not double the sensitivity. Without replacement: Wang, Balle and
    Kasiviswanathan 2019, Theorem 27. Poisson: Mironov, Talwar and Zhang 2019.
    """
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    orders = np.asarray(_orders(), dtype=np.float64)
    multiplier = 1 / step.far
    if not (multiplier > 0 and math.isfinite(multiplier**2) and multiplier**2 > 0):
        return np.full_like(orders, math.inf)
    event = dp_accounting.GaussianDpEvent(multiplier)
    adjacency = dp_accounting.NeighboringRelation.REPLACE_ONE
    if step.scheme == "all":
        return orders * step.far**2 / 2
    if step.scheme == "poisson":
        adjacency = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
        event = dp_accounting.PoissonSampledDpEvent(step.rate, event)
    else:
        total = 2**53  # the library takes two integers and uses their ratio
        event = dp_accounting.SampledWithoutReplacementDpEvent(
            total, math.ceil(step.rate * total), event
        )
    rdp = RdpAccountant(_orders(), adjacency).compose(event).rdp
    floored = np.maximum(rdp, 0.0) + _ROUNDING / (orders - 1)
    return np.where(np.isnan(floored), math.inf, floored)
