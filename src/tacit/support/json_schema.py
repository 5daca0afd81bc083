"""JSON Schemas of tables, for editors that complete and check TOML files.

Types, bounds and defaults come from the fields of a table, and descriptions from their docstrings.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import textwrap
import typing
from collections.abc import Iterator
from typing import Any

import msgspec

from tacit.support.tables import Table, family_of, fields_of

DRAFT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]


def json_schema(root: type[Table]) -> Schema:
    """Return the JSON Schema of a file with the tables of `root`."""
    tables = list(dict.fromkeys(_tables_below(root)))
    _, raw = msgspec.json.schema_components(tables, ref_template="#/$defs/{name}")
    definitions: dict[str, Schema] = {}
    for table in tables:
        own = _described(table, raw[table.__name__])
        family = family_of(table)
        if family is not None:
            kinds = {kind: f"#/$defs/{family[kind].__name__}" for kind in family}
            definitions[table.__name__] = _any_of(own["description"], list(kinds.values()))
            if family.default is not None:
                raw[family[family.default].__name__]["required"] = []
        elif table.keys_of:
            variants = {kind: _variant(table, own, kind) for kind in table.keys_of}
            names = {kind: f"{table.__name__}-{kind}" for kind in variants}
            definitions |= {names[kind]: one for kind, one in variants.items()}
            places = [f"#/$defs/{name}" for name in names.values()]
            definitions[table.__name__] = _any_of(own["description"], places)
        else:
            definitions[table.__name__] = own
    whole = definitions.pop(root.__name__)
    return {"$schema": DRAFT, **whole, "$defs": definitions}


def _tables_below(table: type[Table]) -> Iterator[type[Table]]:
    yield table
    family = family_of(table)
    if family is not None:
        for kind in family:
            yield from _tables_below(family[kind])
        return
    for field in fields_of(table).values():
        for inner in _types_of(field.type):
            if isinstance(inner, type) and issubclass(inner, Table):
                yield from _tables_below(inner)


def _types_of(hint: Any) -> Iterator[Any]:
    yield hint
    for inner in typing.get_args(hint):
        yield from _types_of(inner)


def _any_of(description: str, places: list[str]) -> Schema:
    return {"description": description, "anyOf": [{"$ref": place} for place in places]}


def _described(table: type[Table], raw: Schema) -> Schema:
    """Return the JSON Schema of a table, with descriptions from its docstrings. Null is removed,
    because TOML has no null.
    """
    docs = attribute_docs(table)
    properties = {}
    for key, value in raw.get("properties", {}).items():
        if key in table.unwritten:
            continue
        one = _without_null(value)
        if key in docs:
            one = {"description": docs[key], **one}
        properties[key] = one
    required = [key for key in raw.get("required", []) if key not in table.unwritten]
    text = " ".join((inspect.getdoc(table) or "").split("\n\n")[0].split())
    kept = {"title": raw["title"], "description": text, "type": "object", "properties": properties}
    return kept | {"required": required, "additionalProperties": False}


def _without_null(value: Schema) -> Schema:
    one = {key: inner for key, inner in value.items() if not (key == "default" and inner is None)}
    if isinstance(one.get("default"), dict):
        del one["default"]  # the keys of a table have their own defaults
    if "anyOf" in one:
        options = [_without_null(inner) for inner in one.pop("anyOf") if inner != {"type": "null"}]
        one = {**one, **options[0]} if len(options) == 1 else {**one, "anyOf": options}
    if isinstance(one.get("enum"), list):
        one["enum"] = [word for word in one["enum"] if word is not None]
    return one


def _variant(table: type[Table], whole: Schema, kind: str) -> Schema:
    """Return the schema of a table whose `kind_key` has the value `kind`."""
    key = table.kind_key
    properties = {key: {"description": whole["properties"][key].get("description"), "enum": [kind]}}
    properties |= {
        name: whole["properties"][name]
        for name in table.keys_of[kind]
        if name in whole["properties"]
    }
    default = fields_of(table)[key].default
    return whole | {
        "title": f"{whole['title']}-{kind}",
        "properties": properties,
        "required": [] if kind == default else [key],
    }


@functools.cache
def attribute_docs(table: type) -> dict[str, str]:
    """Return the docstrings of the annotated attributes of a class and its bases."""
    found: dict[str, str] = {}
    for one in reversed(table.__mro__):
        try:
            source = textwrap.dedent(inspect.getsource(one))
        except (OSError, TypeError):
            continue
        body = typing.cast(ast.ClassDef, ast.parse(source).body[0]).body
        for node, following in itertools.pairwise(body):
            if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
                continue
            text = following.value if isinstance(following, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                found[node.target.id] = " ".join(text.value.split())
    return found
