"""The first use of a type by msgspec, one thread at a time.

msgspec describes a Struct to itself when it first converts or decodes one, and keeps that
description in the class, where a second thread finds it before it is complete: the interpreter
crashes. Every conversion and every decoder with a type therefore takes its type through `prepare`.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
_lock = threading.Lock()
_prepared: set[Any] = set()


def prepare(kind: type[T]) -> type[T]:
    """The same type, of which msgspec now has a complete description.

    >>> import msgspec
    >>> class Point(msgspec.Struct):
    ...     x: float
    >>> msgspec.convert({"x": 1.5}, prepare(Point))
    Point(x=1.5)
    """
    if kind not in _prepared:
        with _lock:
            if kind not in _prepared:
                msgspec.json.Decoder(kind)
                _prepared.add(kind)
    return kind
