"""Events: descriptions of private releases, which accountants read and ledgers store.

An event contains the norm bound of one unit's contribution, the standard deviation of the noise,
the sampling of the batch, and the lattice of the release. It does not contain ε, which also depends
on the adjacency, δ and the accountant. Only this module computes sensitivities.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from tacit.errors import ConfigError

Adjacency = Literal["add-or-remove-one", "replace-one"]


class Poisson(msgspec.Struct, frozen=True, kw_only=True, tag="poisson", forbid_unknown_fields=True):
    """Poisson sampling: every unit is in the batch independently, with probability `rate`."""

    rate: float

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ConfigError(f"sampling rate = {self.rate}; it must be in (0, 1]")


class WithoutReplacement(
    msgspec.Struct, frozen=True, kw_only=True, tag="without-replacement", forbid_unknown_fields=True
):
    """Sampling without replacement: the batch is a random subset of `batch` out of `total`
    units.
    """

    batch: int
    total: int

    def __post_init__(self) -> None:
        if not 1 <= self.batch <= self.total:
            raise ConfigError(
                f"batch = {self.batch}, total = {self.total}; batch must be between 1 and total"
            )

    @property
    def rate(self) -> float:
        """Share of the units that are in a batch."""
        return self.batch / self.total


Sampling = Poisson | WithoutReplacement

CLIP_MARGIN = 1e-6
"""Contributions are clipped to C·(1 − CLIP_MARGIN), which leaves room for rounding."""
HIDDEN_UNITS = 1 << 20
"""Bound on the number of contributions of one party if that number is secret."""
LEAST_UNITS = 1 << 16
"""Lower limit of the bound on the number of contributions: a smaller declared number is raised to
it. For this many contributions, CLIP_MARGIN still covers the rounding error of their sum.
"""
KERNEL = 2.0
"""Parameter s₀ of the domination lemma (docs/methods/lattice.md)."""


class Lattice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The lattice of a release: integer multiples of a public step γ, with integer noise.

    A party computes the float64 sum of at most n contributions of norm at most C, rounds it to d
    integer multiples of γ, and adds discrete Gaussian noise of parameter 2^k to each integer.

    Formal guarantee: one unit moves the vector of integers by at most (S + 2E)/γ + √d. Here S is
    the sensitivity of the exact sum, and E = n(n + 3)·2⁻⁵³·C bounds the rounding error of a float64
    sum, for any order of its terms.

    Parameters
    ----------
    numbers
        d: numbers per release.
    bits
        k: the noise of each party has the parameter 2^k.
    parties
        Number of parties whose noise is summed before the result becomes visible.
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
                f"Lattice(numbers={self.numbers}, parties={self.parties}, units={self.units}); "
                "numbers must be at least 0, and parties and units must be at least 1"
            )
        if not 2 <= self.bits <= 50:
            raise ConfigError(f"Lattice(bits={self.bits}); bits must be from 2 to 50")

    @property
    def slack(self) -> float:
        """A bound κ on the error of replacing discrete by continuous noise.

        Let P be the distribution of a release, and R that of a continuous Gaussian after rounding
        at random. κ is an upper bound on |ln(P/R)| (docs/methods/lattice.md).

        For one party and d numbers, κ = d·ln((1 + τ)/(1 − τ)), where τ = 2e^(−2π²s₀²)/(1 −
        e^(−2π²s₀²)) and s₀ is `KERNEL`. If the noise of M parties is summed, each with the
        parameter s = 2^k, the term 10d Σ_{j<M} e^(−2π²s²j/(j + 1)) is added (Kairouz, Liu and
        Steinke 2021, Theorem 2).
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
        """Return twice the largest rounding error of a float64 sum of contributions of norm at most
        `clip`.

        The factor of two is for the two sums of neighbouring data sets.
        """
        return 2.0 * self.units * (self.units + 3.0) * 2.0**-53 * clip

    def distance(self, moved: float, clip: float, noise_sd: float) -> float:
        """Return the sensitivity of the released integers, divided by the standard deviation of the
        noise.

        `moved` is the sensitivity of the exact sum of contributions of norm at most `clip`. The
        result includes the effect of rounding. Accountants replace the discrete noise by a
        continuous Gaussian with a slightly smaller standard deviation (docs/methods/lattice.md).
        This smaller standard deviation is used here.
        """
        step = self.step(noise_sd)
        # Contributions are clipped slightly below `clip`. Half of this margin covers the rounding
        # of the sum, and the other half the rounding of norms.
        moved = max(moved, moved * (1.0 - 0.5 * CLIP_MARGIN) + self.rounding(clip))
        integers = moved / step + math.sqrt(self.numbers)
        parameter = math.sqrt(self.parties) * 2.0**self.bits
        return integers / math.sqrt(parameter**2 - KERNEL**2)

    def step(self, noise_sd: float) -> float:
        """Return the step of the lattice.

        `noise_sd` is the standard deviation of the noise in the sum over all parties that share the
        noise.
        """
        return noise_sd / math.sqrt(self.parties) / 2.0**self.bits


