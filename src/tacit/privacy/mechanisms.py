"""Mechanisms: convert a bounded value to a noisy release with its cost.

Everything here runs under `jit` and `vmap`, where clip and noise are arrays that may differ between
parties. Noise is drawn outside, by `tacit.privacy.lattice`, and passed as integers: a release is
the sum rounded to a public lattice plus the noise. `Release.event` converts the cost to an event; a
party compares it with the event charged to the ledger before it sends anything.
"""

from __future__ import annotations

import abc
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tacit.errors import ConfigError, PrivacyBudgetError
from tacit.privacy.bounded import Array, Bounded, Tree
from tacit.privacy.events import (
    HIDDEN_UNITS,
    GaussianEvent,
    LaplaceEvent,
    Lattice,
    Poisson,
    Sampling,
    WithoutReplacement,
)
from tacit.privacy.lattice import LEAST_BITS, RING_BITS
from tacit.support.compiler import jax, jnp


class Drawn(NamedTuple):
    """How a batch was drawn, as arrays: a Poisson rate, or a subset of `batch` out of `total`."""

    rate: Array | None = None
    batch: Array | None = None
    total: Array | None = None

    def sampling(self) -> Sampling | None:
        """Return the sampling scheme as plain data."""
        if self.rate is not None:
            return Poisson(rate=float(self.rate))
        if self.batch is not None and self.total is not None:
            return WithoutReplacement(batch=int(self.batch), total=int(self.total))
        return None


UNSAMPLED = Drawn()
"""No sampling: every unit is in the batch."""


class LatticeTerms(NamedTuple):
    """Lattice of a release, as arrays.

    Parameters
    ----------
    bits
        k: the noise of one party has the parameter 2^k.
    units
        Public bound on the number of contributions to one sum.
    """

    bits: Array | int = LEAST_BITS
    units: Array | int = HIDDEN_UNITS


STANDARD_LATTICE = LatticeTerms()


class Cost(NamedTuple):
    """Privacy cost of one release, as arrays; `event` converts it to plain data."""

    clip: Array
    noise_sd: Array
    drawn: Drawn
    nonnegative: Array
    numbers: Array
    bits: Array
    parties: Array
    units: Array
    pure: Array | bool = False

    def event(self, count: int = 1) -> GaussianEvent:
        """Return the cost as a validated event; refuse invalid scales."""
        kind = LaplaceEvent if self.pure else GaussianEvent
        return kind(
            clip=float(self.clip),
            noise_sd=float(self.noise_sd),
            count=count,
            sampling=self.drawn.sampling(),
            nonnegative=bool(self.nonnegative),
            lattice=Lattice(
                numbers=int(self.numbers),
                bits=int(self.bits),
                parties=int(self.parties),
                units=int(self.units),
            ),
        )


class Release(NamedTuple):
    """A value that may leave the party, with its privacy cost.

    `value` is γ times `integers`, and NaN if the sum was not finite; such a release is never sent.
    """

    value: Tree
    cost: Cost
    integers: Tree = None

    @property
    def sound(self) -> Array:
        """False if the sum was not finite."""
        leaves = jax.tree.leaves(self.value)
        return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))

    @property
    def event(self) -> GaussianEvent:
        """Return the cost as an event."""
        return self.cost.event()


class Mechanism(abc.ABC):
    """Converts a bounded value to a release. No method returns the value without its cost."""

    @abc.abstractmethod
    def release(self, noise: Array, bounded: Bounded, drawn: Drawn = UNSAMPLED) -> Release:
        """Add integer noise; `drawn` describes the sampling of the units of `bounded`.

        `noise` has one discrete number of parameter 2^k for every number of the sum. It is used for
        this release only.
        """


@dataclass(frozen=True, kw_only=True)
class Gaussian(Mechanism):
    """γ·(round(value/γ) + Y): a sum on a lattice of step γ, with discrete Gaussian noise Y.

    Formal guarantee: the release is one `GaussianEvent(clip, noise_sd)` on a `Lattice`, with the
    sampling of `drawn`; the accountants compute its ε. With `shares` = M > 1 the party adds noise
    of standard deviation noise_sd/√M only, and the event describes the sum of M such releases. The
    noise then protects against observers of the sum only (TMLR Theorems 11 and 14), not against an
    observer of a single release. With infinite `shares` the party rounds and adds nothing: the
    server adds the noise. Coordinates are clamped to ±2^61/M before the noise, so that sums fit
    into 64 bits; like every projection onto a box this does not increase distances.
    """

    noise_sd: Array | float
    shares: Array | float = 1
    lattice: LatticeTerms = STANDARD_LATTICE

    def __post_init__(self) -> None:
        if isinstance(self.noise_sd, int | float) and not 0 < self.noise_sd < np.inf:
            raise ConfigError(
                f"noise_sd = {self.noise_sd}; a release without noise has no guarantee: it must be "
                "a finite number > 0"
            )
        if isinstance(self.shares, int | float) and not self.shares >= 1:
            raise ConfigError(f"shares = {self.shares}; it must be at least 1")

    def release(self, noise: Array, bounded: Bounded, drawn: Drawn = UNSAMPLED) -> Release:
        shares = jnp.asarray(self.shares, jnp.float64)
        alone = jnp.isinf(shares)
        parties = jnp.where(alone, 1.0, shares)
        noise_sd = jnp.asarray(self.noise_sd, jnp.float64)
        terms = (noise_sd, noise_sd / jnp.sqrt(parties), parties)
        return _released_on(self.lattice, jnp.where(alone, 0, noise), bounded, drawn, terms)


