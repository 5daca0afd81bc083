"""Privacy filters: bounds on ε that hold for releases chosen after seeing earlier ones.

The bound of an accountant holds only if noise, clip and sampling of all releases are fixed in
advance. A ledger's budget covers several runs, and the settings of a run may be chosen after the
results of earlier runs were seen. A *privacy filter* is a rule that decides from all charges so far
whether a further run is admitted. It guarantees (ε, δ) for all admitted runs together, however
their settings were chosen. Three filters are used (proofs: docs/methods/accounting.md, "Filters"):

* Pure filter, if all releases have Laplace noise: the sum of their ε must be at most the ε of the
  budget. It needs no δ.
* Gaussian filter, if all releases have Gaussian noise and no sampling: the sum of their squared
  distances (sensitivity divided by the noise sd) must be at most that of one Gaussian release that
  meets the budget.
* Rényi filter, for any releases: the sum of their Rényi divergences must be at most the divergence
  that meets the budget. All divergences have the same order α, which depends on the budget only. If
  a release with Laplace noise is ε-private, its divergence of order α is at most min(ε, α·ε²/2)
  (Bun and Steinke 2016).

The Gaussian filter uses 80 % of δ and the Rényi filter 20 %, so that a sequence of runs may begin
under one filter and end under another. If δ = 0, only the pure filter admits releases.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from tacit.privacy.accounting.profiles import hockey_stick
from tacit.privacy.accounting.steps import Step, not_negative, to_step
from tacit.privacy.events import Adjacency, GaussianEvent, LaplaceEvent

GAUSSIAN_SHARE = 0.8
"""Share of δ for the Gaussian filter; the Rényi filter has the rest."""
_POINTS = 20_001
_MARGIN = 1e-6
"""Relative margin that is added for quadrature errors, which are far smaller."""

Epsilon = Callable[[Sequence[GaussianEvent], float, Adjacency], float]


def filtered_epsilon(
    events: Sequence[GaussianEvent],
    delta: float,
    adjacency: Adjacency,
    *,
    budget: float,
    epsilon: Epsilon,
) -> float:
    """Compute an ε of several adaptively chosen runs, to be compared with the ε of their budget.

    Formal guarantee: if a run is admitted only while the result is at most `budget`, all releases
    together are (budget, δ)-private, however the settings of each run depend on earlier releases.
    The result must not be compared with another budget, because the order of the Rényi divergence
    depends on `budget`.

    Parameters
    ----------
    events
        Events of all runs so far and of the next run.
    delta
        δ of the budget.
    adjacency
        Adjacency of the budget.
    budget
        ε of the budget.
    epsilon
        Accountant for releases without sampling. For several Gaussian releases it must return the ε
        of one Gaussian release with the sum of their squared distances.
    """
    pure = [isinstance(event, LaplaceEvent) for event in events]
    if all(pure):
        return epsilon(events, 0.0, adjacency)
    if delta == 0:
        return math.inf
    if not any(pure) and not any(is_sampled(event) for event in events):
        return epsilon(events, GAUSSIAN_SHARE * delta, adjacency)
    order = renyi_order(budget, (1 - GAUSSIAN_SHARE) * delta)
    return _converted(renyi(events, adjacency, order), order, (1 - GAUSSIAN_SHARE) * delta)


def is_sampled(event: GaussianEvent) -> bool:
    """True if the event sums over a random batch of the units instead of over all units."""
    return event.sampling is not None and event.sampling.rate < 1


def renyi_order(epsilon: float, delta: float) -> float:
    """Return the order of the Rényi divergence for a budget (ε, δ).

    It is the order α > 1 that maximises (ε − ln(1/δ)/(α − 1))/α. The numerator is the largest Rényi
    divergence of order α that implies (ε, δ). The order depends on the budget alone, so it is fixed
    before the first release.
    """
    tail = math.log(1.0 / delta)
    return 1.0 + (tail + math.sqrt(tail**2 + epsilon * tail)) / epsilon


def renyi(events: Iterable[GaussianEvent], adjacency: Adjacency, order: float) -> float:
    """Return the sum of the events' Rényi divergences of this order.

    It is an upper bound for every pair of neighbouring data sets.

    >>> round(renyi([GaussianEvent(clip=1.0, noise_sd=2.0)], "add-or-remove-one", 3.0), 6)
    0.375
    """
    return math.fsum(
        event.count * _divergence(to_step(event, adjacency), order) for event in events
    )


def _converted(divergence: float, order: float, delta: float) -> float:
    """Convert a Rényi divergence to ε at δ (Canonne, Kamath and Steinke 2020, Proposition 12)."""
    extra = math.log(1.0 / delta) - math.log(order) + (order - 1.0) * math.log1p(-1.0 / order)
    return not_negative(divergence + extra / (order - 1.0))


@functools.lru_cache(maxsize=4096)
def _divergence(step: Step, order: float) -> float:
    """Return an upper bound on the Rényi divergence of one release, for every pair of neighbouring
    data sets.
    """
    if step.scheme == "pure":
        return min(step.far, order * (step.far * step.far) / 2.0)
    if step.scheme == "all":
        return order * (step.far * step.far) / 2.0  # inf, where ** would raise
    forth, back = (_log_moment(step, order, reverse=reverse) for reverse in (False, True))
    if step.one_way:
        return max(forth, back) * (1.0 + _MARGIN) / (order - 1.0)
    if not forth < 700.0:
        return math.inf
    if math.isclose(step.far, 2.0 * step.near, rel_tol=1e-12):  # the pair is its own mirror image
        return forth * (1.0 + _MARGIN) / (order - 1.0)
    # The dominating profile takes the larger of the two directions for ε > 0 and for ε < 0. `forth`
    # has the larger one for ε > 0; replace its part for ε < 0 by the larger one.
    larger, own = _lower_part(step, order)
    moved = not_negative(larger - own)
    return math.log1p(math.expm1(forth) + moved) * (1 + _MARGIN) / (order - 1.0)


def _log_moment(step: Step, order: float, *, reverse: bool) -> float:
    # ln ∫ P^order Q^(1 − order), where (P, Q) is the step's pair (profiles.py), exchanged if
    # `reverse`. The result is infinite if the square of a distance overflows.
    reach = 12.0 + order * step.far
    x = np.linspace(-reach, step.far + step.near + reach, _POINTS)
    out, there = math.log1p(-step.rate), math.log(step.rate)
    with np.errstate(over="ignore", invalid="ignore"):
        away = out - (x - step.near) ** 2 / 2
        p = np.logaddexp(away, there - x**2 / 2)
        q = np.logaddexp(away, there - (x - step.far) ** 2 / 2)
        if reverse:
            p, q = q, p
        exponent = order * p + (1.0 - order) * q
    largest = float(exponent.max())
    if not math.isfinite(largest):
        return math.inf
    log_width = math.log(x[1] - x[0]) - 0.5 * math.log(2 * math.pi)
    total = largest + math.log(float(np.exp(exponent - largest).sum())) + log_width
    return not_negative(total)


def _lower_part(step: Step, order: float) -> tuple[float, float]:
    # Bounds on I = ∫₀^∞ a(a − 1) e^(−aε) H(ε) dε, where a is the order and H a privacy profile:
    # from above for the profile of P against Q (the step's pair, profiles.py), and from below for
    # that of Q against P.
    epsilon = np.linspace(0.0, 40.0 / order, _POINTS)
    weight = -(order - 1.0) * np.diff(np.exp(-order * epsilon))
    forth = hockey_stick(epsilon, step.rate, step.far, step.near)
    back = hockey_stick(epsilon, step.rate, step.far, abs(step.far - step.near))
    rest = (order - 1.0) * math.exp(-40.0)
    return float(weight @ forth[:-1]) + rest, float(weight @ back[1:])