def lattice_bits(numbers: int, noise_multiplier: float) -> int:
    """Return the exponent k of the noise parameter 2^k for a release of `numbers` numbers.

    It is at least 20 and at most 40. Within these limits, it is large enough that rounding
    increases the sensitivity by less than a millionth of the clip. Rounding d numbers adds √d·z/2^k
    times the clip, where z is the noise multiplier of one party.

    >>> lattice_bits(1, 1.0), lattice_bits(100, 10.0)
    (20, 27)
    """
    needed = math.sqrt(max(1, numbers)) * max(noise_multiplier, 1e-300)
    return min(40, 20 + max(0, math.ceil(math.log2(needed))))


class GaussianEvent(
    msgspec.Struct, frozen=True, kw_only=True, tag="gaussian", forbid_unknown_fields=True
):
    """Description of `count` releases, each a sum of contributions plus Gaussian noise.

    A contribution is the array that one unit (a record, a person or a party) adds to the sum. The
    norm of a contribution is at most `clip` = C. The noise is N(0, noise_sd²) in every coordinate.
    `sampling` says how the units of a sum are sampled, and is None if all units are used.

    `nonnegative` is true if no two contributions can have a negative inner product. This is so if
    all coordinates are ≥ 0, or if all contributions are positive semi-definite matrices. The
    distance between two contributions is then at most √2·C instead of 2·C.

    In a run, a sum is rounded to integer multiples of a step, and the noise is discrete; `lattice`
    describes both. If `lattice` is None, the event describes continuous noise on real numbers.
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
                f"noise_sd = {self.noise_sd}; it must be a finite number > 0, because "
                "a release without noise has no guarantee"
            )
        if not (self.count >= 1 and self.count == int(self.count)):
            raise ConfigError(
                f"count = {self.count}; it must be a whole number of releases, at least 1"
            )

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of the noise divided by the clip, for either adjacency."""
        return self.noise_sd / self.clip

    def sensitivity(self, adjacency: Adjacency) -> float:
        """Return the largest distance by which one unit can move the sum.

        For add-or-remove-one it is the clip. For replace-one it is twice the clip, or √2 times the
        clip if `nonnegative`.

        >>> GaussianEvent(clip=3.0, noise_sd=1.0).sensitivity("replace-one")
        6.0
        """
        if adjacency == "add-or-remove-one":
            return self.clip
        return self.clip * (math.sqrt(2.0) if self.nonnegative else 2.0)

    def distance(self, moved: float) -> float:
        """Convert the distance `moved` between two exact sums to standard deviations of the noise.

        On a lattice the result includes a bound on the effect of rounding.

        >>> GaussianEvent(clip=1.0, noise_sd=4.0).distance(1.0)
        0.25
        """
        if self.lattice is None:
            return moved / self.noise_sd
        return self.lattice.distance(moved, self.clip, self.noise_sd)

    @property
    def step(self) -> float:
        """The public step of the lattice: a release consists of integer multiples of it."""
        if self.lattice is None:
            raise ConfigError("this event has no lattice and hence no step; call on_lattice first")
        return self.lattice.step(self.noise_sd)

    def on_lattice(self, numbers: int, *, parties: int = 1, units: int) -> GaussianEvent:
        """Return the event for the same release if its numbers are rounded to a lattice.

        Parameters
        ----------
        numbers
            Numbers per release.
        parties
            Number of parties whose noise is summed before the result becomes visible.
        units
            Public bound on the number of contributions to one party's sum.
        """
        bits = lattice_bits(numbers, self.noise_multiplier / math.sqrt(parties))
        lattice = Lattice(numbers=numbers, bits=bits, parties=parties, units=units)
        return msgspec.structs.replace(self, lattice=lattice)


