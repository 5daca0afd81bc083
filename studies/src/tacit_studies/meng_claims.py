"""Claimed and actual privacy: ε by the accountants, and lower bounds from simulated neighbours.

The two neighbours differ in one party: its data are extreme, so that its answer is C in every
round, or it contributes nothing. The other parties hold x = 0. The attacker sees every round's
release.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import beta, norm

from tacit.privacy.accounting import Accountant, epsilon
from tacit.privacy.events import GaussianEvent
from tacit_studies.meng_forms import Form
from tacit_studies.meng_kernel import (
    Array,
    Noise,
    Problem,
    Setting,
    State,
    Step,
    draw_rounds,
    natural_prior,
    start,
)

DELTA = 1e-5


def epsilon_of(
    form: Form,
    setting: Setting,
    *,
    parties: int,
    rounds: int,
    accountant: Accountant = "pld",
    delta: float = DELTA,
) -> float | None:
    """ε of a run at `delta`, for adding or removing one `form.unit`; None if no ε is valid."""
    if form.events is None:
        return None
    events = form.events(setting, parties, rounds)
    return epsilon(events, delta, "add-or-remove-one", accountant=accountant)


def claimed_epsilon(
    noise: float, rounds: int, accountant: Accountant = "pld", delta: float = DELTA
) -> float:
    """The report's accounting: sensitivity C against noise σC in every round, whatever the form."""
    event = GaussianEvent(clip=1.0, noise_sd=noise, count=rounds)
    return epsilon([event], delta, "add-or-remove-one", accountant=accountant)


def rounds_within(budget: float, noise: float, accountant: Accountant = "pld") -> int:
    """The most rounds with claimed ε ≤ budget."""
    low, high = 0, 1
    while claimed_epsilon(noise, high, accountant) <= budget:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        fits = claimed_epsilon(noise, middle, accountant) <= budget
        low, high = (middle, high) if fits else (low, middle)
    return low


def told_apart(parties: int, rate: float, noise: float, rounds: int) -> float:
    """μ of the best test between the neighbours under form (a), in closed form; the claim is √T/σ.

    The others' answers are −t_j, unclipped, so R_i = c_i + X_i with c_i = C or 0 and X a Gaussian
    process: X_i = N_i − α Σ_{k<i} (1 − α)^{i−1−k} N'_k, N' the others' noise. μ² = cᵀ cov(X)⁻¹ c. A
    μ that is attained is a lower bound on the μ of any valid accounting.

    >>> round(told_apart(20, 0.1, 5.0, 1), 12), round(told_apart(20, 0.1, 5.0, 100), 2)
    (0.2, 7.24)
    """
    lag = np.arange(rounds)[:, None] - np.arange(rounds)
    echo = np.where(lag > 0, -rate * (1 - rate) ** np.maximum(lag - 1.0, 0.0), 0.0)
    whole = np.eye(rounds) + echo
    share = noise**2 / parties
    covariance = (parties - 1) * share * whole @ whole.T + share * np.eye(rounds)
    ones = np.ones(rounds)
    return math.sqrt(ones @ np.linalg.solve(covariance, ones))


class Seen(NamedTuple):
    """q after every round of many runs, (runs, rounds, 2), with and without the party."""

    present: np.ndarray
    absent: np.ndarray


@partial(jax.jit, static_argnames=("step",))
def _views(step: Step, noise: Noise, setting: Setting, present: Array) -> Array:
    """Return q after every round, (runs, rounds, 2).

    The first party's statistic is its factor plus (10⁹, 0) if `present`, so that its clipped answer
    has norm C in every round. Otherwise it is the factor itself, so that the answer is 0.
    """
    parties = noise.z.shape[-2]
    zero, prior = jnp.zeros((parties, 1)), natural_prior()
    blank = Problem(jnp.zeros((parties, 2)), jnp.ones(()), prior, zero, zero)
    answer = jnp.where(present, jnp.array([1e9, 0.0]), 0.0)

    def one(drawn: Noise) -> Array:
        def advance(state: State, item: Noise) -> tuple[State, Array]:
            problem = blank._replace(statistic=blank.statistic.at[0].set(state.t[0] + answer))
            following = step(state, problem, setting, item)
            return following, following.q

        return jax.lax.scan(advance, start(blank), drawn)[1]

    return jax.vmap(one)(noise)


def views(
    step: Step, setting: Setting, *, parties: int, rounds: int, runs: int, seed: int = 0
) -> Seen:
    """Simulate `runs` runs with the extreme party, and as many without it."""
    made = []
    for key, here in zip(jax.random.split(jax.random.key(seed), 2), (True, False), strict=True):
        noise = draw_rounds(jax.random.split(key, runs), parties=parties, rounds=rounds)
        made.append(np.asarray(_views(step, noise, setting, jnp.asarray(here))))
    return Seen(*made)


def epsilon_at_least(
    present: np.ndarray, absent: np.ndarray, *, delta: float = DELTA, confidence: float = 0.999
) -> float:
    """Return a lower bound on ε that holds with the given confidence.

    `present` and `absent` are scores of runs on the two neighbours. A test decides between them by
    a threshold on the score. Threshold and direction are chosen on the first half of the runs. On
    the second half, Clopper-Pearson bounds limit the probability that the score is beyond the
    threshold: from below (`low`) for one neighbour and from above (`high`) for the other, each at
    half of the allowed error. The result is ln((low − δ)/high), or 0 if that is negative.
    """
    half = len(present) // 2
    tail = (1 - confidence) / 2
    best, chosen = -math.inf, None
    cuts = np.quantile(np.concatenate([present[:half], absent[:half]]), _QUANTILES)
    for cut in cuts:
        for one, other, sign in ((present, absent, 1), (absent, present, -1)):
            for above in (sign, -sign):
                hits = [int(np.sum(above * (s[:half] - cut) >= 0)) for s in (one, other)]
                value = _bound(hits[0], hits[1], half, delta, tail)
                if value > best:
                    best, chosen = value, (one, other, above, cut)
    if chosen is None:
        return 0.0
    one, other, above, cut = chosen
    hits = [int(np.sum(above * (s[half:] - cut) >= 0)) for s in (one, other)]
    return max(0.0, _bound(hits[0], hits[1], len(one) - half, delta, tail))


_QUANTILES = np.concatenate([
    np.geomspace(1e-4, 0.5, 25), 1 - np.geomspace(1e-4, 0.5, 25)
])  # fmt: skip


def _bound(first: int, second: int, runs: int, delta: float, tail: float) -> float:
    low = beta.ppf(tail, first, runs - first + 1) if first else 0.0
    high = beta.ppf(1 - tail, second + 1, runs - second) if second < runs else 1.0
    return math.log((low - delta) / high) if low > delta else -math.inf


def clipping_chance(
    parties: int, noise: float, *, records: int = 10, noise_sd: float = 2.0, rate: float = 0.1,
    clip: float = 5.0,
) -> tuple[float, float]:  # fmt: skip
    """Probability of precision clipping in the first round and at convergence (MEng 4.31, 4.32).

    >>> [round(p, 4) for p in clipping_chance(20, 5.0)]
    [0.1855, 0.0]
    """
    root = math.sqrt(parties)
    later = -records * root / (noise_sd**2 * rate * noise * clip)
    return float(norm.cdf(-root / noise)), float(norm.cdf(later))
