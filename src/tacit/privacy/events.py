"""Events: records of private releases, read by accountants and stored in ledgers.

An event holds the norm bound C of one unit's contribution, the standard deviation s of the noise,
and how the batch was sampled. It does not hold ε, which follows from an adjacency, a δ and an
accountant. Sensitivity is derived only here.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from tacit.errors import ConfigError

Adjacency = Literal["add-or-remove-one", "replace-one"]


class Poisson(msgspec.Struct, frozen=True, kw_only=True, tag="poisson", forbid_unknown_fields=True):
    """Every unit is in the batch independently with probability `rate`."""

    rate: float

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ConfigError(f"sampling rate = {self.rate}; it must be in (0, 1]")


class WithoutReplacement(
    msgspec.Struct, frozen=True, kw_only=True, tag="without-replacement", forbid_unknown_fields=True
):
    """The batch is a uniformly random subset of `batch` out of `total` units."""

    batch: int
    total: int

    def __post_init__(self) -> None:
        if not 1 <= self.batch <= self.total:
            raise ConfigError(
                f"batch = {self.batch}, total = {self.total}; batch must be between 1 and total"
            )

    @property
    def rate(self) -> float:
        """Fraction of the units in a batch."""
        return self.batch / self.total


Sampling = Poisson | WithoutReplacement


class GaussianEvent(
    msgspec.Struct, frozen=True, kw_only=True, tag="gaussian", forbid_unknown_fields=True
):
    """`count` releases of Σ (contributions of norm ≤ clip) + N(0, noise_sd² I).

    `nonnegative`: no two contributions can have a negative inner product (every coordinate is ≥ 0,
    or each is a positive semi-definite matrix), which bounds the distance of two of them by √2·C
    instead of 2·C.
    """

    clip: float
    noise_sd: float
    count: int = 1
    sampling: Sampling | None = None
    nonnegative: bool = False

    def __post_init__(self) -> None:
        if not (self.clip > 0 and math.isfinite(self.clip)):
            raise ConfigError(f"clip = {self.clip}; it must be a finite number > 0")
        if not (self.noise_sd > 0 and math.isfinite(self.noise_sd)):
            raise ConfigError(
                f"noise_sd = {self.noise_sd}; a release without noise has no guarantee: it must be "
                "a finite number > 0"
            )
        if not (self.count >= 1 and self.count == int(self.count)):
            raise ConfigError(
                f"count = {self.count}; it must be a whole number of releases, at least 1"
            )

    @property
    def noise_multiplier(self) -> float:
        """z = s / C, for either adjacency."""
        return self.noise_sd / self.clip

    def sensitivity(self, adjacency: Adjacency) -> float:
        """Largest move of the sum: C for add-or-remove-one, 2C (√2·C if nonnegative) for
        replace-one.

        >>> GaussianEvent(clip=3.0, noise_sd=1.0).sensitivity("replace-one")
        6.0
        """
        if adjacency == "add-or-remove-one":
            return self.clip
        return self.clip * (math.sqrt(2.0) if self.nonnegative else 2.0)
