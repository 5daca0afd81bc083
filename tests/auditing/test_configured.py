"""`tacit audit` of a configuration, and what it finds in public files."""

import json
import warnings

import pytest

import tacit.run.run as runs
from tacit.auditing.configured import _planned, compare_files
from tacit.auditing.party import AuditedParty, distance_below
from tacit.run.config import read_config
from tacit.testing.releases import noted

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
        (["--set", 'privacy="none"'], "only a private study has an ε to audit"),
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


def test_a_method_that_needs_thousands_of_records_is_audited_on_few(tmp_path):
    """Its noise would spoil the posterior, which is no reason to leave it unaudited."""
    (tmp_path / "c.toml").write_text(TOML)
    changes = ('method.kind="dp-scores"', "schedule.rounds=12", 'privacy.adjacency="replace-one"')
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, plan = _planned(read_config(tmp_path / "c.toml", changes), 60, 0)
    assert plan.method.kind == "dp-scores"
    assert plan.method.total_units == 60
    assert plan.guarantee.epsilon == pytest.approx(2.0, rel=1e-3)


TOPICS = """
name = "topics"
[data]
source = "synthetic-topics"
[partition]
parties = 2
[model]
kind = "topics"
topics = 3
document_words = 20
[method]
kind = "dp-statistics"
[schedule]
rounds = 2
[privacy]
epsilon = 2.0
delta = 1e-5
"""


def test_topics_are_audited_on_synthetic_documents(tmp_path):
    """Two documents without a word in common are as far apart as the sensitivity allows."""
    (tmp_path / "c.toml").write_text(TOPICS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, plan = _planned(read_config(tmp_path / "c.toml"), 12, 0)
    audited = AuditedParty(plan, "party-1")
    with noted():
        (pair,) = audited.worst_pairs(0)
        (draws,) = audited.draws([pair], pair.first, 128, 0.0)
    sensitivity = pair.event.sensitivity("replace-one")
    assert 0.99 * sensitivity < pair.moved <= sensitivity * (1 + 1e-9)
    charged = sensitivity / pair.event.noise_sd
    assert 0.5 * charged < distance_below(pair, draws, 1) <= charged
