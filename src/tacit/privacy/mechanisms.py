"""Mechanisms: turn a bounded value into a noisy release with its cost.

Everything here runs under `jit` and `vmap`, where clip and noise are arrays that may differ between
parties. `Release.event` converts the cost to an event; a party compares it with the event charged
to the ledger before it sends anything.
"""

from __future__ import annotations

import abc
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tacit.errors import ConfigError, PrivacyBudgetError
from tacit.privacy.bounded import Array, Bounded, Tree
from tacit.privacy.events import GaussianEvent, Poisson, Sampling, WithoutReplacement
from tacit.support.compiler import jax, jnp


class Drawn(NamedTuple):
    """How a batch was drawn, as arrays: a Poisson rate, or a subset of `batch` out of `total`."""

    rate: Array | None = None
    batch: Array | None = None
    total: Array | None = None

    def sampling(self) -> Sampling | None:
        """The sampling scheme as plain data."""
        if self.rate is not None:
            return Poisson(rate=float(self.rate))
        if self.batch is not None and self.total is not None:
            return WithoutReplacement(batch=int(self.batch), total=int(self.total))
        return None


UNSAMPLED = Drawn()
"""No sampling: every unit is in the batch."""


class Cost(NamedTuple):
    """Privacy cost of one release, as arrays; `event` converts it to plain data."""

    clip: Array
    noise_sd: Array
    drawn: Drawn
    nonnegative: Array

    def event(self, count: int = 1) -> GaussianEvent:
        """The cost as a validated event; invalid scales are refused."""
        return GaussianEvent(
            clip=float(self.clip),
            noise_sd=float(self.noise_sd),
            count=count,
            sampling=self.drawn.sampling(),
            nonnegative=bool(self.nonnegative),
        )


class Release(NamedTuple):
    """A value that may leave the party, with its privacy cost."""

    value: Tree
    cost: Cost

    @property
    def event(self) -> GaussianEvent:
        """The cost as an event."""
        return self.cost.event()


class Mechanism(abc.ABC):
    """Turns a bounded value into a release. No method returns the value without its cost."""

    @abc.abstractmethod
    def release(self, key: Array, bounded: Bounded, drawn: Drawn = UNSAMPLED) -> Release:
        """Add noise drawn with `key`; `drawn` says how the units of `bounded` were sampled."""


@dataclass(frozen=True, kw_only=True)
class Gaussian(Mechanism):
    """value + N(0, noise_sd² I).

    Formal guarantee: the release is one `GaussianEvent(clip, noise_sd)`, sampled as `drawn` says;
    the accountants give its ε. With `shares` = M > 1 the party adds N(0, noise_sd²/M) only, and the
    event is that of the sum of M such releases. It protects only against observers of the sum (TMLR
    Theorems 11 and 14), not against one who sees a single release.
    """

    noise_sd: Array | float
    shares: Array | float = 1

    def __post_init__(self) -> None:
        if isinstance(self.noise_sd, int | float) and not 0 < self.noise_sd < np.inf:
            raise ConfigError(
                f"noise_sd = {self.noise_sd}; a release without noise has no guarantee: it must be "
                "a finite number > 0"
            )
        if isinstance(self.shares, int | float) and not self.shares >= 1:
            raise ConfigError(f"shares = {self.shares}; it must be at least 1")

    def release(self, key: Array, bounded: Bounded, drawn: Drawn = UNSAMPLED) -> Release:
        leaves, treedef = jax.tree.flatten(bounded.value)
        added = self.noise_sd / jnp.sqrt(jnp.asarray(self.shares, jnp.float64))
        noised = []
        for index, leaf in enumerate(leaves):
            dtype = leaf.dtype
            if not jnp.issubdtype(dtype, jnp.floating):
                raise TypeError(f"noise is added to floating-point numbers, not to {dtype}")
            noise = jax.random.normal(jax.random.fold_in(key, index), leaf.shape, dtype)
            noised.append(leaf + jnp.asarray(added, dtype) * noise)
        cost = Cost(
            jnp.asarray(bounded.clip, jnp.float64),
            jnp.asarray(self.noise_sd, jnp.float64),
            drawn,
            jnp.asarray(bounded.nonnegative),
        )
        return Release(jax.tree.unflatten(treedef, noised), cost)


def released(costs: Cost | None) -> Counter[GaussianEvent]:
    """Number of occurrences of each event, from costs with a leading axis (None: no release).

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
    """Events with counts as a multiset of single events, to compare with `released`."""
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
        f"{count} × (clip {event.clip:g}, noise sd {event.noise_sd:g})"
        for event, count in events.items()
    )
