"""Map functions over nested tuples and dictionaries of arrays, without loading JAX."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def tree_map(function: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """Call `jax.tree.map` if JAX is loaded; otherwise do the same, for tuples and dictionaries
    only.

    >>> tree_map(lambda a, b: a + b, {"x": (1, None)}, {"x": (2, None)})
    {'x': (3, None)}
    """
    if "jax" in sys.modules:
        import jax

        return jax.tree.map(function, tree, *rest)
    if tree is None:
        return None
    if isinstance(tree, dict):
        return {
            name: tree_map(function, value, *(one[name] for one in rest))
            for name, value in tree.items()
        }
    if isinstance(tree, tuple | list):
        parts = [tree_map(function, *each) for each in zip(tree, *rest, strict=True)]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return function(tree, *rest)


def unstacked(tree: Any, count: int) -> list[Any]:
    """Split a tree of arrays along their first axis into `count` trees.

    >>> import numpy as np
    >>> [float(one["x"]) for one in unstacked({"x": np.array([1.0, 2.0])}, 2)]
    [1.0, 2.0]
    """
    if "jax" in sys.modules:
        import jax

        leaves, structure = jax.tree.flatten(tree)
        return [structure.unflatten([leaf[i] for leaf in leaves]) for i in range(count)]
    return [tree_map(lambda leaf, i=i: leaf[i], tree) for i in range(count)]