@dataclass(frozen=True, kw_only=True)
class Laplace(Mechanism):
    """γ·(round(value/γ) + Y): a sum on a lattice of step γ, with discrete Laplace noise Y.

    Formal guarantee: the release is one `LaplaceEvent(clip, noise_sd)` on a `Lattice`, and purely
    ε-private with the event's `loss`. The noise has scale b = noise_sd/√2 = γ·2^k in every
    coordinate. `bounded` must be bounded in the L1 norm; a sum that is bounded in the L2 norm is
    refused. Batches are not sampled and noise is not shared.
    """

    noise_sd: Array | float
    lattice: LatticeTerms = STANDARD_LATTICE

    def release(self, noise: Array, bounded: Bounded, drawn: Drawn = UNSAMPLED) -> Release:
        if bounded.norm != "l1":
            raise TypeError("Laplace noise hides a sum that is clipped in the L1 norm: norm='l1'")
        if drawn != UNSAMPLED:
            raise TypeError("Laplace noise is accounted for sums over all units, not for batches")
        noise_sd = jnp.asarray(self.noise_sd, jnp.float64)
        terms = (noise_sd, noise_sd / math.sqrt(2.0), jnp.ones(()))
        return _released_on(self.lattice, noise, bounded, drawn, terms, pure=True)


def _released_on(
    lattice: LatticeTerms,
    noise: Array,
    bounded: Bounded,
    drawn: Drawn,
    terms: tuple[Array, Array, Array],
    *,
    pure: bool = False,
) -> Release:
    """Round a sum to the lattice and add the noise. `terms` is (standard deviation of the noise,
    2^k·γ, number of parties that share the noise).
    """
    leaves, treedef = jax.tree.flatten(bounded.value)
    numbers = sum(leaf.size for leaf in leaves)
    if noise.dtype != jnp.int64 or noise.shape != (numbers,):
        raise TypeError(
            f"noise is {noise.dtype}{noise.shape}; draw {numbers} int64 numbers for this sum"
        )
    (noise_sd, parameter, parties), bits = terms, jnp.asarray(lattice.bits)
    step = parameter * _power_of_two(-bits)
    limit = 2.0 ** (RING_BITS - 1) / parties
    values, integers, start = [], [], 0
    for leaf in leaves:
        if leaf.dtype != jnp.float64:
            raise TypeError(f"sums are rounded in float64, not in {leaf.dtype}")
        own = jnp.reshape(noise[start : start + leaf.size], leaf.shape)
        start += leaf.size
        places = jnp.clip(jnp.rint(leaf / step), -limit, limit)
        whole = jnp.where(jnp.isfinite(leaf), places, 0.0).astype(jnp.int64) + own
        integers.append(whole)
        values.append(jnp.where(jnp.isfinite(leaf), step * whole, jnp.nan))
    cost = Cost(
        clip=jnp.asarray(bounded.clip, jnp.float64),
        noise_sd=noise_sd,
        drawn=drawn,
        nonnegative=jnp.asarray(bounded.nonnegative),
        numbers=jnp.asarray(numbers),
        bits=bits,
        parties=parties.astype(jnp.int64),
        units=jnp.asarray(lattice.units),
        pure=jnp.asarray(pure),
    )
    unflatten = jax.tree.unflatten
    return Release(unflatten(treedef, values), cost, unflatten(treedef, integers))


def _power_of_two(exponent: Array) -> Array:
    """Return 2^exponent without rounding errors; a compiler may compute `**` by logarithms."""
    return jnp.ldexp(jnp.ones((), jnp.float64), exponent)


def released(costs: Cost | None) -> Counter[GaussianEvent]:
    """Return the number of occurrences of each event, from costs with a leading axis (None: no
    release).

    Post-processing of earlier releases has no cost.
    """
    if costs is None:
        return Counter()
    leaves, treedef = jax.tree.flatten(costs)
    columns = [np.atleast_1d(np.asarray(leaf)).tolist() for leaf in leaves]
    found: Counter[GaussianEvent] = Counter()
    for row, count in Counter(zip(*columns, strict=True)).items():
        found[jax.tree.unflatten(treedef, row).event()] += count
    return found


def per_event(events: Iterable[GaussianEvent]) -> Counter[GaussianEvent]:
    """Return events with counts as a multiset of single events, to compare with `released`."""
    import msgspec

    found: Counter[GaussianEvent] = Counter()
    for event in events:
        found[msgspec.structs.replace(event, count=1)] += event.count
    return found


def check_released(costs: Cost | None, charged: Iterable[GaussianEvent], party: str) -> None:
    """Refuse to send a reply whose events differ from those charged."""
    actual, paid = released(costs), per_event(charged)
    if actual != paid:
        raise PrivacyBudgetError(
            f"party {party!r}: its reply released {_shown(actual)}, but {_shown(paid)} was "
            "charged; nothing is sent: fix the events that the local method declares"
        )


def _shown(events: Counter[GaussianEvent]) -> str:
    if not events:
        return "nothing"
    return " + ".join(
        f"{count} × (clip {event.clip:g}, noise sd {event.noise_sd:g}, {_details(event)})"
        for event, count in events.items()
    )


def _details(event: GaussianEvent) -> str:
    details = "no lattice"
    if event.lattice is not None:
        details = f"{event.lattice.numbers} numbers in steps of {event.step:.3g}"
    if event.nonnegative:
        details += ", nonnegative"
    return details if event.sampling is None else f"{details}, {event.sampling}"
