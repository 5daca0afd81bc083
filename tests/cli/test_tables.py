"""`tacit init` and `tacit predict`: from a CSV file to a study, and from a run to predictions."""

import json
import re
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import tacit as tacit_package
from tacit.auditing.configured import _planned
from tacit.run.config import parse_config
from tacit.run.draft import draft_study, rounded_outwards

N = 90
RNG = np.random.default_rng(5)
AGES = np.round(RNG.uniform(21.37, 88.91, N), 2)


@pytest.fixture
def patients(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pl.DataFrame(
        {
            "id": np.arange(1000, 1000 + N),
            "age": AGES,
            "smoker": np.where(RNG.random(N) < 0.4, "yes", "no"),
            "body mass": [None, *np.round(RNG.normal(27, 4, N - 1), 1)],
            "letter": [f"text {i}" for i in range(N)],
            "hospital": np.array(["north", "south"])[np.arange(N) % 2],
            "died": RNG.integers(0, 2, N),
        }
    ).write_csv("patients.csv")
    return Path("patients.csv")


def test_a_draft_is_a_study_that_a_private_run_refuses(tacit, patients):
    code, out, err = tacit("init", "patients.csv", "--outcome", "died", "--party", "hospital")
    assert code == 0, err
    assert "left out: id" in out
    assert "left out: letter" in out
    text = Path("study.toml").read_text()
    config = parse_config(tomllib.loads(text))
    assert config.data.party == "hospital"
    names = [c.name for c in config.data.columns]
    assert names == ["age", "smoker", "body mass", "died", "hospital"]
    assert all(column.draft for column in config.data.columns)
    for exact in (AGES.min(), AGES.max()):
        assert f"{exact:g}" not in text
    assert "CONFIRM" in text
    code, _, err = tacit("check", "study.toml")
    assert code == 2
    assert "columns.age.draft = true" in err
    code, _, err = tacit("init", "patients.csv", "--outcome", "died")
    assert code == 2
    assert "study.toml exists" in err


def test_a_draft_reads_semicolons_and_refuses_decimal_commas(tacit, patients):
    commas = draft_study("patients.csv", "died", "hospital").text
    table = patients.read_text().replace(",", ";")
    patients.write_text(table)
    assert draft_study("patients.csv", "died", "hospital").text == commas
    patients.write_text(table.replace(".", ","))
    code, _, err = tacit("init", "patients.csv", "--outcome", "died", "--party", "hospital")
    assert code == 4
    assert 'column "age", data row 1' in err
    assert "has a decimal comma; write numbers with a point" in err


@pytest.mark.parametrize("outcome", ["age", "died"])
def test_a_draft_refuses_numbers_that_no_bounds_could_contain(tacit, patients, outcome):
    table = patients.read_text().replace(f"{AGES[3]:g},", "1e300,", 1)
    patients.write_text(table)
    code, _, err = tacit("init", "patients.csv", "--outcome", outcome, "--party", "hospital")
    assert code == 4
    assert 'column "age", data row 4: 1e300 exceeds 1e+150' in err


def test_a_draft_can_be_audited_and_two_values_are_levels(patients):
    pl.read_csv(patients).with_columns(died=pl.col("died") + 1).write_csv(patients)
    draft = draft_study("patients.csv", "died", "hospital")
    config = parse_config(tomllib.loads(draft.text))
    outcome = next(column for column in config.data.columns if column.name == "died")
    assert (outcome.levels, config.data.positive) == (("1", "2"), "2")
    federation, plan = _planned(config, 200, 0)
    assert set(federation.parties) == {"north", "south"}
    assert plan.model.kind == "logistic"


def test_check_after_fits_in_python_says_what_was_spent(tacit, patients):
    tacit("init", "patients.csv", "--outcome", "died", "--party", "hospital")
    study = Path("study.toml")
    study.write_text(study.read_text().replace(", draft = true", "").replace("body mass", "id"))
    schema = tacit_package.Schema.from_toml(study)
    privacy = tacit_package.Privacy(epsilon=1.0, delta=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tacit_package.fit("died ~ age", patients, party="hospital", schema=schema, privacy=privacy)
    code, out, err = tacit("check", "study.toml", "--set", "data.held_out=0")
    assert code == 3
    assert "(1 was spent before)" in err
    assert "link" not in err
    needed = re.search(r"--epsilon ([\d.]+)", err)
    assert needed is not None
    assert 1.2 < float(needed[1]) < 2.0
    code, out, err = tacit("ledger", "show", "--json")
    rows = json.loads(out)["datasets"]
    assert [round(row["epsilon"], 2) for row in rows] == [1.0, 1.0]
    assert {row["delta"] for row in rows} == {1e-5}
    code, _, err = tacit("ledger", "budget", "study.toml", "--epsilon", needed[1], "--delta",
                         "1e-5", "--reason", "test")  # fmt: skip
    assert code == 0, err
    code, out, err = tacit("check", "study.toml", "--set", "data.held_out=0")
    assert code == 0, err
    assert "Budget: ε = 1 spent so far" in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("patients.csv", "--outcome", "dead"), 2, "no such column"),
        (("patients.csv", "--outcome", "died", "--party", "hospitl"), 2, "did you mean hospital?"),
        (("patients.csv", "--outcome", "died", "--party", "died"), 2, "is the outcome too"),
        (("nowhere.csv", "--outcome", "died"), 4, "there is no such file"),
        (("patients.csv", "--outcome", "letter"), 4, "90 different texts"),
        (("patients.csv",), 2, "--outcome"),
    ],
)
def test_wrong_arguments_of_init(tacit, patients, arguments, code, words):
    found, _, err = tacit("init", *arguments)
    assert found == code
    assert words in err
    assert not Path("study.toml").exists()


