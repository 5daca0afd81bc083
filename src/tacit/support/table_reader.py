"""Read tables (`tacit.support.tables`) from plain dictionaries and report all errors at once."""

from __future__ import annotations

import re
import tomllib
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from tacit.errors import ConfigError, DataError, TacitError
from tacit.support.argument_names import toml_key
from tacit.support.tables import Table, family_of, fields_of, raise_all, short, shown
from tacit.support.type_info import prepare
from tacit.support.validation import fits, near_word, options, words_of

T = TypeVar("T", bound=Table)


def read_toml_file(path: Path) -> dict[str, Any]:
    """Read a TOML file as a dictionary, or raise a one-line error with the reason."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"File not found: {path}; give the path of a TOML file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error}); give the path of a TOML file") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}; fix that line") from None


def read_table(raw: Any, table: type[T], path: str = "") -> T:
    """Read a dictionary as a table; raise the first error, with the others in its attribute `also`.

    >>> class Point(Table, frozen=True, kw_only=True):
    ...     x: float
    ...     count: int = 1
    >>> read_table({"x": 1, "count": 2}, Point)
    Point(x=1.0, count=2)
    >>> read_table({"x": 1, "cuont": 2}, Point)
    Traceback (most recent call last):
    ...
    tacit.errors.ConfigError: cuont = 2 is not a known key; did you mean count?
    """
    made, faults = find_faults(raw, table, path)
    raise_all(faults)
    assert made is not None
    return made


def find_faults(raw: Any, table: type[T], path: str = "") -> tuple[T | None, list[TacitError]]:
    """Return the table (or None if it has errors) and all its errors."""
    made, faults = _Reader(table.shown_as).table(raw, table, path)
    return made, faults


class _Reader:
    """Reads tables recursively. Every method returns (value or None, errors)."""

    def __init__(self, shown_as: Mapping[str, str]) -> None:
        self.shown_as = shown_as

    def table(self, raw: Any, table: type[Any], path: str) -> tuple[Any, list[TacitError]]:
        if isinstance(raw, table):
            return raw, []
        if not isinstance(raw, dict):
            return None, [ConfigError(f"{self.key(path)} = {shown(raw)}; it must be a table")]
        variants = _variants(table)
        if variants is None:
            return self.fields(raw, table, path, None, fields_of(table))
        kind = raw.get(variants.key, variants.default)
        if not isinstance(kind, str) or not variants.has(kind):
            return None, [
                ConfigError(self.kind_fault(kind, variants, self.key(path, variants.key)))
            ]
        one = variants.table(kind)
        named = {kind_key: fields_of(one)[kind_key] for kind_key in [one.kind_key] if kind_key}
        own = raw if named else {k: value for k, value in raw.items() if k != variants.key}
        fields = named | {key: fields_of(one)[key] for key in variants.keys(kind)}
        return self.fields(own, one, path, (variants, kind), fields)

    def fields(
        self,
        raw: dict[str, Any],
        table: type[Any],
        path: str,
        variant: tuple[_Variants, str] | None,
        fields: Mapping[str, msgspec.structs.FieldInfo],
    ) -> tuple[Any, list[TacitError]]:
        faults: list[TacitError] = []
        suspect: set[str] = set()
        for key in raw:
            if key not in fields:
                advice, near = self.unknown(key, table, variant, path)
                faults.append(ConfigError(f"{self.key(path, key)} = {short(raw[key])} {advice}"))
                suspect |= {key, near}
        good: dict[str, Any] = {}
        for name, field in fields.items():
            if name in raw:
                value, below = self.value(raw[name], field.type, self.join(path, name))
                new = _renamed_value(table, name, raw[name])
                if below and new:
                    key = self.key(path, name)
                    below = [ConfigError(f'{key} = "{raw[name]}"; did you mean "{new}"?')]
                faults += below
                if below:
                    suspect.add(name)
                else:
                    good[name] = value
            elif field.required:
                if name not in suspect:
                    advice = table.advice.get(name, "add it")
                    faults.append(ConfigError(f"{self.key(path, name)} is missing; {advice}"))
                suspect.add(name)
        return self.checked(table, good, faults, suspect - {""})

    def checked(
        self, table: type[Any], good: dict[str, Any], faults: list[TacitError], suspect: set[str]
    ) -> tuple[Any, list[TacitError]]:
        """Make the table from its valid keys. Return the table, or None if it cannot be made, and
        all errors.

        Errors of the constructor that mention a key in `suspect` are left out, because this key
        already has another error.
        """
        required = {name for name, field in fields_of(table).items() if field.required}
        stand_ins = {name: value for name, value in table.placeholders.items() if name not in good}
        if required - good.keys() - stand_ins.keys():
            return None, faults
        try:
            made = table(**stand_ins, **good)
        except TacitError as error:
            found = [error, *error.also]
            error.also = ()
            words = {word for key in suspect for word in (key, *key.split("."))}
            clear = [one for one in found if words.isdisjoint(re.findall(r"\w+", str(one)))]
            return None, faults + clear
        return (None if faults else made), faults

    def value(self, raw: Any, hint: Any, path: str) -> tuple[Any, list[TacitError]]:
        members = options(hint)
        for option in members:
            if _is_table(option) and (isinstance(raw, dict | option) or len(members) == 1):
                return self.table(raw, option, path)
            inner = _inner_table(option)
            if inner is None:
                continue
            if typing.get_origin(option) is dict and isinstance(raw, dict):
                rows = {key: self.table(row, inner, f"{path}.{toml_key(key)}")
                        for key, row in raw.items()}  # fmt: skip
                made = {key: row for key, (row, _) in rows.items()}
                return made, [one for _, below in rows.values() for one in below]
            if typing.get_origin(option) is tuple and isinstance(raw, list | tuple):
                found = [self.table(row, inner, f"{path}{_place(row, i)}") for i, row in
                         enumerate(raw)]  # fmt: skip
                return tuple(row for row, _ in found), [one for _, below in found for one in below]
        return self.leaf(raw, hint, path)

    def leaf(self, raw: Any, hint: Any, path: str) -> tuple[Any, list[TacitError]]:
        if isinstance(raw, tuple):
            raw = list(raw)
        try:
            value = msgspec.convert(raw, prepare(hint))
        except msgspec.ValidationError:
            pass
        else:
            if fits(value, hint):
                return value, []
        return None, [ConfigError(f"{self.key(path)} = {short(raw)}; {words_of(hint, raw)}")]

    def kind_fault(self, kind: Any, variants: _Variants, key: str) -> str:
        kinds = variants.kinds()
        listed = ", ".join(kinds)
        if kind is None:
            return f"{key} is missing; choose from {listed}"
        new = variants.renamed.get(kind) if isinstance(kind, str) else None
        if new is not None and new not in kinds:  # it is advice
            return f"{key} = {shown(kind)}; {new}"
        near = new or near_word(kind, kinds)
        advice = f'did you mean "{near}"? ' if near else ""
        return f"{key} = {shown(kind)}; {advice}choose from {listed}"

    def unknown(
        self, key: str, table: type[Any], variant: tuple[_Variants, str] | None, path: str
    ) -> tuple[str, str]:
        """Return a message about an unknown key, and the known key that the user may have meant."""
        keys = [*table.shown_as.values(), *fields_of(table)]
        of, others = "is not a known key", []
        if variant is not None:
            variants, kind = variant
            keys, of = list(variants.keys(kind)), f'is not a key of {variants.key} = "{kind}"'
            others = [one for one in variants.kinds() if key in variants.keys(one)]
        if key in table.renamed:
            return f"{of}; did you mean {table.renamed[key]}?", table.renamed[key]
        keys = [
            one
            for one in keys
            if self.join(path, one) not in self.shown_as and one not in table.unwritten
        ]
        near = near_word(key, keys)
        if near and not others:
            return f"{of}; did you mean {near}?", near
        listed = f"its keys are {', '.join(keys)}" if keys else "it has no keys"
        todo = "choose another kind, or leave it out" if others else "leave it out"
        elsewhere = f" ({', '.join(others)} {'has' if len(others) == 1 else 'have'} it)"
        return f"{of}{elsewhere if others else ''}; {listed}: {todo}", ""

    def join(self, path: str, key: str) -> str:
        return f"{path}.{key}" if path else key

    def key(self, path: str, key: str = "") -> str:
        """Return the full name of a key, as it is written in the file."""
        whole = self.join(path, key) if key else path
        for place, name in self.shown_as.items():
            if whole == place or whole.startswith(f"{place}."):
                return name + whole[len(place) :]
        return whole


class _Variants(NamedTuple):
    """Kinds of a table, with functions that return the class and the keys of each kind."""

    key: str
    kinds: Callable[[], tuple[str, ...]]
    has: Callable[[str], bool]
    default: str | None
    renamed: Mapping[str, str]
    table: Callable[[str], type[Table]]
    keys: Callable[[str], tuple[str, ...]]


def _variants(table: type[Table]) -> _Variants | None:
    family = family_of(table)
    if family is not None:
        return _Variants(
            family.key,
            lambda: tuple(family),
            family.__contains__,
            family.default,
            family.renamed,
            family.__getitem__,
            family.keys,
        )
    if not table.keys_of:
        return None
    default = fields_of(table)[table.kind_key].default
    return _Variants(
        table.kind_key,
        lambda: tuple(table.keys_of),
        table.keys_of.__contains__,
        default if isinstance(default, str) else None,
        table.renamed_kinds,
        lambda _: table,
        table.keys_of.__getitem__,
    )


def _renamed_value(table: type[Table], key: str, value: Any) -> str:
    renamed = table.renamed_values.get(key, {})
    return renamed.get(value, "") if isinstance(value, str) else ""


def _is_table(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Table)


def _inner_table(hint: Any) -> type[Table] | None:
    """Return the table type of the values in a list or dictionary."""
    return next((one for one in typing.get_args(hint) if _is_table(one)), None)


def _place(row: Any, index: int) -> str:
    name = row.get("name") if isinstance(row, dict) else None
    return f".{toml_key(name)}" if isinstance(name, str) and name else f"[{index}]"
