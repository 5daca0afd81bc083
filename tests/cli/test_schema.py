"""`tacit schema`: what it accepts and refuses is what the reader accepts and refuses."""

import copy
import json
import tomllib
from pathlib import Path

import pytest

from tacit.cli.schema import FILES, file_schema

ROOT = Path(__file__).parents[2]
STUDIES = sorted((ROOT / "examples").glob("*.toml"))
OTHERS = {
    "examples/live/federation.toml": "federation",
    "examples/live/server.toml": "server",
    "examples/live/party.toml": "party",
    "examples/sweeps/privacy.toml": "sweep",
}
SHIPPED = {str(path.relative_to(ROOT)): "study" for path in STUDIES} | OTHERS


@pytest.fixture(scope="module")
def faults():
    """From a kind of file and its tables to what the schema finds wrong with them."""
    jsonschema = pytest.importorskip("jsonschema")
    checks = {}
    for kind in FILES:
        schema = json.loads(json.dumps(file_schema(kind)))
        jsonschema.Draft202012Validator.check_schema(schema)
        checks[kind] = jsonschema.Draft202012Validator(schema)
    return lambda kind, tables: [one.json_path for one in checks[kind].iter_errors(tables)]


def tables_of(place):
    return tomllib.loads((ROOT / place).read_text(encoding="utf-8"))


@pytest.mark.parametrize("place", SHIPPED)
def test_every_shipped_file_is_valid(place, faults):
    assert faults(SHIPPED[place], tables_of(place)) == []


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"seeed": 3}, "$"),
        ({"seed": -1}, "$.seed"),
        ({"posterior": "fulll"}, "$.posterior"),
        ({"method": {"kind": "exact", "steps": 3}}, "$.method"),
        ({"method": {"kind": "gradient-vi", "steps": 0}}, "$.method"),
        ({"method": {"steps": 3}}, "$.method"),
        ({"model": {"kind": "logistic", "hidden": 3}}, "$.model"),
        ({"data": {"source": "adult", "records": 3}}, "$.data"),
        ({"data": {"source": "file", "path": "a.csv"}}, "$.data"),
        ({"partition": {"size_skew": 0.5}}, "$.partition"),
        ({"columns": {"age": {"lwo": 3}}}, "$.columns.age"),
        ({"engine": {"kind": "in-process", "actors": 3}}, "$.engine"),
    ],
)
def test_a_wrong_file_is_not(change, path, faults):
    tables = tables_of("examples/hospitals.toml")
    assert faults("study", tables) == []
    assert faults("study", tables | change) == [path]


def test_every_key_is_described():
    for kind in FILES:
        schema = file_schema(kind)
        for name, table in {kind: schema, **schema["$defs"]}.items():
            for key, value in table.get("properties", {}).items():
                told = "description" in value or "$ref" in value or key == "kind"
                assert told, f"{name}: {key} has no description"


def test_the_command_prints_it(tacit):
    code, out, _ = tacit("schema", "--file", "party")
    assert code == 0
    assert json.loads(out) == copy.deepcopy(file_schema("party"))
    code, _, err = tacit("schema", "--file", "partyy")
    assert code == 2
    assert "did you mean 'party'?" in err
