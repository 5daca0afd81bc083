"""Settings checked against their own annotations when they are made, in one line each.

A wrong word or type is found where it was written, with what is allowed, and not rounds later by
whatever reads it.
"""

from __future__ import annotations

import difflib
import functools
import numbers
import types
import typing
from collections.abc import Iterable
from typing import Any, Literal

from tacit.errors import ConfigError

SMALLEST_SD = 1e-100
"""The square of a standard deviation, and the inverse of that, must be finite numbers > 0."""


def check_fields(settings: Any, key: str) -> None:
    """Raise a ConfigError for the first field whose value is not of its annotated type.

    Literals, numbers, whole numbers, true or false, text, None and unions of these are checked;
    of a field of any other type the class is, where it is one.
    """
    for name, hint in _hints(type(settings)).items():
        value = getattr(settings, name)
        if not _fits(value, hint):
            raise ConfigError(f"{key}.{name} = {value!r}; {_advice(value, hint)}")


def check_sd(value: float, key: str) -> float:
    """The value, if its square and the inverse of that are finite numbers > 0."""
    if not SMALLEST_SD <= value <= 1 / SMALLEST_SD:
        raise ConfigError(
            f"{key} = {value}; it must be > 0 and finite: in {SMALLEST_SD:g} … {1 / SMALLEST_SD:g}"
        )
    return float(value)


def choose_from(value: Any, allowed: Iterable[str]) -> str:
    """What to say of a word that is none of the allowed ones."""
    words = list(allowed)
    near = difflib.get_close_matches(value, words, n=1) if isinstance(value, str) else []
    advice = f"choose from {', '.join(map(repr, words))}"
    return f"did you mean {near[0]!r}? {advice}" if near else advice


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    found = typing.get_type_hints(kind)
    names = getattr(kind, "__dataclass_fields__", None) or kind.__struct_fields__
    return {name: found[name] for name in names if _checked(found.get(name))}


def _checked(hint: Any) -> bool:
    return hint is not None and typing.get_origin(hint) is not typing.ClassVar


def _members(hint: Any) -> tuple[Any, ...]:
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if union else (hint,)


def _fits(value: Any, hint: Any) -> bool:
    return any(_fits_one(value, one) for one in _members(hint))


def _fits_one(value: Any, hint: Any) -> bool:
    if hint is type(None):
        return value is None
    if typing.get_origin(hint) is Literal:
        return isinstance(value, str | int | bool) and value in typing.get_args(hint)
    if hint is bool:
        return isinstance(value, bool)
    if hint is int:
        return isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if hint is float:
        return isinstance(value, numbers.Real) and not isinstance(value, bool)
    kind = typing.get_origin(hint) or hint
    return not isinstance(kind, type) or isinstance(value, kind)


def _advice(value: Any, hint: Any) -> str:
    members = _members(hint)
    words = [word for one in members for word in typing.get_args(one) if isinstance(word, str)]
    if words and typing.get_origin(members[0]) is Literal:
        return choose_from(value, words)
    known = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    said = [known.get(one, getattr(one, "__name__", str(one))) for one in members]
    said = [
        "left out" if one is type(None) else word for one, word in zip(members, said, strict=True)
    ]
    return f"it must be {' or '.join(said)}"
