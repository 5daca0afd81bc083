"""A q of independent normals with the likelihood's value and derivatives; requests of
`WideSolver`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tacit.arrays import Arrays
from tacit.methods.natural.subspace import Subspace

FIRST, STEP, PROBE, RESPOND = range(4)
"""Phases of the solver."""
MOST_NUMBERS = 4_000_000
"""Largest total size of the directions that are kept."""


class Seen(NamedTuple):
    """A q of φ (`wide_columns`), and the likelihood's value and derivatives there, in the
    coordinates z.
    """

    mean: np.ndarray
    scale: np.ndarray
    energy: float
    """Evidence lower bound up to a constant."""
    gradient: np.ndarray
    diagonal: np.ndarray
    """Diagonal of −E_q[∇²]."""

    def pack(self) -> Arrays:
        return {f"place.{name}": np.asarray(value) for name, value in self._asdict().items()}

    @classmethod
    def unpack(cls, memory: Arrays) -> Seen | None:
        if "place.mean" not in memory:
            return None
        parts = {name: memory[f"place.{name}"] for name in cls._fields}
        return cls(**parts)._replace(energy=float(parts["energy"]))


def request(
    mean: np.ndarray,
    scale: np.ndarray,
    centre: np.ndarray,
    directions: np.ndarray,
    *,
    spread: float,
    exact: bool,
) -> Arrays:
    """Return the public arrays of a request, except the share of the prior."""
    return {
        "mean": mean,
        "scale": scale,
        "centre": centre,
        "directions": directions,
        "spread": np.asarray(spread),
        "exact": np.asarray(float(exact)),
    }


def positive(diagonal: np.ndarray) -> np.ndarray:
    """Return absolute values, with 1 in place of 0 (a coordinate without information)."""
    size = np.abs(diagonal)
    return np.where(size > 0, size, 1.0)


def known_space(memory: Arrays, size: int) -> Subspace:
    """Return the subspace of known directions from the server's memory."""
    if "space.directions" not in memory:
        return Subspace.empty(size)
    return Subspace(memory["space.directions"], memory["space.products"])
