"""Observe the inputs and outputs of a private method's mechanisms.

Inside the contexts `noted` and `counted`, every mechanism returns a fixed value, computed from the
noise alone, instead of its release. Two data sets with the same noise then have the same released
values. If their replies still differ, the reply contains information that did not pass through a
mechanism. With `noted`, the cost of a release also contains the exact sum and the true released
value, for checks of sensitivity and noise. With `counted`, the releases whose values affect the
reply or the memory are counted.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import tacit.party.compute as party_side
from tacit.privacy.bounded import Array, Bounded
from tacit.privacy.mechanisms import UNSAMPLED, Cost, Drawn, Mechanism, Release

Observe = Callable[[Array, Bounded, Release], Release]


class Noted(NamedTuple):
    """The cost of a release, together with the exact sum before noise and the released value."""

    cost: Cost
    exact: Array
    noised: Array


class Used(NamedTuple):
    """Clip and noise sd, as declared by the mechanism, of a release whose value was used."""

    clip: float
    noise_sd: float


class Count:
    """Counts the releases that were used since the last `take`."""

    def __init__(self) -> None:
        self._used: Counter[Used] = Counter()

    def add(self, clip: Any, noise_sd: Any) -> np.ndarray:
        """Add releases to the counts. Each argument is an array with one number per release of each
        reply.
        """
        clips, noise_sds = np.asarray(clip), np.asarray(noise_sd)
        pairs = zip(clips.ravel().tolist(), noise_sds.ravel().tolist(), strict=True)
        self._used.update(Used(*pair) for pair in pairs)
        return np.zeros(clips.shape)

    def take(self) -> Counter[Used]:
        """Return the counts since the last `take`, and start again from 0."""
        found, self._used = self._used, Counter()
        return found


@contextlib.contextmanager
def noted() -> Iterator[None]:
    """Context in which mechanisms return values that do not depend on records, and in which the
    cost of a release is a `Noted`.
    """

    def observe(noise: Array, bounded: Bounded, found: Release) -> Release:
        exact, noised = _flat(bounded.value), _flat(found.value)
        seen: Any = Noted(found.cost, exact, noised)
        return _fixed(noise, found)._replace(cost=seen)

    with _observing(observe):
        yield


@contextlib.contextmanager
def counted() -> Iterator[Count]:
    """Context in which mechanisms return values that do not depend on records, and in which the
    uses of these values are counted.

    A release in a loop counts once per iteration. A value that affects neither the reply nor the
    memory does not count.
    """
    count = Count()

    def observe(noise: Array, bounded: Bounded, found: Release) -> Release:
        # Zeros that depend on the sum and the noise, so that `vmap` maps the callback with them.
        parts = [jnp.ravel(leaf)[:1] for leaf in jax.tree.leaves(bounded.value)]
        parts.append(noise[:1])
        mapped = sum(jnp.sum(jnp.isnan(part)) for part in parts) * 0
        zero = jax.pure_callback(
            count.add,
            jax.ShapeDtypeStruct((), jnp.float64),
            jnp.asarray(found.cost.clip, jnp.float64) + mapped,
            jnp.asarray(found.cost.noise_sd, jnp.float64) + mapped,
            vmap_method="broadcast_all",
        )
        return _fixed(noise, found, zero)

    with _observing(observe):
        yield count


@contextlib.contextmanager
def magnified(factor: int) -> Iterator[None]:
    """Context in which the noise of every release is multiplied by `factor`.

    Inside `noted`, the released values are then `factor` times as large. Programs that are compiled
    already are used, because noise is one of their arguments.
    """
    draw = party_side.draw_each

    def larger(*given: Any) -> np.ndarray:
        return factor * draw(*given)

    with mock.patch.object(party_side, "draw_each", larger):
        yield


@contextlib.contextmanager
def _observing(observe: Observe) -> Iterator[None]:
    """Context in which every mechanism returns the result of `observe` instead of its release."""
    # Programs compiled before are not reused inside the context, and those compiled inside are not
    # reused after it.
    kinds = [kind for kind in _below(Mechanism) if "release" in vars(kind)]
    own = {kind: kind.release for kind in kinds}
    inside = [0]

    def observing(kind: type[Mechanism]) -> Any:
        def release(
            self: Mechanism, noise: Array, bounded: Bounded, drawn: Drawn = UNSAMPLED
        ) -> Release:
            inside[0] += 1
            try:
                found = own[kind](self, noise, bounded, drawn)
            finally:
                inside[0] -= 1
            # A mechanism that calls another one makes only one release.
            return found if inside[0] else observe(noise, bounded, found)

        return release

    party_side.compiled.cache_clear()
    for kind in kinds:
        kind.release = observing(kind)
    try:
        yield
    finally:
        for kind in kinds:
            kind.release = own[kind]
        party_side.compiled.cache_clear()


def _fixed(noise: Array, found: Release, zero: Array | float = 0.0) -> Release:
    """Return a release that consists of the noise alone, without the sum."""
    leaves, treedef = jax.tree.flatten(found.value)
    step = found.cost.noise_sd * jnp.ldexp(1.0, -found.cost.bits)
    start, values, integers = 0, [], []
    for leaf in leaves:
        own = jnp.reshape(noise[start : start + leaf.size], leaf.shape)
        start += leaf.size
        integers.append(own + jnp.asarray(zero).astype(jnp.int64))
        values.append(step * own + zero)
    unflatten = jax.tree.unflatten
    return Release(unflatten(treedef, values), found.cost, unflatten(treedef, integers))


def _below(kind: type) -> Iterator[type]:
    for one in kind.__subclasses__():
        yield one
        yield from _below(one)


def _flat(tree: Any) -> Array:
    return jnp.concatenate([jnp.ravel(leaf).astype(jnp.float64) for leaf in jax.tree.leaves(tree)])
