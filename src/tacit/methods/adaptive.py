"""Adaptive clip: follow a quantile of the contributions' norms, estimated privately.

The scaled contributions cᵢ/S are clipped to C, with a public scale S: requests publish log S. Each
release has an extra coordinate that counts units: a unit adds ω/2 if it is within the clip, and
−ω/2 if not: (Σ clip(cᵢ/S), ω Σ ±½). The charged clip is the bound on the norm of a unit's extended
contribution, √(C² + ω²/4) with ω = w·C and a public weight w.
If no coordinate of a contribution is negative, the extra coordinate is 0 or ω/2 instead of ±ω/2.
The bound is the same, and the distance between two contributions is still at most √2 times the
bound. A unit is a record, a person, a shard or a whole party: whatever makes one contribution.

From the noisy share f of units within the clip the server sets

    log S ← log S + η(γ − f)/(1 + v),

so that S·C converges to the γ-quantile (Andrew et al. 2021, geometric updates). v is the variance
of the noise in f, which is public. For thousands of records v is close to 0. For ten parties it may
be 10; without the division by 1 + v, log S would then be a random walk with steps of several η. The
clip of the event never changes: S is public, and a sum times a public number is post-processing.

The same coordinate without a scale counts clipped units (`count_clipped` of `PrivateStatistics`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from tacit.arrays import Array, Arrays, namespace
from tacit.errors import ConfigError
from tacit.privacy.bounded import Tally
from tacit.server.combine import Combine, RoundSum, Run, Shared

SCALE = "log_scale"
"""Name of the public array log S, where S scales contributions before they are clipped."""
WITHIN = "within_clip"
"""Name of the released sum over units of ½ if a unit is within the clip, else −½ (0 if not
signed).
"""
WEIGHT = 0.5
"""Weight w of the count relative to the clip; w = ½ increases the noise of the sum by 3 %."""
RATE = 0.5
MAX_LOG_SCALE = 30.0
SHARE, SHARE_SD = "share_within", "share_within_sd"
"""Names, in the server's memory, of the last share of units within the clip and the sd of its
noise.
"""


def tally_clip(clip: float) -> float:
    """Norm bound of a contribution with clip `clip` together with its count.

    >>> round(tally_clip(1.0), 4)
    1.0308
    """
    return clip * math.sqrt(1.0 + WEIGHT**2 / 4.0)


def tally_weight(bound: Array) -> Array:
    """Weight ω of the count in a contribution whose event has the clip `bound`."""
    return WEIGHT * inner_clip(bound)


def inner_clip(bound: Array) -> Array:
    """Clip C of the contribution without its count, from an event's clip: the inverse of
    `tally_clip`.
    """
    return bound / tally_clip(1.0) * (1.0 - 1e-12)


def tally_of(bound: Array, *, signed: bool = True) -> Tally:
    """Make the tally that counts the contributions within the clip, for an event with clip
    `bound`.
    """
    return Tally(tally_weight(bound), bound, signed)


def clip_scale(public: Arrays) -> Array:
    """The scale S, limited to a range in which its square does not overflow in float32."""
    xp = namespace(public[SCALE])
    return xp.exp(xp.clip(public[SCALE], -MAX_LOG_SCALE, MAX_LOG_SCALE))


def check_adaptive(target: float | None) -> None:
    """Raise a ConfigError unless `target` is in (0, 1)."""
    if target is not None and not 0 < target < 1:
        raise ConfigError(f"method.adaptive = {target}; it must be in (0, 1)")


class Counting(Protocol):
    """Settings of a method that determine the weight of its count."""

    @property
    def clip(self) -> float: ...
    @property
    def clip_end(self) -> float: ...
    @property
    def sampling_rate(self) -> float: ...


def count_weight(method: Counting, rounds: int, steps: int = 1) -> Callable[[int], float]:
    """Return a function of the round: ω times the share of units in a batch, for the mean of
    `steps` releases.
    """

    def weight(number: int) -> float:
        clip = method.clip * method.clip_end ** ((number - 1) / max(1, rounds - 1))
        return tally_weight(tally_clip(clip)) * method.sampling_rate * math.sqrt(steps)

    return weight


class Counted(NamedTuple):
    """Converts the counts of a round to the share of units within the clip."""

    units: float
    """Public number of units of all parties."""
    weight: Callable[[int], float]
    """Function of the round that returns ω times the share of units in a batch."""
    signed: bool = True

    def share(self, run: Run, answers: RoundSum) -> tuple[float, float]:
        """Return the share of units within the clip in a round, and the sd of its noise."""
        asked = self.units * answers.contributors / run.parties
        total = float(answers.total[WITHIN]) / run.damping_at(answers.number)
        noise = run.noise_sd(answers.number) * math.sqrt(answers.contributors / run.asked)
        sd = noise / (self.weight(answers.number) * asked)
        return (total / asked + 0.5, sd) if self.signed else (2.0 * total / asked, 2.0 * sd)


def adapted(make: Callable[[Run], Combine], run: Run, target: float, counted: Counted) -> Combine:
    """Wrap a server half so that it also updates the scale S; `make` gets the noise scaled by S."""

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
    """Wrap a server half so that it also remembers the last share of units within the clip."""

    def step(shared: Shared, answers: RoundSum) -> Shared:
        share, sd = counted.share(run, answers)
        following = combine(shared, answers)
        known = {SHARE: np.asarray(share), SHARE_SD: np.asarray(sd)}
        return following._replace(memory=(following.memory or {}) | known)

    return step
