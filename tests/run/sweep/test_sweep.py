"""Sweeps in real worker processes: killed, resumed, charged, and told what went wrong."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import polars
import pytest

from tacit.cli.ledger import budget_command
from tacit.errors import ConfigError
from tacit.privacy.ledger.ledger import Ledger
from tacit.run.config import parse_config, resolved_toml
from tacit.run.run import run
from tacit.run.sweep import Sweep, expand, make_job, read_sweep, sweep, sweep_jobs
from tacit.run.sweep.job import carry_out_job

SWEEP = """
name = "spread"
seeds = 10

[base]
privacy = "none"

[base.data]
source = "normal-mean"
records = 90

[base.partition]
parties = 3

[grid]
schedule.rounds = [1, 2, 3, 4]
"""


def children(process: int) -> list[int]:
    """What any thread of a process has started."""
    files = Path(f"/proc/{process}/task").glob("*/children")
    return [int(word) for file in files for word in file.read_text().split()]


def wait_for(condition, seconds=120.0):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "waited too long"
        time.sleep(0.02)


def running(process: int) -> bool:
    """Whether it is alive; one that nobody has waited for yet is not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_sweep_killed_half_way_goes_on_without_repeating_a_run(tmp_path, tacit):
    file, out = tmp_path / "sweep.toml", tmp_path / "out"
    file.write_text(SWEEP)
    command = [sys.executable, "-m", "tacit.cli.main", "sweep", str(file), "--out", str(out)]
    process = subprocess.Popen([*command, "--workers", "2"], stdout=subprocess.DEVNULL)
    rows = out / "rows"
    wait_for(lambda: rows.is_dir() and len(list(rows.glob("*.json"))) >= 2)
    workers = children(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert workers
    wait_for(lambda: not any(running(worker) for worker in workers))
    kept = {path: path.stat().st_mtime_ns for path in rows.glob("*.json")}
    assert 2 <= len(kept) < 40
    for path in kept:
        assert json.loads(path.read_text())["status"] == "done"

    code, _, _ = tacit("sweep", str(file), "--out", str(out), "--workers", "1")
    assert code == 2, "going on has to be asked for"
    code, shown, errors = tacit("sweep", str(file), "--out", str(out), "--workers", "1", "--resume")
    assert (code, errors) == (0, "")
    assert f"{len(kept)} of 40 runs were done before" in shown
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    table = polars.read_parquet(out / "table.parquet")
    assert table["schedule.rounds"].to_list() == [n for n in (1, 2, 3, 4) for _ in range(10)]
    assert table["seed"].to_list() == list(range(10)) * 4
    assert table["rounds"].to_list() == table["schedule.rounds"].to_list()
    assert polars.read_csv(out / "summary.csv")["runs"].to_list() == [10] * 4

    row = table.row(7, named=True)  # any run is what `tacit run` makes of the same file
    alone = run(parse_config(expand(read_sweep(file))[7].config), tmp_path / "alone")
    assert row["kl_to_exact"] == alone.kl_to_exact
    assert (
        row["held_out.log_predictive_density"]
        == alone.metrics["held_out"]["log_predictive_density"]
    )


def test_failures_are_rows_and_all_others_are_run(tmp_path, base):
    (tmp_path / "deadly.py").write_text("import os\nos._exit(9)\n")
    deadly = {"model.kind": "numpyro", "model.function": f"{tmp_path}/deadly.py:model"}
    asked = Sweep(base=base, runs=[{"model.kind": "logistic"}, deadly, {"model.kind": "auto"}])
    swept = sweep(asked, tmp_path / "out", workers=1)
    wrong, died, good = swept.rows
    assert (wrong["status"], wrong["exit_code"]) == ("failed", 2)
    assert "use model.kind = 'linear'" in wrong["error"]
    assert died["status"] == "failed"
    assert "ended with code 9 2 times" in died["error"]
    assert good["status"] == "done"
    assert swept.failed == [wrong, died]
    assert polars.read_csv(tmp_path / "out" / "table.csv")["status"].to_list() == [
        "failed", "failed", "done",
    ]  # fmt: skip


def test_a_private_sweep_pays_once_for_every_answer(tmp_path, base):
    base |= {
        "privacy": {"epsilon": 1.0, "delta": 1e-5},
        "data": {"source": "synthetic-cohort", "records": 90, "held_out": 0.0},
        "method": {"kind": "dp-sgd"},
    }
    (job,) = expand(Sweep(base=base))
    ledger = tmp_path / "ledger.sqlite"
    file = tmp_path / "config.toml"
    file.write_text(resolved_toml(parse_config(job.config)))
    budget_command(ledger, str(file), 1.0, 1e-5, None, None, reason="test", raising=False)
    row = carry_out_job(job, str(tmp_path / "runs"), str(ledger))
    assert (row["status"], row["guarantee.unit"]) == ("done", "record")
    assert row["ledger.epsilon_spent"] == pytest.approx(row["guarantee.epsilon"], rel=1e-6)
    assert _charges(ledger) == 6, "three parties, two rounds"
    again = carry_out_job(job, str(tmp_path / "runs"), str(ledger))
    assert again["status"] == "done"
    assert _charges(ledger) == 6, "the same run goes on and has nothing left to ask"

    other = msgspec.structs.replace(job, id="another")
    refused = carry_out_job(other, str(tmp_path / "runs"), str(ledger))
    assert (refused["status"], refused["exit_code"]) == ("failed", 3)
    assert _charges(ledger) == 6, "a run beyond the budget is refused before it spends"


def _charges(ledger: Path) -> int:
    with Ledger(ledger) as book:
        return sum(row.kind == "charge" for row in book.entries())


def test_a_ledger_inside_of_the_sweep_is_refused(tmp_path, base):
    base |= {"privacy": {"epsilon": 1.0, "delta": 1e-5}, "method": {"kind": "dp-sgd"}}
    with pytest.raises(ConfigError, match="would be overwritten"):
        sweep(Sweep(base=base), tmp_path / "out", ledger=tmp_path / "out" / "ledger.sqlite")
    assert not os.path.lexists(tmp_path / "out")


def test_generated_records_may_have_a_ledger_in_each_run(tmp_path, base):
    """As the example does, whose noise is secret: nobody's budget is at stake."""
    privacy = {"epsilon": 8.0, "delta": 1e-5, "ledger": "run-directory"}
    job = make_job(base | {"privacy": privacy, "method": {"kind": "dp-sgd"}}, {})
    (row,) = sweep_jobs([job], tmp_path / "out", text="", workers=1).rows
    assert (row["status"], row["guarantee.caveat"]) == ("done", None)
    assert _charges(tmp_path / "out" / "runs" / job.id / "private" / "ledger.sqlite") > 0


def test_a_job_may_name_who_runs_it(tmp_path, base):
    """Runs that no configuration names: the runner and the case are part of what a job is."""
    plain = make_job(base, {})
    quiet = make_job(base, {}, "tacit_studies.frontier_ablation:run_job")
    other = make_job(base, {"which": 2}, "tacit_studies.frontier_ablation:run_job")
    assert len({plain.id, quiet.id, other.id}) == 3
    wrong = make_job(base, {}, "tacit.run.sweep:nothing")
    swept = sweep_jobs([plain, quiet, wrong], tmp_path / "out", text="", workers=1)
    kept, left, failed = swept.rows
    assert kept["held_out.log_predictive_density"] == left["held_out.log_predictive_density"]
    assert failed["status"] == "failed"
    assert "nothing" in failed["error"]
    assert (tmp_path / "out" / "runs" / plain.id / "public" / "result.json").exists()
    assert not (tmp_path / "out" / "runs" / quiet.id).exists()
    again = sweep_jobs([quiet], tmp_path / "out", text="", resume=True, workers=1)
    assert again.found == 1


def test_whoever_runs_a_job_does_not_run_one_that_counts(tmp_path, base):
    """A function charges no ledger: with secret noise it would be a release that nobody paid."""
    base |= {"privacy": {"epsilon": 1.0, "delta": 1e-5}, "method": {"kind": "dp-sgd"}}
    job = make_job(base, {}, "tacit_studies.frontier_ablation:run_job")
    with pytest.raises(ConfigError, match="does not charge a ledger"):
        sweep_jobs([job], tmp_path / "out", text="", workers=1)
    assert not os.path.lexists(tmp_path / "out")


def test_workers_stay_with_runs_that_are_alike():
    """What differs in a method is compiled anew; a second worker begins with another method."""
    from tacit.run.sweep.local import _Waiting

    grid = {"method.kind": ["dp-sgd", "dp-updates"], "privacy.epsilon": [1.0, 2.0]}
    privacy = {"epsilon": 1.0, "delta": 1e-5, "insecure_noise_seed": 0}
    base = {"privacy": privacy, "data": {"source": "synthetic-cohort"}}
    waiting = _Waiting(expand(Sweep(base=base, grid=grid, seeds=2)))
    taken: dict[int, list] = {0: [], 1: []}
    for _ in range(4):
        for worker, jobs in taken.items():
            job = waiting.take(worker)
            assert job is not None
            jobs.append(job.case["method.kind"])
    assert taken == {0: ["dp-sgd"] * 4, 1: ["dp-updates"] * 4}
    assert waiting.take(0) is None