def test_bounds_that_a_person_gives_are_no_drafts(patients):
    draft = draft_study("patients.csv", "died", ask=lambda *_: (0.0, 120.0))
    config = parse_config(tomllib.loads(draft.text))
    found = {column.name: column for column in config.data.columns}
    assert (found["age"].low, found["age"].high, found["age"].draft) == (0, 120, False)
    assert found["smoker"].draft


def test_a_draft_leaves_the_noise_of_a_number_to_inference(patients):
    """A noise_sd in it would be kept as known, and every interval would rest on it."""
    draft = draft_study("patients.csv", outcome="age", party="hospital", epsilon=None)
    config = parse_config(tomllib.loads(draft.text))
    assert config.model.kind == "linear"
    assert config.model.noise_sd is None
    age = next(column for column in config.data.columns if column.name == "age")
    assert age.affine is not None


def test_a_draft_of_counts_names_the_model_of_counts(tmp_path):
    path = tmp_path / "visits.csv"
    rows = "".join(f"{20 + row % 60},{row % 7}\n" for row in range(90))
    path.write_text("age,visits\n" + rows)
    assert 'kind = "poisson"' in draft_study(str(path), "visits").text


def test_codes_are_drafted_as_codes(tacit, patients):
    """999, -1 and a 9 beside 0 and 1 would be numbers with great weight."""
    age = [999.0 if i % 10 == 0 else float(one) for i, one in enumerate(AGES)]
    pl.read_csv("patients.csv").with_columns(
        age=pl.Series(age),
        visits=pl.Series([-1 if i % 7 == 0 else i % 5 for i in range(N)]),
        grade=pl.Series([1 + i % 4 for i in range(N)]),
        died=pl.Series([9 if i % 9 == 0 else i % 2 for i in range(N)]),
        weight=pl.Series(["n.d." if i % 30 == 0 else f"{60.5 + i}" for i in range(N)]),
        ward=pl.Series([("a", "b", "unknown")[i % 3] for i in range(N)]),
        on=pl.Series([f"2024-02-{1 + i % 28:02d}" for i in range(N)]),
    ).write_csv("coded.csv")
    code, _, err = tacit("init", "coded.csv", "--outcome", "died", "--not-private")
    assert code == 0, err
    text = Path("study.toml").read_text()
    columns = {one.name: one for one in parse_config(tomllib.loads(text)).data.columns}
    codes = {"age": "999", "visits": "-1", "died": "9", "weight": "n.d.", "ward": "unknown"}
    for name, value in codes.items():
        assert columns[name].missing_values == (value,)
        assert columns[name].missing == "drop"
        assert f"{value} looks like a code for missing" in text
    assert columns["age"].high < 200
    assert columns["died"].levels == ("0", "1")
    assert columns["ward"].levels == ("a", "b")
    assert columns["weight"].low is not None
    assert "left out: on (dates or times" in text
    assert re.search(r"grade = .*if 1 to 4 are codes of a category, list them as levels", text)
    code, _, err = tacit("check", "study.toml")
    assert code == 0, err


