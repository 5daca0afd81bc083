"""Records that arrive later: `tacit update` and the key `continues`."""

import tomllib

import numpy as np
import pytest

import tacit
from tacit.cli.main import main
from tacit.errors import ConfigError, DataError, PrivacyBudgetError
from tacit.live.update import update
from tacit.party.datasets import identify_parties
from tacit.privacy.ledger.ledger import Budget, Ledger
from tacit.privacy.ledger.rules import LineageWarning
from tacit.run.config import parse_config
from tacit.run.run import prepare, run

STUDY = """
outcome = "pressure"
privacy = "none"
data = {path = "PATH", party = "hospital", held_out = 0.0}
columns.age = {low = 18, high = 90}
columns.sex = {levels = ["f", "m"]}
columns.pressure = {low = 50, high = 250}
model = {kind = "linear", noise_sd = 10.0, prior_sd = 5.0}
"""
PRIVATE = {"epsilon": 1.0, "delta": 1e-5}
RELEASED = {"kind": "dp-statistics", "one_shot": True, "clip": 50.0}


def write_records(path, count, seed):
    rng = np.random.default_rng(seed)
    lines = ["hospital,age,sex,pressure"]
    for _ in range(count):
        age, sex = rng.uniform(18, 90), rng.integers(2)
        pressure = 100 + 0.5 * age + 3 * sex + rng.normal(0, 10)
        lines.append(
            f"{'north' if rng.random() < 0.4 else 'south'},{age:.2f},{'fm'[sex]},{pressure:.2f}"
        )
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def batches(tmp_path):
    """Two batches, and a file with both."""
    first = write_records(tmp_path / "first.csv", 60, 1)
    second = write_records(tmp_path / "second.csv", 40, 2)
    both = tmp_path / "both.csv"
    rows = second.read_text(encoding="utf-8").split("\n", 1)[1]
    both.write_text(first.read_text(encoding="utf-8") + rows, encoding="utf-8")
    return first, second, both


def study(path, continues=None, **change):
    raw = tomllib.loads(STUDY.replace("PATH", str(path))) | change
    return parse_config(raw if continues is None else raw | {"continues": {"run": str(continues)}})


def natural(out):
    with np.load(out / "public" / "posterior.npz") as found:
        return {key: found[key] for key in found.files if key.startswith("natural/")}


def assert_close(one, other, tolerance):
    for key, value in natural(other).items():
        largest = np.abs(value).max()
        np.testing.assert_allclose(natural(one)[key], value, rtol=0, atol=tolerance * largest)


def test_two_batches_give_the_posterior_of_one(batches, tmp_path):
    first, second, both = batches
    run(study(first), tmp_path / "a")
    result = run(study(second, tmp_path / "a"), tmp_path / "b")
    run(study(both), tmp_path / "c")
    assert_close(tmp_path / "b", tmp_path / "c", 1e-12)
    assert result.model.prior == "the posterior of an earlier run on other records"
    third = write_records(tmp_path / "third.csv", 20, 3)
    run(study(third, tmp_path / "b"), tmp_path / "d")  # an update can be updated
    assert np.all(np.diag(natural(tmp_path / "d")["natural/quadratic"])
                  < np.diag(natural(tmp_path / "b")["natural/quadratic"]))  # fmt: skip


def test_released_statistics_of_two_batches_add_up(batches, tmp_path):
    """With next to no noise and no clipping the private update is the exact one."""
    first, second, both = batches
    loud = {"epsilon": 1e11, "delta": 1e-5, "insecure_noise_seed": 1}
    wide = RELEASED | {"clip": 5.0}
    run(study(first, privacy=loud, method=wide), tmp_path / "a")
    result = run(study(second, tmp_path / "a", privacy=loud, method=wide), tmp_path / "b")
    run(study(both), tmp_path / "c")
    assert_close(tmp_path / "b", tmp_path / "c", 0.005)
    assert "covered by the guarantee of that run" in result.privacy.statement


def test_the_ledger_charges_each_record_once(batches, tmp_path):
    first, second, _ = batches
    book = tmp_path / "ledger.sqlite"
    configs = [study(first, privacy=PRIVATE, method=RELEASED)]
    with Ledger(book, create=True) as ledger:
        _set_budget(ledger, configs[0])
    run(configs[0], tmp_path / "a", ledger=book)
    configs.append(study(second, tmp_path / "a", privacy=PRIVATE, method=RELEASED))
    with pytest.raises(PrivacyBudgetError, match="no privacy budget"):  # the new records need one
        run(configs[1], tmp_path / "b", ledger=book)
    with Ledger(book) as ledger, pytest.warns(LineageWarning, match="separate budget"):
        _set_budget(ledger, configs[1])
    run(configs[1], tmp_path / "b", ledger=book)
    with Ledger(book) as ledger:
        for config in configs:
            federation = prepare(config).federation
            for dataset in identify_parties(ledger, federation, federation.parties).values():
                assert ledger.spent(dataset).epsilon == pytest.approx(1.0, rel=1e-3)
                kinds = [row.kind for row in ledger.entries(dataset)]
                assert kinds.count("charge") == 1
    with pytest.raises(PrivacyBudgetError):  # a second update on the same records
        run(configs[1], tmp_path / "c", ledger=book)


