"""Events: records of private releases, read by accountants and stored in ledgers.

An event contains the norm bound C of one unit's contribution, the standard deviation s of the
noise, the sampling of the batch, and the lattice of the release. It does not contain ε, which
follows from an adjacency, a δ and an accountant. Sensitivity is derived only here.
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

CLIP_MARGIN = 1e-6
"""Contributions are clipped to C·(1 − CLIP_MARGIN), which leaves room for rounding."""
HIDDEN_UNITS = 1 << 20
"""Bound on the number of contributions of one party if that number is secret."""
LEAST_UNITS = 1 << 16
"""Smallest bound on the number of contributions, used if fewer are declared: the clip's margin
covers the rounding of so many.
"""
KERNEL = 2.0
"""Parameter s₀ of the domination lemma (docs/methods/lattice.md)."""


class Lattice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Integer multiples of a public step with discrete Gaussian noise of parameter 2^`bits`.

    Formal guarantee: with γ the step, a party rounds the float64 sum of at most `units`
    contributions and adds noise to its `numbers` integers. One unit moves the integers by at most
    (S + 2E)/γ + √d, where S is the sensitivity of the exact sum and E ≤ n(n + 3)·2⁻⁵³·C a bound on
    the rounding of a float64 sum in any order.

    Parameters
    ----------
    numbers
        d: numbers per release.
    bits
        k: the noise of each party has the parameter 2^k.
    parties
        M: number of parties whose noise is summed before it becomes visible.
    units
        n: public bound on the number of contributions to one party's sum.
    """

    numbers: int
    bits: int
    parties: int = 1
    units: int = HIDDEN_UNITS

    def __post_init__(self) -> None:
        if not (self.numbers >= 0 and self.parties >= 1 and self.units >= 1):
            raise ConfigError(
                f"lattice of {self.numbers} numbers, {self.parties} parties, {self.units} units; "
                "numbers must be 0 or more, parties and units at least 1"
            )
        if not 2 <= self.bits <= 50:
            raise ConfigError(f"lattice of 2^{self.bits} steps; the exponent must be in 2 … 50")

    @property
    def slack(self) -> float:
        """κ: the log-ratio between the noise and a continuous Gaussian after post-processing.

        d·ln((1 + τ)/(1 − τ)) with τ = 2e^(−2π²s₀²)/(1 − e^(−2π²s₀²)) for the kernel, and for M
        parties 10d Σ_{j<M} e^(−2π²σ²j/(j + 1)) (Kairouz, Liu and Steinke 2021, Theorem 2).
        """
        tail = math.exp(-2.0 * (math.pi * KERNEL) ** 2)
        tau = 2.0 * tail / (1.0 - tail)
        slack = self.numbers * (math.log1p(tau) - math.log1p(-tau))
        if self.parties > 1:
            # Every term is at most the first one, j = 1.
            first = math.exp(-((math.pi * 2.0**self.bits) ** 2))
            slack += 10.0 * self.numbers * (self.parties - 1) * first
        return slack

    def rounding(self, clip: float) -> float:
        """Return 2E, a bound on the rounding errors of two float64 sums."""
        return 2.0 * self.units * (self.units + 3.0) * 2.0**-53 * clip

    def distance(self, moved: float, clip: float, noise_sd: float) -> float:
        """Return the integer sensitivity over the sd of the dominating continuous Gaussian.

        `moved` is the sensitivity of the exact sum for contributions of norm `clip`. Half of the
        clip's margin covers the rounding of the sum; the other half covers the rounding of norms.
        """
        step = self.step(noise_sd)
        moved = max(moved, moved * (1.0 - 0.5 * CLIP_MARGIN) + self.rounding(clip))
        integers = moved / step + math.sqrt(self.numbers)
        parameter = math.sqrt(self.parties) * 2.0**self.bits
        return integers / math.sqrt(parameter**2 - KERNEL**2)

    def step(self, noise_sd: float) -> float:
        """Return γ for this standard deviation of the noise in the sum over the parties."""
        return noise_sd / math.sqrt(self.parties) / 2.0**self.bits


def lattice_bits(numbers: int, noise_multiplier: float) -> int:
    """Return k in 20 … 40 such that rounding adds less than a millionth to the sensitivity.

    √d·γ/C = √d·z/2^k, where z is the noise multiplier of one party.

    >>> lattice_bits(1, 1.0), lattice_bits(100, 10.0)
    (20, 27)
    """
    needed = math.sqrt(max(1, numbers)) * max(noise_multiplier, 1e-300)
    return min(40, 20 + max(0, math.ceil(math.log2(needed))))


