"""Privacy filters: bounds on ε that hold for releases chosen after seeing earlier ones.

An accountant's theorem fixes noise, clip and sampling of all releases in advance. A ledger's budget
spans runs whose settings are chosen after seeing earlier results, so it needs a *filter*: a rule
that admits the next run based on the charges so far, and that guarantees (ε, δ) for any such
choices. Three are proven and used here (docs/methods/accounting.md, "Filters"):

* only releases with Laplace noise, whose losses are bounded: Σ ε ≤ the budget's ε, with no δ;
* all releases Gaussian and without sampling: Σ distance² ≤ μ², exactly as if planned in advance;
* Rényi divergences of one order, which the budget fixes: Σ D_order ≤ the budget's. A release that
  is purely ε-private has D_order ≤ min(ε, order·ε²/2) (Bun and Steinke 2016).

The last two get a share of δ each, so that a sequence of runs may end under any of them. If the
budget has δ = 0, only the first filter admits releases.
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
    """Compute ε of the events of several adaptively chosen runs; a budget admits them if this is at
    most its ε.

    Formal guarantee: if runs are admitted only while the result is at most `budget`, all releases
    together are (budget, δ)-private, however each run was chosen from the earlier releases. The
    result is not a guarantee for any other budget, because the order depends on the budget.

    Parameters
    ----------
    events
        All events so far and those of the next run.
    delta, adjacency
        δ and neighbours of the budget.
    budget
        ε of the budget.
    epsilon
        Accountant of releases without sampling; for several releases it must return the ε of one
        Gaussian release with the sum of their squared distances.
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
    """True if a unit may be outside the batch."""
    return event.sampling is not None and event.sampling.rate < 1


def renyi_order(epsilon: float, delta: float) -> float:
    """Return the order at which the conversion to (ε, δ) allows the largest Rényi divergence per
    order.

    The order a maximises (ε − ln(1/δ)/(a − 1))/a. It depends on the budget alone, so it is fixed
    before the first release.
    """
    tail = math.log(1.0 / delta)
    return 1.0 + (tail + math.sqrt(tail**2 + epsilon * tail)) / epsilon


def renyi(events: Iterable[GaussianEvent], adjacency: Adjacency, order: float) -> float:
    """Add up the events' Rényi divergences of that order; the sum is an upper bound for all
    neighbours.

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
    """Compute the Rényi divergence of one step's worst-case pair, in the worse direction."""
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
    # The dominating profile is the larger of the two on both sides of 0: exchange its lower part.
    larger, own = _lower_part(step, order)
    moved = not_negative(larger - own)
    return math.log1p(math.expm1(forth) + moved) * (1 + _MARGIN) / (order - 1.0)


def _log_moment(step: Step, order: float, *, reverse: bool) -> float:
    """Compute ln ∫ P^order Q^(1 − order) for the step's pair (P, Q) on the line, or for (Q, P) if
    `reverse`.

    Infinite if a distance is so large that its square overflows.
    """
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
    """Bound ∫ order (order − 1) e^(−order ε) H(ε) dε, H the profile: from above for P‖Q, from below
    for Q‖P.
    """
    epsilon = np.linspace(0.0, 40.0 / order, _POINTS)
    weight = -(order - 1.0) * np.diff(np.exp(-order * epsilon))
    forth = hockey_stick(epsilon, step.rate, step.far, step.near)
    back = hockey_stick(epsilon, step.rate, step.far, abs(step.far - step.near))
    rest = (order - 1.0) * math.exp(-40.0)
    return float(weight @ forth[:-1]) + rest, float(weight @ back[1:])
