"""`tacit audit` of a configuration, and what it finds in public files."""

import json
import warnings

import pytest

import tacit.run.run as runs
from tacit.auditing.configured import _planned, compare_files
from tacit.run.config import read_config

TOML = """
name = "small"
[data]
source = "synthetic-cohort"
[partition]
kind = "balanced"
parties = 2
[model]
kind = "logistic"
[method]
kind = "dp-statistics"
[schedule]
kind = "synchronous"
rounds = 2
[privacy]
epsilon = 2.0
delta = 1e-5
adjacency = "add-or-remove-one"
"""


def test_the_command_shows_claims_bounds_and_power(tacit, tmp_path):
    (tmp_path / "c.toml").write_text(TOML)
    code, out, err = tacit(
        "audit", "c.toml", "--minutes", "0.01", "--records", "60", "--json", "--figure", "a.svg"
    )
    assert code == 0, err
    found = json.loads(out)
    assert found["holds"]
    assert (found["unit"], found["adjacency"]) == ("record", "add-or-remove-one")
    kinds = {one["kind"] for one in found["findings"]}
    assert kinds == {"release", "low bits", "reply", "run", "canaries", "files"}
    (release,) = (one for one in found["findings"] if one["kind"] == "release")
    assert 0.7 * release["claim"] < release["bound"] <= release["claim"] < release["wrong_noise"]
    assert (tmp_path / "a.svg").read_text().lstrip().startswith("<?xml")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--minutes", "0"], "--minutes 0"),
        (["--records", "1"], "--records 1"),
        (["--figure", "a.txt"], "must end in"),
        (["--set", 'privacy="none"'], "no claim to audit"),
    ],
)
def test_wrong_arguments_are_refused_before_any_work(tacit, tmp_path, options, said):
    (tmp_path / "c.toml").write_text(TOML)
    code, _, err = tacit("audit", "c.toml", *options)
    assert code == 2
    assert said in err


def test_an_uncharged_number_in_a_public_file_is_found(monkeypatch, tmp_path):
    (tmp_path / "c.toml").write_text(TOML)
    config = read_config(tmp_path / "c.toml")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        federation, plan = _planned(config, 60, 0)
    own = runs._start_line

    def leaking(prepared):
        (first, *_) = prepared.federation.parties.values()
        return own(prepared) | {"records": len(first["y"])}

    monkeypatch.setattr(runs, "_start_line", leaking)
    found = compare_files(config, federation, plan, 0)
    assert not found.holds
    assert "events.jsonl" in found.note
