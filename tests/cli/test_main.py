"""The command line as a person meets it: what it prints, where it writes, how it refuses."""

import json
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from tacit.run.config import read_config

ROOT = Path(__file__).parents[2]

GOOD = """
name = "three sites"
privacy = "none"
seed = 4

[data]
source = "synthetic-cohort"
records = 400

[partition]
kind = "source"
parties = 3

[schedule]
rounds = 4
"""


@pytest.fixture
def config(tmp_path) -> Path:
    path = tmp_path / "good.toml"
    path.write_text(GOOD)
    return path


def test_run_prints_intervals_and_metrics_and_leaves_a_run_directory(tacit, config):
    code, out, err = tacit("run", str(config), "--out", "out", "--report")
    assert code == 0
    for words in (
        "2.5 %",
        "97.5 %",
        "accuracy",
        "log predictive density",
        "calibration error",
        "Not private",
    ):
        assert words in out
    assert err == "", "no progress bar when the output is not a terminal"
    result = json.loads(Path("out/public/result.json").read_text())
    assert result["rounds"] == 4
    assert result["exchanges"] == 12
    assert Path("out/public/report.html").exists()
    assert Path("out/public/config.toml").exists()


def test_run_directory_is_named_after_the_run(tacit, config):
    code, _, _ = tacit("run", str(config), "--seed", "5", "--set", "schedule.rounds=1")
    assert code == 0
    assert json.loads(Path("runs/three-sites-seed5/public/result.json").read_text())["seed"] == 5


def test_finished_run_is_not_overwritten_unless_asked(tacit, config):
    short = ("run", str(config), "--out", "out", "--set", "schedule.rounds=1")
    assert tacit(*short)[0] == 0
    before = Path("out/public/result.json").read_bytes()
    code, _, err = tacit(*short)
    assert code == 2
    assert "--resume" in err
    assert "--overwrite" in err
    assert Path("out/public/result.json").read_bytes() == before
    assert tacit(*short, "--overwrite")[0] == 0
    code, _, err = tacit("run", str(config), "--out", "out", "--resume")
    assert code == 4
    assert "another configuration" in err


def test_check_says_what_would_run_and_writes_nothing(tacit, config, tmp_path):
    code, out, _ = tacit("check", str(config))
    assert code == 0
    for words in ("natural", "full", "synchronous", "3", "Not private"):
        assert words.lower() in out.lower()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["good.toml"]


BAD = [
    (["schedule.rounds=0"], 2, "schedule.rounds = 0"),
    (["schedule.damping=0"], 2, "schedule.damping = 0"),
    (["schedule.damping=2"], 2, "schedule.damping = 2"),
    (["schedule.damping=nan"], 2, "schedule.damping = nan"),
    (["schedule.rounds=ten"], 2, 'schedule.rounds = "ten"'),
    (["schedule.round=3"], 2, "did you mean rounds"),
    (["schedul.rounds=3"], 2, "did you mean schedule"),
    (["schedule.kind=random"], 2, "sequential"),
    (["schedule.parties_per_round=9"], 2, "it must be at most 3"),
    (["method.steps=3"], 2, 'is not a key of kind = "auto"'),
    (["method.kind=exact"], 2, "method.kind = 'exact'"),
    (["model.kind=linear"], 2, "model.kind = 'linear'"),
    (["model.prior_sd=0"], 2, "model.prior_sd = 0"),
    (["seed=-1"], 2, "seed = -1"),
    (["privacy=dp"], 2, 'privacy = "dp"'),
    (["data.source=adlut"], 2, "did you mean"),
    (["data.held_out=1.5"], 2, "data.held_out = 1.5"),
    (["partition.parties=0"], 2, "partition.parties = 0"),
    (["data.records=2"], 2, "data.records = 2"),
    (["evaluate.draws=0"], 2, "evaluate.draws = 0"),
]


