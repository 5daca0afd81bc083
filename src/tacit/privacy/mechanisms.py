"""Mechanisms: convert a clipped sum to a noisy release together with its privacy cost.

A release is the sum, rounded to a public lattice, plus integer noise, which `tacit.privacy.lattice`
draws. All functions can be compiled and vectorised over parties (`jit` and `vmap`); clip and noise
sd are arrays and may differ between parties. `Release.event` converts the cost to an event. A party
compares this event with the event charged to the ledger before it sends anything.
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
    """How a batch was sampled, as arrays.

    It has a Poisson rate, or the size `batch` of a random subset of `total` units. If all fields
    are None, the batch contains all units.
    """

    rate: Array | None = None
    batch: Array | None = None
    total: Array | None = None

    def sampling(self) -> Sampling | None:
        """Return the sampling scheme for an event; None if the batch contains all units."""
        if self.rate is not None:
            return Poisson(rate=float(self.rate))
        if self.batch is not None and self.total is not None:
            return WithoutReplacement(batch=int(self.batch), total=int(self.total))
        return None


UNSAMPLED = Drawn()
"""No sampling: every unit is in the batch."""


class LatticeTerms(NamedTuple):
    """Settings of the lattice of a release, as arrays.

    Parameters
    ----------
    bits
        k, where 2^k is the scale parameter of one party's noise in lattice steps.
    units
        Public bound on the number of contributions to one sum.
    """

    bits: Array | int = LEAST_BITS
    units: Array | int = HIDDEN_UNITS


STANDARD_LATTICE = LatticeTerms()


class Cost(NamedTuple):
    """Privacy cost of one release, as arrays; `event` converts it to an event."""

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
        """Return the cost as an event; raise a ConfigError if clip or noise is invalid."""
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

    `value` is the step of the lattice times `integers`. It is NaN if the sum was not finite; such a
    release is never sent.
    """

    value: Tree
    cost: Cost
    integers: Tree = None

    @property
    def sound(self) -> Array:
        """True if the sum was finite, so that the release may be sent."""
        leaves = jax.tree.leaves(self.value)
        return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))

    @property
    def event(self) -> GaussianEvent:
        """Return the cost as an event."""
        return self.cost.event()


class Mechanism(abc.ABC):
    """Converts a clipped sum to a release. No method returns a noisy value without its cost."""

    @abc.abstractmethod
    def release(self, noise: Array, bounded: Bounded, drawn: Drawn = UNSAMPLED) -> Release:
        """Add integer noise to a clipped sum and return the release.

        `noise` has one random integer for every number of the sum. Its scale parameter is 2^k,
        where k is `LatticeTerms.bits`. The same noise must not be used for another release. `drawn`
        describes how the units of `bounded` were sampled.
        """


@dataclass(frozen=True, kw_only=True)
class Gaussian(Mechanism):
    """Adds discrete Gaussian noise to a sum that is rounded to a lattice.

    The release is γ·(round(value/γ) + Y), where γ is the step of the lattice and Y the noise.

    Formal guarantee: the release is described by one `GaussianEvent(clip, noise_sd)` on a
    `Lattice`, with the sampling of `drawn`; accountants compute its ε.

    If M = `shares` parties share the noise, each adds noise of standard deviation noise_sd/√M. The
    event then describes the sum of M such releases. It protects against an observer of the sum
    (TMLR Theorems 11 and 14), but not against an observer of a single release. If `shares` is
    infinite, the party only rounds, and the server adds the noise.

    The integers are clipped to ±2^61/M before the noise is added, because sums over the parties
    must fit into 64 bits. Clipping does not increase the distance between two sums.
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
    """Adds discrete Laplace noise to a sum that is rounded to a lattice.

    The release is γ·(round(value/γ) + Y), where γ is the step of the lattice and Y the noise. The
    noise has the scale noise_sd/√2 in every coordinate.

    Formal guarantee: the release is described by one `LaplaceEvent(clip, noise_sd)` on a `Lattice`.
    It is ε-private with δ = 0, where ε is the `loss` of this event. The sum must be clipped in the
    L1 norm and not sampled, and the noise cannot be shared by several parties.
    """

    noise_sd: Array | float
    lattice: LatticeTerms = STANDARD_LATTICE

    def release(self, noise: Array, bounded: Bounded, drawn: Drawn = UNSAMPLED) -> Release:
        if bounded.norm != "l1":
            raise TypeError(
                f"the sum is clipped in the norm {bounded.norm!r}; Laplace noise needs a sum that "
                "is clipped in the L1 norm: clip it with norm='l1'"
            )
        if drawn != UNSAMPLED:
            raise TypeError(
                "the sum is over a sampled batch, but the ε of Laplace noise is only computed for "
                "sums over all units; sum over all units instead"
            )
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
    # `terms` is (noise sd, 2^k times the step, number of parties that share the noise).
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
            raise TypeError(f"the sum has type {leaf.dtype}; compute it in float64")
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
    # A compiler may compute ** by logarithms, with rounding errors.
    return jnp.ldexp(jnp.ones((), jnp.float64), exponent)


def released(costs: Cost | None) -> Counter[GaussianEvent]:
    """Return how often each event occurs in the releases of a reply.

    The arrays of `costs` have one entry per release; None means that there is no release.
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
    """Return how often each event occurs, as a `Counter` of events whose `count` is 1.

    The result can be compared with that of `released`.
    """
    import msgspec

    found: Counter[GaussianEvent] = Counter()
    for event in events:
        found[msgspec.structs.replace(event, count=1)] += event.count
    return found


def check_released(costs: Cost | None, charged: Iterable[GaussianEvent], party: str) -> None:
    """Raise an error if the releases of a reply differ from the events that were charged."""
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
