"""Validate settings against their annotations on construction.

An error names the key, the value and what is allowed. The bounds of a number are given by
`msgspec.Meta` in its annotation. A number must be finite, unless the annotation contains
`Meta(extra=INFINITE)`.
"""

from __future__ import annotations

import difflib
import functools
import math
import numbers
import types
import typing
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

from msgspec import Meta

from tacit.errors import ConfigError

SMALLEST_SD = 1e-100
"""Smallest allowed standard deviation: its square and inverse square are finite and > 0."""
INFINITE = {"infinite": True}
"""`Meta(extra=INFINITE)` allows a number that is not finite."""

MAX_SEED = 2**32 - 1
Seed = Annotated[int, Meta(ge=0, le=MAX_SEED)]
Count = Annotated[int, Meta(ge=1)]
Finite = Annotated[float, Meta()]
Positive = Annotated[float, Meta(gt=0)]
Fraction = Annotated[float, Meta(gt=0, lt=1)]
UpToOne = Annotated[float, Meta(gt=0, le=1)]
FromZeroToOne = Annotated[float, Meta(ge=0, le=1)]
BelowOne = Annotated[float, Meta(ge=0, lt=1)]
StandardDeviation = Annotated[float, Meta(ge=SMALLEST_SD, le=1 / SMALLEST_SD)]


def check_fields(settings: Any, key: str) -> None:
    """Raise a ConfigError for the first field that does not match its annotation.

    Checks literals, numbers and their bounds, booleans, text, None and unions of these. A field
    with any other annotation must be an instance of the annotated class.
    """
    for fault in field_faults(settings, key):
        raise ConfigError(fault)


def field_faults(settings: Any, key: str) -> Iterator[str]:
    """Yield one line for each field that does not match its annotation."""
    for name, hint in _hints(type(settings)).items():
        value = getattr(settings, name)
        if not fits(value, hint):
            place = f"{key}.{name}" if key else name
            yield f"{place} = {value!r}; {words_of(hint, value)}"


def check_sd(value: float, key: str) -> float:
    """Return `value`; raise a ConfigError if it or its inverse is below `SMALLEST_SD`."""
    if not SMALLEST_SD <= value <= 1 / SMALLEST_SD:
        raise ConfigError(
            f"{key} = {value}; it must be a number from {SMALLEST_SD:g} to {1 / SMALLEST_SD:g}"
        )
    return float(value)


def choose_from(value: Any, allowed: Iterable[str]) -> str:
    """Return advice for a value that is not allowed: a similar allowed value, if any, and all
    allowed values.
    """
    words = list(allowed)
    near = near_word(value, words)
    advice = f"choose from {', '.join(map(repr, words))}"
    return f"did you mean {near!r}? {advice}" if near else advice


def near_word(value: Any, words: Iterable[str]) -> str:
    """Return the allowed word that is closest to a misspelt one, or "".

    >>> near_word("Adlut", ["adult", "heart"]), near_word("x", ["adult"]), near_word(3, ["adult"])
    ('adult', '', '')
    """
    if not isinstance(value, str):
        return ""
    lower = {word.lower(): word for word in words}
    near = difflib.get_close_matches(value.lower(), lower, n=1)
    return lower[near[0]] if near else ""


def options(hint: Any) -> tuple[Any, ...]:
    """Return the member types of a union; for another type, that type."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if union else (hint,)


def fits(value: Any, hint: Any) -> bool:
    """True if a value matches an annotation.

    >>> fits(0.5, UpToOne | None), fits(math.nan, UpToOne), fits(2, Count), fits(True, Count)
    (True, False, True, False)
    """
    return any(_fits_one(value, one) for one in options(hint))


def words_of(hint: Any, value: Any = None) -> str:
    """Describe the values that an annotation allows, with a suggestion for a misspelt value.

    >>> words_of(UpToOne | None), words_of(Count), words_of(tuple[str, ...])
    ('it must be a number in (0, 1]', 'it must be a whole number of at least 1', 'it must be a list of texts')
    """  # noqa: E501
    members = [one for one in options(hint) if one is not type(None)]
    literals = [
        word for one in members if typing.get_origin(one) is Literal
        for word in typing.get_args(one)
    ]  # fmt: skip
    others = [one for one in members if typing.get_origin(one) is not Literal]
    if literals and not others:
        return choose_from(value, map(str, literals))
    words = [repr(word) for word in literals] + [_type_words(one) for one in others]
    texts = any(one in (tuple[str, ...], list[str]) for one in others)
    listed = isinstance(value, list | tuple) and any(not isinstance(one, str) for one in value)
    advice = ', e.g. ["0", "1"]' if texts and listed else ""
    return f"it must be {' or '.join(words)}{advice}"


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    found = typing.get_type_hints(kind, include_extras=True)
    names = getattr(kind, "__dataclass_fields__", None) or kind.__struct_fields__
    return {name: found[name] for name in names if _checked(found.get(name))}


def _checked(hint: Any) -> bool:
    return hint is not None and typing.get_origin(hint) is not typing.ClassVar


def _fits_one(value: Any, hint: Any) -> bool:
    if typing.get_origin(hint) is Annotated:
        kind, meta = typing.get_args(hint)
        return _fits_one(value, kind) and _inside(value, meta)
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


def _inside(value: Any, meta: Meta) -> bool:
    if isinstance(value, str):
        length = len(value)
        return (meta.min_length or 0) <= length <= (meta.max_length or length)
    if not isinstance(value, numbers.Real):
        return True
    number = float(value)
    return (
        (math.isfinite(number) or bool((meta.extra or {}).get("infinite")))
        and not math.isnan(number)
        and (meta.gt is None or number > meta.gt)
        and (meta.ge is None or number >= meta.ge)
        and (meta.lt is None or number < meta.lt)
        and (meta.le is None or number <= meta.le)
    )


def _type_words(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _type_words(arguments[0]) + _bounds(arguments[1])
    if origin in (tuple, list):
        return f"a list of {_type_words(arguments[0]).removeprefix('a ')}s"
    if origin is dict or hasattr(hint, "__struct_fields__"):
        return "a table"
    known = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    return known.get(hint, f"a {getattr(hint, '__name__', 'value')}")


def _bounds(meta: Meta) -> str:
    low, high = (meta.gt if meta.ge is None else meta.ge), (meta.lt if meta.le is None else meta.le)
    if low is not None and high is not None:
        left, right = "(" if meta.ge is None else "[", ")" if meta.le is None else "]"
        return f" in {left}{low:.10g}, {high:.10g}{right}"
    if low is not None:
        return f" of at least {low:.10g}" if meta.gt is None else f" > {low:.10g}"
    if high is not None:
        return f" of at most {high:.10g}" if meta.lt is None else f" < {high:.10g}"
    if meta == Meta():
        return " that is finite"
    if meta.max_length is not None and meta.max_length == meta.min_length:
        return f" of {meta.max_length} character{'' if meta.max_length == 1 else 's'}"
    return ""
