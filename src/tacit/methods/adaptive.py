"""Adaptive clip: follow a quantile of the norms of contributions, estimated privately.

**Clip.** Let cᵢ be the contribution of unit i, which is a record, a person, a shard or a whole
party. A party divides cᵢ by a public scale S and clips cᵢ/S to norm C. Requests contain log S.

**Count.** Every contribution has one additional coordinate, which counts the units within the clip.
The coordinate is ω/2 if the norm of cᵢ/S is at most C, and −ω/2 otherwise. Its weight is ω = w·C
with a public constant w. A contribution with its count has norm at most √(C² + ω²/4), and this
bound is the clip that is charged. If contributions have no negative coordinates, the count is ω/2
or 0. The bound is then the same, and two contributions still differ by at most √2 times the bound.
With pure ε (δ = 0), norms are L1 norms, and the bound is C + ω/2.

**Adaptation.** Let f be the noisy share of units within the clip, γ the target share, η a constant
step length, and v the public variance of the noise in f. After each round the server sets

    log S ← log S + η(γ − f)/(1 + v),

so that S·C converges to the γ-quantile of the norms (Andrew et al. 2021, geometric updates). For
thousands of records v is close to 0. For ten parties v may be 10. Without the division by 1 + v,
log S would then be a random walk with steps of several η. The charged clip never changes, because
it bounds cᵢ/S, and multiplying a released sum by the public S is post-processing.

`count_clipped` of `PrivateStatistics` adds the same count without a scale (S = 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from tacit.arrays import Array, Arrays, namespace
from tacit.errors import ConfigError
from tacit.privacy.bounded import Norm, Tally
from tacit.privacy.events import GaussianEvent, LaplaceEvent
from tacit.server.combine import Combine, RoundSum, Run, Shared

SCALE = "log_scale"
"""Name of the public array log S, where S scales contributions before they are clipped."""
WITHIN = "within_clip"
"""Name of the released count: each unit within the clip adds ½, any other −½ (0 if not signed)."""
WEIGHTS: dict[Norm, float] = {"l2": 0.5, "l1": 0.1}
"""Weight w of the count relative to the clip, for each norm. The count increases the noise of the
sum by 3 % (L2 norm) or 5 % (L1 norm).
"""
RATE = 0.5
MAX_LOG_SCALE = 30.0
SHARE, SHARE_SD = "share_within", "share_within_sd"
"""Names, in the server's memory, of the share of units within the clip in the last round and of the
sd of its noise.
"""


def norm_of(event: GaussianEvent) -> Norm:
    """Return the norm in which the contributions to a release are clipped."""
    return "l1" if isinstance(event, LaplaceEvent) else "l2"


def tally_clip(clip: float, norm: Norm = "l2") -> float:
    """Return the norm bound of a contribution with its count, from the norm bound `clip` of the
    contribution alone.

    The count is an additional coordinate, which counts the units within the clip.

    >>> round(tally_clip(1.0), 4), tally_clip(1.0, "l1")
    (1.0308, 1.05)
    """
    half = 0.5 * WEIGHTS[norm]
    return clip * (1.0 + half if norm == "l1" else math.sqrt(1.0 + half**2))


def tally_weight(bound: Array, norm: Norm = "l2") -> Array:
    """Return the weight of the count that each contribution has as an additional coordinate.

    `bound` is the norm bound of a contribution with its count.
    """
    return WEIGHTS[norm] * inner_clip(bound, norm)


def inner_clip(bound: Array, norm: Norm = "l2") -> Array:
    """Return the norm bound of a contribution alone, from the norm bound `bound` of the
    contribution with its count.

    The count is an additional coordinate, which counts the units within the clip. The function is
    the inverse of `tally_clip`, except that the result is smaller by a factor of 1 − 10⁻¹², which
    allows for rounding.
    """
    return bound / tally_clip(1.0, norm) * (1.0 - 1e-12)


def tally_of(bound: Array, *, signed: bool = True, norm: Norm = "l2") -> Tally:
    """Return the `Tally` that adds a count of the units within the clip to a sum of contributions.

    `bound` is the norm bound of a contribution with its count. The count of a unit is ±½ if
    `signed` is true, otherwise ½ or 0, times a weight.
    """
    return Tally(tally_weight(bound, norm), bound, signed)


def clip_scale(public: Arrays) -> Array:
    """Return the scale S, by which contributions are divided before clipping, from the array log S
    in `public`.

    S is clipped to a range in which S² does not overflow in float32.
    """
    xp = namespace(public[SCALE])
    return xp.exp(xp.clip(public[SCALE], -MAX_LOG_SCALE, MAX_LOG_SCALE))


def check_adaptive(target: float | None) -> None:
    """Raise a ConfigError unless `target` is in (0, 1)."""
    if target is not None and not 0 < target < 1:
        raise ConfigError(f"method.adaptive = {target}; it must be in (0, 1)")


class Counting(Protocol):
    """Protocol: settings that determine the weight of the count of units within the clip."""

    @property
    def clip(self) -> float: ...
    @property
    def clip_end(self) -> float: ...
    @property
    def sampling_rate(self) -> float: ...


def count_weight(
    method: Counting, rounds: int, steps: int = 1, norm: Norm = "l2"
) -> Callable[[int], float]:
    """Return a function from the number of a round to ω·(sampling rate)·√`steps`.

    ω is the weight of the count of units within the clip, and `steps` is the number of releases per
    round. The share of units within the clip is averaged over the releases of a round. The sd of
    the noise in this share is sd/(w·n), where sd belongs to the noise of one release, w is the
    result and n is the number of units.
    """

    def weight(number: int) -> float:
        clip = method.clip * method.clip_end ** ((number - 1) / max(1, rounds - 1))
        return tally_weight(tally_clip(clip, norm), norm) * method.sampling_rate * math.sqrt(steps)

    return weight


class Counted(NamedTuple):
    """Converts the released counts of a round to the share of units within the clip."""

    units: float
    """Public number of units of all parties."""
    weight: Callable[[int], float]
    """Function from the number of a round to the weight of the count (`count_weight`)."""
    signed: bool = True

    def share(self, run: Run, answers: RoundSum) -> tuple[float, float]:
        """Return the share of units within the clip in a round, and the sd of its noise."""
        asked = self.units * answers.contributors / run.parties
        total = float(answers.total[WITHIN]) / run.damping_at(answers.number)
        noise = run.noise_sd(answers.number) * math.sqrt(answers.contributors / run.asked)
        sd = noise / (self.weight(answers.number) * asked)
        return (total / asked + 0.5, sd) if self.signed else (2.0 * total / asked, 2.0 * sd)


def adapted(make: Callable[[Run], Combine], run: Run, target: float, counted: Counted) -> Combine:
    """Return a `Combine` function (the server's step after a round) that also adapts the clip.

    The function calls the `Combine` function that `make` returns. It also changes the scale S, by
    which contributions are divided before clipping, so that the share of units within the clip
    approaches `target`. `make` is called with a copy of `run` in which the sd of the noise is
    multiplied by S.
    """

    def step(shared: Shared, answers: RoundSum) -> Shared:
        share, sd = counted.share(run, answers)
        move = float(np.clip(RATE * (target - share) / (1.0 + sd**2), -RATE, RATE))
        before = shared.public[SCALE]
        moved = np.clip(before + move, -MAX_LOG_SCALE, MAX_LOG_SCALE)
        scale = float(np.exp(before))
        combine = make(run._replace(noise_sd=lambda at: scale * run.noise_sd(at)))
        following = combine(shared, answers)
        return following._replace(public=shared.public | {SCALE: np.asarray(moved)})

    return step


def noted(combine: Combine, run: Run, counted: Counted) -> Combine:
    """Return a `Combine` function (the server's step after a round) that calls `combine` and stores
    the share of units within the clip in the server's memory.
    """

    def step(shared: Shared, answers: RoundSum) -> Shared:
        share, sd = counted.share(run, answers)
        following = combine(shared, answers)
        known = {SHARE: np.asarray(share), SHARE_SD: np.asarray(sd)}
        return following._replace(memory=(following.memory or {}) | known)

    return step
