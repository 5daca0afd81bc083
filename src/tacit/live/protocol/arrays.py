"""Encoding of distributions in messages.

Peers that announce a `protocol` number exchange natural parameters, as exact 64-bit floats. For a
peer that implements only the messages of the thesis, a normal is {mean, variance}: two numbers, or
two lists for independent normals. A factor or a ratio of factors may have negative variances. A
constant factor has no finite variance; it is written with a variance so large that the factor has
no effect.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tacit.arrays import Arrays, Natural
from tacit.errors import ConfigError, PeerError
from tacit.expfam import Family, check_arrays, check_integers
from tacit.live.protocol.codec import Encoding
from tacit.live.protocol.messages import Array, Distribution

FLAT_VARIANCE = 1e300
"""Variance of a constant factor; its precision of 1e-300 is negligible in any sum."""


def is_independent_normal(natural: Natural) -> bool:
    """True if these are natural parameters of independent normals."""
    if set(natural) != {"linear", "quadratic"}:
        return False
    linear, quadratic = np.shape(natural["linear"]), np.shape(natural["quadratic"])
    return linear == quadratic or math.prod(quadratic) == 1


def pack(natural: Natural, encoding: Encoding) -> Distribution:
    """Encode natural parameters as arrays."""
    return {name: _array(value, encoding) for name, value in natural.items()}


def pack_normal(natural: Natural) -> Distribution:
    """Encode independent normals, or ratios of normal densities, as mean and variance.

    >>> pack_normal({"linear": np.array([6.0]), "quadratic": np.array([-1.0])})
    {'mean': 3.0, 'variance': 0.5}
    """
    if not is_independent_normal(natural):
        raise PeerError(
            "this peer supports only normal distributions with independent coordinates; use "
            "posterior = 'mean-field'"
        )
    linear = np.ravel(natural["linear"])
    precision = -2.0 * np.ravel(natural["quadratic"])
    flat = np.abs(precision) < 1.0 / FLAT_VARIANCE
    small = np.maximum(1.0, np.abs(linear)) / FLAT_VARIANCE  # keeps the mean finite
    precision = np.where(flat, small, precision)
    mean, variance = (linear / precision).tolist(), (1.0 / precision).tolist()
    if len(mean) == 1:
        return {"mean": mean[0], "variance": variance[0]}
    return {"mean": mean, "variance": variance}


def unpack(distribution: Distribution, family: Family | None, what: str) -> Natural:
    """Decode finite float64 natural parameters of the family, or raise a PeerError."""
    if set(distribution) == {"mean", "variance"}:
        natural = _normal(distribution["mean"], distribution["variance"], family, what)
    elif family is not None and set(distribution) != set(family.shapes):
        raise PeerError(
            f"{what} does not have the natural parameters of {family!r}; send "
            f"{', '.join(family.shapes)}"
        )
    else:
        # Unknown names come from the peer and are not quoted.
        natural = {
            name: _numbers(value, f"{what}: {name!r}" if family else f"{what}: a parameter")
            for name, value in distribution.items()
        }
    if family is None:
        if not all(np.all(np.isfinite(value)) for value in natural.values()):
            raise PeerError(f"{what}: a value is not finite; send finite numbers")
        return natural
    try:
        return family.check(natural, what=what)
    except ConfigError as error:
        raise PeerError(str(error)) from None


def unpack_arrays(
    distribution: Distribution, shapes: dict[str, tuple[int, ...]] | None, what: str
) -> Arrays:
    """Decode finite arrays of the given names and shapes (None: any), or raise a PeerError."""
    if shapes is not None and set(distribution) != set(shapes):
        raise PeerError(
            f"{what}: the names of the arrays are wrong; send {', '.join(shapes) or 'none'}"
        )
    arrays = {
        name: _numbers(value, f"{what}: {name!r}" if shapes else f"{what}: an array")
        for name, value in distribution.items()
    }
    try:
        return check_arrays(arrays, shapes or {n: a.shape for n, a in arrays.items()}, what=what)
    except ConfigError as error:
        raise PeerError(str(error)) from None


def unpack_integers(
    distribution: Distribution, shapes: dict[str, tuple[int, ...]], what: str
) -> Arrays:
    """Decode int64 arrays of the given names and shapes, or raise a PeerError."""
    if set(distribution) != set(shapes):
        raise PeerError(f"{what}: the names of the arrays are wrong; send {', '.join(shapes)}")
    arrays = {
        name: _numbers(value, f"{what}: {name!r}", np.int64) for name, value in distribution.items()
    }
    try:
        return check_integers(arrays, shapes, what=what)
    except ConfigError as error:
        raise PeerError(str(error)) from None


def _array(value: Any, encoding: Encoding) -> Array:
    value = np.asarray(value)
    dtype = np.int64 if value.dtype == np.int64 else np.float64
    value = value.astype(dtype, copy=False)
    if encoding == "json":
        return Array(value.shape, value.ravel().tolist())
    little = np.dtype(dtype).newbyteorder("<")
    return Array(value.shape, np.ascontiguousarray(value, little).tobytes())


def _numbers(value: Any, what: str, dtype: type = np.float64) -> np.ndarray:
    if not isinstance(value, Array):
        raise PeerError(
            f"{what} is not an array; send shape and data, or a normal's mean and variance"
        )
    count = math.prod(value.shape)
    length = len(value.data) // 8 if isinstance(value.data, bytes) else len(value.data)
    whole = not isinstance(value.data, bytes) or len(value.data) % 8 == 0
    if not whole or count != length:
        raise PeerError(
            f"{what} has shape {list(value.shape)} but {length} numbers; send {count} numbers"
        )
    if isinstance(value.data, bytes):
        flat = np.frombuffer(value.data, np.dtype(dtype).newbyteorder("<")).astype(dtype)
    elif dtype is np.int64 and not all(_fits(one) for one in value.data):
        raise PeerError(
            f"{what} is not a list of 64-bit integers; a private release must contain only these"
        )
    else:
        flat = np.array(value.data, dtype=dtype)
    try:
        return flat.reshape(value.shape)
    except ValueError:  # no data, in a shape too large for numpy
        raise PeerError(f"{what} has an invalid shape; send the shape that was agreed") from None


def _fits(number: Any) -> bool:
    return isinstance(number, int) and -(2**63) <= number < 2**63


def _normal(mean: Any, variance: Any, family: Family | None, what: str) -> Natural:
    """Decode the output of `pack_normal`.

    A null or infinite variance means a constant factor, whose mean may be null.
    """
    if variance is None and isinstance(mean, float | int | None):  # all coordinates are flat
        size = 1 if family is None else family.dimension
        mean, variance = [mean] * size, [None] * size
    means, variances = _listed(mean), _listed(variance)
    if means is None or variances is None or len(means) != len(variances) or not means:
        raise PeerError(
            f"{what}: mean and variance must be two numbers, or two lists of one length; send a "
            "variance of null for a flat factor"
        )
    pairs = [_coordinate(*pair, what) for pair in zip(means, variances, strict=True)]
    linear, precision = (np.array(values) for values in zip(*pairs, strict=True))
    natural = {"linear": linear, "quadratic": -0.5 * precision}
    shapes = dict.fromkeys(natural, linear.shape) if family is None else family.shapes
    if set(shapes) != set(natural) or any(math.prod(s) != len(pairs) for s in shapes.values()):
        numbers = "a scalar normal" if len(pairs) == 1 else f"{len(pairs)} independent normals"
        raise PeerError(
            f"{what} is {numbers}, but this federation's posterior is {family!r}; send natural "
            "parameters of that family"
        )
    return {name: natural[name].reshape(shape) for name, shape in shapes.items()}


def _listed(value: Any) -> list[Any] | None:
    """Return a list with one entry per coordinate; None if `value` is an encoded array."""
    if isinstance(value, Array):
        return None
    return value if isinstance(value, list) else [value]


def _coordinate(mean: Any, variance: Any, what: str) -> tuple[float, float]:
    numbers = isinstance(mean, float | int | None) and isinstance(variance, float | int | None)
    flat = numbers and (variance is None or math.isinf(variance))
    if (
        not numbers
        or variance == 0
        or (mean is None and not flat)
        or (mean is not None and math.isnan(mean))
    ):
        raise PeerError(
            f"{what}: mean and variance must be numbers, and the variance not 0; use a "
            "variance of null for a flat factor"
        )
    if mean is None or variance is None or flat:
        return 0.0, 0.0
    precision = 1.0 / variance
    return mean * precision, precision
