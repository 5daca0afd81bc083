"""The public part of a run directory: a function of what was charged, for whoever may have it."""

import hashlib
import json
import re
import sqlite3
import stat
from pathlib import Path

import msgspec
import numpy as np
import pytest
from json_results import run
from neighbours import contains, differing, files, run_pair

from tacit.privacy.ledger.ledger import Ledger
from tacit.run.config import parse_config
from tacit.run.directory import checkpoint_path
from tacit.run.run import prepare

HEAD = "clinic,patient,dose,cholesterol,ill,pain\n"


def table(change=None):
    """60 records of two clinics and 30 patients; `change` edits the list of rows."""
    rng = np.random.default_rng(5)
    rows = []
    for number in range(60):
        dose, cholesterol = rng.uniform(0, 10), rng.uniform(120, 390)
        ill = "yes" if rng.random() < 1 / (1 + np.exp(5 - dose)) else "no"
        pain = np.clip(dose + rng.normal(), 0, 12)
        rows.append(
            [
                ("north", "south")[number % 2],
                f"p{number // 2 % 15 + 15 * (number % 2)}",
                f"{dose:.3f}",
                f"{cholesterol:.3f}",
                ill,
                f"{pain:.3f}",
            ]
        )
    if change is not None:
        change(rows)
    return HEAD + "\n".join(",".join(row) for row in rows) + "\n"


def another(rows):
    """One record in the place of another: its cholesterol is out of the declared bounds."""
    rows[10] = ["north", rows[10][1], "9.9", "999.0", "yes", "0.5"]


def one_more(rows):
    """A record more, out of the declared bounds."""
    rows.append(["north", "p0", "9.9", "999.0", "yes", "0.5"])


def other_outcomes(rows):
    """More than one unit: every outcome is another one, also of the held-out records."""
    for row in rows:
        row[4] = "no" if row[4] == "yes" else "yes"


def one_person_less(rows):
    rows[:] = [row for row in rows if row[1] != "p3"]


COLUMNS = {
    "clinic": {"levels": ["north", "south"], "feature": False},
    "patient": {"levels": [f"p{i}" for i in range(30)], "feature": False},
    "dose": {"low": 0, "high": 10},
    "cholesterol": {"low": 100, "high": 400, "outside": "clip"},
}
ILL = {"levels": ["no", "yes"]}
PAIN = {"low": 0, "high": 12}


def configuration(privacy, *, target="ill", **more):
    columns = COLUMNS | {
        "ill": ILL | ({"feature": False} if target != "ill" else {}),
        "pain": PAIN | ({"feature": False} if target != "pain" else {}),
    }
    data = {"path": "records.csv", "held_out": 0.25, "party": "clinic", **more.pop("data", {})}
    return {
        "outcome": target,
        **({"positive": "yes"} if target == "ill" else {}),
        "columns": columns | more.pop("columns", {}),
        "name": "neighbours",
        "seed": 3,
        "privacy": {"epsilon": 4.0, "delta": 1e-5, **privacy},
        "data": data,
        "evaluate": {"draws": 10},
        **more,
    }


