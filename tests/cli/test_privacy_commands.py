"""`tacit account` and `tacit ledger` as an operator meets them."""

import re

import numpy as np
import pytest

from tacit.privacy.events import GaussianEvent
from tacit.privacy.ledger.ledger import Ledger, ReleaseRequest, RunPlan

DATA = {"x": np.arange(6.0).reshape(3, 2), "y": np.ones(3)}


@pytest.fixture
def ledger(tmp_path):
    """A ledger file and the id of its one data set, no budget yet."""
    path = tmp_path / "ledger.sqlite"
    with Ledger(path, create=True) as opened:
        dataset = opened.identify({"columns": ["x", "y"]}, DATA)
    return str(path), str(dataset)


def test_account_says_what_releases_cost(tacit, tmp_path):
    plot = tmp_path / "epsilon.png"
    code, out, _ = tacit(
        "account", "--noise-multiplier", "10", "--rounds", "10", "--adjacency", "add-or-remove-one",
        "--plot", str(plot),
    )  # fmt: skip
    assert code == 0
    assert re.search(r"pld\s*│\s*10\.0000\s*│\s*1\.199", out)
    assert re.search(r"rdp\s*│\s*10\.0000\s*│\s*1\.30", out)
    assert "add-or-remove-one" in out
    assert plot.stat().st_size > 5_000


def test_account_says_how_much_noise_a_target_needs(tacit):
    code, out, _ = tacit("account", "--epsilon", "1", "--rounds", "10")
    assert code == 0
    (noise, found) = re.search(r"pld\s*│\s*([\d.]+)\s*│\s*([\d.]+)", out).groups()
    assert float(found) <= 1.0
    assert 23 < float(noise) < 24, "twice the noise of add-or-remove-one"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--noise-multiplier"),
        (["--noise-multiplier", "1", "--epsilon", "1"], "either"),
        (["--noise-multiplier", "0"], "noise"),
        (["--epsilon", "0"], "epsilon = 0"),
        (["--epsilon", "nan"], "nan"),
        (["--noise-multiplier", "1", "--delta", "-1"], "--delta -1"),
        (["--noise-multiplier", "1", "--adjacency", "replace"], "replace-one"),
        (["--noise-multiplier", "1", "--batch", "5"], "--of"),
        (["--noise-multiplier", "1", "--rate", "2"], "rate = 2"),
        (["--noise-multiplier", "1", "--rounds", "0"], "count = 0"),
    ],
)
def test_account_refuses_in_one_line(tacit, arguments, words):
    code, out, err = tacit("account", *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert words in err


def test_operator_sets_a_budget_and_sees_what_was_spent(tacit, ledger, tmp_path):
    path, dataset = ledger
    assert tacit("ledger", "show", "--ledger", path)[1].startswith("the ledger is empty")
    budget = (
        "ledger",
        "budget",
        dataset,
        "--ledger",
        path,
        "--delta",
        "1e-5",
        "--reason",
        "board",
    )
    assert tacit(*budget, "--epsilon", "1")[0] == 0
    code, _, err = tacit(*budget, "--epsilon", "2")
    assert code == 3
    assert "--raise" in err
    with Ledger(path) as opened:
        event = GaussianEvent(clip=1.0, noise_sd=40.0)
        identity = opened.identify({"columns": ["x", "y"]}, DATA)
        terms = {"unit": "record", "adjacency": "replace-one"}
        opened.charge(identity, "run", "r0", [event], **terms)
        assert "planned" not in tacit("ledger", "show", "--ledger", path)[1]
        asked = ReleaseRequest(dataset=identity, run="two", request="r0", events=[event], **terms)
        plan = RunPlan(dataset=identity, run="two", events=[event, event], **terms)
        opened.open_many([asked], plans=[plan])
    code, out, _ = tacit("ledger", "show", "--ledger", path)
    assert code == 0
    assert "replace-one" in out
    assert "its remaining releases count as spent" in out
    footnote = 'The budget is compared with the larger "with plans", which also holds'
    assert footnote in " ".join(out.split())
    assert dataset not in out, "a short id will do"
    code, out, _ = tacit("ledger", "show", "--ledger", path, "--all")
    assert code == 0
    assert "charged" in out
    assert dataset in out
    code, out, _ = tacit("ledger", "verify", "--ledger", path)
    assert code == 0
    assert "5 entries, intact" in out
    assert tacit("ledger", "export", "--ledger", path, "--out", "entries.csv")[0] == 0
    assert "gaussian" in (tmp_path / "entries.csv").read_text()


def test_a_budget_below_what_is_spent_is_accepted_with_a_warning(tacit, ledger):
    path, dataset = ledger
    terms = ("ledger", "budget", dataset, "--ledger", path, "--delta", "1e-5", "--reason", "r")
    assert tacit(*terms, "--epsilon", "5")[2] == ""
    with Ledger(path) as opened:
        event = GaussianEvent(clip=1.0, noise_sd=40.0)
        identity = opened.identify({"columns": ["x", "y"]}, DATA)
        opened.charge(identity, "run", "r0", [event], unit="record", adjacency="replace-one")
        spent = opened.spent(identity).epsilon
    assert tacit(*terms, "--epsilon", f"{spent * 1.01}")[2] == ""
    for more in ((), ("--json",)):
        code, _, err = tacit(*terms, "--epsilon", f"{spent / 2}", *more)
        assert code == 0
        assert err == (
            f"warning: ε = {spent:.4g} is already spent or planned, more than this budget, so "
            "nothing more is released until it is raised\n"
        )


def test_a_damaged_ledger_is_exit_code_4_and_is_left_alone(tacit, ledger, tmp_path):
    path, dataset = ledger
    tacit("ledger", "budget", dataset, "--ledger", path, "--epsilon", "1", "--delta", "1e-5",
          "--reason", "board")  # fmt: skip
    file = tmp_path / "ledger.sqlite"
    body = file.read_bytes()
    spoilt = body.replace(b"board", b"bored")
    assert spoilt != body
    file.write_bytes(spoilt)
    for command in ("show", "verify"):
        code, _, err = tacit("ledger", command, "--ledger", path)
        assert code == 4
        assert err.count("\n") == 1
    assert file.read_bytes() == spoilt
