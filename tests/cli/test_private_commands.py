"""Private runs at the command line: what is refused, what is shown, what an operator does."""

import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest

from tacit.plan.calibrate import LargeDeltaWarning
from tacit.privacy.ledger.ledger import Ledger

GOOD = """
name = "private"
seed = 3

[privacy]
epsilon = 2.0
delta = 1e-4
insecure_noise_seed = 7

[data]
source = "synthetic-cohort"
records = 120

[partition]
parties = 3

[method]
kind = "dp-sgd"

[schedule]
rounds = 2

[evaluate]
draws = 10
"""

TABLE = """
outcome = "ill"
positive = "yes"

[data]
path = "table.csv"
[columns.age]
{bounds}
[columns.ill]
levels = ["no", "yes"]
[partition]
parties = 2
[privacy]
{privacy}
"""


@pytest.fixture
def config(tmp_path) -> Path:
    path = tmp_path / "good.toml"
    path.write_text(GOOD)
    return path


@pytest.fixture
def secret(tmp_path, monkeypatch) -> str:
    monkeypatch.setenv("TACIT_STATE", str(tmp_path / "state"))
    path = tmp_path / "secret.toml"
    path.write_text(GOOD.replace("insecure_noise_seed = 7\n", ""))
    return str(path)


def refused(answer, words, code=2):
    """One line with its exit code, and nothing on standard output."""
    found, out, err = answer
    assert (found, out) == (code, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert words in err


NO_EPSILON = "privacy={delta=1e-4, insecure_noise_seed=7, noise_multiplier=%s}"
TRUSTED = ["privacy.aggregation=trusted", "method.kind=dp-updates"]
BAD = {
    "epsilon 0": (["privacy.epsilon=0.0"], "privacy.epsilon = 0.0; it must be a finite number > 0"),
    "epsilon negative": (["privacy.epsilon=-1.0"], "privacy.epsilon = -1.0"),
    "epsilon nan": (["privacy.epsilon=nan"], "privacy.epsilon = nan"),
    "epsilon infinite": (["privacy.epsilon=inf"], "privacy.epsilon = inf"),
    "epsilon words": (["privacy.epsilon=small"], "privacy.epsilon = \"small\""),
    "noise 0": ([NO_EPSILON % "0.0"], "privacy.noise_multiplier = 0.0; without noise"),
    "noise negative": ([NO_EPSILON % "-2.0"], "privacy.noise_multiplier = -2.0"),
    "noise nan": ([NO_EPSILON % "nan"], "privacy.noise_multiplier = nan"),
    "noise infinite": ([NO_EPSILON % "inf"], "privacy.noise_multiplier = inf"),
    "both": (["privacy.noise_multiplier=3.0"], "each determines the other"),
    "neither": (["privacy={delta=1e-4}"], "neither epsilon nor noise_multiplier"),
    "delta -1": (["privacy.delta=-1.0"], "privacy.delta = -1.0; it must be in [0, 1)"),
    "delta 1": (["privacy.delta=1.0"], "privacy.delta = 1.0"),
    "delta nan": (["privacy.delta=nan"], "privacy.delta = nan"),
    "accountant": (["privacy.accountant=zcdp"], "'pld', 'rdp', 'moments', 'strong'"),
    "adjacency": (["privacy.adjacency=replace"], "'add-or-remove-one', 'replace-one'"),
    "unknown key": (["privacy.epsilom=1.0"], "did you mean epsilon"),
    "seed": (["privacy.insecure_noise_seed=-1"], "privacy.insecure_noise_seed = -1"),
    "clip 0": (["method.clip=0.0"], "method.clip = 0.0"),
    "clip nan": (["method.clip=nan"], "method.clip = nan"),
    "rate 0": (["method.sampling_rate=0.0"], "method.sampling_rate = 0.0"),
    "steps 0": (["method.steps=0"], "method.steps = 0"),
    "trusted, one party": ([*TRUSTED, "method.shards=1", "partition.parties=1"], "has 1 party"),
    "trusted, one a round": (
        [*TRUSTED, "schedule.parties_per_round=1"],
        "but a round has 1 party",
    ),
    "trusted, dpsgd": (
        ["privacy.aggregation=trusted", "method.steps=2"],
        "method.steps = 2 cannot be combined with privacy.aggregation = 'trusted'",
    ),
    "trusted, sequential": (
        [*TRUSTED, "schedule.kind=sequential"],
        "privacy.aggregation = 'trusted' with schedule.kind = 'sequential'",
    ),
    "trusted, asynchronous": ([*TRUSTED, "schedule.kind=asynchronous"], "asynchronous"),
    "private method, no privacy": (["privacy=none"], "method.kind = 'dp-sgd' is private"),
    "privacy, exact method": (["method.kind=natural"], "sends exact updates and cannot meet"),
    "full covariance": (["posterior=full"], "needs posterior = 'mean-field'"),
    "unknown party": (["privacy.parties.party-9.epsilon=1.0"], "'party-9', which is not a party"),
    "a party's epsilon": (["privacy.parties.party-1.epsilon=0.0"], "\"party-1\".epsilon = 0.0"),
    "a party's both": (
        ["privacy.parties.party-1={epsilon=1.0, noise_multiplier=1.0}"],
        "each determines the other",
    ),
    "unit": (["privacy.unit=hospital"], "'record', 'person', 'party'"),
    "unit of another method": (["privacy.unit=party"], "privacy.unit = 'party' with method.kind"),
    "sampling that tells the number": (
        ["method.sampling_rate=0.5", "method.sampling=without-replacement",
         "privacy.adjacency=add-or-remove-one"],
        "a batch of fixed size reveals the number of records",
    ),
    "pooled scaling": (["data.scaling=pooled"], "needs public bounds"),
    "never visited": (["schedule.parties_per_round=1", "schedule.rounds=1"], "is never visited"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_kept_is_refused_in_one_line(tacit, config, tmp_path, case):
    overrides, words = BAD[case]
    settings = [part for override in overrides for part in ("--set", override)]
    refused(tacit("check", str(config), *settings), words)
    refused(tacit("run", str(config), "--out", "out", *settings), words)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["good.toml"]


def test_a_person_has_to_be_named(tacit, config):
    answer = tacit("check", str(config), "--set", "privacy.unit=person")
    assert answer[0] in (2, 4)
    refused(answer, "data.person is not set", code=answer[0])


def test_a_person_that_is_named_is_the_unit(tacit, config):
    settings = ("--set", "privacy.unit=person", "--set", "data.person=patient")
    code, out, _ = tacit("check", str(config), *settings)
    assert code == 0
    assert "per person (replace-one)" in out


def test_a_table_without_bounds_is_refused(tacit, tmp_path):
    rows = "\n".join(f"{20 + i},{'yes' if i % 3 else 'no'}" for i in range(40))
    (tmp_path / "table.csv").write_text(f"age,ill\n{rows}\n")
    asked = "epsilon = 1.0\ndelta = 1e-3\ninsecure_noise_seed = 1"
    (tmp_path / "c.toml").write_text(TABLE.format(bounds="", privacy=asked))
    answer = tacit("check", "c.toml")
    assert answer[0] == 2
    refused(answer, "age")
    (tmp_path / "c.toml").write_text(TABLE.format(bounds="low = 0\nhigh = 120", privacy=asked))
    assert tacit("check", "c.toml")[0] == 0


def test_a_delta_that_is_too_large_is_shown(tacit, config):
    with warnings.catch_warnings():
        warnings.simplefilter("always", LargeDeltaWarning)
        code, _, err = tacit("check", str(config), "--set", "privacy.delta=0.1")
    assert code == 0
    assert err.startswith("warning: δ = 0.1 is not below 1/n")
    assert err.count("\n") == 1
    assert tacit("check", str(config))[0] == 0, "and a small one is not: a warning is an error here"


def test_check_shows_the_price_and_spends_nothing(tacit, secret, tmp_path):
    tacit("ledger", "budget", secret, "--epsilon", "2", "--delta", "1e-4", "--reason", "r")
    before = (tmp_path / "state" / "ledger.sqlite").read_bytes()
    code, out, err = tacit("check", secret)
    assert (code, err) == (0, "")
    for words in (
        "Differential privacy: ε = 2, δ = 0.0001 per record (replace-one)",
        "No trusted server",
        "noise sd",
        "signal to noise",
        "This check spends no budget.",
    ):
        assert words in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secret.toml", "state"]
    assert (tmp_path / "state" / "ledger.sqlite").read_bytes() == before


def test_check_refuses_what_run_refuses_for_want_of_a_budget(tacit, secret, tmp_path):
    """The same exit code and line as `tacit run`, with the command that sets a budget."""
    for exists in (False, True):
        checked = tacit("check", secret)
        assert "Configuration is valid" in checked[1]
        ran = tacit("run", secret, "--out", "out")
        assert (checked[0], checked[2]) == (ran[0], ran[2])
        refused(ran, f"tacit ledger budget {secret} --ledger", code=3)
        assert "--epsilon 2 --delta 0.0001 --reason" in ran[2]
        if exists:
            assert "no privacy budget is set" in ran[2]
            assert "' and 2 more" in ran[2]
        else:
            assert "does not exist" in ran[2]
            Ledger(tmp_path / "state" / "ledger.sqlite", create=True).close()
    tacit("ledger", "budget", secret, "--epsilon", "1", "--delta", "1e-4", "--reason", "r")
    checked, ran = tacit("check", secret), tacit("run", secret, "--out", "out")
    assert (checked[0], checked[2]) == (ran[0], ran[2])
    refused(ran, "together 2 > budget 1", code=3)
    book = tmp_path / "state" / "ledger.sqlite"
    command = f"tacit ledger budget {secret} --ledger {book} --epsilon … --delta … --reason …"
    assert f"{command} --raise" in ran[2]


def test_a_budget_is_set_in_the_ledger_that_the_file_names(tacit, secret, tmp_path):
    path, own = Path(secret), tmp_path / "state" / "ledger.sqlite"
    named = tmp_path / "study.sqlite"
    path.write_text(path.read_text().replace("[privacy]", f'[privacy]\nledger = "{named}"'))
    allow = ("ledger", "budget", secret, "--delta", "1e-4", "--reason", "r", "--epsilon")
    code, out, _ = tacit(*allow, "1")
    assert code == 0
    assert f"ledger: {named}" in out
    assert named.exists()
    assert not own.exists()
    refused(tacit("run", secret, "--out", "out"), f"budget {secret} --ledger {named}", code=3)
    assert tacit(*allow, "2", "--raise")[0] == 0
    assert tacit("check", secret)[0] == 0
    path.write_text(path.read_text().replace(str(named), "run-directory"))
    refused(tacit(*allow, "2"), 'privacy.ledger = "run-directory"', code=2)
    assert not own.exists()


def test_check_takes_another_ledger(tacit, secret, tmp_path):
    own = ("--ledger", str(tmp_path / "other.sqlite"))
    allowed = ("--epsilon", "2", "--delta", "1e-4", "--reason", "r")
    assert tacit("ledger", "budget", secret, *allowed, *own)[0] == 0
    assert tacit("check", secret, *own)[0] == 0
    assert tacit("check", secret)[0] == 3


def test_check_warns_of_a_run_that_hears_nothing(tacit, config):
    code, out, _ = tacit("check", str(config), "--set", "privacy.epsilon=0.01")
    assert code == 0
    assert "WARNING: party" in out


def test_explain_lists_the_adversaries_and_spends_nothing(tacit, secret, tmp_path):
    code, out, _ = tacit("explain", secret, "--colluding", "1")
    assert code == 0
    for words in (
        "reads the final model",
        "eavesdrops",
        "curious",
        "the server",
        "several records",
    ):
        assert words in out.replace("Several", "several")
    refused(tacit("explain", secret, "--colluding", "0"), "--colluding 0")
    assert [path.name for path in tmp_path.iterdir()] == ["secret.toml"]


def test_explain_of_a_central_run_trusts_who_holds_the_records(tacit, config):
    code, out, _ = tacit("explain", str(config), "--set", "baseline=central")
    assert code == 0
    row = next(line for line in out.splitlines() if "the server" in line)
    assert row.count("not protected") == 2
    assert "Trusted data holder: all records are in one place" in out


def test_an_operator_allows_one_run_and_no_second(tacit, secret, tmp_path):
    """The user's own ledger, from nothing to exhausted."""
    run = ("run", secret, "--out", "out")
    answer = tacit(*run)
    refused(answer, f"tacit ledger budget {secret}", code=3)
    assert "privacy.insecure_noise_seed" in answer[2]
    assert not Path("out").exists()

    allow = ("ledger", "budget", secret, "--delta", "1e-4", "--reason", "study 7")
    code, out, err = tacit(*allow, "--epsilon", "2")
    assert (code, err) == (0, "")
    assert len(re.findall(r"^party-\d: ", out, re.MULTILINE)) == 3

    code, out, _ = tacit(*run)
    assert code == 0
    assert "privacy: Differential privacy: ε = 2, δ = 0.0001 per record" in out
    assert "training" not in out, "metrics of the training records are a release"
    book = tmp_path / "state" / "ledger.sqlite"
    assert f"ledger: {book}" in out
    assert json.loads(Path("out/public/result.json").read_text())["privacy"]["private"] is True
    with Ledger(book) as ledger:
        spent: list[Any] = [ledger.spent(dataset) for dataset in ledger.datasets()]
    assert len(spent) == 3
    assert all(one.epsilon <= 2.0 and one.charges == 2 for one in spent)

    second = ("run", secret, "--out", "second")
    refused(tacit(*second), "--raise", code=3)
    assert not Path("second").exists()
    assert tacit("ledger", "verify")[0] == 0
    code, out, _ = tacit("ledger", "show")
    assert code == 0
    assert "study 7" in out
    # Resuming what is finished costs nothing.
    assert tacit(*run, "--resume")[0] == 0
    with Ledger(book) as ledger:
        assert all(ledger.spent(dataset).charges == 2 for dataset in ledger.datasets())


def test_ledger_show_names_parties_and_sums_up_each_run(tacit, secret):
    """Two lines for each run instead of one for each release, in the names of the parties."""
    tacit("ledger", "budget", secret, "--epsilon", "5", "--delta", "1e-4", "--reason", "board")
    for out in ("one", "two"):
        assert tacit("run", secret, "--out", out)[0] == 0
    code, out, err = tacit("ledger", "show")
    assert (code, err) == (0, "")
    assert re.search(r"party-1 +│ [0-9a-f]{8} +│ \S+ +│ \S+ +│ 5 ", out), out
    assert not re.search(r"[0-9a-f]{32}", out), "short ids only"
    assert "party-1, party-2, party-3" in out
    assert len(re.findall(r"│ run-[0-9a-f]+", out)) == 2
    assert out.count("2 at δ = 0.0001") == 2, "the ε of each run"
    assert "board" in out
    assert len(out.splitlines()) < 30
    whole = tacit("ledger", "show", "--all")[1]
    assert len(re.findall(r"[0-9a-f]{32}\.[0-9a-f]{32}", whole)) == 3
    assert "party-2, visit 1" in whole
    body = json.loads(tacit("ledger", "show", "--json")[1])
    assert {row["party"] for row in body["datasets"]} == {"party-1", "party-2", "party-3"}
    for row in body["datasets"]:
        assert 2.0 < row["epsilon"] < 5.0
        assert row["remaining"] == row["budget"]["epsilon"] - row["epsilon"]
    assert len(body["entries"]) == 3 + 3 + 2 * 3 * (1 + 2 * 2), "each run has a plan by party"
