"""A run directory: whole, resumable, never somebody else's, and never left by a bad file."""

import contextlib
import json
import math
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from json_results import run

from tacit.errors import ConfigError, DataError, TacitError
from tacit.run.config import parse_config, read_config
from tacit.run.directory import Events, check_out
from tacit.run.run import check_resumed, prepare
from tacit.support.storage import write_text

LINEAR = {
    "privacy": "none",
    "name": "terrain",
    "seed": 3,
    "data": {"source": "normal-mean", "records": 120},
    "partition": {"parties": 4},
    "schedule": {"kind": "asynchronous", "rounds": 3},
}
COHORT = {
    "privacy": "none",
    "data": {"source": "synthetic-cohort", "records": 300},
    "partition": {"parties": 3},
    "schedule": {"rounds": 3},
}


def config_with(raw, **changes):
    return parse_config({**raw, **changes})


@pytest.fixture(scope="module")
def cohort_run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "nested" / "cohort"
    return out, run(parse_config(COHORT), out)


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "whole"
    return out, run(parse_config(LINEAR), out)


@pytest.fixture
def used(whole_run, tmp_path):
    """A directory that a run has used, to be spoilt."""
    return Path(shutil.copytree(whole_run[0], tmp_path / "run"))


FIRST_RUN = """
import json, sys
from pathlib import Path
import jax
from tacit.run.config import parse_config
from tacit.engines.compilations import compilations
from tacit.run.run import run
compilations()
run(parse_config(json.loads(sys.argv[1])), Path(sys.argv[2]))
print(compilations().count)
"""


