"""Simulated outcomes of synthetic records.

θ is drawn from the prior, under which predictors may vary more than in most real problems. In that
case all predictors are divided by a constant. For a model that is linear in θ, this is equivalent
to another θ.
"""

from __future__ import annotations

import numpy as np

LOGIT_SD = 2.0
"""Largest sd of logits; with a larger one, the problem would be easier than most real ones."""
LOG_RATE_SD = 1.0
"""Largest sd of log rates."""
TINY = 1e-12


def at_most(values: np.ndarray, sd: float) -> np.ndarray:
    """Multiply `values` by a constant ≤ 1 such that their standard deviation is at most `sd`."""
    return values * min(1.0, sd / max(float(np.std(values)), TINY))


def bernoulli_outcomes(logit: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw y ∈ {0, 1} with log-odds `logit`. If the log-odds vary too much, they are first scaled
    down (`at_most`).
    """
    logit = at_most(logit, LOGIT_SD)
    return (rng.random(len(logit)) * (1 + np.exp(-logit)) < 1).astype(np.float64)


def logit_of(probability: np.ndarray) -> np.ndarray:
    """Return log(p/(1 − p)) for each probability p, with finite values even for p = 0 and p = 1."""
    return np.log(np.maximum(probability, TINY)) - np.log(np.maximum(1 - probability, TINY))


def gaussian_outcomes(
    mean: np.ndarray,
    noise_sd: float,
    rng: np.random.Generator,
    bounds: tuple[float, float] | None,
) -> np.ndarray:
    """Draw y ~ N(mean, noise_sd²). If there are bounds, the means are first adjusted to them.

    The means are scaled so that their standard deviation is at most a quarter of the distance
    between the bounds. They are then shifted so that their average is in the middle half of the
    bounds.
    """
    if bounds is not None:
        quarter = (bounds[1] - bounds[0]) / 4
        mean = at_most(mean, quarter)
        middle = float(np.mean(mean))
        mean = mean + np.clip(middle, bounds[0] + quarter, bounds[1] - quarter) - middle
    return mean + noise_sd * rng.standard_normal(len(mean))
