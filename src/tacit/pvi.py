"""The algebra of partitioned variational inference.

    q(θ) ∝ p(θ) ∏ₘ tₘ(θ)

Prior p, factors tₘ and posterior q are in one exponential family, where the product or quotient of
densities is the sum or difference of natural parameters λ. docs/glossary.md defines the terms.

* cavity of party m: q / tₘ
* tilted distribution: cavity × p(xₘ | θ); the party answers with qₘ, the member of the family that
  is nearest to the tilted distribution
* update: Δₘ = ρ (λ_{qₘ} − λ_q), then tₘ ← tₘ · Δₘ and q ← q · ∏ Δₘ, with damping ρ ∈ (0, 1]
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tacit.arrays import Natural


def multiply(first: Natural, second: Natural) -> Natural:
    """Return λ of the product of two densities."""
    return {name: first[name] + second[name] for name in first}


def divide(first: Natural, second: Natural) -> Natural:
    """Return λ of the quotient of two densities."""
    return {name: first[name] - second[name] for name in first}


def power(natural: Natural, exponent: Any) -> Natural:
    """Return λ of a power of a density."""
    return {name: exponent * value for name, value in natural.items()}


def product(start: Natural, factors: Iterable[Natural]) -> Natural:
    """Return λ of `start` times every factor; they are added in the given order."""
    for factor in factors:
        start = multiply(start, factor)
    return start


def cavity(q: Natural, factor: Natural) -> Natural:
    """Return λ of the cavity distribution q / tₘ, the posterior without this party's factor."""
    return divide(q, factor)


def damped_update(answer: Natural, q: Natural, damping: float) -> Natural:
    """Return the update Δₘ = ρ (λ_{qₘ} − λ_q) (MEng eq. 2.22; TMLR eq. 3.7 with the damping of
    appendix B).
    """
    return power(divide(answer, q), damping)
