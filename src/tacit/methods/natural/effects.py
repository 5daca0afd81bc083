"""Coordinates ψ in which Markov chains of `NaturalVI` move: θ, or θ with standardised effects.

If a scale is weakly determined, its effects are close to their location where the scale is small,
and a sampler cannot use one step size everywhere. Standardised effects do not have this problem,
but they depend on the scale if the records determine an effect well. `chosen_effects` therefore
chooses for each effect.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tacit.methods.natural.curvature import lower_root

if TYPE_CHECKING:
    from tacit.models.capabilities import HasEffects

COMPARED = 512
"""Number of draws from which effects are chosen."""
SMALL = 0.05
"""Share of the draws of a scale that are below its small value."""
FARTHEST = 3.0
"""Draws beyond this many sds are moved to this distance before their covariance is computed."""


class ChainCoordinates(Protocol):
    """Maps between θ and ψ, one row per chain."""

    def to_theta(self, psi: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return θ and log|dθ/dψ|."""
        ...

    def slope(self, psi: np.ndarray, slope: np.ndarray) -> np.ndarray:
        """Return gradients in ψ of log p(θ(ψ)) + log|dθ/dψ|, given gradients of log p in θ."""
        ...


class Plain:
    """ψ = θ."""

    def to_theta(self, psi: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return psi, np.zeros(len(psi))

    def slope(self, psi: np.ndarray, slope: np.ndarray) -> np.ndarray:
        del psi
        return slope


class Standardised:
    """ψ with the chosen effects of a model in standardised form."""

    def __init__(self, effects: HasEffects, chosen: np.ndarray) -> None:
        self.effects, self.chosen = effects, chosen

    def to_theta(self, psi: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        theta, log_det = self.effects.unstandardised(psi, self.chosen)
        return np.asarray(theta, np.float64), np.asarray(log_det, np.float64)

    def slope(self, psi: np.ndarray, slope: np.ndarray) -> np.ndarray:
        return np.asarray(self.effects.standardised_slopes(psi, slope, self.chosen), np.float64)


def coordinates(effects: HasEffects | None, chosen: np.ndarray) -> ChainCoordinates:
    """Return the map between θ and ψ; `chosen` is 1 for standardised effects."""
    if effects is None or not np.any(chosen):
        return Plain()
    return Standardised(effects, chosen > 0)


def start_of(
    effects: HasEffects | None, mean: np.ndarray, root: np.ndarray, seed: list[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the chosen effects (1, otherwise 0), and a mean and a root of the covariance of ψ.

    `mean` and `root` are those of θ.
    """
    size = len(mean)
    plain = np.zeros(size), mean, root
    if effects is None:
        return plain
    draws = np.random.default_rng(seed).standard_normal((max(COMPARED, 8 * size), size))
    theta = mean + draws @ root.T
    scales = np.asarray(effects.standardised(theta, np.zeros(size, bool))[1], np.float64)
    chosen = chosen_effects(theta, scales)
    if not np.any(chosen):
        return plain
    psi = np.asarray(effects.standardised(theta, chosen)[0], np.float64)
    psi = psi[np.all(np.isfinite(psi), axis=1)]
    if len(psi) <= 2 * size:
        return plain
    low, centre, high = np.quantile(psi, [0.1587, 0.5, 0.8413], axis=0)
    reach = FARTHEST * 0.5 * (high - low)
    psi = np.clip(psi, centre - reach, centre + reach)
    inner = (psi - np.mean(psi, axis=0)).T / math.sqrt(len(psi))
    return chosen.astype(np.float64), np.mean(psi, axis=0), lower_root(inner)


def chosen_effects(theta: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Return True for effects that should be standardised.

    `scales` contains the scales of the effects for each draw of θ, and NaN for coordinates that are
    not effects. The posterior precision of an effect is about 1/scale² plus the precision 1/s² of
    the records. Near scales below s the effect follows its prior, so an effect is standardised if s
    is larger than a small value of its scale (the 5 % quantile of the draws).

    >>> rng = np.random.default_rng(0)
    >>> theta = rng.normal(size=(500, 3)) * [1.0, 0.01, 1.0]
    >>> scales = np.exp(rng.normal(size=(500, 1))) * [1.0, 1.0, np.nan]
    >>> chosen_effects(theta, scales).tolist()  # known as badly as a priori; well; not an effect
    [True, False, False]
    """
    finite = np.all(np.isfinite(scales) & (scales > 0), axis=0)
    logs = np.log(np.where(finite, scales, 1.0))
    low, typical = np.quantile(logs, [SMALL, 0.5], axis=0)
    varies = finite & (np.std(logs, axis=0) > 1e-6)
    precision = 1.0 / np.maximum(np.var(theta, axis=0), 1e-300) - np.exp(-2.0 * typical)
    return varies & (precision * np.exp(2.0 * low) < 1.0)