UPDATE = {"kind": "dp-updates", "shards": 5}
COUNTED = {"kind": "dp-statistics", "count_clipped": True}
ADDED = {"adjacency": "add-or-remove-one"}
TRUSTED = {"aggregation": "trusted"}
SHORT = {"schedule": {"rounds": 2}}
KNOWN = SHORT | {"model": {"kind": "linear", "noise_sd": 1.0}}
CASES = {
    "scoring, replace-one": (configuration({}), another),
    "scoring, add or remove": (configuration(ADDED), one_more),
    "scoring, replace-one, trusted": (configuration(TRUSTED), another),
    "scoring, add or remove, trusted": (configuration(ADDED | TRUSTED), one_more),
    "scoring, persons": (
        configuration({"unit": "person"} | ADDED, data={"person": "patient"}),
        one_person_less,
    ),
    "dpsgd, replace-one": (configuration({}, method={"kind": "dp-sgd"}, **SHORT), another),
    "dpsgd, add or remove": (configuration(ADDED, method={"kind": "dp-sgd"}, **SHORT), one_more),
    "update, replace-one, trusted": (configuration(TRUSTED, method=UPDATE, **SHORT), another),
    "update, add or remove": (configuration(ADDED, method=UPDATE, **SHORT), one_more),
    "update, whole parties, noise added by the server, adaptive": (
        configuration(
            {"aggregation": "server", "unit": "party"},
            method={"kind": "dp-updates", "shards": 1, "adaptive": 0.5},
            **SHORT,
        ),
        one_more,
    ),
    "dpsgd, add or remove, asynchronous, by Adam": (
        configuration(
            ADDED,
            method={"kind": "dp-sgd", "optimiser": "adam"},
            schedule={"kind": "asynchronous", "rounds": 2},
        ),
        one_more,
    ),
    "statistics, replace-one, counted": (
        configuration({}, target="pain", method=COUNTED, **KNOWN),
        another,
    ),
    "statistics, add or remove, trusted": (
        configuration(ADDED | TRUSTED, target="pain", method={"kind": "dp-statistics"}, **KNOWN),
        one_more,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_neighbours_with_the_same_releases_have_the_same_public_part(tmp_path, case):
    raw, change = CASES[case]
    (first, one), (second, other) = run_pair(tmp_path, raw, (table(), table(change)))
    assert one["privacy"]["private"]
    assert differing(first / "public", second / "public") == []
    shared = files(first / "public")
    assert {"result.json", "posterior.npz", "report.html", "config.toml"} <= shared.keys()
    if raw.get("method") == COUNTED:  # a charged count is shared, with its noise
        told = json.loads((first / "public" / "result.json").read_text(encoding="utf-8"))
        assert told["clipped"]["noise_sd"] > 0
    # Power: the records do differ, and those who may see them see that.
    assert "evaluation.json" in differing(first / "private", second / "private")
    assert one["metrics"] != other["metrics"] or one["data"] != other["data"]


def test_what_is_published_is_said_to_be_not_covered(tmp_path):
    raw = configuration(ADDED, method={"kind": "dp-sgd"}, **SHORT)
    raw["evaluate"]["publish"] = True
    (first, one), (second, _) = run_pair(tmp_path, raw, (table(), table(other_outcomes)))
    assert {"result.json", "report.html"} <= set(differing(first / "public", second / "public"))
    shared = json.loads((first / "public" / "result.json").read_text())
    assert shared["metrics"] == one["metrics"]
    assert "evaluate.publish" in shared["privacy"]["not_covered"][0]
    page = (first / "public" / "report.html").read_text()
    assert "evaluate.publish" in page
    assert "except for what this page lists as not covered" in page


def test_counts_and_notes_stay_in_the_private_part(tmp_path):
    (out, result), _ = run_pair(tmp_path, *_plain_case())
    assert result["data"]["notes"] == ['column "cholesterol": values clipped to [100, 400]: 1']
    assert contains(out / "public", b"clipped to") == []
    shared = json.loads((out / "public" / "result.json").read_text())
    assert [party["records"] for party in shared["parties"]] == [None, None]
    assert shared["metrics"] == {"training": None, "held_out": None}
    for key in ("timing", "compilations", "calibration"):
        assert key not in shared
    kept = json.loads((out / "private" / "evaluation.json").read_text())
    assert kept["data"]["notes"] == result["data"]["notes"]
    assert kept["metrics"]["held_out"]["accuracy"] == result["metrics"]["held_out"]["accuracy"]
    assert sum(party["records"] for party in kept["parties"]) == 46
    assert stat.S_IMODE((out / "private").stat().st_mode) == 0o700
    assert "public/   may be shared" in (out / "README.txt").read_text()
    page = (out / "public" / "report.html").read_text()
    assert "Not covered by this guarantee" in page
    for item in shared["privacy"]["not_covered"]:
        assert item.split("(")[0].strip() in page


def often_outside(rows):
    """A fifth of the cholesterol values is out of the declared bounds."""
    for row in rows[::5]:
        row[3] = "999.0"


def test_the_share_of_values_outside_the_bounds_stays_in_the_private_part(tmp_path):
    raw = configuration({})
    (first, one), (second, other) = run_pair(tmp_path, raw, (table(often_outside), table()))
    (caution,) = one["local_cautions"]
    assert caution["text"].startswith("20% of the values of cholesterol are outside the declared")
    assert one["data"]["outside"] == {"cholesterol": 0.2}
    assert "local_cautions" not in other
    assert contains(first / "public", b"outside the declared", b"outside-bounds") == []
    shared, same = (
        json.loads((out / "public" / "result.json").read_text()) for out in (first, second)
    )
    assert shared["data"]["outside"] == same["data"]["outside"] == {}
    assert shared.keys() == same.keys()
    kept = json.loads((first / "private" / "evaluation.json").read_text())
    assert kept["local_cautions"] == one["local_cautions"]


def test_without_privacy_the_share_of_values_outside_the_bounds_is_a_caution(tmp_path):
    raw = configuration({}) | {"privacy": "none"}
    (first, one), (_, other) = run_pair(tmp_path, raw, (table(often_outside), table(another)))
    assert [note["kind"] for note in one["cautions"]].count("outside-bounds") == 1
    assert "local_cautions" not in one
    assert "report.html" in contains(first / "public", b"20% of the values of cholesterol")
    assert "outside" in json.dumps(other["cautions"]), "1 of 60 values is more than 1 %"


def _plain_case():
    raw = configuration(ADDED, method={"kind": "dp-sgd"}, **SHORT)
    return raw, (table(one_more), table())


# Digests of records.


def guess(raw, candidate):
    """What version 0.1 wrote for a data set: anybody who guesses the records can compute it."""
    config = parse_config(raw)
    federation = prepare(config).federation
    digest = hashlib.blake2b(digest_size=16)
    for name, records in federation.parties.items():
        digest.update(name.encode())
        for key in sorted(records):
            digest.update(key.encode())
            digest.update(np.ascontiguousarray(records[key]).tobytes())
    del candidate
    body = msgspec.json.encode(config, order="deterministic")
    return digest.hexdigest(), hashlib.sha256(body + digest.hexdigest().encode()).hexdigest()


def stored_digest(out):
    with sqlite3.connect(checkpoint_path(out)) as db:
        (found,) = db.execute("SELECT digest FROM run").fetchone()
    db.close()
    return found


def test_a_run_directory_confirms_no_guess_of_the_records(tmp_path, monkeypatch):
    """The digest that finds other records on --resume has a key, which is with the ledger."""
    raw, tables = _plain_case()
    (first, _), (second, _) = run_pair(tmp_path, raw, (tables[0], tables[0]))
    assert stored_digest(first) != stored_digest(second), "the same records under two keys"
    monkeypatch.chdir(first.parent)
    unkeyed = [value.encode() for value in guess(raw, tables[0])]
    assert contains(first, *unkeyed) == []
    with Ledger("ledger.sqlite") as ledger:
        key = ledger.derived_key("checkpoint")
    assert contains(first, key, key.hex().encode()) == []
    again = run(parse_config(raw), Path("run"), ledger=Path("ledger.sqlite"), resume=True)
    assert again["finished"], "the same records and the same ledger: it can be resumed"


def test_a_run_without_privacy_has_a_keyed_digest_too(tmp_path):
    raw = {"privacy": "none", "data": {"source": "normal-mean", "records": 40},
           "partition": {"parties": 2}, "schedule": {"rounds": 1}}  # fmt: skip
    for name in ("a", "b"):
        run(parse_config(raw), tmp_path / name)
    assert stored_digest(tmp_path / "a") != stored_digest(tmp_path / "b")
    assert run(parse_config(raw), tmp_path / "a", resume=True)["rounds"] == 1


def test_no_source_file_hashes_records_without_a_key():
    """Where a hash is made of records it has a key; the others are of names and configurations."""
    source = Path(__file__).parents[2] / "src" / "tacit"
    made = {}
    for path in source.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        calls = re.findall(r"hashlib\.(?:sha256|blake2b)\((?:[^()]|\([^()]*\))*\)", text)
        open_calls = [call for call in calls if "key=" not in call]
        if open_calls:
            made[str(path.relative_to(source))] = len(open_calls)
    assert made.keys() <= {
        "data/readers/corpus.py",  # a public word list
        "data/readers/download.py",  # public files
        "data/readers/posteriordb.py",  # public files
        "live/config.py",  # the agreed file
        "live/plan.py",  # a posterior that every party receives
        "live/secure/agreed.py",  # what a server asked for
        "live/secure/checks.py",  # random shares of random keys
        "live/secure/masks.py",  # names, slots and digests
        "live/secure/messages.py",  # public keys
        "live/secure/party.py",  # random seeds and shares
        "live/secure/server.py",  # random seeds
        "live/secure/signing.py",  # public keys
        "live/secure/terms.py",  # the agreed file
        "live/session.py",  # what a server sent
        "live/transport/tls.py",  # public keys
        "methods/private.py",  # names of parties
        "party/compute.py",  # names of parties
        "plan/plan.py",  # the key of the noise that the server adds
        "privacy/ledger/chain.py",  # entries of the ledger
        "privacy/ledger/fingerprint.py",  # a schema
        "privacy/noise_key.py",  # seeds and names of parties
        "run/config.py",  # a configuration
        "run/sweep/spec.py",  # a configuration
        "run/sweep/store.py",  # a row of a sweep's table
        "server/messages.py",  # what a server sent
        "testing/engine_probe.py",  # made-up records of a conformance suite
        "testing/kill_points.py",  # files that a conformance suite wrote
        "support/storage.py",  # a party's own state, in its private directory
    } | {name for name in made if name.startswith("reproduce/")}
