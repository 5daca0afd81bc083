"""NumPy for concrete arrays, JAX for traced or device ones.

The server's algebra is a few additions on small float64 arrays: in NumPy it needs no compiler
and is the same on every machine. Inside a jitted local step the same formulas must trace. Each
family therefore asks here which library its arguments belong to and writes its formula once.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np

Array = Any


def _is_jax(value: Array) -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.Array)


def namespace(*arrays: Array) -> ModuleType:
    """`jax.numpy` if any argument is a JAX array or tracer, else `numpy`."""
    if any(_is_jax(array) for array in arrays):
        import jax.numpy as jnp

        return jnp
    return np


def special(*arrays: Array) -> ModuleType:
    """The matching library of special functions."""
    if any(_is_jax(array) for array in arrays):
        import jax.scipy.special as jsp

        return jsp
    import scipy.special as sp

    return sp


def cholesky(matrix: Array) -> Array:
    """The lower-triangular L with LLᵀ = A, for an A that is symmetric however it was made.

    `jax.numpy` would make it symmetric again, which is as much to compile as the rest. Of an A
    whose entries vary one by one the derivative would be wrong.
    """
    if namespace(matrix) is np:
        return np.linalg.cholesky(matrix)
    import jax.numpy as jnp

    return jnp.linalg.cholesky(matrix, symmetrize_input=False)


def solve_lower(factor: Array, right: Array) -> Array:
    """Solve L x = b for lower-triangular L."""
    if namespace(factor, right) is np:
        from scipy.linalg import solve_triangular
    else:
        from jax.scipy.linalg import solve_triangular
    return solve_triangular(factor, right, lower=True)


def kept_rows(weights: Array, rows: Array) -> Array:
    """The rows in float64; those of weight 0 replaced, not multiplied: 0·NaN is NaN."""
    xp = namespace(weights, rows)
    kept = (weights > 0).reshape(weights.shape + (1,) * (rows.ndim - 1))
    return xp.where(kept, rows, 0.0).astype(np.float64)
