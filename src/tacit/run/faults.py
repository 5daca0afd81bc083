"""Everything that is wrong with a configuration, each fault in one line.

`msgspec.convert` stops at the first fault. Where it has refused a file, `config_faults` goes
through the same tables again, key by key, and collects what it can find.
"""

from __future__ import annotations

import difflib
import re
import types
import typing
from typing import Any

import msgspec

from tacit.errors import ConfigError
from tacit.support.type_info import prepare

PRIVACY_MISSING = (
    "privacy is missing; add a [privacy] table, e.g. epsilon = 1.0 and delta = 1e-5, or "
    'say privacy = "none" at the top of the file if exact updates are meant'
)
DECIDES_OTHERS = {"source", "kind"}
"""Keys whose value decides what the others of a table mean: after one of them, no guesses."""


def config_faults(raw: dict[str, Any], kind: type[msgspec.Struct]) -> list[ConfigError]:
    """All faults of a plain dictionary that is not a configuration of that kind."""
    return _Search(raw, kind).faults_of(raw, kind, "")


def source_fault(raw: dict[str, Any]) -> ConfigError | None:
    """The error for a file that does not say where its records come from; None if it does."""
    data = raw.get("data")
    if data is not None and not isinstance(data, dict):
        return None  # its type is refused elsewhere
    if data and "source" in data:
        return None
    key = "data.source" if data and set(data) != {"held_out"} else "data"
    own = 'source = "file", path = "records.csv", target and columns for your own records'
    return ConfigError(
        f"{key} is missing; add a [data] table with {own}, or "
        'source = "synthetic-cohort" for synthetic ones; tacit data list shows all sources'
    )


class _Search:
    def __init__(self, root: dict[str, Any], root_kind: type[msgspec.Struct]) -> None:
        self.root = root
        self.root_kind = root_kind

    def faults_of(self, raw: Any, kind: type[msgspec.Struct], path: str) -> list[ConfigError]:
        """Of one table: unknown and missing keys, values of a wrong type, then their meaning."""
        if not isinstance(raw, dict):
            return self._converted(raw, kind, path)
        fields = {field.name: field for field in msgspec.structs.fields(kind)}
        faults = [
            self._fault(f"Object contains unknown field `{key}`", path)
            for key in raw
            if key not in fields
        ]
        good = {}
        for name, field in fields.items():
            if name in raw:
                below = self._faults_of_value(raw[name], field.type, _joined(path, name))
                faults.extend(below)
                if not below:
                    good[name] = raw[name]
                elif (path, name) == ("data", "columns") and isinstance(raw[name], list):
                    good[name] = self._sound_columns(raw[name], field.type, raw.get("target"))
            elif field.required:
                missing = ConfigError(PRIVACY_MISSING) if (path, name) == ("", "privacy") else None
                faults.append(
                    missing or self._fault(f"Object missing required field `{name}`", path)
                )
        if not path and "data" in fields and (unsaid := source_fault(raw)):
            faults.append(unsaid)
            good.pop("data", None)
        if any(key in raw and key not in good for key in DECIDES_OTHERS):
            return faults
        if not path and "privacy" in fields and "privacy" not in good:
            good["privacy"] = "none"  # so that the rest of the file can be checked
        if not path and "data" in fields and "data" not in good:
            for name in ("model", "partition"):  # what they mean depends on the data
                good.pop(name, None)
        return faults + self._meaning(good, kind, path, alone=not faults)

    def _sound_columns(self, rows: list[Any], hint: Any, target: Any) -> list[Any]:
        """Columns with a sound one of the same name in place of each that has a fault.

        A target with a fault is left out: it need not be declared.
        """
        sound = []
        for row in rows:
            if not self._faults_of_value([row], hint, "data.columns"):
                sound.append(row)
                continue
            name = row.get("name") if isinstance(row, dict) else None
            if isinstance(name, str) and name.strip() and name != target:
                sound.append({"name": name, "feature": False})
        return sound

    def _faults_of_value(self, value: Any, hint: Any, path: str) -> list[ConfigError]:
        tables = [option for option in _options(hint) if is_struct(option)]
        if tables and isinstance(value, dict):
            return self.faults_of(value, tables[0], path)
        rows = [
            item
            for option in _options(hint)
            if typing.get_origin(option) is tuple
            for item in typing.get_args(option)
            if is_struct(item)
        ]
        if rows and isinstance(value, list):
            found = [
                self.faults_of(row, rows[0], f"{path}[{index}]") for index, row in enumerate(value)
            ]
            return [fault for faults in found for fault in faults]
        return self._converted(value, hint, path)

    def _converted(self, value: Any, hint: Any, path: str) -> list[ConfigError]:
        try:
            msgspec.convert(value, prepare(hint))
        except msgspec.ValidationError as error:
            body, _, below = str(error).partition(" - at `$")
            return [self._fault(body, path + below.removesuffix("`"))]
        except ConfigError as error:
            return [error]
        return []

    def _meaning(
        self, good: dict[str, Any], kind: Any, path: str, *, alone: bool
    ) -> list[ConfigError]:
        """What the table's own check refuses, one key after another.

        Once the table has a fault, a further one counts only if it is about a key that is written:
        what is missing may be missing because of the first.
        """
        faults: list[ConfigError] = []
        removed: set[str] = set()
        while True:
            try:
                msgspec.convert(good, prepare(kind))
            except msgspec.ValidationError:  # a required key was at fault
                return faults
            except ConfigError as error:
                named = re.match(r'([\w.]+?)\.?(?=[ "\[:])', str(error))
                key = named.group(1).removeprefix(f"{path}." if path else "") if named else ""
                top = key.partition(".")[0]
                absent = alone and (not faults or " is missing" in str(error))
                if top in removed or not (top in good or absent):
                    return faults
                faults.append(error)
                if top not in good or key.rpartition(".")[2] in DECIDES_OTHERS:
                    return faults
                removed.add(top)
                good = {name: value for name, value in good.items() if name != top}
            else:
                return faults

    def _fault(self, body: str, path: str) -> ConfigError:
        return ConfigError(explain(f"{body} - at `$.{path}`", self.root, self.root_kind))