@pytest.mark.parametrize(
    ("then", "now", "words"),
    [
        ("none", PRIVATE, "no guarantee"),
        (PRIVATE | {"insecure_noise_seed": 1}, PRIVATE, "known seed"),
        (PRIVATE | {"insecure_noise_seed": 1},
         PRIVATE | {"insecure_noise_seed": 1, "adjacency": "add-or-remove-one"},
         r"protects a record \(replace-one\), this run a record \(add-or-remove-one\)"),
        (PRIVATE | {"insecure_noise_seed": 1, "unit": "person"},
         PRIVATE | {"insecure_noise_seed": 1, "unit": "person"}, "with records in both runs"),
    ],
)  # fmt: skip
def test_a_private_update_needs_an_earlier_run_with_the_same_guarantee(
    batches, tmp_path, then, now, words
):
    def private(path, continues=None, **change):
        head, *rows = path.read_text(encoding="utf-8").splitlines()
        lines = [
            f"{head},patient",
            *(f"{row},{row[:5]}{place // 2}" for place, row in enumerate(rows)),
        ]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        data = {"path": str(path), "party": "hospital", "person": "patient", "held_out": 0.0}
        return study(path, continues, data=data, **change)

    first, second, _ = batches
    method = {} if then == "none" else {"method": RELEASED}
    run(private(first, privacy=then, **method), tmp_path / "a")
    with pytest.raises(ConfigError, match=words):
        run(private(second, tmp_path / "a", privacy=now, method=RELEASED), tmp_path / "b")
    assert not (tmp_path / "b").exists()


def _set_budget(ledger, config):
    federation = prepare(config).federation
    budget = Budget(epsilon=1.001, delta=1e-5, unit="record", adjacency="replace-one")
    found = identify_parties(ledger, federation, federation.parties)
    ledger.set_budgets(dict.fromkeys(found.values(), budget), reason="test")


def test_records_that_were_used_are_refused(batches, tmp_path):
    first, second, both = batches
    run(study(first), tmp_path / "a")
    with pytest.raises(DataError, match="60 of the 100 rows are equal"):
        run(study(both, tmp_path / "a"), tmp_path / "b")
    assert not (tmp_path / "b").exists()
    run(study(second, tmp_path / "a"), tmp_path / "b")
    with pytest.raises(DataError, match="60 of the 60 rows"):  # of the run before the last one
        run(study(first, tmp_path / "b"), tmp_path / "c")
    raw = tomllib.loads(STUDY.replace("PATH", str(first)))
    raw["continues"] = {"run": str(tmp_path / "b"), "equal_rows": "allow"}
    run(parse_config(raw), tmp_path / "c")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"columns": {"age": {"low": 18, "high": 95}, "sex": {"levels": ["f", "m"]},
                      "pressure": {"low": 50, "high": 250}}}, "'age' has high = 90.0"),
        ({"model": {"kind": "linear", "noise_sd": 11.0, "prior_sd": 5.0}}, "noise_sd was 10.0"),
        ({"posterior": "mean-field"}, "mean-field"),
        ({"method": {"kind": "natural"}}, "method.kind = 'natural' with model"),
        ({"baseline": "central"}, "baseline"),
    ],
)  # fmt: skip
def test_another_model_is_not_an_update(batches, tmp_path, change, words):
    first, second, _ = batches
    run(study(first), tmp_path / "a")
    with pytest.raises(ConfigError, match=words):
        run(study(second, tmp_path / "a", **change), tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_a_damaged_list_of_records_is_an_error(batches, tmp_path):
    first, second, _ = batches
    run(study(first), tmp_path / "a")
    path = tmp_path / "a" / "private" / "records"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="cannot be read"):
        run(study(second, tmp_path / "a"), tmp_path / "b")


def test_the_python_call_gives_the_fit_of_both_batches(batches, tmp_path):
    first, second, both = batches
    run(study(first), tmp_path / "a")
    fit = update(tmp_path / "a", second)
    run(study(both), tmp_path / "c")
    assert_close(tmp_path / "a-update", tmp_path / "c", 1e-12)
    whole = tacit.load(tmp_path / "c").posterior
    np.testing.assert_allclose(fit.posterior.mean, whole.mean, rtol=1e-9)
    again = {"settings": {"data.path": str(second)}, "out": tmp_path / "b"}
    np.testing.assert_allclose(update(tmp_path / "a", **again).posterior.mean, whole.mean)
    with pytest.raises(DataError, match="60 of the 100 rows are equal"):
        update(tmp_path / "a", both, out=tmp_path / "d")
    with pytest.raises(ConfigError, match="the new records are not named"):
        update(tmp_path / "a", out=tmp_path / "d")
    assert not (tmp_path / "d").exists()


def command(monkeypatch, capsys, *words):
    monkeypatch.setattr("sys.argv", ["tacit", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code, capsys.readouterr()


def test_the_command_runs_and_writes_a_study(batches, tmp_path, monkeypatch, capsys):
    first, second, both = batches
    run(study(first), tmp_path / "a")
    code, _ = command(
        monkeypatch, capsys, "update", tmp_path / "a", second, "--out", tmp_path / "b"
    )
    assert code == 0
    run(study(both), tmp_path / "c")
    assert_close(tmp_path / "b", tmp_path / "c", 1e-12)
    code, said = command(monkeypatch, capsys, "update", tmp_path / "a", both)
    assert code == 4
    assert "60 of the 100 rows" in said.err
    assert command(monkeypatch, capsys, "update", tmp_path / "a")[0] == 2
    file = tmp_path / "update.toml"
    assert command(monkeypatch, capsys, "update", tmp_path / "a", second, "--study", file)[0] == 0
    assert parse_config(tomllib.loads(file.read_text(encoding="utf-8"))).continues is not None
    assert command(monkeypatch, capsys, "update", tmp_path / "a", second, "--study", file)[0] == 2