class LaplaceEvent(GaussianEvent, frozen=True, kw_only=True, tag="laplace"):
    """Description of `count` releases, each a sum of contributions plus Laplace noise.

    The L1 norm of a contribution is at most `clip`. The Laplace noise has the scale b =
    `noise_sd`/√2 in every coordinate. `nonnegative` has no effect.

    A release is ε-private with δ = 0 and ε = Δ/b. Here Δ is the L1 sensitivity: `clip` for
    add-or-remove-one, and 2·`clip` for replace-one. On a lattice the d numbers of a release are
    rounded to integer multiples of a step, and the noise is discrete Laplace of parameter 2^k. Then
    ε = (Δ + 2E)/b + d/2^k, where E bounds the rounding error of a float64 sum (see `Lattice`).

    Formal guarantee: `loss` is an upper bound on the privacy loss of one release, for any released
    value. The losses of adaptively chosen releases add up.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sampling is not None:
            raise ConfigError(
                f"a LaplaceEvent with sampling = {self.sampling}; pure ε is only computed for sums "
                "over all units: leave sampling out"
            )
        if self.lattice is not None and self.lattice.parties > 1:
            raise ConfigError(
                f"a LaplaceEvent whose noise is shared by {self.lattice.parties} parties; a sum of "
                "shares is not Laplace noise: set privacy.aggregation = 'plain', so that each "
                "party adds all of its noise"
            )

    @property
    def scale(self) -> float:
        """Scale b of the Laplace noise: its standard deviation divided by √2."""
        return self.noise_sd / math.sqrt(2.0)

    def sensitivity(self, adjacency: Adjacency) -> float:
        """Return the largest L1 distance by which one unit can move the sum.

        >>> LaplaceEvent(clip=3.0, noise_sd=1.0).sensitivity("replace-one")
        6.0
        """
        return self.clip * (1.0 if adjacency == "add-or-remove-one" else 2.0)

    def distance(self, moved: float) -> float:
        """Return the L1 distance `moved` between two exact sums, divided by the scale of the noise.

        On a lattice the result includes a bound on the effect of rounding.

        >>> round(LaplaceEvent(clip=1.0, noise_sd=2.0**0.5).distance(1.0), 12)
        1.0
        """
        lattice = self.lattice
        if lattice is None:
            return moved / self.scale
        moved = max(moved, moved * (1.0 - 0.5 * CLIP_MARGIN) + lattice.rounding(self.clip))
        return moved / self.scale + lattice.numbers / 2.0**lattice.bits

    def loss(self, adjacency: Adjacency) -> float:
        """Return ε of one release under the given adjacency."""
        return self.distance(self.sensitivity(adjacency))

    @property
    def step(self) -> float:
        """The public step of the lattice: a release consists of integer multiples of it."""
        if self.lattice is None:
            raise ConfigError("this event has no lattice and hence no step; call on_lattice first")
        return self.scale / 2.0**self.lattice.bits

    def on_lattice(self, numbers: int, *, parties: int = 1, units: int) -> LaplaceEvent:
        """Return the event for the same release if its numbers are rounded to a lattice.

        The parameters are those of `GaussianEvent.on_lattice`.
        """
        bits = lattice_bits(max(1, numbers) ** 2, self.scale / self.clip)  # d and not √d
        lattice = Lattice(numbers=numbers, bits=bits, parties=parties, units=units)
        return msgspec.structs.replace(self, lattice=lattice)


Event = GaussianEvent | LaplaceEvent
"""Events that a ledger can store."""
