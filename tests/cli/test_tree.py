"""The command tree: its names, its help, and JSON where a command prints a result."""

import json

import pytest
import typer

import tacit as package
from tacit.cli.main import COMMANDS, app

NO_RESULT = {
    "serve", "join", "approve", "server start", "server stop", "server propose", "server readmit",
    "certs init", "certs server", "certs party", "certs revoke", "schema",
}  # fmt: skip
"""Commands that act or report progress; `serve` and `join` write JSON lines all the same, and
`schema` prints nothing else."""


def leaves():
    """Every command with its full name."""
    root = typer.main.get_command(app)
    for name, command in root.commands.items():
        inner = getattr(command, "commands", None)
        if inner is None:
            yield name, command
        else:
            yield from ((f"{name} {under}", one) for under, one in inner.items())


def test_every_command_has_an_example():
    for name, command in leaves():
        assert f"tacit {name}" in command.help, name


def test_every_command_that_prints_a_result_can_print_json():
    for name, command in leaves():
        options = [option for one in command.params for option in one.opts]
        assert "--json" in options or name in NO_RESULT, name


def test_help_lists_the_advanced_commands_last(tacit):
    code, out, _ = tacit("--help")
    assert code == 0
    listed = [line.split()[0] for line in out.split("Commands:")[1].splitlines() if line.strip()]
    assert listed == list(COMMANDS)
    assert listed[-4:] == ["tune", "sweep", "account", "reproduce"]


def test_short_help_and_quiet(tacit, tmp_path):
    assert tacit("-h") == tacit("--help")
    assert tacit("ledger", "show", "-h")[0] == 0
    assert tacit("data", "list", "--quiet") == (0, "", "")
    assert json.loads(tacit("data", "list", "--quiet", "--json")[1])
    code, out, error = tacit("check", str(tmp_path / "none.toml"), "--quiet")
    assert (code, out) == (2, "")
    assert "error: " in error


def test_shells_complete_commands(tacit, monkeypatch):
    for name, value in {
        "_TACIT_COMPLETE": "complete_bash",
        "COMP_WORDS": "tacit le",
        "COMP_CWORD": "1",
    }.items():
        monkeypatch.setenv(name, value)
    code, out, _ = tacit("le")
    assert (code, out.split()) == (0, ["ledger"])


def test_version(tacit):
    assert tacit("--version") == (0, f"{package.__version__}\n", "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["data", "list"],
        ["account", "--noise-multiplier", "4", "--rounds", "3"],
    ],
)
def test_json_of_commands_without_a_run(tacit, arguments):
    code, out, _ = tacit(*arguments, "--json")
    assert code == 0
    assert json.loads(out)


def test_a_run_is_checked_run_explained_and_shown_as_json(tacit, tmp_path):
    config = tmp_path / "mean.toml"
    config.write_text("""
        name = "mean"
        privacy = "none"
        [data]
        source = "normal-mean"
        records = 40
        [partition]
        parties = 2
    """)
    found = json.loads(tacit("check", str(config), "--json")[1])
    assert found["valid"]
    assert found["plan"]["held out"] == "8 records"
    result = json.loads(tacit("run", str(config), "--out", "out", "--json")[1])
    assert result["converged"]
    shown = json.loads(tacit("show", "out", "--json")[1])
    assert shown["posterior"] == result["posterior"]
    code, out, _ = tacit("show", "out")
    assert (code, "mean" in out, "converged" in out) == (0, True, True)
    rows = json.loads(tacit("explain", str(config), "--json")[1])["rows"]
    assert all(row["unit_epsilon"] is None for row in rows)
    fit = package.load("out")
    assert fit.posterior.mean.tolist() == result["posterior"]["mean"]
    assert fit.schema == package.Schema()
    tacit("run", str(config), "--out", "other", "--set", "seed=2")
    both = json.loads(tacit("compare", "out", "other", "--json")[1])
    assert both["runs"] == ["out", "other"]
    assert both["facts"]["converged"] == [True, True]
    (first, second), *_ = both["posterior"].values()
    assert first[0] == result["posterior"]["mean"][0] != second[0]
    code, out, _ = tacit("compare", "out", "other")
    assert (code, "held_out.rmse" in out, "privacy" in out) == (0, True, True)
    assert tacit("compare", "out")[0] == 2
    path = tmp_path / "out" / "public" / "result.json"
    path.write_text(json.dumps(shown | {"cautions": [{"kind": "x", "text": "Believe nothing."}]}))
    code, out, err = tacit("show", "out", "--quiet")
    assert (code, out, "WARNING: Believe nothing." in err) == (0, "", True)
    assert "WARNING: Believe nothing." in tacit("show", "out")[1]
    code, _, err = tacit("show", "nowhere")
    assert (code, "result.json is missing" in err) == (4, True)