def test_a_first_run_compiles_its_method_alone_and_a_second_one_nothing(tmp_path):
    """Each small operation left to JAX would cost its user more than the whole training.

    The third run finds programs that a killed process left half written.
    """
    configuration = COHORT | {"method": {"kind": "natural", "steps": 1}}
    call = [sys.executable, "-c", FIRST_RUN, json.dumps(configuration), str(tmp_path / "run")]
    directory = {"TACIT_COMPILATION_CACHE": str(tmp_path / "compiled")}
    counts = []
    for number in range(3):
        if number == 2:
            for program in (tmp_path / "compiled").glob("*-cache"):
                program.write_bytes(program.read_bytes()[:-8])
        call[-1] = str(tmp_path / f"run-{number}")
        environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")} | directory
        done = subprocess.run(call, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr
        counts += done.stdout.split()
        assert "cache" not in done.stderr
    assert counts[1] == "0", "the second run reads what the first one compiled"
    assert counts[0] == counts[2]
    assert 1 <= int(counts[0]) <= 4, "one program for each padded length"


def test_the_result_has_every_field(cohort_run):
    out, result = cohort_run
    on_disk = json.loads((out / "public" / "result.json").read_text(encoding="utf-8"))
    assert on_disk == result
    assert result["schema"] == "tacit/result/2"
    assert (result["name"], result["seed"], result["engine"]) == ("run", 0, "in-process")
    assert result["model"]["kind"] == "logistic"
    assert (result["posterior"]["family"], result["method"], result["schedule"]) == (
        "full",
        "natural",
        "synchronous",
    )
    assert (result["rounds"], result["exchanges"], result["refused"]) == (3, 9, 0)
    posterior = result["posterior"]
    assert set(posterior) == {"family", "names", "mean", "sd"}
    sizes = {len(posterior[key]) for key in ("names", "mean", "sd")}
    assert sizes == {result["model"]["dimension"]}
    assert all(sd > 0 for sd in posterior["sd"])
    for split in ("training", "held_out"):
        assert set(result["metrics"][split]) >= {
            "accuracy",
            "log_predictive_density",
            "brier",
            "calibration_error",
            "auroc",
        }
        assert 0.5 < result["metrics"][split]["accuracy"] <= 1
    assert result["timing"]["wall_s"] > 0
    assert result["timing"]["compile_s"] >= 0
    assert isinstance(result["compilations"], int)
    assert result["privacy"]["private"] is False
    assert sum(party["records"] for party in result["parties"]) == 240
    assert "kl_to_exact" not in result


def test_the_directory_holds_what_is_promised(cohort_run):
    out, result = cohort_run
    assert {path.name for path in out.iterdir()} == {"README.txt", "public", "private"}
    assert {path.name for path in (out / "public").iterdir()} == {
        "config.toml",
        "events.jsonl",
        "posterior.npz",
        "result.json",
    }
    assert {path.name for path in (out / "private").iterdir()} == {"checkpoint", "evaluation.json"}
    assert stat.S_IMODE((out / "private").stat().st_mode) == 0o700
    assert read_config(out / "public" / "config.toml") == parse_config(COHORT)
    events = [
        json.loads(line) for line in (out / "public" / "events.jsonl").read_text().splitlines()
    ]
    assert [event["event"] for event in events] == ["start", "round", "round", "round", "end"]
    assert events[-1]["reason"] == "rounds"
    archive = np.load(out / "public" / "posterior.npz")
    np.testing.assert_array_equal(archive["mean"], result["posterior"]["mean"])
    assert list(archive["names"]) == result["posterior"]["names"]
    assert archive["natural/quadratic"].shape == (len(archive["names"]),) * 2


def test_a_conjugate_run_knows_its_distance_to_the_truth(whole_run, tmp_path):
    _, result = whole_run
    assert result["model"] == {
        "kind": "normal-mean",
        "dimension": 1,
        "output": "gaussian",
        "settings": {"noise_sd": 1.0, "prior_mean": 0.0, "prior_sd": 1.0},
        "prior": None,
    }
    assert abs(result["kl_to_exact"]) < 1e-9
    assert result["metrics"]["held_out"]["log_predictive_density"] < 0
    early = config_with(LINEAR, schedule={"rounds": 1, "damping": 0.5})
    assert run(early, tmp_path / "early")["kl_to_exact"] > 1e-3


def test_no_reference_is_computed_when_none_is_asked_for(tmp_path):
    silent = config_with(LINEAR, evaluate={"reference": "none"}, schedule={"rounds": 1})
    assert "kl_to_exact" not in run(silent, tmp_path / "silent")


BAD_INPUT = {
    "no such column": {"data": {"source": "adult"}, "partition": {"kind": "column", "column": "x"}},
    "model for another target": {"model": {"kind": "logistic"}},
    "model without its columns": {"model": {"kind": "linear"}},
    "network without its columns": {"model": {"kind": "neural-network"}},
    "prior too wide": {"model": {"prior_sd": 1e300}},
    "prior not a number": {"model": {"prior_sd": math.nan}},
    "noise too small": {"model": {"noise_sd": 1e-300}},
    "method that does not fit": {"method": {"kind": "dp-sgd"}},
    "method option for auto": {"method": {"steps": 3}},
    "more parties a round than there are": {"schedule": {"parties_per_round": 9}},
    "a program that is not there": {"model": {"kind": "numpyro", "function": "absent.py:f"}},
    "a program without a name": {"model": {"kind": "numpyro", "function": "absent"}},
    "a file that is not there": {
        "data": {"path": "/nowhere/absent.csv"},
        "outcome": "y",
        "columns": {"y": {}},
    },
}


@pytest.mark.parametrize("what", BAD_INPUT)
def test_bad_input_leaves_no_directory_behind(tmp_path, what):
    out = tmp_path / "made" / "run"
    with pytest.raises((ConfigError, DataError)) as caught:
        run(config_with(LINEAR, **BAD_INPUT[what]), out)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "made").exists()


class PowerCutError(Exception):
    """The lights go out."""


def power_cut_after(batches):
    def observer(_prepared):
        left = iter(range(batches))

        def observe(_state, _log):
            if next(left, None) is None:
                raise PowerCutError

        return observe

    return observer


