"""Layout of a study file, with some data keys at its top.

`outcome`, `positive` and `[columns]` are at the top of the file, while `DataConfig` holds them
together with the source of the records.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tacit.data.schema.schema import column_rows
from tacit.support.tables import short

TOP = ("outcome", "positive", "columns")
SHOWN_AS: Mapping[str, str] = {f"data.{key}": key for key in TOP}
NO_DATA = (
    'data is missing; add a [data] table with path = "records.csv" for your own records, or '
    'source = "synthetic-cohort" for generated ones; tacit data list shows all sources'
)

NO_SOURCE = (
    'data.source is missing; name a data set, e.g. "synthetic-cohort" (tacit data list shows all), '
    "or set data.path for your own records"
)


def lowered(raw: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Move these keys of a file's dictionary into its data table; returns faults too.

    >>> file = {"outcome": "ill", "columns": {"ill": {}}, "data": {"path": "a.csv"}}
    >>> lowered(file)[0]["data"]["source"], lowered(file)[0]["data"]["columns"]
    ('file', [{'name': 'ill'}])
    """
    result, faults = dict(raw), []
    data = result.get("data", {})
    if not isinstance(data, dict):
        return result, []
    data = dict(data)
    for key in TOP:
        if key in data:
            where = "the [columns] table" if key == "columns" else f"{key} at the top of the file"
            faults.append(
                f"data.{key} = {short(data.pop(key))} is not a key of [data]; did you mean {where}?"
            )
        if key in result:
            data[key] = result.pop(key)
    if "source" not in data:
        if {"path", "target", *TOP}.isdisjoint(data):
            unsaid = NO_DATA if set(data) <= {"held_out"} else NO_SOURCE
            return {key: value for key, value in result.items() if key != "data"}, [unsaid]
        data["source"] = "file"
    elif data["source"] == "file":
        faults.append('data.source = "file"; leave it out: data.path implies it')
    if "columns" in data:
        data["columns"], wrong = column_rows(data["columns"])
        faults += wrong
    return result | {"data": data}, faults


def raised(plain: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `lowered`, for a configuration as a plain dictionary."""
    data = dict(plain["data"])
    top = {key: data.pop(key) for key in TOP if key in data}
    if "columns" in top:
        rows = [dict(row) for row in top["columns"]]
        top["columns"] = {row.pop("name"): row for row in rows}
    if data.get("source") == "file":
        del data["source"]
    simple = {key: value for key, value in plain.items() if not isinstance(value, dict)}
    return (
        simple
        | top
        | {key: value for key, value in plain.items() if key not in simple}
        | {"data": data}
    )


def raised_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """JSON Schema with these keys at the top."""
    definitions = schema["$defs"]
    file = definitions["DataConfig-file"]
    top = {key: file["properties"].pop(key) for key in TOP}
    del file["properties"]["source"]
    file["required"] = []
    for name, one in definitions.items():
        if name.startswith("DataConfig-") and one is not file:
            one["required"] = ["source"]
    column = {"$ref": "#/$defs/ColumnConfig"}
    top["columns"] = {
        "description": "The public schema of the columns, by name.",
        "type": "object",
        "additionalProperties": column,
    }
    return schema | {"properties": top | schema["properties"]}
