"""Values that server and parties compute in the same way: terms of a run, ids of secure sums, and
vectors of released integers.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

import msgspec
import numpy as np

from tacit.arrays import Arrays
from tacit.live.secure.terms import Terms
from tacit.privacy.secure_sums import Thresholds
from tacit.server.messages import Request, pack_natural

Shapes = Mapping[str, tuple[int, ...]]
"""Names and shapes of the integer arrays that a stage releases."""


def terms_of(
    run: str, configuration: str, keys: Mapping[str, str], thresholds: Thresholds, rounds: int
) -> Terms:
    """Return the terms of the secure sums of one run, with one slot (sum) per round."""
    return Terms(
        run=run,
        configuration=configuration,
        parties=dict(keys),
        threshold=thresholds.threshold,
        quorum=thresholds.quorum,
        colluding=thresholds.colluding,
        slots=rounds,
    )


def sum_id(request: Request) -> str:
    """Return the id of a sum: a digest of everything that must be equal in the requests to all
    parties.

    Masks are derived from this id: if parties receive different requests, their masks do not
    cancel.
    """
    arrays = [
        None if one is None else sorted(pack_natural(one).items())
        for one in (request.q, request.public)
    ]
    parts = [request.visit, request.stage, float(request.damping), bool(request.initial)]
    body = msgspec.msgpack.encode([*parts, *arrays])
    return hashlib.blake2b(body, digest_size=24, person=b"tacit.sum").hexdigest()


def message_bytes(parties: int, slots: int) -> int:
    """Return an upper bound, in bytes, on the size of a message of the set-up or of unmasking."""
    return 2 * parties * (140 * slots + 800)


def length_of(shapes: Shapes) -> int:
    """Return the total number of integers in arrays of these shapes."""
    return sum(math.prod(shape) for shape in shapes.values())


def to_vector(released: Arrays, shapes: Shapes) -> np.ndarray:
    """Concatenate the released integers to one vector, in the order of the arrays' names."""
    if released.keys() != shapes.keys():
        raise ValueError("the released arrays do not have the names that the stage declares")
    parts = []
    for name in sorted(shapes):
        value = np.asarray(released[name])
        if value.dtype != np.int64 or value.shape != tuple(shapes[name]):
            raise ValueError(
                f"array {name!r} has type {value.dtype} and shape {value.shape}; it must have type "
                f"int64 and shape {shapes[name]}"
            )
        parts.append(value.ravel())
    return np.concatenate(parts)


def from_vector(vector: np.ndarray, shapes: Shapes) -> Arrays:
    """Split a vector made by `to_vector` into its named arrays."""
    found, start = {}, 0
    for name in sorted(shapes):
        size = math.prod(shapes[name])
        found[name] = vector[start : start + size].reshape(shapes[name])
        start += size
    return found
