"""Batches of records for private steps, sampled exactly as the privacy accountant assumes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tacit.errors import ConfigError
from tacit.methods.base import Array, Task
from tacit.models import Records
from tacit.privacy.bounded import Bounded
from tacit.privacy.events import Adjacency, Poisson, Sampling, WithoutReplacement
from tacit.privacy.mechanisms import UNSAMPLED, Drawn
from tacit.privacy.sampling import (
    chunk_length,
    poisson_mask,
    poisson_sum,
    subset_rows,
    subset_sum,
)
from tacit.support.compiler import jax, jnp

SamplingName = Literal["poisson", "without-replacement"]
ANY_UNITS = 0
"""Means "any number of units" in the privacy events by which the noise is calibrated for all
parties at once.
"""
_FINE = 2**30
Clipped = Callable[[Records, Array], Bounded]


@functools.cache
def _compiled(function: Callable[..., Array], *static: str) -> Callable[..., Array]:
    return jax.jit(function, static_argnames=static)


def rate_of(batch: int, total: int) -> float:
    """Return the sampling rate batch/total, rounded such that ⌊rate·total⌋ is the batch size."""
    rate = min(1.0, batch / total)
    return rate if math.floor(rate * total) >= min(batch, total) else math.nextafter(rate, 1.0)


def shuffled_rows(task: Task, rate: float, *, traced: bool = True) -> tuple[Array, Array, Array]:
    """Return the row numbers of this visit's batch, a mask of valid rows, and the batch's share of
    all records.

    Each pass over the records shuffles them and splits them into batches. A batch contains the
    share `rate` of the records; only the last batch of a pass may be smaller. Every record is in
    exactly one batch per pass.
    """
    xp = jnp if traced else np
    present, visit = task.weights, task.words[2]
    count = xp.count_nonzero(present)
    size = xp.maximum(1, xp.floor(rate * count)).astype(xp.int64)
    passes, place = xp.divmod(visit.astype(xp.int64), -(-count // size))
    if traced:
        key = jax.random.fold_in(jax.random.key(task.words[0]), task.words[1])
        order = jax.random.permutation(jax.random.fold_in(key, passes), present.shape[0])
    else:
        rng = np.random.default_rng([*task.words[:2], passes])
        order = rng.permutation(present.shape[0])
    order = order[xp.argsort(present[order] == 0, stable=True)]
    length = max(1, math.floor(rate * present.shape[0]))
    at = place * size + xp.arange(length)
    mask = (xp.arange(length) < size) & (at < count)
    return order[xp.minimum(at, present.shape[0] - 1)], mask, xp.count_nonzero(mask) / count


@dataclass(frozen=True)
class Batches:
    """How batches with a share `rate` of the units are sampled.

    `sampling` is "poisson", or "without-replacement" for batches of fixed size.
    """

    rate: float
    sampling: SamplingName

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ConfigError(f"method.sampling_rate = {self.rate}; it must be in (0, 1]")

    def check(self, adjacency: Adjacency) -> None:
        """Raise a ConfigError if the sampling is not supported with the adjacency."""
        if self.sampling == "without-replacement" and adjacency != "replace-one":
            raise ConfigError(
                "method.sampling = 'without-replacement' cannot be combined with "
                f"privacy.adjacency = {adjacency!r}, because a batch of fixed size reveals the "
                "number of records: use method.sampling = 'poisson' or privacy.adjacency = "
                "'replace-one'"
            )

    def accounted(self, units: int) -> Sampling | None:
        """Return how batches are sampled from a party's `units` units, in the form that the privacy
        accountant needs.

        A unit is a record, a person or a party. The result is None if `rate` is 1, because a
        batch then contains all units. For Poisson sampling the result contains the probability
        `rate`. For sampling without replacement the result contains the size of a batch,
        ⌊rate·units⌋ but at least 1, and the number of units.

        If `units` is `ANY_UNITS`, the number of units is not known. The result then describes
        batches that contain a share `rate` of the units, or slightly more because of rounding.
        Noise that is sufficient for this share is sufficient for every party with at least 1/rate
        units.
        """
        if self.rate == 1:
            return None
        if self.sampling == "poisson":
            return Poisson(rate=self.rate)
        if units == ANY_UNITS:
            return WithoutReplacement(batch=math.ceil(self.rate * _FINE), total=_FINE)
        return WithoutReplacement(batch=self.size(units), total=units)

    def size(self, units: int) -> int:
        """Return the size of a batch that is drawn without replacement."""
        return max(1, math.floor(self.rate * units))

    def summed(
        self, key: Array, task: Task, clipped: Clipped, *, traced: bool = True
    ) -> tuple[Bounded, Drawn]:
        """Return the clipped sum over a batch, and how the batch was sampled.

        `clipped(records, weights)` computes the clipped sum. If `traced` is false, the batch is
        chosen in NumPy, for models written in NumPy.
        """
        if self.rate == 1:
            return clipped(task.records, task.weights), UNSAMPLED
        present = task.weights if task.weights.ndim == 1 else jnp.max(task.weights, axis=1)
        padded = present.shape[0]

        def rows(chosen: Array, mask: Array) -> Bounded:
            weights = task.weights[chosen]
            mask = mask.astype(weights.dtype)
            weights = weights * (mask if weights.ndim == 1 else mask[:, None])
            return clipped({name: v[chosen] for name, v in task.records.items()}, weights)

        if not traced:
            return self._picked(key, np.asarray(present), rows)
        if self.sampling == "poisson":
            return poisson_sum(key, present, self.rate, chunk_length(self.rate, padded), rows)
        batch = jnp.maximum(1, jnp.floor(self.rate * task.terms.units)).astype(jnp.int32)
        return subset_sum(key, present, batch, self.size(padded), rows)

    def _picked(
        self, key: Array, present: np.ndarray, rows: Callable[[Array, Array], Bounded]
    ) -> tuple[Bounded, Drawn]:
        units = int(np.count_nonzero(present))
        if self.sampling == "poisson":
            chosen = np.flatnonzero(_compiled(poisson_mask)(key, present, self.rate))
            length = chunk_length(self.rate, len(present))
            drawn = Drawn(rate=np.float64(self.rate))
        else:
            length = self.size(units)
            chosen = np.sort(_compiled(subset_rows, "length")(key, present, length=length))
            drawn = Drawn(batch=np.asarray(length), total=np.asarray(units))
        places = np.zeros(max(1, math.ceil(len(chosen) / length)) * length, np.int64)
        places[: len(chosen)] = chosen
        return rows(places, np.arange(len(places)) < len(chosen)), drawn
