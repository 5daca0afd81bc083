"""Error messages for Python callers, which name arguments instead of keys of a study file.

The command line and Python share the checks of configurations, records and plans. Their messages
name keys of a study file, and `python_names` replaces these in errors of Python functions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

from tacit.errors import TacitError

_COLUMN = r'columns\.(?:"([^"]+)"|([^\s.;:=,]+))'
_NAMES: tuple[tuple[str, str], ...] = (
    (rf"{_COLUMN}\.(low|high)\b", r'\3 of bounds["\1\2"]'),
    (rf"{_COLUMN}\.(center|scale)\b", r'\3 of scale["\1\2"]'),
    (rf"{_COLUMN}\.(levels|missing_values|missing)\b", r'\3["\1\2"]'),
    (rf"{_COLUMN}\.unit\b", r'units["\1\2"]'),
    (rf"{_COLUMN}\.([a-z_]+)\b", r'\3 of column "\1\2"'),
    (_COLUMN, r'column "\1\2" of the schema'),
    (r"\[privacy\] epsilon = ([\d.]+)", r"privacy=tacit.Privacy(epsilon=\1)"),
    (r"\[privacy\]", "privacy"),
    (r"\bin \[columns\]", "in schema=tacit.Schema(…)"),
    (r"\[columns\]", "the schema"),
    (r"\[model\]", "family"),
    (r'\bdata\.path = (?=")', ""),
    (r"\bdata\.path\b", "data"),
    (r"\bdata\.held_out\b", "test"),
    (r"\bdata\.(party|person)\b", r"\1"),
    (r"\bmodel\.(kind|noise_sd|prior_sd|prior_mean)\b", r"\1"),
    (r"\b(method|schedule)\.kind\b", r"\1"),
    (r"\bprivacy\.epsilon\b", "epsilon"),
    (r'keep persons together with partition\.kind = "balanced", ', ""),
)
"""Patterns of keys of a study file, each with the text for the Python argument."""


def column_key(name: object) -> str:
    """Return the key of a column's table in a study file, quoted as TOML needs it.

    >>> column_key("age"), column_key("SBP mmHg")
    ('columns.age', 'columns."SBP mmHg"')
    """
    return f"columns.{toml_key(name)}"


def toml_key(name: object) -> str:
    """Return one part of a dotted key, quoted if TOML needs it."""
    bare = re.fullmatch(r"[A-Za-z0-9_-]+", str(name))
    return str(name) if bare else json.dumps(str(name), ensure_ascii=False)


def in_python(text: str) -> str:
    """Return a message in which keys of a study file are replaced by Python arguments.

    >>> in_python('columns.age.low = 9; it must be less than high = 5')
    'low of bounds["age"] = 9; it must be less than high = 5'
    """
    for pattern, words in _NAMES:
        text = re.sub(pattern, words, text)
    return text


@contextmanager
def python_names() -> Iterator[None]:
    """Context manager in which errors name Python arguments instead of keys of a study file."""
    try:
        yield
    except TacitError as error:
        for one in (error, *error.also):
            one.args = (in_python(str(one)), *one.args[1:])
        raise
