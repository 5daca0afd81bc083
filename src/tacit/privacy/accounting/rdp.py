"""Rényi differential privacy with dp_accounting, to check `pld`.

Formal guarantee: the Rényi divergences are upper bounds, and the divergences of adaptive releases
add up. Proposition 12 of Canonne, Kamath and Steinke (2020) converts the sum to (ε, δ). Rounding
can make a divergence negative, and dp_accounting would then return ε = 0. To prevent this, a small
positive number is added per release.
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
    """Return the reason why this accountant cannot bound the privacy loss of `step`. Return None if
    the accountant can bound it.
    """
    if step.scheme == "poisson" and not step.one_way:
        return "rdp has no bound for poisson sampling under replace-one: use 'pld'"
    return None


def epsilon(steps: Steps, delta: float) -> float:
    """Return ε at δ, the smallest value over all Rényi orders."""
    from dp_accounting.rdp import rdp_privacy_accountant as library

    return float(library.compute_epsilon(_orders(), list(_compose(steps)), delta)[0])


def delta(steps: Steps, epsilon: float) -> float:
    """Return δ at ε, the smallest value over all Rényi orders."""
    from dp_accounting.rdp import rdp_privacy_accountant as library

    return float(library.compute_delta(_orders(), list(_compose(steps)), epsilon)[0])


def _orders() -> list[float]:
    from dp_accounting.rdp import rdp_privacy_accountant as library

    return library.DEFAULT_RDP_ORDERS


def _compose(steps: Steps) -> np.ndarray:
    return np.sum([count * _divergences(step) for step, count in steps], axis=0)


@functools.lru_cache(maxsize=256)
def _divergences(step: Step) -> np.ndarray:
    """Return the Rényi divergence of one release at every order.

    The bound is that of Mironov, Talwar and Zhang (2019) for Poisson sampling, and Theorem 27 of
    Wang, Balle and Kasiviswanathan (2019) for sampling without replacement.
    """
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    orders = np.asarray(_orders(), dtype=np.float64)
    # Under both adjacencies, dp_accounting's noise multiplier is the noise sd divided by the
    # distance between the sums of two neighbours.
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
