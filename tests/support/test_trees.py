"""`tree_map` without JAX does what `jax.tree.map` does."""

import sys
from typing import NamedTuple

import jax
import numpy as np
import pytest

from tacit.support.trees import tree_map


class Pair(NamedTuple):
    first: object
    second: object


TREE = Pair({"b": np.arange(3.0), "a": (1.0, None)}, [np.ones(2), Pair(2.0, ())])


@pytest.mark.parametrize("loaded", [True, False])
def test_trees_are_mapped_as_by_jax(loaded, monkeypatch):
    expected = jax.tree.map(lambda a, b: 2.0 * a + b, TREE, TREE)
    if not loaded:
        monkeypatch.delitem(sys.modules, "jax")
    found = tree_map(lambda a, b: 2.0 * a + b, TREE, TREE)
    np.testing.assert_equal(found, expected)
    assert type(found) is Pair
    assert type(found.second[1]) is Pair


def test_trees_of_different_shapes_are_refused(monkeypatch):
    monkeypatch.delitem(sys.modules, "jax")
    with pytest.raises(ValueError, match="shorter"):
        tree_map(lambda a, b: a + b, (1.0, 2.0), (1.0,))