def explain(message: str, raw: dict[str, Any], root: Any) -> str:
    """msgspec's complaint with the key as the user writes it, the value, and what to do."""
    found = re.search(r" - at `\$\.?(.*)`$", message)
    path = found.group(1) if found else ""
    body = message[: found.start()] if found else message
    unknown = re.match(r"Object contains unknown field `(.*)`", body)
    if unknown:
        key = _joined(path, unknown.group(1))
        known = _fields(path, root)
        near = difflib.get_close_matches(unknown.group(1), known, n=1)
        advice = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
        return f"{key} is not a known key; {advice}"
    missing = re.match(r"Object missing required field `(.*)`", body)
    if missing:
        return f"{_joined(path, missing.group(1))} is missing; add it"
    value = _lookup(raw, path)
    advice = body[0].lower() + body[1:]
    choices = _choices(path, root)
    if choices:
        advice += f"; choose one of {', '.join(choices)}"
    advice = advice.replace("`", "").replace(" | null", "")  # which TOML has not
    return f"{path} = {value!r}: {advice}"


def _joined(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _options(hint: Any) -> tuple[Any, ...]:
    """The members of a union, or the type itself."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if union else (hint,)


def _struct_at(path: str, root: Any) -> Any:
    struct: Any = root
    for part in [p for p in re.split(r"\.|\[.*?\]", path) if p]:
        hints = {f.name: f.type for f in msgspec.structs.fields(struct)}
        nested = [t for t in _types(hints.get(part)) if is_struct(t)]
        if not nested:
            return None
        struct = nested[0]
    return struct


def _types(hint: Any) -> list[Any]:
    inner = [kind for arg in getattr(hint, "__args__", ()) for kind in _types(arg)]
    return [hint, *inner]


def is_struct(kind: Any) -> bool:
    """Whether a type is a table of a configuration."""
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _fields(path: str, root: Any) -> list[str]:
    struct = _struct_at(path, root)
    return [] if struct is None else [f.name for f in msgspec.structs.fields(struct)]


def _choices(path: str, root: Any) -> list[str]:
    """The values of a Literal key."""
    parent, _, last = path.rpartition(".")
    struct = _struct_at(parent, root)
    if struct is None:
        return []
    hint = {f.name: f.type for f in msgspec.structs.fields(struct)}.get(last)
    return [
        str(arg)
        for kind in _types(hint)
        for arg in getattr(kind, "__args__", ())
        if isinstance(arg, str)
    ]


def _lookup(raw: Any, path: str) -> Any:
    for part in [p for p in re.split(r"\.|\[|\]", path) if p]:
        try:
            raw = raw[int(part)] if isinstance(raw, list) else raw[part]
        except (KeyError, IndexError, ValueError, TypeError):
            return "…"
    return raw
