"""`tacit.Schema`: public facts about columns, in Python and from a study file."""

import pytest

import tacit
from tacit.errors import ConfigError

TOML = """
name = "study"
outcome = "ill"

[columns]
age = { low = 18, high = 105 }
income = { center = 30_000, scale = 20_000, missing = "indicator" }
smoker = { levels = ["no", "yes"], reference = "no" }
ill = { levels = ["no", "yes"] }
"""


def test_python_and_toml_declare_the_same_columns(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(TOML.replace(', reference = "no"', ""), encoding="utf-8")
    schema = tacit.Schema(
        bounds={"age": (18, 105)},
        levels={"smoker": ("no", "yes"), "ill": ["no", "yes"]},
        scale={"income": (30_000, 20_000)},
        missing={"income": "indicator"},
    )
    read = tacit.Schema.from_toml(path)
    assert {one.name: one for one in read.columns} == {one.name: one for one in schema.columns}
    assert schema.bounds == {"age": (18, 105)}
    assert schema.levels == {"smoker": ("no", "yes"), "ill": ("no", "yes")}
    assert schema.scale == {"age": (61.5, 43.5), "income": (30_000, 20_000)}
    assert schema.missing["income"] == "indicator"
    assert schema == tacit.Schema.of(schema.columns)
    assert repr(schema) == "Schema(age, smoker, ill, income)"


def test_a_study_file_keeps_every_key_of_its_columns(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(TOML, encoding="utf-8")
    columns = {one.name: one for one in tacit.Schema.from_toml(path).columns}
    assert columns["smoker"].reference == "no"


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"bounds": {"age": (105, 18)}}, r"low of bounds..age.. = 105.0; it must be less"),
        ({"bounds": {"age": 18}}, r"bounds\['age'\] = 18; give two numbers, \(low, high\)"),
        ({"bounds": {"age": ("a", 5)}}, r"low of bounds..age.. = .a.; it must be"),
        ({"levels": {"smoker": "yes"}}, r"levels\['smoker'\] = 'yes'; give a list"),
        ({"bounds": {"age": (0, 1)}, "levels": {"age": ["a"]}}, "a column with levels"),
        ({"missing": {"age": "level"}}, "needs declared levels"),
        ({"levels": {"age": ["a"]}, "missing": {"age": "guess"}}, r"missing..age.. = .guess."),
        ({"bounds": [("age", 1)]}, "give a dictionary with column names as keys"),
    ],
)
def test_a_wrong_declaration_is_refused_when_it_is_made(how, message):
    with pytest.raises(ConfigError, match=message):
        tacit.Schema(**how)


def test_a_file_is_read_with_a_schema_and_its_fit_has_it(tmp_path):
    path = tmp_path / "records.csv"
    rows = [f"{20 + i % 60},{'yes' if i % 3 else 'no'}" for i in range(60)]
    path.write_text("\n".join(["age,ill", *rows]), encoding="utf-8")
    schema = tacit.Schema(bounds={"age": (18, 105)}, levels={"ill": ("no", "yes")})
    federation = tacit.datasets.load(
        "file", path=str(path), outcome="ill", positive="yes", schema=schema, parties=2
    )
    assert federation.names == ("intercept", "age")
    fit = tacit.fit(tacit.models.LogisticRegression, federation, privacy=None)
    assert fit.schema == schema
    assert tacit.load(fit.save(tmp_path / "fit")).schema == schema


def test_a_file_without_columns_is_refused(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text("outcome = 'ill'\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"has no \[columns\] table"):
        tacit.Schema.from_toml(path)
    with pytest.raises(ConfigError, match="File not found"):
        tacit.Schema.from_toml(tmp_path / "nowhere.toml")
