"""Layout of a study file, in which some keys of the [data] table are at the top of the file.

`outcome`, `positive` and `[columns]` are at the top of the file. In `DataConfig` they are fields,
like the source of the records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tacit.data.formula import Term, parse_formula
from tacit.data.schema.columns import ColumnConfig
from tacit.data.schema.schema import column_rows
from tacit.errors import ConfigError
from tacit.models.registry import MODEL_SETTINGS
from tacit.support.argument_names import column_key
from tacit.support.table_reader import find_faults
from tacit.support.tables import plain, short
from tacit.support.validation import near_word

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
    """Move the data keys at the top of a study file, such as outcome and [columns], into its [data]
    table.

    Returns the new dictionary, and the errors.

    >>> file = {"outcome": "ill", "columns": {"ill": {}}, "data": {"path": "a.csv"}}
    >>> lowered(file)[0]["data"]["source"], lowered(file)[0]["data"]["columns"]
    ('file', [{'name': 'ill'}])
    """
    result = dict(raw)
    if not isinstance(result.get("data", {}), dict):
        return result, []
    faults = _formula_keys(result)
    data = dict(result.get("data", {}))
    for key in TOP:
        if key in data:
            where = "the [columns] table" if key == "columns" else f"{key} at the top of the file"
            faults.append(
                f"data.{key} = {short(data.pop(key))} is not a key of [data]; did you mean {where}?"
            )
        if key in result:
            data[key] = result.pop(key)
    if "formula" not in data and _without_outcome(result.get("model")):
        data.setdefault("outcome", "")
    if "source" not in data:
        if {"path", "target", "formula", *TOP}.isdisjoint(data):
            unsaid = NO_DATA if set(data) <= {"held_out"} else NO_SOURCE
            return {key: value for key, value in result.items() if key != "data"}, [unsaid]
        data["source"] = "file"
    elif data["source"] == "file":
        faults.append('data.source = "file"; leave it out: data.path implies it')
    if "columns" in data:
        data["columns"], wrong = column_rows(data["columns"])
        faults += wrong
    if "formula" in data:
        faults += _resolve_formula(data)
    return result | {"data": data}, faults


def _without_outcome(model: Any) -> bool:
    """True if the [model] table names a kind of model that has no outcome."""
    kind = model.get("kind") if isinstance(model, dict) else None
    if not isinstance(kind, str) or kind not in MODEL_SETTINGS:
        return False
    return not MODEL_SETTINGS[kind].needs_outcome


def _formula_keys(result: dict[str, Any]) -> list[str]:
    """Move `formula` into the data table; return errors for keys that conflict with it."""
    data = dict(result.get("data", {}))
    if "formula" in data:
        return [f"data.formula = {short(data['formula'])}; write it at the top of the file"]
    if "formula" not in result:
        return []
    if "outcome" in result:
        return [
            f"formula = {short(result.pop('formula'))} and outcome = {short(result['outcome'])}; "
            "the formula names the outcome: leave outcome out"
        ]
    result["data"] = data | {"formula": result.pop("formula")}
    return []


def _resolve_formula(data: dict[str, Any]) -> list[str]:
    """Replace a formula by its outcome and the columns that it names; return the errors.

    The first level of a category is its reference level, as in R, unless another one is declared.
    """
    text = data.pop("formula")
    try:
        formula = parse_formula(text)
    except ConfigError as error:
        data["outcome"] = "the outcome of the formula"
        return [str(error)]
    rows = data.get("columns", [])
    declared = {row["name"]: row for row in rows}
    terms = formula.columns([row["name"] for row in rows if row.get("feature", True)])
    faults, used = [], []
    for term in terms:
        if term.factors or term.expression:
            continue
        row = declared.get(term.column)
        if row is None:
            near = near_word(term.column, declared)
            advice = f'did you mean "{near}"?' if near else "declare it there"
            faults.append(f'formula names "{term.column}", which [columns] lacks; {advice}')
            continue
        levels = row.get("levels") or []
        if term.categorical and not levels:
            faults.append(
                f"formula has C({term.column}), but {column_key(term.column)} has no levels; "
                "declare them"
            )
        row = {key: value for key, value in row.items() if key != "feature"}
        if levels and isinstance(levels, list):
            row["reference"] = term.reference or row.get("reference") or levels[0]
        used.append(row)
    if not faults:
        faults = _derived_rows(terms, declared, used)
    names = [term.column for term in terms]
    if data.get("party") in names:
        faults.append(f'data.party = "{data["party"]}" is a term of the formula too; leave it out')
    others = [
        row if row["name"] == formula.outcome else {**row, "feature": False}
        for row in rows
        if row["name"] not in names
    ]
    data |= {"outcome": formula.outcome, "columns": [*used, *others]}
    if formula.positive is not None:
        data["positive"] = formula.positive
    outcome = declared.get(formula.outcome, {})
    levels = outcome.get("levels") or []
    if "positive" not in data and isinstance(levels, list) and len(levels) == 2:
        data["positive"] = levels[1]
    return faults


def _derived_rows(terms: Sequence[Term], declared: Mapping[str, Any], used: list[Any]) -> list[str]:
    if not any(term.factors or term.expression for term in terms):
        return []
    from tacit.data.derived import columns_of

    def plain_column(term: Term) -> ColumnConfig:
        row = declared.get(term.column)
        if row is None:
            near = near_word(term.column, declared)
            advice = f'did you mean "{near}"?' if near else "declare it there"
            raise ConfigError(f'formula names "{term.column}", which [columns] lacks; {advice}')
        config = find_faults(row, ColumnConfig, column_key(term.column))[0]
        if config is None or not config.levels:
            return config or ColumnConfig(name=term.column)
        reference = term.reference or config.reference or config.levels[0]
        return msgspec.structs.replace(config, reference=reference)

    def no_scale(config: ColumnConfig) -> ColumnConfig:
        raise ConfigError(
            f"formula has {config.name}, whose columns have no bounds; declare low and high of "
            "these columns in [columns]"
        )

    try:
        made = columns_of(terms, plain_column, no_scale)
    except ConfigError as error:
        return [str(error)]
    used += [plain(one) for one in made if one.derived]
    return []


def raised(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Move the data keys of a configuration to its top, as in a study file: the inverse of
    `lowered`.
    """
    data = dict(whole["data"])
    top = {key: data.pop(key) for key in TOP if key in data}
    if "columns" in top:
        rows = [dict(row) for row in top["columns"]]
        top["columns"] = {row.pop("name"): row for row in rows}
    if data.get("source") == "file":
        del data["source"]
    simple = {key: value for key, value in whole.items() if not isinstance(value, dict)}
    return (
        simple
        | top
        | {key: value for key, value in whole.items() if key not in simple}
        | {"data": data}
    )


def raised_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Convert the JSON Schema of a configuration to that of a study file, in which the keys in
    `TOP` are at the top instead of in [data].
    """
    definitions = schema["$defs"]
    file = definitions["DataConfig-file"]
    top = {key: file["properties"].pop(key) for key in TOP}
    del file["properties"]["source"]
    file["required"] = []
    sql = definitions["DataConfig-sql"]
    for key in TOP:
        del sql["properties"][key]
    for name, one in definitions.items():
        if name.startswith("DataConfig-") and one is not file:
            one["required"] = ["source"]
    column = {"$ref": "#/$defs/ColumnConfig"}
    top["formula"] = {
        "description": "Outcome and columns, e.g. died ~ age + C(sex); takes the place of outcome.",
        "type": "string",
    }
    top["columns"] = {
        "description": "The public schema of the columns, by name.",
        "type": "object",
        "additionalProperties": column,
    }
    return schema | {"properties": top | schema["properties"]}
