"""Tables of a TOML file as structs, with all errors reported at once.

A table is a subclass of `Table`. Its fields are the keys, their annotations (with `msgspec.Meta`
for bounds) are the allowed values, and `faults` checks further conditions. If the keys depend on
the kind of the table, there are two ways to declare it. It can be a family of classes, one per
kind, which are listed in a `Kinds` registry. If code uses all kinds in the same way, it can be one
class with a list of keys per kind (`keys_of`). `tacit.support.table_reader.read_table` creates the
object, or raises one error that contains all errors of the table.

No array library is imported here, so an invalid file is refused quickly.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from tacit.errors import ConfigError, TacitError
from tacit.support.validation import field_faults

T = TypeVar("T", bound="Table")


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of configuration tables. The constructor checks all values, and rules that involve
    several keys.
    """

    place: ClassVar[str] = ""
    """The table's name in a file."""
    kind_key: ClassVar[str] = ""
    """The key that names the table's kind; only used together with `keys_of`."""
    keys_of: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Dict from a kind to its keys, besides `kind_key`."""
    renamed: ClassVar[Mapping[str, str]] = {}
    """Dict from a key of earlier versions to the key that replaces it."""
    renamed_kinds: ClassVar[Mapping[str, str]] = {}
    """Dict from a kind of earlier versions to its new name, or to advice; only used with `keys_of`.
    """
    renamed_values: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    """For each key, a dict whose keys are values of earlier versions and whose values replace them.
    """
    placeholders: ClassVar[Mapping[str, Any]] = {}
    """Values that replace invalid values of required keys while the other keys are checked."""
    advice: ClassVar[Mapping[str, str]] = {}
    """Advice that an error gives if a required key is missing, by key; the default advice is "add
    it".
    """
    unwritten: ClassVar[tuple[str, ...]] = ()
    """Fields that are not keys of the table in a file."""
    shown_as: ClassVar[Mapping[str, str]] = {}
    """For keys that a file has outside their table: the place in the file, by dotted name of the
    key.
    """

    def faults(self) -> Iterator[str | TacitError]:
        """Yield the errors that involve several values, one line each."""
        yield from ()

    def table_key(self) -> str:
        """Return the name of this table in a configuration file."""
        return self.place

    def __post_init__(self) -> None:
        raise_all((*field_faults(self, self.table_key()), *_foreign(self)) or self.faults())


class Kinds(Generic[T]):
    """Mapping from the kinds of one family to their tables; each table is imported on first use.

    The key `key` of the TOML file names the kind; a table without it has the kind `default`.
    `renamed` maps the kinds of earlier versions to their new names. Installed packages add kinds by
    entry points of the group `group`, each of which names a table.
    """

    def __init__(
        self,
        base: type[T],
        places: Mapping[str, str],
        *,
        default: str | None = None,
        renamed: Mapping[str, str] | None = None,
        group: str = "",
    ) -> None:
        self.base = base
        self.key = base.__struct_config__.tag_field or "kind"
        self.default = default
        self.renamed = dict(renamed or {})
        self.group = group
        self._places: dict[str, str | type[T]] = dict(places)
        _FAMILIES[base] = self

    def register(self, settings: type[T]) -> type[T]:
        """Register a table under its kind (the tag of the struct); usable as a decorator."""
        self._places[str(settings.__struct_config__.tag)] = settings
        return settings

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._places, *sorted(self._installed()))))

    def __contains__(self, kind: object) -> bool:
        return kind in self._places or kind in self._installed()

    def _installed(self) -> dict[str, str]:
        """Return a dict from each kind that other installed packages provide to its entry point."""
        found = entry_points(group=self.group) if self.group else ()
        return {one.name: one.value for one in found if one.name not in self._places}

    def __getitem__(self, kind: str) -> type[T]:
        place = self._places.get(kind) or self._installed()[kind]
        if not isinstance(place, str):
            return place
        module, _, name = place.partition(":")
        try:
            table: type[T] = getattr(import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f'{self.base.place}.{self.key} = "{kind}": {place} cannot be loaded ({error}); '
                "fix or uninstall that package"
            ) from error
        self._places[kind] = table
        return table

    def keys(self, kind: str) -> tuple[str, ...]:
        """Return the keys of the table of a kind, or () if the table cannot be loaded."""
        try:
            return tuple(fields_of(self[kind]))
        except ConfigError:
            return ()


_FAMILIES: dict[type[Table], Kinds[Any]] = {}


def family_of(table: type[Table]) -> Kinds[Any] | None:
    """Return the registry of kinds of a table, or None if the keys of the table do not depend on a
    kind.
    """
    return _FAMILIES.get(table)


def raise_all(faults: Iterable[str | TacitError]) -> None:
    """Raise the first error, if there is one, with the others in its attribute `also`."""
    errors = [ConfigError(one) if isinstance(one, str) else one for one in faults]
    if errors:
        errors[0].also = (*errors[0].also, *errors[1:])
        raise errors[0]


def given(table: Table) -> dict[str, Any]:
    """Return the keys of a table that were not left out, with their values."""
    values = {name: getattr(table, name) for name in table.__struct_fields__}
    return {name: value for name, value in values.items() if value is not None}


def plain(value: Any) -> Any:
    """Convert a table to dictionaries and lists, from which it can be read again. Keys whose value
    is None are omitted.

    >>> plain({"a": None, "b": (1, 2)})
    {'b': [1, 2]}
    """
    if isinstance(value, Table):
        config = value.__struct_config__
        keys = fields_of(type(value))
        if value.keys_of:
            keys = (value.kind_key, *value.keys_of[getattr(value, value.kind_key)])
        tag = {} if config.tag is None else {str(config.tag_field): config.tag}
        return tag | plain({key: getattr(value, key) for key in keys})
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items() if one is not None}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value


def shown(value: Any) -> str:
    """Return a value in TOML syntax."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {shown(one)}' for key, one in value.items())}}}"
    return repr(value)


def short(value: Any) -> str:
    """Return a value in TOML syntax, truncated if it is long."""
    text = shown(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


@functools.cache
def fields_of(table: type[Table]) -> dict[str, msgspec.structs.FieldInfo]:
    """Return the keys of a table, with their types and defaults."""
    return {field.name: field for field in msgspec.structs.fields(table)}


def _foreign(table: Table) -> Iterator[str]:
    """Yield an error message for each key that was set in a table although tables of its kind do
    not have this key.

    The kind of a table is the value of its key `table.kind_key`, for example of `kind` in [method].
    If no such kind exists, the only message says so. Nothing is yielded for tables without kinds.
    """
    if not table.keys_of:
        return
    kind, place = getattr(table, table.kind_key), table.place
    if kind not in table.keys_of:
        yield f"{place}.{table.kind_key} = {shown(kind)}; choose from {', '.join(table.keys_of)}"
        return
    for name, field in fields_of(type(table)).items():
        value = getattr(table, name)
        known = name == table.kind_key or name in table.keys_of[kind]
        if not known and value != default_of(field):
            yield (
                f'{place}.{name} = {short(value)} is not a key of {table.kind_key} = "{kind}"; '
                f"its keys are {', '.join(table.keys_of[kind])}: leave it out"
            )


def default_of(field: msgspec.structs.FieldInfo) -> Any:
    """Return the default value of a key."""
    factory = field.default_factory
    return field.default if factory is msgspec.NODEFAULT else factory()