class GaussianEvent(
    msgspec.Struct, frozen=True, kw_only=True, tag="gaussian", forbid_unknown_fields=True
):
    """`count` releases of Σ (contributions of norm ≤ clip) + N(0, noise_sd² I).

    `nonnegative`: no two contributions can have a negative inner product (every coordinate is ≥ 0,
    or each is a positive semi-definite matrix), which bounds the distance of two of them by √2·C
    instead of 2·C. `lattice` describes a release of integers, as in every run; without it the event
    describes continuous noise on real numbers.
    """

    clip: float
    noise_sd: float
    count: int = 1
    sampling: Sampling | None = None
    nonnegative: bool = False
    lattice: Lattice | None = None

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
        """Noise multiplier z = s/C: noise sd over clip, for either adjacency."""
        return self.noise_sd / self.clip

    def sensitivity(self, adjacency: Adjacency) -> float:
        """Return the largest move of the sum: C for add-or-remove-one, 2C (√2·C if nonnegative) for
        replace-one.

        >>> GaussianEvent(clip=3.0, noise_sd=1.0).sensitivity("replace-one")
        6.0
        """
        if adjacency == "add-or-remove-one":
            return self.clip
        return self.clip * (math.sqrt(2.0) if self.nonnegative else 2.0)

    def distance(self, moved: float) -> float:
        """Return a difference of the exact sum over the noise sd, including the effect of rounding.

        >>> GaussianEvent(clip=1.0, noise_sd=4.0).distance(1.0)
        0.25
        """
        if self.lattice is None:
            return moved / self.noise_sd
        return self.lattice.distance(moved, self.clip, self.noise_sd)

    @property
    def step(self) -> float:
        """γ: the public step of a release's integers."""
        if self.lattice is None:
            raise ConfigError("this event was not released on a lattice and has no step")
        return self.lattice.step(self.noise_sd)

    def on_lattice(self, numbers: int, *, parties: int = 1, units: int) -> GaussianEvent:
        """Return the event of the same release as integers on a lattice.

        Parameters
        ----------
        numbers
            Numbers per release.
        parties
            Number of parties whose noise is summed before it becomes visible.
        units
            Public bound on the number of contributions to one party's sum.
        """
        bits = lattice_bits(numbers, self.noise_multiplier / math.sqrt(parties))
        lattice = Lattice(numbers=numbers, bits=bits, parties=parties, units=units)
        return msgspec.structs.replace(self, lattice=lattice)


class LaplaceEvent(GaussianEvent, frozen=True, kw_only=True, tag="laplace"):
    """`count` releases of Σ (contributions of L1 norm ≤ clip) + Laplace noise: pure ε, δ = 0.

    The noise of every coordinate has scale b = `noise_sd`/√2. One release is ε-private with ε =
    Δ/b, where Δ is the L1 sensitivity: C for add-or-remove-one and 2C for replace-one;
    `nonnegative` has no effect. On a lattice of step γ the noise is discrete Laplace of parameter
    2^k and b = γ·2^k; rounding moves each of the d integers by at most one more, so that ε = (Δ +
    2E)/b + d/2^k, exactly.

    Formal guarantee: `loss` is an upper bound on the privacy loss of one release, for any released
    value. The losses of adaptively chosen releases add up.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sampling is not None:
            raise ConfigError(
                "a Laplace release of a sampled batch; pure ε is computed for all records: leave "
                "sampling out"
            )
        if self.lattice is not None and self.lattice.parties > 1:
            raise ConfigError(
                f"Laplace noise shared by {self.lattice.parties} parties; a sum of shares is not "
                "Laplace noise: each party must add its own (aggregation = 'plain')"
            )

    @property
    def scale(self) -> float:
        """b: the scale of the noise, its standard deviation over √2."""
        return self.noise_sd / math.sqrt(2.0)

    def sensitivity(self, adjacency: Adjacency) -> float:
        """Return the largest move of the sum in the L1 norm.

        >>> LaplaceEvent(clip=3.0, noise_sd=1.0).sensitivity("replace-one")
        6.0
        """
        return self.clip * (1.0 if adjacency == "add-or-remove-one" else 2.0)

    def distance(self, moved: float) -> float:
        """Return an L1 difference of the exact sum over the scale of the noise, including the
        effect of rounding.

        >>> round(LaplaceEvent(clip=1.0, noise_sd=2.0**0.5).distance(1.0), 12)
        1.0
        """
        lattice = self.lattice
        if lattice is None:
            return moved / self.scale
        moved = max(moved, moved * (1.0 - 0.5 * CLIP_MARGIN) + lattice.rounding(self.clip))
        return moved / self.scale + lattice.numbers / 2.0**lattice.bits

    def loss(self, adjacency: Adjacency) -> float:
        """Return ε of one release."""
        return self.distance(self.sensitivity(adjacency))

    @property
    def step(self) -> float:
        """γ: the public step of a release's integers."""
        if self.lattice is None:
            raise ConfigError("this event was not released on a lattice and has no step")
        return self.scale / 2.0**self.lattice.bits

    def on_lattice(self, numbers: int, *, parties: int = 1, units: int) -> LaplaceEvent:
        """Return the event of the same release as integers on a lattice; parameters as in
        `GaussianEvent`.
        """
        bits = lattice_bits(max(1, numbers) ** 2, self.scale / self.clip)  # d and not √d
        lattice = Lattice(numbers=numbers, bits=bits, parties=parties, units=units)
        return msgspec.structs.replace(self, lattice=lattice)


Event = GaussianEvent | LaplaceEvent
"""Events that a ledger can store."""
