"""Choose NumPy for concrete arrays, and JAX for traced arrays and arrays on a device.

The server only adds small float64 arrays. In NumPy this needs no compiler and gives the same result
on every machine. Inside a jitted local step JAX must trace the same formulas. Each exponential
family therefore writes a formula once, with the library that `namespace` returns for its arguments.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np

SUBSTITUTED_ROWS = 32
BLOCK_ROWS = 64
"""Row counts are rounded up to a multiple of this number; see `whole_blocks`."""

Array = Any
"""A NumPy array, a JAX array or a tracer."""

Arrays = dict[str, Array]
"""A dict from names to arrays, as published in a request or released in a reply."""

Natural = Arrays
"""Natural parameters λ: a dict from names to float64 arrays; see `tacit.expfam.base`."""


def _is_jax(value: Array) -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.Array)


def namespace(*arrays: Array) -> ModuleType:
    """Return `jax.numpy` if any argument is a JAX array or tracer, otherwise `numpy`."""
    if any(_is_jax(array) for array in arrays):
        import jax.numpy as jnp

        return jnp
    return np


def special(*arrays: Array) -> ModuleType:
    """Return `jax.scipy.special` if any argument is a JAX array or tracer, else `scipy.special`."""
    if any(_is_jax(array) for array in arrays):
        import jax.scipy.special as jsp

        return jsp
    import scipy.special as sp

    return sp


def softplus(value: Array) -> Array:
    """Return log(1 + eᵛ), computed without overflow.

    JAX arrays use `jax.numpy.logaddexp`, whose first and second derivatives are exact everywhere.
    NumPy arrays use an explicit formula, which is five times as fast as `numpy.logaddexp`.
    """
    if namespace(value) is np:
        return np.maximum(value, 0.0) + np.log1p(np.exp(-np.abs(value)))
    import jax.numpy as jnp

    return jnp.logaddexp(value, 0.0)


def cholesky(matrix: Array) -> Array:
    """Return the lower-triangular L with LLᵀ = A, for a symmetric A.

    `jax.numpy` symmetrises A first, which doubles the compiled code; this function does not. Its
    derivative is therefore wrong if the entries of A vary independently.
    """
    if namespace(matrix) is np:
        return np.linalg.cholesky(matrix)
    import jax.numpy as jnp

    return jnp.linalg.cholesky(matrix, symmetrize_input=False)


def solve_lower(factor: Array, right: Array) -> Array:
    """Solve L x = b for lower-triangular L.

    In NumPy this uses forward substitution: SciPy takes a fifth of a second to load, and a BLAS
    library that is loaded inside `tacit.support.blas.one_blas_thread` is not limited to one thread.
    """
    if namespace(factor, right) is not np:
        from jax.scipy.linalg import solve_triangular

        return solve_triangular(factor, right, lower=True)
    factor, right = np.asarray(factor), np.asarray(right)
    if not (np.all(np.isfinite(factor)) and np.all(np.isfinite(right))):
        raise ValueError("the triangular matrix or the right side is not finite; check both")
    if not np.all(np.diagonal(factor)):
        raise np.linalg.LinAlgError("a triangular matrix is singular")
    return _forward(factor, right)


def _forward(factor: np.ndarray, right: np.ndarray) -> np.ndarray:
    # Large systems are halved, so that most of the work is matrix products.
    size = len(factor)
    if size > SUBSTITUTED_ROWS:
        half = size // 2
        first = _forward(factor[:half, :half], right[:half])
        rest = right[half:] - factor[half:, :half] @ first
        return np.concatenate([first, _forward(factor[half:, half:], rest)])
    solution = np.zeros(right.shape, np.result_type(factor, right, np.float32))
    for i in range(size):
        solution[i] = (right[i] - factor[i, :i] @ solution[:i]) / factor[i, i]
    return solution


def kept_rows(weights: Array, rows: Array) -> Array:
    """Return the rows in float64, with rows of weight 0 set to 0 (0·NaN would be NaN)."""
    xp = namespace(weights, rows)
    kept = (weights > 0).reshape(weights.shape + (1,) * (rows.ndim - 1))
    return xp.where(kept, rows, 0.0).astype(np.float64)


def whole_blocks(rows: int) -> int:
    """Return `rows` rounded up to a multiple of `BLOCK_ROWS`.

    Arrays of few different lengths need few compilations. With a multiple of the processor's vector
    length, all rows are computed by the same instructions.

    >>> whole_blocks(1), whole_blocks(64), whole_blocks(65)
    (64, 64, 128)
    """
    return -(-rows // BLOCK_ROWS) * BLOCK_ROWS


def unit_rows(rows: Array) -> tuple[Array, Array]:
    """Divide each row by its largest absolute entry; return the rows (float64) and the divisors.

    A row of zeros is not divided. The absolute values of scaled entries are at most 1, so their
    squares cannot overflow.
    """
    xp = namespace(rows)
    wide = rows.astype(np.float64)
    largest = xp.max(xp.abs(wide), axis=1, initial=0.0)
    return wide / xp.where(largest > 0, largest, 1.0)[:, None], largest


def computed_once(values: Any) -> Any:
    """Return the same arrays, protected from being recomputed by the compiler.

    A norm and the sum that it bounds must use the same numbers. XLA may compute an expression once
    per use, with different rounding. For an adversarially chosen posterior q the difference can be
    arbitrarily large. `jax.lax.optimization_barrier` does not prevent this on CPU, where it is
    removed before the compiler decides what to recompute. The arrays are therefore passed through a
    loop whose length is unknown at compile time, because its result is stored, not recomputed.
    """
    if sys.modules.get("jax") is None:
        return values
    import jax
    import jax.numpy as jnp

    leaves = jax.tree.leaves(values)
    if not any(map(_is_jax, leaves)):
        return values
    first = jnp.ravel(leaves[0])
    times = jnp.where(jnp.any(first != first), 2, 1)  # unknown at compile time

    def again(state: tuple[Array, Any]) -> tuple[Array, Any]:
        return state[0] + 1, values

    nothing = jax.tree.map(jnp.zeros_like, values)
    return jax.lax.while_loop(lambda state: state[0] < times, again, (0, nothing))[1]


def by_appearance(codes: np.ndarray) -> np.ndarray:
    """Renumber groups 0, 1, … in the order of their first appearance.

    >>> by_appearance(np.array([7, 3, 7, 9])).tolist()
    [0, 1, 0, 2]
    """
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(len(first))
    return rank[inverse]
