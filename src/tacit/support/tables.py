"""Tables of a TOML file as structs, read with all of their faults at once.

A table is a subclass of `Table`: its fields are the keys, their annotations (with `msgspec.Meta`
for bounds) the values that they may have, and `faults` what else must hold. Where the keys depend
on a kind, the table is a family of such classes, one per kind, listed in a `Kinds` registry, or,
where code reads all kinds alike, one class with a list of keys per kind (`keys_of`).
`tacit.support.table_reader.read_table` makes the object, or raises one error that carries every
fault of the table.

No array library is imported here, so that a bad file is refused at once.
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
    """A table of a configuration. Making one checks what concerns several keys together."""

    place: ClassVar[str] = ""
    """The table's name in a file."""
    kind_key: ClassVar[str] = ""
    """The key that names the kind, in a table that has `keys_of`."""
    keys_of: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """The keys that a table of each kind has, beside `kind_key`."""
    renamed: ClassVar[Mapping[str, str]] = {}
    """Keys that earlier versions had, each with what to write instead."""
    renamed_kinds: ClassVar[Mapping[str, str]] = {}
    """The same for kinds, in a table that has `keys_of`."""
    renamed_values: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    """The same for the values of keys."""
    placeholders: ClassVar[Mapping[str, Any]] = {}
    """What stands for a required key that has a fault while the other keys are checked."""
    advice: ClassVar[Mapping[str, str]] = {}
    """What to do about a required key that is missing; left out: add it."""
    unwritten: ClassVar[tuple[str, ...]] = ()
    """Fields that are not keys of the table in a file."""
    shown_as: ClassVar[Mapping[str, str]] = {}
    """Of a whole file: where its user writes keys that are kept in another table."""

    def faults(self) -> Iterator[str | TacitError]:
        """What is wrong with the values together, each fault in one line."""
        yield from ()

    def table_key(self) -> str:
        """Where the table is written in a file."""
        return self.place

    def __post_init__(self) -> None:
        raise_all((*field_faults(self, self.table_key()), *_foreign(self)) or self.faults())


class Kinds(Generic[T]):
    """The tables of one family by kind: where each is, imported when it is first used.

    `key` is the key of the TOML file that names the kind, `default` the kind of a table without it,
    and `renamed` maps the kinds of earlier versions to today's. Installed packages add kinds by
    entry points of `group`, each naming a table.
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
        """Add a further kind, the tag of its struct; usable as a decorator."""
        self._places[str(settings.__struct_config__.tag)] = settings
        return settings

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._places, *sorted(self._installed()))))

    def __contains__(self, kind: object) -> bool:
        return kind in self._places or kind in self._installed()

    def _installed(self) -> dict[str, str]:
        """Kinds of other packages; looked for only where no kind of this one is meant."""
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
                "repair or uninstall that package"
            ) from error
        self._places[kind] = table
        return table

    def keys(self, kind: str) -> tuple[str, ...]:
        """The keys of that kind's table; none where it cannot be loaded."""
        try:
            return tuple(fields_of(self[kind]))
        except ConfigError:
            return ()


_FAMILIES: dict[type[Table], Kinds[Any]] = {}


def family_of(table: type[Table]) -> Kinds[Any] | None:
    """The registry of a table whose keys depend on its kind; None: it has one set of keys."""
    return _FAMILIES.get(table)


def raise_all(faults: Iterable[str | TacitError]) -> None:
    """Raise the first fault, if there is one, with the others in its `also`."""
    errors = [ConfigError(one) if isinstance(one, str) else one for one in faults]
    if errors:
        errors[0].also = (*errors[0].also, *errors[1:])
        raise errors[0]


def given(table: Table) -> dict[str, Any]:
    """The keys of a table that were not left out."""
    values = {name: getattr(table, name) for name in table.__struct_fields__}
    return {name: value for name, value in values.items() if value is not None}


def plain(value: Any) -> Any:
    """A table as the dictionary that it can be read from: what was left out and may be stays out.

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
    """A value as TOML writes it."""
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
    """A value as TOML writes it, cut where it is long."""
    text = shown(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


@functools.cache
def fields_of(table: type[Table]) -> dict[str, msgspec.structs.FieldInfo]:
    """The keys of a table."""
    return {field.name: field for field in msgspec.structs.fields(table)}


def _foreign(table: Table) -> Iterator[str]:
    """Keys that are set in an object made in Python and that its kind does not have."""
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
    """What a key is that was left out."""
    factory = field.default_factory
    return field.default if factory is msgspec.NODEFAULT else factory()
