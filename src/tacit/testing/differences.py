"""Describe the difference between two values."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import msgspec
import numpy as np


def difference(sent: Any, back: Any, where: str) -> str | None:
    """Return a description of how two values differ, or None if they are equal to the last bit."""
    if type(sent) is not type(back):
        return (
            f"{where} was {type(sent).__name__} {shortened(sent)}, came back as {shortened(back)}"
        )
    if isinstance(sent, float):
        same = struct.pack(">d", sent) == struct.pack(">d", back)
        return None if same else f"{where} = {sent!r} came back as {back!r}"
    if isinstance(sent, np.ndarray):
        one, two = ((x.shape, x.dtype, x.tobytes()) for x in (sent, back))
        return (
            None if one == two else f"{where}: the array {shortened(sent)} became {shortened(back)}"
        )
    pairs = _parts(sent, back)
    if pairs is None:
        return (
            None if sent == back else f"{where} = {shortened(sent)} came back as {shortened(back)}"
        )
    if any(name is None for name, *_ in pairs):
        return f"{where} = {shortened(sent)} came back as {shortened(back)}"
    for name, one, two in pairs:
        gap = difference(one, two, f"{where}.{name}")
        if gap is not None:
            return gap
    return None


def _parts(sent: Any, back: Any) -> list[tuple[Any, Any, Any]] | None:
    # Triples (name, part of `sent`, part of `back`); only (None, sent, back) if the parts do not
    # correspond, and None if the values have no parts.
    if isinstance(sent, dict):
        if list(sent) != list(back):
            return [(None, sent, back)]
        return [(name, value, back[name]) for name, value in sent.items()]
    if isinstance(sent, msgspec.Struct):
        names: Sequence[str] = sent.__struct_fields__
    elif is_dataclass(sent):
        names = [field.name for field in fields(sent)]
    elif isinstance(sent, list | tuple):
        if len(sent) != len(back):
            return [(None, sent, back)]
        names = getattr(sent, "_fields", [str(place) for place in range(len(sent))])
        return list(zip(names, sent, back, strict=True))
    else:
        return None
    return [(name, getattr(sent, name), getattr(back, name)) for name in names]


def shortened(value: Any) -> str:
    """Return the text of a value on one line of at most 120 characters."""
    text = " ".join(str(value).split()) if isinstance(value, Exception) else repr(value)
    return text if len(text) <= 120 else f"{text[:117]}…"