@pytest.mark.parametrize("batches", [0, 7])
def test_a_broken_run_is_resumed_to_the_same_result(whole_run, tmp_path, batches):
    whole_out, whole = whole_run[0], dict(whole_run[1])
    out = tmp_path / "broken"
    with pytest.raises(PowerCutError):
        run(parse_config(LINEAR), out, observe=power_cut_after(batches))
    assert not (out / "public" / "result.json").exists()
    resumed = run(parse_config(LINEAR), out, resume=True)
    for result in (whole, resumed):
        del result["timing"], result["compilations"]
    assert resumed == whole
    for name in ("config.toml", "posterior.npz"):
        assert (out / "public" / name).read_bytes() == (whole_out / "public" / name).read_bytes()

    def events(folder):
        lines = [
            json.loads(line)
            for line in (folder / "public" / "events.jsonl").read_text().splitlines()
        ]
        return [{k: v for k, v in line.items() if k != "wall_s"} for line in lines]

    assert events(out) == events(whole_out)


def test_resuming_a_finished_run_repeats_its_result(whole_run, used):
    again = run(parse_config(LINEAR), used, resume=True)
    assert again["posterior"] == whole_run[1]["posterior"]
    assert again["exchanges"] == whole_run[1]["exchanges"]


def test_a_run_of_another_configuration_is_not_resumed(used):
    kept = (used / "public" / "config.toml").read_bytes()
    for change, words in (
        ({"seed": 4}, "seed is 3 there and 4 here"),
        (
            {"data": {"source": "normal-mean", "records": 121}},
            "data.records is 120 there and 121 here",
        ),
        ({"posterior": "full"}, 'posterior is "auto" there and "full" here'),
    ):
        with pytest.raises(DataError, match="belongs to another configuration: ") as caught:
            run(config_with(LINEAR, **change), used, resume=True)
        assert words in str(caught.value)
        assert f"resume with the keys in {used / 'public' / 'config.toml'}" in str(caught.value)
    assert (used / "public" / "config.toml").read_bytes() == kept
    renamed = config_with(LINEAR, name="a better name")
    assert run(renamed, used, resume=True)["name"] == "a better name"


def test_without_its_config_file_a_run_is_recognised_by_the_digest(used):
    (used / "public" / "config.toml").write_text("not TOML")
    for remove in ((used / "public" / "config.toml").unlink, key_of(used).unlink):
        with pytest.raises(DataError, match="another configuration, other records or another"):
            run(config_with(LINEAR, seed=4), used, resume=True)
        remove()
    with pytest.raises(DataError, match="another configuration, other records or another"):
        check_resumed(prepare(parse_config(LINEAR)), used)
    assert not key_of(used).exists(), "a check writes nothing"


def key_of(out):
    return out / "private" / "checkpoint" / "key"


def test_there_has_to_be_something_to_resume(tmp_path):
    for out in (tmp_path / "absent", tmp_path):
        with pytest.raises(DataError, match="so there is nothing to resume"):
            run(parse_config(LINEAR), out, resume=True)
    assert not (tmp_path / "absent").exists()


def test_a_used_directory_is_not_used_again_unasked(whole_run, used):
    with pytest.raises(ConfigError, match=r"is not empty; use --resume .* --overwrite"):
        run(parse_config(LINEAR), used)
    other = run(config_with(LINEAR, seed=8), used, overwrite=True)
    assert other["seed"] == 8
    assert other["posterior"] != whole_run[1]["posterior"]


def test_a_bad_configuration_does_not_overwrite_a_good_run(used):
    with pytest.raises(TacitError):
        run(config_with(LINEAR, model={"kind": "logistic"}), used, overwrite=True)
    assert json.loads((used / "public" / "result.json").read_text())["name"] == "terrain"


@pytest.mark.parametrize("name", ["notes.txt", "config.toml"])
def test_somebody_elses_directory_is_never_overwritten(tmp_path, name):
    """A config.toml is no proof: other programs have one too."""
    (tmp_path / name).write_text("years of work")
    for options in ({}, {"overwrite": True}, {"resume": True}):
        with pytest.raises(TacitError):
            run(parse_config(LINEAR), tmp_path, **options)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "years of work"


