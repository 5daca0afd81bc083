"""Records of SQL queries through DuckDB."""

import runpy
from pathlib import Path

import numpy as np
import pytest

import tacit
from tacit.errors import ConfigError, DataError
from tacit.live.config import read_party
from tacit.live.plan import party_plan
from tacit.run.config import parse_config, read_config
from tacit.run.run import prepare

duckdb = pytest.importorskip("duckdb")

COLUMNS = {
    "age": {"low": 18, "high": 105},
    "sex": {"levels": ["F", "M"]},
    "died": {"levels": ["0", "1"]},
}
QUERY = "select age, sex, died, hospital from stay order by id"


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "stays.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(
            "create table stay as select i as id, 20 + (i * 7) % 60 as age, "
            "case when i % 3 = 0 then 'F' else 'M' end as sex, (i * 13) % 5 < 2 as died, "
            "case when i % 2 = 0 then 'north' else 'south' end as hospital, "
            "cast(i as decimal(9, 2)) as cost, date '2020-01-01' as day from range(1, 121) t(i)"
        )
    return path


def config(database, **data):
    return parse_config(
        {
            "privacy": "none",
            "formula": "died ~ age + C(sex)",
            "columns": COLUMNS,
            "data": {"source": "sql", "database": str(database), "held_out": 0.0, **data},
        }
    )


def test_a_query_and_one_query_per_party_give_the_same_records(database):
    one = prepare(config(database, query=QUERY, party="hospital")).federation
    each = {name: f"select age, sex, died from stay where hospital = '{name}' order by id"
            for name in ("north", "south")}  # fmt: skip
    other = prepare(config(database, query=each)).federation
    assert list(one.parties) == list(other.parties) == ["north", "south"]
    for name, records in one.parties.items():
        np.testing.assert_array_equal(records["x"], other.parties[name]["x"])
        np.testing.assert_array_equal(records["y"], other.parties[name]["y"])
    assert sum(len(records["y"]) for records in one.parties.values()) == 120


def test_a_relation_is_a_data_frame(database):
    with duckdb.connect(str(database)) as connection:
        found = tacit.Federation.from_frame(
            connection.sql("select * from stay"),
            "cost ~ age",
            party="hospital",
            infer=True,
        )
    assert found.output == "gaussian"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"query": "select * from nothing"}, "data.query cannot be run"),
        ({"query": "select age, sex, died from stay where age > 999"}, "selects no rows"),
        ({"query": "select age, age, sex, died from stay"}, 'column.* "age"'),
        ({"query": "select age, died from stay"}, 'column "sex" is not in the data'),
        ({"query": "drop table stay"}, "data.query cannot be run .*read-only"),
        ({"query": QUERY, "database": "nowhere.duckdb"}, "there is no such file"),
    ],
)
def test_queries_that_fail_say_why(database, data, words):
    with pytest.raises(DataError, match=words):
        prepare(config(**{"database": database, "party": None, **data}))


def test_faults_of_the_table(database):
    with pytest.raises(ConfigError, match=r"data\.query is missing"):
        config(database)
    with pytest.raises(ConfigError, match="one query per party; leave one"):
        config(database, query={"a": QUERY}, party="hospital")


def test_the_omop_example_reads_a_generated_database(tmp_path, monkeypatch):
    examples = Path(__file__).parents[2] / "examples"
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(examples / "omop.py"))["write_database"](Path("omop.duckdb"), patients=300)
    federation = prepare(read_config(examples / "omop.toml")).federation
    assert list(federation.parties) == ["north", "south"]
    assert federation.names == ("intercept", "age", "sex=male", "diabetes=true")
    assert sum(len(one["y"]) for one in federation.parties.values()) == 240
    assert federation.unbounded == ()


def test_a_party_of_a_live_federation_may_have_a_query(database, tmp_path):
    (tmp_path / "federation.toml").write_text("""
        name = "stays"
        privacy = "none"
        parties = ["north", "south"]
        records = 100
        formula = "died ~ age + C(sex)"
        [columns]
        age = { low = 18, high = 105 }
        sex = { levels = ["F", "M"] }
        died = { levels = ["0", "1"] }
    """)
    party = tmp_path / "party.toml"
    party.write_text("""
        federation = "federation.toml"
        [join]
        servers = ["localhost:7443"]
        certificate = "north.pem"
        key = "north.key"
        authority = "ca.pem"
        state = "state"
        [data]
        database = "stays.duckdb"
        query = "select age, sex, died from stay where hospital = 'north' order by id"
    """)
    plan, loaded = party_plan(read_party(party), "north")
    assert len(loaded.parties["north"]["y"]) == 60
    assert plan.model.names == ("intercept", "age", "sex=M")
    party.write_text(party.read_text().replace("query =", "# query ="))
    with pytest.raises(ConfigError, match=r"data\.database .* without data\.query"):
        read_party(party).data  # noqa: B018
