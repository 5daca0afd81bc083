"""Generate sample messages from the types of their fields, with values at and beyond the limits of
every range.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import inspect

FLOATS = (
    0.1,
    -0.0,
    5e-324,
    -2.2250738585072014e-308,
    1.7976931348623157e308,
    1.0 + 2.0**-52,
    123456789.12345679,
)
TEXTS = ("", "plain", 'a "quote", \\ and / \x00\x1f\x7f', "ü ∂ 😀 \u2028")
TIMES = (
    datetime(2026, 3, 1, 12, 30, tzinfo=UTC),
    datetime(1999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
)
NESTED = 8
"""Largest number of samples of a nested message."""


def message_samples(kind: type[msgspec.Struct]) -> list[msgspec.Struct]:
    """Return messages of one type, in which every field has each of its sample values at least
    once.

    The first message has only the required fields.
    """
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    columns = {field.name: _values(field.type) for field in info.fields}
    required = {field.name: columns[field.name][0] for field in info.fields if field.required}
    samples = [kind(**required)]
    for number in range(max((len(values) for values in columns.values()), default=0)):
        chosen = {name: values[number % len(values)] for name, values in columns.items()}
        samples.append(kind(**chosen))
    return samples


def beyond_limits(kind: type[msgspec.Struct]) -> Iterator[tuple[str, msgspec.Struct]]:
    """Yield pairs of a field's name and a message in which the value of this field is outside its
    range.
    """
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    whole = message_samples(kind)[-1]
    for field in info.fields:
        for value in _beyond(field.type):
            yield field.name, msgspec.structs.replace(whole, **{field.name: value})


def _values(info: inspect.Type) -> list[Any]:
    """Return sample values that a field of this type may have."""
    if isinstance(info, inspect.UnionType):
        return list(itertools.chain.from_iterable(_values(each) for each in info.types))
    if isinstance(info, inspect.StructType):
        return message_samples(info.cls)[:NESTED]
    if isinstance(info, inspect.DictType):
        values = _values(info.value_type)
        several = dict(zip(_values(info.key_type), values * 2, strict=False))
        return [{}, *({"value": value} for value in values), several]
    if isinstance(info, inspect.ListType | inspect.VarTupleType):
        kind = list if isinstance(info, inspect.ListType) else tuple
        items = _values(info.item_type)[: info.max_length]
        return [kind(), kind(items), kind(items[:1])]
    if isinstance(info, inspect.TupleType):
        return [tuple(_values(each)[0] for each in info.item_types)]
    return _scalars(info)


def _scalars(info: inspect.Type) -> list[Any]:
    if isinstance(info, inspect.IntType):
        low, high = _range(info)
        inside = {low, high, *(value for value in (0, 1, 2**31, -1) if low <= value <= high)}
        return sorted(inside)
    if isinstance(info, inspect.FloatType):
        return list(FLOATS)
    if isinstance(info, inspect.StrType):
        longest = () if info.max_length is None else ("ü" * info.max_length,)
        return [*TEXTS, *longest]
    if isinstance(info, inspect.BytesType):
        return [b"", bytes(range(256)), b"\0\0\0\0\0\0\xf0\x3f"]
    if isinstance(info, inspect.BoolType):
        return [False, True]
    if isinstance(info, inspect.NoneType):
        return [None]
    if isinstance(info, inspect.DateTimeType):
        return list(TIMES)
    if isinstance(info, inspect.LiteralType):
        return list(info.values)
    raise TypeError(
        f"cannot make sample values for a field of type {info!r}; pass messages in `samples`"
    )


def _beyond(info: inspect.Type) -> list[Any]:
    """Return values just outside the limits of this type, if it has limits."""
    if isinstance(info, inspect.UnionType):
        return list(itertools.chain.from_iterable(_beyond(each) for each in info.types))
    if isinstance(info, inspect.StructType):
        return [message for _, message in beyond_limits(info.cls)]
    if isinstance(info, inspect.IntType):
        low, high = _range(info)
        below = [] if info.ge is None and info.gt is None else [low - 1]
        return [*below, *([] if info.le is None and info.lt is None else [high + 1])]
    if isinstance(info, inspect.StrType) and info.max_length is not None:
        return ["x" * (info.max_length + 1)]
    if isinstance(info, inspect.BytesType) and info.max_length is not None:
        return [bytes(info.max_length + 1)]
    if isinstance(info, inspect.ListType | inspect.VarTupleType):
        items = _values(info.item_type)
        too_many = [] if info.max_length is None else [(items * (info.max_length + 1))]
        inside = [[value] for value in _beyond(info.item_type)]
        kind = list if isinstance(info, inspect.ListType) else tuple
        cut = [many[: info.max_length + 1] for many in too_many if info.max_length is not None]
        return [kind(value) for value in (*cut, *inside)]
    if isinstance(info, inspect.DictType):
        return [{"value": value} for value in _beyond(info.value_type)]
    return []


def _range(info: inspect.IntType) -> tuple[int, int]:
    low = info.ge if info.ge is not None else -(2**31) if info.gt is None else info.gt + 1
    high = info.le if info.le is not None else 2**53 if info.lt is None else info.lt - 1
    return int(low), int(high)