def test_the_package_is_a_program():
    done = subprocess.run(
        [sys.executable, "-m", "tacit", "--version"], capture_output=True, text=True, check=True
    )
    assert tacit_package.__version__ in done.stdout


def test_rounding_never_cuts_and_never_hits_an_extreme_by_design():
    rng = np.random.default_rng(0)
    for _ in range(300):
        scale = 10.0 ** rng.uniform(-4, 6)
        least, most = np.sort(rng.normal(size=2)) * scale
        low, high = rounded_outwards(least, most)
        assert low < least or (low == 0 <= least)
        assert high > most or (high == 0 >= most)
        assert high - low <= 2.6 * (most - least) + abs(least) + abs(most)


def test_a_run_predicts_from_the_command_line(tacit, patients):
    assert tacit("init", "patients.csv", "--outcome", "died", "--party", "hospital",
                 "--not-private")[0] == 0  # fmt: skip
    code, out, err = tacit("run", "study.toml", "--out", "run", "--set", "data.held_out=0")
    assert code == 0, err
    assert "smoker: yes vs no" in out
    new = pl.DataFrame({"age": [30.0, 999.0, 50.0], "smoker": ["no", "yes", "no"],
                        "body mass": [25.0, 25.0, None], "id": ["x", "y", "z"],
                        "low": [1, 2, 3]})  # fmt: skip
    new.write_parquet("new.parquet")
    code, out, err = tacit("predict", "run", "new.parquet", "--out", "out.csv")
    assert code == 0, err
    assert "3 rows: probability of died = 1, 95 % interval." in out
    assert "1 values of age" in out
    table = pl.read_csv("out.csv")
    assert table.columns == ["probability", "low", "high"]
    assert table["probability"].null_count() == 1
    assert ((table["low"] < table["probability"]) & (table["probability"] < table["high"]))[
        :2
    ].all()
    code, out, _ = tacit("predict", "run", "new.parquet", "--out", "again.parquet", "--json",
                         "--keep", "id")  # fmt: skip
    said = json.loads(out)
    assert pl.read_parquet("again.parquet").columns == ["id", "probability", "low", "high"]
    assert pl.read_parquet("again.parquet")["id"].to_list() == ["x", "y", "z"]
    assert (said["rows"], said["without_prediction"], said["clipped"]) == (3, 1, {"age": 1})
    new.with_columns(age=None).write_parquet("gap.parquet")
    for arguments, exit_code, words in (
        (("run", "gap.parquet", "--out", "x.csv"), 4, "is missing; fill it in, or drop the row"),
        (("run", "new.parquet", "--out", "out.csv"), 2, "exists"),
        (("run", "new.parquet", "--out", "out.xlsx"), 2, "must end in"),
        (("run", "new.parquet", "--out", "x.csv", "--keep", "low"), 2, "of that name"),
        (("run", "new.parquet", "--out", "x.csv", "--keep", "no"), 4, 'no column "no"'),
        (("nowhere", "new.parquet", "--out", "x.csv"), 4, "is missing"),
        (("run", "study.toml", "--out", "x.csv"), 4, "must end in one of"),
    ):
        code, _, err = tacit("predict", *arguments)
        assert (code, words in err) == (exit_code, True), err