def test_resume_and_overwrite_contradict_each_other(used):
    with pytest.raises(ConfigError, match="contradict"):
        run(parse_config(LINEAR), used, resume=True, overwrite=True)
    assert (used / "public" / "result.json").exists()


def test_a_file_is_no_place_for_a_run(tmp_path):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(ConfigError, match="is a file; choose a directory"):
        run(parse_config(LINEAR), tmp_path / "out")


def test_an_empty_directory_is_a_place_for_a_run(tmp_path):
    check_out(tmp_path, resume=False, overwrite=False)
    check_out(tmp_path / "absent", resume=False, overwrite=True)
    with pytest.raises(PowerCutError):
        run(parse_config(LINEAR), tmp_path, observe=power_cut_after(0))
    assert (tmp_path / "public" / "config.toml").exists()


def test_a_crash_before_the_first_file_can_be_started_again(tmp_path):
    """The checkpoint's directory is the first of a run: with it alone there is what to resume."""
    out = tmp_path / "run"
    (out / "private" / "checkpoint").mkdir(parents=True)
    check_out(out, resume=True, overwrite=False)
    check_out(out, resume=False, overwrite=True)


def test_a_file_is_whole_or_absent(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    write_text(path, "old")

    def lights_out(*_):
        raise PowerCutError

    monkeypatch.setattr("tacit.support.storage.os.replace", lights_out)
    with pytest.raises(PowerCutError):
        write_text(path, "new, but not all of it")
    assert path.read_text() == "old"


def test_events_are_rewritten_from_the_checkpoint_then_appended(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text('{"event": "round", "round": 1}\n{"event": "rou')
    events = Events(path, {"event": "start"}, ({"event": "round", "round": 1},))
    events.write(({"event": "round", "round": 2},))
    events.write(())
    assert [json.loads(line).get("round") for line in path.read_text().splitlines()] == [None, 1, 2]


HELD = """
import sys
from pathlib import Path
from tacit.run.directory import reserved
with reserved(Path(sys.argv[1]), resume=sys.argv[2] == "resume", overwrite=False):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holding():
    """Start processes that hold a run directory until their input ends."""
    with contextlib.ExitStack() as stack:

        def start(out, how):
            command = [sys.executable, "-c", HELD, str(out), how]
            pipe = subprocess.PIPE
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
            stack.callback(process.communicate)
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            return process

        yield start


@pytest.mark.parametrize("options", [{}, {"resume": True}, {"overwrite": True}])
def test_two_processes_never_run_in_one_directory(used, holding, options):
    before = {path: path.read_bytes() for path in (used / "public").iterdir()}
    process = holding(used, "resume")
    for refused in (lambda: run(parse_config(LINEAR), used, **options), lambda: check(used)):
        with pytest.raises(ConfigError, match=f"another process .process {process.pid}") as caught:
            refused()
        assert f"--out {used}: " in str(caught.value)
        assert "wait until it has ended, or choose another directory" in str(caught.value)
    assert {path: path.read_bytes() for path in (used / "public").iterdir()} == before
    process.kill()
    process.wait()
    assert (used / ".lock").exists(), "a killed process cannot remove its file"
    run(parse_config(LINEAR), used, **(options or {"overwrite": True}))
    assert {path.name for path in used.iterdir()} == {"README.txt", "public", "private"}


def check(out):
    check_out(out, resume=False, overwrite=False)


def test_a_directory_is_reserved_while_nothing_is_in_it(tmp_path, holding):
    out = tmp_path / "made" / "run"
    process = holding(out, "start")
    with pytest.raises(ConfigError, match="is running in this directory"):
        run(parse_config(LINEAR), out)
    process.communicate("")
    assert not (tmp_path / "made").exists(), "created for the lock alone"
    process = holding(out, "start")
    process.kill()
    process.wait()
    check(out)  # the lock of a killed process is no content
