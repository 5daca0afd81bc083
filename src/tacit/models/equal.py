"""Equal models share compiled programs.

A compiled function belongs to a model object, so a second fit with an equal model would be traced
and compiled again. `first_equal` returns one object for all equal models of this library. Two
models are equal if they have the same class and equal attributes. The likelihood of a class from
another package may depend on more than its attributes, e.g. on a global variable. Each object of
such a class is therefore compiled separately, unless the class defines `compiled_as`.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import weakref
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tacit.models.base import Model

MOST_KEPT = 64
_OWN_PACKAGE = __name__.split(".")[0]


def first_equal(model: Model) -> Model:
    """Return an object that is the same for all models equal to `model`: a copy of the first such
    model.

    A model that cannot be compared is returned unchanged. A model cannot be compared if its class
    belongs to another package, or if an attribute has a type that is not compared by value.

    Parameters
    ----------
    model
        The model, which must not change afterwards.
    """
    known = _KNOWN.get(model)
    if known is None:
        known = _KNOWN[model] = _first_equal(model)
    return known


_KNOWN: weakref.WeakKeyDictionary[Model, Model] = weakref.WeakKeyDictionary()


def _first_equal(model: Model) -> Model:
    if type(model).__module__.split(".")[0] != _OWN_PACKAGE:
        return model
    try:
        return _copy_of_first(_ByValue(model))
    except _UnknownValueError:
        return model


class _UnknownValueError(TypeError):
    """Raised for a value whose type this module does not compare by value."""


class _ByValue:
    def __init__(self, model: Model) -> None:
        self.model, self.value = model, (type(model), _hashable(vars(model)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByValue) and other.value == self.value

    def __hash__(self) -> int:
        return hash(self.value)


@functools.lru_cache(maxsize=MOST_KEPT)
def _copy_of_first(equal: _ByValue) -> Model:
    return copy.deepcopy(equal.model)  # so that later changes of the model have no effect


def _hashable(value: Any) -> Hashable:
    """Return a hashable key that is equal for values of the same type and content. 0.0 and −0.0
    have different keys, and so have 1 and 1.0.
    """
    kind = type(value)
    if value is None or kind in (bool, int, str, bytes):
        return kind, value
    if kind is float:
        return kind, value.hex()
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufcUS":
        return kind, value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, tuple | list):
        return kind, tuple(_hashable(item) for item in value)
    if isinstance(value, dict):
        return kind, tuple((_hashable(name), _hashable(item)) for name, item in value.items())
    if dataclasses.is_dataclass(value) and kind.__module__.split(".")[0] == _OWN_PACKAGE:
        return kind, _hashable(vars(value))
    raise _UnknownValueError(f"{kind.__name__} is not compared by value")
