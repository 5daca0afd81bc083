"""Rewrite sums of products in a user's log-likelihood as matrix products.

`(x * w).sum(-1)` and `x @ w` have the same values. If they are differentiated twice and mapped over
directions, the first becomes a loop over scalars. The second becomes a matrix product, which is
several times faster. The speed of a model should not depend on how it is written, so the first form
is replaced by the second before a function is differentiated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tacit.arrays import Array
from tacit.support.compiler import jax, jnp

INLINED = ("jit", "pjit", "closed_call")


def with_matrix_products(function: Callable[..., Array]) -> Callable[..., Array]:
    """Return a function with the same values as `function` that uses matrix products instead of
    sums of products.

    Only sums `(x * w).sum(-1)` of a matrix x and a vector w are replaced.
    """

    def rewritten(*arguments: Any) -> Array:
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
        leaves = jax.tree.leaves(arguments)
        found = _evaluated(closed.jaxpr, closed.consts, leaves)
        return jax.tree.unflatten(jax.tree.structure(shape), found)

    return rewritten


def _evaluated(program: Any, constants: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    values: dict[Any, Any] = {}
    makers: dict[Any, Any] = {}

    def read(variable: Any) -> Any:
        return variable.val if hasattr(variable, "val") else values[variable]

    values.update(zip(program.constvars, constants, strict=True))
    values.update(zip(program.invars, arguments, strict=True))
    for step in program.eqns:
        inputs = [read(variable) for variable in step.invars]
        name = step.primitive.name
        factors = _factors(step, makers) if name == "reduce_sum" else None
        if factors is not None:
            matrix, vector = (read(variable) for variable in factors)
            found = [matrix @ jnp.reshape(vector, -1)]
        elif name in INLINED and "jaxpr" in step.params:
            inner = step.params["jaxpr"]
            found = _evaluated(inner.jaxpr, inner.consts, inputs)
        else:
            options = step.primitive.get_bind_params(step.params)
            # Older versions of JAX pass functions as separate arguments.
            functions, options = options if isinstance(options, tuple) else ((), options)
            found = step.primitive.bind(*functions, *inputs, **options)
            found = found if step.primitive.multiple_results else [found]
        values.update(zip(step.outvars, found, strict=True))
        makers.update(dict.fromkeys(step.outvars, step))
    return [read(variable) for variable in program.outvars]


def _factors(step: Any, makers: dict[Any, Any]) -> tuple[Any, Any] | None:
    """Return a matrix and a vector whose matrix product equals the sum in `step`, or None if the
    sum has another form.
    """
    (summed,) = step.invars
    product = None if hasattr(summed, "val") else makers.get(summed)
    if product is None or product.primitive.name != "mul" or tuple(step.params["axes"]) != (1,):
        return None
    shape = summed.aval.shape
    if len(shape) != 2 or shape[0] == 1 or not jnp.issubdtype(summed.aval.dtype, jnp.floating):
        return None
    one, other = product.invars
    for matrix, vector in ((one, other), (other, one)):
        row = _row(vector, shape, makers)
        if row is not None and matrix.aval.shape == shape and _row(matrix, shape, makers) is None:
            return matrix, row
    return None


def _row(variable: Any, shape: tuple[int, ...], makers: dict[Any, Any]) -> Any | None:
    """Return the vector that equals every row of `variable`, or None if the rows may differ."""
    if hasattr(variable, "val") or len(variable.aval.shape) != 2:
        return None
    if variable.aval.shape == (1, shape[1]):
        return variable
    maker = makers.get(variable)
    if maker is None or maker.primitive.name != "broadcast_in_dim":
        return None
    (source,) = maker.invars
    if hasattr(source, "val") or source.aval.shape not in ((shape[1],), (1, shape[1])):
        return None
    along = tuple(maker.params["broadcast_dimensions"])
    return source if along == ((1,) if len(source.aval.shape) == 1 else (0, 1)) else None
