"""Thread-safe first use of a type by msgspec.

msgspec builds a Struct's description on first use and stores it in the class. A second thread can
see it before it is complete, which crashes the interpreter. Every conversion and every decoder with
a type therefore takes its type through `prepare`.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
_lock = threading.Lock()
_prepared: set[Any] = set()


def prepare(kind: type[T]) -> type[T]:
    """Make msgspec build its internal description of a type, and return the type.

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