@pytest.mark.parametrize(("overrides", "exit_code", "words"), BAD, ids=lambda v: str(v)[:40])
@pytest.mark.parametrize("command", ["run", "check"])
def test_bad_value_is_one_line_with_its_exit_code(
    tacit, config, tmp_path, command, overrides, exit_code, words
):
    settings = [part for override in overrides for part in ("--set", override)]
    code, out, err = tacit(command, str(config), *settings)
    assert (code, out) == (exit_code, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert words in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["good.toml"]


def test_missing_privacy_is_refused_with_what_to_write(tacit, tmp_path):
    (tmp_path / "c.toml").write_text('name = "x"\n')
    code, _, err = tacit("check", "c.toml")
    assert code == 2
    assert 'privacy = "none"' in err


CSV = """
privacy = "none"
outcome = "ill"
positive = "yes"
[data]
path = "table.csv"
[columns.age]
low = 0
high = 100
[columns.colour]
levels = ["red", "blue"]
[columns.ill]
levels = ["no", "yes"]
[partition]
parties = 2
"""

TABLES = {
    "missing file": (None, "table.csv"),
    "missing column": ("age,ill\n1,no\n2,yes\n3,no\n4,yes\n", '"colour"'),
    "unknown category": ("age,colour,ill\n1,red,no\n2,green,yes\n3,red,no\n4,red,yes\n", "green"),
    "not a number": ("age,colour,ill\n1,red,no\nold,red,yes\n3,red,no\n4,red,yes\n", "old"),
    "nan": ("age,colour,ill\n1,red,no\nnan,red,yes\n3,red,no\n4,red,yes\n", "nan"),
    "infinite": ("age,colour,ill\n1,red,no\ninf,red,yes\n3,red,no\n4,red,yes\n", "inf"),
    "one class": ("age,colour,ill\n1,red,no\n2,red,no\n3,red,no\n4,red,no\n", "yes"),
    "no rows": ("age,colour,ill\n", "table.csv"),
}


@pytest.mark.parametrize("case", TABLES)
def test_bad_table_is_one_line_with_exit_code_4(tacit, tmp_path, case):
    content, words = TABLES[case]
    (tmp_path / "c.toml").write_text(CSV)
    if content is not None:
        (tmp_path / "table.csv").write_text(content)
    code, out, err = tacit("run", "c.toml", "--out", "out")
    assert (code, out) == (4, "")
    assert err.count("\n") == 1
    assert words in err
    assert not Path("out").exists()


def test_debug_shows_a_traceback(tacit):
    code, _, err = tacit("check", "nowhere.toml", "--debug")
    assert code == 2
    assert "Traceback" in err


def test_unknown_option_and_command_are_one_line(tacit):
    for arguments in (["run", "--nonsense"], ["fly"], ["run"], ["reproduce", "fedvy"]):
        code, _, err = tacit(*arguments)
        assert code == 2
        assert err.startswith("error: ")
        assert err.count("\n") == 1


def test_lists_and_help_need_no_array_library():
    script = (
        "import sys; sys.argv = ['tacit', '--help']\n"
        "from tacit.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as stop: code = stop.code\n"
        "assert code == 0, code\n"
        "heavy = {'jax', 'numpy', 'polars', 'numpyro', 'matplotlib', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "tacit run examples/hospitals.toml" in done.stdout


def test_a_bad_file_is_answered_without_jax(tmp_path):
    (tmp_path / "bad.toml").write_text('privacy = "none"\n[schedule]\nrounds = 0\n')
    script = (
        f"import sys; sys.argv = ['tacit', 'check', {str(tmp_path / 'bad.toml')!r}]\n"
        "from tacit.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as stop: code = stop.code\n"
        "assert code == 2, code\n"
        "heavy = {'jax', 'polars', 'numpyro', 'matplotlib', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_data_list_names_every_source(tacit):
    code, out, _ = tacit("data", "list")
    assert code == 0
    for name in ("synthetic-cohort", "adult", "rugged", "heart", "breast-cancer", "normal-mean"):
        assert name in out


def test_report_of_a_stranger_directory_is_refused(tacit, tmp_path):
    code, _, err = tacit("report", str(tmp_path))
    assert code == 4
    assert err.count("\n") == 1


def test_a_users_table_runs_from_the_quickstart_configuration(tacit, tmp_path):
    """The TOML of docs/quickstart.md, word for word, on a table that fits it."""
    page = (Path(__file__).parents[2] / "docs" / "quickstart.md").read_text(encoding="utf-8")
    (tmp_path / "c.toml").write_text(page.split("```toml\n")[1].split("```")[0])
    rows = ["age,cholesterol,smoking,hospital,readmitted"]
    for i in range(60):
        smoking = ("never", "former", "current", "")[i % 4]
        answer = "yes" if (i * 7) % 10 < 4 else "no"
        cholesterol = "NA" if i % 9 == 0 else 150 + i
        hospital = "north" if i % 3 else "south"
        rows.append(f"{30 + i},{cholesterol},{smoking},{hospital},{answer}")
    (tmp_path / "patients.csv").write_text("\n".join(rows) + "\n")
    code, out, err = tacit("run", "c.toml", "--out", "out")
    assert (code, err) == (0, "")
    assert "cholesterol" in out
    assert "smoking=never" not in out
    assert tacit("run", "out/public/config.toml", "--out", "again")[0] == 0, (
        "what is written can be read"
    )


def test_nothing_printed_by_accident_shows_a_record():
    import tacit as package

    hospitals = package.datasets.load("synthetic-cohort", parties=3, records=120, seed=1)
    fitted = package.fit(
        package.models.LogisticRegression,
        hospitals,
        privacy="none",
        schedule=package.schedules.Sequential(rounds=1),
    )
    for shown in (repr(hospitals), repr(fitted), repr(fitted._outcome), repr(fitted.posterior)):
        assert "array(" not in shown
        assert len(shown) < 2_000
    assert "Not private" in str(fitted)


def test_check_reports_every_fault_of_a_file_with_the_exit_code_of_run(tacit, tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text(
        'seeed = 3\n[schedule]\nrounds = 0\ntolerance = "x"\n'
        '[model]\nkind = "logistic"\nhidden = 3\n'
    )
    checked, ran = tacit("check", str(path)), tacit("run", str(path))
    assert checked == ran
    code, out, err = checked
    assert (code, out) == (2, "")
    lines = err.splitlines()
    assert len(lines) == 6
    assert all(line.startswith("error: ") for line in lines)
    for words in ("seeed", "schedule.rounds", "schedule.tolerance", "model.hidden", "data", "priv"):
        assert sum(line.startswith(f"error: {words}") for line in lines) == 1, words


def test_check_goes_on_after_data_that_are_missing(tacit, tmp_path, monkeypatch):
    """As `tacit run`, it ends with the code of the first fault; it reports the others too."""
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "none"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "bad.toml"
    path.write_text(
        '[data]\nsource = "adult"\n[evaluate]\nreference = "nuts"\n'
        '[method]\nkind = "dp-sgd"\n[privacy]\nepsilon = 1.0\n'
    )
    code, out, err = tacit("check", str(path))
    assert (code, out) == (4, "")
    first, *others = err.splitlines()
    assert "tacit data fetch adult" in first
    assert len(others) == 1
    assert "evaluate.reference" in others[0]
    assert tacit("run", str(path), "--out", "out")[0] == 4


def test_a_file_without_data_is_refused(tacit, tmp_path):
    path = tmp_path / "empty.toml"
    path.write_text('privacy = "none"\n')
    for command in ("check", "run", "explain", "tune"):
        code, out, err = tacit(command, str(path))
        assert (code, out) == (2, ""), command
        assert "data is missing; add a [data] table" in err


def test_the_packaged_examples_work_in_an_empty_directory(tacit, tmp_path):
    """As after `pip install tacit`: what --help advises needs no checkout."""
    code, out, err = tacit("check", "examples/hospitals.toml")
    assert code == 0, err
    assert "Configuration is valid" in out
    assert err.startswith("note: no examples/hospitals.toml here; using ")
    assert not list(tmp_path.iterdir())
    for absent in ("examples/absent.toml", "hospitals.toml"):
        code, _, err = tacit("check", absent)
        assert code == 2
        assert f"File not found: {absent}" in err


def test_an_example_that_is_here_wins_over_the_packaged_one(tacit, tmp_path):
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "hospitals.toml").write_text("privacy = 3")
    code, _, err = tacit("check", "examples/hospitals.toml")
    assert code == 2
    assert "note:" not in err


def test_every_packaged_example_is_complete_by_itself():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packaged = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert "examples/hospitals.toml" in packaged
    for source, target in packaged.items():
        assert target == f"tacit/{source}"
        config = read_config(ROOT / source)
        assert config.data.path is None, "it would need a file that is not packaged"
        assert config.model.kind != "numpyro"


@pytest.mark.parametrize("debug", [False, True])
def test_an_interrupt_names_the_command_that_continues(tacit, config, debug):
    """A real process and a real signal: Typer turns the exception into a silent exit code."""
    given = ["run", str(config), "--out", "out", "--set", "schedule.rounds=3000"]
    command = [sys.executable, "-m", "tacit", *given, "--overwrite", *(["--debug"] * debug)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        events, latest = Path("out/public/events.jsonl"), time.monotonic() + 120
        while not (events.exists() and events.read_text().count("\n") > 3):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < latest, process.kill()
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    step = shlex.join(["tacit", *given, *(["--debug"] * debug), "--resume"])
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1] == f"error: interrupted; continue the run: {step}"
    assert ("Traceback" in err) == debug
    assert len(err.splitlines()) == 1 or debug
    if not debug:
        few = [*given[:-1], "schedule.rounds=4"]
        assert tacit(*few, "--overwrite")[0] == 0
        assert not Path("out/.lock").exists()


def test_an_interrupt_before_a_run_began_advises_no_resume(tacit, config, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    assert tacit("run", str(config), "--out", "out", "--set", "schedule.rounds=1")[0] == 0
    monkeypatch.setattr("tacit.run.run.load_federation", interrupt)
    for more in (("--out", "new"), ("--out", "out", "--overwrite")):
        code, _, err = tacit("run", str(config), *more)
        assert code == 130
        assert err.startswith("error: interrupted; the run had not begun, and nothing was charged")
        assert err.count("\n") == 1
    assert not Path("new").exists()
    assert Path("out/public/result.json").exists()


def test_check_looks_at_the_output_directory_as_run_does(tacit, config):
    """If check passes, run starts."""
    few = ("--set", "schedule.rounds=1")
    assert tacit("run", str(config), *few)[0] == 0
    before = {path: path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()}
    contradiction = ("--resume", "--overwrite")
    for more in ((), contradiction, ("--out", "new", "--resume"), ("--resume",), ("--out", ".")):
        ran, checked = tacit("run", str(config), *more), tacit("check", str(config), *more)
        assert (checked[0], checked[2]) == (ran[0], ran[2])
        assert checked[0] in (2, 4)
        assert ran[2].count("\n") == 1
        assert tacit("check", str(config), *more, "--json")[:2] == (ran[0], "")
    code, _, err = tacit("check", str(config), *few, "--resume", "--set", "schedule.rounds=2")
    assert code == 4
    assert "schedule.rounds is 1 there and 2 here" in err
    for more in (("--resume", *few), ("--overwrite",), ("--out", "new")):
        code, _, err = tacit("check", str(config), *more)
        assert (code, err) == (0, ""), more
    after = {path: path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()}
    assert after == before


def test_an_unfinished_run_is_named_with_the_command_that_continues_it(tacit, config):
    few = ("--set", "schedule.rounds=1")
    assert tacit("run", str(config), *few)[0] == 0
    Path("runs/three-sites-seed4/public/result.json").unlink()
    command = shlex.join(["tacit", "run", str(config), *few, "--resume"])
    for name in ("check", "run"):
        code, _, err = tacit(name, str(config), *few)
        assert code == 2
        assert err.endswith(f"; its run is unfinished and continues with: {command}\n")
    assert tacit(*shlex.split(command)[1:])[0] == 0


def test_a_live_federation_has_no_run_directory(tacit, tmp_path):
    (tmp_path / "server.toml").write_text("[serve]\n")
    for options in (["--out", "x"], ["--resume"], ["--overwrite"]):
        code, _, err = tacit("check", "server.toml", *options)
        assert code == 2
        assert f"{options[0]} with server.toml" in err


def test_columns_with_spaces_are_quoted_and_a_folder_is_one_fault(tacit, tmp_path):
    study = 'outcome = "died"\nprivacy = "none"\ndata = {path = "PATH", party = "h"}\n'
    for key, words in (("hgh = 3", "hgh = 3 is not a known key"), ('low = "x"', 'low = "x"; it')):
        (tmp_path / "c.toml").write_text(f'{study}columns."age years" = {{{key}}}\n')
        _, _, err = tacit("check", "c.toml")
        assert f'error: columns."age years".{words}' in err
    (tmp_path / "c.toml").write_text(study.replace("PATH", "."))
    _, _, err = tacit("check", "c.toml")
    assert err.count('data.path = "."') == 1
    assert "no such file" not in err


def test_one_party_is_not_parties(tacit, config):
    _, out, _ = tacit("check", str(config), "--set", "partition.parties=1")
    assert "with 1 party, damping" in out
